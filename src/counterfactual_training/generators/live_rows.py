"""The rows of a block that are still searching, under every kind of search.

Whatever is known of a row is a column: a tensor ``(..., a)`` or ``(..., a, anything)``, which
shrinks with the rows. A row that is done stays, ignored, until there are enough such rows to make a
smaller copy worth its cost. Its results are written before that.
"""

from __future__ import annotations

from copy import copy
from typing import Self

import torch
from torch import Tensor

from counterfactual_training.constraints import Bounds, Constraints
from counterfactual_training.generators.generator import Generator
from counterfactual_training.generators.penalties import SearchState

_SHRINK_AT = 0.8  # share of rows still searching

Places = tuple[Tensor, ...]


class LiveRows:
    """The a rows of a block of n that are not dropped yet."""

    # Columns of every search.
    index: Tensor  # place among the n rows of the block
    x: Tensor
    y_target: Tensor
    x_cf: Tensor  # the point that the model is asked about
    x_adv: Tensor  # the last iterate within ε of x (Eq. 4)
    delta: Tensor  # x_cf − x
    live: Tensor  # mask of the rows that are not done

    # Columns of fixed steps.
    one_hot: Tensor  # y_target (..., a, k)
    goals: Tensor  # (..., a, k) τ for the target, ∞ for other classes and rows that are done
    z: Tensor  # state of the generator's space
    nascent: Tensor  # whether x_cf lies within ε of x; x_adv is then out of date
    radius: Tensor  # ε; negative for rows that made their last step
    # Whether discrete features were snapped and stay; ``None`` if there are none.
    snapped: Tensor | None = None
    fresh: Tensor | None = None  # whether that happened in this iteration
    spent: Tensor  # iterations in which a row was snapped instead of updated

    # Columns of a line search.
    wanted: Tensor  # (..., a, k) mask of the target class
    lower: Tensor  # the box, directions included; a held feature has an interval of one point
    upper: Tensor
    held: Tensor  # mask of the cells that the caller holds
    here: Tensor  # the best point so far
    before: Tensor  # the best point before it
    value: Tensor  # of the objective at the best point
    confidence: Tensor
    gap: Tensor  # log-odds beyond those of τ
    slope: Tensor  # gradient of the objective in features that may move; at a ridge, along it
    reach: Tensor  # length of the next step, as a share of the longest
    turned: Tensor  # whether the last step did not help
    tries: Tensor
    moves: Tensor

    def __init__(
        self, x: Tensor, y_target: Tensor, generator: Generator, constraints: Constraints
    ) -> None:
        """All rows x ``(..., n, d)``, at their factuals."""
        self.constraints = constraints
        self.limit = _step_limit(generator, constraints)  # T, or one per member (members, 1)
        # From the shortest to the longest T.
        self.limits = range(*(int(end) for end in torch.as_tensor(self.limit).aminmax()))
        self.threshold = generator.decision_threshold  # τ
        self.num_answers = generator.num_answers  # consecutive rows that stay together
        self.live_width = y_target.shape[-1]  # live rows, of the member that has most
        self.shrink_at = _SHRINK_AT
        self.bounds: Bounds | None = None
        # Memory for temporaries, and the previous iterate, which is memory for the next one.
        self.scratch: Tensor | None = None
        self.spare: Tensor = x
        # What a step rule remembers of each row, (..., a, d) or (..., a, anything).
        self.memory: dict[str, Tensor] = {}
        # Where results of rows are written: the columns of all n rows by name.
        self.results: dict[str, Tensor] = {}
        # Columns to write there before rows are dropped, by the name of the result. Only those
        # that do not change any more once a row is done.
        self.saved: dict[str, str] = {}
        self.columns: dict[str, None] = {}
        places = torch.arange(y_target.shape[-1], device=x.device)
        self.add(
            index=places.expand(y_target.shape).contiguous(),
            x=x,
            y_target=y_target,
            x_cf=x,
            x_adv=x,
            delta=torch.zeros_like(x),
            live=torch.ones_like(y_target, dtype=torch.bool),
        )

    def add(self, **columns: Tensor | None) -> None:
        """Set columns by name; those that are not ``None`` shrink with the rows from now on."""
        for name, values in columns.items():
            setattr(self, name, values)
            self.columns[name] = None

    def replace(self, mask: Tensor, **columns: Tensor) -> None:
        """Set columns of the rows under the mask ``(..., a)``."""
        for name, values in columns.items():
            under = mask
            if values.dim() > mask.dim():
                under = mask.unsqueeze(-1)
            # A new tensor each time: parts and earlier points may still hold the old one.
            setattr(self, name, torch.where(under, values, getattr(self, name)))

    def state(self, logits: Tensor, step: int) -> SearchState:
        """What penalties see at x_cf, where the model gives logits ``(..., a, k)``."""
        return SearchState(
            self.x,
            self.x_cf,
            self.delta,
            logits,
            self.y_target,
            step,
            self.limit,
            self.scratch,
            self.threshold,
            self.num_answers,
        )

    # ---- rows that remain ------------------------------------------------------------------------

    @property
    def rows_to_keep(self) -> Tensor:
        """Mask ``(..., a)`` of the rows to keep: live, or an answer to a factual whose other
        answers are.
        """
        if self.num_answers == 1:
            return self.live
        groups = self.live.unflatten(-1, (-1, self.num_answers))
        return groups.any(-1, keepdim=True).expand_as(groups).flatten(-2)

    def part(self, mask: Tensor) -> Self:
        """A copy of the rows under the mask ``(..., a)``, which writes to the same :attr:`results`.

        Members of a fleet keep as many rows as the one that has most under the mask; of the part,
        only those under the mask are live.
        """
        part = copy(self)
        part.columns = dict(self.columns)
        part.live = mask
        part._take(row_places(mask, int(mask.sum(-1).max())))
        part.live_width = part.index.shape[-1]
        return part

    def write(self, done: Places, **values: Tensor | int) -> None:
        """Write results of the rows at these places, each ``(m, ...)`` or one number for all."""
        if len(done) == 1:
            place = pick(self.index, done)
            for name, value in values.items():
                if isinstance(value, Tensor):
                    self.results[name].index_copy_(0, place, value)
                else:
                    self.results[name].index_fill_(0, place, value)
            return
        places = (*done[:-1], self.index[done])
        for name, value in values.items():
            self.results[name][places] = value

    def leave(self, mask: Tensor, done: Places) -> None:
        """The rows under the mask, all live, are done; ``done`` are their places, if any."""
        if not done[0].numel():
            return
        self.live = self.live & ~mask
        if len(done) == 1 and self.num_answers == 1:
            self.live_width = self.live_width - len(done[0])
        else:
            self.live_width = int(self.rows_to_keep.sum(-1).max())

    def save(self) -> None:
        """Write the columns that are :attr:`saved`, of all rows."""
        for name, column in self.saved.items():
            values = getattr(self, column)
            order = self.index
            if order.dim() == 1:
                self.results[name].index_copy_(0, order, values)
                continue
            if values.dim() > order.dim():
                order = order.unsqueeze(-1).expand_as(values)
            self.results[name].scatter_(self.index.dim() - 1, order, values)

    def shrink(self) -> None:
        """Drop rows that are done once there are many. In a fleet, all members keep as many rows
        as the slowest one.
        """
        if self.live_width < self.shrink_at * self.index.shape[-1]:
            self.save()
            self._take(row_places(self.rows_to_keep, self.live_width))

    def _take(self, order: Tensor) -> None:
        """Keep the rows ``order`` ``(..., a)`` only."""
        for name in self.columns:
            values = getattr(self, name)
            if values is not None:
                setattr(self, name, rows_in_order(values, order))
        self.memory = {
            name: rows_in_order(values, order) for name, values in self.memory.items()
        }
        if self.scratch is not None:
            self.spare = torch.empty_like(self.x_cf)
            self.scratch = torch.empty_like(self.x_cf)
        if self.bounds is not None:
            bounds = (b if b.shape[-2] == 1 else rows_in_order(b, order) for b in self.bounds)
            self.bounds = Bounds(*bounds)

    # ---- moves -----------------------------------------------------------------------------------

    def advance(self, delta: Tensor) -> None:
        """``x′ ← project(x′ + mask(Δ))``; snapped features stay. May overwrite Δ."""
        self.constraints.mask_step(delta)
        stay = self.stay
        if stay is not None:
            delta.masked_fill_(stay, 0.0)
        # Into the old iterate's memory, then swapped: nothing is allocated, and ``spare`` holds the
        # point before.
        torch.add(self.x_cf, delta, out=self.spare)
        self._arrive()

    def jump(self, total: Tensor) -> None:
        """``x′ ← project(x + mask(Δ))`` for a whole change Δ: where it is 0, x′ is exactly x. May
        overwrite Δ.
        """
        self.constraints.mask_step(total)
        self.place(self.x + total)

    def place(self, points: Tensor) -> None:
        """``x′ ← project(points)``, which directions must allow; snapped features stay."""
        self.spare.copy_(points)
        stay = self.stay
        if stay is not None:
            torch.where(stay, self.x_cf, self.spare, out=self.spare)
        self._arrive()

    def _arrive(self) -> None:
        """Make ``spare`` the iterate, inside the bounds."""
        self.spare, self.x_cf = self.x_cf, self.spare
        if self.bounds is not None:
            bounds = self.bounds
            if self.constraints.relations is not None:  # they could move what was snapped
                bounds = bounds.hold(self.spare, self.fixed)
            # The point before is inside the relations, so it is where a projection can fall back
            # to.
            self.constraints.project(self.x_cf, bounds, self.spare)
        # An answer that is done stays, and the others keep away from it.
        if self.num_answers > 1:
            torch.where(self.live.unsqueeze(-1), self.x_cf, self.spare, out=self.x_cf)
        torch.sub(self.x_cf, self.x, out=self.delta)

    def rounded(self, mask: Tensor, held: Tensor | None) -> Tensor:
        """x_cf ``(..., a, d)``, with valid values of discrete features in the rows under the mask.

        Rounding changes no cells under ``held`` that it need not.
        """
        order = row_places(mask, int(mask.sum(-1).max()))
        points = rows_in_order(self.x_cf, order)
        if held is not None:
            held = rows_in_order(held.expand_as(self.x), order)
        valid = self.constraints.snap(points, rows_in_order(self.x, order), held)
        # A fleet takes rows along that are not under the mask.
        valid = torch.where(rows_in_order(mask, order).unsqueeze(-1), valid, points)
        # A copy keeps the memory layout, on which the speed and the rounding of a fleet depend.
        rounded = self.x_cf.clone()
        if order.dim() == 1:
            return rounded.index_copy_(0, order, valid)
        return rounded.scatter_(-2, order.unsqueeze(-1).expand_as(valid), valid)

    # ---- for step rules --------------------------------------------------------------------------

    @property
    def fixed(self) -> Tensor | None:
        """Mask ``(..., a, d)`` of features that were snapped and stay; ``None`` without discrete
        features.
        """
        if self.snapped is None:
            return None
        return self.snapped.unsqueeze(-1) & self.constraints.discrete

    @property
    def stay(self) -> Tensor | None:
        """Mask ``(..., a, d)`` of what does not move in this iteration."""
        fixed = self.fixed
        if fixed is None or self.fresh is None:
            return fixed
        # A row snapped in this iteration waits for its probability at the snapped point.
        return fixed | self.fresh.unsqueeze(-1)

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
        stay = self.stay
        if stay is not None:
            step.masked_fill_(stay, 0)
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


