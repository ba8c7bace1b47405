"""Bookkeeping of the search: the rows still searching, and what came of those that are done.

Rows that are done are written to the :class:`Outcome` at once; they ride along in the :class:`WorkingSet`, ignored,
until enough of them have gathered to make a smaller copy worth its price.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from counterfactual_training.constraints import Bounds, Constraints
from counterfactual_training.core.broadcast import Number, per_member
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
    x_adv: Tensor  # the last iterate within ε of x
    spare: Tensor  # memory for the next iterate
    delta: Tensor  # x_cf − x
    z: Tensor
    bounds: Bounds
    live: Tensor  # not done yet
    snapped: Tensor | None  # discrete features hold valid values and stay; None where there are none
    held: Tensor | None  # iterations in which the row was snapped instead of updated; likewise
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
            x_adv=x,
            spare=torch.empty_like(x),
            delta=x_cf - x,
            z=z,
            bounds=bounds,
            live=yes,
            snapped=torch.zeros_like(yes) if constraints.has_discrete else None,
            held=torch.zeros_like(y_target) if constraints.has_discrete else None,
            live_width=y_target.shape[-1],
        )

    def advance(self, delta: Tensor, constraints: Constraints) -> None:
        """``x′ ← project(x′ + Δ)``."""
        torch.add(self.x_cf, delta, out=self.spare)
        self.spare, self.x_cf = self.x_cf, constraints.project(self.spare, self.bounds)
        torch.sub(self.x_cf, self.x, out=self.delta)

    def keep_nascent(self, generator: Generator, closing: bool | Tensor) -> None:
        """Rows still inside the ε-ball are nascent, so far (Eq. 4)."""
        inside = within(self.delta, generator)
        if isinstance(closing, Tensor):  # rows beyond their last step did not move
            inside &= ~closing
        self.x_adv = torch.where(inside.unsqueeze(-1), self.x_cf, self.x_adv)

    def snap_arrived(self, arrived: Tensor, constraints: Constraints, closing: bool | Tensor) -> Tensor | None:
        """Snap the rows that reached τ while relaxed (at the close: all); they are looked at again, not yet done.

        Returns:
            ``(..., a)`` mask of them; ``None`` where nothing is discrete.
        """
        if self.snapped is None or self.held is None:
            return None
        fresh = self.live & ~self.snapped & (arrived | closing)
        if bool(fresh.any()):
            self.x_cf = torch.where(fresh.unsqueeze(-1), constraints.snap(self.x_cf, self.x), self.x_cf)
            self.delta = self.x_cf - self.x
            self.snapped = self.snapped | fresh
            self.held += fresh & ~torch.as_tensor(closing, device=fresh.device)
        return fresh

    def hold(self, delta: Tensor, fresh: Tensor | None, constraints: Constraints) -> None:
        """Take out of a step what moves freshly snapped rows, or the discrete features of snapped ones."""
        if self.snapped is not None and fresh is not None:
            fixed = (self.snapped.unsqueeze(-1) & constraints.discrete) | fresh.unsqueeze(-1)
            delta.masked_fill_(fixed, 0.0)

    def leave(self, done: Tensor) -> None:
        """Rows at these places are no longer live."""
        self.live = self.live.flatten().index_fill(0, done, False).reshape(self.live.shape)
        self.live_width = self.live_width - len(done) if self.live.dim() == 1 else int(self.live.sum(-1).max())

    @property
    def worth_shrinking(self) -> bool:
        return self.live_width < _SHRINK_AT * self.live.shape[-1]

    def shrink(self) -> None:
        """Let the done rows go. In a fleet, members keep as many rows as the one with most has left."""
        order = self._order()
        for name in ("x", "x_cf", "x_adv", "delta", *(("z",) if self.z.numel() else ())):
            setattr(self, name, take(getattr(self, name), order))
        for name in ("rows", "y_target", "live", "snapped", "held"):
            values = getattr(self, name)
            setattr(self, name, None if values is None else values.gather(-1, order))
        self.spare = torch.empty_like(self.x_cf)
        self.bounds = Bounds(*(b if b.shape[-2] == 1 else take(b, order) for b in self.bounds))

    def _order(self) -> Tensor:
        """The live rows, in order; in a fleet the first done ones behind them."""
        if self.live.dim() == 1:
            return self.live.nonzero().squeeze(-1)
        return self.live.to(torch.int8).argsort(dim=-1, descending=True, stable=True)[..., : self.live_width]


@dataclass(eq=False)
class Outcome:
    """Results by row of the flattened batch; ``retire`` fills them in."""

    shape: torch.Size  # (..., n, d)
    x_cf: Tensor  # (rows, d), like all below
    x_adv: Tensor
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
            num_steps=rows.clone(),
            status=rows + int(Status.EXHAUSTED),
            confidence=flat.new_zeros(len(flat)),
            path=None if record is None else flat.expand(record + 1, *flat.shape).clone(),
        )

    def retire(self, work: WorkingSet, mask: Tensor, confidence: Tensor, status: Status, step: int | Tensor) -> None:
        """Write down the live rows under the mask; they are done after this many iterations (one number per member)."""
        done = (mask & work.live).flatten().nonzero().squeeze(-1)
        if done.numel() == 0:
            return
        rows = pick(work.rows, done)
        self.x_cf.index_copy_(0, rows, pick_rows(work.x_cf, done))
        self.x_adv.index_copy_(0, rows, pick_rows(work.x_adv, done))
        self.confidence.index_copy_(0, rows, pick(confidence, done))
        self.status.index_fill_(0, rows, int(status))
        if isinstance(step, Tensor):
            self.num_steps.index_copy_(0, rows, pick(step.expand_as(mask), done))
        else:
            self.num_steps.index_fill_(0, rows, step)
        if work.held is not None:
            self.num_steps.index_add_(0, rows, pick(work.held, done), alpha=-1)
        work.leave(done)

    def record(self, work: WorkingSet, step: int) -> None:
        """Keep the current iterate of the live rows, in this and all later places of the path."""
        if self.path is not None:
            self.path[step:, work.rows[work.live]] = work.x_cf[work.live]

    def result(self, threshold: Number) -> SearchResult:
        lead = self.shape[:-1]
        return SearchResult(
            x_cf=self.x_cf.reshape(self.shape),
            x_adv=self.x_adv.reshape(self.shape),
            converged=self.confidence.reshape(lead) >= threshold,
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


def without(mask: Tensor, others: Tensor | None) -> Tensor:
    """``mask`` where ``others`` does not hold."""
    return mask if others is None else mask & ~others


def pick(values: Tensor, index: Tensor) -> Tensor:
    """Values ``(..., a)`` at these places of the flattened rows."""
    return values.flatten().index_select(0, index)


def pick_rows(values: Tensor, index: Tensor) -> Tensor:
    """Rows of ``(..., a, d)`` at these places."""
    return values.flatten(0, -2).index_select(0, index)


def take(values: Tensor, order: Tensor) -> Tensor:
    """Rows ``order`` ``(..., a)`` of ``(..., n, d)``."""
    if order.dim() == 1:
        return values.index_select(0, order)
    return values.gather(-2, order.unsqueeze(-1).expand(*order.shape, values.shape[-1]))
