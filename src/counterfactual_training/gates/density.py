"""A gate by kernel density estimation: one density per class, from stored rows, without
training.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from counterfactual_training.gates.calibration import FEWEST_ROWS, Calibrated, Line, calibrate

_NEIGHBOURS = 10
# The narrowest kernel, as a share of the median width, so that duplicate rows do not become spikes.
_NARROWEST = 0.3
# ν, degrees of freedom of the kernels. A search from far away cannot climb the steep tails of a
# Gaussian.
HEAVY = 3.0
# Log of a missing kernel; minus infinity would make gradients NaN.
_NOTHING = -1e30
# Log to base 2 of a term that is next to nothing, yet no denormal number of float32.
_SMALLEST = -115.0
_LOG2_E = 1 / math.log(2)
# Larger distances make no difference, but their squares would overflow and make gradients NaN.
FARTHEST = 1e9
# Least distance between rows, as a share of their spread: identical rows need a positive width.
_LEAST = 1e-3
# Most rows per class to calibrate on, and rows evaluated at once; bounds memory.
_CALIBRATED = 2000
_BLOCK = 500


class _Kernels(NamedTuple):
    """What does not depend on x."""

    columns: Tensor  # (d,) mask of c columns
    middle: Tensor  # (c,) their means
    weights: Tensor  # (k·m, c + 2)
    peak: Tensor  # (k, m) logs of heights
    peak2: Tensor  # the same to base 2


class Density(Calibrated):
    """``g_k(x) = β_k (log p̂_k(x) − θ_k)`` with a Student's t kernel (ν = 3) on each of m rows c of
    class k.

    ``log p̂_k(x) = logsumexp_j(−d ln h_j − (ν + d)/2 · ln(1 + ‖x − c_j‖² / ν h_j²))``, where h_j is
    the distance of c_j to its tenth neighbour over √d. β and θ are calibrated on other rows of the
    class or, if there are few, on the c themselves, each without its own kernel; see
    :func:`calibrate`.

    If some features are immutable, the density is that of the other features conditional on these:
    ``p̂(free, immutable) / p̂(immutable)``, where every kernel is a product of a free and an
    immutable part.

    Attributes:
        centres: ``(k, m, d)`` the rows c, padded with zeros.
        width: ``(k, m)`` h; 0 in the padding.
        immutable: ``(d,)`` mask.
        whole_slope, whole_origin: ``(k,)`` β and θ of the unconditional density.
    """

    centres: Tensor
    width: Tensor
    immutable: Tensor
    whole_slope: Tensor
    whole_origin: Tensor

    @property
    def real_rows(self) -> Tensor:
        """Rows ``(k, m, d)``, NaN where a class has fewer."""
        # Padding has width 0. NaN cannot be mistaken for a row of zeros.
        return self.centres.masked_fill((self.width == 0).unsqueeze(-1), torch.nan)

    def __init__(self, centres: Tensor, width: Tensor, immutable: Tensor) -> None:
        super().__init__(Line(*width.new_zeros(2, len(width))))
        self._cached_kernels: tuple[tuple[Tensor, ...], list[_Kernels]] | None = None
        unconditional_line = {
            "whole_slope": width.new_zeros(len(width)),
            "whole_origin": width.new_zeros(len(width)),
        }
        for name, tensor in {
            "centres": centres,
            "width": width,
            "immutable": immutable,
            **unconditional_line,
        }.items():
            self.register_buffer(name, tensor)
        self.register_load_state_dict_post_hook(_reset_kernels)

    @classmethod
    @torch.no_grad()
    def fit(
        cls,
        x: Tensor,
        y: Tensor,
        num_classes: int,
        *,
        immutable: Tensor | None = None,
        quantile: float = 0.1,
        size: int = 1000,
        seed: int = 0,
    ) -> Density:
        """Fit to rows x ``(n, *features)`` with classes y ``(n,)``.

        Args:
            immutable: ``(d,)`` mask of the immutable features.
            quantile: share of real rows with σ(g) below ½.
            size: kernels per class.
        """
        feature_dims = x.dim() - 1
        x = x.flatten(1)
        # One permutation for all: the first rows of a class become kernels, the next ones
        # calibrate.
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed)).to(
            x.device
        )
        by_class = [order[y[order] == label] for label in range(num_classes)]
        used = 2 * size + _CALIBRATED  # copy no more rows than are used
        judged = [x[rows[: used if len(rows) >= FEWEST_ROWS else 0]] for rows in by_class]
        # At least one place, if only of padding: without any, log p̂ would be −∞ and its gradient
        # NaN.
        num_kernels = min(size, max(1, *map(len, judged)))
        centres = x.new_zeros(num_classes, num_kernels, x.shape[1])
        width = x.new_zeros(num_classes, num_kernels)
        # Of all classes together, because a single class may consist of equal rows.
        spread = _spread(torch.cat([rows[:size] for rows in judged]))
        for label, rows in enumerate(judged):
            centres[label, : len(rows)] = rows[:size]
            width[label, : len(rows)] = _widths(rows[:size], spread)
        if immutable is None:
            immutable = torch.zeros_like(x[0], dtype=torch.bool)
        else:
            immutable = immutable.to(x.device)
        gate = cls(centres, width, immutable)
        gate.slope, gate.origin = calibrate(
            *gate._calibration_scores(judged), num_classes, quantile
        )
        gate.whole_slope, gate.whole_origin = gate.slope, gate.origin
        if bool(immutable.any()):
            # The same kernels without conditioning have other scores, so they need a line of their
            # own.
            unconditional = cls(centres, width, torch.zeros_like(immutable))
            gate.whole_slope, gate.whole_origin = calibrate(
                *unconditional._calibration_scores(judged), num_classes, quantile
            )
        gate.feature_dims = feature_dims
        return gate

    @classmethod
    def empty(cls, num_classes: int, num_kernels: int, num_features: int) -> Density:
        """A gate of that shape, to load saved weights into."""
        centres = torch.zeros(num_classes, num_kernels, num_features, dtype=torch.float32)
        width = torch.zeros(num_classes, num_kernels, dtype=torch.float32)
        immutable = torch.zeros(num_features, dtype=torch.bool)
        return cls(centres, width, immutable)

    def describe(self) -> list[dict[str, Any]]:
        return [
            {
                "kind": "density",
                "shape": list(self.centres.shape),
                "feature_dims": self.feature_dims,
            }
        ]

    def forward(self, x: Tensor) -> Tensor:
        if bool(self.immutable.all()):  # no feature can change: nothing to judge
            return self.slope.new_zeros(
                *x.shape[: x.dim() - self.feature_dims], len(self.slope)
            )
        return self.passes(self.scores(x))

    @torch.no_grad()
    def of_class(self, x: Tensor, label: int) -> Tensor:
        x = x.flatten(x.dim() - self.feature_dims)
        if bool(self.immutable.all()) or not bool(self.judged[label]):
            return x.new_zeros(x.shape[:-1])
        logs = [self.log2_kernels(x, kernels, label) for kernels in self.kernels]
        if len(logs) == 1:
            score = log_sum(logs[0])
        else:
            score = log_sum(logs[0].add_(logs[1])) - log_sum(logs[1])
        return functional.logsigmoid(self.slope[label] * (score - self.origin[label]))

    @torch.no_grad()
    def log2_kernels(self, x: Tensor, kernels: _Kernels, label: int) -> Tensor:
        """Logs to base 2 of kernels ``(..., n, m)`` of one class at rows ``(..., n, d)``."""
        weights = kernels.weights.unflatten(0, kernels.peak.shape)[label]
        return log2_heights(self._products(x, kernels, weights), kernels, label)

    @torch.no_grad()
    def plausibility(self, x: Tensor) -> Tensor:
        """σ(g) of whole rows, all features included, so that a row unlike all training rows gets
        a low value.
        """
        x = x.flatten(x.dim() - self.feature_dims)
        all_kernels = self._kernels_in(torch.ones_like(self.immutable))
        if x.shape[-2]:
            parts = x.split(_BLOCK, -2)
        else:
            parts = (x,)
        scores = torch.cat(
            [torch.logsumexp(self._at(part, all_kernels, None), -1) for part in parts], -2
        )
        return torch.where(
            self.judged, torch.sigmoid(self.whole_slope * (scores - self.whole_origin)), 1.0
        )

    def scores(self, x: Tensor, leave_out: Tensor | None = None) -> Tensor:
        """log p̂ ``(..., n, k)`` of rows ``(..., n, *features)`` up to a constant; ``leave_out``
        ``(n, m)`` kernels.
        """
        x = x.flatten(x.dim() - self.feature_dims)
        return _conditional(*(self._at(x, kernels, leave_out) for kernels in self.kernels))

    def _at(self, x: Tensor, kernels: _Kernels, leave_out: Tensor | None) -> Tensor:
        """Log kernels ``(..., n, k, m)`` at x ``(..., n, d)``.

        A search calls this at every step, so ‖x − c‖² / νh² is a single matrix product. x and c are
        centred, because the squares of a large offset would leave no digits for the distance.
        """
        out = self._logs(self._distance(x, kernels), kernels)
        if leave_out is None:
            return out
        return out.masked_fill(leave_out.unsqueeze(-2), _NOTHING)

    def _distance(self, x: Tensor, kernels: _Kernels) -> Tensor:
        """‖x − c‖² / νh² ``(..., n, k·m)``."""
        return self._products(x, kernels, kernels.weights)

    def _products(self, x: Tensor, kernels: _Kernels, weights: Tensor) -> Tensor:
        """‖x − c‖² / νh² ``(..., n, a)`` for a of the kernels, by their weights ``(a, c + 2)``."""
        # Usually all columns: then there is nothing to cut, which takes long in wide rows.
        if len(kernels.middle) != x.shape[-1]:
            x = x[..., kernels.columns]
        x = (x - kernels.middle).clamp(-FARTHEST, FARTHEST)
        norm = x.square().sum(-1, keepdim=True)
        points = torch.cat([x, norm, torch.ones_like(norm)], -1)
        return points @ weights.mT

    def _logs(self, distance: Tensor, kernels: _Kernels) -> Tensor:
        """Log kernels ``(..., n, k, m)`` at these distances ``(..., n, k·m)``."""
        # Rounding can make the distance to a kernel's own centre negative, and log1p NaN.
        distance = distance.unflatten(-1, kernels.peak.shape).clamp_min(0.0)
        return torch.add(
            kernels.peak, torch.log1p(distance), alpha=-(HEAVY + len(kernels.middle)) / 2
        )

    @property
    def kernels(self) -> list[_Kernels]:
        """Kernels in the free columns and, if there are any, in the immutable ones; cached for the
        current tensors.
        """
        tensors = (self.centres, self.width, self.immutable)
        # Moving a module replaces its tensors, so identity tells whether the kernels are still of
        # this device.
        if self._cached_kernels is None or any(
            a is not b for a, b in zip(self._cached_kernels[0], tensors, strict=True)
        ):
            if bool(self.immutable.any()):
                masks = [~self.immutable, self.immutable]
            else:
                masks = [~self.immutable]
            # Later calls may need gradients, even if this one is in inference_mode.
            with torch.inference_mode(False), torch.no_grad():
                self._cached_kernels = tensors, [self._kernels_in(columns) for columns in masks]
        return self._cached_kernels[1]

    def _kernels_in(self, columns: Tensor) -> _Kernels:
        centres = self.centres[..., columns]
        real = self.width > 0
        # Of real kernels only: zeros of the padding would pull the centre away.
        if bool(real.any()):
            middle = centres[real].mean(0)
        else:
            middle = torch.zeros_like(centres[0, 0])
        centres = centres - middle
        # Padding has width 0, and dividing by that would put NaN into the matrix product.
        width = self.width.clamp_min(1e-12)
        # (x, ‖x‖², 1) · (−2c, 1, ‖c‖²) = ‖x − c‖², so all distances are one matrix product.
        norms = torch.stack([torch.ones_like(width), centres.square().sum(-1)], -1)
        weights = torch.cat([-2 * centres, norms], -1) / (HEAVY * width.square()).unsqueeze(-1)
        peak = (-centres.shape[-1] * width.log()).masked_fill(~real, _NOTHING)
        return _Kernels(columns, middle, weights.flatten(0, 1), peak, peak * _LOG2_E)

    def __getstate__(self) -> dict[str, Any]:
        # A copy or pickle computes its kernels again instead of storing them.
        return {**self.__dict__, "_cached_kernels": None}

    def _calibration_scores(self, by_class: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Scores ``(a, k)`` and classes ``(a,)`` of rows that are not centres; of the centres if
        others are few.
        """
        num_kernels = self.width.shape[1]
        scores = [self.width.new_zeros(0, len(by_class))]
        sizes = []
        for numbers in by_class:
            rows = numbers[num_kernels:][:_CALIBRATED]
            leave_out = None
            # Too few others. Without its own kernel, a centre is scored as if it had not been
            # there.
            if len(numbers) - num_kernels < num_kernels // 2:
                rows = numbers[:num_kernels]
                leave_out = torch.eye(num_kernels, dtype=torch.bool, device=rows.device)[
                    : len(rows)
                ]
            row_parts = rows.split(250)
            if leave_out is not None:
                mask_parts = leave_out.split(250)
            else:
                mask_parts = [None] * len(row_parts)
            # In parts, because each row meets all kernels of all classes.
            scores += [
                self.scores(part, without)
                for part, without in zip(row_parts, mask_parts, strict=True)
            ]
            sizes.append(len(rows))
        classes = torch.arange(len(by_class)).repeat_interleave(torch.tensor(sizes))
        return torch.cat(scores), classes.to(self.width.device)


