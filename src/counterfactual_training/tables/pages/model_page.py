"""The page about a classifier of a user's table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from counterfactual_training.persistence import atomic_write
from counterfactual_training.rules import WAYS
from counterfactual_training.tables.pages.files import RunInfo, render
from counterfactual_training.tables.pages.portrait import Advice, Portrait
from counterfactual_training.text_table import NOTHING, number

# The statuses of answers, in the order of the table.
_STATUS = {
    "converged": (
        "answered",
        "the decision changes, and the row then looks like real ones of that class",
    ),
    "already_there": ("answered already", "the decision already is the wanted one"),
    "implausible": (
        "only an unlikely answer",
        "the decision would change, but hardly any real row looks like that",
    ),
    "infeasible": ("no answer: rules", "every change that would still help is forbidden"),
    "exhausted": (
        "no answer: not found",
        "the search ended without reaching the other decision",
    ),
}
_MOST_COLUMNS = 25
_MOST_REASONS = 10
_MOST_CLASSES = 12
_MOST_UNEQUAL = 4


# A row of a table with a bar: words, more words, a number as text, and the length of the bar from 0
# to 1.
Bar = tuple[str, str, str, float]


def write_model_page(
    portrait: Portrait,
    path: str | Path,
    *,
    facts: Sequence[tuple[str, str]],
    columns: Sequence[Sequence[str]],
    measured: str,
    name: str,
    relations: Sequence[str] = (),
    run: RunInfo | None = None,
) -> None:
    """Write the page as one HTML file.

    Args:
        facts: what the model is, as pairs of words.
        columns: its columns: name, kind, unit, how it may change, values and rules.
        measured: which rows were measured, in words.
        name: of the column that holds the class.
        relations: between columns, as they were stated.
    """
    page = render(
        "model.html",
        p=portrait,
        name=name,
        facts=facts,
        columns=columns,
        relations=relations,
        measured=measured,
        run=run or RunInfo(),
        percent=percent,
        shown_classes=range(min(len(portrait.classes), _MOST_CLASSES)),
        # Of a share measured on so many rows: the 95 % interval of the normal approximation.
        margin=1.96
        * math.sqrt(portrait.accuracy * (1 - portrait.accuracy) / max(portrait.rows, 1)),
        gap=_calibration_gap(portrait),
        importance=_importance(portrait),
        statuses=_statuses(portrait.advice),
        reasons=_reasons(portrait.advice),
        groups=_groups(portrait),
        compared=_compared(portrait),
    )
    atomic_write(path, page.encode())


def percent(share: float, digits: int = 0) -> str:
    """``12 %``, never broken into two lines; a dash for what is not known."""
    if math.isnan(share):
        return NOTHING
    return f"{100 * share:.{digits}f}\N{NO-BREAK SPACE}%"


def _calibration_gap(portrait: Portrait) -> float:
    """The mean distance between stated confidence and share of right decisions."""
    total = sum(rows for _, _, rows, _, _ in portrait.calibration)
    return sum(
        rows * abs(sure - right) for _, _, rows, sure, right in portrait.calibration
    ) / max(total, 1)


def _importance(portrait: Portrait) -> list[Bar]:
    shown = portrait.importance.head(_MOST_COLUMNS)
    longest = shown["shift"].max() or 1.0
    may = {**WAYS, "both": ""}  # is implied
    bars = []
    for column, shift, lost, mutability in shown.itertuples(index=False):
        text = f"probability ±{100 * shift:.1f}, accuracy {-100 * lost:+z.1f}".replace("-", "−")
        bars.append((column, may[mutability], text, shift / longest))
    return bars


def _statuses(advice: Advice) -> list[Bar]:
    statuses = [
        (*_STATUS[name], advice.status[name]) for name in _STATUS if advice.status.get(name)
    ]
    return _shares(statuses, advice.people)


def _reasons(advice: Advice) -> list[Bar]:
    return _shares(advice.reasons[:_MOST_REASONS], advice.status.get("infeasible", 0))


def _shares(counts: Sequence[tuple[str, str, int]], total: int) -> list[Bar]:
    """Counted people as shares of all of them."""
    return [
        (word, more, f"{percent(count / total)} ({count})", count / total)
        for word, more, count in counts
    ]


def _groups(portrait: Portrait) -> list[Bar]:
    """The columns whose groups differ most, the most unequal first; none if everybody is
    answered.
    """
    if portrait.groups.empty or portrait.advice.answered == 1:
        return []
    by_column = portrait.groups.groupby("column", sort=False)["answered"]
    spread = (by_column.max() - by_column.min()).sort_values(ascending=False, kind="stable")
    shown = portrait.groups.set_index("column").loc[spread.index[:_MOST_UNEQUAL]].reset_index()
    return [
        (*words, f"{percent(share)} of {people}", share)
        for *words, people, share in shown.itertuples(index=False)
    ]


def _compared(portrait: Portrait) -> list[tuple[str, str, str, str]]:
    """Rows of the comparison: measure, ours, the rival's, meaning."""
    ours = portrait.advice
    other = portrait.rival_advice
    if other is None:
        return []
    rows = [
        (
            "accuracy",
            percent(portrait.accuracy, 1),
            percent(portrait.rival_accuracy, 1),
            "rows decided rightly",
        ),
        (
            "answered",
            percent(ours.answered),
            percent(other.answered),
            "people who can get the wanted decision",
        ),
    ]
    if not math.isnan(ours.plausible):
        plausible = percent(ours.plausible), percent(other.plausible)
        rows.append(("plausible", *plausible, "of the answers, look like real rows"))
    far = "median distance to the answer; numbers count in standard deviations"
    rows.append(("cost", number(ours.cost, 2), number(other.cost, 2), far))
    changed = "columns that an answer changes, on average"
    rows.append(("changes", number(ours.changes, 2), number(other.changes, 2), changed))
    return rows
