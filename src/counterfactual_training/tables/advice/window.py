"""The columns that a search may change; what the others add to model and gate is computed once."""

from __future__ import annotations

import copy
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from counterfactual_training.gates import Nearby
from counterfactual_training.generators.chain import chain_layers
from counterfactual_training.models.ensemble import joined_layers

if TYPE_CHECKING:
    from counterfactual_training.tables.advice.find import Finder
    from counterfactual_training.tables.advice.moves import Moves


class Window:
    """The f features, and their c encoded columns, that a search may change for n people.

    Points are rows of these columns alone. A network starts with a sum over columns, and so does
    the distance to the kernels of a density: of both, the sum over the other columns is computed
    once for each person. Models and gates of other kinds are given whole rows.

    Args:
        finder: model, gate and rules.
        x: ``(n, d)`` the people, on the CPU.
        features: ``(f,)`` positions of the features, ascending.
        device: of model and gate.

    Attributes:
        columns: ``(c,)`` their encoded columns; those of numbers first.
        starts: ``(f,)`` the first of each feature, as a position among the columns.
        owner: ``(c,)`` the feature of each, as a position among the features.
        own: ``(n, c)`` what people have there.
    """

    def __init__(
        self, finder: Finder, x: Tensor, features: np.ndarray, device: torch.device
    ) -> None:
        self.finder = finder
        self.x = x
        self.features = features
        self.device = device
        blocks = [finder.encoder.columns_[j] for j in features.tolist()]
        slices = [finder.encoder.slices_[block.feature.name] for block in blocks]
        hot = np.array([block.one_hot and block.width > 1 for block in blocks], dtype=bool)
        # Relations between columns are computed on rows in their own order.
        if finder.related is not None:
            order = np.arange(len(blocks))
        else:
            order = np.argsort(hot, kind="stable")
        width = np.array([place.stop - place.start for place in slices], dtype=np.int64)
        self.starts = np.zeros(len(blocks), dtype=np.int64)
        self.starts[order] = np.cumsum(width[order]) - width[order]
        self.owner = np.repeat(order, width[order])
        whole = [np.arange(slices[at].start, slices[at].stop) for at in order.tolist()]
        self.columns = torch.from_numpy(
            np.concatenate(whole) if whole else np.zeros(0, dtype=np.int64)
        )
        self.own = x[:, self.columns]
        if finder.related is None:
            num_numbers = int(width[~hot].sum())
        else:
            num_numbers = len(self.columns)
        self._network = _Network.of(
            finder.model, x.to(device), self.columns.to(device), num_numbers
        )
        self._density = Nearby.of(
            finder.gate, x.to(device), self.columns.to(device), num_numbers
        )
        self._is_whole = torch.equal(self.columns, torch.arange(x.shape[1]))

    def rows(self, person: np.ndarray, points: Tensor) -> Tensor:
        """Whole rows ``(a, d)`` of points ``(a, c)``."""
        if self._is_whole:
            return points
        rows = self.x.index_select(0, torch.from_numpy(person))
        rows[:, self.columns] = points
        return rows

    def logits(self, person: np.ndarray, points: Tensor) -> Tensor:
        """What the model says of points ``(a, c)``, on the CPU."""
        if self._network is None:
            return self.finder.model(self.rows(person, points).to(self.device)).cpu()
        return self._network(
            torch.from_numpy(person).to(self.device), points.to(self.device)
        ).cpu()

    def precise_logits(self, person: np.ndarray, points: Tensor) -> Tensor | None:
        """The same with twice the digits, and whatever the columns of the window; ``None`` if the
        model is no network.
        """
        if self._network is None:
            return None
        return self._network.precise(self.rows(person, points))

    @cached_property
    def terms(self) -> np.ndarray:
        """How large the terms are ``(n,)`` whose sums are the logits of the people's own rows; 0 if
        the model is no network. Logits may be small where these cancel, their rounding is not.
        """
        if self._network is None:
            return np.zeros(len(self.x))
        return self._network.terms().cpu().numpy()

    def logits_of_sets(
        self, moves: Moves, person: np.ndarray, sets: np.ndarray
    ) -> Tensor | None:
        """What the model says of people who make all moves of a set ``(c, s)``, by look-up;
        ``None`` if it cannot.
        """
        if self._network is None or self.finder.related is not None:
            return None
        who = torch.from_numpy(person).to(self.device)
        return self._network.of_sets(
            moves, self, who, torch.from_numpy(sets).to(self.device)
        ).cpu()

    def gate_odds(
        self, person: np.ndarray, points: Tensor, label: int, bar: float | None = None
    ) -> Tensor:
        """Log-odds ``(a,)`` of ``σ(g)``, as :meth:`Gate.of_class`, on the CPU; ∞ without a gate.

        With a ``bar``, a bound may do, see :meth:`Nearby.odds`.
        """
        if self._density is not None:
            return self._density.odds(
                torch.from_numpy(person).to(self.device), points.to(self.device), label, bar
            ).cpu()
        gate = self.finder.gate
        if gate is None:
            return points.new_full((len(points),), torch.inf)
        log_p = gate.of_class(self.rows(person, points).to(self.device), label).cpu().double()
        return log_p - torch.log(-torch.expm1(log_p))

    def precise_gate_odds(
        self, person: np.ndarray, points: Tensor, labels: Tensor
    ) -> Tensor | None:
        """The same of the classes ``(a,)`` with twice the digits, and whatever the columns of the
        window; ``None`` unless the gate is a density.
        """
        if self._double_gate is None:
            return None
        log_p = self._double_gate(self.rows(person, points).double())
        log_p = log_p.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
        return log_p - torch.log(-torch.expm1(log_p))

    @cached_property
    def _double_gate(self) -> nn.Module | None:
        """The gate on the CPU, because not every device has as many digits."""
        if self._density is None:
            return None
        return copy.deepcopy(self._density.gate).cpu().double()

    def distance(
        self, person: np.ndarray, points: Tensor, farthest: float = torch.inf
    ) -> np.ndarray:
        """How far each feature moved ``(a, f)``, L1 in model space; codes beyond ``farthest`` count
        as that.
        """
        own = self.own.index_select(0, torch.from_numpy(person)).double()
        own.clamp_(-farthest, farthest)
        moved = points.double().clamp(-farthest, farthest).sub_(own).abs_()
        sums = moved.new_zeros(len(moved), len(self.features))
        sums.index_add_(1, torch.from_numpy(self.owner), moved)
        sums[:, torch.from_numpy(self.following)] = 0
        return sums.numpy()

    @cached_property
    def following(self) -> np.ndarray:
        """Features that follow others, as positions among the features."""
        return np.flatnonzero(np.isin(self.features, self.finder.following))


