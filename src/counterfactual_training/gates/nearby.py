"""A density at points that differ from known rows in some columns only."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from counterfactual_training.gates.density import (
    FARTHEST,
    HEAVY,
    Density,
    log2_heights,
    log_sum,
)
from counterfactual_training.gates.gated import Gate

# Codes of categories from which on those that changed are looked up: a product with all of them
# takes most of the time then.
_MANY = 32
# Points from which on it pays to bound a density before it is computed.
_FEWEST = 64
# How many times lower than the highest a kernel may count, to the power that its distance is taken
# to: the padding is infinitely low, and infinity times 0 is NaN.
_LOWEST = 1e30


class _LabelTerms(NamedTuple):
    """What does not depend on points."""

    weights: Tensor  # (b + 1, m) of numbers and of the norm
    of_codes: Tensor  # (c − b, m)
    far: Tensor  # (n, m) distances but for these, or (1, m) if all rows share them
    immutable: Tensor | None  # (n, m) kernels of immutable features
    total: Tensor | None  # (n,) their sum
    slope: float  # of the gate's line; 0 if the class cannot be judged
    origin: float
    low: Tensor  # (m,) how many times 1 + ‖x − c‖² / νh² counts of kernels lower than the highest
    peak: float  # log of the highest
    size: int  # how many kernels are no padding


class Nearby:
    """A :class:`Density` at points that differ from rows x ``(n, d)`` in some columns ``(c,)``
    only.

    ``‖x − c_j‖²`` is a sum over columns. The part of the other columns is computed once for each
    row, and so is the whole kernel of immutable features. Of many codes of categories, a point has
    nearly all in common with its row: only those that differ are added.

    Args:
        gate: none of whose immutable features are among the columns.
        num_numbers: how many of the columns, the first ones, are no codes of categories.
    """

    def __init__(self, gate: Density, x: Tensor, columns: Tensor, num_numbers: int) -> None:
        self.gate = gate
        self.x = x
        free, *immutable = gate.kernels
        place = (free.columns.cumsum(0) - 1)[columns]
        inside = torch.zeros(len(free.middle), dtype=torch.bool, device=x.device)
        inside[place] = True
        self.middle = free.middle[place]
        if len(columns) - num_numbers < _MANY:
            num_numbers = len(columns)
        self._num_numbers = num_numbers
        self._codes = x[:, columns[num_numbers:]]
        self._free = free
        self._immutable = immutable
        self._place = place[:num_numbers]
        self._hot = place[num_numbers:]
        self._others = (~inside).nonzero().squeeze(-1)
        self._terms_by_label: dict[int, _LabelTerms] = {}

    @classmethod
    def of(
        cls, gate: Gate | None, x: Tensor, columns: Tensor, num_numbers: int
    ) -> Nearby | None:
        """``None`` for gates of other kinds, and if immutable features are among the columns."""
        if (
            type(gate) is not Density
            or bool(gate.immutable.all())
            or bool(gate.immutable[columns].any())
        ):
            return None
        return cls(gate, x, columns, num_numbers)

    def of_class(self, row: Tensor, points: Tensor, label: int) -> Tensor:
        """``log σ(g)`` ``(a,)`` of one class at points ``(a, c)`` of rows ``(a,)``."""
        return functional.logsigmoid(self.odds(row, points, label))

    def odds(self, row: Tensor, points: Tensor, label: int, bar: float | None = None) -> Tensor:
        """g itself ``(a,)``; ∞ of a class that cannot be judged.

        With a ``bar``, bounds on g where these tell on which side of the bar it lies.
        """
        terms = self._of_label(label)
        if terms.slope == 0:
            return points.new_full((len(points),), math.inf)
        z = (points - self.middle).clamp_(-FARTHEST, FARTHEST)
        norm = z.square().sum(-1, keepdim=True)
        z = torch.cat([z[:, : self._num_numbers], norm], -1)
        if len(terms.far) == 1:
            distance = torch.addmm(terms.far, z, terms.weights)
        else:
            distance = terms.far.index_select(0, row).addmm_(z, terms.weights)
        if len(terms.of_codes):
            self._add_codes(distance, row, points, terms.of_codes)
        immutable = terms.immutable
        if bar is not None and immutable is None and len(points) >= _FEWEST:
            score = self._bounded(distance, terms, label, bar / terms.slope + terms.origin)
            return score.sub_(terms.origin).mul_(terms.slope)
        logs = log2_heights(distance, self._free, label)
        total = terms.total
        if immutable is not None and total is not None:
            # Of one row, all points share it.
            if len(immutable) > 1:
                immutable = immutable.index_select(0, row)
                total = total.index_select(0, row)
            score = log_sum(logs.add_(immutable)) - total
        else:
            score = log_sum(logs)
        return score.sub_(terms.origin).mul_(terms.slope)

    def _bounded(self, distance: Tensor, terms: _LabelTerms, label: int, bar: float) -> Tensor:
        """log p̂ ``(a,)`` where that could be on either side of a bar, elsewhere a bound on it.

        It is no less than the log of the largest kernel, and no more than if all were as large.
        Summing kernels takes many times as long as finding the largest.
        """
        # Rounding can make the distance to a kernel's own centre negative.
        nearest = torch.addcmul(terms.low, distance, terms.low).amin(-1).clamp_min_(1.0)
        power = (HEAVY + len(self._free.middle)) / 2
        least = nearest.log_().mul_(-power).add_(terms.peak)
        most = least + math.log(terms.size)
        doubt = ((least < bar) & (most >= bar)).nonzero().squeeze(-1)
        logs = log2_heights(distance.index_select(0, doubt), self._free, label)
        return torch.where(least < bar, most, least).index_copy_(0, doubt, log_sum(logs))

    def _add_codes(
        self, distance: Tensor, row: Tensor, points: Tensor, weights: Tensor
    ) -> None:
        """Add the contribution of codes that differ from the row's to the distances ``(a, m)``, in
        place.
        """
        codes = points[:, self._num_numbers :]
        changed = codes - self._codes.index_select(0, row)
        place, code = changed.nonzero(as_tuple=True)
        if len(place) == 0:
            return
        starts = torch.searchsorted(place, torch.arange(len(points), device=place.device))
        distance += functional.embedding_bag(
            code, weights, starts, mode="sum", per_sample_weights=changed[place, code]
        )

    def _of_label(self, label: int) -> _LabelTerms:
        if label not in self._terms_by_label:
            weights_of_label = self._free.weights.unflatten(0, self._free.peak.shape)[label]
            weights = torch.cat(
                [weights_of_label[:, self._place], weights_of_label[:, -2:-1]], -1
            ).mT.contiguous()
            # In one piece: to add a column to every row takes as long as the product.
            far = weights_of_label[:, -1].contiguous().unsqueeze(0)
            if len(self._others) or len(self._hot):
                z = (self.x[:, self._free.columns] - self._free.middle).clamp(
                    -FARTHEST, FARTHEST
                )
                shared_columns = torch.cat([self._others, self._hot])
                # The norm of a point counts its codes of categories.
                norm = z[:, self._others].square().sum(-1, keepdim=True)
                far = (
                    far
                    + norm * weights_of_label[:, -2]
                    + z[:, shared_columns] @ weights_of_label[:, shared_columns].mT
                )
            immutable = total = None
            for kernels in self._immutable:
                immutable = self.gate.log2_kernels(self.x, kernels, label)
                total = log_sum(immutable.clone())
            of_codes = weights_of_label[:, self._hot].mT.contiguous()
            slope = float(self.gate.slope[label])
            origin = float(self.gate.origin[label])
            peaks = self._free.peak[label]
            peak = peaks.max()
            power = (HEAVY + len(self._free.middle)) / 2
            low = ((peak - peaks) / power).exp().clamp_max(_LOWEST)
            size = int((self.gate.width[label] > 0).sum())
            self._terms_by_label[label] = _LabelTerms(
                weights, of_codes, far, immutable, total, slope, origin, low, float(peak), size
            )
        return self._terms_by_label[label]