def _reset_kernels(gate: nn.Module, _: object) -> None:
    """Loading writes into the same tensors, so nothing else tells that the kernels are no longer
    theirs.
    """
    gate._cached_kernels = None  # type: ignore[assignment]


def _conditional(free: Tensor, immutable: Tensor | None = None) -> Tensor:
    """log p̂ ``(..., n, k)`` from log kernels ``(..., n, k, m)`` in free columns and, if there are
    any, immutable ones.
    """
    if immutable is None:
        return torch.logsumexp(free, -1)
    # log p̂(free, immutable) − log p̂(immutable): kernels far from a row in its immutable features
    # do not count.
    return torch.logsumexp(free + immutable, -1) - torch.logsumexp(immutable, -1)


def log2_heights(distance: Tensor, kernels: _Kernels, label: int) -> Tensor:
    """Logs to base 2 of kernels ``(..., m)`` of one class at these ``‖x − c‖² / νh²``, in place.

    In place, and to base 2, because this is where advice spends its time.
    """
    power = -_LOG2_E * (HEAVY + len(kernels.middle)) / 2
    # Rounding can make the distance to a kernel's own centre negative.
    logs = distance.clamp_min_(0.0).log1p_()
    return torch.add(kernels.peak2[label], logs, alpha=power, out=logs)


