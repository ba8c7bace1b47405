"""Networks, and the generative model that REVISE searches in.

Start with ``classifiers.py``. ``stack.py`` treats many models as one, ``ensemble.py`` averages
several, ``inside.py`` turns a regression into a classifier of inside and outside an interval.
``shapes.py`` describes networks as plain numbers for files, ``trace.py`` recognises chains of
layers. A new architecture for data frames also goes into ``tables/estimators/networks.py``.
"""

from counterfactual_training.models.classifiers import (
    CNN,
    Asinh,
    bend,
    cnn,
    linear,
    mlp,
    shape_of,
    squash,
)
from counterfactual_training.models.counternet import (
    CounterNet,
    counternet,
    counternet_explainer,
)
from counterfactual_training.models.embeddings import mlp_ple, mlp_plr, varied
from counterfactual_training.models.ensemble import Ensemble, make_ensemble
from counterfactual_training.models.neurotree import neurotree
from counterfactual_training.models.quantiles import Quantiles, behind_quantiles
from counterfactual_training.models.shapes import (
    NETWORKS,
    describe,
    make_network,
    shape_in_words,
)
from counterfactual_training.models.stack import StackedModel, check_stackable
from counterfactual_training.models.tabm import tabm
from counterfactual_training.models.vae import VAE, fit_vae

__all__ = [
    "CNN",
    "NETWORKS",
    "VAE",
    "Asinh",
    "CounterNet",
    "Ensemble",
    "Quantiles",
    "StackedModel",
    "behind_quantiles",
    "bend",
    "check_stackable",
    "cnn",
    "counternet",
    "counternet_explainer",
    "describe",
    "fit_vae",
    "linear",
    "make_ensemble",
    "make_network",
    "mlp",
    "mlp_ple",
    "mlp_plr",
    "neurotree",
    "shape_in_words",
    "shape_of",
    "squash",
    "tabm",
    "varied",
]
