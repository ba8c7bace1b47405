"""A folder of finished cells. Every file appears whole or not at all, the marker ``done.json`` last."""

from __future__ import annotations

import json
import platform
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from counterfactual_training.errors import FileError
from counterfactual_training.experiments.paper.cells import FORMAT, Cell, Effort
from counterfactual_training.persistence import atomic_write, load_file, load_weights, save_file

_MODEL, _MEASURED = "trained cell", "measured cell"
_DONE = "done.json"
_PACKAGES = ("counterfactual-training", "torch", "numpy", "pandas")


@dataclass(frozen=True, eq=False)
class CellResult:
    """What is known of a finished cell.

    Attributes:
        tensors: measurements by name, see :mod:`measure`.
        numbers: the scalar ones.
        history: one row per epoch.
        done: settings, command, versions, date and durations.
    """

    cell: Cell
    tensors: dict[str, Tensor]
    numbers: dict[str, float]
    history: pd.DataFrame
    done: dict[str, Any]

    def array(self, name: str) -> np.ndarray:
        if name not in self.tensors:
            raise FileError(f"{self.cell.label} has no measurement {name!r}; it has {', '.join(self.tensors)}.")
        return self.tensors[name].double().numpy()


class Store:
    """Cells by name under one folder, all of one format."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)
        marker = self.root / "store.json"
        if marker.exists():
            found = _read_json(marker).get("format")
            if found != FORMAT:
                raise FileError(
                    f"{str(self.root)!r} holds results of format {found}, this version writes format {FORMAT}. They "
                    "must not be mixed: name another folder, or delete this one."
                )
        elif self.root.is_dir() and any(self.root.glob("*/done.json")):
            raise FileError(f"{str(self.root)!r} holds cells but no store.json that says of which format they are.")

    def create(self) -> None:
        """Make the folder, if it is not there yet."""
        marker = self.root / "store.json"
        if not marker.exists():
            atomic_write(marker, _json({"format": FORMAT}))

    def folder(self, cell: Cell) -> Path:
        return self.root / cell.id

    def checkpoint(self, cell: Cell) -> Path:
        return self.folder(cell) / "checkpoint.safetensors"

    def is_done(self, cell: Cell) -> bool:
        return (self.folder(cell) / "done.json").exists()

    def files(self, cell: Cell) -> dict[str, bytes]:
        """Content of the cell's files, finished or not, by name."""
        paths = sorted(self.folder(cell).glob("[!.]*")) if self.folder(cell).is_dir() else []
        return {path.name: path.read_bytes() for path in paths}

    def add_files(self, cell: Cell, files: dict[str, bytes]) -> None:
        """Take over what :meth:`files` gave in another store, the marker last."""
        for name in sorted(files, key=lambda name: name == _DONE):
            atomic_write(self.folder(cell) / name, files[name])
        if _DONE in files:
            self.checkpoint(cell).unlink(missing_ok=True)

    def save_model(self, cell: Cell, model: nn.Module, history: pd.DataFrame, seconds: float) -> None:
        """Weights and history; training need not be repeated from here on."""
        content = {"history": history.to_dict("records"), "seconds": seconds}
        save_file(self.folder(cell) / "model.safetensors", _MODEL, model.state_dict(), content)
        self.checkpoint(cell).unlink(missing_ok=True)

    def is_trained(self, cell: Cell) -> bool:
        return (self.folder(cell) / "model.safetensors").exists()

    def load_model(self, cell: Cell, model: nn.Module) -> nn.Module:
        """Put the cell's weights into a model of its shape."""
        path = self.folder(cell) / "model.safetensors"
        state, _ = load_file(path, _MODEL)
        load_weights(model, state, str(path))
        return model

    def save_result(
        self,
        cell: Cell,
        tensors: dict[str, Tensor],
        numbers: dict[str, float],
        settings: dict[str, Any],
        command: str,
        seconds: float,
    ) -> None:
        """Measurements, and then the marker that the cell is done."""
        save_file(self.folder(cell) / "measured.safetensors", _MEASURED, tensors, {"numbers": numbers})
        _, trained = load_file(self.folder(cell) / "model.safetensors", _MODEL)
        done = {
            "cell": asdict(cell),
            "settings": settings,
            "command": command,
            "versions": versions(),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": {"train": round(trained["seconds"], 2), "evaluate": round(seconds, 2)},
        }
        atomic_write(self.folder(cell) / "done.json", _json(done))

    def load(self, cell: Cell) -> CellResult:
        """A finished cell."""
        if not self.is_done(cell):
            raise FileError(f"{cell.label} is not among the finished cells of {str(self.root)!r}; run it first.")
        tensors, content = load_file(self.folder(cell) / "measured.safetensors", _MEASURED)
        _, trained = load_file(self.folder(cell) / "model.safetensors", _MODEL)
        done = _read_json(self.folder(cell) / "done.json")
        numbers = {name: float("nan") if v is None else float(v) for name, v in content["numbers"].items()}
        return CellResult(cell, tensors, numbers, pd.DataFrame(trained["history"]).astype(float), done)

    def cells(self) -> list[Cell]:
        """All finished cells in the folder."""
        found = []
        for marker in sorted(self.root.glob("*/done.json")):
            content = _read_json(marker)
            try:
                found.append(cell_from(content["cell"]))
            except (KeyError, TypeError, ValueError) as error:
                raise FileError(f"{str(marker)!r} does not describe a cell of this version: {error}") from error
        return found


def check_versions(results: list[CellResult], current: bool = False) -> str:
    """The one package version that made these results (and, if asked, is the present one); mixtures are refused."""
    for name in ("torch", "numpy"):
        used = sorted({str(result.done["versions"].get(name)) for result in results})
        if len(used) > 1:
            raise FileError(
                f"These results were made with {name} {' and '.join(used)}. Numbers of different versions do not "
                "belong in one table: name another folder, or delete this one."
            )
    found = sorted({str(result.done["versions"].get(_PACKAGES[0])) for result in results})
    mine = versions()[_PACKAGES[0]]
    wrong = [name for name in found if name != mine] if current else found[1:]
    if wrong:
        raise FileError(
            f"These results were made by version {' and '.join(found)} of the package"
            + (f", this is {mine}" if current else "")
            + ". Numbers of different versions do not belong in one table: name another folder, or delete this one."
        )
    return found[0] if found else mine


def versions() -> dict[str, str]:
    """Of Python and the packages that decide numbers."""
    out = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            out[name] = version(name)
        except PackageNotFoundError:
            out[name] = "unknown"
    out["torch"] = torch.__version__
    return out


def cell_from(content: dict[str, Any]) -> Cell:
    """A cell from what ``dataclasses.asdict`` made of it, after a trip through JSON."""
    changes = tuple((str(name), value) for name, value in content["changes"])
    return Cell(**{**content, "effort": Effort(**content["effort"]), "changes": changes})


def _json(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=2) + "\n").encode()


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise FileError(f"{str(path)!r} is damaged ({type(error).__name__}); delete its folder to redo it.") from error
    if not isinstance(content, dict):
        raise FileError(f"{str(path)!r} is damaged: it holds no table.")
    return content
