"""Which features may change, in which direction, how far, and which belong together.

Training, search, attacks, metrics and reports all use the same :class:`Constraints`. Its four main
methods:

``mask_step``  removes the part of a step that mutability forbids (search, diagnosis)
``project``    moves a point back into the domain (search)
``snap``       rounds a relaxed point to valid categories and integers (end of the search)
``protect``    removes from x⁺ the differences that mutability forbids (training, §3.4)

Line search, anchors and attacks take the box of ``bounds`` and the masks instead of the first two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor

from counterfactual_training.constraints.bounds import Bounds
from counterfactual_training.constraints.discrete import Lattice, OneHotGroup, check_columns
from counterfactual_training.constraints.domain import Domain, parse_domain
from counterfactual_training.constraints.imply import imply
from counterfactual_training.constraints.mutability import (
    Direction,
    Mutability,
    direction_from,
    parse_mutability,
)
from counterfactual_training.constraints.violations import find_violations
from counterfactual_training.errors import ConstraintError, check_name

if TYPE_CHECKING:
    from counterfactual_training.constraints.relations import Relations

CategoryProjection = Literal["end", "step", "never"]


@dataclass(frozen=True, eq=False)
class Constraints:
    """Constraints on d features in model space. Create one with :meth:`build` or :meth:`infer`.

    Attributes:
        may_increase: ``(..., d)`` mask of the features that may rise.
        may_decrease: ``(..., d)`` mask of those that may fall; where both are false, a feature is
            immutable.
        domain: the box.
        groups: one-hot groups of categorical features.
        lattices: integer columns and columns with a list of allowed values.
        names: feature names, used in messages.
        category_projection: when a relaxed group becomes one category again: at the ``"end"`` of
            the search, after every ``"step"`` (as the authors do at evaluation), or ``"never"`` (as
            they do in training).
        reach: ``(d,)`` the largest change of each feature, infinite where there is none.
        keep_outside: factuals outside the domain may stay there; otherwise they are pulled in, or
            refused if stated.
        coded: columns ``(number, flags)`` of numbers with special codes: where a flag is set, the
            number stays.
        relations: between features; ``None`` without any.

    Examples:
        >>> import torch
        >>> import counterfactual_training as ct
        >>> rules = ct.Constraints.build(
        ...     2, {"age": "increase"}, {"debt": (0, None)}, names=("age", "debt")
        ... )
        >>> rules.directions
        ('increase', 'both')
        >>> x, x_cf = torch.tensor([[40.0, 3.0]]), torch.tensor([[35.0, 1.0]])
        >>> rules.violations(x_cf, x)  # age fell
        tensor([[ True, False]])
    """

    may_increase: Tensor
    may_decrease: Tensor
    domain: Domain
    groups: tuple[OneHotGroup, ...] = ()
    lattices: tuple[Lattice, ...] = ()
    names: tuple[str, ...] | None = None
    category_projection: CategoryProjection = "end"
    reach: Tensor | None = None
    keep_outside: bool = False
    coded: tuple[tuple[int, tuple[int, ...]], ...] = ()
    relations: Relations | None = None

    @classmethod
    def build(
        cls,
        num_features: int,
        mutability: Mutability = None,
        domain: Domain
        | Mapping[Any, tuple[float | None, float | None]]
        | tuple[float, float]
        | None = None,
        groups: Sequence[OneHotGroup | Sequence[int]] = (),
        lattices: Sequence[Lattice] = (),
        names: Sequence[str] | None = None,
        category_projection: CategoryProjection = "end",
    ) -> Constraints:
        """Constraints from user input.

        Args:
            num_features: d.
            mutability: see :func:`parse_mutability`.
            domain: a :class:`Domain`; one ``(lower, upper)`` for all features; or a dict from
                column to ``(lower, upper)``, where ``None`` means no bound on that side.
            groups: one-hot groups, each a list of column indices or a :class:`OneHotGroup`.
            lattices: columns with integer or listed values.
            names: column names; dicts may then use names instead of indices.
            category_projection: see :class:`Constraints`.
        """
        if names is not None and len(names) != num_features:
            raise ConstraintError(f"{len(names)} names for {num_features} features.")
        directions = parse_mutability(mutability, num_features, names)
        parsed_groups = tuple(
            g if isinstance(g, OneHotGroup) else OneHotGroup(tuple(g)) for g in groups
        )
        check_columns(parsed_groups, lattices, num_features)
        check_name(
            "category_projection",
            category_projection,
            get_args(CategoryProjection),
            ConstraintError,
        )
        return cls(
            may_increase=torch.tensor([d in ("both", "increase") for d in directions]),
            may_decrease=torch.tensor([d in ("both", "decrease") for d in directions]),
            domain=parse_domain(domain, num_features, names),
            groups=parsed_groups,
            lattices=tuple(lattices),
            names=tuple(names) if names is not None else None,
            category_projection=category_projection,
        )

    @classmethod
    def infer(
        cls,
        x: Tensor,
        mutability: Mutability = None,
        num_std: float = 2.0,
        domain: Any = None,
        **kwargs: Any,
    ) -> Constraints:
        """As :meth:`build`; bounds that ``domain`` does not state are inferred from data ``(n,
        ...)`` by Eq. 12.

        Args:
            x: the data.
            mutability: as in :meth:`build`.
            num_std: n_σ of Eq. 12; see :meth:`Domain.infer`.
            domain: as in :meth:`build`.
            **kwargs: other arguments of :meth:`build`.
        """
        flat = x.detach().reshape(len(x), -1)
        box = Domain.infer(flat, num_std)
        if domain is not None:
            box = parse_domain(domain, flat.shape[1], kwargs.get("names")).to(flat).filled(box)
        return cls.build(flat.shape[1], mutability, box, **kwargs).to(flat)

    @property
    def num_features(self) -> int:
        """Columns in model space, d."""
        return self.may_increase.shape[-1]

    @property
    def directions(self) -> tuple[Direction, ...]:
        """One word per feature (in a fleet, of the first member)."""
        up, down = (
            mask.reshape(-1, self.num_features)[0].tolist()
            for mask in (self.may_increase, self.may_decrease)
        )
        return tuple(map(direction_from, up, down))

    @property
    def immutable(self) -> Tensor:
        """Mask ``(..., d)`` of the features that may not change at all."""
        return ~(self.may_increase | self.may_decrease)

    @cached_property
    def _in_groups(self) -> Tensor:
        """Mask ``(d,)`` of the columns that encode categories."""
        mask = torch.zeros(self.num_features, dtype=torch.bool, device=self.may_increase.device)
        for group in self.groups:
            mask[list(group.columns)] = True
        return mask

    @cached_property
    def discrete(self) -> Tensor:
        """Mask ``(d,)`` of the columns that :meth:`snap` rounds."""
        mask = self._in_groups & (self.category_projection == "end")
        for lattice in self.lattices:
            mask[lattice.column] = True
        return mask

    @cached_property
    def has_discrete(self) -> bool:
        """Whether :meth:`snap` rounds any column."""
        return bool(self.discrete.any())

    @cached_property
    def has_free_features(self) -> bool:
        """Whether any mutable feature is left out by :meth:`snap`."""
        return bool((~self.immutable & ~self.discrete).any())

    @cached_property
    def masks_nothing(self) -> bool:
        """Whether every feature may move both ways."""
        return bool((self.may_increase & self.may_decrease).all())

    @cached_property
    # The cache outlives the search, so it must not hold inference tensors.
    @torch.inference_mode(False)
    def _step_limits(self) -> tuple[Tensor, Tensor]:
        zero = torch.zeros_like(self.domain.lower)
        low = zero.masked_fill(self.may_decrease, -torch.inf)
        high = zero.masked_fill(self.may_increase, torch.inf)
        return low.unsqueeze(-2), high.unsqueeze(-2)

    def to(self, like: Tensor) -> Constraints:
        """The same constraints on the device of a tensor, with the box in its dtype."""
        box = self.domain.lower
        if self.may_increase.device == box.device == like.device and box.dtype == like.dtype:
            return self  # keeps what is cached
        # A search converts them before every rounding.
        key = like.device, like.dtype
        if key not in self._converted:
            self._converted[key] = self._to(like)
        return self._converted[key]

    @cached_property
    def _converted(self) -> dict[tuple[torch.device, torch.dtype], Constraints]:
        return {}

    def _to(self, like: Tensor) -> Constraints:
        up = self.may_increase.to(like.device)
        down = self.may_decrease.to(like.device)
        moved = {"reach": self.reach, "relations": self.relations}
        others: dict[str, Any] = {
            name: None if value is None else value.to(like) for name, value in moved.items()
        }
        return replace(
            self, may_increase=up, may_decrease=down, domain=self.domain.to(like), **others
        )

    def relaxed(self) -> Constraints:
        """The same box and directions with every column continuous, as the authors train."""
        return replace(self, groups=(), lattices=())

    @cached_property
    def _without_fixed_groups(self) -> tuple[Constraints, list[int]]:
        """These constraints without immutable groups, and the columns of those."""
        moves = (
            (self.may_increase | self.may_decrease)
            .reshape(-1, self.num_features)
            .any(0)
            .tolist()
        )
        loose = tuple(
            group for group in self.groups if any(moves[column] for column in group.columns)
        )
        # Relations read all groups.
        if self.relations is not None or len(loose) == len(self.groups):
            return self, []
        fixed = [
            column for group in self.groups if group not in loose for column in group.columns
        ]
        return replace(self, groups=loose), fixed

    # ---- methods of the search and of training ---------------------------------------------------

    def mask_step(self, step: Tensor) -> Tensor:
        """Zero, in place, the parts of a step ``(..., n, d)`` that mutability forbids."""
        # One pass over the step.
        return step if self.masks_nothing else step.clamp_(*self._step_limits)

    def bounds(self, x: Tensor) -> Bounds:
        """The box around the factuals x ``(..., n, d)``, and their categories if these are
        projected at every step.

        The box is the domain. It is wider where a factual lies outside the domain and may not come
        back, and narrower where transitions forbid a category; also at the factual by directions,
        if there are relations.
        """
        if self.relations is not None:
            return self._bounds_of_relations(x)
        if self.groups and self.category_projection == "step":
            return self._category_bounds(x)
        lower, upper = self._box(x)
        # Only a category outside the box can be trapped there, which _category_bounds finds out.
        if self.category_projection == "end" and bool(
            (((x < lower) | (x > upper)) & self._in_groups).any()
        ):
            lower, upper, *_ = self._category_bounds(x)
        nothing = torch.empty(1, 0, dtype=torch.bool, device=x.device)
        return Bounds(lower, upper, nothing, nothing)

    def _bounds_of_relations(self, x: Tensor) -> Bounds:
        """The bounds cut at the factual by directions, with the factual itself."""
        free = replace(self, relations=None)  # or interval() would come back here
        lower, upper = free.interval(x)
        return free.bounds(x)._replace(
            lower=lower.expand_as(x), upper=upper.expand_as(x), factual=x
        )

    def interval(self, x: Tensor, held: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Where each value of x ``(..., n, d)`` may go: the box, cut at the factual by directions
        and by ``held``.
        """
        bounds = self.bounds(x).hold(x, held)
        lower = torch.where(
            self.may_decrease.unsqueeze(-2), bounds.lower, torch.maximum(bounds.lower, x)
        )
        upper = torch.where(
            self.may_increase.unsqueeze(-2), bounds.upper, torch.minimum(bounds.upper, x)
        )
        return lower, upper

    def project(self, x_cf: Tensor, bounds: Bounds, before: Tensor | None = None) -> Tensor:
        """Move points ``(..., n, d)`` back into the bounds of their factuals, in place; ``before``
        is as in confine.
        """
        return self.project_categories(
            self.confine(x_cf, bounds.factual, bounds.lower, bounds.upper, before), bounds
        )

    def project_categories(self, x_cf: Tensor, bounds: Bounds) -> Tensor:
        """Round every group to an allowed category, in place, if done at every step."""
        if self.category_projection != "step":
            return x_cf
        bounds.settle(self.groups, x_cf)
        if self.relations is None:
            return x_cf
        return x_cf.copy_(imply(self, x_cf, bounds.factual))

    def confine(
        self,
        points: Tensor,
        x: Tensor,
        lower: Tensor,
        upper: Tensor,
        before: Tensor | None = None,
    ) -> Tensor:
        """Move points ``(..., n, d)``, in place, into a box and the limits of relations; the step
        began at ``before``.
        """
        points.clamp_(lower, upper)
        if self.relations is None:
            return points
        return points.copy_(
            self.follow(self.relations.project(points, x, lower, upper, before), x)
        )

    def follow(self, points: Tensor, x: Tensor) -> Tensor:
        """Points ``(..., n, d)`` with features that follow others computed from these; x are the
        factuals.
        """
        if self.relations is None:
            return points
        return self.relations.follow(points, x)

    def through(self, grad: Tensor, points: Tensor) -> Tensor:
        """The gradient at points ``(..., n, d)``, that of features which follow others passed on to
        the others.
        """
        if self.relations is None:
            return grad
        return self.relations.through(grad, points)

    def snap(self, x_cf: Tensor, x: Tensor, held: Tensor | None = None) -> Tensor:
        """A copy of x_cf with valid values that x can reach; relations may change more, but no
        cells under ``held``.
        """
        loose, fixed = self._without_fixed_groups
        # Immutable and unchanged columns need no rounding; often these are most categories of a
        # row.
        if loose is not self and torch.equal(x_cf[..., fixed], x[..., fixed]):
            return loose.snap(x_cf, x, held)
        x_cf = x_cf.clone()
        projects = bool(self.groups) and self.category_projection == "end"
        # Worked out once for both: with many categories, the box is most of the work.
        if projects or self.lattices:
            box = self._box(x)
        else:
            box = None
        if projects:
            self._category_bounds(x, box).settle(self.groups, x_cf)
        if self.lattices:
            self._round(x_cf, x, box)
        if self.relations is None:
            return x_cf
        if self.category_projection == "end":
            x_cf = imply(self, x_cf, x, held)
        return self.follow(self.relations.step_back(x_cf, x, self.lattices), x)

    def protect(self, x_pos: Tensor, x_cf: Tensor) -> Tensor:
        """x⁺ with ``x⁺[d] := x′[d]`` wherever moving x′ towards it would break mutability (§3.4).

        The three conditions: d is immutable; x⁺ > x′ but d may only decrease; x⁺ < x′ but d may
        only increase. Both ``(..., n, d)``.
        """
        if self.masks_nothing:  # then there are no codes either: their flags are immutable
            return x_pos
        return self._protect(x_pos, x_cf)

    def _protect(self, x_pos: Tensor, x_cf: Tensor) -> Tensor:
        up = self.may_increase.unsqueeze(-2)
        down = self.may_decrease.unsqueeze(-2)
        out = torch.where(up, x_pos, torch.minimum(x_pos, x_cf))  # x⁺ above x′ asks for a rise
        out = torch.where(down, out, torch.maximum(out, x_cf))  # and below it for a fall
        for number, flags in self.coded:
            stays = (x_cf[..., list(flags)] > 0.5).any(-1)
            out[..., number] = torch.where(stays, x_cf[..., number], out[..., number])
        return out

    def name(self, index: int) -> str:
        """What messages call the feature with this index."""
        if self.names is not None:
            return self.names[index]
        return f"feature {index}"

    def categories(self, group: OneHotGroup, x: Tensor) -> Tensor:
        """Mask ``(..., n, max(k, 2))`` of the categories that a counterfactual of x ``(..., n, d)``
        may have.
        """
        lower, upper = (bound.expand_as(x)[..., group.index] for bound in self._box(x))
        return self._categories(group, x, lower, upper)

    def check_factuals(self, x: Tensor) -> None:
        """Raise if factuals ``(..., n, d)`` have another number of features or lie outside a stated
        domain.
        """
        if x.shape[-1] != self.num_features:
            raise ConstraintError(
                f"The constraints are for {self.num_features} features, x has {x.shape[-1]}."
            )
        if not self.keep_outside:
            self.domain.check_factuals(x, self.name)

    def violations(self, x_cf: Tensor, x: Tensor, tolerance: float = 1e-5) -> Tensor:
        """Mask ``(..., n, d)`` of the values that break a constraint."""
        return find_violations(self, x_cf, x, tolerance)

    def _box(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Lower and upper bounds around the factuals, without regard to which categories the domain
        leaves.
        """
        lower = self.domain.lower.unsqueeze(-2)
        upper = self.domain.upper.unsqueeze(-2)
        # A factual outside an inferred domain comes back inside, except against its direction.
        stuck_low = (x < lower) & (~self.may_increase.unsqueeze(-2) | self.keep_outside)
        stuck_high = (x > upper) & (~self.may_decrease.unsqueeze(-2) | self.keep_outside)
        if bool(stuck_low.any()) or bool(stuck_high.any()):  # else one box serves all rows
            lower = torch.where(stuck_low, x, lower)
            upper = torch.where(stuck_high, x, upper)
        if self.reach is not None:
            lower, upper = _within_reach(x, self.reach, lower, upper)
        if self.coded or any(group.transitions is not None for group in self.groups):
            return self._around_categories(x, lower, upper)
        return lower, upper

    def _around_categories(
        self, x: Tensor, lower: Tensor, upper: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The box without categories that transitions forbid, and with numbers that a code hides
        held.
        """
        lower = lower.expand_as(x).clone()
        upper = upper.expand_as(x).clone()
        for group in self.groups:
            if group.transitions is not None:
                group.narrow(x, lower, upper)
        for number, flags in self.coded:
            hidden = (x[..., list(flags)] > 0.5).any(-1)
            for bound in (lower, upper):
                bound[..., number] = torch.where(hidden, x[..., number], bound[..., number])
        return lower, upper

    def _category_bounds(self, x: Tensor, box: tuple[Tensor, Tensor] | None = None) -> Bounds:
        """Box and categories, whenever categories are projected; ``box`` is that of x, if it is
        known.
        """
        if box is None:
            lower, upper = self._box(x)
        else:
            lower, upper = box
        home = x
        choices = []
        for group in self.groups:
            columns = group.index
            part = x[..., columns]
            low = lower[..., columns]
            high = upper[..., columns]
            categories = self._categories(group, x, low, high)
            current = group.own(x)
            inside = ((part >= low) & (part <= high)).all(-1, keepdim=True)
            # Outside the box and without a category to go to: widen the box so that the row may
            # stay as it is.
            trapped = ~inside & ~categories.any(-1, keepdim=True)
            if bool(trapped.any()):
                lower = lower.expand_as(x).clone()
                upper = upper.expand_as(x).clone()
                lower[..., columns] = torch.where(trapped, torch.minimum(low, part), low)
                upper[..., columns] = torch.where(trapped, torch.maximum(high, part), high)
            decoded = (categories & current).any(-1, keepdim=True)
            # A group that was no clean category before need not become one.
            if self.category_projection == "end":
                decoded = decoded & ~inside
            clean = group.encode(group.category(x).clamp_min(0), x.dtype)
            if bool((decoded & (clean != part)).any()):
                home = home.clone() if home is x else home  # x is the caller's
                home[..., columns] = torch.where(decoded, clean, part)
            stay = inside | trapped
            choices += [categories | (current & stay), ~current.any(-1, keepdim=True) & stay]
        return Bounds(
            lower,
            upper,
            home,
            torch.cat(choices, -1) if choices else x.new_empty(1, 0, dtype=torch.bool),
        )

    def _categories(
        self, group: OneHotGroup, x: Tensor, lower: Tensor, upper: Tensor
    ) -> Tensor:
        """Mask ``(..., n, max(k, 2))`` of the categories within the box ``(..., n, k)`` of the
        group's columns.
        """
        up, down = (
            mask[..., group.index].unsqueeze(-2)
            for mask in (self.may_increase, self.may_decrease)
        )
        return group.possible(x, lower, upper, up, down)

    def _round(self, x_cf: Tensor, x: Tensor, box: tuple[Tensor, Tensor] | None = None) -> None:
        """Round to integers and allowed values, in place."""
        lower, upper = (bound.expand_as(x) for bound in (self._box(x) if box is None else box))
        up = self.may_increase.unsqueeze(-2).expand_as(x)
        down = self.may_decrease.unsqueeze(-2).expand_as(x)
        # A value that did not change is kept, and often few columns of many did.
        moved = x_cf != x
        some = moved.reshape(-1, self.num_features).any(0).tolist()
        for lattice in (lattice for lattice in self.lattices if some[lattice.column]):
            j = lattice.column
            rows = moved[..., lattice.column]
            factual = x[..., j][rows]
            low = torch.where(down[..., j][rows], lower[..., j][rows], factual)
            high = torch.where(up[..., j][rows], upper[..., j][rows], factual)
            x_cf[..., j][rows] = lattice.snap(x_cf[..., j][rows], factual, low, high)


def _within_reach(
    x: Tensor, reach: Tensor, lower: Tensor, upper: Tensor
) -> tuple[Tensor, Tensor]:
    """A box cut at the largest change of each feature.

    A factual far outside the domain comes back towards it, but no further than it may change.
    """
    least = x - reach
    most = x + reach
    lower = torch.minimum(torch.maximum(lower, least), most)
    upper = torch.maximum(torch.minimum(upper, most), least)
    return lower, upper
