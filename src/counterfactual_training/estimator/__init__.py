"""The scikit-learn interface: data frames in, decisions and explanations in the user's units
out.
"""

from counterfactual_training.estimator.classifier import CounterfactualClassifier
from counterfactual_training.estimator.explainer import Explainer
from counterfactual_training.estimator.pipeline import explain
from counterfactual_training.estimator.regressor import CounterfactualRegressor

__all__ = ["CounterfactualClassifier", "CounterfactualRegressor", "Explainer", "explain"]
