"""A search free of step size and scale: which way is up decides the direction, not how steep it is.

Each row climbs on its own: a step of bounded length along the normalised gradient is taken if it lowers the objective,
else a shorter one is tried; where a step passes τ, bisection finds the first point past it. Multiplying the logits by
c > 0 changes neither direction nor verdict, so that at τ = ½ and two classes nothing depends on c; nor does it matter
how long the steps were, but for the corners they cut.

Discrete features are relaxed on the way up, then snapped and held while the others climb on or come back to τ. Rows
that still miss it may change one category, or one lattice point, at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from counterfactual_training.constraints import Constraints
from counterfactual_training.core.broadcast import per_member
from counterfactual_training.core.losses import class_loss_gradient, softmax
from counterfactual_training.core.precision import at_least_single
from counterfactual_training.search.chain import Differentiable
from counterfactual_training.search.checks import first_logits
from counterfactual_training.search.generator import Generator
from counterfactual_training.search.gradient import search_gradient
from counterfactual_training.search.penalties import SearchState
from counterfactual_training.search.result import SearchResult, Status

_LONGER, _SHORTER = 1.3, 0.5  # of the next step, after one that helped and one that did not
_SHORTEST = 1e-4  # of the longest: a row whose steps do not help at that length is stuck
_HALVINGS = 14  # of a step that passed τ
_ROUNDS = 10  # of single changes of discrete features
_SHRINK_AT = 0.8  # share of rows still climbing at which the others are left behind


@dataclass(eq=False)
class Rows:
    """Rows ``(..., a)`` or ``(..., a, d)``; those of a lone model may be a part of the block, a fleet's are all."""

    index: Tensor  # place in the flattened block
    x: Tensor
    y_target: Tensor
    lower: Tensor  # the box of each row, mutability included; discrete features are held by an interval of one point
    upper: Tensor
    x_cf: Tensor
    x_adv: Tensor  # the last iterate within ε
    value: Tensor  # of the objective at x_cf
    confidence: Tensor
    direction: Tensor  # unit vectors, or 0 where nothing helps
    reach: Tensor  # length of the next step, as a share of the longest
    tries: Tensor  # steps tried
    moves: Tensor  # steps taken, snaps included
    live: Tensor  # still climbing
    past: Tensor  # a point past τ, with its value and confidence
    past_value: Tensor
    past_confidence: Tensor

    def part(self, mask: Tensor) -> Rows:
        """The rows under the mask, copied; a fleet keeps its rectangle and gives itself."""
        if mask.dim() > 1:
            return self
        where = mask.nonzero().squeeze(-1)
        return Rows(**{name: values.index_select(0, where) for name, values in vars(self).items()})

    def put(self, part: Rows) -> None:
        """Take over what became of a part."""
        if part is not self:
            for name in list(vars(self))[5:]:  # what comes before does not change
                setattr(self, name, getattr(self, name).index_copy(0, part.index, getattr(part, name)))


def search_line(
    network: Differentiable, x: Tensor, y_target: Tensor, generator: Generator, constraints: Constraints, record: bool
) -> SearchResult:
    """Counterfactuals of the rows x ``(..., n, d)``."""
    line = _Line(network, x, y_target, generator, constraints, record)
    rows = line.rows
    there = (rows.confidence >= line.threshold) | (line.predicted == y_target)
    line.climb(~there)
    if line.rules.has_discrete:
        line.snap(~there)
        line.come_back(~there)
        line.climb(~there)
        for _ in range(_ROUNDS):
            changed = line.exchange(~there)
            if not bool(changed.any()):
                break
            line.come_back(changed)
            line.climb(changed)
    return line.result(there)


