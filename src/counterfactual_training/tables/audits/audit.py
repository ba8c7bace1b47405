"""The audit of a model's advice: burden by group, proxies for groups, and validity later."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from counterfactual_training.errors import InputError
from counterfactual_training.tables.audits import proxies as guessing
from counterfactual_training.tables.audits.describe import described, immutable, notes_on
from counterfactual_training.tables.audits.groups import Grouping, everybody, make_groupings
from counterfactual_training.tables.audits.intervals import (
    FEW,
    Draws,
    draw_measures,
    estimate,
    gap,
    is_clear,
    num_counted,
    opened,
    parted,
)
from counterfactual_training.tables.audits.measures import MEASURES, Measure
from counterfactual_training.tables.audits.people import ModelAdvice, Survey, ask_model
from counterfactual_training.tables.audits.protocol import USUAL, AuditProtocol
from counterfactual_training.tables.audits.result import (
    DIFFERENCES,
    GAPS,
    GROUPS,
    IDS,
    INFORMATION,
    LATER,
    PROXIES,
    Audit,
)
from counterfactual_training.tables.audits.robustness import robustness
from counterfactual_training.tables.audits.subjects import checked_labels, make_subjects
from counterfactual_training.tables.columns.native import to_pandas


def audit(
    classifier: Any,
    frame: Any,
    labels: Any = None,
    groups: Sequence[str] = (),
    target: Any = None,
    *,
    against: Any = None,
    trained_on: tuple[Any, Any] | None = None,
    protocol: AuditProtocol = USUAL,
) -> Audit:
    """Measure a model's advice by group, on rows that it was not trained on.

    Args:
        classifier: fitted, a :class:`CounterfactualClassifier` or an :class:`Explainer`; or a
            :class:`Subject`.
        frame: people, in the user's units. Columns that the model does not know may serve as
            groups.
        labels: their true classes; without them, measures of wrong decisions are left out.
        groups: columns; numbers are cut into bands. ``"sex*race"`` crosses two.
        target: the class that people want.
        against: another model of the same columns and classes, such as one trained conventionally.
        trained_on: rows and labels of the training, to train both models again.
        protocol: how to measure.

    Returns:
        An :class:`Audit`: tables with intervals, and sentences about what is clear.

    Examples:
        >>> import counterfactual_training as ct
        >>> people = ct.loan(300)
        >>> clf = ct.CounterfactualClassifier(mutability={"age": "none"}, epochs=10, random_state=0)
        >>> clf = clf.fit(people.frame[:200], people.y[:200])
        >>> groups = people.frame[200:].assign(branch=["north", "south"] * 50)
        >>> quick = ct.AuditProtocol(people=40, resamples=100)
        >>> audit = ct.audit(
        ...     clf, groups, people.y[200:].numpy(), ["branch"], target=1, protocol=quick
        ... )
        >>> audit.groups.query("measure == 'denied'")["group"].tolist()
        ['everybody', 'north', 'south']
    """
    rows = to_pandas(frame)
    if not isinstance(rows, pd.DataFrame):
        raise InputError(
            f"Groups are columns, so an audit needs a data frame, got {type(frame).__name__}."
        )
    subjects = make_subjects(classifier, against, trained_on)
    y = checked_labels(subjects, rows, labels, target)
    groupings = [everybody(len(rows)), *make_groupings(rows, groups)]
    survey = Survey(rows, y, target, groupings[1:], protocol)
    ruler = subjects[0].classifier.encoder_
    models = [ask_model(subject, survey, ruler) for subject in subjects]
    if not any(advice.denied.any() for advice in models):
        raise InputError(
            f"Nobody among these {len(rows):,} rows is denied {target!r}, so there is no burden "
            "to measure."
        )
    tables = _by_group(models, groupings, _measures(models, y is not None), protocol)
    single = [grouping for grouping in groupings if grouping.kind in ("categories", "bands")]
    guesses = _guess(
        models,
        rows,
        single if protocol.proxies else [],
        guessing.Draws(protocol.seed, protocol.resamples, protocol.level),
    )
    checks = [
        {"model": IDS[i], **line}
        for i, advice in enumerate(models)
        for line in robustness(advice, target, protocol)
    ]
    facts = {
        "target": str(target),
        "rows": len(rows),
        "people": protocol.people,
        "level": protocol.level,
        "resamples": protocol.resamples,
        "seed": protocol.seed,
        "few": FEW,
        "delta": protocol.delta,
    }
    return Audit(
        *tables,
        *guesses,
        pd.DataFrame(checks, columns=LATER),
        tuple(groupings),
        immutable(subjects[0], groupings),
        tuple(described(i, advice, y) for i, advice in enumerate(models)),
        facts,
        notes_on(models, groupings, tables[0], protocol.retrain),
    )


# ---- groups --------------------------------------------------------------------------------------


def _measures(models: Sequence[ModelAdvice], labelled: bool) -> list[Measure]:
    """Those that can be measured: some need labels, a gate or a second model."""
    unavailable = set()
    if not any(advice.gated for advice in models):
        unavailable.add("implausible")
    if len(models) == 1:
        unavailable.add("burden_same")
    return [m for m in MEASURES if m.id not in unavailable and (labelled or not m.labelled)]


def _by_group(
    models: Sequence[ModelAdvice],
    groupings: Sequence[Grouping],
    measures: Sequence[Measure],
    protocol: AuditProtocol,
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    level = protocol.level
    lines: dict[str, list[dict[str, Any]]] = {"groups": [], "gaps": [], "differences": []}
    for grouping in groupings:
        rng = np.random.default_rng(protocol.seed)
        draws = draw_measures(models, grouping, measures, protocol.resamples, rng)
        for measure in measures:
            n = {
                (i, g): num_counted(models, i, grouping, g, measure)
                for i in range(len(models))
                for g in range(len(grouping.names))
            }
            where = {"column": grouping.column or "", "measure": measure.id}
            for i in range(len(models)):
                lines["groups"] += _values(i, grouping, draws, n, measure, where, level)
                usable = [g for g in range(len(grouping.names)) if n[i, g] >= FEW]
                difference = gap(draws, i, measure, usable, level)
                if difference is not None:
                    names = {
                        end: grouping.names[difference[end]] for end in ("highest", "lowest")
                    }
                    lines["gaps"].append({"model": IDS[i], **where, **difference, **names})
            if len(models) > 1:
                lines["differences"] += _differences(grouping, draws, n, measure, where, level)
    columns = (("groups", GROUPS), ("gaps", GAPS), ("differences", DIFFERENCES))
    first, second, third = (pd.DataFrame(lines[name], columns=names) for name, names in columns)
    return first, second, third


def _values(
    i: int,
    grouping: Grouping,
    draws: Draws,
    n: dict[tuple[int, int], int],
    measure: Measure,
    where: Any,
    level: float,
) -> list[dict[str, Any]]:
    lines = []
    for g, name in enumerate(grouping.names):
        interval = estimate(*draws[i, g, measure.id], level)
        count = n[i, g]
        if measure.unit == "share":
            interval = opened(interval, count, level)
        lines.append(
            {
                "model": IDS[i],
                **where,
                "group": name,
                "n": count,
                **interval,
                "few": count < FEW,
            }
        )
    return lines


def _differences(
    grouping: Grouping,
    draws: Draws,
    n: dict[tuple[int, int], int],
    measure: Measure,
    where: Any,
    level: float,
) -> list[dict[str, Any]]:
    """The first model minus the second, by group, on the same draws of people."""
    lines = []
    for g, name in enumerate(grouping.names):
        (mine, my_draws), (other, other_draws) = (
            draws[0, g, measure.id],
            draws[1, g, measure.id],
        )
        interval = estimate(mine - other, my_draws - other_draws, level)
        count = min(n[0, g], n[1, g])
        if measure.unit == "share":
            interval = parted(interval, count, level)
        lines.append(
            {
                **where,
                "group": name,
                "n": count,
                **interval,
                "few": count < FEW,
                "clear": is_clear(interval),
            }
        )
    return lines


# ---- proxies --------------------------------------------------------------------------


def _guess(
    models: Sequence[ModelAdvice],
    frame: pd.DataFrame,
    groupings: Sequence[Grouping],
    draws: guessing.Draws,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    guesses = []
    information = []
    for grouping in groupings:
        sources = [
            ("", "features", guessing.of_features(models[0].subject, frame, grouping, draws))
        ]
        sources += [
            (IDS[i], "advice", guessing.of_advice(advice, grouping, draws))
            for i, advice in enumerate(models)
        ]
        for model, source, guess in sources:
            where = {"model": model, "column": grouping.column, "source": source}
            information += [{**where, **line} for line in guess.pop("information")]
            guesses.append({**where, **guess})
    return pd.DataFrame(guesses, columns=PROXIES), pd.DataFrame(
        information, columns=INFORMATION
    )
