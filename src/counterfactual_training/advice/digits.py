"""Answers in as few digits as a sentence names, so that what is read is what was checked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from counterfactual_training.advice.points import Counterfactuals, Factuals, floor_of, stored
from counterfactual_training.advice.words import is_long, places_of
from counterfactual_training.search import Status
from counterfactual_training.tabular.rounding import round_to

if TYPE_CHECKING:
    from counterfactual_training.advice.find import Finder

# Digits more than usual that are tried before a number keeps all that it has.
_MORE = 6
# A best effort may lose this share of its confidence, which nobody counts on.
_LOSS = 0.01


def in_few_digits(
    finder: Finder, factuals: Factuals, y: Tensor, found: Counterfactuals, threshold: float, sparsify: bool
) -> Counterfactuals:
    """What was found, with changed numbers rounded to three digits of the change, or as many more as the claim needs.

    A column of measurements has more digits than anybody reads. A rounded row stands only if it keeps its status, its
    decision, the columns it changes and all rules; with ``sparsify``, a change that it makes superfluous is undone.
    """
    x_cf = found.x_cf.clone()
    for status in (Status.CONVERGED, Status.IMPLAUSIBLE, Status.EXHAUSTED):
        rows = (found.status == int(status)).nonzero().squeeze(-1)
        if len(rows):
            # What is implausible was claimed by the model alone.
            asked = replace(finder, gate=None) if status is Status.IMPLAUSIBLE else finder
            part, goal = factuals.take(rows), y[rows]
            missed = status is Status.EXHAUSTED
            confidence = asked.confidence(x_cf[rows], goal)
            floor = confidence * (1 - _LOSS) if missed else floor_of(confidence, threshold)
            ceiling = threshold if missed else torch.inf
            rounded = _Rounding(asked, part, x_cf[rows], goal, floor, ceiling)()
            again = (rounded != x_cf[rows]).any(-1) & (asked.num_changes(rounded, part.x) > 1)
            again = again.nonzero().squeeze(-1)
            if sparsify and not missed and len(again):
                rounded[again] = asked.undo(rounded[again], part.take(again), goal[again], floor[again])
            x_cf[rows] = rounded
    return replace(found, x_cf=x_cf)


@dataclass(frozen=True, eq=False)
class _Rounding:
    """Rounds points x_cf ``(n, d)`` that must keep a confidence from ``floor`` ``(n,)`` to below ``ceiling``."""

    finder: Finder
    factuals: Factuals
    x_cf: Tensor
    y: Tensor
    floor: Tensor
    ceiling: float

    def __call__(self) -> Tensor:
        finder, x, best = self.finder, self.factuals.x, self.x_cf.clone()
        changed = finder.differs(best, x)
        columns = [j for j in changed.any(0).nonzero().squeeze(-1).tolist() if self._is_rounded(j)]
        rows = changed[:, columns].any(-1).nonzero().squeeze(-1)
        if len(rows) == 0:
            return best
        for trial in self._trials(columns, changed):
            part = self.factuals.take(rows)
            points = finder.as_printed(trial[rows], part)
            fine = self._stands(points, part, rows)
            best[rows[fine]], rows = points[fine], rows[~fine]
            if len(rows) == 0:
                break
        return best

    def _is_rounded(self, j: int) -> bool:
        column = self.finder.encoder.columns_[j]
        # Steps and listed values have the digits that their user stated.
        listed = column.advised is not None or column.feature.step is not None
        return is_long(column.feature, column.decimals) and not listed and j not in self.finder.following

    def _trials(self, columns: list[int], changed: Tensor) -> Iterator[Tensor]:
        """Points ``(n, d)`` in more and more digits: each time the nearest, then the next on the other side."""
        encoder, x_cf = self.finder.encoder, self.x_cf
        z, precision = x_cf.detach().cpu().double().numpy(), torch.finfo(x_cf.dtype).eps
        numbers, digits = {}, {}
        for j in columns:
            column = encoder.columns_[j]
            own = self.factuals.numbers[self.factuals.place, j]
            numbers[j], _ = column.decode_like(z[:, encoder.slices_[column.feature.name]], precision, own)
            digits[j] = np.array([places_of(column.decimals, change) for change in (numbers[j] - own).tolist()])
        for more in range(_MORE + 1):
            for other in (False, True):
                trial = x_cf.clone()
                for j in columns:
                    column, at = encoder.columns_[j], digits[j] + more
                    rounded = round_to(numbers[j], at)
                    if other:
                        rounded = round_to(rounded + np.sign(numbers[j] - rounded) * 10.0**-at, at)
                    code = torch.as_tensor(column.encode(stored(column, rounded))[:, 0]).to(x_cf)
                    # The number alone: flags of special codes stay as they are.
                    start = encoder.slices_[column.feature.name].start
                    trial[:, start] = torch.where(changed[:, j], code, x_cf[:, start])
                yield trial

    def _stands(self, points: Tensor, part: Factuals, rows: Tensor) -> Tensor:
        """Mask ``(a,)`` of points ``(a, d)`` of some rows ``(a,)`` that are as good as those before rounding."""
        finder, before, y = self.finder, self.x_cf[rows], self.y[rows]
        lower, upper = finder.constraints.to(before).interval(part.x, part.held)
        # What was allowed before may lie on the wrong side of a bound by a last bit.
        inside = ((points >= torch.minimum(lower, before)) & (points <= torch.maximum(upper, before))).all(-1)
        alike = (finder.differs(points, part.x) == finder.differs(before, part.x)).all(-1)
        fine = (inside & alike & finder.keeps(points, part)).nonzero().squeeze(-1)
        stands = torch.zeros_like(inside)
        if len(fine):
            decided = (finder.logits(q[fine]).argmax(-1).to(y) == y[fine] for q in (points, before))
            same = torch.eq(*decided)
            confidence = finder.confidence(points[fine], y[fine])
            stands[fine] = same & (confidence >= self.floor[rows[fine]]) & (confidence < self.ceiling)
        return stands
