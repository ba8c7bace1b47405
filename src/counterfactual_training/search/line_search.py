"""A search free of step size and scale: the gradient says which way is up, not how far to go.

Each row climbs on its own. A step along the normalised gradient is taken if it lowers the objective, else a shorter one
is tried; where a step passes τ, bisection finds the first point past it. Logits times c > 0 change neither direction
nor verdict, so with two classes and τ = ½ nothing depends on c; shorter steps cut fewer corners, and change no more.

Discrete features are relaxed on the way up, then snapped and held while the others climb on, or come back to τ. Rows
that still miss it may change one category, or go to the next lattice point, one at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from counterfactual_training.constraints import Constraints
from counterfactual_training.core.broadcast import per_member
from counterfactual_training.core.losses import softmax
from counterfactual_training.core.precision import at_least_single
from counterfactual_training.search.chain import Differentiable
from counterfactual_training.search.generator import Generator
from counterfactual_training.search.gradient import search_gradient
from counterfactual_training.search.model_checks import first_logits
from counterfactual_training.search.penalties import SearchState
from counterfactual_training.search.result import SearchResult, Status

_LONGER, _SHORTER = 1.3, 0.5  # the next step, after one that helped and one that did not
_SHORTEST = 1e-4  # of the longest step: where none of that length helps, a row is stuck
_HALVINGS = 14  # of a step that passed τ
# So far past τ rows land, in probability and relative to the logits: rounding elsewhere must not put them before it.
_MARGIN, _ROUNDING = 2e-7, 1e-6
_ROUNDS = 10  # of single changes of discrete features
_SHRINK_AT = 0.7  # share of rows still climbing at which the others are left behind


@dataclass(eq=False)
class Rows:
    """Rows ``(..., a)`` or ``(..., a, d)`` of a block; a lone model may work on a part, a fleet works on all."""

    index: Tensor  # place in the flattened block
    x: Tensor
    y_target: Tensor
    one_hot: Tensor
    lower: Tensor  # the box of each row, mutability included; what is held has an interval of one point
    upper: Tensor
    x_cf: Tensor  # from here on, what changes as rows climb
    before: Tensor  # the point before x_cf
    x_adv: Tensor  # the last iterate within ε
    value: Tensor  # of the objective at x_cf
    confidence: Tensor
    gap: Tensor  # log-odds beyond those of τ
    slope: Tensor  # gradient of the objective, of what may move; at a ridge, of the way along it
    reach: Tensor  # length of the next step, as a share of the longest
    turned: Tensor  # whether the last step did not help
    tries: Tensor
    moves: Tensor
    live: Tensor

    def part(self, mask: Tensor) -> Rows:
        """A copy of the rows under the mask; of a fleet, whose rows are a rectangle, all of them."""
        if mask.dim() > 1:
            return self
        where = mask.nonzero().squeeze(-1)
        return Rows(**{name: values.index_select(0, where) for name, values in vars(self).items()})

    def put(self, part: Rows) -> None:
        """Take over what became of a part."""
        names = list(vars(self))
        for name in names[names.index("x_cf") :] if part is not self else ():
            getattr(self, name).index_copy_(0, part.index, getattr(part, name))

    def set(self, mask: Tensor, **values: Tensor) -> None:
        """Replace values of the rows under the mask."""
        for name, new in values.items():
            under = mask.unsqueeze(-1) if new.dim() > mask.dim() else mask
            setattr(self, name, torch.where(under, new, getattr(self, name)))


def search_line(
    network: Differentiable, x: Tensor, y_target: Tensor, generator: Generator, constraints: Constraints, record: bool
) -> SearchResult:
    """Counterfactuals of the rows x ``(..., n, d)``."""
    line = _Line(network, x, y_target, generator, constraints, record)
    line.climb(~line.there)
    if line.rules.has_discrete:
        changed = line.snap(~line.there)
        for _ in range(_ROUNDS):
            line.come_back(changed)
            line.climb(changed)
            changed = line.exchange(~line.there)
            if not bool(changed.any()):
                break
    return line.result()


class _Line:
    """The rows of one block, and what :func:`search_line` does to those under a mask ``(..., n)``."""

    def __init__(
        self, network: Differentiable, x: Tensor, y: Tensor, generator: Generator, rules: Constraints, record: bool
    ) -> None:
        self.network, self.generator, self.rules = network, generator, rules
        if rules.category_projection == "step":  # shorter than half the way to a category, each step would be undone
            self.rules = replace(rules, category_projection="end")
        steps, self.threshold = generator.max_steps, per_member(generator.decision_threshold, 1)
        self.limit = steps.unsqueeze(-1) if isinstance(steps, Tensor) else steps
        tau = torch.as_tensor(self.threshold, dtype=torch.float64)
        self.goal = (tau.logit() + _MARGIN / (tau * (1 - tau))).to(at_least_single(x))
        self.longest = per_member(generator.learning_rate, 1) * max(1.0, (x.shape[-1] / 8) ** 0.5)
        logits = first_logits(network.logits, x, y)
        index, none = torch.arange(y.numel(), device=x.device).reshape(y.shape), torch.zeros_like(y)
        one_hot = torch.zeros_like(logits, dtype=torch.bool).scatter_(-1, y.unsqueeze(-1), True)
        lower, upper = _box(self.rules, x)
        points, numbers = [x.clone() for _ in range(3)], [torch.zeros_like(logits[..., 0]) for _ in range(4)]
        changing = (
            *points,
            *numbers[:3],
            at_least_single(x.clone()),
            numbers[3],
            none.bool(),
            none,
            none.clone(),
            none.bool(),
        )
        self.rows = rows = Rows(index, x, y, one_hot, lower, upper, *changing)
        rows.set(torch.ones_like(one_hot[..., 0]), **self.look(rows, x, logits)[1])
        # A factual outside its box must first come inside, even if that is uphill.
        rows.value = rows.value.masked_fill(((x < lower) | (x > upper)).any(-1), torch.inf)
        self.there = (rows.confidence >= self.threshold) | (logits.argmax(-1) == y)
        places = int(torch.as_tensor(steps).max()) + 1
        self.path = x.reshape(1, -1, x.shape[-1]).repeat(places, 1, 1) if record else None

    def look(self, rows: Rows, points: Tensor, logits: Tensor | None = None) -> tuple[SearchState, dict[str, Tensor]]:
        """The state at points ``(..., a, d)``; objective, target's probability and what it has beyond the goal there.

        The objective is −log p + Σ penalties; where there are none, minus the log-odds, which rank alike and keep their
        digits on flat models. A line search compares values of one function: penalties keep their first weight.
        """
        logits = self.network.logits(points) if logits is None else logits
        state = SearchState(rows.x, points, points - rows.x, logits, rows.y_target, 0, self.limit)
        own = logits.gather(-1, rows.y_target.unsqueeze(-1)).squeeze(-1)
        others = _others(logits, rows)
        odds = own - others
        value = -odds if not self.generator.penalties else -functional.logsigmoid(odds)
        for penalty in self.generator.penalties:
            value = value + penalty(state).detach()
        gap = odds - self.goal - _ROUNDING * (own.abs() + others.abs())
        return state, {"value": value, "confidence": odds.sigmoid(), "gap": gap}

    def slope(self, rows: Rows, state: SearchState) -> Tensor:
        """The gradient of the objective, without the part whose descent would leave the box around x_cf."""
        shown = state.logits if self.generator.penalties else state.logits.masked_fill(rows.one_hot, -torch.inf)
        grad = search_gradient(self.generator, state, self.network, softmax(shown) - rows.one_hot.to(shown))
        blocked = ((rows.x_cf <= rows.lower) & (grad > 0)) | ((rows.x_cf >= rows.upper) & (grad < 0))
        return at_least_single(grad.masked_fill(blocked, 0))

    def climb(self, mask: Tensor) -> None:
        """Rows before τ ascend until they pass it, no step helps or all tries are used; then they land on it."""
        mask = mask & (self.rows.gap < 0)
        self.rows.live = mask & (self.rows.tries < self.limit)
        if not bool(self.rows.live.any()):
            return
        rows = self.rows.part(self.rows.live)
        rows.slope, rows.reach = self.slope(rows, self.look(rows, rows.x_cf)[0]), torch.ones_like(rows.reach)
        while bool(rows.live.any()):
            if rows.live.sum() < _SHRINK_AT * rows.live.numel():
                self.rows.put(rows)
                rows = self.rows.part(self.rows.live)
            step = _unit(rows.slope).mul_((-self.longest * rows.reach).unsqueeze(-1)).to(rows.x)
            trial = step.add_(rows.x_cf).clamp_(rows.lower, rows.upper)
            state, found = self.look(rows, trial)
            better = rows.live & (found["value"] < rows.value)
            rows.set(better, before=rows.x_cf, x_cf=trial, **found)
            going_on = better & (found["gap"] < 0)
            self.arrive(rows, going_on)
            # Of steps across a ridge the first that does not help shows the way along it, to be tried at full length.
            shorter = torch.where(rows.turned, rows.reach * _SHORTER, rows.reach)
            rows.reach = torch.where(better, (rows.reach * _LONGER).clamp_max(1), shorter)
            rows.turned = ~better
            rows.tries = rows.tries + rows.live
            rows.live = rows.live & (going_on | ~better) & (rows.reach >= _SHORTEST) & (rows.tries < self.limit)
            new = self.slope(rows, state)
            rows.slope = torch.where(better.unsqueeze(-1), new, _least(rows.slope, new))
        self.rows.put(rows)
        passed = mask & (self.rows.gap >= 0)
        self.land(passed)
        self.arrive(self.rows, passed)

    def land(self, mask: Tensor) -> None:
        """Move x_cf, past τ, to the first point past it on the way from ``before``, put into the box."""
        if not bool(mask.any()):
            return
        rows = self.rows.part(mask)
        mask = mask if rows is self.rows else mask[rows.index]
        below = rows.before.clamp(rows.lower, rows.upper)
        for halving in range(_HALVINGS + 1):
            middle = (below + rows.x_cf) / 2 if halving else below
            found = self.look(rows, middle)[1]
            passed = found["gap"] >= 0
            below = torch.where(passed.unsqueeze(-1), below, middle)
            rows.set(mask & passed, x_cf=middle, **found)
        self.rows.put(rows)

    def arrive(self, rows: Rows, mask: Tensor) -> None:
        """Count the move of the rows under the mask to where they are, keep it if nascent, and record it."""
        rows.moves = rows.moves + mask
        norm, radius = at_least_single((rows.x_cf - rows.x).abs().amax(-1)), per_member(self.generator.epsilon, 1)
        rows.set(mask & (norm < radius if self.generator.strict_epsilon else norm <= radius), x_adv=rows.x_cf)
        if self.path is not None:
            place = rows.moves[mask].clamp_max(len(self.path) - 1)
            self.path[place, rows.index[mask]] = rows.x_cf[mask]

    # ---- discrete features -----------------------------------------------------------------------------------------

    def snap(self, mask: Tensor) -> Tensor:
        """Put discrete features on valid values, and hold them there; returns the mask."""
        rows = self.rows
        points = self.rules.snap(rows.x_cf, rows.x)
        changed = mask & (points != rows.x_cf).any(-1)
        rows.set(changed, x_cf=points, **self.look(rows, points)[1])
        self.arrive(rows, changed)
        return self._hold(mask)

    def _hold(self, mask: Tensor) -> Tensor:
        rows, held = self.rows, mask.unsqueeze(-1) & self.rules.discrete
        rows.lower, rows.upper = (torch.where(held, rows.x_cf, bound) for bound in (rows.lower, rows.upper))
        return mask

    def come_back(self, mask: Tensor) -> None:
        """Rows past τ go back towards the factual, but for what is held, as far as τ lets them."""
        rows, mask = self.rows, mask & (self.rows.gap >= 0)
        start = rows.x_cf.clone()
        rows.set(mask, before=rows.x)
        self.land(mask)
        self.arrive(rows, mask & (rows.x_cf != start).any(-1))

    def exchange(self, mask: Tensor) -> Tensor:
        """Make the best single change of a discrete feature in rows that miss τ; returns the mask of those it helps."""
        mask = mask & (self.rows.gap < 0) & (self.rows.tries < self.limit)
        changed = torch.zeros_like(mask)
        if not bool(mask.any()):
            return changed
        rows = self.rows.part(mask)
        start, mask = rows.value, mask if rows is self.rows else mask[rows.index]
        for points, allowed in self._changes(rows.x_cf, rows.x):
            if bool((mask & allowed).any()):
                found = self.look(rows, points)[1]
                rows.set(mask & allowed & (found["value"] < rows.value), x_cf=points, **found)
        helped = rows.value < start
        rows.tries = rows.tries + helped
        self.arrive(rows, helped)
        self.rows.put(rows)
        changed.view(-1)[rows.index[helped]] = True
        return self._hold(changed)

    def _changes(self, x_cf: Tensor, x: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Points ``(..., a, d)`` with one discrete feature changed, and a mask ``(..., a)`` of where that is fine."""
        for group in self.rules.groups if self.rules.category_projection == "end" else ():
            allowed = self.rules.categories(group, x) & ~group.own(x_cf)
            for category in range(group.num_categories):
                points = x_cf.clone()
                points[..., group.index] = group.encode(torch.tensor(category, device=x_cf.device), x_cf.dtype)
                yield points, allowed[..., category]
        for lattice in self.rules.lattices:
            for value in lattice.beside(x_cf[..., lattice.column]):
                points = x_cf.clone()
                points[..., lattice.column] = value
                points = self.rules.snap(points, x)
                yield points, (points != x_cf).any(-1)

    def result(self) -> SearchResult:
        rows, path, converged = self.rows, self.path, self.rows.confidence >= self.threshold
        status = torch.where(converged, int(Status.CONVERGED), int(Status.EXHAUSTED))
        if path is not None:  # after its last move a row stands still
            after = torch.arange(len(path), device=path.device).unsqueeze(-1) >= rows.moves.flatten()
            after[-1] = True
            path = torch.where(after.unsqueeze(-1), rows.x_cf.reshape(path.shape[1:]), path).reshape(
                len(path), *rows.x.shape
            )
        return SearchResult(
            x_cf=rows.x_cf,
            x_adv=rows.x_adv,
            converged=converged,
            num_steps=rows.moves.clamp_max(self.limit),
            status=status.masked_fill_(self.there, int(Status.ALREADY_THERE)),
            confidence=rows.confidence,
            binding=status.new_zeros(*status.shape, 0, dtype=torch.int8),
            path=path,
        )


