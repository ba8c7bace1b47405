"""Bookkeeping of the search: the rows that are still searching, and the results of those that are done.

Finished rows are written to the :class:`SearchOutcome` at once. They stay in the :class:`WorkingSet`, ignored, until
there are enough of them to make a smaller copy worth its cost.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from counterfactual_training.constraints import Bounds, Constraints
from counterfactual_training.core.broadcast import Number, per_member
from counterfactual_training.core.precision import at_least_single
from counterfactual_training.search.generator import Generator
from counterfactual_training.search.result import SearchResult, Status

_SHRINK_AT = 0.8  # share of rows still searching


@dataclass(eq=False)
class WorkingSet:
    """The a rows of the batch that are not dropped yet; all tensors are ``(..., a)`` or ``(..., a, d)``."""

    constraints: Constraints
    outcome: SearchOutcome
    limit: int | Tensor  # T, or one per member (members, 1)
    limits: range  # from the shortest to the longest T
    strict: bool  # nascent means < ε
    rows: Tensor  # index into the flattened batch
    x: Tensor
    y_target: Tensor
    one_hot: Tensor  # y_target (..., a, k), once k is known
    x_cf: Tensor
    x_adv: Tensor  # the last iterate within ε of x; out of date for rows that are nascent, where it is x_cf
    nascent: Tensor  # whether x_cf is within ε
    spare: Tensor  # the previous iterate, and memory for the next one
    scratch: Tensor  # memory for temporaries
    delta: Tensor  # x_cf − x
    z: Tensor
    bounds: Bounds | None  # None where nothing is bounded
    threshold: Number  # τ
    goals: Tensor  # (..., a, k) τ for the target, ∞ for other classes and finished rows; once k is known
    radius: Tensor  # ε; negative for rows that made their last step
    live_width: int
    snapped: Tensor | None = None  # whether discrete features were snapped and stay; None if there are none
    held: Tensor | None = None  # iterations in which the row was snapped instead of updated; likewise
    fresh: Tensor | None = None  # snapped in this iteration

    @classmethod
    def start(
        cls, x: Tensor, y_target: Tensor, generator: Generator, constraints: Constraints, noise: Tensor, record: bool
    ) -> WorkingSet:
        """All rows x ``(..., n, d)``, at their factuals."""
        limit = _step_limit(generator, constraints)
        limits = range(*(int(n) for n in limit.aminmax())) if isinstance(limit, Tensor) else range(limit, limit)
        bounds = constraints.bounds(x)
        x_cf = x.clone()
        constraints.project_categories(x_cf, bounds)  # the authors' search decodes before its first step
        stepwise = constraints.groups and constraints.category_projection == "step"
        bounded = stepwise or not all(bool(bound.isinf().all()) for bound in bounds)
        like = at_least_single(x.new_empty(y_target.shape))
        none = torch.zeros_like(y_target) if constraints.has_discrete else None
        return cls(
            constraints=constraints,
            outcome=SearchOutcome.start(x, limits.stop if record else None),
            limit=limit,
            limits=limits,
            strict=generator.strict_epsilon,
            rows=torch.arange(y_target.numel(), device=x.device).reshape(y_target.shape),
            x=x,
            y_target=y_target,
            one_hot=x.new_empty(0),
            x_cf=x_cf,
            x_adv=x.clone(),
            nascent=torch.zeros_like(y_target, dtype=torch.bool),
            spare=torch.empty_like(x),
            scratch=torch.empty_like(x),
            delta=x_cf - x,
            z=generator.space.encode(x, noise),
            bounds=bounds if bounded else None,
            threshold=per_member(generator.decision_threshold, 2),
            goals=x.new_empty(0),
            radius=torch.zeros_like(like) + per_member(generator.epsilon, 1),
            live_width=y_target.shape[-1],
            snapped=None if none is None else none.bool(),
            held=none,
        )

    @property
    def num_looks(self) -> int:
        """T iterations with a step, one to check the last step, and one more to check a final snap."""
        return self.limits.stop + (1 if self.snapped is None else 2)

    @property
    def live(self) -> Tensor:
        """Mask ``(..., a)`` of the rows that are not done."""
        return self.goals.amin(-1) < torch.inf

    def retire(self, probability: Tensor, step: int) -> None:
        """Write the results of the rows that are done: at τ, out of steps, or with nothing left that may move.

        If there are discrete features, a row that reaches τ is first snapped to valid values and then checked again.
        """
        if step == 0:
            self.one_hot = torch.zeros_like(probability).scatter_(-1, self.y_target.unsqueeze(-1), 1)
            self.goals = torch.where(self.one_hot > 0, torch.as_tensor(self.threshold).to(probability), torch.inf)
        else:
            self.outcome.record(self, min(step, self.limits.stop))
        early, arrivals = 0 < step < self.limits.start, probability >= self.goals
        if early and self.fresh is None and not bool(arrivals.any()):
            return  # the most common case, decided by one comparison
        arrived = arrivals.any(-1)
        confidence = probability.gather(-1, self.y_target.unsqueeze(-1)).squeeze(-1)
        if early and self.snapped is None:
            self._write(arrived, confidence, Status.CONVERGED, step)
            return
        if step == 0:  # "already there" is the target class by argmax too, even below τ
            there = arrived | (probability.argmax(-1) == self.y_target)
            self._write(there, confidence, Status.ALREADY_THERE, 0)
            self.outcome.record(self, 0)
        closing = torch.as_tensor(step >= self.limit, device=arrived.device)
        updates = self.limit.clamp_max(step) if isinstance(self.limit, Tensor) else min(step, self.limit)
        settled = self._snap(arrived, closing)
        over = closing if self.snapped is None or self.constraints.has_free_features else closing | self.snapped
        self._write(settled & arrived, confidence, Status.CONVERGED, updates)
        self._write(settled & over & ~arrived, confidence, Status.EXHAUSTED, updates)

    def _snap(self, arrived: Tensor, closing: Tensor) -> Tensor:
        """Snap the rows that reached τ while relaxed (after the last step: all); mask ``(..., a)`` of the others."""
        self.fresh, live = None, self.live
        if self.snapped is None or self.held is None:
            return live
        fresh = live & ~self.snapped & (arrived | closing)
        if bool(fresh.any()):
            # The point before the snap was the last iterate that may be nascent: a snap is no step (Eq. 4).
            kept = (fresh & self.nascent).unsqueeze(-1)
            self.x_adv, self.nascent = torch.where(kept, self.x_cf, self.x_adv), self.nascent & ~fresh
            self.x_cf = torch.where(fresh.unsqueeze(-1), self.constraints.snap(self.x_cf, self.x), self.x_cf)
            self.delta = self.x_cf - self.x
            self.snapped |= fresh
            self.held += fresh & ~closing
            self.radius.masked_fill_(fresh & closing, -1)
            self.fresh = fresh
        return live & ~fresh

    def _write(self, mask: Tensor, confidence: Tensor, status: Status, updates: int | Tensor) -> None:
        """Write the results of the rows under the mask, all of them live."""
        done = mask.nonzero(as_tuple=True)
        if done[0].numel():
            self.outcome.write(self, done, confidence, status, updates)
            self.goals.masked_fill_(mask.unsqueeze(-1), torch.inf)
            self.live_width = self.live_width - len(done[0]) if len(done) == 1 else int(self.live.sum(-1).max())

    def advance(self, delta: Tensor) -> None:
        """``x′ ← project(x′ + mask(Δ))``; snapped features stay. May overwrite Δ."""
        self.constraints.mask_step(delta)
        if self.snapped is not None:
            fixed = self.snapped.unsqueeze(-1) & self.constraints.discrete
            delta.masked_fill_(fixed if self.fresh is None else fixed | self.fresh.unsqueeze(-1), 0.0)
        torch.add(self.x_cf, delta, out=self.spare)
        self.spare, self.x_cf = self.x_cf, self.spare
        if self.bounds is not None:
            self.constraints.project(self.x_cf, self.bounds)
        torch.sub(self.x_cf, self.x, out=self.delta)

    def keep_nascent(self) -> None:
        """Eq. 4: rows with ``‖Δ‖∞ ≤ ε`` (or ``<``, as printed) are nascent; of those that leave, store the last."""
        norm = at_least_single(torch.abs(self.delta, out=self.scratch).amax(-1))
        inside = norm < self.radius if self.strict else norm <= self.radius
        if not torch.equal(inside, self.nascent):  # in most steps no row leaves or comes back
            left = (self.nascent & ~inside).nonzero(as_tuple=True)
            self.x_adv.index_put_(left, pick(self.spare, left))
        self.nascent = inside

    def shrink(self) -> None:
        """Drop finished rows once there are many. In a fleet, all members keep as many rows as the slowest one."""
        if self.live_width >= _SHRINK_AT * self.rows.shape[-1]:
            return
        order = self._order()
        for name in ("x", "x_cf", "x_adv", "delta", "one_hot", "goals", *(("z",) if self.z.numel() else ())):
            setattr(self, name, take(getattr(self, name), order))
        for name in ("rows", "y_target", "nascent", "radius", "snapped", "held", "fresh"):
            values = getattr(self, name)
            setattr(self, name, None if values is None else values.gather(-1, order))
        self.spare, self.scratch = torch.empty_like(self.x_cf), torch.empty_like(self.x_cf)
        if self.bounds is not None:
            self.bounds = Bounds(*(b if b.shape[-2] == 1 else take(b, order) for b in self.bounds))

    def _order(self) -> Tensor:
        """Indices of the live rows, in order; in a fleet, padded with finished ones."""
        if self.rows.dim() == 1:
            return self.live.nonzero().squeeze(-1)
        return self.live.to(torch.int8).argsort(dim=-1, descending=True, stable=True)[..., : self.live_width]


@dataclass(eq=False)
class SearchOutcome:
    """Results, by row of the flattened batch."""

    shape: torch.Size  # (..., n, d)
    x_cf: Tensor  # (rows, d), like all below
    x_adv: Tensor
    num_steps: Tensor
    status: Tensor
    confidence: Tensor
    path: Tensor | None

    @classmethod
    def start(cls, x: Tensor, record: int | None) -> SearchOutcome:
        flat = x.reshape(-1, x.shape[-1])
        rows = flat.new_zeros(len(flat), dtype=torch.long)
        return cls(
            shape=x.shape,
            x_cf=torch.empty_like(flat),
            x_adv=torch.empty_like(flat),
            num_steps=rows.clone(),
            status=rows,
            confidence=at_least_single(flat.new_zeros(len(flat))),
            path=None if record is None else flat.expand(record + 1, *flat.shape).clone(),
        )

    def write(
        self, work: WorkingSet, done: tuple[Tensor, ...], confidence: Tensor, status: Status, updates: int | Tensor
    ) -> None:
        """Store the rows at these places of the working set; ``updates`` were made (one number, or one per member)."""
        rows = pick(work.rows, done)
        x_cf, nascent = pick(work.x_cf, done), pick(work.nascent, done).unsqueeze(-1)
        self.x_cf.index_copy_(0, rows, x_cf)
        self.x_adv.index_copy_(0, rows, torch.where(nascent, x_cf, pick(work.x_adv, done)))
        self.confidence.index_copy_(0, rows, pick(confidence, done))
        self.status.index_fill_(0, rows, int(status))
        if isinstance(updates, Tensor):
            self.num_steps.index_copy_(0, rows, pick(updates.expand_as(confidence), done))
        else:
            self.num_steps.index_fill_(0, rows, updates)
        if work.held is not None:
            self.num_steps.index_add_(0, rows, pick(work.held, done), alpha=-1)

    def record(self, work: WorkingSet, step: int) -> None:
        """Store the current iterate of the live rows at this and all later places of the path."""
        if self.path is not None:
            live = work.live
            self.path[step:, work.rows[live]] = work.x_cf[live]

    def result(self, threshold: Number) -> SearchResult:
        lead = self.shape[:-1]
        confidence = self.confidence.reshape(lead)
        return SearchResult(
            x_cf=self.x_cf.reshape(self.shape),
            x_adv=self.x_adv.reshape(self.shape),
            converged=confidence >= per_member(threshold, 1),
            num_steps=self.num_steps.reshape(lead),
            status=self.status.reshape(lead),
            confidence=confidence,
            binding=self.status.new_zeros(*lead, 0, dtype=torch.int8),
            path=None if self.path is None else self.path.reshape(-1, *self.shape),
        )


def _step_limit(generator: Generator, constraints: Constraints) -> int | Tensor:
    """T, or ``(members, 1)`` if the members of a fleet differ in it; 0 if no feature may move."""
    frozen = constraints.immutable.all(-1)
    limit = generator.max_steps
    if isinstance(limit, Tensor) or frozen.dim():
        steps = torch.as_tensor(limit, device=frozen.device)
        return (steps * ~frozen).unsqueeze(-1)
    return 0 if bool(frozen) else limit


def pick(values: Tensor, places: tuple[Tensor, ...]) -> Tensor:
    """Values ``(..., a)`` or rows ``(..., a, d)`` at these places."""
    return values.index_select(0, places[0]) if len(places) == 1 else values[places]


def take(values: Tensor, order: Tensor) -> Tensor:
    """Rows ``order`` ``(..., a)`` of ``(..., n, d)``, in the same memory layout."""
    if order.dim() == 1:
        return values.index_select(0, order)
    if values.stride(-2) == 1:
        return values.mT.gather(-1, order.unsqueeze(-2).expand(*order.shape[:-1], values.shape[-1], -1)).mT
    return values.gather(-2, order.unsqueeze(-1).expand(*order.shape, values.shape[-1]))
