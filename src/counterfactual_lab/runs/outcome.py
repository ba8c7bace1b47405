"""The outcome of a finished run, and the version of the package that made it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from counterfactual_lab.runs.run import R
from counterfactual_training.errors import FileError
from counterfactual_training.versions import PACKAGE, versions

_DIGITS = 8  # of numbers of a fleet's member; more is noise in float32
_EVERY_DIGIT = 17  # brings every double back exactly


@dataclass(frozen=True, eq=False)
class Outcome(Generic[R]):
    """What is known of a finished run.

    Attributes:
        arrays: measurements by name.
        numbers: single ones, such as the accuracy.
        history: by name, one value per epoch.
        stopped: why training ended early, if it did.
        seconds: by part, ``train`` and ``evaluate``, as far as they were measured.
        origin: command, versions, date and settings, as far as they were noted.
        weights: of the model, if it is kept.
        rows: a table with a row per individual, if the measurement has one.
        notes: warnings of the training that are worth showing.
    """

    run: R
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    numbers: Mapping[str, float] = field(default_factory=dict)
    history: Mapping[str, np.ndarray] = field(default_factory=dict)
    stopped: str | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    origin: Mapping[str, Any] = field(default_factory=dict)
    weights: Mapping[str, Tensor] = field(default_factory=dict)
    rows: pd.DataFrame | None = None
    notes: tuple[str, ...] = ()

    def array(self, name: str) -> np.ndarray:
        """A measurement in double precision."""
        if name not in self.arrays:
            raise FileError(
                f"{self.run.label} has no measurement {name!r}; it has {', '.join(self.arrays)}."
            )
        return np.asarray(self.arrays[name], dtype=np.float64)

    def table(self) -> pd.DataFrame:
        """Its rows; raises if there are none."""
        if self.rows is None:
            raise FileError(f"{self.run.label} has no table of individuals.")
        return self.rows

    def to_json(self) -> dict[str, Any]:
        """Everything but tensors and rows, which go to files of their own: arrays and weights of a
        model that is kept, and the table of individuals.
        """
        digits = _DIGITS
        if self.weights or self.rows is not None:
            digits = _EVERY_DIGIT
        kept: Mapping[str, np.ndarray] = self.arrays
        if self.weights:
            kept = {}
        return {
            "run": self.run.content(),
            "metrics": {name: _plain(value, digits) for name, value in kept.items()},
            "numbers": {name: _plain(value, digits) for name, value in self.numbers.items()},
            "history": {name: _plain(value, digits) for name, value in self.history.items()},
            "stopped": self.stopped,
            "seconds": dict(self.seconds),
            "made": dict(self.origin),
            "notes": list(self.notes),
            "tensors": bool(self.weights),
            "rows": self.rows is not None,
        }

    @classmethod
    def from_json(
        cls,
        run: R,
        content: Mapping[str, Any],
        tensors: Mapping[str, Tensor] | None = None,
        rows: pd.DataFrame | None = None,
    ) -> Outcome[R]:
        """The inverse of :meth:`to_json`; ``tensors`` as :meth:`tensors` names them."""
        parts: dict[str, dict[str, Tensor]] = {"model": {}, "measured": {}}
        for name, tensor in (tensors or {}).items():
            part, _, name_in_part = name.partition("/")
            parts[part][name_in_part] = tensor
        arrays = {
            name: np.array(value, dtype=float) for name, value in content["metrics"].items()
        }
        return cls(
            run,
            {**arrays, **{name: tensor.numpy() for name, tensor in parts["measured"].items()}},
            {
                name: math.nan if value is None else float(value)
                for name, value in content["numbers"].items()
            },
            {name: np.array(value, dtype=float) for name, value in content["history"].items()},
            content["stopped"],
            content["seconds"],
            content["made"],
            parts["model"],
            rows,
            tuple(content["notes"]),
        )

    def tensors(self) -> dict[str, Tensor]:
        """Arrays and weights, for a file of tensors."""
        arrays = {
            f"measured/{name}": torch.from_numpy(np.array(value))
            for name, value in self.arrays.items()
        }
        return {**arrays, **{f"model/{name}": tensor for name, tensor in self.weights.items()}}


def with_methods(table: pd.DataFrame) -> pd.DataFrame:
    """With columns named as everywhere: rows of outcomes say ``model`` for a method."""
    return table.rename(columns={"model": "method", "p_holm_model": "p_holm_method"})


def _plain(value: Any, digits: int) -> Any:
    """Numbers as JSON knows them; NaN and infinity become null."""
    if isinstance(value, np.ndarray):
        return _plain(value.tolist(), digits)
    if isinstance(value, list):
        return [_plain(entry, digits) for entry in value]
    if math.isfinite(value):
        return float(f"{value:.{digits}g}")
    return None


def check_versions(outcomes: Sequence[Outcome[Any]], current: bool = False) -> str:
    """The one package version that made these results (with ``current``, this one); mixtures raise
    an error.
    """
    versions_used = [outcome.origin["versions"] for outcome in outcomes if outcome.origin]
    advice = (
        "Numbers of different versions do not belong in one table: use another folder, or delete "
        "this one."
    )
    # New results are made with the installed version.
    mixed = versions_used
    if current and versions_used:
        mixed = [*versions_used, versions()]
    for name in ("torch", "numpy"):
        used = sorted({str(one.get(name)) for one in mixed})
        if len(used) > 1:
            raise FileError(
                f"These results were made with {name} {' and '.join(used)}. {advice}"
            )
    packages = sorted({str(one.get(PACKAGE)) for one in versions_used})
    mine = versions()[PACKAGE]
    if current:
        wrong = any(name != mine for name in packages)
        this = f", this is {mine}"
    else:
        wrong = len(packages) > 1
        this = ""
    if wrong:
        raise FileError(
            f"These results were made by version {' and '.join(packages)} of the package{this}. "
            f"{advice}"
        )
    if packages:
        return packages[0]
    return mine
