"""A classifier as an energy model: E(x, y) = −M(x)[y]; and means over rows."""

from __future__ import annotations

from torch import Tensor


def energy(logits: Tensor, y: Tensor) -> Tensor:
    """Energy ``E(x, y) = −M(x)[y]`` ``(..., n)`` of logits ``(..., n, k)`` and classes y ``(...,
    n)``.
    """
    return -logits.gather(-1, y.unsqueeze(-1)).squeeze(-1)


def interval_energy(outputs: Tensor, middle: Tensor, spread: Tensor) -> Tensor:
    """Energy ``E(x) = (f(x) − m)² / 2s²`` ``(..., n)`` of a regression's outputs ``(..., n, 1)``.

    Low where f is near the middle m of an interval of spread s, each ``(..., n)``.
    """
    return ((outputs.squeeze(-1) - middle) / spread).square() / 2


def mean_rows(values: Tensor, weight: Tensor | None = None) -> Tensor:
    """Mean over the last dimension; with weights ``Σ w v / Σ w``, and zero where no row has
    weight.
    """
    if weight is None:
        return values.mean(-1)
    # Weights may have another precision, to which they would lift the loss.
    weight = weight.to(values.dtype)
    # Without any weight this is 0 / 1e-12 = 0; a mean of NaN would spoil the whole loss.
    return (values * weight).sum(-1) / weight.sum(-1).clamp_min(1e-12)
