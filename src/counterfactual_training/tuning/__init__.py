"""Better settings, found on validation rows: Optuna asks, fleets answer."""

from counterfactual_training.training import Setting
from counterfactual_training.tuning.batch import Task, Trained, train_batch
from counterfactual_training.tuning.goal import OBJECTIVES, Goal, Limits
from counterfactual_training.tuning.measures import METRICS, Measure
from counterfactual_training.tuning.result import Tuning
from counterfactual_training.tuning.space import RANGES, TUNABLE, Choices, Range, make_space
from counterfactual_training.tuning.study import Plan, Progress, tune
from counterfactual_training.tuning.trials import Trial

__all__ = [
    "METRICS",
    "OBJECTIVES",
    "RANGES",
    "TUNABLE",
    "Choices",
    "Goal",
    "Limits",
    "Measure",
    "Plan",
    "Progress",
    "Range",
    "Setting",
    "Task",
    "Trained",
    "Trial",
    "Tuning",
    "make_space",
    "train_batch",
    "tune",
]
