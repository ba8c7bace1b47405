"""Features with names, units and rules; the paper's data sets; files fetched and checked."""

from counterfactual_training.data.catalog import load_dataset
from counterfactual_training.data.dataset import Dataset
from counterfactual_training.data.encode import Encoder
from counterfactual_training.data.feature import Feature
from counterfactual_training.data.schema import Schema

__all__ = ["Dataset", "Encoder", "Feature", "Schema", "load_dataset"]
