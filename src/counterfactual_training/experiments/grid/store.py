"""A folder of finished grid cells: one small file each, whole or not there, safe against a kill at any moment.

A task ends with many cells at once. Its results are first written as one file under ``pending``, then cell by cell;
what a kill interrupts is finished by whoever opens the folder next, so nothing is lost and nothing runs twice.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from counterfactual_training.errors import FileError
from counterfactual_training.experiments.grid.grid import FORMAT, Grid, GridCell
from counterfactual_training.experiments.paper.store import versions
from counterfactual_training.models.vae import VAE, fit_vae
from counterfactual_training.persistence import atomic_write, load_file, load_weights, locked, save_file

_MARKER, _LOCK = "grid-store.json", ".lock"
_VAE = "VAE of a grid"


@dataclass(frozen=True, eq=False)
class Outcome:
    """What is known of a finished cell.

    Attributes:
        cell: its content.
        metrics: by name, ``(λ, runs)`` means over individuals; NaN where nothing is valid.
        numbers: single ones, such as the accuracy.
        history: by name, one value per epoch.
        stopped: why training ended early, if it did.
        seconds: of the task divided by its members: ``train`` and ``evaluate``.
    """

    cell: Mapping[str, Any]
    metrics: Mapping[str, np.ndarray]
    numbers: Mapping[str, float]
    history: Mapping[str, np.ndarray]
    stopped: str | None
    seconds: Mapping[str, float]

    def to_json(self) -> dict[str, Any]:
        return {
            "cell": self.cell,
            "metrics": {name: _plain(value) for name, value in self.metrics.items()},
            "numbers": {name: _plain(value) for name, value in self.numbers.items()},
            "history": {name: _plain(value) for name, value in self.history.items()},
            "stopped": self.stopped,
            "seconds": dict(self.seconds),
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Outcome:
        return cls(
            content["cell"],
            {name: np.array(value, dtype=float) for name, value in content["metrics"].items()},
            {name: math.nan if value is None else float(value) for name, value in content["numbers"].items()},
            {name: np.array(value, dtype=float) for name, value in content["history"].items()},
            content["stopped"],
            content["seconds"],
        )


class GridStore:
    """Outcomes by the content of their cells, all of one version of the package."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)
        if self.root.exists() and not self.root.is_dir():
            raise FileError(f"{str(self.root)!r} is a file; results of grids need a folder.")
        marker = self.root / _MARKER
        if marker.exists():
            self._check_marker(_read(marker))
        elif (self.root / "cells").is_dir() and any((self.root / "cells").iterdir()):
            raise FileError(f"{str(self.root)!r} holds cells but no {_MARKER} that says by which version they are.")
        elif (self.root / "store.json").exists():
            raise FileError(f"{str(self.root)!r} holds models of `ct reproduce`; name another folder for grids.")

    def _check_marker(self, found: Mapping[str, Any]) -> None:
        mine = _identity()
        if dict(found) != mine:
            raise FileError(
                f"{str(self.root)!r} was written by version {found.get('version')} of the package (format "
                f"{found.get('format')}), this is {mine['version']} (format {FORMAT}). Numbers of different versions "
                "do not belong in one table: name another folder, or delete this one."
            )

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Alone with the folder, made if need be, and with everything finished that a kill interrupted."""
        with self._space():
            self.root.mkdir(parents=True, exist_ok=True)
            with _alone(self.root / _LOCK, self.root):
                if not (self.root / _MARKER).exists():
                    atomic_write(self.root / _MARKER, _bytes(_identity()))
                self._tidy_up()
                yield

    def _tidy_up(self) -> None:
        """Finish what a kill interrupted, and remove the files it left half-written."""
        for folder in ("cells", "pending"):
            for half in (self.root / folder).glob(".*"):
                half.unlink(missing_ok=True)
        for pending in sorted((self.root / "pending").glob("*.json")):
            self._settle(pending, _read(pending))

    def done(self) -> set[str]:
        """Identities of all finished cells."""
        return {path.stem for path in (self.root / "cells").glob("*.json")}

    def save(self, task: str, outcomes: Mapping[str, Outcome]) -> None:
        """All cells of a task, by identity."""
        pending = self.root / "pending" / f"{task}.json"
        content = {name: outcome.to_json() for name, outcome in outcomes.items()}
        with self._space():
            atomic_write(pending, _bytes(content))
            self._settle(pending, content)

    def _settle(self, pending: Path, content: Mapping[str, Any]) -> None:
        for name, outcome in content.items():
            if not self._path(name).exists():
                atomic_write(self._path(name), _bytes(outcome))
        pending.unlink()

    def load(self, cell: GridCell) -> Outcome:
        """A finished cell."""
        path = self._path(cell.id)
        if not path.exists():
            raise FileError(f"{cell.id} is not among the finished cells of {str(self.root)!r}; run its grid first.")
        try:
            return Outcome.from_json(_read(path))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FileError(f"{str(path)!r} is damaged ({error}); delete it to redo that cell.") from error

    def checkpoint(self, task: str) -> Path:
        return self.root / "checkpoints" / f"{task}.safetensors"

    def heartbeat(self, task: str) -> Path:
        """Where a worker says how far it is."""
        return self.root / "running" / task

    def vae(self, x: Tensor) -> VAE:
        """The VAE of these training rows, fitted once for all grids of the folder."""
        name = hashlib.sha256(x.contiguous().numpy().tobytes()).hexdigest()[:20]
        path = self.root / "vae" / f"{name}.safetensors"
        if not path.exists():
            vae = fit_vae(x)
            save_file(path, _VAE, vae.state_dict(), {"latent": vae.latent_dim, "hidden": vae.mean.in_features})
        tensors, content = load_file(path, _VAE)
        vae = VAE(x.shape[1], content["latent"], content["hidden"])
        load_weights(vae, tensors, str(path))
        return vae.eval().requires_grad_(False)

    def clear_heartbeats(self) -> None:
        """Whoever left them is dead: this process is alone with the folder."""
        folder = self.root / "running"
        folder.mkdir(exist_ok=True)
        for left in folder.iterdir():
            left.unlink(missing_ok=True)

    def clear(self, tasks: Sequence[str]) -> None:
        """Forget how far these tasks were."""
        for task in tasks:
            self.heartbeat(task).unlink(missing_ok=True)
            for part in self.checkpoint(task).parent.glob(f"{task}*"):  # one per group of the fleet
                part.unlink(missing_ok=True)

    def spent(self, grid: Grid) -> float:
        """Seconds that runs of this very grid have taken so far; an edited one begins anew."""
        with suppress(FileError):  # there is no note yet, or it is damaged and written anew
            found = _read(self._record(grid))
            if found.get("grid") == json.loads(json.dumps(asdict(grid))):
                return float(found.get("seconds") or 0.0)
        return 0.0

    def record(self, grid: Grid, command: str, seconds: float | None = None) -> None:
        """Remember which grid was run here, and for how long altogether."""
        entry = {"grid": asdict(grid), "command": command, "versions": versions(), "seconds": seconds}
        with self._space():
            atomic_write(self._record(grid), _bytes(entry))

    def grids(self) -> dict[str, dict[str, Any]]:
        """What :meth:`record` noted, by name."""
        return {path.stem: _read(path) for path in sorted((self.root / "grids").glob("*.json"))}

    def _record(self, grid: Grid) -> Path:
        return self.root / "grids" / f"{grid.name}.json"

    def _path(self, name: str) -> Path:
        return self.root / "cells" / f"{name}.json"

    @contextmanager
    def _space(self) -> Iterator[None]:
        """A full disk, said so that the reader knows what is safe."""
        try:
            yield
        except OSError as error:
            if not is_full(error):
                raise
            raise FileError(self.no_space()) from error

    def no_space(self) -> str:
        """What to say of a full disk."""
        return (
            f"There is no space left for {str(self.root)!r}. The {len(self.done())} cells that are finished are "
            "kept; make room, and the same command goes on from there."
        )


def is_full(error: OSError) -> bool:
    """Whether the disk, or what we may use of it, is used up."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def _alone(lock: Path, root: Path) -> Iterator[None]:
    """Refuse a second run on the folder instead of letting it wait for hours."""
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(lock, 0.0))
        except FileError as error:
            text = "Another run is writing to it" if error.__cause__ is None else str(error)
            raise FileError(f"{str(root)!r} cannot be written to now. {text}; wait, or name another folder.") from error
        yield


def _identity() -> dict[str, Any]:
    return {"format": FORMAT, "version": versions()["counterfactual-training"]}


def _plain(value: Any) -> Any:
    """Numbers as JSON knows them: what is none becomes null, and digits beyond float32 are noise."""
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, list):
        return [_plain(entry) for entry in value]
    return float(f"{value:.8g}") if math.isfinite(value) else None


def _bytes(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, separators=(",", ":")) + "\n").encode()


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FileError(f"{str(path)!r} is damaged ({type(error).__name__}); delete it to redo that cell.") from error
    if not isinstance(content, dict):
        raise FileError(f"{str(path)!r} is damaged: it holds no table.")
    return content
