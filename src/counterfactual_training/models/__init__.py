"""Classifiers and the generative model that REVISE searches in."""

from counterfactual_training.models.classifiers import CNN, bend, cnn, linear, mlp, shape_of
from counterfactual_training.models.stack import StackedModel, check_stackable
from counterfactual_training.models.vae import VAE, fit_vae

__all__ = ["CNN", "VAE", "StackedModel", "bend", "check_stackable", "cnn", "fit_vae", "linear", "mlp", "shape_of"]
