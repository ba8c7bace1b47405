"""Algorithm 1: search, contrast, protect, update.

Start with ``algorithm.py``, which is Algorithm 1. ``epoch.py`` holds the random streams, batches,
attempts and records of an epoch, ``learner.py`` the gradients and the optimizer, ``run.py``
members, callbacks and checkpoints. ``method.py`` is the class :class:`Method`; ``methods.py`` and
``regression.py`` are the published methods, each of which sees one ``round.py``; ``registry.py``
finds them by name. ``train.py`` trains one model, ``fleet.py`` many. ``distributed.py`` wraps run,
learner and checkpoint for several processes; only ``train.py`` knows of it.
"""

from counterfactual_training.training import methods, regression
from counterfactual_training.training.budget import AccuracyBudget
from counterfactual_training.training.callbacks import (
    AverageWeights,
    BestEpoch,
    Callback,
    ClipGradient,
    EarlyStopping,
    EpochProgress,
    Schedule,
)
from counterfactual_training.training.fleet import Fleet, Member
from counterfactual_training.training.method import Method
from counterfactual_training.training.objective import (
    CounterfactualBatch,
    LossTerms,
    Objective,
)
from counterfactual_training.training.registry import (
    make_method,
    method_names,
    register_method,
)
from counterfactual_training.training.round import Round
from counterfactual_training.training.run import History, Run, TrainResult
from counterfactual_training.training.train import train
from counterfactual_training.training.train_config import TrainConfig

__all__ = [
    "AccuracyBudget",
    "AverageWeights",
    "BestEpoch",
    "Callback",
    "ClipGradient",
    "CounterfactualBatch",
    "EarlyStopping",
    "EpochProgress",
    "Fleet",
    "History",
    "LossTerms",
    "Member",
    "Method",
    "Objective",
    "Round",
    "Run",
    "Schedule",
    "TrainConfig",
    "TrainResult",
    "make_method",
    "method_names",
    "methods",
    "register_method",
    "regression",
    "train",
]
