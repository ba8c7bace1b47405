"""Which features may change, in which direction, how far, and which belong together."""

from counterfactual_training.constraints.bounds import Bounds
from counterfactual_training.constraints.constraints import CategoryProjection, Constraints
from counterfactual_training.constraints.discrete import Lattice, OneHotGroup
from counterfactual_training.constraints.domain import Domain
from counterfactual_training.constraints.mutability import DIRECTIONS, Direction, parse_direction, parse_mutability

__all__ = [
    "DIRECTIONS",
    "Bounds",
    "CategoryProjection",
    "Constraints",
    "Direction",
    "Domain",
    "Lattice",
    "OneHotGroup",
    "parse_direction",
    "parse_mutability",
]
