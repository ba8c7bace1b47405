"""Counterfactual Training: classifiers whose explanations are plausible and actionable.

``import counterfactual_training as ct``, then one of three faces:

* :class:`CounterfactualClassifier` for a DataFrame: ``fit``, ``predict``, ``explain``;
  :class:`CounterfactualRegressor` for numbers; :class:`Explainer` for a model that was trained
  elsewhere;
* :func:`train` for your own ``nn.Module``;
* :func:`search` and :class:`Objective` for your own training loop.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from counterfactual_training.constraints import Constraints, Domain, OneHotGroup
    from counterfactual_training.core.guarantee import guaranteed_share
    from counterfactual_training.core.losses import class_loss
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
    from counterfactual_training.evaluation.acceptance import (
        Frontier,
        Jury,
        cost_at_equal_acceptance,
    )
    from counterfactual_training.evaluation.evaluate import evaluate, summarise
    from counterfactual_training.evaluation.plausibility import implausibility
    from counterfactual_training.evaluation.plugins import Measured
    from counterfactual_training.evaluation.protocol import (
        PAIRED,
        PUBLISHED,
        EvaluationProtocol,
    )
    from counterfactual_training.gates import Gate, GateConfig, Gated, fit_gate
    from counterfactual_training.generators import (
        Binding,
        Generator,
        SearchResult,
        SearchState,
        Status,
        betarce,
        claproar,
        dice,
        eccco,
        ecco,
        fgsm,
        generic,
        gravitational,
        greedy,
        growing_spheres,
        line,
        make_generator,
        nearest_unlike,
        pgd,
        probe,
        register_generator,
        revise,
        roar,
        search,
        sparse,
        wachter,
    )
    from counterfactual_training.models.classifiers import cnn, linear, mlp
    from counterfactual_training.models.counternet import (
        CounterNet,
        counternet,
        counternet_explainer,
    )
    from counterfactual_training.models.embeddings import mlp_ple, mlp_plr
    from counterfactual_training.models.ensemble import Ensemble
    from counterfactual_training.models.neurotree import neurotree
    from counterfactual_training.models.tabm import tabm
    from counterfactual_training.models.vae import fit_vae
    from counterfactual_training.tables.advice import Explanation
    from counterfactual_training.tables.advice.testimony import Lasting
    from counterfactual_training.tables.audits import Audit, AuditProtocol
    from counterfactual_training.tables.audits.audit import audit
    from counterfactual_training.tables.columns.encode import Encoder
    from counterfactual_training.tables.columns.feature import Feature
    from counterfactual_training.tables.columns.schema import Schema
    from counterfactual_training.tables.estimators.classifier import CounterfactualClassifier
    from counterfactual_training.tables.estimators.explainer import Explainer
    from counterfactual_training.tables.estimators.pipeline import explain
    from counterfactual_training.tables.estimators.regressor import CounterfactualRegressor
    from counterfactual_training.tables.export import export_onnx
    from counterfactual_training.training import methods
    from counterfactual_training.training.budget import AccuracyBudget
    from counterfactual_training.training.callbacks import (
        AverageWeights,
        BestEpoch,
        Callback,
        ClipGradient,
        EarlyStopping,
        Schedule,
    )
    from counterfactual_training.training.fleet import Fleet, Member
    from counterfactual_training.training.method import Method
    from counterfactual_training.training.objective import (
        CounterfactualBatch,
        LossTerms,
        Objective,
    )
    from counterfactual_training.training.registry import make_method, register_method
    from counterfactual_training.training.round import Round
    from counterfactual_training.training.run import History, Run, TrainResult
    from counterfactual_training.training.train import train
    from counterfactual_training.training.train_config import TrainConfig

__version__ = "0.1.0"

__all__ = [
    "PAIRED",
    "PUBLISHED",
    "AccuracyBudget",
    "Audit",
    "AuditProtocol",
    "AverageWeights",
    "BestEpoch",
    "Binding",
    "Callback",
    "ClipGradient",
    "ConstraintError",
    "Constraints",
    "CounterNet",
    "CounterfactualBatch",
    "CounterfactualClassifier",
    "CounterfactualRegressor",
    "CounterfactualTrainingError",
    "Dataset",
    "Domain",
    "EarlyStopping",
    "Encoder",
    "Ensemble",
    "EvaluationProtocol",
    "Explainer",
    "Explanation",
    "Feature",
    "FileError",
    "Fleet",
    "Frontier",
    "Gate",
    "GateConfig",
    "Gated",
    "Generator",
    "History",
    "InputError",
    "Jury",
    "Lasting",
    "LossTerms",
    "Measured",
    "Member",
    "Method",
    "MissingExtraError",
    "ModelError",
    "Objective",
    "OneHotGroup",
    "Round",
    "Run",
    "Schedule",
    "Schema",
    "SearchResult",
    "SearchState",
    "Status",
    "TrainConfig",
    "TrainResult",
    "audit",
    "betarce",
    "claproar",
    "class_loss",
    "cnn",
    "cost_at_equal_acceptance",
    "counternet",
    "counternet_explainer",
    "dice",
    "eccco",
    "ecco",
    "evaluate",
    "explain",
    "export_onnx",
    "fgsm",
    "fit_gate",
    "fit_vae",
    "generic",
    "gravitational",
    "greedy",
    "growing_spheres",
    "guaranteed_share",
    "implausibility",
    "line",
    "linear",
    "load_dataset",
    "loan",
    "make_generator",
    "make_method",
    "methods",
    "mlp",
    "mlp_ple",
    "mlp_plr",
    "nearest_unlike",
    "neurotree",
    "pgd",
    "probe",
    "register_generator",
    "register_method",
    "revise",
    "roar",
    "search",
    "sparse",
    "summarise",
    "tabm",
    "train",
    "wachter",
]

# Names come from their modules when they are first asked for: torch and scikit-learn take seconds
# to import.
_MODULES = {
    "constraints": "Constraints Domain OneHotGroup",
    "core.guarantee": "guaranteed_share",
    "core.losses": "class_loss",
    "datasets": "Dataset load_dataset",
    "datasets.synthetic": "loan",
    "errors": (
        "ConstraintError CounterfactualTrainingError FileError InputError MissingExtraError "
        "ModelError"
    ),
    "evaluation.acceptance": "Frontier Jury cost_at_equal_acceptance",
    "evaluation.evaluate": "evaluate summarise",
    "evaluation.plausibility": "implausibility",
    "evaluation.plugins": "Measured",
    "evaluation.protocol": "EvaluationProtocol PAIRED PUBLISHED",
    "gates": "Gate GateConfig Gated fit_gate",
    "generators": (
        "Binding Generator SearchResult SearchState Status betarce claproar dice eccco ecco "
        "fgsm generic gravitational greedy growing_spheres line make_generator nearest_unlike "
        "pgd probe register_generator revise roar search sparse wachter"
    ),
    "models.classifiers": "cnn linear mlp",
    "models.counternet": "CounterNet counternet counternet_explainer",
    "models.embeddings": "mlp_ple mlp_plr",
    "models.ensemble": "Ensemble",
    "models.neurotree": "neurotree",
    "models.tabm": "tabm",
    "models.vae": "fit_vae",
    "tables.advice": "Explanation",
    "tables.advice.testimony": "Lasting",
    "tables.audits": "Audit AuditProtocol",
    "tables.audits.audit": "audit",
    "tables.columns.encode": "Encoder",
    "tables.columns.feature": "Feature",
    "tables.columns.schema": "Schema",
    "tables.estimators.classifier": "CounterfactualClassifier",
    "tables.estimators.explainer": "Explainer",
    "tables.estimators.pipeline": "explain",
    "tables.estimators.regressor": "CounterfactualRegressor",
    "tables.export": "export_onnx",
    "training": "methods",
    "training.budget": "AccuracyBudget",
    "training.callbacks": (
        "AverageWeights BestEpoch Callback ClipGradient EarlyStopping Schedule"
    ),
    "training.fleet": "Fleet Member",
    "training.method": "Method",
    "training.objective": "CounterfactualBatch LossTerms Objective",
    "training.registry": "make_method register_method",
    "training.round": "Round",
    "training.run": "History Run TrainResult",
    "training.train": "train",
    "training.train_config": "TrainConfig",
}
_HOME = {name: module for module, names in _MODULES.items() for name in names.split()}

if not TYPE_CHECKING:  # a type checker would take every name for defined

    def __getattr__(name: str) -> Any:
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
