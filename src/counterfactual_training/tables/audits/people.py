"""The denied people, those of them who are explained, and their advice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import pandas as pd

from counterfactual_training.tables.advice import Explanation
from counterfactual_training.tables.audits.groups import Grouping
from counterfactual_training.tables.audits.protocol import AuditProtocol
from counterfactual_training.tables.columns.encode import Encoder
from counterfactual_training.tables.columns.schema import Schema

WITHOUT = ("infeasible", "exhausted")


class Predicts(Protocol):
    """Anything that decides rows of a frame."""

    def predict(self, X: Any) -> np.ndarray: ...


# A model trained again: by another seed, without a share of the rows.
Retrain = Callable[[int, float], Predicts]


@dataclass(frozen=True, eq=False)
class Subject:
    """A model to audit.

    Attributes:
        classifier: fitted, with ``predict`` and ``explain``: a :class:`CounterfactualClassifier` or
            :class:`Explainer`.
        name: for people.
        retrain: trains it again, given a seed and the share of rows to leave out; ``None`` if that
            is not possible.
    """

    classifier: Any
    name: str = "this model"
    retrain: Retrain | None = None

    @property
    def schema(self) -> Schema:
        return self.classifier.schema_

    @property
    def columns(self) -> list[str]:
        return list(self.schema.names)

    @property
    def classes(self) -> list[Any]:
        return list(self.classifier.classes_.tolist())

    def decides(self, frame: pd.DataFrame) -> np.ndarray:
        """Decisions ``(n,)`` on a frame that may hold more columns than the model."""
        return np.asarray(self.classifier.predict(frame[self.columns]))


@dataclass(frozen=True, eq=False)
class ModelAdvice:
    """A model's decisions on n people, and its advice to some of those it denies.

    Attributes:
        denied: ``(n,)`` whether the decision is not the wanted one.
        deserving: ``(n,)`` whether the wanted class is the true one; all ``False`` without labels.
        weight: ``(n,)`` how many denied people each explained one stands for; 0 for people not
            explained.
        chosen: ``(p,)`` numbers of the explained, in the order of ``explanation``.
        explanation: ``None`` if no person was explained.
        cost: ``(n,)`` of advice that gets the wanted decision; 0 for all others.
    """

    subject: Subject
    decision: np.ndarray
    denied: np.ndarray
    deserving: np.ndarray
    weight: np.ndarray
    chosen: np.ndarray
    explanation: Explanation | None
    cost: np.ndarray
    helped: np.ndarray
    stuck: np.ndarray
    unlikely: np.ndarray

    @property
    def gated(self) -> bool:
        """Whether anything judges how plausible advice is."""
        return getattr(self.subject.classifier, "gate_", None) is not None

    @property
    def everyone(self) -> np.ndarray:
        return np.ones(len(self.denied), dtype=bool)

    @property
    def explained(self) -> np.ndarray:
        return self.weight > 0

    @property
    def wrongly_helped(self) -> np.ndarray:
        """Denied although they should not be, and given advice."""
        return self.helped & self.deserving

    @cached_property
    def status(self) -> dict[str, int]:
        if self.explanation is None:
            return {}
        return dict(Counter(map(str, self.explanation.status.tolist())))

    def terms(self, other: ModelAdvice | None = None) -> dict[str, np.ndarray]:
        """What each person ``(n,)`` adds to the sums of measures; see :data:`measures.TERMS`."""
        wrong = self.denied & self.deserving
        weight = self.weight
        both = self.both(other)
        if other is None:
            heavier = weight
        else:
            heavier = np.maximum(weight, other.weight)
        columns = {
            "one": self.everyone,
            "denied": self.denied,
            "wanted": self.deserving,
            "fn": wrong,
            "asked": weight,
            "stuck": weight * self.stuck,
            "unlikely": weight * self.unlikely,
            "helped": weight * self.helped,
            "cost": weight * self.cost,
            "fn_asked": weight * wrong,
            "fn_helped": weight * self.helped * wrong,
            "fn_cost": weight * self.cost * wrong,
            # Both models draw people in one order, so who is in both samples stands for as many as
            # in the smaller.
            "both": heavier * both,
            "both_cost": heavier * both * self.cost,
        }
        return {name: np.asarray(column, dtype=np.float64) for name, column in columns.items()}

    def both(self, other: ModelAdvice | None) -> np.ndarray:
        """Who gets advice from both models."""
        if other is None:
            return np.zeros(len(self.denied), dtype=bool)
        return self.helped & other.helped


@dataclass(frozen=True)
class Survey:
    """What all models of an audit are asked: about whom, for which class, and how."""

    frame: pd.DataFrame
    labels: np.ndarray | None
    target: Any
    groupings: Sequence[Grouping]
    protocol: AuditProtocol

    @property
    def deserving(self) -> np.ndarray:
        """Mask ``(n,)`` of people who truly are of the class; all ``False`` if unknown."""
        if self.labels is None:
            return np.zeros(len(self.frame), dtype=bool)
        return self.labels == self.target


def ask_model(subject: Subject, survey: Survey, ruler: Encoder | None = None) -> ModelAdvice:
    """Decide all rows, and explain the denied or a part of them.

    Costs are measured by ``ruler``, if there is one.
    """
    frame = survey.frame
    decision = subject.decides(frame)
    denied = decision != survey.target
    deserving = survey.deserving
    # The wrongly denied are few and count most in some measures, so they are strata of their own.
    stratum = strata([*(g.codes for g in survey.groupings), deserving])
    chosen, weight = draw(denied, stratum, survey.protocol.people, survey.protocol.seed)
    explanation = None
    if len(chosen):
        # Just enough, because only some models have witnesses: all are asked for the same.
        explanation = subject.classifier.explain(
            frame.iloc[chosen][subject.columns],
            survey.target,
            confidence=survey.protocol.confidence,
            lasting=0,
        )
        # Each model counts in standard deviations of its own rows: two of them are compared by one
        # ruler.
        if ruler is not None and _scales(ruler) != _scales(subject.classifier.encoder_):
            explanation = explanation.measured_by(ruler)
    cost = np.zeros(len(frame))
    masks = {name: np.zeros(len(frame), dtype=bool) for name in ("helped", "stuck", "unlikely")}
    if explanation is not None:
        stuck = np.isin(explanation.status, WITHOUT)
        masks["helped"][chosen] = ~stuck & explanation.answered.astype(bool)
        masks["stuck"][chosen] = stuck
        masks["unlikely"][chosen] = explanation.status == "implausible"
        cost[chosen] = np.where(masks["helped"][chosen], explanation.cost, 0.0)
    return ModelAdvice(
        subject, decision, denied, deserving, weight, chosen, explanation, cost, **masks
    )


def _scales(encoder: Encoder) -> list[float]:
    return [column.scale for column in encoder.columns_]


def strata(codes: Sequence[np.ndarray]) -> np.ndarray:
    """``(n,)`` people of one stratum have the same of all codes."""
    return np.unique(np.stack(codes), axis=1, return_inverse=True)[1].reshape(-1)


def draw(
    denied: np.ndarray, stratum: np.ndarray, people: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of up to ``people`` of the denied, and how many each of them stands for ``(n,)``.

    Half of the places go to all strata alike, so that small groups are not lost, the rest by size.
    Within a stratum people come in an order that depends on the seed alone: two models explain the
    same people where they can.
    """
    n = len(denied)
    weight = np.zeros(n)
    if int(denied.sum()) <= people:
        weight[denied] = 1.0
        return np.flatnonzero(denied), weight
    # With more strata than places, no stratum could be sure of one.
    if not len(np.unique(stratum[denied])) <= people:
        stratum = np.zeros(n, dtype=np.int64)
    rank = np.random.default_rng(seed).permutation(n)
    present, sizes = np.unique(stratum[denied], return_counts=True)
    for which, size, places in zip(present, sizes, _places(sizes, people), strict=True):
        members = np.flatnonzero(denied & (stratum == which))
        taken = members[np.argsort(rank[members])[:places]]
        weight[taken] = size / places
    return np.flatnonzero(weight), weight


def _places(sizes: np.ndarray, people: int) -> np.ndarray:
    """How many of each stratum; at least one, at most all."""
    floor = np.minimum(sizes, max(1, people // (2 * len(sizes))))
    remaining = sizes - floor
    extra = (people - floor.sum()) * remaining / max(remaining.sum(), 1)
    return np.minimum(sizes, floor + np.floor(extra).astype(np.int64))
