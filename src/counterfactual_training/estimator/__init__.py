"""The scikit-learn interface: data frames in, decisions and explanations in the user's units out."""

from counterfactual_training.estimator.classifier import CounterfactualClassifier
from counterfactual_training.estimator.explainer import Explainer
from counterfactual_training.estimator.pipeline import explain

__all__ = ["CounterfactualClassifier", "Explainer", "explain"]
