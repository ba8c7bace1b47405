"""A user's table as a data set, for experiments that train networks on encoded rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import torch

from counterfactual_training.datasets.dataset import Dataset, PaperSettings
from counterfactual_training.errors import InputError
from counterfactual_training.tables.columns.encode import Encoder, Missing
from counterfactual_training.tables.columns.schema import Schema

# Batches are a hundredth of the rows, between the paper's sizes for small and for large data.
_SMALLEST_BATCH = 30
_LARGEST_BATCH = 1000
_NUM_VALIDATION = 1000  # at most; a fifth of small tables


def frame_dataset(
    name: str,
    train: pd.DataFrame,
    labels: Any,
    test: pd.DataFrame,
    test_labels: Any,
    schema: Schema | None = None,
    missing: Missing = "error",
) -> Dataset:
    """Rows and their classes, standardised and one-hot encoded, with the schema's rules as
    constraints.

    Args:
        name: for tables and files.
        train, test: frames with the same columns; labels, test_labels: one class per row.
        schema: of the columns; by default inferred from the training rows.
        missing: what to do about blank cells, see :class:`Encoder`.
    """
    classes = np.unique(np.asarray(labels))
    unseen = sorted(set(np.asarray(test_labels).tolist()) - set(classes.tolist()))
    if len(classes) < 2 or unseen:
        classes_text = f"{len(classes)} class(es) in the training rows" + (
            f", and {unseen} only among others" * bool(unseen)
        )
        raise InputError(
            f"A data set needs two classes or more, all among the training rows; {name!r} has "
            f"{classes_text}."
        )
    encoder = Encoder(
        schema if schema is not None else Schema.infer(train), missing=missing
    ).fit(train)
    x_train, x_test = (
        torch.from_numpy(encoder.transform(part).astype(np.float32)) for part in (train, test)
    )
    y_train, y_test = (
        torch.from_numpy(np.searchsorted(classes, np.asarray(part)))
        for part in (labels, test_labels)
    )
    batch = min(max(len(y_train) // 100, _SMALLEST_BATCH), _LARGEST_BATCH)
    # Between the extremes of the training rows where the schema states no domain.
    constraints = encoder.constraints(num_std=0.0)
    return Dataset(
        name=name,
        title=name,
        variant="default",
        x_train=x_train,
        y_train=y_train,
        x_test=x_test,
        y_test=y_test,
        class_names=tuple(str(label) for label in classes),
        feature_names=tuple(encoder.get_feature_names_out()),
        features=encoder.schema_.features,
        encoder=encoder,
        constraints=constraints,
        training_constraints=constraints.relaxed(),
        protected=(),
        settings=PaperSettings(batch, 0.5, 0.25, 5000, min(_NUM_VALIDATION, len(y_train) // 5)),
        _frames=(train, test),
    )
