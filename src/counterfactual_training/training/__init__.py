"""Algorithm 1: search, contrast, protect, update."""

from counterfactual_training.training.callbacks import Callback, Progress, Run
from counterfactual_training.training.config import AS_PRINTED, AS_RUN, Preset, TrainConfig, preset
from counterfactual_training.training.fleet import Fleet
from counterfactual_training.training.fleet_run import FleetRun, Member
from counterfactual_training.training.history import History
from counterfactual_training.training.loop import TrainResult, train
from counterfactual_training.training.objective import OBJECTIVES, Explanations, LossTerms, Objective, make_objective

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
    "Preset",
    "Progress",
    "Run",
    "TrainConfig",
    "TrainResult",
    "make_objective",
    "preset",
    "train",
]
