"""The store of all runs: one folder of small files, each complete or absent, safe against a kill at
any moment.

A run is a JSON file, named by the content of the run. Beside it, written before it, are a CSV file
where individuals were measured, and a file of tensors where the model is kept. A fleet finishes
many runs at once: their results are first written as one file under ``pending``, then run by run;
the next process that opens the folder finishes what a kill interrupted, so nothing is lost and
nothing runs twice.
"""

from __future__ import annotations

import errno
import io
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
from torch import nn

from counterfactual_lab.runs.outcome import Outcome
from counterfactual_lab.runs.run import FORMAT, R, Run
from counterfactual_training.errors import FileError
from counterfactual_training.persistence import (
    atomic_write,
    load_file,
    load_weights,
    locked,
    save_file,
)
from counterfactual_training.versions import PACKAGE, versions

_MARKER = "store.json"
_LOCK = ".lock"
_TENSORS = "tensors of a run"
# Single precision has no more than seven digits.
_NUMBER = "%.7g"
# Columns whose texts may look like numbers.
_TEXTS = {"data": str, "model": str, "setting": str, "tau": str}


class Store:
    """Outcomes by the content of their runs, all of one version of the package.

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
        elif (self.root / "runs").is_dir() and any((self.root / "runs").iterdir()):
            raise FileError(
                f"{str(self.root)!r} holds runs but no {_MARKER} with their version."
            )

    def _check_version(self, identity: Mapping[str, Any], any_version: bool) -> None:
        mine = _identity()
        if identity != mine and not any_version:
            raise FileError(
                f"{str(self.root)!r} was written by version {identity.get('version')} of the "
                "package (format "
                f"{identity.get('format')}), this is {mine['version']} (format {FORMAT}). Numbers "
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
            for folder in ("runs", "pending"):
                for half_written in (self.root / folder).glob(".*"):
                    half_written.unlink(missing_ok=True)
            for pending in sorted((self.root / "pending").glob("*.json")):
                self._settle(read_json(pending))
                pending.unlink()
            yield

    def done(self) -> set[str]:
        """Identities of all finished runs."""
        return {path.stem for path in (self.root / "runs").glob("*.json")}

    def has(self, run: Run) -> bool:
        """Whether the run is finished."""
        return self._path(run.id).exists()

    def save(self, job: str, outcomes: Mapping[str, Outcome[Any]]) -> None:
        """All runs of a job, by identity; those that are finished already stay as they are."""
        outcomes = {
            name: outcome for name, outcome in outcomes.items() if not self._path(name).exists()
        }
        pending = self.root / "pending" / f"{job}.json"
        content = {name: outcome.to_json() for name, outcome in outcomes.items()}
        with self._space():
            for name, outcome in outcomes.items():
                if outcome.weights:
                    save_file(self._tensors(name), _TENSORS, outcome.tensors(), {})
                if outcome.rows is not None:
                    atomic_write(self._rows(name), _csv(outcome.rows))
            if len(content) > 1:
                atomic_write(pending, _bytes(content))
            self._settle(content)
            pending.unlink(missing_ok=True)

    def _settle(self, content: Mapping[str, Any]) -> None:
        for name, outcome in content.items():
            # A killed process may have written some of them, which are complete.
            if not self._path(name).exists():
                atomic_write(self._path(name), _bytes(outcome))

    def content(self, name: str) -> dict[str, Any]:
        """What the file of a finished run says, by identity; its key ``run`` describes the run."""
        path = self._path(name)
        if not path.exists():
            raise FileError(
                f"{name} is not among the finished runs of {str(self.root)!r}; run it first."
            )
        return read_json(path)

    def load(self, run: R) -> Outcome[R]:
        """What is known of a finished run."""
        path = self._path(run.id)
        if not self.has(run):
            raise FileError(
                f"{run.label} is not among the finished runs of {str(self.root)!r}; run it first."
            )
        content = read_json(path)
        try:
            tensors = None
            if content["tensors"]:
                tensors = load_file(self._tensors(run.id), _TENSORS)[0]
            rows = None
            if content["rows"]:
                rows = pd.read_csv(self._rows(run.id), dtype=_TEXTS)
            return Outcome.from_json(run, content, tensors, rows)
        except (KeyError, TypeError, ValueError, AttributeError, OSError) as error:
            raise FileError(
                f"{str(path)!r} is damaged ({error}); delete it to redo that run."
            ) from error

    def has_model(self, run: Run) -> bool:
        """Whether the run is done and its weights are kept."""
        return self.has(run) and self._tensors(run.id).exists()

    def load_model(self, run: Run, model: nn.Module) -> nn.Module:
        """Put the run's weights into a model of its shape."""
        load_weights(model, self.load(run).weights, str(self._tensors(run.id)))
        return model

    def checkpoint(self, job: str) -> Path:
        return self.root / "checkpoints" / f"{job}.safetensors"

    def heartbeat(self, job: str) -> Path:
        """Where a worker writes how far it is."""
        return self.root / "running" / job

    def clear_heartbeats(self) -> None:
        """Remove what earlier runs left: this process holds the folder alone."""
        shutil.rmtree(self.root / "running", ignore_errors=True)
        (self.root / "running").mkdir(exist_ok=True)

    def clear(self, job: str) -> None:
        """Remove checkpoints and heartbeat of a finished job."""
        self.heartbeat(job).unlink(missing_ok=True)
        for part in self.checkpoint(job).parent.glob(f"{job}*"):  # one per group of the fleet
            part.unlink(missing_ok=True)

    def note(self, name: str, content: Mapping[str, Any]) -> None:
        """Keep what was run here, beside the runs; a note of that name is replaced."""
        path = self.root / "notes" / f"{name}.json"
        text = _bytes(content)
        if not path.exists() or path.read_bytes() != text:
            with self._space():
                atomic_write(path, text)

    def notes(self) -> dict[str, dict[str, Any]]:
        """What :meth:`note` kept, by name."""
        return {
            path.stem: read_json(path) for path in sorted((self.root / "notes").glob("*.json"))
        }

    def _path(self, name: str) -> Path:
        return self.root / "runs" / f"{name}.json"

    def _rows(self, name: str) -> Path:
        return self.root / "runs" / f"{name}.csv"

    def _tensors(self, name: str) -> Path:
        return self.root / "runs" / f"{name}.safetensors"

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
            f"There is no space left for {str(self.root)!r}. The {len(self.done())} runs that "
            "are finished are "
            "kept; free some space, and the same command continues from there."
        )


def read_json(path: Path) -> dict[str, Any]:
    """The table in a file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FileError(
            f"{str(path)!r} is damaged ({type(error).__name__}); delete it to redo that run."
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


def _csv(table: pd.DataFrame) -> bytes:
    text = io.StringIO()
    table.to_csv(text, index=False, float_format=_NUMBER, lineterminator="\n")
    return text.getvalue().encode()
