"""Beside the runs of a store: which grids were run there, and the VAE that they share."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from torch import Tensor

from counterfactual_lab.grids.grid import Grid
from counterfactual_lab.runs.store import Store
from counterfactual_training.errors import FileError
from counterfactual_training.persistence import load_file, load_weights, save_file
from counterfactual_training.versions import versions

if TYPE_CHECKING:
    from counterfactual_training.models.vae import VAE

_VAE = "VAE of a grid"


def note_grid(
    store: Store, grid: Grid, command: str, seconds: float | None = None, **more: Any
) -> None:
    """Remember which grid was run, and for how long altogether."""
    entry = {
        "grid": asdict(grid),
        "command": command,
        "versions": versions(),
        "seconds": seconds,
        **more,
    }
    store.note(_name(grid), entry)


def seconds_spent(store: Store, grid: Grid) -> float:
    """Seconds that this very grid has taken so far; an edited one begins at zero."""
    # No note yet, or a damaged one that is replaced.
    with suppress(FileError, KeyError, TypeError, ValueError):
        note = store.notes()[_name(grid)]
        if Grid.from_content(note["grid"]) == grid:
            return float(note.get("seconds") or 0.0)
    return 0.0


def noted(store: Store, grid: Grid) -> dict[str, Any]:
    """The command and the seconds that :func:`note_grid` noted of this grid, if any."""
    note = store.notes().get(_name(grid), {})
    return {name: note.get(name) for name in ("command", "seconds")}


def noted_kinds(store: Store) -> list[tuple[Any, list[str]]]:
    """Of the paper's experiments: how much of them was run, and the identities of the finished runs
    of each such kind.
    """
    done = store.done()
    kinds = dict[str, tuple[Any, dict[str, None]]]()
    for note in store.notes().values():
        if "kind" in note:
            _, runs = kinds.setdefault(
                json.dumps(note["kind"], sort_keys=True), (note["kind"], {})
            )
            runs |= {name: None for name in note["runs"] if name in done}
    return [(kind, list(runs)) for kind, runs in kinds.values() if runs]


def shared_vae(store: Store, x: Tensor) -> VAE:
    """The VAE of these training rows, fitted once for all grids of the folder."""
    from counterfactual_training.models.vae import VAE, fit_vae

    name = hashlib.sha256(x.contiguous().numpy().tobytes()).hexdigest()[:20]
    path = store.root / "vae" / f"{name}.safetensors"
    if not path.exists():
        fitted = fit_vae(x)
        save_file(
            path,
            _VAE,
            fitted.state_dict(),
            {"latent": fitted.latent_dim, "hidden": fitted.mean.in_features},
        )
    tensors, content = load_file(path, _VAE)
    vae = VAE(x.shape[1], content["latent"], content["hidden"])
    load_weights(vae, tensors, str(path))
    return vae.eval().requires_grad_(False)


def _name(grid: Grid) -> str:
    # The paper's experiments are run on parts of their data one after the other; each part
    # keeps its note.
    if grid.alone:
        return grid.id
    return grid.name
