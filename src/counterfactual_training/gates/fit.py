"""A gate for a trained classifier, in one call."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from counterfactual_training.constraints import Constraints
from counterfactual_training.errors import InputError, from_outside, unknown
from counterfactual_training.gates.density import Density
from counterfactual_training.gates.gated import Both, Gate, Gated
from counterfactual_training.gates.learned import GateConfig, Learned
from counterfactual_training.gates.row_checks import check_rows, few_rows, odd_scales
from counterfactual_training.search import evaluating

KINDS = ("density", "learned", "both")
# Share of the real rows of a class that a gate stops; less where two gates stand in a row.
_ALONE, _IN_A_ROW = 0.1, 0.05


def make_gate(spec: Sequence[Mapping[str, Any]]) -> Gate:
    """A gate as :meth:`Gate.describe` told it, still empty."""
    parts: list[Gate] = []
    for entry in spec:
        if entry["kind"] == "density":
            parts.append(Density.empty(*map(int, entry["shape"])))
        else:
            parts.append(Learned.empty([int(size) for size in entry["sizes"]]))
        parts[-1].feature_dims = int(entry["feature_dims"])
    return parts[0] if len(parts) == 1 else Both(*parts)


def fit_gate(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    kind: str = "density",
    *,
    constraints: Constraints | None = None,
    scale: float = 1.0,
    config: GateConfig | None = None,
    seed: int = 0,
) -> Gated:
    """The model with a gate, which knows where its classes end; the model itself stays as it is.

    Gates compare distances: features must be on a common scale, standardised or near it, or the one with the largest
    unit decides alone. It warns where they are not, and where a class has too few rows to be judged.

    Args:
        model: any trained classifier, wherever it was trained; maps ``(n, *features)`` to logits ``(n, k)``.
        x, y: rows that it was trained on, and their classes.
        kind: ``"density"`` (quick, for tables), ``"learned"`` (for images), or ``"both"``.
        constraints: of the features. What is immutable is given: people are compared with people alike in it.
        scale: of the logits, see :class:`Gated`.
        config: of a gate that is learned.
    """
    num_classes = check_rows(model, x, y)
    constraints = constraints if constraints is not None else Constraints.infer(x)
    y, odd = y.long(), odd_scales(x, constraints)
    if odd is not None:
        warnings.warn(odd, stacklevel=from_outside())
    gate = gate_of(model, x, y, kind, constraints, scale=scale, config=config, seed=seed)
    few = few_rows(gate, y, [f"class {label}" for label in range(num_classes)])
    if few is not None:
        warnings.warn(few, stacklevel=from_outside())
    return Gated(model, gate, scale)


def gate_of(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    kind: str,
    constraints: Constraints,
    *,
    scale: float = 1.0,
    config: GateConfig | None = None,
    seed: int = 0,
) -> Gate:
    """The gate alone that :func:`fit_gate` fits, of rows that are known to be sound; without its warnings."""
    if kind not in KINDS:
        raise InputError(unknown("gate", kind, KINDS))
    quantile = _IN_A_ROW if kind == "both" else _ALONE
    parts: list[Gate] = []
    with evaluating(model):
        with torch.no_grad():
            num_classes = model(x[:2]).shape[-1]
        if kind != "learned":
            parts.append(Density.fit(x, y, num_classes, given=constraints.immutable, quantile=quantile, seed=seed))
        if kind != "density":
            learned = Learned.fit(
                model, x, y, num_classes,
                constraints=constraints, config=config, quantile=quantile, scale=scale, seed=seed,
            )  # fmt: skip
            parts.append(learned)
    return parts[0] if len(parts) == 1 else Both(*parts)
