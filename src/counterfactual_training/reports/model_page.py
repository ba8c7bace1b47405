"""The page about a classifier of a user's table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from counterfactual_training.experiments.portrait import Advice, Portrait
from counterfactual_training.persistence import atomic_write
from counterfactual_training.reports.demo_report import RunInfo
from counterfactual_training.reports.page import render
from counterfactual_training.reports.text_table import NOTHING

# What an answer may come to, in the order of the table.
_STATUS = {
    "converged": ("answered", "the decision changes, and the row then looks like real ones of that class"),
    "already_there": ("answered already", "the decision already is the wanted one"),
    "implausible": ("only an unlikely answer", "the decision would change, but hardly any real row looks like that"),
    "infeasible": ("no answer: rules", "every change that would still help is forbidden"),
    "exhausted": ("no answer: not found", "the search ended without reaching the other decision"),
}
_MOST_COLUMNS, _MOST_REASONS, _MOST_CLASSES, _MOST_UNEQUAL = 25, 10, 12, 4


class Cell(NamedTuple):
    """A row of a table with a bar: words, a number as text, and the length of the bar from 0 to 1."""

    name: str
    detail: str
    text: str
    bar: float


def write_model_page(
    portrait: Portrait,
    path: str | Path,
    *,
    facts: Sequence[tuple[str, str]],
    columns: Sequence[Sequence[str]],
    measured: str,
    name: str,
    run: RunInfo | None = None,
) -> None:
    """Write the page as one HTML file.

    Args:
        facts: what the model is, as pairs of words.
        columns: its columns: name, kind, unit, how it may change, values.
        measured: which rows were measured, in words.
        name: of the column that holds the class.
    """
    page = model_page(portrait, facts=facts, columns=columns, measured=measured, name=name, run=run or RunInfo())
    atomic_write(path, page.encode())


def model_page(
    portrait: Portrait,
    *,
    facts: Sequence[tuple[str, str]],
    columns: Sequence[Sequence[str]],
    measured: str,
    name: str,
    run: RunInfo,
) -> str:
    """The page as HTML; arguments as in :func:`write_model_page`."""
    return render(
        "model.html",
        p=portrait,
        name=name,
        facts=facts,
        columns=columns,
        measured=measured,
        run=run,
        percent=percent,
        shown_classes=range(min(len(portrait.classes), _MOST_CLASSES)),
        margin=1.96 * math.sqrt(portrait.accuracy * (1 - portrait.accuracy) / max(portrait.rows, 1)),
        gap=_calibration_gap(portrait),
        importance=_importance(portrait),
        statuses=_statuses(portrait.advice),
        reasons=_reasons(portrait.advice),
        groups=_groups(portrait),
        compared=_compared(portrait),
    )  # fmt: skip


def percent(share: float, digits: int = 0) -> str:
    """``12 %``, never broken into two lines; a dash for what is not known."""
    return NOTHING if math.isnan(share) else f"{100 * share:.{digits}f}\N{NO-BREAK SPACE}%"


def _rows(table: Any) -> list[Any]:
    return list(table.itertuples(index=False))


def _calibration_gap(portrait: Portrait) -> float:
    """The mean distance between stated confidence and share of right decisions."""
    total = sum(rows for _, _, rows, _, _ in portrait.calibration)
    return sum(rows * abs(sure - right) for _, _, rows, sure, right in portrait.calibration) / max(total, 1)


def _importance(portrait: Portrait) -> list[Cell]:
    shown = _rows(portrait.importance)[:_MOST_COLUMNS]
    longest = max((row.shift for row in shown), default=0.0) or 1.0
    may = {"none": "may not change", "increase": "may only rise", "decrease": "may only fall", "both": ""}
    cells = []
    for row in shown:
        text = f"probability ±{100 * row.shift:.1f}, accuracy {-100 * row.lost:+z.1f}".replace("-", "−")
        cells.append(Cell(row.column, may[row.mutability], text, row.shift / longest))
    return cells


def _statuses(advice: Advice) -> list[Cell]:
    found = [(name, advice.status[name]) for name in _STATUS if advice.status.get(name)]
    return [
        Cell(*_STATUS[name], f"{percent(count / advice.people)} ({count})", count / advice.people)
        for name, count in found
    ]


def _reasons(advice: Advice) -> list[Cell]:
    total = advice.status.get("infeasible", 0) or 1
    return [
        Cell(column, why, f"{percent(count / total)} ({count})", count / total)
        for column, why, count in advice.reasons[:_MOST_REASONS]
    ]


def _groups(portrait: Portrait) -> list[Cell]:
    """The columns whose groups differ most, the most unequal first; none if everybody is answered."""
    if portrait.groups.empty or portrait.advice.answered == 1:
        return []
    by_column = portrait.groups.groupby("column", sort=False)["answered"]
    spread = (by_column.max() - by_column.min()).sort_values(ascending=False, kind="stable")
    rows = [row for name in spread.index[:_MOST_UNEQUAL] for row in _rows(portrait.groups) if row.column == name]
    return [Cell(row.column, row.group, f"{percent(row.answered)} of {row.people}", row.answered) for row in rows]


def _compared(portrait: Portrait) -> list[tuple[str, str, str, str]]:
    """Rows of the comparison: measure, ours, the rival's, meaning."""
    ours, other = portrait.advice, portrait.rival_advice
    if other is None:
        return []
    rows = [
        ("accuracy", percent(portrait.accuracy, 1), percent(portrait.rival_accuracy, 1), "rows decided rightly"),
        ("answered", percent(ours.answered), percent(other.answered), "people who can get the wanted decision"),
    ]
    if not math.isnan(ours.plausible):
        rows.append(
            ("plausible", percent(ours.plausible), percent(other.plausible), "of the answers, look like real rows")
        )
    far = "median distance to the answer; numbers count in standard deviations"
    rows.append(("cost", _number(ours.cost), _number(other.cost), far))
    rows.append(
        ("changes", _number(ours.changes), _number(other.changes), "columns that an answer changes, on average")
    )
    return rows


def _number(value: float) -> str:
    return NOTHING if math.isnan(value) else f"{value:.2f}"