def log_sum(logs: Tensor) -> Tensor:
    """The natural log of a sum over the last dimension, of terms whose logs to base 2 are given, in
    place.
    """
    most = logs.amax(-1, keepdim=True)
    # Beside the largest term, 1, smaller ones add nothing; but a processor takes ten times as long
    # to compute them. exp2 takes less than half the time of exp.
    return (
        logs.sub_(most)
        .clamp_min_(_SMALLEST)
        .exp2_()
        .sum(-1)
        .log_()
        .add_(most.squeeze(-1), alpha=1 / _LOG2_E)
    )


def _widths(rows: Tensor, spread: Tensor) -> Tensor:
    """h ``(m,)``: distance to the tenth neighbour over √d, at least a share of the median and of
    the spread.
    """
    if len(rows) == 0:
        return rows.new_zeros(0)
    rows = rows - rows.mean(0)
    # One more than asked for: the nearest row is the row itself.
    nearest = (
        torch.cdist(rows, rows)
        .topk(min(_NEIGHBOURS, len(rows) - 1) + 1, -1, largest=False)
        .values[:, -1]
    )
    width = nearest.clamp_min(_LEAST * spread) / rows.shape[1] ** 0.5
    return width.clamp_min(_NARROWEST * width.median())


def _spread(rows: Tensor) -> Tensor:
    """Root mean square deviation ``()`` of the columns of rows ``(m, d)``; 1 if all rows are
    equal.
    """
    spread = (rows - rows.mean(0)).square().mean().sqrt()
    return torch.where(spread > 0, spread, 1.0)
