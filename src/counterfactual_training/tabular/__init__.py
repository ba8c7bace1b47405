"""Columns with names, units and rules: schema and invertible encoder."""

from counterfactual_training.tabular.encode import Encoder
from counterfactual_training.tabular.feature import Feature
from counterfactual_training.tabular.schema import Schema

__all__ = ["Encoder", "Feature", "Schema"]
