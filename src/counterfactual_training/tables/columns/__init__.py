"""Columns with names, units and rules: schema and invertible encoder."""

from counterfactual_training.tables.columns.encode import Encoder
from counterfactual_training.tables.columns.feature import Feature
from counterfactual_training.tables.columns.schema import Schema

__all__ = ["Encoder", "Feature", "Schema"]
