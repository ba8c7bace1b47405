"""A network of a named data set with the scikit-learn face, so that it explains."""

from __future__ import annotations

from torch import nn

from counterfactual_lab.networks import encoder_of
from counterfactual_training.datasets.dataset import Dataset
from counterfactual_training.tables.columns.encode import Encoder
from counterfactual_training.tables.estimators.classifier import CounterfactualClassifier


def as_classifier(
    model: nn.Module, data: Dataset, protected: tuple[str, ...] = ()
) -> CounterfactualClassifier:
    """A model of a data set with the scikit-learn face, so that it explains in the units of
    ``data.frame_test``.

    Args:
        protected: columns that may not change, in addition to those of the data set's schema.
    """
    encoder = encoder_of(data)
    if protected:
        schema = encoder.schema_.override(mutability=dict.fromkeys(protected, "none"))
        encoder = Encoder.from_dict({**encoder.to_dict(), "schema": schema.to_dict()})
    return CounterfactualClassifier.from_trained(model, encoder, data.class_names)
