"""What is known of a finished cell, and which version of the package made it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from counterfactual_lab.grids.cell import AS_TRAINED, Cell
from counterfactual_training.errors import FileError
from counterfactual_training.versions import PACKAGE, versions

_DIGITS = 8  # of numbers of a fleet's member; more is noise in float32


@dataclass(frozen=True, eq=False)
class CellOutcome:
    """What is known of a finished cell.

    Attributes:
        arrays: measurements by name, see :mod:`measure`.
        numbers: single ones, such as the accuracy.
        history: by name, one value per epoch.
        stopped: why training ended early, if it did.
        seconds: of the task divided by its members: ``train`` and ``evaluate``.
        made: command, versions, date and settings, as far as they were noted.
        weights: of the model, if it trained alone.
    """

    cell: Cell
    arrays: Mapping[str, np.ndarray]
    numbers: Mapping[str, float]
    history: Mapping[str, np.ndarray]
    stopped: str | None
    seconds: Mapping[str, float]
    made: Mapping[str, Any] = field(default_factory=dict)
    weights: Mapping[str, Tensor] = field(default_factory=dict)

    def array(self, name: str) -> np.ndarray:
        """A measurement in double precision."""
        if name not in self.arrays:
            raise FileError(
                f"{self.cell.label} has no measurement {name!r}; it has {', '.join(self.arrays)}."
            )
        return np.asarray(self.arrays[name], dtype=np.float64)

    def metrics(self, kind: str) -> Mapping[str, np.ndarray]:
        """Arrays ``(λ, runs)`` by metric, searched under these constraints."""
        if self.cell.measurement.protected != AS_TRAINED:
            return self.arrays
        start = f"published/{kind}/"
        return {
            name.removeprefix(start): array
            for name, array in self.arrays.items()
            if name.startswith(start)
        }

    def to_json(self) -> dict[str, Any]:
        """Everything but tensors: arrays and weights of a model trained alone go to a file of their
        own.
        """
        digits = 17 if self.weights else _DIGITS  # 17 bring every double back exactly
        return {
            "cell": self.cell.content(),
            "metrics": {}
            if self.weights
            else {name: _plain(value, digits) for name, value in self.arrays.items()},
            "numbers": {name: _plain(value, digits) for name, value in self.numbers.items()},
            "history": {name: _plain(value, digits) for name, value in self.history.items()},
            "stopped": self.stopped,
            "seconds": dict(self.seconds),
            "made": dict(self.made),
            "tensors": bool(self.weights),
        }

    @classmethod
    def from_json(
        cls, content: Mapping[str, Any], tensors: Mapping[str, Tensor] | None = None
    ) -> CellOutcome:
        """The inverse of :meth:`to_json`; ``tensors`` as :meth:`tensors` names them."""
        parts: dict[str, dict[str, Tensor]] = {"model": {}, "measured": {}}
        for name, tensor in (tensors or {}).items():
            part, _, own = name.partition("/")
            parts[part][own] = tensor
        arrays = {
            name: np.array(value, dtype=float) for name, value in content["metrics"].items()
        }
        return cls(
            Cell.from_content(content["cell"]),
            {**arrays, **{name: tensor.numpy() for name, tensor in parts["measured"].items()}},
            {
                name: math.nan if value is None else float(value)
                for name, value in content["numbers"].items()
            },
            {name: np.array(value, dtype=float) for name, value in content["history"].items()},
            content["stopped"],
            content["seconds"],
            content.get("made", {}),
            parts["model"],
        )

    def tensors(self) -> dict[str, Tensor]:
        """Arrays and weights, for a file of tensors."""
        arrays = {
            f"measured/{name}": torch.from_numpy(np.array(value))
            for name, value in self.arrays.items()
        }
        return {**arrays, **{f"model/{name}": tensor for name, tensor in self.weights.items()}}


def _plain(value: Any, digits: int) -> Any:
    """Numbers as JSON knows them; NaN and infinity become null."""
    if isinstance(value, np.ndarray):
        return _plain(value.tolist(), digits)
    if isinstance(value, list):
        return [_plain(entry, digits) for entry in value]
    if math.isfinite(value):
        return float(f"{value:.{digits}g}")
    return None


def check_versions(outcomes: Sequence[CellOutcome], current: bool = False) -> str:
    """The one package version that made these results (with ``current``, this one); mixtures raise
    an error.
    """
    made = [outcome.made["versions"] for outcome in outcomes if outcome.made]
    advice = (
        "Numbers of different versions do not belong in one table: use another folder, or delete "
        "this one."
    )
    for name in ("torch", "numpy"):
        used = sorted({str(one.get(name)) for one in made})
        if len(used) > 1:
            raise FileError(
                f"These results were made with {name} {' and '.join(used)}. {advice}"
            )
    found = sorted({str(one.get(PACKAGE)) for one in made})
    mine = versions()[PACKAGE]
    if [name for name in found if name != mine] if current else found[1:]:
        if current:
            this = f", this is {mine}"
        else:
            this = ""
        raise FileError(
            f"These results were made by version {' and '.join(found)} of the package{this}. "
            f"{advice}"
        )
    if found:
        return found[0]
    return mine
