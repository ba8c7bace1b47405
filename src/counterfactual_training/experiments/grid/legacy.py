"""Folders of `ct reproduce` before it used grids: one folder per cell, read as they are.

Such a folder has a marker ``store.json`` and, per cell, ``model.safetensors``,
``measured.safetensors`` and ``done.json``, written last. Nothing in them changes; cells that finish
later are stored beside them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from counterfactual_training.errors import FileError
from counterfactual_training.experiments.grid.cell import (
    ALL_ROWS,
    AS_TRAINED,
    PROTOCOL,
    Cell,
    Measurement,
)
from counterfactual_training.experiments.grid.outcome import CellOutcome
from counterfactual_training.experiments.paper_data import kind_of
from counterfactual_training.persistence import load_file

_MARKER = "store.json"
# What these folders were measured with, whatever paper/files/main.toml says one day.
_INDIVIDUALS = {"synthetic": 250, "tabular": 100, "images": 25}


class OldCell(NamedTuple):
    """A finished cell of an old folder: what it is called today, its effort with the changed
    settings, its notes.
    """

    cell: Cell
    kind: list[Any]
    made: dict[str, Any]
    seconds: dict[str, float]
    folder: Path

    def load(self) -> CellOutcome:
        weights, trained = load_file(self.folder / "model.safetensors", "trained cell")
        measured, content = load_file(self.folder / "measured.safetensors", "measured cell")
        history = pd.DataFrame(trained["history"]).astype(float)
        return CellOutcome(
            self.cell,
            {name: tensor.numpy() for name, tensor in measured.items()},
            {
                name: float("nan") if v is None else float(v)
                for name, v in content["numbers"].items()
            },
            {str(name): history[name].to_numpy() for name in history},
            None,
            self.seconds,
            self.made,
            weights,
        )


def old_cells(root: Path) -> dict[str, OldCell]:
    """The finished cells of an old folder by identity; none of any other folder."""
    if not (root / _MARKER).exists():
        return {}
    if read_json(root / _MARKER).get("format") != 1:
        raise FileError(
            f"{str(root)!r} holds results of an unknown format. Use another folder, or delete "
            "this one."
        )
    found = {}
    for marker in sorted(root.glob("*/done.json")):
        done = read_json(marker)
        try:
            old = done["cell"]
            made = {name: done[name] for name in ("settings", "command", "versions", "date")}
            measurement = _measurement(old["data"], old["effort"])
            cell = Cell.from_settings(old["data"], old["seed"], _settings(done), measurement)
            kind = [old["effort"], [list(pair) for pair in old["changes"]]]
            found[cell.id] = OldCell(cell, kind, made, done["seconds"], marker.parent)
        except (KeyError, TypeError, ValueError) as error:
            raise FileError(
                f"{str(marker)!r} cannot be read ({error}); delete its folder to redo it."
            ) from error
    return found


def _settings(done: Mapping[str, Any]) -> dict[str, Any]:
    """The cell's settings by dotted name."""
    out: dict[str, Any] = {"protected": done["cell"]["protected"], "alone": True}
    # Every cell had the paper's network.
    out |= {
        "model.hidden": (32,),
        "model.activation": "relu",
    }
    for table in ("generator", "objective", "training"):
        out |= {f"{table}.{name}": value for name, value in done["settings"][table].items()}
    for name in ("training.seed", "objective.lambda_contrast", "objective.lambda_recourse"):
        out.pop(name, None)
    return out


def _measurement(data: str, effort: Mapping[str, Any]) -> Measurement:
    protocol = replace(
        PROTOCOL,
        num_runs=effort["num_runs"],
        num_individuals=effort["num_individuals"] or _INDIVIDUALS[kind_of(data)],
        attacks=("fgsm", "pgd"),
        epsilons=tuple(np.linspace(0.0, 0.1, effort["num_epsilons"]).round(6).tolist()),
        attribution_rounds=effort["attribution_rounds"],
    )
    if effort["paired_individuals"] is None:
        paired = ALL_ROWS
    else:
        paired = effort["paired_individuals"]
    return Measurement("test", AS_TRAINED, protocol, 0.5, paired, own_draws=True)


def read_json(path: Path) -> dict[str, Any]:
    """The table in a file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FileError(
            f"{str(path)!r} is damaged ({type(error).__name__}); delete it to redo that cell."
        ) from error
    if not isinstance(content, dict):
        raise FileError(f"{str(path)!r} is damaged: it holds no table.")
    return content
