"""Whether advice would work: what models that had no part in finding it say about it.

A search ends where *its* model decides otherwise, and exploits the errors of that model on the
way. So the same cost buys advice of different worth, and costs are compared at equal acceptance:
ask for more and more confidence, and read the cost where two methods are believed alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from counterfactual_training.errors import InputError

Array = NDArray[np.float64]
# Makes an untrained classifier of scikit-learn's interface, from a seed.
Maker = Callable[[int], Any]

# More rows take a judge minutes, and hardly change its mind.
_MOST_ROWS = 4000
_NEIGHBOURS = 15
# No neighbours to ask with fewer.
FEWEST_ROWS = _NEIGHBOURS
# Levels of acceptance at which costs are compared.
_LEVELS = 9


def _boosting(seed: int) -> Any:
    from sklearn.ensemble import HistGradientBoostingClassifier

    return HistGradientBoostingClassifier(
        learning_rate=0.05, max_iter=80, early_stopping=False, random_state=seed
    )


def _logistic(seed: int) -> Any:
    from sklearn.linear_model import LogisticRegression

    return _scaled(LogisticRegression(max_iter=500, random_state=seed))


def _support_vectors(seed: int) -> Any:
    from sklearn.svm import SVC

    return _scaled(SVC(random_state=seed))


def _neighbours(seed: int) -> Any:
    from sklearn.neighbors import KNeighborsClassifier

    return _scaled(KNeighborsClassifier(_NEIGHBOURS))


def _scaled(classifier: Any) -> Any:
    """Behind scaling that a few very large values do not decide."""
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer, StandardScaler

    return make_pipeline(StandardScaler(), FunctionTransformer(np.arcsinh), classifier)


# None of them is a network, which is what this package trains, and what gates are made of is not
# asked either.
FAMILIES: dict[str, Maker] = {
    "boosting": _boosting,
    "logistic regression": _logistic,
    "support vectors": _support_vectors,
    "neighbours": _neighbours,
}


@dataclass(frozen=True, eq=False)
class Jury:
    """Classifiers of other families, fitted to rows that no other model saw.

    Attributes:
        models: by the name of their family.
        accuracy: of each on the rows it was fitted to, in the same order.
        classes: those of the rows it was fitted to.

    Examples:
        >>> import counterfactual_training as ct
        >>> data = ct.load_dataset("moons")
        >>> jury = ct.Jury.fit(data.x_test.numpy(), data.y_test.numpy())
        >>> jury.accepts(data.x_train[:5].numpy(), data.y_train[:5].numpy()).shape
        (5, 4)
    """

    models: Mapping[str, Any]
    accuracy: Array
    classes: NDArray[Any]

    @classmethod
    def fit(
        cls,
        x: NDArray[Any],
        y: NDArray[Any],
        families: Mapping[str, Maker] | None = None,
        seed: int = 0,
    ) -> Jury:
        """Fit one classifier of each family.

        Args:
            x: ``(n, d)`` numbers.
            y: ``(n,)`` classes, of at least two kinds.
            families: what makes a classifier of scikit-learn's interface, by name; by default
                :data:`FAMILIES`. Leave out any that helped to train or to search.
            seed: of the classifiers, and of the rows if there are more than they need.
        """
        if families is None:
            families = FAMILIES
        x = np.asarray(x)
        y = np.asarray(y)
        if x.ndim != 2 or y.shape != x.shape[:1]:
            raise InputError(
                f"A jury needs rows (n, d) and classes (n,), got {x.shape}, {y.shape}."
            )
        if len(np.unique(y)) < 2:
            raise InputError(f"A jury needs rows of at least two classes, got {np.unique(y)}.")
        if len(y) < FEWEST_ROWS:
            raise InputError(f"A jury needs at least {FEWEST_ROWS} rows, got {len(y)}.")
        if not families:
            raise InputError("A jury needs at least one family, got none.")
        if len(y) > _MOST_ROWS:
            chosen = np.random.default_rng(seed).permutation(len(y))[:_MOST_ROWS]
            x = x[chosen]
            y = y[chosen]
        models = {name: make(seed).fit(x, y) for name, make in families.items()}
        shares = [np.mean(model.predict(x) == y) for model in models.values()]
        return cls(models, np.array(shares), np.unique(y))

    def accepts(self, x: NDArray[Any], y_target: NDArray[Any]) -> NDArray[np.bool_]:
        """Which families put points x ``(n, d)`` into the classes y_target ``(n,)``: ``(n,
        families)``.
        """
        verdicts = [model.predict(x) == y_target for model in self.models.values()]
        return np.stack(verdicts, axis=1)


@dataclass(frozen=True, eq=False)
class Frontier:
    """What people pay, and what they get for it, as the search is asked for more.

    Attributes:
        cost: ``(bars, people)`` of the advice found at each bar.
        accepted: ``(bars, people)`` share of independent models that accept it.
        answered: ``(bars, people)`` who got advice.

    Examples:
        >>> import numpy as np
        >>> import counterfactual_training as ct
        >>> everybody = np.ones((2, 10), dtype=bool)
        >>> accepted = np.repeat([[0.4], [0.8]], 10, axis=1)
        >>> frontier = ct.Frontier(np.repeat([[1.0], [3.0]], 10, axis=1), accepted, everybody)
        >>> frontier.curve(everybody[0])
        (array([0.4, 0.8]), array([1., 3.]))
    """

    cost: Array
    accepted: Array
    answered: NDArray[np.bool_]

    def curve(self, people: NDArray[np.bool_]) -> tuple[Array, Array]:
        """Mean acceptance and mean cost of these people ``(people,)``, bar by bar; bars that ask
        for more and are believed no more than one before are left out.
        """
        accepted = self.accepted[:, people].mean(1)
        cost = self.cost[:, people].mean(1)
        before = np.maximum.accumulate(np.concatenate([[-np.inf], accepted[:-1]]))
        rising = accepted > before
        return accepted[rising], cost[rising]


def cost_at_equal_acceptance(one: Frontier, other: Frontier, fewest: int = 8) -> float:
    """What advice of one costs where it is accepted as often as that of the other: the mean ratio
    over the acceptance that both reach.

    Both are asked at several bars; costs between two bars are interpolated. Only people count whom
    both answer at every bar. NaN with fewer people than ``fewest``, or without a level that both
    reach.

    Examples:
        >>> import numpy as np
        >>> import counterfactual_training as ct
        >>> everybody = np.ones((2, 10), dtype=bool)
        >>> accepted = np.repeat([[0.4], [0.8]], 10, axis=1)
        >>> dear, cheap = (
        ...     ct.Frontier(np.repeat([[1.0], [most]], 10, axis=1), accepted, everybody)
        ...     for most in (3.0, 2.0)
        ... )
        >>> ct.cost_at_equal_acceptance(cheap, dear) < 1
        True
    """
    people = np.asarray(one.answered.all(0) & other.answered.all(0))
    if people.sum() < fewest:
        return float("nan")
    curves = [one.curve(people), other.curve(people)]
    low = max(accepted[0] for accepted, _ in curves)
    high = min(accepted[-1] for accepted, _ in curves)
    if low >= high:
        return float("nan")
    levels = np.linspace(low, high, _LEVELS)
    mine, its = (np.interp(levels, accepted, cost) for accepted, cost in curves)
    return float(np.mean(mine / its))
