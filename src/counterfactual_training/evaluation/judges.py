"""Judges of counterfactuals that are independent of the model, fitted to rows that neither models
nor gates saw.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterfactual_training.core.distances import L1Reference
from counterfactual_training.core.precision import at_least_single
from counterfactual_training.errors import InputError
from counterfactual_training.evaluation.acceptance import FAMILIES, FEWEST_ROWS, Jury
from counterfactual_training.evaluation.metrics import ACCEPTANCE
from counterfactual_training.evaluation.plausibility import mmd_contributions, self_likeness

NUM_NEAREST = 5
# Values of the differences that are in memory at once.
_BLOCK_VALUES = 2**24

Array = NDArray[np.float64]
# The columns of a judge; less is better for nn5, ip and ip_star, more for lof and acceptance.
JUDGED = ("nn5", "ip", "ip_star", "lof", ACCEPTANCE, *FAMILIES, "spread")


@dataclass(frozen=True, eq=False)
class _Class:
    """One class of real rows, prepared for comparisons."""

    rows: Tensor  # (m, d)
    l1: L1Reference
    likeness: Tensor  # of the rows among themselves, the constant of IP*
    scatter: float  # mean L2 distance of the rows to their mean
    lof: Any  # local outlier factor, novelty; ``None`` if there is only one row

    @classmethod
    def from_rows(cls, rows: Tensor, length_scale: float) -> _Class:
        from sklearn.neighbors import LocalOutlierFactor  # imported here, because it is slow

        lof = None
        if len(rows) > 1:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # tables may have duplicate rows
                lof = LocalOutlierFactor(n_neighbors=min(20, len(rows) - 1), novelty=True).fit(
                    rows.numpy()
                )
        # The unit of ``spread``: 1 means as diverse as real rows.
        scatter = float(_scatter(rows).mean())
        return cls(
            rows, L1Reference.prepare(rows), self_likeness(rows, length_scale), scatter, lof
        )


@dataclass(frozen=True, eq=False)
class Judge:
    """How much points look like a class to real rows, and to models of other families.

    ===========  ================================================================================
    nn5          mean L2 distance to the five nearest real rows of the target class
    ip           mean L1 distance to all real rows of the class (IP, Eq. 5)
    ip_star      what the point adds to the squared MMD of all points and the class (IP*, Eq. 6)
    lof          1 where the local outlier factor takes the point for an inlier of the class
    acceptance   the share of a :class:`Jury`, fitted to the same rows, that puts the point into
                 the class; and one column for each of its families, 1 where that one does
    spread       L2 distance to the mean of all points of the class, in units of the real rows'
                 own mean one: its mean is the diversity, 1 for real rows, less for points that
                 crowd at a mode
    ===========  ================================================================================

    ``ip_star`` and ``spread`` belong to a set of points: hand in only those that count.
    """

    classes: tuple[_Class | None, ...]
    jury: Jury | None  # ``None`` of rows that are too few, or all of one class
    length_scale: float = 5.0

    @classmethod
    def fit(
        cls, x: Tensor, y: Tensor, num_classes: int, length_scale: float = 5.0, seed: int = 0
    ) -> Judge:
        """From real rows x ``(m, *features)`` with classes y ``(m,)``; a class without rows is
        judged NaN.
        """
        if x.dim() < 2 or y.shape != x.shape[:1] or not len(y):
            raise InputError(
                f"A judge needs rows (m, ...) and classes (m,), got {tuple(x.shape)}, "
                f"{tuple(y.shape)}."
            )
        if int(y.min()) < 0 or int(y.max()) >= num_classes:
            raise InputError(
                f"Classes must lie in 0..{num_classes - 1}, got {int(y.min())} to {int(y.max())}."
            )
        rows = _flat(x)
        labels = y.cpu()
        by_class = [rows[labels == k] for k in range(num_classes)]
        jury = None
        if len(labels) >= FEWEST_ROWS and len(labels.unique()) > 1:
            jury = Jury.fit(rows.numpy(), labels.numpy(), seed=seed)
        classes = tuple(
            _Class.from_rows(part, length_scale) if len(part) else None for part in by_class
        )
        return cls(classes, jury, length_scale)

    def __call__(self, x: Tensor, y_target: Tensor) -> dict[str, Array]:
        """:data:`JUDGED` of points x ``(n, *features)`` meant to be of class y_target ``(n,)``;
        each ``(n,)``.
        """
        if y_target.shape != x.shape[:1]:
            raise InputError(
                f"Expected points (n, ...), targets (n,), got {tuple(x.shape)}, "
                f"{tuple(y_target.shape)}."
            )
        points = _flat(x)
        targets = y_target.cpu().numpy()
        out = {name: np.full(len(targets), np.nan) for name in JUDGED}
        for target in np.unique(targets):
            real = self.classes[target]
            if real is None:
                continue
            mine = targets == target
            of_class = points[torch.from_numpy(mine)]
            out["nn5"][mine] = nearest_distance(of_class, real.rows)
            out["ip"][mine] = real.l1.mean_distance(of_class)
            out["ip_star"][mine] = mmd_contributions(
                of_class, real.rows, self.length_scale, likeness=real.likeness
            )
            # Around their own mean: points may be diverse in the wrong place, which other columns
            # measure.
            if real.scatter > 0:
                out["spread"][mine] = _scatter(of_class) / real.scatter
            else:
                out["spread"][mine] = np.nan
            if real.lof is not None:
                out["lof"][mine] = real.lof.predict(of_class.numpy()) == 1
            if self.jury is not None:
                verdicts = self.jury.accepts(of_class.numpy(), targets[mine])
                out[ACCEPTANCE][mine] = verdicts.mean(1)
                for family, verdict in zip(self.jury.models, verdicts.T, strict=True):
                    out[family][mine] = verdict
        return out


def nearest_distance(x: Tensor, reference: Tensor, num: int = NUM_NEAREST) -> Tensor:
    """Mean L2 distance ``(n,)`` of points ``(n, d)`` to the ``num`` nearest of ``(m, d)``, or to
    all if m is less.
    """
    block = max(1, _BLOCK_VALUES // max(1, reference.numel()))
    # Differences, not inner products: those lose the distances of points that nearly coincide.
    exact = "donot_use_mm_for_euclid_dist"
    parts = [torch.cdist(rows, reference, compute_mode=exact) for rows in x.split(block)]
    return torch.cat(
        [
            part.topk(min(num, len(reference)), -1, largest=False).values.mean(-1)
            for part in parts
        ]
    )


def real_rows(x: Tensor, y: Tensor, y_target: Tensor, seed: int = 0) -> Tensor:
    """For every target a real row of that class, drawn from x: no row twice while there are others.
    ``(n, d)``.
    """
    rng = torch.Generator().manual_seed(seed)

    def drawn(pool: Tensor, mine: Tensor) -> Tensor:
        num = int(mine.sum())
        # Rounded up: whole permutations, until there are enough rows.
        turns = -(-num // len(pool))
        return torch.cat(
            [pool[torch.randperm(len(pool), generator=rng)] for _ in range(turns)]
        )[:num]

    return x[_by_class(y, y_target, drawn)]


def nearest_of_target(x: Tensor, y: Tensor, factuals: Tensor, y_target: Tensor) -> Tensor:
    """For every factual the row of its target class, out of x, that is nearest by L1. ``(n,
    d)``.
    """

    def nearest(pool: Tensor, mine: Tensor) -> Tensor:
        return pool[torch.cdist(_flat(factuals[mine]), _flat(x[pool]), p=1.0).argmin(-1)]

    return x[_by_class(y, y_target, nearest)]


def _by_class(
    y: Tensor, y_target: Tensor, choose: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """A row number per target, chosen from the numbers of the rows of that class for the mask of
    its targets.
    """
    out = torch.empty(len(y_target), dtype=torch.long)
    for target in y_target.unique().tolist():
        pool = (y == target).nonzero().flatten()
        mine = y_target == target
        if not len(pool):
            raise InputError(
                f"There is no real row of the target class {target} to compare with."
            )
        out[mine] = choose(pool, mine)
    return out


def _scatter(rows: Tensor) -> Tensor:
    return (rows - rows.mean(0)).norm(dim=-1)


def _flat(x: Tensor) -> Tensor:
    return at_least_single(x.detach()).flatten(1).cpu()
