"""Advice that lasts: what refits of a model would say of it.

Advice that ends just past the boundary is a coin flip once the model is trained again. How much
margin it takes differs from table to table, so the margin is not asked for: refits are. One half of
them steers, by asking for more confidence until they agree; the other half, which had no part in
it, says how often the answer holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from counterfactual_training.errors import InputError, bad_value
from counterfactual_training.tables.advice.explanation import Explanation
from counterfactual_training.tables.advice.words import cut_off

Array = NDArray[np.float64]

# What is asked for in turn: the decision, then more and more confidence.
BARS = (None, 0.6, 0.7, 0.8, 0.9, 0.95)
# Probabilities of 0 and 1 would have infinite odds, whose mean says nothing.
_SUREST = 1e-6


class Advises(Protocol):
    """Anything that explains rows: a classifier or an :class:`Explainer`."""

    def explain(self, X: Any, target: Any = None, **question: Any) -> Any: ...


class Witness(Protocol):
    """A classifier of the same rows and classes."""

    classes_: Any

    def predict_proba(self, X: Any, /) -> Any: ...


@dataclass(frozen=True, eq=False)
class Testimony:
    """What witnesses say of n answers.

    Attributes:
        holds: ``(n,)`` how many of them accept the answer.
        num_witnesses: how many there are.
        probability: ``(n,)`` that one more of their kind would accept it.
    """

    holds: NDArray[np.int64]
    num_witnesses: int
    probability: Array

    @classmethod
    def of(
        cls, witnesses: Sequence[Witness], rows: pd.DataFrame, target: np.ndarray
    ) -> Testimony:
        """About rows that should be of the classes target ``(n,)``.

        A further witness of the same kind has log-odds that are distributed as those of the W there
        are, so that ``(z − mean) / (sd · √(1 + 1/W))`` follows Student's t with W − 1 degrees of
        freedom, if they are normal.
        """
        # Here, because only advice that lasts needs it.
        from scipy.stats import t

        count = len(witnesses)
        if not len(rows):
            return cls(np.zeros(0, dtype=np.int64), count, np.zeros(0))
        odds = np.stack([_log_odds(witness, rows, target) for witness in witnesses])
        spread = odds.std(0, ddof=1) * np.sqrt(1 + 1 / count)
        mean = odds.mean(0)
        ratio = mean / np.where(spread > 0, spread, 1.0)
        # Witnesses that all say the same leave no doubt.
        sure = np.where(mean > 0, 1.0, 0.0)
        probability = np.where(spread > 0, t.cdf(ratio, count - 1), sure)
        return cls((odds > 0).sum(0), count, probability)

    def sentence(self, i: int) -> str:
        """In words, about answer i."""
        return (
            f"It holds in {self.holds[i]} of {self.num_witnesses} refits that had no part in it "
            f"(another one: {cut_off(self.probability[i])})."
        )


@dataclass(frozen=True, eq=False)
class LastingAdvice:
    """Answers that refits accept, and beside them what would be just enough for the model itself.

    Attributes:
        answers: the explanations, each of the rows that the one before left in doubt.
        place: ``(n, 2)`` which of them has the answer of a row, and as which entry: the first that
            satisfied the refits that steer, or the one that they agreed to most.
        bar: ``(n,)`` the confidence that was asked for; NaN asked for the decision.
        reached: ``(n,)`` whether the refits that steered were satisfied.
        testimony: of the other refits.
        just_enough: the explanation that asks for the decision alone.
        of_just_enough: what the same refits say of it.

    Examples:
        >>> import counterfactual_training as ct
        >>> people = ct.loan(300)
        >>> clf = ct.CounterfactualClassifier(mutability={"age": "none"}, epochs=5, random_state=0)
        >>> clf = clf.fit(people.frame, people.labels)
        >>> again = ct.refits(clf, people.frame, people.labels, 4)
        >>> advice = ct.lasting(clf, people.frame[:2], again)
        >>> len(advice), list(advice.frame), len(advice.changes())
        (2, ['age', 'debt'], 2)
    """

    answers: tuple[Explanation, ...]
    place: NDArray[np.int64]
    bar: Array
    reached: NDArray[np.bool_]
    testimony: Testimony
    just_enough: Explanation
    of_just_enough: Testimony

    def __len__(self) -> int:
        return len(self.place)

    @property
    def frame(self) -> pd.DataFrame:
        """The counterfactuals, in the order of the rows."""
        return _frame(self.answers, self.place)

    @property
    def cost(self) -> Array:
        """``(n,)`` as in :class:`Explanation`."""
        return np.array([self.answers[k].cost[i] for k, i in self.place.tolist()])

    @property
    def summary(self) -> pd.DataFrame:
        """One line per row: status, cost and how long it lasts, beside what is just enough."""
        status = [self.answers[k].status[i] for k, i in self.place.tolist()]
        return pd.DataFrame(
            {
                "status": status,
                "reached": self.reached,
                "holds": self.testimony.holds,
                "probability": self.testimony.probability,
                "cost": self.cost,
                "just_enough_holds": self.of_just_enough.holds,
                "just_enough_probability": self.of_just_enough.probability,
                "just_enough_cost": self.just_enough.cost,
            },
            index=self.just_enough.frame.index,
        )

    def changes(self) -> list[str]:
        """Sentences for each row: what lasts first, and what is just enough where that differs."""
        sentences = []
        for i, (k, j) in enumerate(self.place.tolist()):
            text = self.answers[k].changes()[j]
            # Refits are asked about answers.
            if self.answers[k].answered[j]:
                text += f" {self.testimony.sentence(i)}"
            if not np.isnan(self.bar[i]):
                enough = self.just_enough.sentence(i)
                enough = enough[:1].lower() + enough[1:]
                text += f" Just enough today: {enough} {self.of_just_enough.sentence(i)}"
            sentences.append(text)
        return sentences


def lasting(
    explainer: Advises,
    X: Any,
    witnesses: Sequence[Witness],
    target: Any = None,
    *,
    share: float = 0.9,
    **question: Any,
) -> LastingAdvice:
    """Advice that so many refits would accept, and what the model itself would be content with.

    The first half of the witnesses steers: a row is asked for more and more confidence until the
    probability that one more of them accepts is at least ``share``. The second half reports.

    Args:
        explainer: a fitted classifier, or an :class:`Explainer`.
        X: rows, as for ``explain``.
        witnesses: at least four classifiers with ``predict_proba``, such as those of
            :func:`refits`.
        target: as for ``explain``; a label for all rows, or one per row.
        share: of refits that should accept.
        question: the rules of this question, as for ``explain``; neither ``confidence`` nor
            ``n_options``. A ``time_limit`` holds for each of at most six searches.

    Examples:
        >>> import counterfactual_training as ct
        >>> people = ct.loan(300)
        >>> clf = ct.CounterfactualClassifier(mutability={"age": "none"}, epochs=10, random_state=0)
        >>> clf = clf.fit(people.frame, people.labels)
        >>> again = ct.refits(clf, people.frame, people.labels, 4)
        >>> advice = ct.lasting(clf, people.frame[:1], again, "loan granted")
        >>> advice.testimony.num_witnesses, advice.cost[0] >= advice.just_enough.cost[0]
        (2, np.True_)
        >>> print(advice.changes()[0])  # doctest: +ELLIPSIS
        Row 0: with debt ... It holds in ... of 2 refits that had no part in it (another one: ...
    """
    _check(share, witnesses, question)
    half = len(witnesses) // 2
    first = _pandas(explainer.explain(X, target, **question))
    search = _Search(explainer, witnesses[:half], first, question)
    for confidence in BARS:
        search.ask(confidence, share)
    reporting = witnesses[half:]
    labels = np.asarray(first.target)
    return LastingAdvice(
        tuple(search.answers),
        search.place,
        search.bar,
        search.best >= share,
        Testimony.of(reporting, _frame(search.answers, search.place), labels),
        first,
        Testimony.of(reporting, first.frame, labels),
    )


def _check(share: float, witnesses: Sequence[Witness], question: dict[str, Any]) -> None:
    for name in ("confidence", "n_options"):
        if name in question:
            raise InputError(f"{name} is chosen here, for each row: leave it out.")
    if not 0 < share < 1:
        raise bad_value("share", "a share of refits between 0 and 1", share)
    if len(witnesses) < 4:
        raise InputError(
            "At least four witnesses are needed, two to steer and two to report; got "
            f"{len(witnesses)}."
        )


class _Search:
    """Asks for more and more, of the rows that the refits that steer leave in doubt.

    Attributes:
        answers, place, bar: as in :class:`LastingAdvice`.
        best: ``(n,)`` the probability that a further refit accepts the answer at its place.
        rows: ``(r,)`` numbers of the rows that are still in doubt.
    """

    def __init__(
        self,
        explainer: Advises,
        steering: Sequence[Witness],
        first: Explanation,
        question: dict[str, Any],
    ) -> None:
        self.explainer = explainer
        self.steering = steering
        self.first = first
        self.question = question
        self.answers: list[Explanation] = []
        self.place = np.zeros((len(first), 2), dtype=np.int64)
        self.bar = np.full(len(first), np.nan)
        self.best = np.full(len(first), -np.inf)
        self.rows = np.arange(len(first))

    def ask(self, confidence: float | None, share: float) -> None:
        """Ask for this confidence; the first time, for the decision."""
        answer = self.first
        if confidence is not None:
            if not len(self.rows):
                return
            answer = self._explained(confidence)
        agreed = Testimony.of(self.steering, answer.frame, answer.target).probability
        # What misses the bar, or no real row looks like, is not advised, whatever refits say of it.
        agreed = np.where(answer.converged, agreed, -1.0)
        better = agreed > self.best[self.rows]
        chosen = self.rows[better]
        self.place[chosen, 0] = len(self.answers)
        self.place[chosen, 1] = np.flatnonzero(better)
        self.best[chosen] = agreed[better]
        if confidence is not None:
            self.bar[chosen] = confidence
        self.answers.append(answer)
        # Who cannot get the decision cannot get more.
        self.rows = self.rows[(agreed < share) & answer.answered]

    def _explained(self, confidence: float) -> Explanation:
        own = _of_rows(self.question, self.rows, len(self.first))
        rows = self.first.original.iloc[self.rows]
        target = list(np.asarray(self.first.target)[self.rows])
        return _pandas(self.explainer.explain(rows, target, confidence=confidence, **own))


def _frame(answers: Sequence[Explanation], place: NDArray[np.int64]) -> pd.DataFrame:
    """The counterfactuals at these places, one after the other."""
    rows = [answers[k].frame.iloc[[i]] for k, i in place.tolist()]
    if not rows:
        return answers[0].frame
    return pd.concat(rows)


def _log_odds(witness: Witness, rows: pd.DataFrame, target: np.ndarray) -> Array:
    """Of the target against the most probable other class ``(n,)``: positive if it decides so."""
    probability = np.asarray(witness.predict_proba(rows), dtype=np.float64)
    known = list(np.asarray(witness.classes_))
    labels = list(target)
    missing = [str(label) for label in dict.fromkeys(labels) if label not in known]
    if missing:
        raise InputError(
            f"A witness knows the classes {', '.join(map(str, known))}, not {', '.join(missing)}."
        )
    places = np.array([known.index(label) for label in labels], dtype=np.int64)
    own = np.take_along_axis(probability, places[:, None], 1)[:, 0]
    others = probability.copy()
    np.put_along_axis(others, places[:, None], -np.inf, 1)
    rival = others.max(1)
    return np.log(own.clip(_SUREST)) - np.log(rival.clip(_SUREST))


def _of_rows(question: dict[str, Any], rows: NDArray[np.int64], count: int) -> dict[str, Any]:
    """The rules of a question for some of its rows: those given once for all stay."""
    own = dict(question)
    for name, value in question.items():
        whole = isinstance(value, list | tuple) and len(value) == count
        # A list of names holds for all rows, a list of rules has one for each.
        if whole and any(not isinstance(part, str) for part in value):
            own[name] = [value[i] for i in rows.tolist()]
    return own


def _pandas(explanation: Any) -> Explanation:
    """Of rows of another library, the same explanation in pandas."""
    inner = getattr(explanation, "pandas", explanation)
    if not isinstance(inner, Explanation):
        raise InputError(
            f"explain must return a ct.Explanation, got {type(explanation).__name__}."
        )
    return inner