class _Line:
    """One block of rows, and the verbs of :func:`search_line`; each takes a mask ``(..., n)`` of the rows it is for."""

    def __init__(
        self,
        network: Differentiable,
        x: Tensor,
        y: Tensor,
        generator: Generator,
        constraints: Constraints,
        record: bool,
    ) -> None:
        self.network, self.generator = network, generator
        # Projected at every step, categories would hardly ever change: steps are shorter than half the way.
        stepwise = constraints.category_projection == "step"
        self.rules = replace(constraints, category_projection="end") if stepwise else constraints
        steps = generator.max_steps
        self.limit = steps.unsqueeze(-1) if isinstance(steps, Tensor) else steps
        self.threshold = per_member(generator.decision_threshold, 1)
        logits = first_logits(network.logits, x, y)
        self.predicted = logits.argmax(-1)
        none, number = torch.zeros_like(y), torch.zeros_like(y, dtype=logits.dtype)
        self.longest = per_member(generator.learning_rate, 1) * max(1.0, (x.shape[-1] / 8) ** 0.5)
        lower, upper = _box(self.rules, x)
        index = torch.arange(y.numel(), device=x.device).reshape(y.shape)
        self.rows = Rows(
            index,
            x,
            y,
            lower,
            upper,
            x.clone(),
            x.clone(),
            number,
            number,
            x,
            number,
            none,
            none,
            none.bool(),
            x,
            number,
            number,
        )
        _, value, self.rows.confidence = self.look(self.rows, x, logits)
        # A factual outside its box must first come inside, even uphill.
        self.rows.value = value.masked_fill(((x < lower) | (x > upper)).any(-1), torch.inf)
        flat = x.reshape(-1, x.shape[-1])
        places = int(torch.as_tensor(steps).max()) + 1
        self.path = flat.expand(places, *flat.shape).clone() if record else None

    def look(self, rows: Rows, points: Tensor, logits: Tensor | None = None) -> tuple[SearchState, Tensor, Tensor]:
        """The state at points ``(..., a, d)``, the objective ``−log p + Σ penalties`` there, and p.

        A line search compares values of one function, so weights that decay keep their first value.
        """
        logits = self.network.logits(points) if logits is None else logits
        target = rows.y_target.unsqueeze(-1)
        state = SearchState(rows.x, points, points - rows.x, logits, rows.y_target, 0, self.limit)
        value = -logits.log_softmax(-1).gather(-1, target).squeeze(-1)
        for penalty in self.generator.penalties:
            value = value + penalty(state).detach()
        return state, value, softmax(logits).gather(-1, target).squeeze(-1)

    def climb(self, mask: Tensor) -> None:
        """Ascend until τ is passed, no step helps or all tries are used; then land on the first point past τ."""
        mask = mask & (self.rows.confidence < self.threshold)
        rows = self._start(mask)
        while bool(rows.live.any()):
            if rows.live.sum() < _SHRINK_AT * rows.live.numel():
                self.rows.put(rows)
                rows = self.rows.part(self.rows.live)
            length = (self.longest * rows.reach).unsqueeze(-1).to(rows.x)
            trial = rows.x_cf + length * rows.direction
            trial = trial.clamp_(rows.lower, rows.upper)
            state, value, confidence = self.look(rows, trial)
            better = rows.live & (value < rows.value)
            passed = better & (confidence >= self.threshold)
            _keep(rows, passed, past=trial, past_value=value, past_confidence=confidence)
            better &= ~passed
            self.move(rows, better, trial, value, confidence)
            if bool(better.any()):
                _keep(rows, better, direction=self.uphill(rows, state))
            rows.reach = torch.where(better, (rows.reach * _LONGER).clamp_max(1), rows.reach * _SHORTER)
            rows.tries = rows.tries + rows.live
            rows.live = rows.live & ~passed & self._can_go_on(rows)
        self.rows.put(rows)
        self.land(mask & (self.rows.past_confidence >= self.threshold), self.rows.x_cf)

    def _start(self, mask: Tensor) -> Rows:
        """The rows under the mask, with a direction each."""
        self.rows.live = mask
        self.rows.past_confidence = torch.zeros_like(self.rows.confidence)
        rows = self.rows.part(mask)
        if bool(mask.any()):
            rows.direction, rows.reach = self.uphill(rows, self.look(rows, rows.x_cf)[0]), torch.ones_like(rows.reach)
            rows.live = rows.live & self._can_go_on(rows)
        return rows

    def _can_go_on(self, rows: Rows) -> Tensor:
        return (rows.reach >= _SHORTEST) & (rows.tries < self.limit) & (rows.direction != 0).any(-1)

    def uphill(self, rows: Rows, state: SearchState) -> Tensor:
        """The unit vector against the gradient, without what would leave the box; 0 where nothing is left."""
        grad_logits = class_loss_gradient(softmax(state.logits), state.y_target)
        grad = search_gradient(self.generator, state, self.network, grad_logits)
        blocked = ((state.x_cf <= rows.lower) & (grad > 0)) | ((state.x_cf >= rows.upper) & (grad < 0))
        uphill = at_least_single(-grad.masked_fill(blocked, 0))
        largest = uphill.abs().amax(-1, keepdim=True)  # squares of small numbers would vanish
        uphill = uphill / largest.clamp_min(torch.finfo(uphill.dtype).tiny)
        return (uphill / uphill.norm(dim=-1, keepdim=True).clamp_min(1)).to(grad.dtype)

    def land(self, mask: Tensor, start: Tensor) -> None:
        """Move rows to the first point past τ between ``start`` ``(..., n, d)``, put into the box, and ``past``."""
        if not bool(mask.any()):
            return
        rows = self.rows.part(mask)
        mask, start = (mask, start) if rows is self.rows else (mask[rows.index], start[rows.index])
        below = start.clamp(rows.lower, rows.upper)
        for halving in range(_HALVINGS + 1):
            middle = (below + rows.past) / 2 if halving else below
            _, value, confidence = self.look(rows, middle)
            passed = confidence >= self.threshold
            below = torch.where(passed.unsqueeze(-1), below, middle)
            _keep(rows, passed, past=middle, past_value=value, past_confidence=confidence)
        moved = mask & (rows.past != rows.x_cf).any(-1)
        self.move(rows, moved, rows.past, rows.past_value, rows.past_confidence)
        self.rows.put(rows)

    def move(self, rows: Rows, mask: Tensor, points: Tensor, value: Tensor, confidence: Tensor) -> None:
        """The rows under the mask are at these points now."""
        _keep(rows, mask, x_cf=points, value=value, confidence=confidence)
        rows.moves = rows.moves + mask
        norm, radius = at_least_single((points - rows.x).abs().amax(-1)), per_member(self.generator.epsilon, 1)
        nascent = norm < radius if self.generator.strict_epsilon else norm <= radius
        _keep(rows, mask & nascent, x_adv=points)
        if self.path is not None:
            place = rows.moves[mask].clamp_max(len(self.path) - 1)
            self.path[place, rows.index[mask]] = points[mask]

    # ---- discrete features -----------------------------------------------------------------------------------------

    def snap(self, mask: Tensor) -> None:
        """Put discrete features on valid values, and hold them there."""
        rows = self.rows
        points = self.rules.snap(rows.x_cf, rows.x)
        _, value, confidence = self.look(rows, points)
        changed = mask & (points != rows.x_cf).any(-1)
        self.move(rows, changed, points, value, confidence)
        self._hold(mask)

    def _hold(self, mask: Tensor) -> None:
        held = mask.unsqueeze(-1) & self.rules.discrete
        self.rows.lower = torch.where(held, self.rows.x_cf, self.rows.lower)
        self.rows.upper = torch.where(held, self.rows.x_cf, self.rows.upper)

    def come_back(self, mask: Tensor) -> None:
        """Rows whose discrete features carried them past τ: the others go back towards the factual as far as τ lets."""
        rows = self.rows
        mask = mask & (rows.confidence >= self.threshold)
        _keep(rows, mask, past=rows.x_cf, past_value=rows.value, past_confidence=rows.confidence)
        self.land(mask, rows.x)

    def exchange(self, mask: Tensor) -> Tensor:
        """The best single change of a discrete feature, for rows that miss τ and are helped by one; which they are."""
        mask = mask & (self.rows.confidence < self.threshold) & (self.rows.tries < self.limit)
        changed = torch.zeros_like(mask)
        if not bool(mask.any()):
            return changed
        rows = self.rows.part(mask)
        best, best_value, best_confidence = rows.x_cf, rows.value, rows.confidence
        for points in self._exchanges(rows.x_cf):
            points = self.rules.snap(points, rows.x)
            _, value, confidence = self.look(rows, points)
            better = value < best_value
            best = torch.where(better.unsqueeze(-1), points, best)
            best_value = torch.where(better, value, best_value)
            best_confidence = torch.where(better, confidence, best_confidence)
        helped = (best_value < rows.value) & (mask if rows is self.rows else True)
        rows.tries = rows.tries + helped
        self.move(rows, helped, best, best_value, best_confidence)
        self.rows.put(rows)
        changed.view(-1)[rows.index[helped]] = True
        self._hold(changed)
        return changed

    def _exchanges(self, x_cf: Tensor) -> Iterator[Tensor]:
        for group in self.rules.groups if self.rules.category_projection == "end" else ():
            for category in range(group.num_categories):
                points = x_cf.clone()
                points[..., group.index] = group.encode(torch.tensor(category, device=x_cf.device), x_cf.dtype)
                yield points
        for lattice in self.rules.lattices:
            for value in lattice.beside(x_cf[..., lattice.column]):
                points = x_cf.clone()
                points[..., lattice.column] = value
                yield points

    def result(self, there: Tensor) -> SearchResult:
        rows, path = self.rows, self.path
        arrived = torch.where(rows.confidence >= self.threshold, int(Status.CONVERGED), int(Status.EXHAUSTED))
        if path is not None:
            done = torch.arange(len(path), device=path.device).unsqueeze(-1) > rows.moves.flatten()
            path = torch.where(done.unsqueeze(-1), rows.x_cf.reshape(path.shape[1:]), path)
            path[-1] = rows.x_cf.reshape(path.shape[1:])
            path = path.reshape(-1, *rows.x.shape)
        return SearchResult(
            x_cf=rows.x_cf,
            x_adv=rows.x_adv,
            converged=rows.confidence >= self.threshold,
            num_steps=rows.moves.clamp_max(self.limit),
            status=torch.where(there, int(Status.ALREADY_THERE), arrived),
            confidence=rows.confidence,
            binding=rows.index.new_zeros(*there.shape, 0, dtype=torch.int8),
            path=path,
        )


def _keep(rows: Rows, mask: Tensor, **values: Any) -> None:
    """Set fields of the rows under the mask ``(..., a)``."""
    for name, new in values.items():
        under = mask.unsqueeze(-1) if new.dim() > mask.dim() else mask
        setattr(rows, name, torch.where(under, new, getattr(rows, name)))


def _box(rules: Constraints, x: Tensor) -> tuple[Tensor, Tensor]:
    """Lowest and highest values ``(..., n, d)`` of the relaxed search: the bounds of each factual, its own value where
    a feature may not fall or rise, and 0 and 1 of categories."""
    bounds = rules.bounds(x)
    lower, upper = bounds.lower.expand_as(x), bounds.upper.expand_as(x)
    lower = torch.where(rules.may_decrease.unsqueeze(-2), lower, torch.maximum(lower, x))
    upper = torch.where(rules.may_increase.unsqueeze(-2), upper, torch.minimum(upper, x))
    for group in rules.groups if rules.category_projection == "end" else ():
        own = x[..., group.index]
        lower[..., group.index] = torch.maximum(lower[..., group.index], own.clamp_max(0))
        upper[..., group.index] = torch.minimum(upper[..., group.index], own.clamp_min(1))
    return lower, upper
