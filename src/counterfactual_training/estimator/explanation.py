"""What ``explain`` gives back: counterfactuals in the user's units, how it went, and how to say it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from counterfactual_training.estimator import wording
from counterfactual_training.estimator.display import as_html, as_text
from counterfactual_training.estimator.obstacles import Obstacle, Obstacles
from counterfactual_training.tabular.encode import Encoder
from counterfactual_training.tabular.feature import Feature


@dataclass(frozen=True, eq=False, repr=False)
class Explanation:
    """Counterfactuals of n rows with m features. ``str()`` and notebooks show it as a table, ``–`` for unchanged cells.

    Attributes:
        original: the rows that were explained.
        frame: their counterfactuals: same columns, dtypes and index.
        changed: mask of the cells that differ, same columns and index.
        target: ``(n,)`` the class asked for.
        decision: ``(n,)`` the class predicted for ``original``.
        prediction: ``(n,)`` the class predicted for ``frame``.
        confidence: ``(n,)`` probability of the target for ``frame``, as ``predict_proba`` would say.
        plausibility: ``(n,)`` how much ``frame`` looks like real rows of the target, given what cannot change: 0 to 1,
            NaN without a gate.
        status: ``(n,)`` ``"converged"``: the target's probability reached the threshold; ``"already_there"``: nothing
            needed to change; ``"exhausted"``: the steps ran out; ``"infeasible"``: stuck, all that would still help is
            forbidden; ``"implausible"``: the target can be reached, but only by a row unlike any real one of it. The
            last three hold the best effort.
        converged: ``(n,)`` whether the threshold is met, by the confidence times the plausibility.
        cost: ``(n,)`` L1 distance in model space (numbers count in standard deviations, a new category 2).
        num_steps: ``(n,)`` of the search.
        decision_threshold: that was asked for.
        distance: ``(n, m)`` the cost of each cell.
        obstacles: for each infeasible row the features that could not move as it would help, and why.
        encoder: what is known of the columns.
    """

    original: pd.DataFrame
    frame: pd.DataFrame
    changed: pd.DataFrame
    target: np.ndarray
    decision: np.ndarray
    prediction: np.ndarray
    confidence: np.ndarray
    plausibility: np.ndarray
    status: np.ndarray
    converged: np.ndarray
    cost: np.ndarray
    num_steps: np.ndarray
    decision_threshold: float
    distance: np.ndarray
    obstacles: list[Obstacles]
    encoder: Encoder

    def __len__(self) -> int:
        return len(self.frame)

    @property
    def summary(self) -> pd.DataFrame:
        """How it went, a line per row."""
        return pd.DataFrame(
            {
                "status": self.status,
                "converged": self.converged,
                "decision": self.decision,
                "target": self.target,
                "prediction": self.prediction,
                "confidence": self.confidence,
                "plausibility": self.plausibility,
                "cost": self.cost,
                "num_changed": self.changed.to_numpy().sum(1),
                "num_steps": self.num_steps,
            },
            index=self.frame.index,
        )

    def differences(self) -> pd.DataFrame:
        """What changed and by how much, a line per changed cell; ``change`` is missing for categories."""
        columns = list(self.frame.columns)
        records = []
        for i, j in np.argwhere(self.changed.to_numpy()).tolist():
            before, after = self._pair(i, j)
            feature = self._feature(j)
            counted = not feature.is_category and not wording.is_missing(before)
            records.append(
                {
                    "row": self.frame.index[i],
                    "column": columns[j],
                    "before": before,
                    "after": after,
                    "change": float(after) - float(before) if counted else float("nan"),
                    "unit": feature.unit,
                }
            )
        return pd.DataFrame(records, columns=["row", "column", "before", "after", "change", "unit"])

    def changes(self, most: int | None = 12) -> list[str]:
        """A sentence per row, as a clerk could say it; of more than ``most`` changes, the largest."""
        return [f"Row {self.frame.index[i]}: {self._sentence(i, most)}" for i in range(len(self))]

    def records(self) -> list[dict[str, Any]]:
        """Plain values, a dict per row, ready for JSON."""
        sentences, rows = self.changes(), []
        for i, line in enumerate(self.summary.to_dict("records")):
            moved = np.flatnonzero(self.distance[i]).tolist()
            cells = {
                self._feature(j).name: dict(zip(("from", "to"), map(_plain, self._pair(i, j)), strict=True))
                for j in moved
            }
            plain = {str(key): _plain(value) for key, value in line.items()}
            rows.append({"row": _plain(self.frame.index[i]), **plain, "changes": cells, "sentence": sentences[i]})
        return rows

    def __repr__(self) -> str:
        counts = Counter(self.status.tolist())
        said = ", ".join(f"{counts[name]} {name.replace('_', ' ')}" for name in _STATUS_ORDER if counts[name])
        return f"Explanation of {len(self)} row(s): {said}"

    def __str__(self) -> str:
        return as_text(repr(self), *self._display())

    def _repr_html_(self) -> str:
        return as_html(repr(self), *self._display())

    # ---- in words --------------------------------------------------------------------------------------------------

    def _sentence(self, i: int, most: int | None) -> str:
        target, sure = wording.label(_plain(self.target[i])), wording.confidence(self.confidence[i])
        moved, arrives = self._moved(i, most), self.prediction[i] == self.target[i]
        if self.status[i] == "already_there":
            return f"the decision already is {target} (confidence {sure}); nothing needs to change."
        if self.status[i] == "converged" and arrives:
            return f"with {moved}, the decision would be {target} (confidence {sure})."
        if self.status[i] == "converged":
            return f"with {moved}, the probability of {target} would be {sure}, as asked for."
        aim = f"makes the decision {target} with confidence {wording.confidence(self.decision_threshold)}"
        head = f"no change was found that {aim}."
        if self.status[i] == "infeasible":
            head = f"no allowed change was found that {aim}: {self._hurdles(i)}."
        if self.status[i] == "implausible":
            head = f"no change was found that {aim} and looks like a real case of it."
            sure = f"{sure}, with a plausibility of {wording.confidence(self.plausibility[i])}"
        if not moved:
            return f"{head} As it stands, the confidence is {sure}."
        best = "The most plausible within reach" if self.status[i] == "implausible" else "The closest"
        return f"{head} {best}, with {moved}, reaches {sure}."

    def _moved(self, i: int, most: int | None) -> str:
        """The changes of a row, the largest first."""
        order = [j for j in np.argsort(-self.distance[i], kind="stable").tolist() if self.distance[i, j] > 0]
        parts = [wording.change(self._feature(j), *self._pair(i, j), self._decimals(j)) for j in order]
        return wording.listed(parts, most)

    def _hurdles(self, i: int) -> str:
        found = self.obstacles[i]
        if len(found) == self.frame.shape[1] and all(kind == Obstacle.FIXED for _, kind in found):
            return "none of the columns may change"
        said = []
        for kind in Obstacle:
            group = [j for j, why in found if why == kind]
            names = [self._feature(j).name for j in group]
            said += [wording.obstacle(kind, names, [self._value(i, j) for j in group])] if group else []
        return "; ".join(said) or "the rules of the columns leave nothing that would help"

    def _value(self, i: int, j: int) -> str:
        """A cell of the counterfactual, with its unit."""
        return wording.with_unit(
            self._feature(j), wording.cell(self._feature(j), self._pair(i, j)[1], self._decimals(j))
        )

    def _pair(self, i: int, j: int) -> tuple[Any, Any]:
        """A cell before and after."""
        return self.original.iat[i, j], self.frame.iat[i, j]

    def _feature(self, j: int) -> Feature:
        return self.encoder.schema_.features[j]

    def _decimals(self, j: int) -> int | None:
        return self.encoder.columns_[j].decimals

    # ---- as a table ------------------------------------------------------------------------------------------------

    def _display(self) -> tuple[list[str], list[list[str]], list[str], int]:
        """Header, lines, the columns that nobody changed, and how many rows are not shown."""
        shown = min(len(self), _MOST_ROWS)
        mask = self.changed.to_numpy()[:shown]
        columns = [j for j in range(mask.shape[1]) if mask[:, j].any()]
        still = [self._feature(j).name for j in range(mask.shape[1]) if j not in set(columns)]
        gated = not np.isnan(self.plausibility).all()
        names = ["decision", "confidence", *(["plausibility"] if gated else []), "cost", "status"]
        header = ["", *(self._feature(j).name for j in columns), *names]
        lines = []
        for i in range(shown):
            cells = [self._arrow(i, j) if mask[i, j] else "–" for j in columns]
            before, after = wording.label(_plain(self.decision[i])), wording.label(_plain(self.prediction[i]))
            decision = before if before == after else f"{before} → {after}"
            status = self.status[i].replace("_", " ")
            sure = [self.confidence[i], *([self.plausibility[i]] if gated else [])]
            tail = [decision, *map(wording.confidence, sure), f"{self.cost[i]:.2f}", status]
            lines.append([str(self.frame.index[i]), *cells, *tail])
        return header, lines, still, len(self) - shown

    def _arrow(self, i: int, j: int) -> str:
        feature, decimals = self._feature(j), self._decimals(j)
        before, after = self._pair(i, j)
        missing = wording.is_missing(before) or wording.is_missing(after)
        delta = None if feature.is_category or missing else float(after) - float(before)
        return " → ".join(wording.cell(feature, value, decimals, delta) for value in (before, after))


_MOST_ROWS = 20
_STATUS_ORDER = ("converged", "already_there", "exhausted", "infeasible", "implausible")


def _plain(value: Any) -> Any:
    """A numpy or pandas scalar as JSON knows it."""
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, (str, bool, int, float)) and value == value:
        return value
    return None if wording.is_missing(value) else str(value)
