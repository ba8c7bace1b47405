"""Bookkeeping of the search: the rows that are still searching, and the results of those that are
done.

The results of a row are written as soon as it is finished. It stays in the :class:`WorkingSet`,
ignored, until there are enough finished rows to make a smaller copy worth its cost.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from counterfactual_training.constraints import Bounds, Constraints
from counterfactual_training.core.broadcast import per_member
from counterfactual_training.core.precision import at_least_single
from counterfactual_training.generators.generator import Generator
from counterfactual_training.generators.result import SearchResult, Status

_SHRINK_AT = 0.8  # share of rows still searching


class WorkingSet:
    """The a rows of the batch that are not dropped yet; all tensors are ``(..., a)`` or ``(..., a,
    d)``.
    """

    one_hot: Tensor  # y_target (..., a, k), once k is known
    # (..., a, k) τ for the target, ∞ for other classes and finished rows; once k is known
    goals: Tensor

    def __init__(
        self,
        x: Tensor,
        y_target: Tensor,
        generator: Generator,
        constraints: Constraints,
        noise: Tensor,
        record: bool,
        held: Tensor | None = None,
    ) -> None:
        """All rows x ``(..., n, d)``, at their factuals; cells under the mask ``held`` keep their
        value.
        """
        self.constraints = constraints
        self.x = x
        self.y_target = y_target
        self.limit = _step_limit(generator, constraints)  # T, or one per member (members, 1)
        # From the shortest to the longest T.
        self.limits = range(*(int(end) for end in torch.as_tensor(self.limit).aminmax()))
        self.num_answers = generator.num_answers  # consecutive rows that stay together
        self.strict = generator.strict_epsilon  # nascent means < ε
        self.threshold = generator.decision_threshold  # τ
        # Rows of all members are numbered through, so that results can be written by one index.
        # Index into the batch.
        self.rows = torch.arange(y_target.numel(), device=x.device).reshape(y_target.shape)
        self.live_width = y_target.shape[-1]
        bounds = constraints.bounds(x).hold(x, held)
        # The authors decode before the first step.
        self.x_cf = constraints.project_categories(x.clone(), bounds)
        # Without a finite bound there is nothing to project, which saves a pass per step.
        stepwise = constraints.groups and constraints.category_projection == "step"
        bounded = stepwise or not all(bool(bound.isinf().all()) for bound in bounds)
        self.bounds = bounds if bounded else None
        self.delta = self.x_cf - x
        self.z = generator.space.encode(x, noise)
        # The last iterate within ε of x; out of date for rows that are nascent, where it is x_cf.
        self.x_adv = x.clone()
        self.nascent = torch.zeros_like(y_target, dtype=torch.bool)
        single = at_least_single(x.new_zeros(y_target.shape))
        # ε; negative for rows that made their last step
        self.radius = single + per_member(generator.epsilon, 1)
        # The previous iterate, which is memory for the next one, and memory for temporaries.
        self.spare = torch.empty_like(x)
        self.scratch = torch.empty_like(x)
        # With discrete features: whether they were snapped and stay, iterations in which a row was
        # snapped instead of updated, and which rows were snapped in this iteration.
        self.snapped = torch.zeros_like(self.nascent) if constraints.has_discrete else None
        self.held = torch.zeros_like(y_target) if constraints.has_discrete else None
        self.fresh: Tensor | None = None
        # What a step rule remembers of each row, (..., a, d) or (..., a, anything).
        self.memory: dict[str, Tensor] = {}
        self._results = SearchResult(
            x_cf=x.new_empty(x.shape),
            x_adv=x.new_empty(x.shape),
            converged=self.nascent,
            num_steps=y_target.new_zeros(y_target.shape),
            status=y_target.new_zeros(y_target.shape),
            confidence=single,
            binding=y_target.new_zeros(*y_target.shape, 0, dtype=torch.int8),
            # Filled with the factuals, at which rows that are already there stay.
            path=x.repeat(self.limits.stop + 1, *[1] * x.dim()) if record else None,
        )

    @property
    def num_looks(self) -> int:
        """T iterations with a step, one to check the last step, and one more to check a final
        snap.
        """
        return self.limits.stop + (1 if self.snapped is None else 2)

    @property
    def live(self) -> Tensor:
        """Mask ``(..., a)`` of the rows that are not done."""
        return self.goals.amin(-1) < torch.inf

    @property
    def kept(self) -> Tensor:
        """Mask ``(..., a)`` of the rows to keep: not done, or an answer to a factual whose other
        answers are not.
        """
        if self.num_answers == 1:
            return self.live
        groups = self.live.unflatten(-1, (-1, self.num_answers))
        return groups.any(-1, keepdim=True).expand_as(groups).flatten(-2)

    def retire(self, probability: Tensor, step: int) -> None:
        """Write the results of the rows that are done: at τ, out of steps, or with nothing left
        that may move.

        If there are discrete features, a row that reaches τ is first snapped to valid values and
        then checked again.
        """
        if step == 0:
            # Made here, because only the first output tells how many classes there are.
            self.one_hot = torch.zeros_like(probability).scatter_(
                -1, self.y_target.unsqueeze(-1), 1
            )
            self.goals = torch.where(
                self.one_hot > 0,
                torch.as_tensor(per_member(self.threshold, 2)).to(probability),
                torch.inf,
            )
        else:
            self._record(min(step, self.limits.stop))
        # Goals of other classes and finished rows are infinite, so one comparison decides for all
        # rows.
        early = 0 < step < self.limits.start
        arrivals = probability >= self.goals
        if early and self.fresh is None and not bool(arrivals.any()):
            return  # the most common case, decided by one comparison
        arrived = arrivals.any(-1)
        ready = self._ready(arrived, step)
        # From here on rows may be done, which is rare enough for the slower operations.
        confidence = probability.gather(-1, self.y_target.unsqueeze(-1)).squeeze(-1)
        if early and self.snapped is None:
            self._write(ready, confidence, Status.CONVERGED, step)
            return
        if step == 0:  # "already there" is the target class by argmax too, even below τ
            there = arrived | (probability.argmax(-1) == self.y_target)
            self._write(there, confidence, Status.ALREADY_THERE, 0)
            self._record(0)
        closing = torch.as_tensor(step >= self.limit, device=arrived.device)
        updates = (
            self.limit.clamp_max(step)
            if isinstance(self.limit, Tensor)
            else min(step, self.limit)
        )
        settled = self._snap(ready, closing)
        # If all that may move was snapped, further steps cannot change a row.
        if self.snapped is None or self.constraints.has_free_features:
            over = closing
        else:
            over = closing | self.snapped
        self._write(settled & arrived & (ready | over), confidence, Status.CONVERGED, updates)
        self._write(settled & over & ~arrived, confidence, Status.EXHAUSTED, updates)

    def _ready(self, arrived: Tensor, step: int) -> Tensor:
        """Of the rows at τ, those that need not wait: until all answers to their factual are there,
        and T/2 steps.
        """
        if self.num_answers == 1 or step == 0:
            return arrived
        groups = (arrived | ~self.live).unflatten(-1, (-1, self.num_answers))
        together = groups.all(-1, keepdim=True).expand_as(groups).flatten(-2)
        return (
            arrived & together & torch.as_tensor(2 * step >= self.limit, device=arrived.device)
        )

    def _snap(self, arrived: Tensor, closing: Tensor) -> Tensor:
        """Snap the rows that reached τ while relaxed (after the last step: all); mask ``(..., a)``
        of the others.
        """
        self.fresh = None
        live = self.live
        if self.snapped is None or self.held is None:
            return live
        fresh = live & ~self.snapped & (arrived | closing)
        if bool(fresh.any()):
            # The point before the snap, if nascent, is stored now; a later iterate within ε may
            # replace it (Eq. 4).
            kept = (fresh & self.nascent).unsqueeze(-1)
            self.x_adv = torch.where(kept, self.x_cf, self.x_adv)
            self.nascent = self.nascent & ~fresh
            # Cells that the caller holds have an interval of one point; snapping must not touch
            # them.
            if self.bounds is None:
                closed = None
            else:
                closed = self.bounds.lower == self.bounds.upper
            snapped = self.constraints.snap(self.x_cf, self.x, closed)
            self.x_cf = torch.where(fresh.unsqueeze(-1), snapped, self.x_cf)
            self.delta = self.x_cf - self.x
            self.snapped |= fresh
            # The iteration was spent on snapping; num_steps takes it off again.
            self.held += fresh & ~closing
            # A negative radius: no later iterate of such a row counts as nascent.
            self.radius.masked_fill_(fresh & closing, -1)
            self.fresh = fresh
        return live & ~fresh

    def _write(
        self, mask: Tensor, confidence: Tensor, status: Status, updates: int | Tensor
    ) -> None:
        """Write the results of the rows under the mask, all live; ``updates`` is one number, or one
        per member.
        """
        done = mask.nonzero(as_tuple=True)
        if not done[0].numel():
            return
        rows = pick(self.rows, done)
        x_cf = pick(self.x_cf, done)
        nascent = pick(self.nascent, done).unsqueeze(-1)
        found = self._results
        num_features = x_cf.shape[-1]
        found.x_cf.view(-1, num_features).index_copy_(0, rows, x_cf)
        # While a row is nascent, x_adv is not written at every step: x_cf is it.
        x_adv = torch.where(nascent, x_cf, pick(self.x_adv, done))
        found.x_adv.view(-1, num_features).index_copy_(0, rows, x_adv)
        found.confidence.view(-1).index_copy_(0, rows, pick(confidence, done))
        found.status.view(-1).index_fill_(0, rows, int(status))
        num_steps = found.num_steps.view(-1)
        if isinstance(updates, Tensor):
            num_steps.index_copy_(0, rows, pick(updates.expand_as(confidence), done))
        else:
            num_steps.index_fill_(0, rows, updates)
        if self.held is not None:
            num_steps.index_add_(0, rows, pick(self.held, done), alpha=-1)
        # Marks the rows as done: no probability reaches infinity.
        self.goals.masked_fill_(mask.unsqueeze(-1), torch.inf)
        alone = len(done) == 1 and self.num_answers == 1
        if alone:
            self.live_width = self.live_width - len(done[0])
        else:
            self.live_width = int(self.kept.sum(-1).max())

    def _record(self, step: int) -> None:
        """Store the current iterate of the live rows at this and all later places of the path."""
        path = self._results.path
        if path is not None:
            live = self.live
            path.view(len(path), -1, path.shape[-1])[step:, self.rows[live]] = self.x_cf[live]

    def results(self) -> SearchResult:
        """The results, once no row is live."""
        return replace(
            self._results, converged=self._results.confidence >= per_member(self.threshold, 1)
        )

    def advance(self, delta: Tensor) -> None:
        """``x′ ← project(x′ + mask(Δ))``; snapped features stay. May overwrite Δ."""
        self.constraints.mask_step(delta)
        fixed = self.fixed
        if fixed is not None:
            # A row snapped in this iteration waits for its probability at the snapped point.
            delta.masked_fill_(
                fixed if self.fresh is None else fixed | self.fresh.unsqueeze(-1), 0.0
            )
        # Into the old iterate's memory, then swapped: nothing is allocated, and ``spare`` holds the
        # point before.
        torch.add(self.x_cf, delta, out=self.spare)
        self._arrive(fixed)

    def jump(self, total: Tensor) -> None:
        """``x′ ← project(x + mask(Δ))`` for a whole change Δ: where it is 0, x′ is exactly x. May
        overwrite Δ.
        """
        self.constraints.mask_step(total)
        self.place(self.x + total)

    def place(self, points: Tensor) -> None:
        """``x′ ← project(points)``, which directions must allow; snapped features stay."""
        fixed = self.fixed
        self.spare.copy_(points)
        if fixed is not None:
            if self.fresh is None:
                stay = fixed
            else:
                stay = fixed | self.fresh.unsqueeze(-1)
            torch.where(stay, self.x_cf, self.spare, out=self.spare)
        self._arrive(fixed)

    def _arrive(self, fixed: Tensor | None) -> None:
        """Make ``spare`` the iterate, inside the bounds."""
        self.spare, self.x_cf = self.x_cf, self.spare
        if self.bounds is not None:
            related = self.constraints.relations is not None  # they could move what was snapped
            if related:
                bounds = self.bounds.hold(self.spare, fixed)
            else:
                bounds = self.bounds
            # The point before is inside the relations, so it is where a projection can fall back
            # to.
            self.constraints.project(self.x_cf, bounds, self.spare)
        # An answer that is done stays, and the others keep away from it.
        if self.num_answers > 1:
            torch.where(self.live.unsqueeze(-1), self.x_cf, self.spare, out=self.x_cf)
        torch.sub(self.x_cf, self.x, out=self.delta)

    # ---- for step rules --------------------------------------------------------------------------

    @property
    def fixed(self) -> Tensor | None:
        """Mask ``(..., a, d)`` of features that were snapped and stay; ``None`` without discrete
        features.
        """
        if self.snapped is None:
            return None
        return self.snapped.unsqueeze(-1) & self.constraints.discrete

    def free(self, step: Tensor) -> Tensor:
        """A step ``(..., a, d)``, in place, without what cannot move: forbidden, at a bound, or
        fixed.
        """
        self.constraints.mask_step(step)
        if self.bounds is not None:
            ends = ((self.x_cf <= self.bounds.lower) & (step < 0)) | (
                (self.x_cf >= self.bounds.upper) & (step > 0)
            )
            step.masked_fill_(ends, 0)
        if (fixed := self.fixed) is not None:
            step.masked_fill_(
                fixed if self.fresh is None else fixed | self.fresh.unsqueeze(-1), 0
            )
        return step

    def inside(self, total: Tensor) -> Tensor:
        """A whole change Δ ``(..., a, d)``, in place, cut at directions and bounds; that of fixed
        features stays.
        """
        self.constraints.mask_step(total)
        if self.bounds is not None:
            total.clamp_(self.bounds.lower - self.x, self.bounds.upper - self.x)
        fixed = self.fixed
        if fixed is None:
            return total
        return torch.where(fixed, self.delta, total)

    def interval(self) -> tuple[Tensor, Tensor]:
        """Where the values of each row may go ``(..., a, d)``: the bounds, cut at the factual by
        directions.
        """
        if self.bounds is None:
            lower = torch.tensor(-torch.inf).to(self.x)
            upper = torch.tensor(torch.inf).to(self.x)
        else:
            lower = self.bounds.lower.to(self.x)
            upper = self.bounds.upper.to(self.x)
        lower = torch.where(
            self.constraints.may_decrease.unsqueeze(-2), lower, torch.maximum(lower, self.x)
        )
        upper = torch.where(
            self.constraints.may_increase.unsqueeze(-2), upper, torch.minimum(upper, self.x)
        )
        return lower.expand_as(self.x), upper.expand_as(self.x)

    def remembered(self, name: str) -> Tensor:
        """What a rule keeps by this name, ``(..., a, d)``; zeros at first."""
        if name not in self.memory:
            self.memory[name] = torch.zeros_like(self.x_cf)
        return self.memory[name]

    def keep_nascent(self) -> None:
        """Eq. 4: rows with ``‖Δ‖∞ ≤ ε`` (or ``<``, as printed) are nascent; of those that leave,
        store the last.
        """
        norm = at_least_single(torch.abs(self.delta, out=self.scratch).amax(-1))
        if self.strict:
            inside = norm < self.radius
        else:
            inside = norm <= self.radius
        if not torch.equal(inside, self.nascent):  # in most steps no row leaves or comes back
            left = (self.nascent & ~inside).nonzero(as_tuple=True)
            # The last iterate inside was the one before this step.
            self.x_adv.index_put_(left, pick(self.spare, left))
        self.nascent = inside

    def shrink(self) -> None:
        """Drop finished rows once there are many. In a fleet, all members keep as many rows as the
        slowest one.
        """
        if self.live_width >= _SHRINK_AT * self.rows.shape[-1]:
            return
        if self.rows.dim() == 1:
            order = self.kept.nonzero().squeeze(-1)
        else:  # live rows first, padded with finished ones
            # As many rows in all members, because tensors are rectangular; stable, to keep their
            # order.
            order = self.kept.to(torch.int8).argsort(dim=-1, descending=True, stable=True)[
                ..., : self.live_width
            ]
        for name in (
            "x",
            "x_cf",
            "x_adv",
            "delta",
            "one_hot",
            "goals",
            *(("z",) if self.z.numel() else ()),
        ):
            setattr(self, name, take(getattr(self, name), order))
        for name in ("rows", "y_target", "nascent", "radius", "snapped", "held", "fresh"):
            values = getattr(self, name)
            setattr(self, name, None if values is None else values.gather(-1, order))
        self.memory = {name: take(values, order) for name, values in self.memory.items()}
        self.spare, self.scratch = torch.empty_like(self.x_cf), torch.empty_like(self.x_cf)
        if self.bounds is not None:
            self.bounds = Bounds(
                *(b if b.shape[-2] == 1 else take(b, order) for b in self.bounds)
            )


def _step_limit(generator: Generator, constraints: Constraints) -> int | Tensor:
    """T, or ``(members, 1)`` if the members of a fleet differ in it; 0 if no feature may move."""
    frozen = constraints.immutable.all(-1)
    limit = generator.max_steps
    # A member in which nothing may move makes no step, without a branch for it.
    if isinstance(limit, Tensor) or frozen.dim():
        steps = torch.as_tensor(limit, device=frozen.device)
        return (steps * ~frozen).unsqueeze(-1)
    if bool(frozen):
        return 0
    return limit


def pick(values: Tensor, places: tuple[Tensor, ...]) -> Tensor:
    """Values ``(..., a)`` or rows ``(..., a, d)`` at these places."""
    if len(places) == 1:
        return values.index_select(0, places[0])
    return values[places]


def take(values: Tensor, order: Tensor) -> Tensor:
    """Rows ``order`` ``(..., a)`` of ``(..., n, d)``, in the same memory layout."""
    if order.dim() == 1:
        return values.index_select(0, order)
    # Rows laid out as (M, d, n) are gathered in that layout, or the chain would have to copy them.
    if values.stride(-2) == 1:
        return values.mT.gather(
            -1, order.unsqueeze(-2).expand(*order.shape[:-1], values.shape[-1], -1)
        ).mT
    return values.gather(-2, order.unsqueeze(-1).expand(*order.shape, values.shape[-1]))
