"""Fit a gate to a trained classifier."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from counterfactual_training.constraints import Constraints
from counterfactual_training.errors import check_name, from_outside
from counterfactual_training.gates.density import Density
from counterfactual_training.gates.gated import Both, Gate, Gated
from counterfactual_training.gates.learned import GateConfig, Learned
from counterfactual_training.gates.row_checks import check_rows, few_rows, odd_scales
from counterfactual_training.search import evaluating

KINDS = ("density", "learned", "both")
# Share of the real rows of a class that a gate rejects; less for each of two gates.
_ALONE, _IN_A_ROW = 0.1, 0.05


def make_gate(spec: Sequence[Mapping[str, Any]]) -> Gate:
    """An untrained gate with the shape that :meth:`Gate.describe` returned."""
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
    """Fit a gate to a trained model, which stays unchanged.

    Gates compare distances, so features must be on a common scale, ideally standardised. A warning tells if they are
    not, and if a class has too few rows to be judged.

    Args:
        model: any trained classifier; maps ``(n, *features)`` to logits ``(n, k)``.
        x, y: its training rows and their classes.
        kind: ``"density"`` (fast, for tables), ``"learned"`` (for images), or ``"both"``.
        constraints: of the features. Plausibility is conditional on immutable features.
        scale: of the logits, see :class:`Gated`.
        config: of a learned gate.
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
    """The gate alone that :func:`fit_gate` fits, without its checks and warnings."""
    check_name("gate", kind, KINDS)
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
