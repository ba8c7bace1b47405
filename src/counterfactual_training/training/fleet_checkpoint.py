"""Save a fleet while it trains, and go on from there."""

from __future__ import annotations

import hashlib
import json
import re
import time
from dataclasses import asdict
from pathlib import Path

from counterfactual_training.constraints import Constraints
from counterfactual_training.errors import FileError
from counterfactual_training.persistence import load_file, save_file
from counterfactual_training.search import LatentSpace
from counterfactual_training.training.fleet_run import FleetRun, Member

_KIND = "fleet checkpoint"
# A fleet's epoch may take milliseconds; this bounds both what a kill costs and what saving costs.
_SECONDS_BETWEEN = 10.0


class FleetCheckpoint:
    """One file per group of members, named after the path it was given and the group."""

    def __init__(self, path: str | Path, run: FleetRun) -> None:
        self.fingerprint = fingerprint(run)
        path = Path(path)
        self.path = path.with_name(f"{path.stem}-{self.fingerprint[:12]}{path.suffix or '.safetensors'}")
        self.saved = time.monotonic()

    def resume(self, run: FleetRun) -> None:
        """Bring a run that has just been made to the saved state, if there is one."""
        if not self.path.exists():
            return
        tensors, content = load_file(self.path, _KIND)
        if content.get("fingerprint") != self.fingerprint:
            raise FileError(f"The checkpoint {str(self.path)!r} belongs to another fleet; delete it.")
        try:
            run.restore(tensors, content)
        except (LookupError, TypeError, ValueError, RuntimeError) as error:
            raise FileError(
                f"The checkpoint {str(self.path)!r} is damaged: {error}. Delete it to start anew."
            ) from error

    def save(self, run: FleetRun) -> None:
        """Write the file, unless that was a moment ago; the last epoch is always written."""
        now = time.monotonic()
        if now - self.saved < _SECONDS_BETWEEN and run.epoch < run.epochs and run.running:
            return
        tensors, content = run.state()
        save_file(
            self.path,
            _KIND,
            {n: t.contiguous() for n, t in tensors.items()},
            {"fingerprint": self.fingerprint, **content},
        )
        self.saved = now


def fingerprint(run: FleetRun) -> str:
    """A digest of all that decides what the group computes: data, start weights, and every member's settings."""
    digest = hashlib.sha256(json.dumps([_settings(member) for member in run.settings]).encode())
    vaes = {
        id(m.generator.space.vae): m.generator.space.vae
        for m in run.settings
        if isinstance(m.generator.space, LatentSpace)
    }
    tensors = [run.data.x, run.data.y, run.stacked.weights, *run.stacked.stacked_buffers.values()]
    tensors += [value for vae in vaes.values() for value in vae.state_dict().values()]
    for member in run.settings:
        tensors += _box(member.constraints)
    for tensor in tensors:
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _settings(member: Member) -> list[object]:
    config = asdict(member.config)
    config.pop("threads")
    # A penalty may be a plain function; where it lies in memory changes from process to process.
    recipe = re.sub(r" at 0x[0-9a-fA-F]+", "", repr(member.generator))
    return [config, recipe, repr(vars(member.objective)), repr(member.model), _rules(member.constraints)]


def _rules(constraints: Constraints | None) -> str:
    if constraints is None:
        return ""
    return repr((constraints.groups, constraints.lattices, constraints.category_projection))


def _box(constraints: Constraints | None) -> list:
    if constraints is None:
        return []
    return [constraints.may_increase, constraints.may_decrease, constraints.domain.lower, constraints.domain.upper]
