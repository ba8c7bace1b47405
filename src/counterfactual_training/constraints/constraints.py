"""What may move, which way, how far, together with what: one object for the life of a model.

Training, search, attacks, metrics and reports all read the same :class:`Constraints`. Its verbs:

``mask_step``  a proposed change, without the part that mutability forbids (search, attacks)
``project``    a point, back inside the domain (search, attacks)
``snap``       a relaxed point, onto valid categories and integers (end of the search)
``protect``    x⁺, without the differences that mutability explains (training, §3.4)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from counterfactual_training.constraints.discrete import Lattice, OneHotGroup
from counterfactual_training.constraints.domain import Domain
from counterfactual_training.constraints.mutability import (
    DIRECTIONS,
    Direction,
    Mutability,
    feature_index,
    parse_mutability,
)
from counterfactual_training.errors import ConstraintError, unknown

# Values looked at at once: rows in a file may be more than memory holds.
_BLOCK_VALUES = 2**20
# A change below this is rounding, not a change.
_NOISE = 1e-6

CategoryProjection = Literal["end", "step", "never"]


class Bounds(NamedTuple):
    """Where the counterfactuals of given factuals may lie; each tensor has as many rows as the factuals, or one.

    Attributes:
        lower, upper: the box, broadcastable to ``(..., n, d)``.
        home: ``(..., n, d)`` the factuals, as they are if they keep their categories.
        choices: ``(..., n, Σ (max(k, 2) + 1))`` the categories to choose from, group by group; see
            :meth:`OneHotGroup.settle`. This and ``home`` have no columns where categories are not projected.
    """

    lower: Tensor
    upper: Tensor
    home: Tensor
    choices: Tensor


@dataclass(frozen=True, eq=False)
class Constraints:
    """Constraints on d features in model space. Build one with :meth:`build` or :meth:`infer`.

    Attributes:
        may_increase, may_decrease: ``(..., d)`` masks; both false means immutable.
        domain: the box.
        groups: one-hot groups of categorical features.
        lattices: integer and allowed-value columns.
        names: feature names, for messages.
        category_projection: when a relaxed group becomes one category again: at the ``"end"`` of the search, after
            every ``"step"`` (what the authors did at evaluation), or ``"never"`` (what they did in training).
    """

    may_increase: Tensor
    may_decrease: Tensor
    domain: Domain
    groups: tuple[OneHotGroup, ...] = ()
    lattices: tuple[Lattice, ...] = ()
    names: tuple[str, ...] | None = None
    category_projection: CategoryProjection = "end"

    @classmethod
    def build(
        cls,
        num_features: int,
        mutability: Mutability = None,
        domain: Domain | Mapping[Any, tuple[float | None, float | None]] | tuple[float, float] | None = None,
        groups: Sequence[OneHotGroup | Sequence[int]] = (),
        lattices: Sequence[Lattice] = (),
        names: Sequence[str] | None = None,
        category_projection: CategoryProjection = "end",
    ) -> Constraints:
        """Constraints from what a person writes.

        Args:
            num_features: d.
            mutability: see :func:`parse_mutability`.
            domain: a :class:`Domain`; one ``(lower, upper)`` for all features; or a dict from column to
                ``(lower, upper)``, where ``None`` leaves a side open.
            groups: one-hot groups, each a list of column indices or a :class:`OneHotGroup`.
            lattices: columns that know only certain values.
            names: column names; lets dicts speak of columns by name.
        """
        if names is not None and len(names) != num_features:
            raise ConstraintError(f"{len(names)} names for {num_features} features.")
        directions = parse_mutability(mutability, num_features, names)
        parsed_groups = tuple(g if isinstance(g, OneHotGroup) else OneHotGroup(tuple(g)) for g in groups)
        columns = [column for group in parsed_groups for column in group.columns]
        columns += [lattice.column for lattice in lattices]
        if len(set(columns)) != len(columns) or any(not 0 <= c < num_features for c in columns):
            raise ConstraintError(
                f"Groups and lattices must name different columns in 0..{num_features - 1}: {columns}."
            )
        if category_projection not in ("end", "step", "never"):
            raise ConstraintError(unknown("category_projection", category_projection, ["end", "step", "never"]))
        return cls(
            may_increase=torch.tensor([d in ("both", "increase") for d in directions]),
            may_decrease=torch.tensor([d in ("both", "decrease") for d in directions]),
            domain=_parse_domain(domain, num_features, names),
            groups=parsed_groups,
            lattices=tuple(lattices),
            names=tuple(names) if names is not None else None,
            category_projection=category_projection,
        )

    @classmethod
    def infer(
        cls, x: Tensor, mutability: Mutability = None, num_std: float = 2.0, domain: Any = None, **kwargs: Any
    ) -> Constraints:
        """As :meth:`build`, with the box inferred from data ``(n, ...)`` by Eq. 12 wherever ``domain`` states none."""
        flat = x.detach().reshape(len(x), -1)
        box = Domain.infer(flat, num_std)
        if domain is not None:
            box = _parse_domain(domain, flat.shape[1], kwargs.get("names")).to(flat).filled(box)
        return cls.build(flat.shape[1], mutability, box, **kwargs).to(flat)

    @property
    def num_features(self) -> int:
        return self.may_increase.shape[-1]

    @property
    def directions(self) -> tuple[Direction, ...]:
        """One word per feature (of the first member, in a fleet)."""
        up = self.may_increase.reshape(-1, self.num_features)[0].tolist()
        down = self.may_decrease.reshape(-1, self.num_features)[0].tolist()
        words = {(True, True): "both", (False, False): "none", (True, False): "increase", (False, True): "decrease"}
        return tuple(d for u, w in zip(up, down, strict=True) for d in DIRECTIONS if d == words[u, w])

    @property
    def immutable(self) -> Tensor:
        """Mask ``(..., d)`` of the features that may not move at all."""
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
        """Mask ``(d,)`` of the columns that :meth:`snap` touches."""
        mask = self._in_groups & (self.category_projection == "end")
        for lattice in self.lattices:
            mask[lattice.column] = True
        return mask

    @cached_property
    def has_discrete(self) -> bool:
        return bool(self.discrete.any())

    @cached_property
    def has_free_features(self) -> bool:
        """Whether any feature may move that :meth:`snap` does not touch."""
        return bool((~self.immutable & ~self.discrete).any())

    @cached_property
    def masks_nothing(self) -> bool:
        return bool((self.may_increase & self.may_decrease).all())

    @cached_property
    @torch.inference_mode(False)  # a search's mode is not to stick to what outlives it
    def _step_limits(self) -> tuple[Tensor, Tensor]:
        zero = torch.zeros_like(self.domain.lower)
        low = zero.masked_fill(self.may_decrease, -torch.inf)
        high = zero.masked_fill(self.may_increase, torch.inf)
        return low.unsqueeze(-2), high.unsqueeze(-2)

    def to(self, like: Tensor) -> Constraints:
        """The same constraints on the device of a tensor, the box in its dtype."""
        box = self.domain.lower
        if self.may_increase.device == box.device == like.device and box.dtype == like.dtype:
            return self
        up, down = self.may_increase.to(like.device), self.may_decrease.to(like.device)
        return replace(self, may_increase=up, may_decrease=down, domain=self.domain.to(like))

    def relaxed(self) -> Constraints:
        """The same box and directions, with every column continuous: what the authors used in training."""
        return replace(self, groups=(), lattices=())

    # ---- the verbs -------------------------------------------------------------------------------------------------

    def mask_step(self, step: Tensor) -> Tensor:
        """Zero, in place, the parts of a step ``(..., n, d)`` that mutability forbids."""
        if self.masks_nothing:
            return step
        return step.clamp_(*self._step_limits)

    def bounds(self, x: Tensor) -> Bounds:
        """The box around the factuals x ``(..., n, d)``, and their categories where these are projected at every step.

        The box is the domain, widened where a factual lies outside it in a feature or with a category that may not
        come back, and narrowed to the factual's own value for categories it may not become.
        """
        if self.groups and self.category_projection == "step":
            return self._bounds(x)
        lower, upper = self._box(x)
        if self.category_projection == "end" and bool((((x < lower) | (x > upper)) & self._in_groups).any()):
            lower, upper, *_ = self._bounds(x)
        nothing = torch.empty(1, 0, dtype=torch.bool, device=x.device)
        return Bounds(lower, upper, nothing, nothing)

    def project(self, x_cf: Tensor, bounds: Bounds) -> Tensor:
        """Put points ``(..., n, d)`` back into the bounds of their factuals, in place."""
        return self.project_categories(x_cf.clamp_(bounds.lower, bounds.upper), bounds)

    def project_categories(self, x_cf: Tensor, bounds: Bounds) -> Tensor:
        """Make every group one of its row's possible categories again, in place, if that is to happen at every step."""
        return self._settle(x_cf, bounds) if self.category_projection == "step" else x_cf

    def snap(self, x_cf: Tensor, x: Tensor) -> Tensor:
        """Counterfactuals with valid categories, integers and allowed values, reachable from x; a new tensor."""
        x_cf = x_cf.clone()
        if not self.has_discrete:
            return x_cf
        if self.category_projection == "end":
            self._settle(x_cf, self._bounds(x))
        if self.lattices:
            self._round(x_cf, x)
        return x_cf

    def protect(self, x_pos: Tensor, x_cf: Tensor) -> Tensor:
        """x⁺ with ``x⁺[d] := x′[d]`` wherever moving x′ towards it would break mutability (§3.4).

        The three conditions: d is immutable; x⁺ > x′ but d may only fall; x⁺ < x′ but d may only rise.
        Both ``(..., n, d)``.
        """
        if self.masks_nothing:
            return x_pos
        up, down = self.may_increase.unsqueeze(-2), self.may_decrease.unsqueeze(-2)
        out = torch.where(up, x_pos, torch.minimum(x_pos, x_cf))
        return torch.where(down, out, torch.maximum(out, x_cf))

    # ---- questions -------------------------------------------------------------------------------------------------

    def name(self, index: int) -> str:
        return self.names[index] if self.names is not None else f"feature {index}"

    def categories(self, group: OneHotGroup, x: Tensor) -> Tensor:
        """Mask ``(..., n, max(k, 2))`` of the categories that a counterfactual of x ``(..., n, d)`` may be in."""
        lower, upper = (bound.expand_as(x)[..., group.index] for bound in self._box(x))
        return self._categories(group, x, lower, upper)

    def check_factuals(self, x: Tensor) -> None:
        """Refuse factuals ``(..., n, d)`` with other features, or outside a domain that the user stated."""
        if x.shape[-1] != self.num_features:
            raise ConstraintError(f"The constraints speak of {self.num_features} features, x has {x.shape[-1]}.")
        stated = self.domain.stated
        if not bool(stated.any()):
            return
        block = max(1, _BLOCK_VALUES * x.shape[-2] // max(1, x.numel()))
        counts = stated.new_zeros(self.num_features, dtype=torch.long)
        for rows in x.split(block, -2):
            counts += (self._outside(rows) & stated).reshape(-1, self.num_features).sum(0)
        if not bool(counts.any()):
            return
        j = int(counts.argmax())
        row = int(torch.cat([self._outside(rows)[..., j] for rows in x.split(block, -2)], -1).flatten().nonzero()[0])
        value = float(x[..., j].flatten()[row])
        low = float(self.domain.lower.reshape(-1, self.num_features)[0, j])
        high = float(self.domain.upper.reshape(-1, self.num_features)[0, j])
        raise ConstraintError(
            f"{int(counts[j])} factual(s) lie outside the domain of {self.name(j)!r} [{low:g}, {high:g}]; "
            f"the first is row {row} with {value:g}. Widen the domain or leave these rows out."
        )

    def _outside(self, x: Tensor) -> Tensor:
        # The last few digits are not worth a refusal: scaling to model space and back costs that much.
        span = 1e-5 * (1 + x.abs())
        return (x < self.domain.lower.unsqueeze(-2) - span) | (x > self.domain.upper.unsqueeze(-2) + span)

    def violations(self, x_cf: Tensor, x: Tensor, tolerance: float = 1e-5) -> Tensor:
        """Mask ``(..., n, d)`` of the values that break a constraint, for tests, metrics and reports."""
        delta = x_cf - x
        slack = tolerance * (1 + torch.maximum(x.abs(), x_cf.abs()))
        wrong = ((delta > slack) & ~self.may_increase.unsqueeze(-2)) | (
            (delta < -slack) & ~self.may_decrease.unsqueeze(-2)
        )
        bounds = self._bounds(x) if self.category_projection != "never" else self.bounds(x)
        wrong |= (x_cf < bounds.lower - slack) | (x_cf > bounds.upper + slack)
        valid = x_cf.clone()
        if self.category_projection != "never":
            self._settle(valid, bounds)
            for group in self.groups:  # to stay as one is, is always allowed
                columns = group.index
                changed = (delta.abs() > slack)[..., columns].any(-1, keepdim=True)
                valid[..., columns] = torch.where(changed, valid[..., columns], x_cf[..., columns])
        self._round(valid, x)
        return wrong | ((valid - x_cf).abs() > slack)

    # ---- behind the verbs ------------------------------------------------------------------------------------------

    def _box(self, x: Tensor) -> tuple[Tensor, Tensor]:
        lower, upper = self.domain.lower.unsqueeze(-2), self.domain.upper.unsqueeze(-2)
        stuck_low = (x < lower) & ~self.may_increase.unsqueeze(-2)
        stuck_high = (x > upper) & ~self.may_decrease.unsqueeze(-2)
        if bool(stuck_low.any()) or bool(stuck_high.any()):
            lower, upper = torch.where(stuck_low, x, lower), torch.where(stuck_high, x, upper)
        limited = [group for group in self.groups if group.transitions is not None]
        if limited:
            lower, upper = lower.expand_as(x).clone(), upper.expand_as(x).clone()
        for group in limited:
            columns, reachable = group.index, group.reachable(x)
            own, low, high = x[..., columns], lower[..., columns], upper[..., columns]
            may_be_1, may_be_0 = reachable[..., -len(group.columns) :], reachable[..., :1]
            high = torch.where(may_be_1, high, torch.minimum(high, own))
            if len(group.columns) == 1:  # who may not leave 0 or 1 is not pulled back into the domain either
                low = torch.where(may_be_1, low, torch.minimum(low, own))
                low = torch.where(may_be_0, low, torch.maximum(low, own))
                high = torch.where(may_be_0, high, torch.maximum(high, own))
                lower[..., columns] = low
            upper[..., columns] = high
        return lower, upper

    def _bounds(self, x: Tensor) -> Bounds:
        """Box and categories, whenever the latter are projected."""
        lower, upper = self._box(x)
        home, choices = x, []
        for group in self.groups:
            columns = group.index
            part, low, high = x[..., columns], lower[..., columns], upper[..., columns]
            categories, own = self._categories(group, x, low, high), group.own(x)
            inside = ((part >= low) & (part <= high)).all(-1, keepdim=True)
            trapped = ~inside & ~categories.any(-1, keepdim=True)
            if bool(trapped.any()):
                lower, upper = lower.expand_as(x).clone(), upper.expand_as(x).clone()
                lower[..., columns] = torch.where(trapped, torch.minimum(low, part), low)
                upper[..., columns] = torch.where(trapped, torch.maximum(high, part), high)
            decoded = (categories & own).any(-1, keepdim=True)
            if self.category_projection == "end":  # what was no clean category before the search need not become one
                decoded = decoded & ~inside
            clean = group.encode(group.category(x).clamp_min(0), x.dtype)
            if bool((decoded & (clean != part)).any()):
                home = home.clone() if home is x else home
                home[..., columns] = torch.where(decoded, clean, part)
            stay = inside | trapped
            choices += [categories | (own & stay), ~own.any(-1, keepdim=True) & stay]
        return Bounds(lower, upper, home, torch.cat(choices, -1) if choices else x.new_empty(1, 0, dtype=torch.bool))

    def _categories(self, group: OneHotGroup, x: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        """Mask ``(..., n, max(k, 2))`` of the categories that the factuals x may be encoded as.

        Every column must be free to go from its value to the 1 or the 0 of that category: to change category one column
        falls and another rises. The box ``(..., n, k)`` must contain both, and the transitions allow it.
        """
        columns = group.index
        part = x[..., columns]
        up, down = self.may_increase[..., columns].unsqueeze(-2), self.may_decrease[..., columns].unsqueeze(-2)

        def may_be(value: float) -> Tensor:
            inside = (lower <= value) & (upper >= value)
            return inside & ((part >= value - _NOISE) | up) & ((part <= value + _NOISE) | down)

        may_be_0, may_be_1 = may_be(0.0), may_be(1.0)
        if len(group.columns) == 1:
            return torch.cat([may_be_0, may_be_1], -1) & group.reachable(x)
        others_may_be_0 = (~may_be_0).sum(-1, keepdim=True) == (~may_be_0).long()
        return may_be_1 & others_may_be_0 & group.reachable(x)

    def _settle(self, x_cf: Tensor, bounds: Bounds) -> Tensor:
        """Every group as the nearest of its row's possible categories, in place."""
        start = 0
        for group in self.groups:
            end = start + group.num_categories + 1
            x_cf[..., group.index] = group.settle(x_cf, bounds.home, bounds.choices[..., start:end])
            start = end
        return x_cf

    def _round(self, x_cf: Tensor, x: Tensor) -> None:
        """Integers and allowed values, in place."""
        lower, upper = (bound.expand_as(x) for bound in self._box(x))
        up, down = self.may_increase.unsqueeze(-2).expand_as(x), self.may_decrease.unsqueeze(-2).expand_as(x)
        for lattice in self.lattices:
            j = lattice.column
            low = torch.where(down[..., j], lower[..., j], x[..., j])
            high = torch.where(up[..., j], upper[..., j], x[..., j])
            x_cf[..., j] = lattice.snap(x_cf[..., j], x[..., j], low, high)


def _parse_domain(spec: object, num_features: int, names: Sequence[str] | None) -> Domain:
    if spec is None:
        return Domain.unbounded(num_features)
    if isinstance(spec, Domain):
        if spec.lower.shape[-1] != num_features:
            raise ConstraintError(f"The domain has {spec.lower.shape[-1]} features, expected {num_features}.")
        return spec
    lower = torch.full((num_features,), -torch.inf)
    upper = torch.full((num_features,), torch.inf)
    if isinstance(spec, Mapping):
        for key, pair in spec.items():
            j = feature_index(key, num_features, names)
            lower[j], upper[j] = _parse_interval(pair, key)
    else:
        lower[:], upper[:] = _parse_interval(spec, "all features")
    return Domain(lower, upper)


def _parse_interval(pair: object, key: object) -> tuple[float, float]:
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise ConstraintError(f"The domain of {key!r} must be (lower, upper), got {pair!r}.")
    low = -torch.inf if pair[0] is None else float(pair[0])
    high = torch.inf if pair[1] is None else float(pair[1])
    if low > high:
        raise ConstraintError(f"The domain of {key!r} is empty: lower {low:g} > upper {high:g}.")
    return low, high
