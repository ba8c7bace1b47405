"""Algorithm 1: search, contrast, protect, update."""

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
from counterfactual_training.training.objective import (
    OBJECTIVES,
    CounterfactualBatch,
    LossTerms,
    Objective,
    make_objective,
)
from counterfactual_training.training.regime import Regime, Round
from counterfactual_training.training.regimes import REGIMES, make_regime
from counterfactual_training.training.run import History, Run, TrainResult
from counterfactual_training.training.setting import (
    AS_PRINTED,
    AS_RUN,
    CHEAP_RECOURSE,
    Setting,
    TrainConfig,
    preset,
)
from counterfactual_training.training.train import train

__all__ = [
    "AS_PRINTED",
    "AS_RUN",
    "CHEAP_RECOURSE",
    "OBJECTIVES",
    "REGIMES",
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
    "Objective",
    "Regime",
    "Round",
    "Run",
    "Schedule",
    "Setting",
    "TrainConfig",
    "TrainResult",
    "make_objective",
    "make_regime",
    "preset",
    "train",
]
