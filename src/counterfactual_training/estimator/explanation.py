"""What ``explain`` returns: counterfactuals in the user's units and how it went, as data, sentences and tables."""

from __future__ import annotations

import html
import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from counterfactual_training.estimator.why import Obstacles, in_words, listed
from counterfactual_training.tabular.encode import Encoder
from counterfactual_training.tabular.feature import Feature
from counterfactual_training.text import align

_MOST_ROWS = 20
_STATUS_ORDER = ("converged", "already_there", "exhausted", "infeasible", "implausible")
_UNCHANGED = "–"
# Columns with at most this many decimals are written out; of longer ones, as many digits as the change needs.
_SHORT_DECIMALS = 4
_DIGITS_OF_CHANGE = 3
_STYLE = "border-collapse:collapse;font-variant-numeric:tabular-nums"
_CELL = "padding:3px 10px;text-align:left;border-bottom:1px solid #ddd;white-space:nowrap"


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
            needed to change; ``"exhausted"``: the steps ran out; ``"infeasible"``: stuck, every change that would still
            help is forbidden; ``"implausible"``: only rows unlike any real one of the target reach it. Rows with the
            last three hold the best effort.
        converged: ``(n,)`` whether the threshold is met, by the confidence times the plausibility.
        cost: ``(n,)`` L1 distance in model space (numbers count in standard deviations, a new category 2).
        num_steps: ``(n,)`` of the search.
        decision_threshold: the threshold asked for.
        distance: ``(n, m)`` the cost of each cell.
        obstacles: for each infeasible row, the features that may not move as would help, and why.
        encoder: knows the columns.
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
        """One line per row: status, classes, confidence, cost."""
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
        """One line per changed cell: what changed and by how much; ``change`` is missing for categories."""
        columns = list(self.frame.columns)
        records = []
        for i, j in np.argwhere(self.changed.to_numpy()).tolist():
            before, after = self._pair(i, j)
            feature = self._feature(j)
            counted = not feature.is_category and not is_missing(before)
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
        """One plain sentence per row; of more than ``most`` changes, only the largest are named."""
        return [f"Row {self.frame.index[i]}: {self._sentence(i, most)}" for i in range(len(self))]

    def records(self) -> list[dict[str, Any]]:
        """One dict of plain values per row, ready for JSON."""
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
        rows, notes = self._display()
        return "\n".join([repr(self), *align(rows), *notes])

    def _repr_html_(self) -> str:
        (header, *lines), notes = self._display()
        # Names and categories are text, never markup, so everything is escaped.
        head = "".join(f'<th style="{_CELL}">{html.escape(name)}</th>' for name in header)
        body = "".join(f"<tr>{''.join(map(_html_cell, line))}</tr>" for line in lines)
        below = "".join(f"<p>{html.escape(note)}</p>" for note in notes)
        return (
            f"<div><p>{html.escape(repr(self))}</p>"
            f'<table style="{_STYLE}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{below}</div>'
        )

    # ---- in words --------------------------------------------------------------------------------------------------

    def _sentence(self, i: int, most: int | None) -> str:
        target, sure = say_label(_plain(self.target[i])), say_confidence(self.confidence[i])
        moved, arrives = self._moved(i, most), self.prediction[i] == self.target[i]
        if self.status[i] == "already_there":
            return f"the decision already is {target} (confidence {sure}); nothing needs to change."
        if self.status[i] == "converged" and arrives:
            return f"with {moved}, the decision would be {target} (confidence {sure})."
        if self.status[i] == "converged":
            return f"with {moved}, the probability of {target} would be {sure}, as asked for."
        aim = f"makes the decision {target} with confidence {say_confidence(self.decision_threshold)}"
        head = f"no change was found that {aim}."
        if self.status[i] == "infeasible":
            head = f"no allowed change was found that {aim}: {self._hurdles(i)}."
        if self.status[i] == "implausible":
            head = f"no change was found that {aim} and looks like a real case of it."
            sure = f"{sure}, with a plausibility of {say_confidence(self.plausibility[i])}"
        if not moved:
            return f"{head} As it stands, the confidence is {sure}."
        best = "The most plausible within reach" if self.status[i] == "implausible" else "The closest"
        return f"{head} {best}, with {moved}, reaches {sure}."

    def _moved(self, i: int, most: int | None) -> str:
        """The changes of a row, the largest first."""
        order = [j for j in np.argsort(-self.distance[i], kind="stable").tolist() if self.distance[i, j] > 0]
        parts = [say_change(self._feature(j), *self._pair(i, j), self._decimals(j)) for j in order]
        return listed(parts, most)

    def _hurdles(self, i: int) -> str:
        columns = range(self.frame.shape[1])
        names = [self._feature(j).name for j in columns]
        return in_words(self.obstacles[i], names, [self._value(i, j) for j in columns])

    def _value(self, i: int, j: int) -> str:
        """A cell of the counterfactual, with its unit."""
        return with_unit(self._feature(j), say_cell(self._feature(j), self._pair(i, j)[1], self._decimals(j)))

    def _pair(self, i: int, j: int) -> tuple[Any, Any]:
        """A cell before and after."""
        return self.original.iat[i, j], self.frame.iat[i, j]

    def _feature(self, j: int) -> Feature:
        return self.encoder.schema_.features[j]

    def _decimals(self, j: int) -> int | None:
        return self.encoder.columns_[j].decimals

    # ---- as a table ------------------------------------------------------------------------------------------------

    def _display(self) -> tuple[list[list[str]], list[str]]:
        """Rows of text, the header first, and notes on what is not shown."""
        shown = min(len(self), _MOST_ROWS)
        mask = self.changed.to_numpy()[:shown]
        columns = [j for j in range(mask.shape[1]) if mask[:, j].any()]
        still = [self._feature(j).name for j in range(mask.shape[1]) if j not in set(columns)]
        gated = not np.isnan(self.plausibility).all()
        names = ["decision", "confidence", *(["plausibility"] if gated else []), "cost", "status"]
        header = ["", *(self._feature(j).name for j in columns), *names]
        rows = [header]
        for i in range(shown):
            cells = [self._arrow(i, j) if mask[i, j] else _UNCHANGED for j in columns]
            before, after = say_label(_plain(self.decision[i])), say_label(_plain(self.prediction[i]))
            decision = before if before == after else f"{before} → {after}"
            status = self.status[i].replace("_", " ")
            sure = [self.confidence[i], *([self.plausibility[i]] if gated else [])]
            tail = [decision, *map(say_confidence, sure), f"{self.cost[i]:.2f}", status]
            rows.append([str(self.frame.index[i]), *cells, *tail])
        more = f" and {len(still) - 20} more" if len(still) > 20 else ""
        notes = [f"Unchanged: {', '.join(still[:20])}{more}"] if still else []
        return rows, notes + ([f"… and {len(self) - shown} more row(s)"] if len(self) > shown else [])

    def _arrow(self, i: int, j: int) -> str:
        feature, decimals = self._feature(j), self._decimals(j)
        before, after = self._pair(i, j)
        missing = is_missing(before) or is_missing(after)
        delta = None if feature.is_category or missing else float(after) - float(before)
        return " → ".join(say_cell(feature, value, decimals, delta) for value in (before, after))


