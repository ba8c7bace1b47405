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

from counterfactual_training.data.encode import Encoder
from counterfactual_training.estimator import settings
from counterfactual_training.estimator.finding import Finder
from counterfactual_training.estimator.inputs import resolve_schema
from counterfactual_training.gates import Gate, fit_gate
from counterfactual_training.training import Setting


@dataclass(frozen=True, eq=False)
class Prepared:
    """A classifier about to be trained.

    Attributes:
        finder: with the untrained model, the fitted encoder and the rules.
        classes: labels, in the order of the model's outputs.
        x, y: ``(n, d)`` rows in model space and ``(n,)`` class indices.
        setting: how to train; its seed is the one of the model's weights.
        make_model: another untrained model, its weights drawn by a seed.
    """

    finder: Finder
    classes: np.ndarray
    x: Tensor
    y: Tensor
    setting: Setting
    make_model: Callable[[int], nn.Module]

    def fit_gate(self, model: nn.Module) -> Gate | None:
        """The gate of the trained model, if the setting has one."""
        kind = self.setting.gate
        if kind is None:
            return None
        seed, rules = self.setting.config.seed, self.finder.constraints
        gate = fit_gate(model, self.x, self.y, kind, constraints=rules, seed=seed).gate
        few = self.classes[~gate.judged.cpu().numpy()].tolist()
        if few:
            said = ", ".join(map(repr, few))
            warnings.warn(
                f"Too few rows to judge what is plausible: the gate stands open for {said}. Advice that leads there is "
                "not held to real rows.",
                stacklevel=3,
            )
        return gate


def prepare(params: Mapping[str, Any], frame: pd.DataFrame, labels: np.ndarray, seed: int) -> Prepared:
    """Fit the encoder, and translate the classifier's parameters for these rows."""
    schema = resolve_schema(frame, params["schema"], params["mutability"], params["domain"])
    encoder = Encoder(schema, unknown=params["unseen"], missing=params["missing"]).fit(frame)
    classes, y_index = np.unique(labels, return_inverse=True)
    make_model = partial(_model, params, len(encoder.names_), len(classes))
    rules = encoder.constraints(settings.make_preset(params).num_std, keep_sign=True)
    finder = Finder(make_model(seed), encoder, rules)
    x = finder.encode(frame)
    setting = settings.make_setting(params, x, finder.training_constraints, seed)
    y = torch.as_tensor(y_index.astype(np.int64), device=x.device)
    return Prepared(finder, classes, x, y, setting, make_model)


def _model(params: Mapping[str, Any], num_features: int, num_classes: int, seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = settings.make_model(params["model"], params["hidden"], num_features, num_classes)
    return model.to(settings.make_device(params["device"]))
