"""The scikit-learn interface: data frames in, decisions and explanations in the user's units
out.
"""

from counterfactual_training.tables.estimators.classifier import CounterfactualClassifier
from counterfactual_training.tables.estimators.explainer import Explainer
from counterfactual_training.tables.estimators.pipeline import explain
from counterfactual_training.tables.estimators.regressor import CounterfactualRegressor

__all__ = ["CounterfactualClassifier", "CounterfactualRegressor", "Explainer", "explain"]
