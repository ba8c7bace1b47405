"""Save a run after its epochs, and go on from there as if it had never stopped."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from counterfactual_training.constraints import Constraints
from counterfactual_training.errors import FileError
from counterfactual_training.persistence import flatten_state, load_file, load_weights, save_file, unflatten_state
from counterfactual_training.search import Generator
from counterfactual_training.training.callbacks import Callback, Run
from counterfactual_training.training.config import TrainConfig
from counterfactual_training.training.objective import Objective

_KIND = "training checkpoint"


class Checkpoint(Callback):
    """Writes one file atomically every few epochs.

    Randomness needs no saving: every epoch draws from its own seed (:func:`sampling.epoch_rng`).
    """

    def __init__(self, path: str | Path, fingerprint: str, every: int = 1) -> None:
        self.path, self.fingerprint, self.every = Path(path), fingerprint, every

    def resume(self, run: Run) -> None:
        """Bring a run to the saved state, if there is one; a file of another run is refused."""
        if not self.path.exists():
            return
        tensors, content = load_file(self.path, _KIND)
        if content.get("fingerprint") != self.fingerprint:
            raise FileError(
                f"The checkpoint {str(self.path)!r} belongs to another run (other data, model or settings). "
                "Give this run a path of its own, or delete the file."
            )
        try:
            state = unflatten_state(tensors, content["state"])
            load_weights(run.model, state["model"], str(self.path))
            run.optimizer.load_state_dict(state["optimizer"])
            run.history.records, run.epoch = content["records"], content["epoch"]
        except (KeyError, TypeError, ValueError) as error:
            raise FileError(f"The checkpoint {str(self.path)!r} is damaged: {error}.") from error

    def on_epoch_end(self, run: Run) -> None:
        if run.epoch % self.every == 0 or run.epoch == run.config.epochs:
            state = {"model": run.model.state_dict(), "optimizer": run.optimizer.state_dict()}
            tensors, plain = flatten_state(state)
            content = {
                "fingerprint": self.fingerprint,
                "epoch": run.epoch,
                "records": run.history.records,
                "state": plain,
            }
            save_file(self.path, _KIND, tensors, content)


def fingerprint(
    model: torch.nn.Module,
    x: Tensor,
    y: Tensor,
    generator: Generator,
    constraints: Constraints,
    objective: Objective,
    config: TrainConfig,
) -> str:
    """A digest of all that decides what a run computes, except the weights it starts from."""
    settings: dict[str, Any] = asdict(config)
    settings.pop("threads")
    shapes = {name: list(value.shape) for name, value in model.state_dict().items()}
    digest = hashlib.sha256(json.dumps([settings, shapes, repr(generator), repr(vars(objective))]).encode())
    digest.update(repr((constraints.groups, constraints.lattices, constraints.category_projection)).encode())
    box = (constraints.may_increase, constraints.may_decrease, constraints.domain.lower, constraints.domain.upper)
    for tensor in (x, y, *box):
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
