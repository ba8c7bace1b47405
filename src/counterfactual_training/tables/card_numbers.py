"""The numbers of a model card, with intervals."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd

from counterfactual_training.errors import lookup
from counterfactual_training.evaluation.bootstrap import percentile_interval
from counterfactual_training.tables.audits import Audit
from counterfactual_training.tables.audits.intervals import holding
from counterfactual_training.tables.card_parts import CardSection, CardTable

_BINS = 10
_RESAMPLES = 200
_Z = 1.959964
_MOST_CLASSES = 12
_HEADER = ("measure", "value", "95 % interval", "n", "meaning")
_SHOWN = ("denied", "no_recourse", "implausible", "burden", "false_negatives", "nawb")


def measures(
    classifier: Any,
    frame: pd.DataFrame | None,
    labels: Any,
    audit: Audit | None,
    reason: str,
    seed: int,
) -> CardSection:
    if frame is None:
        return CardSection(
            "measures", "Measures", (f"{reason} Name rows with their classes to add measures.",)
        )
    if labels is None:
        rows = []
    else:
        rows = _of_decisions(classifier, frame, labels, seed)
    if audit is not None:
        rows += _of_advice(audit)
    if audit is None:
        sentences = [reason]
    else:
        sentences = []
    if labels is None:
        sentences.append(
            "The classes of these rows are not known: whether decisions are right was not measured."
        )
    tables = (CardTable("", _HEADER, tuple(rows)),) if rows else ()
    return CardSection("measures", "Measures", tuple(sentences), tables=tables)


def _of_decisions(
    classifier: Any, frame: pd.DataFrame, labels: Any, seed: int
) -> list[tuple[str, ...]]:
    names = list(classifier.classes_.tolist())
    probability = classifier.predict_proba(frame[list(classifier.schema_.names)])
    places = {label: i for i, label in enumerate(names)}
    y = np.array([lookup("class of a row", label, places) for label in list(labels)])
    right = probability.argmax(1) == y
    usual = int(np.bincount(y, minlength=len(names)).argmax())
    rows = [
        _share("accuracy", right, "decisions that are right"),
        _share(
            "most frequent class",
            y == usual,
            f"what always saying {str(names[usual])!r} would get right",
        ),
    ]
    for index, label in enumerate(names[:_MOST_CLASSES]):
        if (y == index).any():
            rows.append(
                _share(
                    f"recall of {label}",
                    right[y == index],
                    f"rows of class {str(label)!r} decided rightly",
                )
            )
    gap, low, high = calibration_gap(probability.max(1), right, np.random.default_rng(seed))
    meaning = "how far stated confidences are from the share of right decisions, on average"
    rows.append(
        (
            "calibration gap",
            f"{100 * gap:.1f} %",
            f"{100 * low:.1f} to {100 * high:.1f} %",
            f"{len(y):,}",
            meaning,
        )
    )
    return rows


def calibration_gap(
    confidence: np.ndarray, right: np.ndarray, rng: np.random.Generator
) -> tuple[float, float, float]:
    """Expected calibration error ``Σ_b |Σ_{i∈b} (pᵢ − rightᵢ)| / n`` in ten bins of confidence,
    with an interval.
    """
    bins = np.minimum((confidence * _BINS).astype(int), _BINS - 1)
    excess = np.zeros((len(right), _BINS))
    excess[np.arange(len(right)), bins] = confidence - right

    def gap(rows: np.ndarray) -> float:
        return float(np.abs(excess[rows].sum(0)).sum() / len(rows))

    every = np.arange(len(right))
    draws = [gap(rng.integers(len(right), size=len(right))) for _ in range(_RESAMPLES)]
    # Chance alone adds to every draw, so that all of them may lie above the estimate.
    interval = holding(gap(every), *percentile_interval(draws))
    return interval["value"], interval["low"], interval["high"]


def _of_advice(audit: Audit) -> list[tuple[str, ...]]:
    everybody = audit.to_dict()["columns"][0]["measures"]
    rows: list[tuple[str, ...]] = []
    for measure in everybody:
        line = measure["models"][0]["groups"][0]
        if measure["id"] not in _SHOWN or line["value"] is None:
            continue
        share = measure["unit"] == "share"
        if share:
            value = f"{100 * line['value']:.1f} %"
        else:
            value = f"{line['value']:.3g}"
        if share:
            interval = f"{100 * line['low']:.1f} to {100 * line['high']:.1f} %"
        else:
            interval = f"{line['low']:.3g} to {line['high']:.3g}"
        rows.append(
            (measure["title"].lower(), value, interval, f"{line['n']:,}", measure["meaning"])
        )
    return rows


def _share(title: str, hits: np.ndarray, meaning: str) -> tuple[str, ...]:
    low, high = wilson(int(hits.sum()), len(hits))
    return (
        title,
        f"{100 * hits.mean():.1f} %",
        f"{100 * low:.1f} to {100 * high:.1f} %",
        f"{len(hits):,}",
        meaning,
    )


def wilson(hits: int, n: int) -> tuple[float, float]:
    """The 95 % interval of a share by Wilson's score."""
    share = hits / n
    square = _Z**2
    middle = (share + square / (2 * n)) / (1 + square / n)
    half = _Z / (1 + square / n) * math.sqrt(share * (1 - share) / n + square / (4 * n**2))
    return max(0.0, middle - half), min(1.0, middle + half)


def by_group(audit: Audit) -> CardSection:
    tables = []
    for column in audit.to_dict()["columns"][1:]:
        shown = [measure for measure in column["measures"] if measure["id"] in _SHOWN]
        header = ("group", "people", *(measure["title"].lower() for measure in shown))
        rows = []
        for g, group in enumerate(column["groups"]):
            cells = [_cell(measure, measure["models"][0]["groups"][g]) for measure in shown]
            rows.append((group["group"], f"{group['rows']:,}", *cells))
        tables.append(CardTable(column["title"], header, tuple(rows)))
    sentences = ["Values with 95 % intervals; a star marks fewer than ten people."]
    clear = audit.findings
    sentences.append(
        "Clear differences, whose interval excludes zero:"
        if clear
        else "No difference has an interval that excludes zero."
    )
    return CardSection(
        "groups", "By group", tuple(sentences), items=tuple(clear), tables=tuple(tables)
    )


def _cell(measure: dict[str, Any], line: dict[str, Any]) -> str:
    if line["few"]:
        star = "*"
    else:
        star = ""
    return (
        percent_span(line)
        if measure["unit"] == "share"
        else span(line, 4 if measure["unit"] == "index" else 2)
    ) + star


def percent_span(line: dict[str, Any]) -> str:
    scaled = {
        name: None if line[name] is None else 100 * line[name]
        for name in ("value", "low", "high")
    }
    return span(scaled, 1, " %")


def span(line: dict[str, Any], digits: int, unit: str = "") -> str:
    if line["value"] is None:
        return "–"
    return f"{line['value']:.{digits}f}{unit} [{line['low']:.{digits}f}, {line['high']:.{digits}f}]"
