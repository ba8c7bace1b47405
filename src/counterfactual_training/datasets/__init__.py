"""The paper's data sets: catalogue, synthetic sets, tables and images, downloads."""

from counterfactual_training.datasets.catalog import load_dataset
from counterfactual_training.datasets.dataset import Dataset

__all__ = ["Dataset", "load_dataset"]
