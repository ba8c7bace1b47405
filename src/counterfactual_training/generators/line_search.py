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
from counterfactual_training.generators.generator import Generator
from counterfactual_training.generators.live_rows import LiveRows
from counterfactual_training.generators.model_checks import first_logits
from counterfactual_training.generators.result import SearchResult, Status
from counterfactual_training.generators.steps import unit

# Factors of the next step, after one that helped and one that did not.
_LONGER = 1.3
_SHORTER = 0.5
_SHORTEST = 1e-4  # share of the longest step; a row that no step of this length helps is stuck
_HALVINGS = 14  # of a step that passed τ
# Rows land this far past τ (in probability, and relative to the logits), so that rounding errors
# cannot put them back.
_MARGIN = 2e-7
_ROUNDING = 1e-6
_ROUNDS = 10  # of changing one discrete feature
# Share of rows still climbing at which the others are dropped. There are more columns to copy than
# with fixed steps.
_SHRINK_AT = 0.7
# Results for a part of the rows, by the column that has them.
_RESULTS = ("x_cf", "x_adv", "before", "value", "confidence", "gap", "turned", "tries", "moves")
_SAVED = {name: name for name in _RESULTS}


class LineSearch:
    """The rows of a block, and what is done to those under a mask ``(..., n)``, in rounds."""

    better: Tensor  # (..., a) whether the last step helped

    def __init__(
        self,
        network: Differentiable,
        rows: LiveRows,
        generator: Generator,
        held: Tensor | None = None,
        difficulty: Tensor | None = None,
        record: bool = False,
    ) -> None:
        """``held`` and ``difficulty`` as in :func:`search`."""
        self.network = network
        self.generator = generator
        self.rows = rows
        rows.shrink_at = _SHRINK_AT
        # A step that goes less than half the way to another category would be undone by a
        # projection after each step.
        if rows.constraints.category_projection == "step":
            rows.constraints = replace(rows.constraints, category_projection="end")
        self.rules = rows.constraints
        self.difficulty = None
        if difficulty is not None:
            self.difficulty = difficulty.to(rows.x)
        self.limit = rows.limit
        self.num_looks = rows.limits.stop + 1
        self.threshold = per_member(generator.decision_threshold, 1)
        # In double precision, and the margin in probability turned into log-odds by the slope 1/τ(1
        # − τ) of the logit.
        tau = torch.as_tensor(self.threshold, dtype=torch.float64)
        self.goal = (tau.logit() + _MARGIN / (tau * (1 - tau))).to(at_least_single(rows.x))
        # A step is normalised over all features: without √d, each of many would move by less and
        # less.
        num_features = rows.x.shape[-1]
        longest = per_member(generator.learning_rate, 1)
        self.longest = longest * max(1.0, (num_features / 8) ** 0.5)
        self.already_in_target = self._start(held)
        self.snapped = torch.zeros_like(self.already_in_target)
        self.path: Tensor | None = None
        if record:
            x = rows.x
            self.path = x.repeat(rows.limits.stop + 1, *[1] * x.dim())

    def _start(self, held: Tensor | None) -> Tensor:
        """Look at the factuals ``(..., n, d)``; mask ``(..., n)`` of those that are already
        there.
        """
        rows = self.rows
        x = rows.x
        y_target = rows.y_target
        logits = first_logits(self.network.logits, x, y_target)
        no_classes = torch.zeros_like(logits, dtype=torch.bool)
        rows.add(wanted=no_classes.scatter(-1, y_target.unsqueeze(-1), True))
        if held is None:
            held = torch.zeros_like(x, dtype=torch.bool)
        lower, upper = _box(self.rules, x, held)
        # Copies, because parts of the rows write into them.
        rows.add(held=held, lower=lower, upper=upper, x_cf=x.clone(), x_adv=x.clone())
        measured = self.look(rows, x, logits)
        # A factual outside its box must first come inside, even if that is uphill.
        outside = ((x < lower) | (x > upper)).any(-1)
        measured["value"] = measured["value"].masked_fill(outside, torch.inf)
        number = torch.zeros_like(y_target)
        rows.add(
            **measured,
            before=x.clone(),
            turned=number.bool(),
            tries=number,
            moves=number.clone(),
        )
        # As with fixed steps, the target class by argmax counts even below τ.
        return (rows.confidence >= self.threshold) | (logits.argmax(-1) == y_target)

    def rounds(self) -> Iterator[LiveRows]:
        """Yields rows that climb, in turn with what else is done to them."""
        yield from self.climb(~self.already_in_target)
        if not self.rules.has_discrete:
            return
        changed = self.snap(~self.already_in_target)
        for _ in range(_ROUNDS):
            # After a snap or an exchange, a row is beyond τ or below it: one of these two applies
            # to it.
            self.come_back(changed)
            yield from self.climb(changed)
            changed = self.exchange(~self.already_in_target)
            if not bool(changed.any()):
                break

    # ---- the objective ---------------------------------------------------------------------------

    def look(
        self, rows: LiveRows, points: Tensor, logits: Tensor | None = None
    ) -> dict[str, Tensor]:
        """The objective at points ``(..., a, d)``, the target's probability, and the gap to the
        goal, each ``(..., a)``.

        The objective is −log p + Σ penalties. Without penalties it is minus the log-odds, which
        order points alike and keep their digits where p is near 0 or 1.
        """
        if logits is None:
            logits = self.network.logits(points)
        target = logits.gather(-1, rows.y_target.unsqueeze(-1)).squeeze(-1)
        others = _others(logits, rows)
        odds = target - others
        value = -odds
        if self.generator.penalties:
            # Only log p has a fixed scale against which penalties can be weighed.
            value = -functional.logsigmoid(odds)
            state = rows.state(logits, self.time(0))._replace(
                x_cf=points, delta=points - rows.x
            )
            for penalty in self.generator.penalties:
                value = value + penalty(state).detach()
        # Large logits lose digits in their difference, so the margin grows with them.
        gap = odds - self.goal - _ROUNDING * (target.abs() + others.abs())
        return {"value": value, "confidence": odds.sigmoid(), "gap": gap}

    def time(self, step: int) -> int:
        """The step that penalties see: always the first, because values of one function are
        compared.
        """
        return 0

    def class_gradient(self, rows: LiveRows, logits: Tensor) -> Tensor:
        """∂/∂logits of −log p; without penalties of minus the log-odds, which do not vanish where
        the model is sure.
        """
        if not self.generator.penalties:
            logits = logits.masked_fill(rows.wanted, -torch.inf)
        return softmax(logits) - rows.wanted.to(logits)

    # ---- climbing --------------------------------------------------------------------------------

    def climb(self, mask: Tensor) -> Iterator[LiveRows]:
        """Yields the rows that can climb: until they pass τ, no step helps, or all tries are used.
        Then they land on τ.
        """
        mask = mask & (self.rows.gap < 0) & (self.rows.tries < self.limit)
        if not bool(mask.any()):
            return
        rows = self._part(mask)
        rows.add(here=rows.x_cf, reach=torch.ones_like(rows.value))
        rows.saved = _SAVED | {"x_cf": "here"}
        yield rows
        rows.save()
        passed = mask & (self.rows.gap >= 0)
        self.land(passed)
        self.arrive(self.rows, passed)

    def judge(self, rows: LiveRows, logits: Tensor, step: int) -> None:
        """Keep the steps that helped, and finish the rows that need no other one."""
        if step == 0:  # at the point that is the best so far
            self.better = rows.live
            return
        values = self.look(rows, rows.x_cf, logits)
        # Strictly better: on a plateau, equal values would use up all tries.
        self.better = better = rows.live & (values["value"] < rows.value)
        rows.replace(better, before=rows.here, here=rows.x_cf, **values)
        going_on = better & (values["gap"] < 0)
        self.arrive(rows, going_on)
        # The first failed step may have crossed a ridge: try the direction along it before
        # shortening the step.
        shorter = torch.where(rows.turned, rows.reach * _SHORTER, rows.reach)
        rows.reach = torch.where(better, (rows.reach * _LONGER).clamp_max(1), shorter)
        # Only of rows that tried, because the others wait with what they have found.
        rows.turned = torch.where(rows.live, ~better, rows.turned)
        rows.tries = rows.tries + rows.live
        # A row that got better and passed τ is done climbing; one that did not get better tries
        # again.
        stuck = (rows.reach < _SHORTEST) | (rows.tries >= self.limit)
        done = rows.live & ((better & ~going_on) | stuck)
        rows.leave(done, done.nonzero(as_tuple=True))

    def step(self, rows: LiveRows, grad: Tensor, step: int) -> None:
        """Try the next point, given the gradient of the objective at the last one."""
        here = rows.here
        # Left in, a blocked feature would take its share of the normalised step and shorten the
        # others'.
        blocked = ((here <= rows.lower) & (grad > 0)) | ((here >= rows.upper) & (grad < 0))
        slope = at_least_single(grad.masked_fill(blocked, 0))
        if step:
            # The gradient at a failed trial, combined with the one here, shows the way along a
            # ridge.
            along = _least(rows.slope, slope)
            slope = torch.where(self.better.unsqueeze(-1), slope, along)
        rows.add(slope=slope)
        length = (-self.longest * rows.reach).unsqueeze(-1)
        points = self.descent(slope).mul_(length).to(here).add_(here)
        rows.x_cf = self.rules.confine(points, rows.x, rows.lower, rows.upper, here)

    def descent(self, slope: Tensor) -> Tensor:
        """The direction ``(..., d)`` of steepest ascent, of length 1; where difficulty counts, by
        unit of it.
        """
        # Steepest in features measured in units of difficulty: the gradient there, and the step
        # back, each divide once.
        if self.difficulty is not None:
            slope = slope / self.difficulty.square()
        return unit(slope)

    def land(self, mask: Tensor) -> None:
        """Move x_cf back to the first point past τ on the segment from ``before``, by bisection."""
        if not bool(mask.any()):
            return
        rows = self._part(mask)
        # A factual outside its box is no valid end of the segment.
        below = rows.before.clamp(rows.lower, rows.upper)
        # The lower end itself first: with categories held as they are, the factual's numbers may
        # pass τ already.
        middle = below
        for _ in range(_HALVINGS + 1):
            middle = self.rules.follow(middle, rows.x)
            values = self.look(rows, middle)
            passed = values["gap"] >= 0
            below = torch.where(passed.unsqueeze(-1), below, middle)
            rows.replace(rows.live & passed, x_cf=middle, **values)
            middle = (below + rows.x_cf) / 2
        rows.save()

    def arrive(self, rows: LiveRows, mask: Tensor) -> None:
        """Rows are at x_cf: count the move of those under the mask, store it if nascent (Eq. 4),
        and record it.
        """
        rows.moves = rows.moves + mask
        rows.delta = rows.x_cf - rows.x
        norm = at_least_single(rows.delta.abs().amax(-1))
        radius = per_member(self.generator.epsilon, 1)
        if self.generator.strict_epsilon:
            inside = norm < radius
        else:
            inside = norm <= radius
        rows.replace(mask & inside, x_adv=rows.x_cf)
        if self.path is not None:
            places = mask.nonzero(as_tuple=True)
            # A snap is a move but no try, so moves may exceed T; the last ones share a place.
            move = rows.moves[places].clamp_max(len(self.path) - 1)
            self.path[(move, *places[:-1], rows.index[places])] = rows.x_cf[places]

    # ---- parts of the rows -----------------------------------------------------------------------

    def _part(self, mask: Tensor) -> LiveRows:
        """A copy of the rows under the mask, which writes what it finds into mine."""
        part = self.rows.part(mask)
        part.results = {name: getattr(self.rows, name) for name in _RESULTS}
        part.saved = _SAVED
        return part

    # ---- discrete features -----------------------------------------------------------------------

    def snap(self, mask: Tensor) -> Tensor:
        """Round discrete features to valid values and hold them there; returns the mask."""
        rows = self.rows
        if not bool(mask.any()):
            return mask
        points = rows.rounded(mask, rows.held)
        # Rows that snapping leaves alone have made no move.
        changed = mask & (points != rows.x_cf).any(-1)
        rows.replace(changed, x_cf=points, **self.look(rows, points))
        self.arrive(rows, changed)
        self.snapped = changed
        return self._hold(mask)

    def _hold(self, mask: Tensor) -> Tensor:
        rows = self.rows
        snapped = mask.unsqueeze(-1) & self.rules.discrete
        rows.lower = torch.where(snapped, rows.x_cf, rows.lower)
        rows.upper = torch.where(snapped, rows.x_cf, rows.upper)
        return mask

    def come_back(self, mask: Tensor) -> None:
        """Rows past τ go back towards the factual as far as τ allows; held features stay."""
        # Discrete features are held by then, so their box is closed and the way back moves only the
        # others.
        rows = self.rows
        mask = mask & (rows.gap >= 0)
        start = rows.x_cf.clone()
        rows.replace(mask, before=rows.x)
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
        rows = self._part(mask)
        start = rows.value
        for points, allowed in self._changes(rows):
            allowed = allowed & rows.live
            if bool(allowed.any()):
                values = self.look(rows, points)
                rows.replace(allowed & (values["value"] < rows.value), x_cf=points, **values)
        helped = rows.value < start
        # An exchange costs a try, so that T bounds the whole search.
        rows.tries = rows.tries + helped
        self.arrive(rows, helped)
        rows.save()
        done = helped.nonzero(as_tuple=True)
        changed[(*done[:-1], rows.index[done])] = True
        return self._hold(changed)

    def _changes(self, rows: LiveRows) -> Iterator[tuple[Tensor, Tensor]]:
        """Points ``(..., a, d)`` with one discrete feature changed, and a mask ``(..., a)`` where
        that is allowed.
        """
        x_cf = rows.x_cf
        x = rows.x
        for group in self.rules.groups if self.rules.category_projection == "end" else ():
            allowed = (
                self.rules.categories(group, x)
                & ~group.own(x_cf)
                & ~rows.held[..., group.columns[:1]]
            )
            for category in range(group.num_categories):
                points = x_cf.clone()
                points[..., group.index] = group.encode(
                    torch.tensor(category, device=x_cf.device), x_cf.dtype
                )
                yield imply(self.rules, points, x, rows.held), allowed[..., category]
        for lattice in self.rules.lattices:
            for value in lattice.beside(x_cf[..., lattice.column]):
                points = x_cf.clone()
                points[..., lattice.column] = value
                points = self.rules.snap(points, x, rows.held)
                yield points, (points != x_cf).any(-1) & ~rows.held[..., lattice.column]

    def result(self) -> SearchResult:
        rows = self.rows
        path = self.path
        converged = rows.confidence >= self.threshold
        status = torch.where(converged, int(Status.CONVERGED), int(Status.EXHAUSTED))
        if path is not None:  # after its last move a row stays where it is
            after = torch.stack([rows.moves <= place for place in range(len(path))])
            after[-1] = True
            path = torch.where(after.unsqueeze(-1), rows.x_cf, path)
        return SearchResult(
            x_cf=rows.x_cf,
            x_adv=rows.x_adv,
            converged=converged,
            # A place on the path, but no update.
            num_steps=(rows.moves - self.snapped.long()).clamp_max(self.limit),
            status=status.masked_fill_(self.already_in_target, int(Status.ALREADY_THERE)),
            confidence=rows.confidence,
            binding=status.new_zeros(*status.shape, 0, dtype=torch.int8),
            path=path,
        )


def _others(logits: Tensor, rows: LiveRows) -> Tensor:
    """log Σ exp ``(..., a)`` of the logits of all classes but the target."""
    # Of two classes, log Σ exp of the others is the other one.
    if logits.shape[-1] == 2:  # many times faster than logsumexp
        return logits.gather(-1, 1 - rows.y_target.unsqueeze(-1)).squeeze(-1)
    return logits.masked_fill(rows.wanted, -torch.inf).logsumexp(-1)


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
        factual = x[..., group.index]
        # Beyond 0 and 1 a relaxed category means nothing; a factual beyond them stays inside its
        # box.
        lower[..., group.index] = torch.maximum(lower[..., group.index], factual.clamp_max(0))
        upper[..., group.index] = torch.minimum(upper[..., group.index], factual.clamp_min(1))
    return lower, upper