def _others(logits: Tensor, rows: Rows) -> Tensor:
    """log Σ exp ``(..., a)`` of the logits of all classes but the target."""
    if logits.shape[-1] == 2:  # torch takes many times as long
        return logits.gather(-1, 1 - rows.y_target.unsqueeze(-1)).squeeze(-1)
    return logits.masked_fill(rows.one_hot, -torch.inf).logsumexp(-1)


def _unit(slope: Tensor) -> Tensor:
    """Vectors ``(..., d)`` of length 1, or 0 where there is none."""
    largest = slope.abs().amax(-1, keepdim=True)  # squares of small numbers would vanish
    slope = slope / largest.clamp_min(torch.finfo(slope.dtype).tiny)
    return slope / slope.norm(dim=-1, keepdim=True).clamp_min(1)


def _least(one: Tensor, other: Tensor) -> Tensor:
    """The shortest vector between two gradients ``(..., d)``.

    If a step crossed a ridge, where each side points at the other, that is the gradient along the ridge.
    """
    scale = one.abs().amax(-1, keepdim=True).clamp_min(torch.finfo(one.dtype).tiny)
    across = (other - one) / scale
    share = (one / scale * across).sum(-1, keepdim=True).neg_() / across.square().sum(-1, keepdim=True)
    return one + (other - one) * share.nan_to_num_(0.0).clamp_(0, 1)


def _box(rules: Constraints, x: Tensor) -> tuple[Tensor, Tensor]:
    """Between which values ``(..., n, d)`` rows may climb: the bounds of their factuals, the factual itself where a
    feature may not fall or rise, and 0 and 1 of relaxed categories."""
    bounds = rules.bounds(x)
    lower = torch.where(rules.may_decrease.unsqueeze(-2), bounds.lower, torch.maximum(bounds.lower, x))
    upper = torch.where(rules.may_increase.unsqueeze(-2), bounds.upper, torch.minimum(bounds.upper, x))
    lower, upper = lower.expand_as(x).clone(), upper.expand_as(x).clone()
    for group in rules.groups if rules.category_projection == "end" else ():
        own = x[..., group.index]
        lower[..., group.index] = torch.maximum(lower[..., group.index], own.clamp_max(0))
        upper[..., group.index] = torch.minimum(upper[..., group.index], own.clamp_min(1))
    return lower, upper
