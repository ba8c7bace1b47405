"""How long advice lasts, as other models of the same rows say it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from counterfactual_training.errors import InputError
from counterfactual_training.tables.advice.black_box import probabilities_of
from counterfactual_training.tables.advice.words import cut_off

if TYPE_CHECKING:
    from counterfactual_training.tables.advice.explanation import Explanation

Array = NDArray[np.float64]

#: Witnesses that a question needs: two to steer, two to report.
FEWEST = 4
# Probabilities of 0 and 1 would have infinite odds, whose mean says nothing.
_SUREST = 1e-6


@dataclass(frozen=True, eq=False)
class Lasting:
    """What witnesses say of the n entries of an :class:`Explanation`.

    Attributes:
        holds: ``(n,)`` how many of the witnesses that report accept the answer. They had no part in
            finding it.
        num_witnesses: how many report.
        probability: ``(n,)`` that one more of their kind would accept it.
        reached: ``(n,)`` whether it is plausible, and the witnesses that steered, if any did, found
            it probable enough.
        share: of witnesses that should accept it; 0 if it was only to be just enough.
        just_enough: what the model itself would be content with, one entry per row, with what the
            same witnesses say of it; ``None`` of an explanation that is just enough itself.
        row: ``(n,)`` the entry of ``just_enough`` about the same row.
        differs: ``(n,)`` whether it is another answer than the first option.
        kind: what the witnesses are.

    Examples:
        >>> import counterfactual_training as ct
        >>> people = ct.loan(300)
        >>> clf = ct.CounterfactualClassifier(mutability={"age": "none"}, epochs=10, random_state=0)
        >>> clf = clf.fit(people.frame, people.labels)
        >>> clf = clf.add_witnesses(people.frame, people.labels, 10)
        >>> advice = clf.explain(people.frame[:1], "loan granted")
        >>> advice.lasting.num_witnesses, advice.cost >= advice.lasting.just_enough.cost
        (5, array([ True]))
    """

    holds: NDArray[np.int64]
    num_witnesses: int
    probability: Array
    reached: NDArray[np.bool_]
    share: float
    just_enough: Explanation | None = None
    row: NDArray[np.int64] | None = None
    differs: NDArray[np.bool_] | None = None
    kind: str = "refits"

    @classmethod
    def of(cls, odds: Array, reached: NDArray[np.bool_], share: float, kind: str) -> Lasting:
        """From the log-odds ``(W, n)`` of the witnesses that report."""
        return cls((odds > 0).sum(0), len(odds), chance(odds), reached, share, kind=kind)

    def beside(
        self, just_enough: Explanation, row: NDArray[np.int64], differs: NDArray[np.bool_]
    ) -> Lasting:
        """The same with what would be just enough."""
        return replace(self, just_enough=just_enough, row=row, differs=differs)

    def summary(self) -> dict[str, Any]:
        """Columns ``(n,)`` of the summary."""
        own: dict[str, Any] = {
            "holds": self.holds,
            "probability": self.probability,
            "reached": self.reached,
        }
        enough = self.just_enough
        if enough is None or enough.lasting is None:
            return own
        beside = {
            "cost": enough.cost,
            "holds": enough.lasting.holds,
            "probability": enough.lasting.probability,
        }
        return own | {f"just_enough_{name}": beside[name][self.row] for name in beside}

    def cells(self, i: int) -> list[str]:
        """An entry in a table: who accepts it, and what would be just enough."""
        cells = [f"{self.holds[i]} of {self.num_witnesses}"]
        if self.just_enough is not None and self.row is not None:
            cells.append(f"{self.just_enough.cost[self.row[i]]:.2f}")
        return cells

    @property
    def columns(self) -> list[str]:
        """What stands above :meth:`cells`."""
        if self.just_enough is None:
            return ["holds in"]
        return ["holds in", "just enough"]

    def sentence(self, i: int) -> str:
        """In words, about entry i."""
        return (
            f"It holds in {self.holds[i]} of {self.num_witnesses} {self.kind} that had no part in "
            f"it (probability for one more: {cut_off(self.probability[i])})."
        )

    def alternative(self, explanation: Explanation, i: int) -> str:
        """What would be just enough instead of entry i, if that differs; otherwise nothing."""
        enough = self.just_enough
        if enough is None or self.row is None or self.differs is None or not self.differs[i]:
            return ""
        j = self.row[i]
        text = enough.sentence(j)
        text = f"{text[:1].lower()}{text[1:]}"
        return (
            f" Just enough today, at cost {enough.cost[j]:.2f} instead of "
            f"{explanation.cost[i]:.2f}: {text}"
        )


def chance(odds: Array) -> Array:
    """The probability ``(n,)`` that one more witness accepts, given the log-odds ``(W, n)`` of W.

    A further witness of the same kind has log-odds that are distributed as those of the W there
    are, so that ``(z − mean) / (sd · √(1 + 1/W))`` follows Student's t with W − 1 degrees of
    freedom, if they are normal.
    """
    # Here, because only advice that lasts needs it.
    from scipy.special import stdtr

    count = len(odds)
    if not odds.shape[1]:
        return np.zeros(0)
    spread = odds.std(0, ddof=1) * np.sqrt(1 + 1 / count)
    mean = odds.mean(0)
    ratio = mean / np.where(spread > 0, spread, 1.0)
    # Witnesses that all say the same leave no doubt.
    sure = np.where(mean > 0, 1.0, 0.0)
    return np.where(spread > 0, stdtr(count - 1, ratio), sure)


def margin(odds: Array, share: float) -> Array:
    """How far the mean log-odds ``(n,)`` lie beyond what makes :func:`chance` the share."""
    from scipy.special import stdtrit

    count = len(odds)
    spread = odds.std(0, ddof=1) * np.sqrt(1 + 1 / count)
    return odds.mean(0) - stdtrit(count - 1, share) * spread


# ---- who testifies -------------------------------------------------------------------------------


class Witness(Protocol):
    """A classifier of the same rows and classes."""

    classes_: Any

    def predict_proba(self, X: Any, /) -> Any: ...


class Witnesses(Protocol):
    """Models that are asked together what they say of rows."""

    @property
    def kind(self) -> str: ...

    def __len__(self) -> int: ...

    def log_odds(self, rows: pd.DataFrame, target: np.ndarray) -> Array:
        """Of the classes target ``(n,)`` against the most probable other one ``(W, n)``: positive
        where a witness decides so.
        """

    def halves(self) -> tuple[Self, Self]:
        """Those that steer a search, and those that report what came of it."""


class OtherModels:
    """Witnesses that somebody else trained.

    Args:
        models: fitted, with ``predict_proba``.
        classes: that they should know.
        arrays: whether they are asked about arrays instead of frames.
    """

    kind = "other models"

    def __init__(self, models: Sequence[Witness], classes: np.ndarray, arrays: bool) -> None:
        self.models = list(models)
        self.classes = classes
        self.arrays = arrays
        self._orders = [_order_of(model, classes) for model in self.models]

    def __len__(self) -> int:
        return len(self.models)

    def log_odds(self, rows: pd.DataFrame, target: np.ndarray) -> Array:
        if not len(rows):
            return np.zeros((len(self), 0))
        pairs = zip(self.models, self._orders, strict=True)
        return np.stack(
            [
                decision_odds(
                    probabilities_of(model, rows, len(order), self.arrays)[:, order],
                    self.classes,
                    target,
                )
                for model, order in pairs
            ]
        )

    def halves(self) -> tuple[OtherModels, OtherModels]:
        half = len(self) // 2
        first = OtherModels(self.models[:half], self.classes, self.arrays)
        return first, OtherModels(self.models[half:], self.classes, self.arrays)


def _order_of(model: Any, classes: np.ndarray) -> list[int]:
    """Where the columns of a witness's probabilities have these classes."""
    if isinstance(model, type) or not hasattr(model, "predict_proba"):
        name = model.__name__ if isinstance(model, type) else type(model).__name__
        raise InputError(
            f"A witness is a fitted classifier with predict_proba, got {name}.",
            field="witnesses",
        )
    known = np.asarray(getattr(model, "classes_", classes)).tolist()
    if sorted(map(str, known)) != sorted(map(str, classes.tolist())):
        raise InputError(
            f"A witness knows the classes {', '.join(map(str, known))}, and the model "
            f"{', '.join(map(str, classes.tolist()))}: they must be the same.",
            field="witnesses",
        )
    names = list(map(str, known))
    return [names.index(str(label)) for label in classes.tolist()]


def check_enough(count: int) -> None:
    """Raise unless these are enough witnesses to steer and to report."""
    if count < FEWEST:
        raise InputError(
            f"At least {FEWEST} witnesses are needed, half of them to steer and half to report; "
            f"got {count}.",
            field="witnesses",
        )


def decision_odds(probability: Array, classes: np.ndarray, target: np.ndarray) -> Array:
    """Of the classes target ``(n,)`` against the most probable other one ``(…, n)``, given
    probabilities ``(…, n, k)``.
    """
    index = {label: i for i, label in enumerate(classes.tolist())}
    places = np.array([index[label] for label in target.tolist()], dtype=np.int64)
    at = np.broadcast_to(places[:, None], (*probability.shape[:-1], 1))
    own = np.take_along_axis(probability, at, -1)[..., 0]
    others = probability.copy()
    np.put_along_axis(others, at, -np.inf, -1)
    rival = others.max(-1)
    return np.log(own.clip(_SUREST)) - np.log(rival.clip(_SUREST))
