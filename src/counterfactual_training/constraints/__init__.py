"""Which features may change, in which direction, how far, and which belong together.

Start with ``constraints.py``: one class with four verbs, ``mask_step``, ``project``, ``snap`` and
``protect``. Line search, anchors and attacks use its ``bounds`` instead. A new kind of constraint
is also reported by ``violations.py``, stacked for fleets by ``stack_constraints.py``, and named in
``generators/diagnosis.py``. Relations between features are in ``relations.py``, which only tables
that have some load. Rules in the user's units are in ``tables/columns``.
"""

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

__all__ = [
    "DIRECTIONS",
    "Bounds",
    "CategoryProjection",
    "Constraints",
    "Direction",
    "Domain",
    "Lattice",
    "OneHotGroup",
    "imply",
    "may_take_code",
    "parse_direction",
    "parse_mutability",
]
