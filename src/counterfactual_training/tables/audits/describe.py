"""What readers of an audit need to know about its models and its people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from counterfactual_training.tables.audits.groups import Grouping
from counterfactual_training.tables.audits.intervals import FEW
from counterfactual_training.tables.audits.people import Subject, Told
from counterfactual_training.tables.audits.result import IDS


def immutable(subject: Subject, groupings: Sequence[Grouping]) -> dict[str, bool | None]:
    """By grouping, whether the model holds its columns fixed; ``None`` if it does not know them."""
    fixed = {feature.name: feature.mutability == "none" for feature in subject.schema}
    known: dict[str, bool | None] = {}
    for grouping in groupings[1:]:
        inside = all(part in fixed for part in grouping.parts)
        if inside:
            known[grouping.column or ""] = all(fixed[part] for part in grouping.parts)
        else:
            known[grouping.column or ""] = None
    return known


def described(i: int, told: Told, labels: np.ndarray | None) -> dict[str, Any]:
    if labels is None:
        right = None
    else:
        right = float(np.mean(told.decision == labels))
    return {
        "id": IDS[i],
        "name": told.subject.name,
        "accuracy": right,
        "denied": int(told.denied.sum()),
        "explained": len(told.chosen),
        "asked": None if told.explanation is None else told.explanation.asked,
        "status": told.status,
        "advised": _advised(told),
    }


def _advised(told: Told) -> dict[str, float]:
    """The share of advice that changes each column, the most frequent first."""
    helped = told.helped[told.chosen]
    if told.explanation is None or not helped.any():
        return {}
    changed = told.explanation.changed.to_numpy()[helped]
    share = np.average(changed, axis=0, weights=told.weight[told.chosen][helped])
    order = np.argsort(-share, kind="stable")
    return {told.subject.columns[j]: float(share[j]) for j in order.tolist() if share[j] > 0}


def notes_on(
    told: Sequence[Told], groupings: Sequence[Grouping], groups: pd.DataFrame, retrain: int
) -> tuple[str, ...]:
    notes = []
    for one in told:
        if int(one.denied.sum()) > len(one.chosen):
            notes.append(
                f"{one.subject.name}: {len(one.chosen):,} of {int(one.denied.sum()):,} denied "
                "people were explained, "
                "drawn at random within groups and weighted by the people they stand for."
            )
        lost = int((one.stuck & one.deserving).sum())
        if lost:
            notes.append(
                f"{one.subject.name}: {lost:,} wrongly denied people have no recourse and so no "
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
    if retrain and any(one.subject.retrain is None for one in told):
        notes.append("Retraining was asked for, but the rows of the training are not known.")
    free = [
        name for name, fixed in immutable(told[0].subject, groupings).items() if fixed is False
    ]
    if free:
        notes.append(
            f"The model lets people change {', '.join(free)}: advice may lead from one group to "
            "another."
        )
    return tuple(notes)
