"""Fit a gate to a trained classifier, with warnings about rows that it cannot be fitted to well."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from counterfactual_training.constraints import Constraints
from counterfactual_training.defaults import GATES as KINDS
from counterfactual_training.errors import InputError, check_name, from_outside
from counterfactual_training.gates.calibration import FEWEST_ROWS
from counterfactual_training.gates.density import Density
from counterfactual_training.gates.gated import Both, Gate, Gated
from counterfactual_training.gates.learned import GateConfig, Learned
from counterfactual_training.generators import evaluating
from counterfactual_training.generators.model_checks import check_inputs, first_logits
from counterfactual_training.torch_modes import with_gradients

# Share of the real rows of a class that a gate rejects; less for each of two gates.
_ALONE = 0.1
_IN_A_ROW = 0.05
# Rows that a gate of each kind needs of a class: a learned one holds out as many as it learns from.
NEEDED = {"density": FEWEST_ROWS, "learned": 2 * FEWEST_ROWS}
# From this ratio on, columns differ in scale or are far from standard; from this many deviations,
# far from zero.
_RATIO = 50.0
_OFFSET = 100.0
_SAMPLED = 10_000
# The range from 10 % to 90 % of a normal distribution, in standard deviations.
_NORMAL = 2.563


def make_gate(spec: Sequence[Mapping[str, Any]]) -> Gate:
    """An untrained gate with the shape that :meth:`Gate.describe` returned."""
    parts: list[Gate] = []
    for entry in spec:
        density = entry["kind"] == "density"
        parts.append(
            Density.empty(*entry["shape"]) if density else Learned.empty(entry["sizes"])
        )
        parts[-1].feature_dims = int(entry["feature_dims"])
    if len(parts) == 1:
        return parts[0]
    return Both(*parts)


@with_gradients
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

    Gates compare distances, so features must be on a common scale, ideally standardised. A warning
    tells if they are not, and if a class has too few rows to be judged.

    Args:
        model: any trained classifier; maps ``(n, *features)`` to logits ``(n, k)``.
        x: ``(n, *features)`` its training rows.
        y: ``(n,)`` their classes.
        kind: ``"density"`` (fast, for tables), ``"learned"`` (for images), or ``"both"``.
        constraints: of the features. Plausibility is conditional on immutable features.
        scale: of the logits, see :class:`Gated`.
        config: of a learned gate.
        seed: of everything random.

    Returns:
        The model with its gate, for :func:`search` and :func:`evaluate`.

    Examples:
        >>> import counterfactual_training as ct
        >>> data = ct.load_dataset("linearly_separable")
        >>> x, y = data.x_train[:500], data.y_train[:500]
        >>> method = ct.methods.conventional(epochs=5, learning_rate=0.05)
        >>> model = ct.train(ct.mlp(2, 2), x, y, method).model
        >>> gated = ct.fit_gate(model, x, y)
        >>> bool((gated.plausibility(x).amax(-1) > 0.5).float().mean() > 0.8)  # most real rows pass
        True
    """
    check_inputs(model, x, y)
    if y.dim() != 1 or len(y) == 0:
        raise InputError(
            f"A gate needs rows: x (n, *features) and y (n,), got y of shape {tuple(y.shape)}."
        )
    # A few rows tell the number of classes, and whether these are logits at all.
    with evaluating(model), torch.no_grad():
        num_classes = first_logits(model, x[:64], y[:64]).shape[-1]
    if not 0 <= int(y.min()) <= int(y.max()) < num_classes:
        raise InputError(
            f"Classes must lie in 0..{num_classes - 1}, got {int(y.min())}..{int(y.max())}."
        )
    # The box of the data, so that a learned gate's searches stay where rows can be.
    if constraints is None:
        constraints = Constraints.infer(x)
    y = y.long()
    odd = odd_scales(x, constraints)
    if odd is not None:
        warnings.warn(odd, stacklevel=from_outside())
    gate = gate_of(model, x, y, kind, constraints, scale=scale, config=config, seed=seed)
    few = few_rows(gate, y, [f"class {label}" for label in range(num_classes)])
    if few is not None:
        warnings.warn(few, stacklevel=from_outside())
    return Gated(model, gate, scale)


