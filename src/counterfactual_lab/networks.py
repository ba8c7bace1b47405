"""The paper's networks of named data sets, made and trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import nn

from counterfactual_training.datasets.dataset import Dataset
from counterfactual_training.models.classifiers import mlp
from counterfactual_training.torch_modes import single_precision
from counterfactual_training.training.method import Method

if TYPE_CHECKING:
    from counterfactual_training.tables.columns.encode import Encoder

if TYPE_CHECKING:
    from counterfactual_training.training.run import History

M = TypeVar("M", bound=nn.Module)


def with_weights(seed: int, make: Callable[[], M]) -> M:
    """A model whose float32 weights are drawn by the seed; torch's global random state stays as it
    is.
    """
    with torch.random.fork_rng(devices=[]), single_precision():
        torch.manual_seed(seed)
        return make()


def untrained(data: Dataset, seed: int, hidden: Sequence[int] = (32,)) -> nn.Module:
    """A classifier of the data set, by default the paper's, with weights drawn by the seed."""
    return with_weights(seed, lambda: mlp(data.num_features, data.num_classes, hidden))


def fit_model(
    model: nn.Module,
    data: Dataset,
    method: Method,
    progress: bool | None = None,
    checkpoint: str | Path | None = None,
) -> History:
    """Train the model in place, as one network, on the rows that validation does not hold out."""
    from counterfactual_training.training.registry import of_one_network
    from counterfactual_training.training.train import train

    rows, held_out = data.validation_split(torch.Generator().manual_seed(method.training.seed))
    return train(
        model,
        data.x_train[rows],
        data.y_train[rows],
        of_one_network(method),
        validation=(data.x_train[held_out], data.y_train[held_out]) if len(held_out) else None,
        progress=progress,
        checkpoint=checkpoint,
    ).history


def encoder_of(data: Dataset) -> Encoder:
    """The data set's encoder; where features already are the model's inputs, one that changes
    nothing.
    """
    if data.encoder is not None:
        return data.encoder
    from counterfactual_training.tables.columns.encode import Encoder

    return Encoder(data.schema, scale=False).fit(data.frame_train)
