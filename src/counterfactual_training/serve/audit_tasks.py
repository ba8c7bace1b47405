"""What takes long: audits and the model card, as tasks of a worker."""

from __future__ import annotations

from typing import Any

import pandas as pd

from counterfactual_training.audits import Subject
from counterfactual_training.audits import audit as audit_groups
from counterfactual_training.errors import InputError
from counterfactual_training.experiments.card import make_card
from counterfactual_training.serve.served import Served


def audit(served: Served, groups: list[str], people: int, which: str, target: Any) -> dict[str, Any]:
    """The audit of one model; of both, if ``which`` is ``"main"`` and there is another one."""
    model = served.named(which)
    frame, labels = _measured(served)
    if target is None and model.wanted is None:
        raise InputError("Nobody said which class people want: name it as target, or start the server with --target.")
    other = served.against if which == "main" else None
    against = None if other is None else Subject(other.classifier, other.name)
    subject = Subject(model.classifier, model.name)
    wanted = model.wanted if target is None else model.label(target)
    found = audit_groups(subject, frame, labels, groups, wanted, against=against, people=people, seed=served.seed)
    return found.to_dict()


def card(served: Served) -> dict[str, Any]:
    """The card of the main model, with measures if there are rows and classes."""
    model = served.model
    rows = served.rows
    about: dict[str, Any] = {"facts": model.facts, "target": model.wanted, "sha256": model.sha256, "seed": served.seed}
    if rows is None or rows.labels is None:
        return make_card(model.classifier, **about).to_dict()
    frame, labels = _measured(served)
    names = list(model.classifier.schema_.names)
    kept = "" if rows.trained_on is None else " that training did not use"
    measured = f"{len(frame):,} rows of {rows.name}{kept}"
    return make_card(model.classifier, frame=frame[names], labels=labels, measured=measured, **about).to_dict()


def _measured(served: Served) -> tuple[pd.DataFrame, pd.Series | None]:
    """Rows to measure on, and their classes if they are known."""
    rows = served.rows
    assert rows is not None  # noqa: S101 - requests without rows are refused before
    return rows.frame.iloc[rows.fresh], None if rows.labels is None else rows.labels.iloc[rows.fresh]