@with_gradients
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
    # Two gates in a row reject about the sum of both shares.
    if kind == "both":
        quantile = _IN_A_ROW
    else:
        quantile = _ALONE
    parts: list[Gate] = []
    with evaluating(model):
        with torch.no_grad():
            num_classes = model(x[:2]).shape[-1]
        if kind != "learned":
            parts.append(
                Density.fit(
                    x,
                    y,
                    num_classes,
                    immutable=constraints.immutable,
                    quantile=quantile,
                    seed=seed,
                )
            )
        if kind != "density":
            learned = Learned.fit(
                model,
                x,
                y,
                constraints=constraints,
                config=config,
                quantile=quantile,
                scale=scale,
                seed=seed,
            )
            parts.append(learned)
    if len(parts) == 1:
        return parts[0]
    return Both(*parts)


def few_rows(gate: Gate, y: Tensor, names: Sequence[str], what: str = "classes") -> str | None:
    """A warning about the classes that a gate cannot judge because they have too few rows; ``None``
    if it can.

    ``what`` the classes are called.
    """
    counts = torch.bincount(y.cpu(), minlength=len(names)).tolist()
    masks = [
        (entry["kind"], part.judged.tolist()) for part in gate.lone for entry in part.describe()
    ]

    def sentence(kind: str, labels: list[int]) -> str:
        rows = ", ".join(f"{names[k]} ({counts[k]} rows)" for k in labels)
        return f"is open for {rows}: at least {NEEDED[kind]} rows are needed."

    messages = []
    unjudged = [k for k in range(len(names)) if not any(judged[k] for _, judged in masks)]
    if unjudged:
        least = min((kind for kind, _ in masks), key=NEEDED.__getitem__)
        messages.append(
            f"the gate {sentence(least, unjudged)} Counterfactuals for these {what} "
            "may be implausible."
        )
    for kind, judged in masks:
        alone = [k for k in range(len(names)) if not judged[k] and k not in unjudged]
        if alone:
            messages.append(
                f"the {kind} part of the gate {sentence(kind, alone)} Only the other part judges "
                f"these {what}."
            )
    if messages:
        return f"Too few rows to judge what is plausible: {' Also '.join(messages)}"
    return None


def odd_scales(x: Tensor, constraints: Constraints) -> str | None:
    """A warning if rows x ``(n, d)`` are not on a common scale near 1; ``None`` if they are, or are
    images.

    A heavy tail has a small 10-90 % range and a large deviation, and a column that is mostly 0 has
    no range. A column counts as small or large only if range and deviation both are. Categories and
    binary columns are left out.
    """
    if x.dim() != 2:
        return None
    # Every so many rows: a sample of the whole table, even if it is sorted.
    rows = x[:: 1 + len(x) // _SAMPLED]
    # Quantiles, because a single outlier can make any deviation large.
    low, middle, high = rows.quantile(rows.new_tensor([0.1, 0.5, 0.9]), 0)
    between = ((rows != rows.amin(0)) & (rows != rows.amax(0))).any(0)
    # Two values only, or 80 % equal ones: such columns have no scale worth comparing.
    columns = between & (high > low)
    for group in constraints.groups:
        columns[list(group.columns)] = False
    if not bool(columns.any()):
        return None
    both = torch.stack([(high - low) / _NORMAL, rows.std(0)])[:, columns]
    least = both.amin(0)
    most = both.amax(0)
    names = columns.nonzero().flatten()
    # One warning is enough: the first that applies.
    if bool(least.max() > _RATIO * most.min()):
        shown = [int(least.argmax()), int(most.argmin())]
        why = "differ in scale"
    elif bool(least.min() > _RATIO) or bool(most.max() < 1 / _RATIO):
        shown = list(range(min(3, len(names))))
        why = "are far from standard scale"
    elif bool((middle[columns].abs() > _OFFSET * most).any()):
        shown = (middle[columns].abs() > _OFFSET * most).nonzero().flatten()[:3].tolist()
        why = "are far from zero"
    else:
        return None
    listed = ", ".join(
        f"column {int(names[j])} (median {middle[columns][j]:.3g}, spread {most[j]:.3g})"
        for j in shown
    )
    return (
        f"The columns of x {why}: {listed}. A gate compares distances, so the column with the "
        "largest unit dominates. "
        "Standardise x, and put the same scaling into the model."
    )
