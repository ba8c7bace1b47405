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
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from counterfactual_training.advice import Explanation
    from counterfactual_training.audits import Audit, audit
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
    from counterfactual_training.estimator import (
        CounterfactualClassifier,
        CounterfactualRegressor,
        Explainer,
        explain,
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
    from counterfactual_training.export import export_onnx
    from counterfactual_training.gates import Gate, GateConfig, Gated, fit_gate, search_gated
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
    from counterfactual_training.search import (
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
        LossTerms,
        Member,
        Objective,
        Regime,
        Round,
        Run,
        Schedule,
        Setting,
        TrainConfig,
        TrainResult,
        make_objective,
        make_regime,
        preset,
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
    "MissingExtraError",
    "ModelError",
    "Objective",
    "OneHotGroup",
    "Regime",
    "Round",
    "Run",
    "Schedule",
    "Schema",
    "SearchResult",
    "SearchState",
    "Setting",
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
    "make_objective",
    "make_regime",
    "mlp",
    "mlp_ple",
    "mlp_plr",
    "nearest_unlike",
    "neurotree",
    "pgd",
    "preset",
    "probe",
    "register_generator",
    "revise",
    "search",
    "search_gated",
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
    "advice": "Explanation",
    "audits": "Audit audit",
    "estimator": "CounterfactualClassifier CounterfactualRegressor Explainer explain",
    "evaluation": "PAIRED PUBLISHED EvaluationProtocol Measured evaluate implausibility summarise",
    "export": "export_onnx",
    "gates": "Gate GateConfig Gated fit_gate search_gated",
    "models": (
        "CounterNet Ensemble cnn counternet counternet_explainer fit_vae linear mlp mlp_ple "
        "mlp_plr neurotree tabm"
    ),
    "search": (
        "Binding Generator SearchResult SearchState Status claproar dice eccco ecco fgsm generic "
        "gravitational "
        "greedy growing_spheres line make_generator nearest_unlike pgd probe register_generator "
        "revise search "
        "sparse wachter"
    ),
    "tabular": "Encoder Feature Schema",
    "training": (
        "AccuracyBudget AverageWeights BestEpoch Callback ClipGradient CounterfactualBatch "
        "EarlyStopping "
        "Fleet History LossTerms Member Objective Regime Round Run Schedule Setting TrainConfig "
        "TrainResult "
        "make_objective make_regime preset train"
    ),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names.split()}


class _Package(ModuleType):
    """A package whose functions keep their names: the folder ``search`` hides no function."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package

if not TYPE_CHECKING:  # a type checker would take every name for defined

    def __getattr__(name: str) -> Any:
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
