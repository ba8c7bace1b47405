"""Find x′: one loop, and the published methods as recipes for it."""

from counterfactual_training.search.generator import Generator
from counterfactual_training.search.penalties import Distance, Energy, Penalty, SearchState
from counterfactual_training.search.perturbations import fgsm, pgd
from counterfactual_training.search.recipes import (
    GENERATORS,
    ecco,
    generic,
    line,
    make_generator,
    register_generator,
    revise,
)
from counterfactual_training.search.result import Binding, SearchResult, Status
from counterfactual_training.search.search import evaluating, search
from counterfactual_training.search.spaces import FeatureSpace, LatentSpace, Space

__all__ = [
    "GENERATORS",
    "Binding",
    "Distance",
    "Energy",
    "FeatureSpace",
    "Generator",
    "LatentSpace",
    "Penalty",
    "SearchResult",
    "SearchState",
    "Space",
    "Status",
    "ecco",
    "evaluating",
    "fgsm",
    "generic",
    "line",
    "make_generator",
    "pgd",
    "register_generator",
    "revise",
    "search",
]
