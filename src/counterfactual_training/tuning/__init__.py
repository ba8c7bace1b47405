"""Better settings, found on validation rows: Optuna proposes, fleets train."""

from counterfactual_training.tuning.batch import Task, TrainedTrial, train_batch
from counterfactual_training.tuning.goal import MEASURED, OBJECTIVES, Goal, Limits, Measure
from counterfactual_training.tuning.result import Tuning
from counterfactual_training.tuning.space import RANGES, TUNABLE, Choices, Range, make_space
from counterfactual_training.tuning.study import TuningTrial
from counterfactual_training.tuning.tuner import StudyProgress, TuningPlan, tune

__all__ = [
    "MEASURED",
    "OBJECTIVES",
    "RANGES",
    "TUNABLE",
    "Choices",
    "Goal",
    "Limits",
    "Measure",
    "Range",
    "StudyProgress",
    "Task",
    "TrainedTrial",
    "Tuning",
    "TuningPlan",
    "TuningTrial",
    "make_space",
    "train_batch",
    "tune",
]
