"""The scikit-learn interface: data frames in, decisions and explanations in the user's units out."""

from counterfactual_training.estimator.answer import explain_rows
from counterfactual_training.estimator.classifier import CounterfactualClassifier
from counterfactual_training.estimator.explanation import Explanation
from counterfactual_training.estimator.find import Finder

__all__ = ["CounterfactualClassifier", "Explanation", "Finder", "explain_rows"]
