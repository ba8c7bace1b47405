"""Few cases of a large product: every two values of two axes meet, and the rest stays available."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from itertools import combinations, product

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import SearchStrategy


def covering(*axes: Iterable[object]) -> list[tuple[object, ...]]:
    """A few combinations in which every two values of two axes meet at least once, the same ones
    every time.

    A fault of one value, or of two values together, shows there already; only a fault that takes
    three is left out.
    """
    left = list(product(*axes))
    open_pairs = {pair for combination in left for pair in _pairs(combination)}
    chosen = []
    while open_pairs:
        best = max(
            left, key=lambda combination: len(open_pairs.intersection(_pairs(combination)))
        )
        open_pairs.difference_update(_pairs(best))
        chosen.append(best)
        left.remove(best)
    return chosen


def _pairs(combination: tuple[object, ...]) -> list[tuple[tuple[int, object], ...]]:
    return list(combinations(enumerate(combination), 2))


def on_product(**axes: Iterable[object]) -> pytest.MarkDecorator:
    """Parametrise a test by the product of named axes; what :func:`covering` leaves out is marked
    ``check``.
    """
    return _marked(axes, covering(*axes.values()))


def each_value(**axes: Sequence[object]) -> pytest.MarkDecorator:
    """The same where axes have little to do with each other: every value of the first, the longest,
    occurs once.

    The other axes take turns, so that their values meet each other too.
    """
    return _marked(axes, _in_turn(*axes.values()))


def each_pair(**axes: Sequence[object]) -> pytest.MarkDecorator:
    """As :func:`each_value`, but ``check`` runs no more than :func:`covering` asks for: for
    products of thousands.
    """
    few = _in_turn(*axes.values())
    return _marked(
        axes, few, [*few, *(case for case in covering(*axes.values()) if case not in few)]
    )


def _in_turn(first: Sequence[object], *others: Sequence[object]) -> list[tuple[object, ...]]:
    few = []
    for i, value in enumerate(first):
        turn = i
        values = [value]
        for axis in others:
            turn, place = divmod(turn, len(axis))
            values.append(axis[place])
        few.append(tuple(values))
    return few


def _marked(
    axes: Mapping[str, Iterable[object]],
    few: list[tuple[object, ...]],
    every: list[tuple[object, ...]] | None = None,
) -> pytest.MarkDecorator:
    cases = [
        pytest.param(
            *values,
            marks=() if values in few else pytest.mark.check,
            id="-".join(map(str, values)),
        )
        for values in every or product(*axes.values())
    ]
    return pytest.mark.parametrize(tuple(axes), cases)


def repeats(*values: object) -> list:
    """Values for ``parametrize`` that repeat a test at some cost: marked ``check``."""
    return [pytest.param(value, marks=pytest.mark.check) for value in values]


def by_default(values: Iterable[object], *chosen: object) -> list:
    """Values for ``parametrize`` of which ``make test`` runs the chosen ones; the others are marked
    ``check``.
    """
    values = list(values)
    assert set(chosen) <= set(values), f"{set(chosen) - set(values)} is not among {values}"
    return [
        value if value in chosen else pytest.param(value, marks=pytest.mark.check)
        for value in values
    ]


def on_examples(
    few: int, many: int, *strategies: SearchStrategy
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test, which takes nothing else, on a few drawn examples; on many of them it is marked
    ``check``.
    """

    def decorate(test: Callable) -> Callable:
        @pytest.mark.parametrize("num", [few, *repeats(many)])
        @wraps(test)
        def run(num: int) -> None:
            limits = settings(
                max_examples=num, deadline=None, suppress_health_check=list(HealthCheck)
            )
            limits(given(*strategies)(test))()

        del run.__wrapped__  # whose arguments pytest would take for fixtures
        return run

    return decorate