class _Network:
    """A chain of layers at points of a window.

    Its first layer is ``W φ(x) + b``, where φ works value by value. For a person, the columns
    outside the window only move b. A category's columns hold 0 or 1, so that φ is linear there: it
    is computed for numbers alone.
    """

    def __init__(
        self, layers: list[nn.Module], linear: int, x: Tensor, columns: Tensor, num_numbers: int
    ) -> None:
        self._layers = layers
        self.x = x
        # forward itself, not the call of the module, which would look for hooks; chains have none.
        self._before = [layer.forward for layer in layers[:linear]]
        self._behind = [layer.forward for layer in layers[linear + 1 :]]
        first = layers[linear]
        own = x[:, columns]
        codes = own[:, num_numbers:]
        if not bool(((codes == 0) | (codes == 1)).all()):
            num_numbers = len(columns)
        self.num_numbers = num_numbers
        weight = first.get_parameter("weight").detach()[:, columns].T
        zero, one = self.before(x.new_tensor([0.0, 1.0]))
        self.of_numbers = weight[:num_numbers]
        self.of_categories = weight[num_numbers:] * (one - zero)
        self.own = own
        self.whole = first(self.before(x))
        self.base = self.whole - self._sum(torch.zeros_like(self.whole), own)
        self._tables: dict[int, tuple[Moves, Tensor]] = {}

    @classmethod
    def of(
        cls, model: nn.Module, x: Tensor, columns: Tensor, num_numbers: int
    ) -> _Network | None:
        """``None`` for a model that is no chain of layers, nor an ensemble of such."""
        layers = chain_layers(model)
        if layers is None:
            layers = joined_layers(model)
        linear = next(
            (i for i, layer in enumerate(layers or ()) if isinstance(layer, nn.Linear)), None
        )
        if layers is None or linear is None or next(model.parameters()).dtype != x.dtype:
            return None
        with torch.no_grad():
            return cls(layers, linear, x, columns, num_numbers)

    def before(self, x: Tensor) -> Tensor:
        """φ of values of any shape."""
        for forward in self._before:
            x = forward(x)
        return x

    def behind(self, hidden: Tensor) -> Tensor:
        """Logits, given the first layer."""
        for forward in self._behind:
            hidden = forward(hidden)
        return hidden

    def __call__(self, person: Tensor, points: Tensor) -> Tensor:
        return self.behind(self._sum(self.base.index_select(0, person), points))

    def terms(self) -> Tensor:
        """The largest sum ``(n,)`` of absolute terms in the last layer, of any class."""
        *hidden, last = self._layers
        if not isinstance(last, nn.Linear):
            return self.whole.new_zeros(len(self.whole))
        value = self.x
        for layer in hidden:
            value = layer(value)
        total = value.abs() @ last.weight.detach().abs().T
        if last.bias is not None:
            total = total + last.bias.detach().abs()
        return total.amax(-1)

    def precise(self, rows: Tensor) -> Tensor:
        """Logits of whole rows ``(a, d)``, with twice the digits; on the CPU, because not every
        device has them.
        """
        return self._double(rows.double())

    @cached_property
    def _double(self) -> nn.Sequential:
        return nn.Sequential(
            *(copy.deepcopy(layer).cpu().double() for layer in self._layers)
        ).eval()

    def of_sets(self, moves: Moves, window: Window, person: Tensor, sets: Tensor) -> Tensor:
        """Logits of people who make all moves of a set ``(c, s)``: what each move adds to the first
        layer is known.
        """
        size = len(moves.feature)
        table = self._table(moves, window)
        hidden = self.whole.index_select(0, person)
        for move in sets.T:
            hidden += table.index_select(0, person * size + move)
        return self.behind(hidden)

    def _table(self, moves: Moves, window: Window) -> Tensor:
        """What every move of everybody adds to the first layer ``(n·M, h)``."""
        # The moves are kept beside their table, so that no other moves can get their id.
        kept = self._tables.get(id(moves))
        if kept is not None:
            return kept[1]
        weight = torch.cat([self.of_numbers, self.of_categories])
        value = torch.cat(
            [self.before(self.own[:, : self.num_numbers]), self.own[:, self.num_numbers :]], -1
        )
        place = torch.as_tensor(moves.place, device=weight.device)
        code = moves.code.to(weight)
        code = torch.where(place < self.num_numbers, self.before(code), code)
        # What the feature's own value adds goes away.
        own = value.new_zeros(len(value), len(window.features), weight.shape[1])
        own.index_add_(
            1, torch.as_tensor(window.owner, device=weight.device), value.unsqueeze(-1) * weight
        )
        table = (
            code.unsqueeze(-1) * weight[place]
            - own[:, torch.as_tensor(moves.feature, device=weight.device)]
        )
        self._tables[id(moves)] = moves, table.flatten(0, 1)
        return self._tables[id(moves)][1]

    def _sum(self, out: Tensor, points: Tensor) -> Tensor:
        """Add what the columns of the window contribute to the first layer, in place."""
        numbers = points[:, : self.num_numbers]
        categories = points[:, self.num_numbers :]
        if categories.shape[1]:
            out.addmm_(categories, self.of_categories)
        return out.addmm_(self.before(numbers), self.of_numbers)
