"""Algorithm 1: search, contrast, protect, update."""

from counterfactual_training.training.callbacks import Callback, Progress, Run
from counterfactual_training.training.config import TrainConfig
from counterfactual_training.training.fleet import Fleet
from counterfactual_training.training.fleet_run import FleetRun, Member
from counterfactual_training.training.history import History
from counterfactual_training.training.loop import TrainResult, train
from counterfactual_training.training.objective import OBJECTIVES, Explanations, LossTerms, Objective, make_objective
from counterfactual_training.training.setting import AS_PRINTED, AS_RUN, Setting, preset

__all__ = [
    "AS_PRINTED",
    "AS_RUN",
    "OBJECTIVES",
    "Callback",
    "Explanations",
    "Fleet",
    "FleetRun",
    "History",
    "LossTerms",
    "Member",
    "Objective",
    "Progress",
    "Run",
    "Setting",
    "TrainConfig",
    "TrainResult",
    "make_objective",
    "preset",
    "train",
]
