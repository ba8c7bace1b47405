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
    from counterfactual_training.evaluation import (
        PAIRED,
        PUBLISHED,
        EvaluationProtocol,
        Measured,
        evaluate,
        implausibility,
        summarise,
    )
    from counterfactual_training.gates import Gate, GateConfig, Gated, fit_gate
    from counterfactual_training.generators import (
        Binding,
        Generator,
        SearchResult,
        SearchState,
        Status,
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
        search,
        sparse,
        wachter,
    )
    from counterfactual_training.models import (
        CounterNet,
        Ensemble,
        cnn,
        counternet,
        counternet_explainer,
        fit_vae,
        linear,
        mlp,
        mlp_ple,
        mlp_plr,
        neurotree,
        tabm,
    )
    from counterfactual_training.tables.advice import Explanation
    from counterfactual_training.tables.audits import Audit, audit
    from counterfactual_training.tables.columns import Encoder, Feature, Schema
    from counterfactual_training.tables.estimators import (
        CounterfactualClassifier,
        CounterfactualRegressor,
        Explainer,
        explain,
    )
    from counterfactual_training.tables.export import export_onnx
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
        LossTerms,
        Member,
        Method,
        Objective,
        Round,
        Run,
        Schedule,
        TrainConfig,
        TrainResult,
        make_method,
        methods,
        register_method,
        train,
    )

__version__ = "0.1.0"

__all__ = [
    "PAIRED",
    "PUBLISHED",
    "AccuracyBudget",
    "Audit",
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
    "Gate",
    "GateConfig",
    "Gated",
    "Generator",
    "History",
    "InputError",
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
    "claproar",
    "class_loss",
    "cnn",
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
    "core.losses": "class_loss",
    "datasets": "Dataset load_dataset",
    "datasets.synthetic": "loan",
    "errors": "ConstraintError CounterfactualTrainingError FileError InputError MissingExtraError "
    "ModelError",
    "tables.advice": "Explanation",
    "tables.audits": "Audit audit",
    "tables.estimators": "CounterfactualClassifier CounterfactualRegressor Explainer explain",
    "evaluation": "PAIRED PUBLISHED EvaluationProtocol Measured evaluate implausibility summarise",
    "tables.export": "export_onnx",
    "gates": "Gate GateConfig Gated fit_gate",
    "models": (
        "CounterNet Ensemble cnn counternet counternet_explainer fit_vae linear mlp mlp_ple "
        "mlp_plr neurotree tabm"
    ),
    "generators": (
        "Binding Generator SearchResult SearchState Status claproar dice eccco ecco fgsm generic "
        "gravitational "
        "greedy growing_spheres line make_generator nearest_unlike pgd probe register_generator "
        "revise search "
        "sparse wachter"
    ),
    "tables.columns": "Encoder Feature Schema",
    "training": (
        "AccuracyBudget AverageWeights BestEpoch Callback ClipGradient CounterfactualBatch "
        "EarlyStopping "
        "Fleet History LossTerms Member Method Objective Round Run Schedule TrainConfig "
        "TrainResult make_method methods register_method train"
    ),
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