def row_places(mask: Tensor, width: int) -> Tensor:
    """Places ``(..., width)`` of the rows under the mask ``(..., a)``, in their order."""
    if mask.dim() == 1:
        return mask.nonzero().squeeze(-1)
    # As many rows in all members, because tensors are rectangular: padded with other rows.
    return mask.to(torch.int8).argsort(dim=-1, descending=True, stable=True)[..., :width]


def pick(values: Tensor, places: Places) -> Tensor:
    """Values ``(..., a)`` or rows ``(..., a, d)`` at these places."""
    if len(places) == 1:
        return values.index_select(0, places[0])
    return values[places]


def rows_in_order(values: Tensor, order: Tensor) -> Tensor:
    """Rows ``order`` ``(..., a)`` of ``(..., n)`` or ``(..., n, d)``, in the same memory layout."""
    if order.dim() == 1:
        return values.index_select(0, order)
    if values.dim() == order.dim():
        return values.gather(-1, order)
    # Rows laid out as (M, d, n) are gathered in that layout, or the chain would have to copy them.
    if values.stride(-2) == 1:
        return values.mT.gather(
            -1, order.unsqueeze(-2).expand(*order.shape[:-1], values.shape[-1], -1)
        ).mT
    return values.gather(-2, order.unsqueeze(-1).expand(*order.shape, values.shape[-1]))
