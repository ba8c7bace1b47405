"""A counterfactual generator as data: where to move, what to penalise, how many steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from math import inf
from numbers import Real
from typing import Any, Literal

from torch import Tensor

from counterfactual_training.core.broadcast import Number
from counterfactual_training.errors import InputError, bad_value, check_count, check_name
from counterfactual_training.generators.data_penalties import (
    PER_FEATURE,
    learned,
)
from counterfactual_training.generators.penalties import (
    Penalty,
    PenaltyGradients,
    SearchState,
    is_ours,
    is_weighted,
)
from counterfactual_training.generators.spaces import FeatureSpace, Space
from counterfactual_training.generators.steps import STEP_RULES, Stepper


def _is_count(value: object) -> bool:
    return (
        isinstance(value, Real)
        and not isinstance(value, bool)
        and float(value) >= 0
        and float(value).is_integer()
    )


def _check_number(name: str, number: Any, holds: Callable[[Any], bool], valid: str) -> None:
    """One number, or one per member of a fleet."""
    if isinstance(number, Tensor):
        values = number.flatten().tolist()
    else:
        values = [number]
    if not all(isinstance(v, Real) and not isinstance(v, bool) and holds(v) for v in values):
        raise bad_value(name, valid, number)


# The numbers of every search, and which values they may have; penalties add theirs.
_VALID: dict[str, tuple[Callable[[Any], bool], str]] = {
    "decision_threshold": (lambda v: 0 < v <= 1, "a probability in (0, 1]"),
    "max_steps": (_is_count, "a whole number of at least 0"),
    "learning_rate": (lambda v: v > 0, "positive"),
    "epsilon": (lambda v: v >= 0, "at least 0"),
}
NUMBERS = tuple(_VALID)

StepRule = Literal["fixed", "line", "normalised", "signed", "adam"] | Stepper
_STEP_NAMES = ("fixed", "line", *STEP_RULES)
# Logits (..., m, k) of points (m, d), for every member of a fleet.
Ask = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Generator:
    """Settings of one search by Eq. 1; :mod:`recipes` fill it for the published methods.

    Attributes:
        name: for tables and messages.
        penalties: the terms added to the class loss, weights included.
        space: where the descent happens.
        learning_rate: η of the plain gradient descent (the paper prints 0.25; 0.1 is what ran).
        max_steps: T. Like all numbers here, one for all or one per member of a fleet.
        decision_threshold: τ, the probability of the target class at which a row is done.
        epsilon: ε, the ∞-norm radius within which an iterate counts as nascent.
        strict_epsilon: nascent means ‖Δ‖∞ < ε as printed, instead of ≤ ε as run.
        step_rule: ``"fixed"`` is plain gradient descent with η, the published search. ``"line"`` is
            a line search that ends on τ and whose result depends on neither η nor the scale of the
            logits (:mod:`line_search`); its steps are at most η·max(1, √(d/8)) long, and T limits
            how many it tries. ``"normalised"``, ``"signed"``,
            ``"adam"`` and rules such as :class:`Greedy` change
            what a step does (:mod:`steps`).
        num_answers: how many counterfactuals to search for each row, together. A result holds the
            best one, and all of them in ``answers``. They differ if penalties and steps see to it,
            as :func:`dice` does.

    Examples:
        >>> import counterfactual_training as ct
        >>> generator = ct.ecco(max_steps=50)  # a recipe makes it
        >>> generator.name, generator.max_steps
        ('ecco', 50)
        >>> sorted(generator.numbers())
        ['decision_threshold', 'epsilon', 'lambda_cost', 'lambda_energy', 'learning_rate',
        'max_steps']
        >>> generator.replace(decision_threshold=0.9).decision_threshold
        0.9
    """

    name: str
    penalties: tuple[Penalty, ...] = ()
    space: Space = field(default_factory=FeatureSpace)
    learning_rate: Number = 0.1
    max_steps: int | Tensor = 30
    decision_threshold: Number = 0.75
    epsilon: Number = 0.3
    strict_epsilon: bool = False
    step_rule: StepRule = "fixed"
    num_answers: int = 1

    def __post_init__(self) -> None:
        for name, (holds, valid) in _VALID.items():
            _check_number(name, getattr(self, name), holds, valid)
        penalty: Any
        for penalty in self.penalties:
            # A user's own may mean something by a negative weight.
            if is_weighted(penalty):
                _check_number(
                    penalty.number,
                    penalty.weight,
                    lambda v: 0 <= v < inf,
                    "a finite number of at least 0",
                )
        if not isinstance(self.max_steps, Tensor):
            # It may come as 30.0, but range() wants an integer; the class is frozen.
            object.__setattr__(self, "max_steps", int(self.max_steps))
        if not callable(self.step_rule):
            check_name("step_rule", self.step_rule, _STEP_NAMES)
        check_count("num_answers", self.num_answers)
        if self.num_answers > 1 and self.step_rule == "line":
            raise InputError(
                "A line search finds one answer per row; use num_answers=1, or another step_rule."
            )
        if self.demands and self.step_rule == "line":
            raise InputError(
                f"A line search ends on τ, but the generator {self.name!r} asks for more; use "
                "another step_rule."
            )
        if self.step_rule != "fixed" and not isinstance(self.space, FeatureSpace):
            raise InputError(
                f"step_rule={self.step_rule!r} moves the features themselves, not in a "
                f"{type(self.space).__name__}; "
                "use step_rule='fixed' there."
            )

    @property
    def rule(self) -> Stepper | None:
        """How a step is made; ``None`` is by plain descent, or by the line search."""
        if callable(self.step_rule):
            return self.step_rule
        return STEP_RULES.get(self.step_rule)

    @property
    def is_gradient_free(self) -> bool:
        """Whether it asks the model for its answers only."""
        return getattr(self.rule, "gradient_free", False)

    def prepared(self, ask: Ask) -> Generator:
        """For one search: with all that its parts compute from the model first, such as a quantile
        of its scores.
        """
        penalties = tuple(_prepared(penalty, ask) for penalty in self.penalties)
        rule = _prepared(self.step_rule, ask)
        parts = zip((*penalties, rule), (*self.penalties, self.step_rule), strict=True)
        # Itself if nothing is prepared, to keep what is cached.
        if all(new is old for new, old in parts):
            return self
        return self.replace(penalties=penalties, step_rule=rule)

    @cached_property
    def gradients(self) -> PenaltyGradients:
        """The penalties, grouped by how their gradient is computed."""
        return PenaltyGradients.from_penalties(self.penalties)

    @cached_property
    def demands(self) -> tuple[Callable[[SearchState], Tensor], ...]:
        """What its parts ask of a row at τ before it is done: masks ``(..., n)`` of the rows that
        have enough.
        """
        parts: tuple[Any, ...] = (*self.penalties, self.step_rule)
        return tuple(part.suffices for part in parts if hasattr(part, "suffices"))

    @property
    def is_plain(self) -> bool:
        """Whether it moves the features themselves and all its derivatives are closed forms: no
        graph is needed.
        """
        # A user's own may use autograd, which inference_mode would break.
        ours = all(is_ours(penalty) for penalty in self.penalties)
        return ours and not self.gradients.automatic and type(self.space) is FeatureSpace

    def replace(self, **changes: Any) -> Generator:
        """A copy with some settings changed."""
        for name in changes:
            check_name("setting of a generator:", name, [part.name for part in fields(self)])
        return replace(self, **changes)

    def check_features(self, num_features: int) -> None:
        """Raise unless what it learned from rows was learned from rows with so many features."""
        for name, value in learned((*self.penalties, self.step_rule)).items():
            if name in PER_FEATURE and value.shape[-1] != num_features:
                raise InputError(
                    f"The generator {self.name!r} was made from rows with {value.shape[-1]} "
                    f"features ({name}); these "
                    f"have {num_features}. Pass the x_train that belongs to these rows."
                )

    def numbers(self) -> dict[str, Number]:
        """Its numbers by name: :data:`NUMBERS`, and the weights of penalties that name theirs
        (``lambda_cost``).
        """
        weights = {name: penalty.weight for name, penalty in self._named().items()}
        return {name: getattr(self, name) for name in NUMBERS} | weights

    def with_numbers(self, numbers: Mapping[str, Number]) -> Generator:
        """The inverse of :meth:`numbers`: a copy with some of them changed."""
        named = self._named()
        valid = self.numbers()
        for name in numbers:
            check_name(f"number of the generator {self.name!r}:", name, valid)
        # By identity: of several penalties of one name, only the first is meant.
        changed = {
            id(p): replace(p, weight=numbers[name])
            for name, p in named.items()
            if name in numbers
        }
        penalties = tuple(changed.get(id(penalty), penalty) for penalty in self.penalties)
        return self.replace(
            penalties=penalties, **{name: numbers[name] for name in NUMBERS if name in numbers}
        )

    def content(self) -> tuple[Any, ...]:
        """What it does, in a form that can be compared."""
        values = tuple(
            getattr(self, part.name)
            for part in fields(self)
            if part.name not in ("penalties", "space")
        )
        penalties = tuple((type(penalty), vars(penalty)) for penalty in self.penalties)
        return values, penalties, type(self.space), vars(self.space)

    def _named(self) -> dict[str, Any]:
        """Penalties by the name of their weight; the first one if several share a name."""
        named: dict[str, Any] = {}
        for penalty in self.penalties:
            if isinstance(name := getattr(penalty, "number", None), str):
                named.setdefault(name, penalty)
        return named


def _prepared(part: Any, ask: Ask) -> Any:
    """The part itself, unless it has a method ``prepare(ask)``, which returns what serves the
    search.
    """
    if hasattr(part, "prepare"):
        return part.prepare(ask)
    return part
