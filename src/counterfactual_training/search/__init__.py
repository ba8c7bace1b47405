"""Find x′: one loop, and the published methods as recipes for it."""

from counterfactual_training.search.generator import Generator
from counterfactual_training.search.penalties import Distance, Energy, Penalty, SearchState
from counterfactual_training.search.perturbations import fgsm, pgd
from counterfactual_training.search.recipes import (
    GENERATORS,
    claproar,
    dice,
    eccco,
    ecco,
    generic,
    gravitational,
    greedy,
    growing_spheres,
    line,
    make_generator,
    nearest_unlike,
    probe,
    register_generator,
    revise,
    sparse,
    wachter,
)
from counterfactual_training.search.result import Binding, SearchResult, Status
from counterfactual_training.search.search import evaluating, search
from counterfactual_training.search.spaces import FeatureSpace, LatentSpace, Space
from counterfactual_training.search.steps import Adam, Greedy, Normalised, Shrink

__all__ = [
    "GENERATORS",
    "Adam",
    "Binding",
    "Distance",
    "Energy",
    "FeatureSpace",
    "Generator",
    "Greedy",
    "LatentSpace",
    "Normalised",
    "Penalty",
    "SearchResult",
    "SearchState",
    "Shrink",
    "Space",
    "Status",
    "claproar",
    "dice",
    "eccco",
    "ecco",
    "evaluating",
    "fgsm",
    "generic",
    "gravitational",
    "greedy",
    "growing_spheres",
    "line",
    "make_generator",
    "nearest_unlike",
    "pgd",
    "probe",
    "register_generator",
    "revise",
    "search",
    "sparse",
    "wachter",
]
