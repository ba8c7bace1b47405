"""In which direction a feature may move, in every spelling that users know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Literal, cast, get_args

from counterfactual_training.errors import ConstraintError, unknown

Direction = Literal["both", "none", "increase", "decrease"]
DIRECTIONS: tuple[Direction, ...] = get_args(Direction)

# As in scikit-learn's monotonic_cst, XGBoost and LightGBM: +1 up, -1 down, 0 no constraint.
_SIGNS: dict[int, Direction] = {1: "increase", -1: "decrease", 0: "both"}

Mutability = Mapping[str, object] | Mapping[int, object] | Sequence[object] | None


def direction_from(increase: bool, decrease: bool) -> Direction:
    """The word for a feature that may move up, down, both ways or not at all."""
    if increase:
        if decrease:
            return "both"
        return "increase"
    if decrease:
        return "decrease"
    return "none"


def parse_direction(value: object) -> Direction:
    """``"both" | "none" | "increase" | "decrease"``, or −1, 0, +1 as in scikit-learn's
    ``monotonic_cst``.
    """
    if isinstance(value, str) and value in DIRECTIONS:
        return value
    # True would pass as +1, though a user who writes it hardly means "increase".
    if isinstance(value, Real) and not isinstance(value, bool) and value in _SIGNS:
        return _SIGNS[int(float(value))]
    raise ConstraintError(unknown("direction", value, [*DIRECTIONS, -1, 0, 1]))


def parse_mutability(
    spec: Mutability, num_features: int, names: Sequence[str] | None = None
) -> tuple[Direction, ...]:
    """One direction per feature.

    Args:
        spec: ``None`` (all features may move), one entry per feature, or a dict from column name or
            index to a direction; features that the dict does not name may move both ways.
        num_features: d.
        names: column names, needed for dicts keyed by name.
    """
    if spec is None:
        return tuple(["both"] * num_features)
    # A word is a sequence, too: the error below would count its letters.
    if isinstance(spec, str):
        raise ConstraintError(
            f"mutability={spec!r} is one word for {num_features} features; pass a dict such as "
            f"{{'age': {spec!r}}} "
            "or one entry per feature."
        )
    if isinstance(spec, Mapping):
        directions: list[Direction] = ["both"] * num_features
        for key, value in spec.items():
            directions[feature_index(key, num_features, names)] = parse_direction(value)
        return tuple(directions)
    entries = list(spec)
    if len(entries) != num_features:
        raise ConstraintError(
            f"mutability has {len(entries)} entries for {num_features} features; pass one per "
            "feature, or a dict."
        )
    return tuple(parse_direction(value) for value in entries)


def feature_index(key: object, num_features: int, names: Sequence[str] | None) -> int:
    """Position of a feature, given its name or index (negative indices count from the end)."""
    if names is not None and key in names:
        return list(names).index(cast(str, key))
    if isinstance(key, int) and not isinstance(key, bool):
        if -num_features <= key < num_features:
            return key % num_features
        raise ConstraintError(f"Feature index {key} is outside 0..{num_features - 1}.")
    raise ConstraintError(
        unknown("column", key, names if names is not None else range(num_features))
    )
