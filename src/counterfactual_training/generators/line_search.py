"""A line search whose result depends on neither the step size nor the scale of the logits.

Each row climbs on its own. A step along the normalised gradient is accepted if it lowers the
objective; otherwise a shorter one is tried. When a step passes τ, bisection finds the first point
past it. Multiplying the logits by c > 0 changes neither the direction nor which steps are accepted,
so with two classes and τ = ½ nothing depends on c.

Discrete features are relaxed at first. They are then snapped and held while the other features
climb on, or return to τ. Rows that still miss τ may change one category, or move to the next
lattice point, one at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from counterfactual_training.constraints import Constraints, imply
from counterfactual_training.core.broadcast import per_member
from counterfactual_training.core.losses import softmax
from counterfactual_training.core.precision import at_least_single
from counterfactual_training.generators.chain import Differentiable
from counterfactual_training.generators.climbing_rows import ClimbingRows
from counterfactual_training.generators.generator import Generator
from counterfactual_training.generators.gradient import search_gradient
from counterfactual_training.generators.model_checks import first_logits
from counterfactual_training.generators.penalties import SearchState
from counterfactual_training.generators.result import SearchResult, Status
from counterfactual_training.generators.steps import unit

# Factors of the next step, after one that helped and one that did not.
_LONGER, _SHORTER = (
    1.3,
    0.5,
)
_SHORTEST = 1e-4  # share of the longest step; a row that no step of this length helps is stuck
_HALVINGS = 14  # of a step that passed τ
# Rows land this far past τ (in probability, and relative to the logits), so that rounding errors
# cannot put them back.
_MARGIN = 2e-7
_ROUNDING = 1e-6
_ROUNDS = 10  # of changing one discrete feature
_SHRINK_AT = 0.7  # share of rows still climbing at which the others are left behind


def search_line(
    network: Differentiable,
    x: Tensor,
    y_target: Tensor,
    generator: Generator,
    constraints: Constraints,
    record: bool,
    held: Tensor | None = None,
    difficulty: Tensor | None = None,
) -> SearchResult:
    """Counterfactuals of the rows x ``(..., n, d)``; ``held`` and ``difficulty`` as in
    :func:`search`.
    """
    line = _Line(network, x, y_target, generator, constraints, record, held)
    if difficulty is None:
        line.difficulty = None
    else:
        line.difficulty = difficulty.to(x)
    line.climb(~line.there)
    if line.rules.has_discrete:
        changed = line.snap(~line.there)
        for _ in range(_ROUNDS):
            # After a snap or an exchange, a row is beyond τ or below it: one of these two applies
            # to it.
            line.come_back(changed)
            line.climb(changed)
            changed = line.exchange(~line.there)
            if not bool(changed.any()):
                break
    return line.result()


class _Line:
    """The rows of one block, and what :func:`search_line` does to those under a mask ``(...,
    n)``.
    """

    difficulty: Tensor | None = None

    def __init__(
        self,
        network: Differentiable,
        x: Tensor,
        y: Tensor,
        generator: Generator,
        rules: Constraints,
        record: bool,
        held: Tensor | None = None,
    ) -> None:
        self.network = network
        self.generator = generator
        self.rules = rules
        # A step that goes less than half the way to another category would be undone by a
        # projection after each step.
        if rules.category_projection == "step":
            self.rules = replace(rules, category_projection="end")
        steps = generator.max_steps
        self.threshold = per_member(generator.decision_threshold, 1)
        self.limit = steps.unsqueeze(-1) if isinstance(steps, Tensor) else steps
        # In double precision, and the margin in probability turned into log-odds by the slope 1/τ(1
        # − τ) of the logit.
        tau = torch.as_tensor(self.threshold, dtype=torch.float64)
        self.goal = (tau.logit() + _MARGIN / (tau * (1 - tau))).to(at_least_single(x))
        # A step is normalised over all features: without √d, each of many would move by less and
        # less.
        self.longest = per_member(generator.learning_rate, 1) * max(
            1.0, (x.shape[-1] / 8) ** 0.5
        )
        logits = first_logits(network.logits, x, y)
        index = torch.arange(y.numel(), device=x.device).reshape(y.shape)
        none = torch.zeros_like(y)
        one_hot = torch.zeros_like(logits, dtype=torch.bool).scatter_(-1, y.unsqueeze(-1), True)
        lower, upper = _box(self.rules, x, held)
        points = [x.clone() for _ in range(3)]
        numbers = [torch.zeros_like(logits[..., 0]) for _ in range(4)]
        slope = at_least_single(x.clone())
        turned = none.bool()
        live = none.bool()
        # Fields that change as rows climb, in the order of ClimbingRows.
        changing = (*points, *numbers[:3], slope, numbers[3], turned, none, none.clone(), live)
        if held is None:
            still = torch.zeros_like(x, dtype=torch.bool)
        else:
            still = held
        self.rows = rows = ClimbingRows(index, x, y, one_hot, lower, upper, still, *changing)
        rows.set(torch.ones_like(one_hot[..., 0]), **self.look(rows, x, logits)[1])
        # A factual outside its box must first come inside, even if that is uphill.
        rows.value = rows.value.masked_fill(((x < lower) | (x > upper)).any(-1), torch.inf)
        # As in the plain search, the target class by argmax counts even below τ.
        self.there = (rows.confidence >= self.threshold) | (logits.argmax(-1) == y)
        self.snapped = torch.zeros_like(self.there)
        places = int(torch.as_tensor(steps).max()) + 1
        self.path = x.reshape(1, -1, x.shape[-1]).repeat(places, 1, 1) if record else None

    def look(
        self, rows: ClimbingRows, points: Tensor, logits: Tensor | None = None
    ) -> tuple[SearchState, dict[str, Tensor]]:
        """The state at points ``(..., a, d)``; there the objective, the target's probability, and
        the gap to the goal.

        The objective is −log p + Σ penalties. Without penalties it is minus the log-odds, which
        order points alike and keep their digits where p is near 0 or 1. Penalties keep their weight
        of step 0, because a line search must compare values of one function.
        """
        if logits is None:
            logits = self.network.logits(points)
        state = SearchState(
            rows.x, points, points - rows.x, logits, rows.y_target, 0, self.limit
        )
        own = logits.gather(-1, rows.y_target.unsqueeze(-1)).squeeze(-1)
        others = _others(logits, rows)
        odds = own - others
        # Only log p has a fixed scale against which penalties can be weighed.
        if not self.generator.penalties:
            value = -odds
        else:
            value = -functional.logsigmoid(odds)
        for penalty in self.generator.penalties:
            value = value + penalty(state).detach()
        # Large logits lose digits in their difference, so the margin grows with them.
        gap = odds - self.goal - _ROUNDING * (own.abs() + others.abs())
        return state, {"value": value, "confidence": odds.sigmoid(), "gap": gap}

    def slope(self, rows: ClimbingRows, state: SearchState) -> Tensor:
        """The gradient of the objective, zero where descent would leave the box."""
        # Without penalties this is the gradient of the log-odds, which does not vanish where the
        # model is sure.
        if self.generator.penalties:
            shown = state.logits
        else:
            shown = state.logits.masked_fill(rows.one_hot, -torch.inf)
        grad = search_gradient(
            self.generator, state, self.network, softmax(shown) - rows.one_hot.to(shown)
        )
        grad = self.rules.through(grad, state.x_cf)
        # Left in, a blocked feature would take its share of the normalised step and shorten the
        # others'.
        blocked = ((rows.x_cf <= rows.lower) & (grad > 0)) | (
            (rows.x_cf >= rows.upper) & (grad < 0)
        )
        return at_least_single(grad.masked_fill(blocked, 0))

    def climb(self, mask: Tensor) -> None:
        """Rows below τ climb until they pass it, no step helps, or all tries are used; then they
        land on τ.
        """
        mask = mask & (self.rows.gap < 0)
        self.rows.live = mask & (self.rows.tries < self.limit)
        if not bool(self.rows.live.any()):
            return
        rows = self.rows.part(self.rows.live)
        rows.slope, rows.reach = (
            self.slope(rows, self.look(rows, rows.x_cf)[0]),
            torch.ones_like(rows.reach),
        )
        while bool(rows.live.any()):
            if rows.live.sum() < _SHRINK_AT * rows.live.numel():
                self.rows.put(rows)
                rows = self.rows.part(self.rows.live)
            step = (
                self.descent(rows.slope)
                .mul_((-self.longest * rows.reach).unsqueeze(-1))
                .to(rows.x)
            )
            trial = self.rules.confine(
                step.add_(rows.x_cf), rows.x, rows.lower, rows.upper, rows.x_cf
            )
            state, found = self.look(rows, trial)
            # Strictly better: on a plateau, equal values would use up all tries.
            better = rows.live & (found["value"] < rows.value)
            rows.set(better, before=rows.x_cf, x_cf=trial, **found)
            going_on = better & (found["gap"] < 0)
            self.arrive(rows, going_on)
            # The first failed step may have crossed a ridge: try the direction along it before
            # shortening the step.
            shorter = torch.where(rows.turned, rows.reach * _SHORTER, rows.reach)
            rows.reach = torch.where(better, (rows.reach * _LONGER).clamp_max(1), shorter)
            rows.turned = ~better
            rows.tries = rows.tries + rows.live
            # A row that got better and passed τ is done climbing; one that did not get better tries
            # again.
            rows.live = (
                rows.live
                & (going_on | ~better)
                & (rows.reach >= _SHORTEST)
                & (rows.tries < self.limit)
            )
            new = self.slope(rows, state)
            # Else the gradient at the failed trial, combined with the one here, shows the way along
            # a ridge.
            rows.slope = torch.where(better.unsqueeze(-1), new, _least(rows.slope, new))
        self.rows.put(rows)
        passed = mask & (self.rows.gap >= 0)
        self.land(passed)
        self.arrive(self.rows, passed)

    def descent(self, slope: Tensor) -> Tensor:
        """The direction ``(..., d)`` of steepest ascent, of length 1; where difficulty counts, by
        unit of it.
        """
        # Steepest in features measured in units of difficulty: the gradient there, and the step
        # back, each divide once.
        return unit(slope if self.difficulty is None else slope / self.difficulty.square())

    def land(self, mask: Tensor) -> None:
        """Move x_cf back to the first point past τ on the segment from ``before``, by bisection."""
        if not bool(mask.any()):
            return
        rows = self.rows.part(mask)
        if rows is not self.rows:
            mask = mask[rows.index]
        # A factual outside its box is no valid end of the segment.
        below = rows.before.clamp(rows.lower, rows.upper)
        for halving in range(_HALVINGS + 1):
            # The lower end itself first: with categories held as they are, the factual's numbers
            # may pass τ already.
            middle = self.rules.follow((below + rows.x_cf) / 2 if halving else below, rows.x)
            found = self.look(rows, middle)[1]
            passed = found["gap"] >= 0
            below = torch.where(passed.unsqueeze(-1), below, middle)
            rows.set(mask & passed, x_cf=middle, **found)
        self.rows.put(rows)

    def arrive(self, rows: ClimbingRows, mask: Tensor) -> None:
        """Count the move of the rows under the mask, store it if nascent (Eq. 4), and record it."""
        rows.moves = rows.moves + mask
        norm = at_least_single((rows.x_cf - rows.x).abs().amax(-1))
        radius = per_member(self.generator.epsilon, 1)
        rows.set(
            mask & (norm < radius if self.generator.strict_epsilon else norm <= radius),
            x_adv=rows.x_cf,
        )
        if self.path is not None:
            # A snap is a move but no try, so moves may exceed T; the last ones share a place.
            place = rows.moves[mask].clamp_max(len(self.path) - 1)
            self.path[place, rows.index[mask]] = rows.x_cf[mask]

    # ---- discrete features -----------------------------------------------------------------------

    def snap(self, mask: Tensor) -> Tensor:
        """Round discrete features to valid values and hold them there; returns the mask."""
        rows = self.rows
        points = self.rules.snap(rows.x_cf, rows.x, rows.still)
        # Rows that snapping leaves alone have made no move.
        changed = mask & (points != rows.x_cf).any(-1)
        rows.set(changed, x_cf=points, **self.look(rows, points)[1])
        self.arrive(rows, changed)
        self.snapped = changed
        return self._hold(mask)

    def _hold(self, mask: Tensor) -> Tensor:
        rows = self.rows
        held = mask.unsqueeze(-1) & self.rules.discrete
        rows.lower, rows.upper = (
            torch.where(held, rows.x_cf, bound) for bound in (rows.lower, rows.upper)
        )
        return mask

    def come_back(self, mask: Tensor) -> None:
        """Rows past τ go back towards the factual as far as τ allows; held features stay."""
        # Discrete features are held by then, so their box is closed and the way back moves only the
        # others.
        rows = self.rows
        mask = mask & (self.rows.gap >= 0)
        start = rows.x_cf.clone()
        rows.set(mask, before=rows.x)
        self.land(mask)
        self.arrive(rows, mask & (rows.x_cf != start).any(-1))

    def exchange(self, mask: Tensor) -> Tensor:
        """Make the best change of one discrete feature in rows that miss τ; returns the mask of
        rows that it helps.
        """
        mask = mask & (self.rows.gap < 0) & (self.rows.tries < self.limit)
        changed = torch.zeros_like(mask)
        if not bool(mask.any()):
            return changed
        rows = self.rows.part(mask)
        start = rows.value
        if rows is not self.rows:
            mask = mask[rows.index]
        for points, allowed in self._changes(rows):
            if bool((mask & allowed).any()):
                found = self.look(rows, points)[1]
                rows.set(mask & allowed & (found["value"] < rows.value), x_cf=points, **found)
        helped = rows.value < start
        # An exchange costs a try, so that T bounds the whole search.
        rows.tries = rows.tries + helped
        self.arrive(rows, helped)
        self.rows.put(rows)
        changed.view(-1)[rows.index[helped]] = True
        return self._hold(changed)

    def _changes(self, rows: ClimbingRows) -> Iterator[tuple[Tensor, Tensor]]:
        """Points ``(..., a, d)`` with one discrete feature changed, and a mask ``(..., a)`` where
        that is allowed.
        """
        x_cf = rows.x_cf
        x = rows.x
        for group in self.rules.groups if self.rules.category_projection == "end" else ():
            allowed = (
                self.rules.categories(group, x)
                & ~group.own(x_cf)
                & ~rows.still[..., group.columns[:1]]
            )
            for category in range(group.num_categories):
                points = x_cf.clone()
                points[..., group.index] = group.encode(
                    torch.tensor(category, device=x_cf.device), x_cf.dtype
                )
                yield imply(self.rules, points, x, rows.still), allowed[..., category]
        for lattice in self.rules.lattices:
            for value in lattice.beside(x_cf[..., lattice.column]):
                points = x_cf.clone()
                points[..., lattice.column] = value
                points = self.rules.snap(points, x, rows.still)
                yield points, (points != x_cf).any(-1) & ~rows.still[..., lattice.column]

    def result(self) -> SearchResult:
        rows = self.rows
        path = self.path
        converged = self.rows.confidence >= self.threshold
        status = torch.where(converged, int(Status.CONVERGED), int(Status.EXHAUSTED))
        if path is not None:  # after its last move a row stays where it is
            after = (
                torch.arange(len(path), device=path.device).unsqueeze(-1)
                >= rows.moves.flatten()
            )
            after[-1] = True
            path = torch.where(after.unsqueeze(-1), rows.x_cf.reshape(path.shape[1:]), path)
            path = path.reshape(len(path), *rows.x.shape)
        return SearchResult(
            x_cf=rows.x_cf,
            x_adv=rows.x_adv,
            converged=converged,
            # A place on the path, but no update.
            num_steps=(rows.moves - self.snapped.long()).clamp_max(self.limit),
            status=status.masked_fill_(self.there, int(Status.ALREADY_THERE)),
            confidence=rows.confidence,
            binding=status.new_zeros(*status.shape, 0, dtype=torch.int8),
            path=path,
        )


def _others(logits: Tensor, rows: ClimbingRows) -> Tensor:
    """log Σ exp ``(..., a)`` of the logits of all classes but the target."""
    # Of two classes, log Σ exp of the others is the other one.
    if logits.shape[-1] == 2:  # many times faster than logsumexp
        return logits.gather(-1, 1 - rows.y_target.unsqueeze(-1)).squeeze(-1)
    return logits.masked_fill(rows.one_hot, -torch.inf).logsumexp(-1)


def _least(one: Tensor, other: Tensor) -> Tensor:
    """The shortest convex combination of two gradients ``(..., d)``.

    If a step crossed a ridge, the gradients on both sides point at each other, and this is the
    gradient along it.
    """
    # Scaled for the same reason as in unit: squares of small slopes would underflow.
    scale = one.abs().amax(-1, keepdim=True).clamp_min(torch.finfo(one.dtype).tiny)
    across = (other - one) / scale
    # Where along the segment between both gradients the shortest one lies; 0/0 means that they are
    # equal.
    share = (one / scale * across).sum(-1, keepdim=True).neg_() / across.square().sum(
        -1, keepdim=True
    )
    return one + (other - one) * share.nan_to_num_(0.0).clamp_(0, 1)


def _box(rules: Constraints, x: Tensor, held: Tensor | None) -> tuple[Tensor, Tensor]:
    """The box ``(..., n, d)`` that rows climb in: the bounds of their factuals, cut at the factual
    where a feature may not decrease or increase, and at 0 and 1 for relaxed categories."""
    lower, upper = (bound.expand_as(x).clone() for bound in rules.interval(x, held))
    for group in rules.groups if rules.category_projection == "end" else ():
        own = x[..., group.index]
        # Beyond 0 and 1 a relaxed category means nothing; a factual beyond them stays inside its
        # box.
        lower[..., group.index] = torch.maximum(lower[..., group.index], own.clamp_max(0))
        upper[..., group.index] = torch.minimum(upper[..., group.index], own.clamp_min(1))
    return lower, upper
