"""Bookkeeping of the search: the rows still searching, and what came of those that are done.

Rows that are done are written to the :class:`Outcome` at once; they ride along in the :class:`WorkingSet`, ignored,
until enough of them have gathered to make a smaller copy worth its price.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from counterfactual_training.constraints import Bounds, Constraints
from counterfactual_training.core.broadcast import per_member
from counterfactual_training.core.distances import linf
from counterfactual_training.search.generator import Generator
from counterfactual_training.search.result import SearchResult, Status

_SHRINK_AT = 0.8  # share of rows still searching


@dataclass(eq=False)
class WorkingSet:
    """a rows of the batch; all tensors ``(..., a)`` or ``(..., a, d)``."""

    rows: Tensor  # index into the flattened batch
    x: Tensor
    y_target: Tensor
    x_cf: Tensor
    spare: Tensor  # the iterate before, later overwritten by the next one
    delta: Tensor  # x_cf − x
    z: Tensor
    bounds: Bounds
    live: Tensor  # not done yet
    inside: Tensor  # x_cf is within ε of x
    snapped: Tensor | None  # discrete features hold valid values and stay; None where there are none
    held: Tensor  # iterations in which the row was snapped instead of updated
    live_width: int

    @classmethod
    def start(cls, x: Tensor, y_target: Tensor, constraints: Constraints, z: Tensor) -> WorkingSet:
        yes = torch.ones_like(y_target, dtype=torch.bool)
        bounds = constraints.bounds(x)
        x_cf = x.clone()
        constraints.project_categories(x_cf, bounds)  # the authors' search decodes before it first moves
        return cls(
            rows=torch.arange(y_target.numel(), device=x.device).reshape(y_target.shape),
            x=x,
            y_target=y_target,
            x_cf=x_cf,
            spare=torch.empty_like(x),
            delta=x_cf - x,
            z=z,
            bounds=bounds,
            live=yes,
            inside=(x_cf == x).all(-1),
            snapped=torch.zeros_like(yes) if constraints.has_discrete else None,
            held=torch.zeros_like(y_target),
            live_width=y_target.shape[-1],
        )

    def advance(self, delta: Tensor, constraints: Constraints) -> None:
        """``x′ ← project(x′ + Δ)``; the iterate before stays in ``spare``."""
        torch.add(self.x_cf, delta, out=self.spare)
        self.spare, self.x_cf = self.x_cf, constraints.project(self.spare, self.bounds)
        torch.sub(self.x_cf, self.x, out=self.delta)

    def keep_nascent(self, outcome: Outcome, generator: Generator, closing: bool | Tensor) -> None:
        """Rows that just left the ε-ball leave their iterate before behind as x_adv (Eq. 4)."""
        inside = within(self.delta, generator)
        left = self.live & self.inside & ~inside
        if bool(left.any()):
            outcome.x_adv[self.rows[left]] = self.spare[left]
        # Rows beyond their last step did not move; what they were when they closed stands.
        self.inside = torch.where(closing, self.inside, inside) if isinstance(closing, Tensor) else inside

    def snap_arrived(
        self, arrived: Tensor, constraints: Constraints, closing: bool | Tensor, outcome: Outcome
    ) -> Tensor:
        """Snap the rows that reached τ while relaxed (at the close: all); they are looked at again, not yet done."""
        if self.snapped is None:
            return torch.zeros_like(self.live)
        fresh = self.live & ~self.snapped & (arrived | closing)
        if bool(fresh.any()):
            nascent = fresh & self.inside
            outcome.x_adv[self.rows[nascent]] = self.x_cf[nascent]
            self.x_cf = torch.where(fresh.unsqueeze(-1), constraints.snap(self.x_cf, self.x), self.x_cf)
            self.delta = self.x_cf - self.x
            self.inside = self.inside & ~fresh
            self.snapped = self.snapped | fresh
            self.held += fresh & ~torch.as_tensor(closing, device=fresh.device)
        return fresh

    def hold(self, delta: Tensor, fresh: Tensor, constraints: Constraints) -> None:
        """Take out of a step what moves freshly snapped rows, or the discrete features of snapped ones."""
        if self.snapped is not None:
            fixed = (self.snapped.unsqueeze(-1) & constraints.discrete) | fresh.unsqueeze(-1)
            delta.masked_fill_(fixed, 0.0)

    @property
    def worth_shrinking(self) -> bool:
        return self.live_width < _SHRINK_AT * self.live.shape[-1]

    def shrink(self) -> None:
        """Let the done rows go. In a fleet, members keep as many rows as the one with most has left."""
        if self.live.dim() == 1:
            order = self.live.nonzero().squeeze(-1)
        else:
            order = self.live.to(torch.int8).argsort(dim=-1, descending=True, stable=True)[..., : self.live_width]
        for name in ("x", "x_cf", "delta", "z"):
            setattr(self, name, take(getattr(self, name), order))
        for name in ("rows", "y_target", "live", "inside", "held"):
            setattr(self, name, getattr(self, name).gather(-1, order))
        self.snapped = None if self.snapped is None else self.snapped.gather(-1, order)
        self.spare = torch.empty_like(self.x_cf)
        self.bounds = Bounds(*(b if b.shape[-2] == 1 else take(b, order) for b in self.bounds))


@dataclass(eq=False)
class Outcome:
    """Results by row of the flattened batch; ``retire`` fills them in."""

    shape: torch.Size  # (..., n, d)
    x_cf: Tensor  # (rows, d), like all below
    x_adv: Tensor
    converged: Tensor
    num_steps: Tensor
    status: Tensor
    confidence: Tensor
    path: Tensor | None

    @classmethod
    def start(cls, x: Tensor, record: int | None) -> Outcome:
        flat = x.reshape(-1, x.shape[-1])
        rows = flat.new_zeros(len(flat), dtype=torch.long)
        return cls(
            shape=x.shape,
            x_cf=flat.clone(),
            x_adv=flat.clone(),
            converged=rows.bool(),
            num_steps=rows.clone(),
            status=rows + int(Status.EXHAUSTED),
            confidence=flat.new_zeros(len(flat)),
            path=None if record is None else flat.expand(record + 1, *flat.shape).clone(),
        )

    def retire(
        self, work: WorkingSet, mask: Tensor, confidence: Tensor, arrived: Tensor, status: Status, step: int | Tensor
    ) -> None:
        """Write down the live rows under the mask; they are done after this many iterations (one number per member)."""
        mask = mask & work.live
        if not bool(mask.any()):
            return
        rows = work.rows[mask]
        self.x_cf[rows] = work.x_cf[mask]
        self.converged[rows] = arrived[mask]
        taken = step.expand_as(mask)[mask] if isinstance(step, Tensor) else step
        self.num_steps[rows] = taken - work.held[mask]
        self.status[rows] = int(status)
        self.confidence[rows] = confidence[mask]
        nascent = mask & work.inside
        self.x_adv[work.rows[nascent]] = work.x_cf[nascent]
        work.live = work.live & ~mask
        work.live_width = int(work.live.sum(-1).max())

    def record(self, work: WorkingSet, step: int) -> None:
        """Keep the current iterate of the live rows, in this and all later places of the path."""
        if self.path is not None:
            self.path[step:, work.rows[work.live]] = work.x_cf[work.live]

    def result(self) -> SearchResult:
        lead = self.shape[:-1]
        return SearchResult(
            x_cf=self.x_cf.reshape(self.shape),
            x_adv=self.x_adv.reshape(self.shape),
            converged=self.converged.reshape(lead),
            num_steps=self.num_steps.reshape(lead),
            status=self.status.reshape(lead),
            confidence=self.confidence.reshape(lead),
            binding=self.status.new_zeros(*lead, 0, dtype=torch.int8),
            path=None if self.path is None else self.path.reshape(-1, *self.shape),
        )


def within(delta: Tensor, generator: Generator) -> Tensor:
    """Whether ``‖Δ‖∞ ≤ ε`` (or ``<``, as printed), per row."""
    norm = linf(delta)
    epsilon = per_member(generator.epsilon, 1)
    return norm < epsilon if generator.strict_epsilon else norm <= epsilon


def take(values: Tensor, order: Tensor) -> Tensor:
    """Rows ``order`` ``(..., a)`` of ``(..., n, d)``."""
    if order.dim() == 1:
        return values.index_select(0, order)
    return values.gather(-2, order.unsqueeze(-1).expand(*order.shape, values.shape[-1]))
