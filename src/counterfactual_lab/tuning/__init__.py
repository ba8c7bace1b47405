"""Better settings, found on validation rows: Optuna proposes, fleets train."""

from counterfactual_lab.tuning.batch import Task, TrainedTrial, train_batch
from counterfactual_lab.tuning.classifier import Trainings, tune_classifier
from counterfactual_lab.tuning.goal import OBJECTIVES, Goal, TrialLimits
from counterfactual_lab.tuning.result import Tuning
from counterfactual_lab.tuning.space import RANGES, TUNABLE, Choices, Range, make_space
from counterfactual_lab.tuning.study import TuningTrial
from counterfactual_lab.tuning.tuner import StudyProgress, TuningPlan, tune

__all__ = [
    "OBJECTIVES",
    "RANGES",
    "TUNABLE",
    "Choices",
    "Goal",
    "Range",
    "StudyProgress",
    "Task",
    "TrainedTrial",
    "Trainings",
    "TrialLimits",
    "Tuning",
    "TuningPlan",
    "TuningTrial",
    "make_space",
    "train_batch",
    "tune",
    "tune_classifier",
]
