"""Save a run after its epochs, and go on from there as if it had never stopped."""

from __future__ import annotations

import copy
import hashlib
import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from counterfactual_training.constraints import Constraints
from counterfactual_training.errors import FileError
from counterfactual_training.persistence import flatten_state, load_file, load_weights, save_file, unflatten_state
from counterfactual_training.search import Generator, LatentSpace
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
        weights = copy.deepcopy(run.model.state_dict())
        try:
            records, epoch = _checked_records(content, run.config)
            state = unflatten_state(tensors, content["state"])
            load_weights(run.model, state["model"], str(self.path))
            run.optimizer.load_state_dict(state["optimizer"])
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            run.model.load_state_dict(weights)
            raise FileError(f"The checkpoint {str(self.path)!r} is damaged: {error}.") from error
        run.history.records, run.epoch = records, epoch

    def on_epoch_end(self, run: Run) -> None:
        # An unsound state is not worth going back to: a resumed run repeats these epochs from the last sound one.
        if run.sound and (run.epoch % self.every == 0 or run.epoch == run.config.epochs):
            state = {"model": run.model.state_dict(), "optimizer": run.optimizer.state_dict()}
            tensors, plain = flatten_state(state)
            content = {
                "fingerprint": self.fingerprint,
                "epoch": run.epoch,
                "records": run.history.records,
                "state": plain,
            }
            save_file(self.path, _KIND, tensors, content)


def _checked_records(content: dict[str, Any], config: TrainConfig) -> tuple[list[dict[str, Any]], int]:
    records, epoch = content["records"], content["epoch"]
    if type(epoch) is not int or not 0 <= epoch <= config.epochs:
        raise ValueError(f"epoch {epoch!r} of {config.epochs}")
    if not isinstance(records, list) or len(records) != epoch or not all(isinstance(r, dict) for r in records):
        raise ValueError("its records are not one table per epoch")
    return records, epoch


def fingerprint(
    run: Run, x: Tensor, y: Tensor, generator: Generator, constraints: Constraints, objective: Objective
) -> str:
    """A digest of all that decides what a run computes, except the weights it starts from."""
    settings: dict[str, Any] = asdict(run.config)
    settings.pop("threads")
    shapes = {name: list(value.shape) for name, value in run.model.state_dict().items()}
    # A penalty may be a plain function; where it lies in memory changes from process to process.
    recipe = re.sub(r" at 0x[0-9a-fA-F]+", "", repr(generator))
    groups = [{k: v for k, v in group.items() if k != "params"} for group in run.optimizer.param_groups]
    optimizer = f"{type(run.optimizer).__name__} {groups}"
    plain = [settings, shapes, optimizer, recipe, repr(vars(objective))]
    digest = hashlib.sha256(json.dumps(plain).encode())
    digest.update(repr((constraints.groups, constraints.lattices, constraints.category_projection)).encode())
    box = (constraints.may_increase, constraints.may_decrease, constraints.domain.lower, constraints.domain.upper)
    vae = generator.space.vae.state_dict() if isinstance(generator.space, LatentSpace) else {}
    for tensor in (x, y, *box, *vae.values()):
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
