"""Wide rows, searched in the few columns that may move.

What the other columns contribute to the first layer, and to the distances of a density gate, is computed once. Only the
search works like that: whatever it finds is checked as a whole row.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from counterfactual_training.constraints import Constraints, Domain
from counterfactual_training.gates import Density, Gate, Gated
from counterfactual_training.search import Generator, SearchResult, search
from counterfactual_training.search.chain import chain_layers

# Only where that leaves out more than so many columns of each one that may move; else it saves little.
_TIMES = 3


def search_narrow(
    model: nn.Module,
    gate: Gate | None,
    x: Tensor,
    y: Tensor,
    generator: Generator,
    rules: Constraints,
    held: Tensor | None,
    difficulty: Tensor | None,
) -> SearchResult | None:
    """As :func:`search`, without the columns that are ``held`` ``(n, d)`` in all rows.

    Rows may leave a search while others go on, so each carries its number along, in a column more. ``None`` where that
    would save little, and for models, gates, generators or rules that need whole rows.
    """
    # Penalties and relations may look at any column, and numbers of rows need their digits.
    plain = generator.step_rule == "line" and not generator.penalties and rules.relations is None
    if held is None or not plain or x.dtype not in (torch.float32, torch.float64):
        return None
    held = held.clone()
    # Flags of codes never move, so whether they hold a number is known beforehand.
    for number, flags in rules.coded:
        held[:, number] |= (x[:, list(flags)] > 0.5).any(-1)
    columns = _movable(rules, held)
    if _TIMES * len(columns) > x.shape[-1]:
        return None
    with torch.no_grad():
        narrow = _narrowed(model, gate, x, columns)
    if narrow is None:
        return None
    numbers = torch.arange(len(x), dtype=x.dtype, device=x.device).unsqueeze(-1)
    short = torch.cat([x[:, columns], numbers], -1)
    still = torch.cat([held[:, columns], torch.ones_like(numbers, dtype=torch.bool)], -1)
    weights = None if difficulty is None else torch.cat([difficulty.to(x)[columns], x.new_ones(1)])
    # The longest step of a line search depends on the number of columns, and should be the one of the whole row.
    longer = (max(1.0, x.shape[-1] / 8) / max(1.0, short.shape[-1] / 8)) ** 0.5
    generator = generator.replace(learning_rate=generator.learning_rate * longer)
    result = search(
        narrow, short, y, generator, _in_columns(rules, columns), held=still, difficulty=weights, diagnose=False
    )
    x_cf, x_adv = (x.index_copy(1, columns, points[:, :-1]) for points in (result.x_cf, result.x_adv))
    return replace(result, x_cf=x_cf, x_adv=x_adv)


def _movable(rules: Constraints, held: Tensor) -> Tensor:
    """The columns ``(c,)`` that may move in any row; of categories all or none."""
    free = (~held).any(0) & ~rules.immutable
    for group in rules.groups:
        free[group.index] = free[group.index].any()
    return free.nonzero().squeeze(-1)


def _in_columns(rules: Constraints, columns: Tensor) -> Constraints:
    """The rules of some columns, and of one more that never moves."""

    def cut(values: Tensor, last: float) -> Tensor:
        return torch.cat([values[columns], values.new_full((1,), last)])

    place = {column: i for i, column in enumerate(columns.tolist())}
    groups = [group for group in rules.groups if group.columns[0] in place]
    return replace(
        rules,
        may_increase=cut(rules.may_increase, False),
        may_decrease=cut(rules.may_decrease, False),
        domain=Domain(cut(rules.domain.lower, -torch.inf), cut(rules.domain.upper, torch.inf), inferred=True),
        groups=tuple(replace(group, columns=tuple(place[c] for c in group.columns)) for group in groups),
        reach=None if rules.reach is None else cut(rules.reach, torch.inf),
        names=None,
        coded=(),
    )


def _narrowed(model: nn.Module, gate: Gate | None, x: Tensor, columns: Tensor) -> nn.Module | None:
    """The classifier, with its gate if it has one, of points ``(a, c + 1)``; ``None`` if it is of another kind."""
    layers = chain_layers(model)
    linear = next((i for i, layer in enumerate(layers or ()) if isinstance(layer, nn.Linear)), None)
    if layers is None or linear is None:
        return None
    narrow = _NarrowChain(layers, linear, x, columns)
    if gate is None:
        return narrow
    # Given columns never move, unless somebody changed the rules since the gate was fitted.
    if type(gate) is not Density or bool(gate.given[columns].any()):
        return None
    return Gated(narrow, _NarrowDensity(gate, x, columns))


class _NarrowChain(nn.Module):
    """A chain of layers at points that differ from rows x ``(n, d)`` in some columns ``(c,)`` only."""

    def __init__(self, layers: list[nn.Module], linear: int, x: Tensor, columns: Tensor) -> None:
        super().__init__()
        # What comes before the first linear layer works value by value, so on some columns as on all.
        self.before, self.behind = nn.Sequential(*layers[:linear]), nn.Sequential(*layers[linear + 1 :])
        first = layers[linear]
        self.whole, self.own = first(self.before(x)), self.before(x[:, columns])
        self.weight = first.get_parameter("weight").detach()[:, columns].T

    def forward(self, points: Tensor) -> Tensor:
        row = points[:, -1].long()
        return self.behind(self.whole[row] + (self.before(points[:, :-1]) - self.own[row]) @ self.weight)


class _NarrowDensity(Gate):
    """A density gate at points that differ from rows x ``(n, d)`` in some columns ``(c,)`` only."""

    def __init__(self, gate: Density, x: Tensor, columns: Tensor) -> None:
        super().__init__()
        self.judge = gate.around(x, columns)

    def forward(self, points: Tensor) -> Tensor:
        return self.judge(points[:, -1].long(), points[:, :-1])
