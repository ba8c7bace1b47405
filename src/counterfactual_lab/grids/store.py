"""A folder of finished cells: one small file each, complete or absent, safe against a kill at any
moment.

A fleet finishes many cells at once. Its results are first written as one file under ``pending``,
then cell by cell; whoever opens the folder next finishes what a kill interrupted, so nothing is
lost and nothing runs twice. Arrays and weights of a model that trained alone are in a file of
tensors beside its cell, written before it.
"""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from counterfactual_lab.grids.cell import FORMAT, Cell
from counterfactual_lab.grids.grid import Grid
from counterfactual_lab.grids.outcome import CellOutcome
from counterfactual_training.errors import FileError
from counterfactual_training.persistence import (
    atomic_write,
    load_file,
    load_weights,
    locked,
    save_file,
)
from counterfactual_training.versions import PACKAGE, versions

if TYPE_CHECKING:
    from counterfactual_training.models.vae import VAE

_MARKER = "grid-store.json"
_LOCK = ".lock"
_VAE = "VAE of a grid"
_TENSORS = "tensors of a cell"


class Store:
    """Outcomes by the content of their cells, all of one version of the package.

    Args:
        any_version: open a folder of another version too, to read it.
    """

    def __init__(self, root: str | Path, any_version: bool = False) -> None:
        self.root = Path(root)
        if self.root.exists() and not self.root.is_dir():
            raise FileError(f"{str(self.root)!r} is a file; results need a folder.")
        marker = self.root / _MARKER
        if marker.exists():
            self._check_version(read_json(marker), any_version)
        elif (self.root / "cells").is_dir() and any((self.root / "cells").iterdir()):
            raise FileError(
                f"{str(self.root)!r} holds cells but no {_MARKER} with their version."
            )

    def _check_version(self, found: Mapping[str, Any], any_version: bool) -> None:
        mine = _identity()
        if found != mine and not any_version:
            raise FileError(
                f"{str(self.root)!r} was written by version {found.get('version')} of the "
                "package (format "
                f"{found.get('format')}), this is {mine['version']} (format {FORMAT}). Numbers "
                "of different versions "
                "do not belong in one table: use another folder, or delete this one."
            )

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the folder alone; create it if needed, and finish what a kill interrupted.

        Raises if another run holds it, instead of waiting for hours.
        """
        with self._space(), ExitStack() as stack:
            self.root.mkdir(parents=True, exist_ok=True)
            try:
                stack.enter_context(locked(self.root / _LOCK, 0.0))
            except FileError as error:
                if error.code == "locked":
                    text = "Another run is writing to it"
                else:
                    text = str(error)
                where = f"{str(self.root)!r} cannot be written to now."
                raise FileError(f"{where} {text}; wait, or use another folder.") from error
            if not (self.root / _MARKER).exists():
                atomic_write(self.root / _MARKER, _bytes(_identity()))
            for folder in ("cells", "pending"):
                for half_written in (self.root / folder).glob(".*"):
                    half_written.unlink(missing_ok=True)
            for pending in sorted((self.root / "pending").glob("*.json")):
                self._settle(pending, read_json(pending))
            yield

    def done(self) -> set[str]:
        """Identities of all finished cells."""
        return {path.stem for path in (self.root / "cells").glob("*.json")}

    def save(self, task: str, outcomes: Mapping[str, CellOutcome]) -> None:
        """All cells of a task, by identity."""
        pending = self.root / "pending" / f"{task}.json"
        content = {name: outcome.to_json() for name, outcome in outcomes.items()}
        with self._space():
            for name, outcome in outcomes.items():
                if outcome.weights:
                    save_file(self._tensors(name), _TENSORS, outcome.tensors(), {})
            atomic_write(pending, _bytes(content))
            self._settle(pending, content)

    def _settle(self, pending: Path, content: Mapping[str, Any]) -> None:
        for name, outcome in content.items():
            if not self._path(
                name
            ).exists():  # a killed run may have written some of them, and they are whole
                atomic_write(self._path(name), _bytes(outcome))
        pending.unlink()

    def load(self, cell: Cell | str) -> CellOutcome:
        """A finished cell, or the one with this identity."""
        if isinstance(cell, str):
            name = cell
        else:
            name = cell.id
        path = self._path(name)
        if not path.exists():
            if isinstance(cell, str):
                label = name
            else:
                label = cell.label
            raise FileError(
                f"{label} is not among the finished cells of {str(self.root)!r}; run it first."
            )
        content = read_json(path)
        try:
            if content.get("tensors"):
                tensors = load_file(self._tensors(name), _TENSORS)[0]
            else:
                tensors = None
            return CellOutcome.from_json(content, tensors)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FileError(
                f"{str(path)!r} is damaged ({error}); delete it to redo that cell."
            ) from error

    def has_model(self, cell: Cell) -> bool:
        """Whether the cell is done and its weights are kept."""
        return self._path(cell.id).exists() and self._tensors(cell.id).exists()

    def load_model(self, cell: Cell, model: nn.Module) -> nn.Module:
        """Put the cell's weights into a model of its shape."""
        load_weights(model, self.load(cell).weights, str(self._tensors(cell.id)))
        return model

    def checkpoint(self, task: str) -> Path:
        return self.root / "checkpoints" / f"{task}.safetensors"

    def heartbeat(self, task: str) -> Path:
        """Where a worker writes how far it is."""
        return self.root / "running" / task

    def vae(self, x: Tensor) -> VAE:
        """The VAE of these training rows, fitted once for all grids of the folder."""
        from counterfactual_training.models.vae import VAE, fit_vae

        name = hashlib.sha256(x.contiguous().numpy().tobytes()).hexdigest()[:20]
        path = self.root / "vae" / f"{name}.safetensors"
        if not path.exists():
            vae = fit_vae(x)
            save_file(
                path,
                _VAE,
                vae.state_dict(),
                {"latent": vae.latent_dim, "hidden": vae.mean.in_features},
            )
        tensors, content = load_file(path, _VAE)
        vae = VAE(x.shape[1], content["latent"], content["hidden"])
        load_weights(vae, tensors, str(path))
        return vae.eval().requires_grad_(False)

    def clear_heartbeats(self) -> None:
        """Remove what earlier runs left: this process holds the folder alone."""
        shutil.rmtree(self.root / "running", ignore_errors=True)
        (self.root / "running").mkdir(exist_ok=True)

    def clear(self, task: str) -> None:
        """Remove checkpoints and heartbeat of a finished task."""
        self.heartbeat(task).unlink(missing_ok=True)
        for part in self.checkpoint(task).parent.glob(f"{task}*"):  # one per group of the fleet
            part.unlink(missing_ok=True)

    def spent(self, grid: Grid) -> float:
        """Seconds that runs of this very grid have taken so far; an edited one begins at zero."""
        # No note yet, or a damaged one that is rewritten.
        with suppress(FileError, KeyError, TypeError, ValueError):
            found = read_json(self._record(grid))
            if Grid.from_content(found["grid"]) == grid:
                return float(found.get("seconds") or 0.0)
        return 0.0

    def record(
        self, grid: Grid, command: str, seconds: float | None = None, **more: Any
    ) -> None:
        """Remember which grid was run here, and for how long altogether."""
        entry = {
            "grid": asdict(grid),
            "command": command,
            "versions": versions(),
            "seconds": seconds,
            **more,
        }
        path = self._record(grid)
        content = _bytes(entry)
        if not path.exists() or path.read_bytes() != content:
            with self._space():
                atomic_write(path, content)

    def grids(self) -> dict[str, dict[str, Any]]:
        """What :meth:`record` noted, by name."""
        return {
            path.stem: read_json(path) for path in sorted((self.root / "grids").glob("*.json"))
        }

    def noted(self, grid: Grid) -> dict[str, Any]:
        """The command and the seconds that :meth:`record` noted of this grid, if any."""
        record = self.grids().get(self._record(grid).stem, {})
        return {name: record.get(name) for name in ("command", "seconds")}

    def kinds(self) -> list[tuple[Any, list[str]]]:
        """Of the paper's experiments: how much of them was run, and the finished cells of each such
        kind.
        """
        done = self.done()
        found = dict[str, tuple[Any, dict[str, None]]]()
        for note in self.grids().values():
            if "kind" in note:
                _, cells = found.setdefault(
                    json.dumps(note["kind"], sort_keys=True), (note["kind"], {})
                )
                cells |= {name: None for name in note["cells"] if name in done}
        return [(kind, list(cells)) for kind, cells in found.values() if cells]

    def _record(self, grid: Grid) -> Path:
        # The paper's experiments are run on parts of their data one after the other; each part
        # keeps its note.
        return self.root / "grids" / f"{grid.id if grid.alone else grid.name}.json"

    def _path(self, name: str) -> Path:
        return self.root / "cells" / f"{name}.json"

    def _tensors(self, name: str) -> Path:
        return self.root / "cells" / f"{name}.safetensors"

    @contextmanager
    def _space(self) -> Iterator[None]:
        """Explain a full disk."""
        try:
            yield
        except OSError as error:
            if not is_full(error):
                raise
            raise FileError(self.no_space()) from error

    def no_space(self) -> str:
        """The message about a full disk."""
        return (
            f"There is no space left for {str(self.root)!r}. The {len(self.done())} cells that "
            "are finished are "
            "kept; free some space, and the same command continues from there."
        )


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


def is_full(error: OSError) -> bool:
    """Whether the disk, or the user's quota, is full."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def _identity() -> dict[str, Any]:
    return {"format": FORMAT, "version": versions()[PACKAGE]}


def _bytes(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, separators=(",", ":")) + "\n").encode()
