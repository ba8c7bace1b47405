"""From a frame and labels to all that training needs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from counterfactual_training.errors import InputError, from_outside, unknown
from counterfactual_training.estimator import settings
from counterfactual_training.estimator.finding import Finder
from counterfactual_training.estimator.inputs import resolve_schema
from counterfactual_training.gates import Gate, few_rows, gate_of
from counterfactual_training.models import bend
from counterfactual_training.tabular.encode import Encoder, Scale
from counterfactual_training.training import Callback, EarlyStopping, History, Setting, train

# Rows to stop early by, at least; training with fewer held out runs all its epochs, on all rows.
FEWEST = 10


@dataclass(frozen=True, eq=False)
class Prepared:
    """A classifier about to be trained.

    Attributes:
        finder: with the untrained model, the fitted encoder and the rules.
        classes: labels, in the order of the model's outputs.
        x, y: ``(n, d)`` rows in model space and ``(n,)`` class indices.
        setting: how to train; its seed is the one of the model's weights.
        make_model: another untrained model, its weights drawn by a seed.
        held_out: row numbers ``(v,)`` of the rows kept from training to stop by; none without early stopping.
        class_weight: what rows of each class index count, or ``"balanced"``.
        patience: epochs without a lower loss on these after which training stops, if it stops early at all.
        gate: the kind to fit after training, or ``"none"``.
    """

    finder: Finder
    classes: np.ndarray
    x: Tensor
    y: Tensor
    setting: Setting
    make_model: Callable[[int], nn.Module]
    held_out: Tensor
    class_weight: dict[int, float] | str | None
    patience: int | None
    gate: str

    def listeners(self) -> list[Callback]:
        """That stop a training early, and end with its best epoch."""
        return [] if self.patience is None else [EarlyStopping(self.patience, metric="validation_loss", mode="min")]

    def train(self, progress: bool | None) -> History:
        """Train the model, in place."""
        x, y, held = self.x, self.y, self.held_out
        if not len(held):
            return train(
                self.finder.model, x, y, setting=self.setting, class_weight=self.class_weight, progress=progress
            ).history
        kept = torch.ones(len(y), dtype=torch.bool, device=y.device).index_fill(0, held, False)
        return train(
            self.finder.model, x[kept], y[kept], setting=self.setting, validation=(x[held], y[held]),
            class_weight=self.class_weight, callbacks=self.listeners(), progress=progress,
        ).history  # fmt: skip

    def fit_gate(self, model: nn.Module) -> Gate | None:
        """The gate of the trained model, if it gets one."""
        if self.gate == "none":
            return None
        seed, rules = self.setting.config.seed, self.finder.constraints
        gate = gate_of(model, self.x, self.y, self.gate, rules, seed=seed)
        said = few_rows(gate, self.y, [repr(label) for label in self.classes.tolist()])
        if said is not None:
            warnings.warn(said, stacklevel=from_outside())
        return gate


def prepare(params: Mapping[str, Any], frame: pd.DataFrame, labels: np.ndarray, seed: int) -> Prepared:
    """Fit the encoder, and translate the classifier's parameters for these rows."""
    schema = resolve_schema(frame, params["schema"], params["mutability"], params["domain"])
    whole = settings.make_whole(params)
    scale: Scale = "robust" if whole.scaling == "robust" else True
    encoder = Encoder(schema, unseen=params["unseen"], missing=params["missing"], scale=scale).fit(frame)
    classes, y_index = np.unique(labels, return_inverse=True)
    plain_model = partial(_model, params, len(encoder.names_), len(classes))
    preset = settings.make_preset(params)
    rules = encoder.constraints(preset.num_std, keep_sign=True)
    x = Finder(plain_model(seed), encoder, rules).encode(frame)
    make_model = partial(_bent, plain_model, x, whole.bent if params["model"] == "mlp" and whole.hidden else 0.0)
    finder = Finder(make_model(seed), encoder, rules)
    setting = settings.make_setting(params, x, finder.training_constraints(preset.project_categories), seed)
    y = torch.as_tensor(y_index.astype(np.int64), device=x.device)
    held_out = torch.tensor([], dtype=torch.long)
    if whole.early_stopping:
        held_out = validation_split(y, whole.validation_fraction, seed, keep_single=True)[1]
        if len(held_out) < FEWEST:  # chance would decide when to stop
            held_out = held_out[:0]
    return Prepared(
        finder, classes, x, y, setting, make_model, held_out.to(y.device), _by_index(params["class_weight"], classes),
        whole.n_iter_no_change if len(held_out) else None, whole.gate,
    )  # fmt: skip


def validation_split(y: Tensor, share: float, seed: int, keep_single: bool = False) -> tuple[Tensor, Tensor]:
    """Row numbers ``(train, validation)``, that share of every class held out: at least one row, never all.

    A class with one row is an error, unless ``keep_single`` leaves that row to training.
    """
    if not 0 < share < 1:
        raise InputError(f"The share of rows to validate on lies between 0 and 1, got {share}.")
    rng = torch.Generator().manual_seed(seed)
    held_out = torch.zeros(len(y), dtype=torch.bool)
    for label in y.unique():
        rows = (y == label).nonzero().flatten().cpu()
        if len(rows) < 2 and not keep_single:
            raise InputError("Rows are held out to choose on: every class needs at least two, one of them to train on.")
        take = min(max(round(share * len(rows)), 1), len(rows) - 1)
        held_out[rows[torch.randperm(len(rows), generator=rng)[:take]]] = True
    return (~held_out).nonzero().flatten(), held_out.nonzero().flatten()


def _by_index(given: Any, classes: np.ndarray) -> dict[int, float] | str | None:
    """Class weights by index, as training wants them; users give them by label."""
    if not isinstance(given, Mapping):
        return given
    labels = classes.tolist()
    for label in given:
        if label not in labels:
            raise InputError(unknown("class in class_weight:", label, labels))
    return {labels.index(label): float(weight) for label, weight in given.items()}


def _bent(make_model: Callable[[int], nn.Module], x: Tensor, share: float, seed: int) -> nn.Module:
    model = make_model(seed)
    if share and isinstance(model, nn.Sequential):
        bend(model, x, share)
    return model


def _model(params: Mapping[str, Any], num_features: int, num_classes: int, seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = settings.make_model(params, num_features, num_classes)
    return model.to(settings.make_device(params["device"]))
