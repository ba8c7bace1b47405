"""The conformal sets behind ``eccco`` beside MAPIE's, from the same probabilities: they must be the
same sets.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import counterfactual_training as ct
from benchmarks.environments import Environments, Peer
from benchmarks.report import Table, Value
from counterfactual_training.core.losses import softmax
from counterfactual_training.generators.data_penalties import SetSize

COVERAGES = (0.5, 0.8, 0.9, 0.95, 0.99)
# Calibration rows; at 19, 99 and 999 some (m + 1)·coverage are whole.
SIZES = (
    19,
    21,
    99,
    101,
    999,
    3001,
)
CLASSES = (2, 10)
TEST = 2000
COLUMNS = (
    "classes",
    "calibration rows",
    "coverages",
    "quantiles, largest gap",
    "sets",
    "sets that differ",
    "covered",
)
NOTE = f"""
`SetSize`, the term of `eccco`, calibrates a network with random weights on labels drawn from its
own probabilities; MAPIE's `SplitConformalClassifier` (LAC, prefit) gets the same probabilities.
Sets of {TEST:,} other rows at coverages {", ".join(map(str, COVERAGES))}, as far as MAPIE takes
them: it wants more than 1/(1 − coverage) calibration rows, where ours takes one less than that.
*Covered*: share of the true classes in the sets, beside the coverage asked for. """


def run(places: Environments, _: bool) -> tuple[list[Table], list[str]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cases = {(k, m): make_case(k, m) for k in CLASSES for m in SIZES}
        arrays = {
            f"{k}-{m}-{part}": case[part] for (k, m), case in cases.items() for part in case
        }
        np.savez(folder / "cases.npz", **arrays)
        try:
            peer = Peer.foreign(
                places, "mapie", "mapie_sets.py", str(folder / "cases.npz"), one_thread=True
            )
        except FileNotFoundError as missing:
            return [], [str(missing)]
        with peer:
            rows = [
                compare(peer, k, m, case, folder / "sets.npy") for (k, m), case in cases.items()
            ]
    return [Table(COLUMNS, rows, note=NOTE)], []


def make_case(num_classes: int, size: int) -> dict[str, np.ndarray]:
    """Rows and probabilities to calibrate on and to judge, with labels drawn from these
    probabilities.
    """
    rng = torch.Generator().manual_seed(size)
    torch.manual_seed(num_classes)
    model = ct.mlp(5, num_classes, (32,))
    x = torch.randn(size + TEST, 5, generator=rng)
    with torch.no_grad():
        logits = 4 * model(x)
    probability = softmax(logits)
    labels = torch.multinomial(probability, 1, generator=rng).squeeze(-1)
    return {
        "logits": logits[:size].numpy(),
        "calibration": probability[:size].numpy(),
        "labels": labels[:size].numpy(),
        "test": probability[size:].numpy(),
        "truth": labels[size:].numpy(),
    }


def our_sets(case: dict[str, np.ndarray], coverage: float) -> tuple[float, Tensor]:
    """q̂, and the sets ``{k: 1 − p_k ≤ q̂}`` as a mask ``(n, k)``."""
    logits = torch.tensor(case["logits"])
    labels = torch.tensor(case["labels"])
    # The "network" answers calibration rows by their logits.
    quantile = SetSize(1.0, logits, labels, coverage).prepare(lambda rows: rows).quantile
    return float(quantile), 1 - torch.tensor(case["test"]) <= quantile


def compare(
    peer: Peer, num_classes: int, size: int, case: dict[str, np.ndarray], out: Path
) -> tuple[Value, ...]:
    """One line: all coverages that MAPIE takes with so many calibration rows."""
    allowed = [c for c in COVERAGES if size > 1 / (1 - c) + 1e-9]
    gap = 0.0
    differ = 0
    covered = []
    for coverage in allowed:
        quantile, sets = our_sets(case, coverage)
        theirs = peer.ask(case=f"{num_classes}-{size}", coverage=coverage, out=str(out))[
            "quantile"
        ]
        gap = max(gap, abs(theirs - quantile))
        differ += int((torch.tensor(np.load(out)) != sets).any(-1).sum())
        share = sets.gather(-1, torch.tensor(case["truth"]).unsqueeze(-1)).float().mean()
        covered.append(f"{coverage:g}: {float(share):.3f}")
    return (
        num_classes,
        size,
        len(allowed),
        f"{gap:.1g}",
        len(allowed) * TEST,
        differ,
        ", ".join(covered),
    )
