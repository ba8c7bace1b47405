"""How well a classifier predicts: accuracy, macro F1, calibration, from logits and labels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from counterfactual_training.core.precision import at_least_single
from counterfactual_training.errors import InputError, ModelError
from counterfactual_training.generators import evaluating
from counterfactual_training.generators.model_checks import check_tensor
from counterfactual_training.threads import sensible_threads


@torch.no_grad()
def predict_logits(
    model: nn.Module, x: Tensor, batch_size: int = 4096, row_dim: int = 0
) -> Tensor:
    """Logits ``(..., n, k)`` of inputs ``(..., n, *features)``, batch by batch, in eval mode.

    The model's mode is restored. Half-precision logits are returned as float32.
    ``row_dim`` is the dimension of x that counts rows: 0 for a lone model, 1 for a fleet.
    """
    parameter = next(model.parameters(), None)
    if parameter is not None and (parameter.device != x.device or parameter.dtype != x.dtype):
        raise InputError(
            f"x is {x.dtype} on {x.device}, the model {parameter.dtype} on {parameter.device}; "
            "convert one of them with .to(device, dtype)."
        )
    batches = x.detach().split(batch_size, row_dim)
    with evaluating(model), sensible_threads(model, batches[0]):
        return torch.cat(
            [at_least_single(check_tensor(model(batch))) for batch in batches], row_dim
        )


def decider(model: nn.Module, x: Tensor, num_classes: int | None = None) -> nn.Module:
    """The part of a model that decides: itself, or of a gated one with k + 1 outputs its ``model``.

    Without a number of classes, a model is gated if it has one more output than its ``model``.
    """
    inner: Any = getattr(model, "model", None)
    may_be_gated = isinstance(inner, nn.Module) and hasattr(model, "scale")
    if num_classes is None and not may_be_gated:
        return model
    # Asked, not looked up: any module with these attributes may serve as a gated model.
    width = predict_logits(model, x[:1]).shape[-1]
    if (
        may_be_gated
        and num_classes in (None, width - 1)
        and predict_logits(inner, x[:1]).shape[-1] == width - 1
    ):
        return inner
    if num_classes in (None, width):
        return model
    raise ModelError(
        f"{type(model).__name__} has {width} outputs for {num_classes} classes. A gated model "
        "has one more output "
        "than classes, its classifier as .model, and that classifier's factor as .scale."
    )


def accuracy(logits: Tensor, y: Tensor) -> Tensor:
    """Share of rows whose arg-max is their label: logits ``(..., n, k)``, y ``(..., n)``, result
    ``(...)``.
    """
    logits = check_labels(logits, y)
    return (logits.argmax(-1) == y).to(logits.dtype).mean(-1)


def macro_f1(logits: Tensor, y: Tensor) -> Tensor:
    """``mean_c 2 TP_c / (2 TP_c + FP_c + FN_c)`` over the classes that occur, as label or as
    prediction: ``(...)``.
    """
    logits = check_labels(logits, y)
    k = logits.shape[-1]
    predicted = nn.functional.one_hot(logits.argmax(-1), k).to(logits.dtype)  # (..., n, k)
    actual = nn.functional.one_hot(y, k).to(logits.dtype)
    hits = (predicted * actual).sum(-2)
    total = predicted.sum(-2) + actual.sum(-2)  # 2 TP + FP + FN
    occurs = total > 0
    # Classes that do not occur have no F1: 0/1 in the sum, and not counted.
    return (2 * hits / total.clamp_min(1)).sum(-1) / occurs.sum(-1)


def calibration_error(logits: Tensor, y: Tensor, num_bins: int = 15) -> Tensor:
    """Expected calibration error (Guo et al. 2017): ``Σ_b |B_b|/n · |accuracy(B_b) −
    confidence(B_b)|``, ``(...)``.

    Bins have equal width; bin b holds confidences in (b/B, (b + 1)/B].
    """
    logits = check_labels(logits, y)
    confidence, predicted = logits.softmax(-1).max(-1)
    gap = (predicted == y).to(logits.dtype) - confidence
    # Bins are closed above, hence ceil; a confidence of 0 belongs to the first.
    index = (confidence * num_bins).ceil().long().clamp(1, num_bins) - 1
    # |B|/n · |accuracy − confidence| = |Σ gaps of the bin| / n, so no bin needs its count.
    summed = gap.new_zeros(*gap.shape[:-1], num_bins).scatter_add_(-1, index, gap)
    return summed.abs().sum(-1) / gap.shape[-1]


def check_labels(logits: Tensor, y: Tensor) -> Tensor:
    """The logits, at least in single precision.

    Refuses logits that are not ``(..., n, k)``, k ≥ 2, and labels that are not ``(..., n)`` of
    classes 0 … k−1.
    """
    if (
        logits.dim() < 1
        or not logits.is_floating_point()
        or logits.shape[:-1] != y.shape
        or y.dim() < 1
    ):
        raise InputError(
            f"Expected logits (..., n, k) and one label per row, got {logits.dtype} "
            f"{tuple(logits.shape)} "
            f"and labels {tuple(y.shape)}."
        )
    k = logits.shape[-1]
    if k < 2:
        raise ModelError(
            "The model returns one column; a binary classifier needs two logits, one per class."
        )
    if y.is_floating_point() or y.dtype == torch.bool:
        raise InputError(
            f"Labels must be class indices, got {y.dtype}; convert them with y.long()."
        )
    if y.device != logits.device:
        raise InputError(
            f"The logits are on {logits.device}, the labels on {y.device}; move them together."
        )
    if y.numel() and not 0 <= int(y.min()) <= int(y.max()) < k:
        raise InputError(f"Classes must lie in 0..{k - 1}, got {int(y.min())}..{int(y.max())}.")
    return at_least_single(logits)
