"""Which features may change, in which direction, how far, and which belong together."""

from counterfactual_training.constraints.bounds import Bounds
from counterfactual_training.constraints.constraints import CategoryProjection, Constraints
from counterfactual_training.constraints.discrete import Lattice, OneHotGroup
from counterfactual_training.constraints.domain import Domain
from counterfactual_training.constraints.imply import imply, may_take_code
from counterfactual_training.constraints.mutability import (
    DIRECTIONS,
    Direction,
    parse_direction,
    parse_mutability,
)
from counterfactual_training.constraints.relations import Follower, Implication, Relations

__all__ = [
    "DIRECTIONS",
    "Bounds",
    "CategoryProjection",
    "Constraints",
    "Direction",
    "Domain",
    "Follower",
    "Implication",
    "Lattice",
    "OneHotGroup",
    "Relations",
    "imply",
    "may_take_code",
    "parse_direction",
    "parse_mutability",
]
