"""Save a run while it trains, and continue from there as if it had never stopped."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from counterfactual_training.errors import FileError
from counterfactual_training.persistence import (
    flatten_state,
    load_file,
    save_file,
    unflatten_state,
)
from counterfactual_training.training.fingerprint import fingerprint
from counterfactual_training.training.run import Run

_KIND = "training checkpoint"
# Saving may take at most this fraction of the time, 1/20: epochs may be faster than the disk.
_SPARING = 20
_DAMAGE = (LookupError, TypeError, ValueError, AttributeError, RuntimeError, RecursionError)


class Checkpoint:
    """One file, written atomically after epochs.

    Randomness needs no saving: every epoch draws from its own seed (:func:`sampling.epoch_rng`).
    """

    def __init__(self, path: str | Path, run: Run, shared: bool = False) -> None:
        """With ``shared`` several runs may use the path; each gets a file of its own beside it."""
        self.path = Path(path)
        self.fingerprint = fingerprint(run)
        if shared:
            name = (
                f"{self.path.stem}-{self.fingerprint[:12]}{self.path.suffix or '.safetensors'}"
            )
            self.path = self.path.with_name(name)
        self.saved = 0.0
        self.took = 0.0
        self.pending: dict[str, Any] | None = None

    def resume(self, run: Run) -> None:
        """Restore a new run from the file, if it exists; raises for the file of another run."""
        saved = self.saved_content()
        if isinstance(saved, FileError):
            raise saved
        if saved is None:
            return
        tensors, content = saved
        if content.get("fingerprint") != self.fingerprint:
            raise FileError(
                f"The checkpoint {str(self.path)!r} belongs to another run (other data, model, "
                "settings or callbacks). "
                "Give this run a path of its own, or delete the file."
            )
        self.before = copy.deepcopy(run.model.state_dict())
        with self._restoring(run):
            state = unflatten_state(tensors, content["state"])
            run.restore({**state, "epoch": content["epoch"], "records": content["records"]})
            self.pending = state

    def saved_content(self) -> Any:
        """The content of the file, or the error."""
        try:
            if self.path.exists():
                return load_file(self.path, _KIND)
            return None
        except FileError as error:
            return error

    def resume_optimizer(self, run: Run) -> None:
        """Restore optimizer and callbacks, after schedulers, which set the learning rate."""
        if self.pending is None:
            return
        state = self.pending
        self.pending = None
        with self._restoring(run):
            run.optimizer.load_state_dict(state["optimizer"])
            for callback, state_of_callback in zip(
                run.listeners("state_dict"), state["listeners"], strict=True
            ):
                callback.load_state_dict(state_of_callback)

    def save(self, run: Run) -> None:
        """Write the file, unless that was done very recently; the last epoch is always written."""
        started = time.perf_counter()
        last = run.epoch == run.epochs or not run.running
        if not last and started - self.saved < _SPARING * self.took:
            return
        state = {
            **run.state(),
            "listeners": [callback.state_dict() for callback in run.listeners("state_dict")],
        }
        plain = {"epoch": state.pop("epoch"), "records": state.pop("records")}
        tensors, table = flatten_state(state)
        save_file(
            self.path,
            _KIND,
            tensors,
            {"fingerprint": self.fingerprint, **plain, "state": table},
        )
        self.saved = time.perf_counter()
        self.took = self.saved - started

    @contextmanager
    def _restoring(self, run: Run) -> Iterator[None]:
        """Undo everything if the file does not fit, such as one of another version."""
        try:
            yield
        except _DAMAGE as error:
            if not run.lead:  # members of a fleet get their weights at the end
                run.model.load_state_dict(self.before)
            what = f"The checkpoint {str(self.path)!r} is damaged, or of another version"
            raise FileError(f"{what}: {error}. Delete it to start again.") from error
