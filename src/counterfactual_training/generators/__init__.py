"""Find x′: one loop, and the published methods as recipes for it.

Start with ``search.py``, the loop, then ``live_rows.py``, the rows that are still searching, and
the two solvers: ``fixed_steps.py`` (other step rules in ``steps.py``) and ``line_search.py``,
which needs no step size. ``gradient.py`` is the gradient of Eq. 1; ``chain.py`` computes it
without autograd. ``penalties.py`` and ``data_penalties.py`` hold the penalties, ``recipes.py`` the
generators, ``diversity.py`` several answers per row, ``perturbations.py`` attacks,
``gradient_free.py`` searches without gradients, ``robust.py`` and ``spheres.py`` answers that hold
for other models. ``diagnosis.py`` says what helps a search that
failed.
"""

from counterfactual_training.generators.generator import Generator
from counterfactual_training.generators.penalties import Distance, Energy, Penalty, SearchState
from counterfactual_training.generators.perturbations import fgsm, pgd
from counterfactual_training.generators.recipes import (
    GENERATORS,
    betarce,
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
    roar,
    sparse,
    wachter,
)
from counterfactual_training.generators.result import Binding, SearchResult, Status
from counterfactual_training.generators.search import evaluating, search
from counterfactual_training.generators.spaces import FeatureSpace, LatentSpace, Space
from counterfactual_training.generators.steps import Adam, Greedy, Normalised, Shrink

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
    "betarce",
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
    "roar",
    "search",
    "sparse",
    "wachter",
]
