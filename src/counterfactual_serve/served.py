"""What a server serves: one model or two, and, if the user gave any, rows. Nothing else is kept
between requests.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

import counterfactual_training
from counterfactual_training import defaults
from counterfactual_training.errors import InputError
from counterfactual_training.rules import WAYS, with_trait
from counterfactual_training.tables.advice.words import plain_value
from counterfactual_training.tables.columns.column import Column
from counterfactual_training.tables.estimators.classifier import CounterfactualClassifier

# Of the API; a change that breaks its users makes another number.
API = 1
# Seconds that the first search may take, before the first request.
_FIRST_SECONDS = 1.0
# Real rows that plausibility is compared with, per class.
_COMPARED = 1000


@dataclass(frozen=True, eq=False)
class Model:
    """A classifier and its name.

    Attributes:
        name: its file, without folders.
        sha256: of the file's bytes; receipts name it.
        wanted: the class that people want; ``None`` leads everyone to the next most probable one.
        facts: what it is, in words.
    """

    classifier: CounterfactualClassifier
    name: str
    sha256: str
    wanted: Any = None
    facts: tuple[tuple[str, str], ...] = ()

    @property
    def classes(self) -> list[Any]:
        return [plain_value(label) for label in self.classifier.classes_.tolist()]

    def _asks_for(self) -> float | None:
        """The probability that plans reach unless a question states another; ``None`` if they flip
        the decision.
        """
        generator, decides = self.classifier._explainer(None, None, None)
        if decides:
            return None
        return float(generator.decision_threshold)

    def label(self, value: Any) -> Any:
        """The class as the classifier knows it; JSON has fewer types."""
        return self.classifier.classes_[self.classes.index(value)]

    def document(self) -> dict[str, Any]:
        document = {
            "name": self.name,
            "sha256": self.sha256,
            "classes": self.classes,
            "wanted": plain_value(self.wanted),
            "gated": self.classifier.gate_ is not None,
            "confidence": self._asks_for(),
            "facts": [list(fact) for fact in self.facts],
        }
        if self.classifier.witnesses_ is not None:
            document["witnesses"] = len(self.classifier.witnesses_)
            document["lasting"] = defaults.LASTING
        return document


@dataclass(frozen=True, eq=False)
class ServedRows:
    """Rows to show, and rows to measure on.

    Attributes:
        name: their file or data set, without folders.
        frame: all columns, those that the model does not use too: groups may be told apart by them.
        labels: their classes, if they are known.
        trained_on: mask of the rows that the model was trained on; ``None`` if unknown.
        total: rows of the file; more than ``frame`` has, if only the first ones are served.
    """

    name: str
    frame: pd.DataFrame
    labels: pd.Series | None = None
    trained_on: np.ndarray | None = None
    total: int = 0

    @property
    def fresh(self) -> np.ndarray:
        """Positions of the rows to measure on: those not trained on, if that is known and there are
        any.
        """
        if self.trained_on is None or self.trained_on.all():
            return np.arange(len(self.frame))
        return np.flatnonzero(~self.trained_on)


@dataclass(frozen=True, eq=False)
class Served:
    """A model, the one to compare it with, and the rows."""

    model: Model
    against: Model | None = None
    rows: ServedRows | None = None
    seed: int = 0
    _compared: dict[tuple[str, Any], np.ndarray] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.against is None:
            return
        ours = self.model.classifier
        theirs = self.against.classifier
        if ours.schema_.names != theirs.schema_.names:
            differ = sorted(set(ours.schema_.names) ^ set(theirs.schema_.names))
            if differ:
                reason = f"only one of them has {differ[0]!r}"
            else:
                reason = "their columns are in another order"
            raise InputError(
                f"{self.against.name} cannot be compared with {self.model.name}: {reason}."
            )
        if self.model.classes != self.against.classes:
            raise InputError(
                f"{self.against.name} cannot be compared with {self.model.name}: its classes are "
                f"{self.against.classes!r}, not {self.model.classes!r}."
            )

    def named(self, which: str) -> Model:
        """``"main"`` or ``"against"``."""
        if which == "main":
            return self.model
        if self.against is None:
            raise InputError(
                "There is no model to compare with: it is named with --against when the server "
                "starts."
            )
        return self.against

    @cached_property
    def people(self) -> pd.DataFrame:
        """The rows in the columns of the model."""
        assert self.rows is not None  # noqa: S101 - callers refuse requests for rows that are not there
        return self.rows.frame[list(self.model.classifier.schema_.names)]

    @cached_property
    def decided(self) -> tuple[np.ndarray, np.ndarray]:
        """For all rows: the position of the predicted class, and its probability."""
        probability = self.model.classifier.predict_proba(self.people)
        return probability.argmax(1), probability.max(1)

    def prepare(self) -> None:
        """Compute what most questions need before the first one, so that workers share it."""
        if self.rows is None or self.rows.frame.empty:
            return
        for which in ["main"] if self.against is None else ["main", "against"]:
            model = self.named(which)
            denied = np.array(
                [model.classes[place] != plain_value(model.wanted) for place in self.decided[0]]
            )
            person = self.people.iloc[[int(denied.argmax())]]
            model.classifier.explain(person, model.wanted, time_limit=_FIRST_SECONDS)
            if model.wanted is not None:
                self.percentile(which, plain_value(model.wanted), 0.0)

    def percentile(self, which: str, target: Any, plausibility: float) -> float | None:
        """The share of real rows of a class, in percent, that are less plausible; ``None`` if
        unknown.
        """
        model = self.named(which)
        if self.rows is None or model.classifier.gate_ is None or math.isnan(plausibility):
            return None
        # Once per class: it takes longer than an answer.
        if (which, target) not in self._compared:
            self._compared[which, target] = self._real(model, target)
        real = self._compared[which, target]
        if len(real) == 0:
            return None
        return round(100 * float(np.searchsorted(real, plausibility)) / len(real), 1)

    def _real(self, model: Model, target: Any) -> np.ndarray:
        """Plausibility of real rows of a class, sorted; by their labels, or else by what the model
        decides.
        """
        assert self.rows is not None  # noqa: S101 - see `percentile`
        place = model.classes.index(target)
        fresh = self.rows.fresh
        labels = self.rows.labels
        if labels is None:
            in_class = self.decided[0] == place
        else:
            in_class = labels.to_numpy() == model.classifier.classes_[place]
        chosen = fresh[in_class[fresh]]
        chosen = np.sort(np.random.default_rng(self.seed).permutation(chosen)[:_COMPARED])
        if len(chosen) == 0:
            return np.zeros(0)
        return np.sort(
            model.classifier.plausibility(self.people.iloc[chosen], given_fixed=True)[:, place]
        )

    # ---- documents -------------------------------------------------------------------------------

    def document(self) -> dict[str, Any]:
        """What ``/api/model`` says, but for the limits."""
        rows = self.rows
        data = None
        if rows is not None:
            data = {
                "name": rows.name,
                "rows": len(rows.frame),
                "total": rows.total,
                "labelled": rows.labels is not None,
                "truncated": rows.total > len(rows.frame),
                "columns": [str(name) for name in rows.frame.columns],
            }
        return {
            "api": API,
            "version": counterfactual_training.__version__,
            "model": self.model.document(),
            "against": None if self.against is None else self.against.document(),
            "data": data,
            "audit": rows is not None,
            "receipts": True,
        }

    def columns(self) -> dict[str, Any]:
        """What ``/api/schema`` says."""
        encoder = self.model.classifier.encoder_
        following = encoder.schema_.book.following
        columns = [
            _column(column, column.feature.name in following) for column in encoder.columns_
        ]
        return {"columns": columns, "relations": list(encoder.schema_.relations)}


def _column(column: Column, follows: bool) -> dict[str, Any]:
    feature = column.feature
    if column.constant and feature.allowed is None:
        mutability = "none"
    else:
        mutability = feature.mutability
    if not feature.is_category:
        levels = None
    else:
        levels = [plain_value(level) for level in feature.levels]
    if feature.is_category:
        typical = feature.levels[int(column.fill)]
    else:
        typical = column.fill
    return {
        "name": feature.name,
        "kind": feature.kind,
        "unit": feature.unit,
        "mutability": mutability,
        "may": WAYS[mutability],
        "domain": _plain(feature.domain or (None, None)),
        "range": None if feature.is_category else _slider(column),
        "categories": levels,
        "allowed": None if feature.allowed is None else _plain(feature.allowed),
        **{rule: getattr(feature, rule) for rule in with_trait("number")},
        "decimals": column.decimals,
        "grouped": column.grouped,
        "special": _plain(feature.special),
        "follows": follows,
        "typical": int(typical) if feature.kind == "integer" else plain_value(typical),
    }


def _slider(column: Column) -> list[float]:
    """Where a slider begins and ends: the bulk of the training rows, and the domain if it is
    stated.
    """
    low, high = column.bulk or (column.low, column.high)
    # A domain may be far wider than anything seen; its ends count only where they cut.
    least, most = column.feature.limits
    if least < high and most > low:
        return [max(low, least), min(high, most)]
    return [low, high]


def _plain(values: Sequence[Any]) -> list[Any]:
    return [plain_value(value) for value in values]
