"""Whether counterfactuals of test rows would work, by judges that never saw the person they judge.

Every test row may be explained, so no rows are left to fit judges to. The rows are cut in halves
instead: a person of one half is judged by a :class:`Jury` fitted to the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from counterfactual_training.core.precision import at_least_single
from counterfactual_training.evaluation.acceptance import Jury, Maker
from counterfactual_training.evaluation.findings import Finding
from counterfactual_training.evaluation.metrics import ACCEPTANCE, BY_WITNESSES
from counterfactual_training.evaluation.performance import decider, predict_logits

# With fewer rows in a half, what a judge says is chance.
_FEWEST = 30


@dataclass(frozen=True, eq=False)
class CrossJury:
    """Two juries, each fitted to one half of the rows and asked about people of the other.

    Attributes:
        half: ``(n,)`` the half, 0 or 1, that each row is in; each has its share of every class.
        juries: fitted to half 0 and to half 1.
        accuracy: ``(families,)`` of their models on the half that these did not see, the mean of
            both.
        constant: families whose model gives every row of the other half one class, in either half.
    """

    half: NDArray[np.int64]
    juries: tuple[Jury, Jury]
    accuracy: NDArray[np.float64]
    constant: tuple[str, ...]

    @classmethod
    def fit(
        cls, x: Tensor, y: Tensor, families: Mapping[str, Maker] | None = None, seed: int = 0
    ) -> CrossJury | None:
        """Of rows x ``(n, *features)`` and their classes y ``(n,)``; ``None`` where a half has too
        few rows or a single class.
        """
        points = _points(x)
        labels = y.cpu().numpy()
        half = _halves(labels, seed)
        parts = [(points[half == k], labels[half == k]) for k in (0, 1)]
        if any(len(of) < _FEWEST or len(np.unique(of)) < 2 for _, of in parts):
            return None
        juries = tuple(Jury.fit(*part, families, seed) for part in parts)
        of_others = [
            np.stack([model.predict(seen) for model in jury.models.values()], axis=1)
            for jury, (seen, _) in zip(juries, reversed(parts), strict=True)
        ]
        accuracy = np.mean(
            [
                (verdicts == of[:, None]).mean(0)
                for verdicts, (_, of) in zip(of_others, reversed(parts), strict=True)
            ],
            axis=0,
        )
        same = [(verdicts == verdicts[:1]).all(0) for verdicts in of_others]
        constant = tuple(np.array(list(juries[0].models))[same[0] | same[1]].tolist())
        return cls(half, (juries[0], juries[1]), accuracy, constant)

    @property
    def families(self) -> list[str]:
        return list(self.juries[0].models)

    def accepts(self, row: Tensor, x_cf: Tensor, y_target: Tensor) -> NDArray[np.float64]:
        """1 where a family puts the counterfactuals x_cf ``(m, *features)`` of the rows ``(m,)``
        into the classes y_target ``(m,)``, else 0: ``(m, families)``. NaN for classes of which the
        jury saw no row.
        """
        points = _points(x_cf)
        targets = y_target.cpu().numpy()
        half = self.half[row.cpu().numpy()]
        out = np.full((len(targets), len(self.families)), np.nan)
        for k, jury in enumerate(self.juries):
            # Whom this jury was not fitted to, and whose target it knows.
            judged = (half != k) & np.isin(targets, jury.classes)
            if judged.any():
                out[judged] = jury.accepts(points[judged], targets[judged])
        return out


def _halves(labels: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """0 or 1 for every row ``(n,)``, by turns within each class, in random order."""
    order = np.lexsort((np.random.default_rng(seed).permutation(len(labels)), labels))
    half = np.empty(len(labels), dtype=np.int64)
    half[order] = np.arange(len(labels)) % 2
    return half


@dataclass(frozen=True, eq=False)
class Panel:
    """All who are asked whether a counterfactual works: a jury of other families, and witnesses."""

    jury: CrossJury | None
    witnesses: Sequence[nn.Module] = ()

    def columns(self, row: Tensor, x_cf: Tensor, y_target: Tensor) -> dict[str, Tensor]:
        """Shares of judges that accept the counterfactuals x_cf ``(m, *features)`` of the rows
        ``(m,)``; each ``(m,)``: of all families, of each family, of all witnesses.
        """
        out = {}
        if self.jury is not None:
            verdicts = torch.from_numpy(self.jury.accepts(row, x_cf, y_target))
            out[ACCEPTANCE] = verdicts.mean(1)
            for family, verdict in zip(self.jury.families, verdicts.T, strict=True):
                out[f"{ACCEPTANCE}@{family}"] = verdict
        if self.witnesses:
            votes = [
                predict_logits(decider(witness, x_cf), x_cf).argmax(-1) == y_target
                for witness in self.witnesses
            ]
            out[BY_WITNESSES] = torch.stack(votes).double().mean(0).cpu()
        return out

    @property
    def names(self) -> list[str]:
        """The columns there are."""
        names = []
        if self.jury is not None:
            names = [ACCEPTANCE, *(f"{ACCEPTANCE}@{one}" for one in self.jury.families)]
        return names + [BY_WITNESSES] * bool(self.witnesses)

    def check(self) -> Iterator[Finding]:
        """Judges who say nothing about a counterfactual."""
        if self.jury is not None and self.jury.constant:
            names = ", ".join(self.jury.constant)
            sentence = (
                f"Models of {names} put all rows they did not see into one class, so they accept "
                "whatever asks for it"
            )
            remedy = "leave them out by families=, or measure on more rows of the rare classes."
            yield Finding("constant_judge", f"{sentence}: {remedy}")


def _points(x: Tensor) -> NDArray[np.float32]:
    return np.asarray(at_least_single(x.detach()).flatten(1).cpu().numpy())
