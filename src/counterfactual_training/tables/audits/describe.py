"""What readers of an audit need to know about its models and its people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from counterfactual_training.tables.audits.groups import Grouping
from counterfactual_training.tables.audits.intervals import FEW
from counterfactual_training.tables.audits.people import ModelAdvice, Subject
from counterfactual_training.tables.audits.result import IDS


def immutable(subject: Subject, groupings: Sequence[Grouping]) -> dict[str, bool | None]:
    """By grouping, whether the model holds its columns fixed; ``None`` if it does not know them."""
    fixed = {feature.name: feature.mutability == "none" for feature in subject.schema}
    fixed_groupings: dict[str, bool | None] = {}
    for grouping in groupings[1:]:
        inside = all(part in fixed for part in grouping.parts)
        if inside:
            fixed_groupings[grouping.column or ""] = all(fixed[part] for part in grouping.parts)
        else:
            fixed_groupings[grouping.column or ""] = None
    return fixed_groupings


def described(i: int, advice: ModelAdvice, labels: np.ndarray | None) -> dict[str, Any]:
    if labels is None:
        right = None
    else:
        right = float(np.mean(advice.decision == labels))
    return {
        "id": IDS[i],
        "name": advice.subject.name,
        "accuracy": right,
        "denied": int(advice.denied.sum()),
        "explained": len(advice.chosen),
        "asked": None if advice.explanation is None else advice.explanation.asked,
        "status": advice.status,
        "advised": _advised(advice),
    }


def _advised(advice: ModelAdvice) -> dict[str, float]:
    """The share of advice that changes each column, the most frequent first."""
    helped = advice.helped[advice.chosen]
    if advice.explanation is None or not helped.any():
        return {}
    changed = advice.explanation.changed.to_numpy()[helped]
    share = np.average(changed, axis=0, weights=advice.weight[advice.chosen][helped])
    order = np.argsort(-share, kind="stable")
    return {advice.subject.columns[j]: float(share[j]) for j in order.tolist() if share[j] > 0}


def notes_on(
    models: Sequence[ModelAdvice],
    groupings: Sequence[Grouping],
    groups: pd.DataFrame,
    retrain: int,
) -> tuple[str, ...]:
    notes = []
    for model in models:
        if int(model.denied.sum()) > len(model.chosen):
            notes.append(
                f"{model.subject.name}: {len(model.chosen):,} of {int(model.denied.sum()):,} "
                "denied people were explained, "
                "drawn at random within groups and weighted by the people they stand for."
            )
        lost = int((model.stuck & model.deserving).sum())
        if lost:
            notes.append(
                f"{model.subject.name}: {lost:,} wrongly denied people have no recourse and so no "
                "cost; social burden "
                "and NAWB leave them out."
            )
    few = groups[(groups["column"] != "") & groups["few"].astype(bool)]
    if len(few):
        named = few[["column", "group"]].drop_duplicates()
        shown = ", ".join(
            f"{column}: {group}" for column, group in named.head(5).itertuples(index=False)
        )
        notes.append(
            f"{len(named)} group(s) have fewer than {FEW} people in some measure ({shown}"
            f"{', …' if len(named) > 5 else ''}): shown, flagged, and left out of gaps."
        )
    if retrain and any(model.subject.retrain is None for model in models):
        notes.append("Retraining was asked for, but the rows of the training are not known.")
    free = [
        name
        for name, fixed in immutable(models[0].subject, groupings).items()
        if fixed is False
    ]
    if free:
        notes.append(
            f"The model lets people change {', '.join(free)}: advice may lead from one group to "
            "another."
        )
    return tuple(notes)