# ---- words -----------------------------------------------------------------------------------------------------------


def is_missing(value: Any) -> bool:
    return bool(pd.isna(value))


def say_cell(feature: Feature, value: Any, decimals: int | None, change: float | None = None) -> str:
    """A value as it is written in a sentence, without its unit."""
    if is_missing(value):
        return "missing"
    if feature.is_category:
        return say_label(value)
    return say_number(float(value), _decimals(decimals, change))


def say_label(value: Any) -> str:
    """A class or category."""
    if isinstance(value, (bool, np.bool_)):
        return "yes" if value else "no"
    return f"'{value}'" if isinstance(value, str) else str(value)


def say_number(value: float, decimals: int) -> str:
    """With thousands separators, without trailing zeros."""
    text = f"{value:,.{max(decimals, 0)}f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text in ("-0", "") else text


def say_confidence(value: float) -> str:
    """Two decimals, cut off: a confidence is never rounded up."""
    return f"{math.floor(value * 100 + 1e-6) / 100:.2f}"


def with_unit(feature: Feature, text: str) -> str:
    return f"{text} {feature.unit}" if feature.unit and text != "missing" else text


def say_change(feature: Feature, before: Any, after: Any, decimals: int | None) -> str:
    """One change: ``debt 12.4 thousand dollars lower (from 30.1 to 17.7)``."""
    if is_missing(before) or is_missing(after):
        old, new = (say_cell(feature, value, decimals) for value in (before, after))
        return f"{feature.name} {with_unit(feature, new)} (was {old})"
    if feature.is_category:
        return f"{feature.name} {with_unit(feature, say_label(after))} instead of {say_label(before)}"
    delta = float(after) - float(before)
    places = _decimals(decimals, delta)
    word = "higher" if delta > 0 else "lower"
    amount = with_unit(feature, say_number(abs(delta), places))
    old, new = (say_number(float(value), places) for value in (before, after))
    return f"{feature.name} {amount} {word} (from {old} to {new})"


def _decimals(decimals: int | None, change: float | None) -> int:
    if decimals is not None and decimals <= _SHORT_DECIMALS:
        return decimals
    needed = _SHORT_DECIMALS
    if change:
        needed = max(0, _DIGITS_OF_CHANGE - 1 - math.floor(math.log10(abs(change))))
    return needed if decimals is None else min(decimals, needed)


def _html_cell(text: str) -> str:
    weight = ";color:#999" if text == _UNCHANGED else ";font-weight:600" if " → " in text else ""
    return f'<td style="{_CELL}{weight}">{html.escape(text)}</td>'


def _plain(value: Any) -> Any:
    """A numpy or pandas scalar as a JSON value."""
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, (str, bool, int, float)) and value == value:
        return value
    return None if is_missing(value) else str(value)
