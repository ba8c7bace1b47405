"""People who have a category that cannot change and that no real row of the wanted class has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from counterfactual_training.tables.advice.words import say_label

if TYPE_CHECKING:
    from counterfactual_training.tables.advice.find import Finder


@dataclass(frozen=True, eq=False)
class Strangers:
    """Of the columns of categories that cannot change, which ones the real rows of a class have.

    Plausibility is judged given what cannot change, so that it may be high for people like whom
    nobody was ever accepted.

    Attributes:
        has: by feature, ``(k, width)`` whether a row of the class has the category; binary columns
            have two.
        rows: ``(k,)`` how many rows of each class the gate compares with.
    """

    has: dict[int, np.ndarray]
    rows: np.ndarray

    @classmethod
    def of(cls, finder: Finder) -> Strangers:
        gate = finder.gate
        encoder = finder.encoder
        fixed = [
            j
            for j, column in enumerate(encoder.columns_)
            if column.feature.kind in ("binary", "categorical")
            and column.feature.mutability == "none"
        ]
        if gate is None or gate.real_rows is None or not fixed:
            return cls({}, np.zeros(0, dtype=np.int64))
        real = gate.real_rows.detach().cpu().numpy()
        present = ~np.isnan(real).any(-1)
        has = {}
        for j in fixed:
            codes = real[..., encoder.slices_[encoder.columns_[j].feature.name]]
            # A single column is 0 or 1.
            if codes.shape[-1] == 1:
                codes = np.concatenate([1 - codes, codes], -1)
            has[j] = ((codes > 0.5) & present[..., None]).any(1)
        return cls(has, present.sum(1))

    def among(self, x: Tensor, y: Tensor, finder: Finder) -> list[str]:
        """What to add about each of n points ``(n, d)`` of classes y ``(n,)``; empty for most."""
        told: list[list[str]] = [[] for _ in range(len(y))]
        labels = y.cpu().numpy()
        for j, has in self.has.items():
            feature = finder.encoder.columns_[j].feature
            codes = x[:, finder.encoder.slices_[feature.name]].detach().cpu().numpy()
            if codes.shape[-1] == 1:
                codes = np.concatenate([1 - codes, codes], -1)
            category = codes.argmax(-1)
            # An unseen category has no code.
            known = codes.max(-1) > 0.5
            compared = self.rows[labels] > 0
            alone = known & compared & ~has[labels, category]
            for i in np.flatnonzero(alone).tolist():
                told[i].append(f"{feature.name} {say_label(feature.levels[category[i]])}")
        return [
            _sentence(parts, int(self.rows[label])) if parts else ""
            for parts, label in zip(told, labels.tolist(), strict=True)
        ]


def _sentence(parts: list[str], rows: int) -> str:
    return f"Of {rows:,} real rows that reach this, none has {' or '.join(parts)}."
