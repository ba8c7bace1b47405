"""Algorithm 1: search, contrast, protect, update."""

# Whoever asks for a published method by its name finds it registered.
from counterfactual_training.training import methods, regression

__all__ = ["methods", "regression"]
