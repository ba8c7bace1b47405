"""Folders of `ct reproduce` before it used grids: one folder per cell, converted to the store's format.

Such a folder has a marker ``store.json`` and, per cell, ``model.safetensors``, ``measured.safetensors`` and
``done.json``, written last.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from counterfactual_training.errors import FileError
from counterfactual_training.experiments.grid.cell import ALL_ROWS, AS_TRAINED, PROTOCOL, Cell, Measurement
from counterfactual_training.experiments.grid.outcome import CellOutcome
from counterfactual_training.experiments.paper_data import kind_of
from counterfactual_training.persistence import load_file

OLD_MARKER = "store.json"
_KEPT = "old-format"
_INDIVIDUALS = {"synthetic": 250, "tabular": 100, "images": 25}

Kind = tuple[Any, list[Cell]]


def convert(root: Path) -> tuple[list[CellOutcome], list[Kind], Callable[[], None]]:
    """All finished cells, the cells of each effort with the changed settings, and a function that finishes.

    It moves the old files to a folder of their own and says so; call it once the outcomes are saved. A kill before
    that repeats the conversion.
    """
    if read_json(root / OLD_MARKER).get("format") != 1:
        raise FileError(f"{str(root)!r} holds results of an unknown format. Use another folder, or delete this one.")
    outcomes: list[CellOutcome] = []
    kinds: dict[str, Kind] = {}
    for marker in sorted(root.glob("*/done.json")):
        try:
            done = read_json(marker)
            outcome = _outcome(done, marker.parent)
            old = done["cell"]
            kind = [old["effort"], [list(pair) for pair in old["changes"]]]
        except (KeyError, TypeError, ValueError) as error:
            raise FileError(f"{str(marker)!r} cannot be converted ({error}); delete its folder to redo it.") from error
        outcomes.append(outcome)
        kinds.setdefault(json.dumps(kind, sort_keys=True), (kind, []))[1].append(outcome.cell)
    return outcomes, list(kinds.values()), lambda: _put_away(root, len(outcomes))


def _put_away(root: Path, count: int) -> None:
    kept = root / _KEPT
    kept.mkdir(exist_ok=True)
    # The marker goes first: without it the folder is not converted again, whatever happens next.
    (root / OLD_MARKER).rename(kept / OLD_MARKER)
    unfinished = 0
    for folder in list(root.glob("*-seed-*")):
        unfinished += not (folder / "done.json").exists()
        folder.rename(kept / folder.name)
    rest = f" {unfinished} unfinished ones will be trained again." if unfinished else ""
    print(
        f"Converted {count} finished models in {str(root)!r} to the present format; the old files are in "
        f"{str(kept)!r} and can be deleted.{rest}",
        file=sys.stderr,
    )


def _outcome(done: Mapping[str, Any], folder: Path) -> CellOutcome:
    weights, trained = load_file(folder / "model.safetensors", "trained cell")
    measured, content = load_file(folder / "measured.safetensors", "measured cell")
    history = pd.DataFrame(trained["history"]).astype(float)
    old, made = done["cell"], {name: done[name] for name in ("settings", "command", "versions", "date")}
    return CellOutcome(
        Cell.from_settings(old["data"], old["seed"], _settings(done), _measurement(old["data"], old["effort"])),
        {name: tensor.numpy() for name, tensor in measured.items()},
        {name: float("nan") if v is None else float(v) for name, v in content["numbers"].items()},
        {str(name): history[name].to_numpy() for name in history},
        None,
        done["seconds"],
        made,
        weights,
    )


def _settings(done: Mapping[str, Any]) -> dict[str, Any]:
    """The cell's settings by dotted name."""
    out: dict[str, Any] = {"protected": done["cell"]["protected"], "alone": True}
    out |= {"model.hidden": (32,), "model.activation": "relu"}  # every cell had the paper's network
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
    paired = ALL_ROWS if effort["paired_individuals"] is None else effort["paired_individuals"]
    return Measurement("test", AS_TRAINED, protocol, 0.5, paired, own_draws=True)


def read_json(path: Path) -> dict[str, Any]:
    """The table in a file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FileError(f"{str(path)!r} is damaged ({type(error).__name__}); delete it to redo that cell.") from error
    if not isinstance(content, dict):
        raise FileError(f"{str(path)!r} is damaged: it holds no table.")
    return content
