"""Counterfactual Training: classifiers whose explanations are plausible and actionable.

``import counterfactual_training as ct``, then one of three faces:

* :class:`CounterfactualClassifier` for a DataFrame: ``fit``, ``predict``, ``explain``; :class:`Explainer` for a model
  that was trained elsewhere;
* :func:`train` for your own ``nn.Module``;
* :func:`search` and :class:`Objective` for your own training loop.
"""

from counterfactual_training.constraints import Constraints, Domain, OneHotGroup
from counterfactual_training.datasets import Dataset, load_dataset
from counterfactual_training.datasets.synthetic import loan
from counterfactual_training.errors import (
    ConstraintError,
    CounterfactualTrainingError,
    FileError,
    InputError,
    MissingExtraError,
    ModelError,
)
from counterfactual_training.estimator import CounterfactualClassifier, Explainer, Explanation, explain
from counterfactual_training.evaluation import (
    PAIRED,
    PUBLISHED,
    EvaluationProtocol,
    evaluate,
    fgsm,
    implausibility,
    pgd,
    summarise,
)
from counterfactual_training.gates import Gate, GateConfig, Gated, fit_gate, search_gated
from counterfactual_training.models import cnn, fit_vae, linear, mlp
from counterfactual_training.search import (
    Binding,
    Generator,
    SearchResult,
    SearchState,
    Status,
    ecco,
    generic,
    line,
    make_generator,
    register_generator,
    revise,
    search,
)
from counterfactual_training.tabular import Encoder, Feature, Schema
from counterfactual_training.training import (
    AccuracyBudget,
    AverageWeights,
    BestEpoch,
    Callback,
    ClipGradient,
    CounterfactualBatch,
    EarlyStopping,
    Fleet,
    History,
    Member,
    Objective,
    Run,
    Schedule,
    Setting,
    TrainConfig,
    TrainResult,
    make_objective,
    preset,
    train,
)

__version__ = "0.1.0"

__all__ = [
    "PAIRED",
    "PUBLISHED",
    "AccuracyBudget",
    "AverageWeights",
    "BestEpoch",
    "Binding",
    "Callback",
    "ClipGradient",
    "ConstraintError",
    "Constraints",
    "CounterfactualBatch",
    "CounterfactualClassifier",
    "CounterfactualTrainingError",
    "Dataset",
    "Domain",
    "EarlyStopping",
    "Encoder",
    "EvaluationProtocol",
    "Explainer",
    "Explanation",
    "Feature",
    "FileError",
    "Fleet",
    "Gate",
    "GateConfig",
    "Gated",
    "Generator",
    "History",
    "InputError",
    "Member",
    "MissingExtraError",
    "ModelError",
    "Objective",
    "OneHotGroup",
    "Run",
    "Schedule",
    "Schema",
    "SearchResult",
    "SearchState",
    "Setting",
    "Status",
    "TrainConfig",
    "TrainResult",
    "cnn",
    "ecco",
    "evaluate",
    "explain",
    "fgsm",
    "fit_gate",
    "fit_vae",
    "generic",
    "implausibility",
    "line",
    "linear",
    "load_dataset",
    "loan",
    "make_generator",
    "make_objective",
    "mlp",
    "pgd",
    "preset",
    "register_generator",
    "revise",
    "search",
    "search_gated",
    "summarise",
    "train",
]
