"""Relations between features in model space: linear ones, features that follow others, categories
that need others.

The factual of a row always keeps its relations here: where it breaks one, the limit is moved to
where it stands, so its counterfactuals may break it as much, but not more. Limits and box are
convex then, and the factual lies inside: going back towards it ends in an allowed point.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf

import torch
from torch import Tensor

from counterfactual_training.constraints.discrete import Lattice
from counterfactual_training.constraints.expression import Expression

# Rounds of Dykstra's algorithm; the remaining excess is removed by moving back towards the factual.
_SWEEPS = 8
# Points keep this far inside a limit, in standard deviations, so that rounding errors cannot cross
# it.
_MARGIN = 1e-5
# A limit counts as broken beyond this.
_SLACK = 2e-6
# Data that was computed elsewhere may differ from a formula by this share.
ELSEWHERE = 1e-3
# Steps back on a lattice before a row gives up and returns to its factual.
_STEPS_BACK = 24


@dataclass(frozen=True)
class Follower:
    """A feature computed from others: ``v = expression(…)``, where each value is ``v = center +
    scale · z``.

    Attributes:
        column: of the feature that follows.
        inputs: column, center and scale of each name in the expression.
        rounding: how far the rounding of its values may take them from the expression.
        text: the relation as the user wrote it.
        lower, upper, reach, may_increase, may_decrease: the rules of the feature itself, encoded.
            They say what stops its inputs; the search does not read them, because rows are checked
            again as they are printed.
    """

    column: int
    expression: Expression
    inputs: dict[str, tuple[int, float, float]]
    center: float
    scale: float
    rounding: float = 0.0
    text: str = ""
    lower: float = -inf
    upper: float = inf
    reach: float = inf
    may_increase: bool = True
    may_decrease: bool = True

    @property
    def columns(self) -> list[int]:
        return [column for column, _, _ in self.inputs.values()]

    def limits(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Lower and upper limits ``(..., n)`` of its encoded value in counterfactuals of x ``(...,
        n, d)``.
        """
        factual = x[..., self.column]
        # Outside its domain, it may stay where it is.
        low = factual.clamp(max=self.lower)
        high = factual.clamp(min=self.upper)
        return (
            torch.maximum(low, factual - self.reach) if self.may_decrease else factual,
            torch.minimum(high, factual + self.reach) if self.may_increase else factual,
        )

    def derive(self, points: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Its encoded value ``(..., n)`` at points ``(..., n, d)``, and the derivatives by its
        encoded inputs.
        """
        values = {
            name: center + scale * points[..., j]
            for name, (j, center, scale) in self.inputs.items()
        }
        value, by = self.expression.derive(values)
        # Chain rule of v = center + scale · z, on both sides.
        slopes = {
            name: slope * (self.inputs[name][2] / self.scale) for name, slope in by.items()
        }
        return (value - self.center) / self.scale, slopes


@dataclass(frozen=True)
class Implication:
    """Rows whose columns ``condition`` hold ``code`` must hold ``needed_code`` in ``needed``."""

    text: str
    condition: tuple[int, ...]
    code: tuple[float, ...]
    needed: tuple[int, ...]
    needed_code: tuple[float, ...]

    def broken(self, points: Tensor) -> Tensor:
        """Mask ``(..., n)``."""
        return _holds(points, self.condition, self.code) & ~_holds(
            points, self.needed, self.needed_code
        )


def _holds(points: Tensor, columns: Sequence[int], code: Sequence[float]) -> Tensor:
    return ((points[..., list(columns)] - points.new_tensor(code)).abs() < 1e-3).all(-1)


@dataclass(frozen=True, eq=False)
class Relations:
    """All relations of d features.

    Attributes:
        texts: of the r linear relations, as the user wrote them.
        normals: ``(r, d)`` of length 1.
        lower, upper: ``(r,)`` limits of ``normals · z``; infinite where there is none.
        followers: features that follow others, inputs before what follows them.
        implications: between categories.
    """

    texts: tuple[str, ...]
    normals: Tensor
    lower: Tensor
    upper: Tensor
    followers: tuple[Follower, ...] = ()
    implications: tuple[Implication, ...] = ()

    def to(self, like: Tensor) -> Relations:
        return replace(
            self,
            normals=self.normals.to(like),
            lower=self.lower.to(like),
            upper=self.upper.to(like),
        )

    @property
    def all_texts(self) -> tuple[str, ...]:
        """Texts of the linear relations, then of the implications, then of the followers."""
        return (
            *self.texts,
            *(rule.text for rule in self.implications),
            *(rule.text for rule in self.followers),
        )

    @property
    def following(self) -> list[int]:
        """Columns that follow others."""
        return [follower.column for follower in self.followers]

    # ---- linear relations ------------------------------------------------------------------------

    def limits(self, x: Tensor, margin: float = _MARGIN) -> tuple[Tensor, Tensor]:
        """Lower and upper limits ``(..., n, r)`` of counterfactuals of x ``(..., n, d)``; x itself
        is inside.
        """
        # Equations get no margin: two limits moved inward would cross.
        factual = x @ self.normals.mT
        both = self.lower == self.upper
        # Relative to the limit, as rounding errors are.
        inward = torch.where(both, 0.0, margin * (1 + self.upper.abs().nan_to_num(posinf=0.0)))
        # A factual beyond a limit moves the limit to where it stands.
        return torch.minimum(self.lower + inward, factual), torch.maximum(
            self.upper - inward, factual
        )

    def project(
        self,
        points: Tensor,
        x: Tensor,
        lower: Tensor,
        upper: Tensor,
        before: Tensor | None = None,
    ) -> Tensor:
        """Points ``(..., n, d)`` moved into the limits of their factuals x, within the box ``lower,
        upper``.

        ``before`` are points inside the limits, where a step began; by default x.
        """
        if not len(self.normals):
            return points
        low, high = self.limits(x)
        # Few rows of a step cross a limit, and few columns have one: only these go through the
        # sweeps.
        rows = _outside(points @ self.normals.mT, low, high).any(-1).nonzero(as_tuple=True)
        if not len(rows[0]):
            return points
        columns = self._related
        points = points.clone()
        ends = [
            end.expand_as(points)[rows][:, columns]
            for end in (lower, upper, x if before is None else before)
        ]
        projected = self._dykstra(points[rows][:, columns], low[rows], high[rows], *ends)
        points[(*(place.unsqueeze(-1) for place in rows), columns)] = projected
        return points

    @cached_property
    @torch.inference_mode(False)  # the cache outlives a search
    def _related(self) -> Tensor:
        """Columns of linear relations."""
        return (self.normals != 0).any(0).nonzero().squeeze(-1)

    def _dykstra(
        self,
        points: Tensor,
        low: Tensor,
        high: Tensor,
        lower: Tensor,
        upper: Tensor,
        before: Tensor,
    ) -> Tensor:
        """Near the nearest points ``(a, c)`` of box and limits, by projecting onto each in turn;
        related columns only.

        Points still outside move back towards ``before``, which is inside.
        """
        normals = self.normals[:, self._related]
        # The projection onto a limit moves only what may move, and shares the whole excess among
        # that.
        free = normals * (upper > lower).unsqueeze(-2)  # (a, r, c): closed columns do not move
        size = free.square().sum(-1)
        # Dykstra's corrections. Without them, projecting in turn ends somewhere in the set, not at
        # its nearest point.
        owed = [torch.zeros_like(points) for _ in range(len(normals) + 1)]
        for _ in range(_SWEEPS):
            for i, normal in enumerate(normals):
                start = points + owed[i]
                value = start @ normal
                excess = value - value.clamp(low[..., i], high[..., i])
                # A limit whose columns are all closed cannot be met by moving; its row is left to
                # the way back below.
                share = torch.where(
                    size[..., i] > 0, excess / size[..., i].clamp_min(1e-12), 0.0
                )
                points = start - share.unsqueeze(-1) * free[..., i, :]
                owed[i] = start - points
            start = points + owed[-1]
            points = start.clamp(lower, upper)
            owed[-1] = start - points
            if not bool(_outside(points @ normals.mT, low, high).any()):
                return points
        # Box and limits are convex and ``before`` is inside: some share of the way is, too.
        origin = before @ normals.mT
        value = points @ normals.mT
        room = torch.where(value > origin, high - origin, low - origin)
        # The tightest limit decides for the row; rows that are inside keep share 1 and their exact
        # values.
        share = (
            torch.where(_outside(value, low, high), room / (value - origin), 1.0)
            .clamp(0, 1)
            .amin(-1, keepdim=True)
        )
        return torch.where(share < 1, before + share * (points - before), points)

    def narrow(
        self, x: Tensor, lower: Tensor, upper: Tensor, at: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The box ``(..., n, d)``, narrower where a column alone, the others as they are, would
        leave a limit.

        ``at`` are points of the factuals x where the columns stand; by default x.
        """
        if at is None:
            at = x
        low, high = self.limits(x, 0.0)
        value = at @ self.normals.mT
        for i, normal in enumerate(self.normals):
            # How far the value may rise and fall, over the weight of a column: how far that column
            # alone may go.
            up = (high[..., i] - value[..., i]).unsqueeze(-1)
            down = (low[..., i] - value[..., i]).unsqueeze(-1)
            far, near = (
                room.expand_as(at) / normal.where(normal != 0, 1.0) for room in (up, down)
            )
            # A negative weight swaps the ends.
            most = torch.where(normal > 0, far, near)
            least = torch.where(normal > 0, near, far)
            # Clamped at 0, so that a point slightly outside by rounding may at least stay.
            lower = torch.where(
                normal != 0, torch.maximum(lower, at + least.clamp_max(0)), lower
            )
            upper = torch.where(
                normal != 0, torch.minimum(upper, at + most.clamp_min(0)), upper
            )
        return lower, upper

    def step_back(self, points: Tensor, x: Tensor, lattices: Sequence[Lattice]) -> Tensor:
        """Rounded points ``(..., n, d)`` that keep their limits: columns step back on their
        lattices, towards x.

        Of the most broken limit, the column that moved furthest across it steps back first. Rows
        that no number of steps helps get x in all related columns.
        """
        if not len(self.normals):
            return points
        low, high = self.limits(x, 0.0)
        broken = _outside(points @ self.normals.mT, low, high).any(-1)
        if not bool(broken.any()):
            return points
        points = points.clone()
        where = broken.nonzero(as_tuple=True)
        points[where] = self._stepped(
            points[where], x[where], low[where], high[where], lattices
        )
        return points

    def _stepped(
        self, points: Tensor, x: Tensor, low: Tensor, high: Tensor, lattices: Sequence[Lattice]
    ) -> Tensor:
        for _ in range(_STEPS_BACK):
            value = points @ self.normals.mT
            excess = value - torch.minimum(torch.maximum(value, low), high)
            broken = _outside(value, low, high)
            if not bool(broken.any()):
                return points
            # One limit and one column at a time: stepping back all columns would undo more of the
            # change than needed.
            worst = excess.abs().masked_fill(~broken, -1.0).argmax(-1, keepdim=True)
            excess = excess.gather(-1, worst)
            normal = self.normals[worst.squeeze(-1)]
            # Positive only for columns whose own change pushed across the limit.
            blame = (points - x) * normal * excess.sign()
            column = blame.argmax(-1, keepdim=True)
            # Without a lattice, exactly as far as it takes.
            needed = points - excess / normal.where(normal != 0, 1.0)
            for lattice in lattices:
                j = lattice.column
                below, above = lattice.beside(points[..., j])
                needed[..., j] = torch.where(points[..., j] > x[..., j], below, above)
            # Never beyond x: stepping back undoes a change, it does not start one in the other
            # direction.
            back = torch.where(points > x, torch.maximum(needed, x), torch.minimum(needed, x))
            here = torch.zeros_like(points, dtype=torch.bool).scatter_(-1, column, True)
            points = torch.where(
                here & broken.any(-1, keepdim=True) & (blame > 0), back, points
            )
        # Out of steps: the factual's own values keep every limit.
        broken = _outside(points @ self.normals.mT, low, high).any(-1, keepdim=True)
        return torch.where(broken & (self.normals != 0).any(0), x, points)

    # ---- features that follow --------------------------------------------------------------------

    def follow(self, points: Tensor, x: Tensor) -> Tensor:
        """Points ``(..., n, d)`` with what follows recomputed where its inputs differ from those
        of x.

        What cannot be computed, as after a division by zero, stays as it is.
        """
        if not self.followers:
            return points
        points = points.clone()
        for follower in self.followers:
            columns = follower.columns
            # Where no input changed, the factual's value stays, even if it never obeyed the
            # formula.
            moved = (points[..., columns] != x[..., columns]).any(-1)
            j = follower.column
            value = follower.derive(points)[0]
            expected = follower.derive(x)[0]
            factual = x[..., j]
            slack = (
                follower.rounding
                + ELSEWHERE * (follower.center + follower.scale * expected).abs()
            )
            # A factual that does not match keeps its distance: correcting it is not what a person
            # is asked to change.
            off = ((factual - expected) * follower.scale).abs() > slack
            value = torch.where(off, factual + value - expected, value)
            points[..., j] = torch.where(
                moved, torch.where(value.isfinite(), value, points[..., j]), x[..., j]
            )
        return points

    def through(self, grad: Tensor, points: Tensor) -> Tensor:
        """The gradient ``(..., n, d)`` at points, with that of what follows passed on to its
        inputs.
        """
        if not self.followers:
            return grad
        grad = grad.clone()
        # Backwards, so that a feature that follows has collected all gradients before it passes
        # them on.
        for follower in reversed(self.followers):
            # Cloned before it is set to 0, or the view would read 0 as well.
            upstream = grad[..., follower.column].clone()
            grad[..., follower.column] = 0
            for name, slope in follower.derive(points)[1].items():
                # A slope may be infinite, as after a division by zero; one such cell must not make
                # x′ NaN.
                passed = torch.as_tensor(upstream * slope)
                grad[..., follower.inputs[name][0]] += torch.where(
                    passed.isfinite(), passed, 0.0
                )
        return grad

    # ---- questions -------------------------------------------------------------------------------

    def broken(self, points: Tensor, x: Tensor, tolerance: float = 1e-5) -> Tensor:
        """Mask ``(..., n, d)`` of the columns of relations that points break more than their
        factuals x.
        """
        low, high = self.limits(x, 0.0)
        value = points @ self.normals.mT
        out = (value < low - tolerance) | (value > high + tolerance)
        # A broken relation is blamed on all its columns: which one should give way is not known
        # here.
        wrong = (out.unsqueeze(-1) & (self.normals != 0)).any(-2)
        for rule in self.implications:
            here = rule.broken(points) & ~rule.broken(x)
            wrong[..., [*rule.condition, *rule.needed]] |= here.unsqueeze(-1)
        return wrong


def _outside(value: Tensor, low: Tensor, high: Tensor) -> Tensor:
    return (value > high + _SLACK) | (value < low - _SLACK)
