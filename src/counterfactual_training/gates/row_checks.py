"""Errors and warnings about the rows that a gate is fitted to."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from counterfactual_training.constraints import Constraints
from counterfactual_training.errors import InputError
from counterfactual_training.gates.calibration import FEWEST_ROWS
from counterfactual_training.gates.gated import Gate
from counterfactual_training.search import evaluating
from counterfactual_training.search.model_checks import check_inputs, first_logits

# Rows that a gate of each kind needs of a class: a learned one holds out as many as it learns from.
NEEDED = {"density": FEWEST_ROWS, "learned": 2 * FEWEST_ROWS}
# From this ratio on, columns differ in scale or are far from standard; from this many deviations, far from zero.
_RATIO, _OFFSET = 50.0, 100.0
_SAMPLED = 10_000
# The range from 10 % to 90 % of a normal distribution, in standard deviations.
_NORMAL = 2.563


def check_rows(model: nn.Module, x: Tensor, y: Tensor) -> int:
    """The number of classes k; raise unless the model fits rows x ``(n, *features)`` with classes y ``(n,)``."""
    check_inputs(model, x, y)
    if y.dim() != 1 or len(y) == 0:
        raise InputError(f"A gate needs rows: x (n, *features) and y (n,), got y of shape {tuple(y.shape)}.")
    with evaluating(model), torch.no_grad():
        num_classes = first_logits(model, x[:64], y[:64]).shape[-1]
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= num_classes:
        raise InputError(f"Classes must lie in 0..{num_classes - 1}, got {low}..{high}.")
    return num_classes


def few_rows(gate: Gate, y: Tensor, names: Sequence[str]) -> str | None:
    """A warning about the classes that a gate cannot judge because they have too few rows; ``None`` if it can."""
    counts = torch.bincount(y.cpu(), minlength=len(names)).tolist()
    masks = [(entry["kind"], part.judged.tolist()) for part in gate.lone for entry in part.describe()]

    def told(kind: str, labels: list[int]) -> str:
        rows = ", ".join(f"{names[k]} ({counts[k]} rows)" for k in labels)
        return f"stands open for {rows}: at least {NEEDED[kind]} rows are needed."

    said = []
    nobody = [k for k in range(len(names)) if not any(judged[k] for _, judged in masks)]
    if nobody:
        least = min((kind for kind, _ in masks), key=NEEDED.__getitem__)
        said.append(f"the gate {told(least, nobody)} Counterfactuals for these classes may be implausible.")
    for kind, judged in masks:
        alone = [k for k in range(len(names)) if not judged[k] and k not in nobody]
        if alone:
            said.append(f"the {kind} part of the gate {told(kind, alone)} Only the other part judges these classes.")
    return f"Too few rows to judge what is plausible: {' Also '.join(said)}" if said else None


def odd_scales(x: Tensor, constraints: Constraints) -> str | None:
    """A warning if rows x ``(n, d)`` are not on a common scale near 1; ``None`` if they are, or are images.

    A heavy tail has a small 10-90 % range and a large deviation, and a column that is mostly 0 has no range. A column
    counts as small or large only if range and deviation both are. Categories and binary columns are left out.
    """
    if x.dim() != 2:
        return None
    rows = x[:: 1 + len(x) // _SAMPLED]
    low, middle, high = rows.quantile(rows.new_tensor([0.1, 0.5, 0.9]), 0)
    between = ((rows != rows.amin(0)) & (rows != rows.amax(0))).any(0)
    columns = between & (high > low)
    for group in constraints.groups:
        columns[list(group.columns)] = False
    if not bool(columns.any()):
        return None
    both = torch.stack([(high - low) / _NORMAL, rows.std(0)])[:, columns]
    least, most, names = both.amin(0), both.amax(0), columns.nonzero().flatten()
    if bool(least.max() > _RATIO * most.min()):
        shown, why = [int(least.argmax()), int(most.argmin())], "differ in scale"
    elif bool(least.min() > _RATIO) or bool(most.max() < 1 / _RATIO):
        shown, why = list(range(min(3, len(names)))), "are far from standard scale"
    elif bool((middle[columns].abs() > _OFFSET * most).any()):
        shown, why = (middle[columns].abs() > _OFFSET * most).nonzero().flatten()[:3].tolist(), "are far from zero"
    else:
        return None
    told = ", ".join(f"column {int(names[j])} (median {middle[columns][j]:.3g}, spread {most[j]:.3g})" for j in shown)
    return (
        f"The columns of x {why}: {told}. A gate compares distances, so the column with the largest unit dominates. "
        "Standardise x, and put the same scaling into the model."
    )
