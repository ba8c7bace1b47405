"""Evaluation of any torch classifier, with our search or any explainer.

Start with ``evaluate.py`` and ``protocol.py``. ``metrics.py`` describes every metric;
``plugins.py`` takes a user's metrics and explainers. ``stepfree.py`` and ``judges.py`` measure what
no step size affects. Nothing here imports ``training``: every model is measured by the same code.
"""

from counterfactual_training.evaluation.attacks import robust_accuracy
from counterfactual_training.evaluation.attribution import integrated_gradients
from counterfactual_training.evaluation.counterfactuals import (
    counterfactual_table,
    counterfactual_tables,
)
from counterfactual_training.evaluation.evaluate import evaluate, summarise
from counterfactual_training.evaluation.judges import Judge
from counterfactual_training.evaluation.plausibility import implausibility, implausibility_mmd
from counterfactual_training.evaluation.plugins import Measured
from counterfactual_training.evaluation.protocol import PAIRED, PUBLISHED, EvaluationProtocol
from counterfactual_training.evaluation.stepfree import (
    STEP_FREE,
    Rescaled,
    floor_table,
    scale_of,
    stepfree_table,
    summarise_stepfree,
)

__all__ = [
    "PAIRED",
    "PUBLISHED",
    "STEP_FREE",
    "EvaluationProtocol",
    "Judge",
    "Measured",
    "Rescaled",
    "counterfactual_table",
    "counterfactual_tables",
    "evaluate",
    "floor_table",
    "implausibility",
    "implausibility_mmd",
    "integrated_gradients",
    "robust_accuracy",
    "scale_of",
    "stepfree_table",
    "summarise",
    "summarise_stepfree",
]
