"""A fitted regressor as one file: weights and rows as tensors, everything else as JSON; see
:mod:`file`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from counterfactual_training.models.ensemble import Ensemble, make_ensemble
from counterfactual_training.models.shapes import describe, make_network
from counterfactual_training.persistence import blaming_file, load_file, save_file
from counterfactual_training.tables.columns.encode import Encoder
from counterfactual_training.tables.estimators.file import (
    epochs_from_file,
    from_json,
    load_model,
    must_be_json,
    need_objects,
    to_json,
    under,
    without_seconds,
)
from counterfactual_training.tables.estimators.parameters import method_of
from counterfactual_training.training.run import History

KIND = "counterfactual regressor"
_MODEL = "model."
_ROWS = "rows."


def save_regressor(path: str | Path, regressor: Any) -> None:
    """Write a fitted regressor."""
    tensors = {_MODEL + name: value for name, value in regressor.model_.state_dict().items()}
    tensors |= {_ROWS + name: value for name, value in zip("xy", regressor.rows_, strict=True)}
    content = {
        "params": {
            name: to_json(name, value)
            for name, value in regressor.get_params(deep=False).items()
        },
        "target": {
            "name": regressor.target_name_,
            "mean": regressor.y_mean_,
            "scale": regressor.y_scale_,
        },
        "named_columns": hasattr(regressor, "feature_names_in_"),
        "encoder": regressor.encoder_.to_dict(),
        "history": {
            "records": without_seconds(regressor.history_),
            "stopped": regressor.history_.stopped,
        },
        "epochs": regressor.epochs_,
        "num_std": regressor.num_std_,
    }
    if not callable(regressor.get_params(deep=False)["model"]):
        content["network"] = describe(regressor.model_)
    elif isinstance(regressor.model_, Ensemble):
        content["members"] = len(regressor.model_.members)
    must_be_json(content)
    save_file(path, KIND, tensors, content)


def load_regressor(path: str | Path, cls: type, objects: Mapping[str, Any]) -> Any:
    """Read a regressor; ``objects`` are the parameters that a file cannot hold, passed by the
    caller.
    """
    tensors, content = load_file(path, KIND)
    with blaming_file(path):
        return _assembled(tensors, content, cls, objects, str(path))


def _assembled(
    tensors: dict[str, torch.Tensor],
    content: dict[str, Any],
    cls: type,
    objects: Mapping[str, Any],
    source: str,
) -> Any:
    need_objects(content["params"], objects, source)
    params = {name: from_json(name, value) for name, value in content["params"].items()}
    regressor = cls(
        **params | {name: value for name, value in objects.items() if value is not None}
    )
    # Raises for settings that a question would fail at.
    method = method_of(regressor._as_classifier())
    encoder = Encoder.from_dict(content["encoder"])
    if params.get("schema") is not None:  # not written a second time: the encoder's is complete
        regressor.set_params(schema=encoder.schema_)
    own_model = callable(regressor.model)
    width = len(encoder.names_)
    if own_model:
        make = regressor.model
    else:
        make = partial(make_network, content["network"])
    if own_model and "members" in content:
        make = partial(make_ensemble, make, content["members"])
    model = load_model(make, width, 1, own_model, under(_MODEL, tensors), source)
    rows = under(_ROWS, tensors)
    x = rows["x"]
    y = rows["y"]
    numbers = [float(content["target"][name]) for name in ("mean", "scale")] + [
        float(content["num_std"])
    ]
    _check_rows(x, y, numbers, width)
    history = History(list(content["history"]["records"]), content["history"]["stopped"])
    regressor._adopt(
        encoder,
        model,
        history,
        epochs_from_file(content["epochs"]),
        replace(method, num_std=numbers[2]),
        (x, y),
        str(content["target"]["name"]),
        (numbers[0], numbers[1]),
    )
    regressor.n_features_in_ = encoder.n_features_in_
    if content["named_columns"]:
        regressor.feature_names_in_ = encoder.feature_names_in_
    return regressor


def _check_rows(x: torch.Tensor, y: torch.Tensor, numbers: Sequence[float], width: int) -> None:
    """Raise unless rows ``(n, width)``, targets ``(n,)`` and mean, scale and num_std make sense."""
    _, scale, num_std = numbers
    finite = all(bool(torch.isfinite(value).all()) for value in (x, y, torch.tensor(numbers)))
    fits = y.dim() == 1 and len(y) > 0 and x.shape == (len(y), width)
    if not (fits and finite and scale > 0 and num_std >= 0):
        raise ValueError("its rows do not fit its columns, or are not finite numbers")
