"""The scikit-learn face: a DataFrame in, decisions and explanations in the user's own words out."""

from counterfactual_training.estimator.classifier import CounterfactualClassifier
from counterfactual_training.estimator.explaining import explain_rows
from counterfactual_training.estimator.explanation import Explanation
from counterfactual_training.estimator.finding import Finder

__all__ = ["CounterfactualClassifier", "Explanation", "Finder", "explain_rows"]
