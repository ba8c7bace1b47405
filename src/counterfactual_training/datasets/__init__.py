"""The paper's data sets: catalogue, synthetic ones, files fetched and checked."""

from counterfactual_training.datasets.catalog import load_dataset
from counterfactual_training.datasets.dataset import Dataset

__all__ = ["Dataset", "load_dataset"]
