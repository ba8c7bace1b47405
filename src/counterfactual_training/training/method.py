"""A method: how a model is trained. Everything that decides the weights, but data and device."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from counterfactual_training.constraints import Constraints
from counterfactual_training.core.losses import class_loss, value_loss
from counterfactual_training.core.precision import at_least_single
from counterfactual_training.errors import (
    InputError,
    bad_value,
    check_count,
    check_name,
    lookup,
)
from counterfactual_training.generators import GENERATORS, Generator, ecco, make_generator
from counterfactual_training.generators.generator import NUMBERS
from counterfactual_training.training.objective import Batch, LossTerms, Objective
from counterfactual_training.training.round import Memory, Round
from counterfactual_training.training.rows import TrainingRows
from counterfactual_training.training.train_config import TrainConfig

Find = Callable[[Round], Any]
Loss = Callable[[nn.Module, Batch, Any], LossTerms]
Value = float | int | str | bool | None

_WEIGHTS = tuple(field.name for field in fields(Objective))
_TRAINING = tuple(field.name for field in fields(TrainConfig))
# Settings of a method that are not parts with settings of their own.
_PLAIN = ("num_std", "budget", "members", "bootstrap", "project_categories")
_PARTS = ("generator", "objective", "training", "constraints")
# What it does, as functions and what goes with them.
_FUNCTIONS = ("loss", "find", "remember", "check")
# Where it comes from; not part of what it does.
_ORIGIN = ("name", "numbers", "make", "stated")

# Functions that make methods, by name: of classes, and of numbers.
METHODS: dict[str, Callable[..., Method]] = {}
VALUE_METHODS: dict[str, Callable[..., Method]] = {}


@dataclass(frozen=True)
class FromRows:
    """A generator by name that learns from the training rows, so that it is made when these are
    known.

    Attributes:
        name: of its recipe.
        settings: arguments of the recipe.
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def numbers(self) -> dict[str, Any]:
        """Those that were stated."""
        return dict(self.settings)

    def with_numbers(self, numbers: Mapping[str, Any]) -> FromRows:
        """The same recipe with some arguments changed."""
        return FromRows(self.name, {**self.settings, **numbers})


def needs_rows(name: str) -> bool:
    """Whether the generator of that name learns from training rows."""
    recipe = lookup("generator", name, GENERATORS)
    return "x_train" in inspect.signature(recipe).parameters


def stands_alone(name: str) -> bool:
    """Whether the generator of that name can be made without arguments."""
    recipe = lookup("generator", name, GENERATORS)
    return all(
        parameter.default is not parameter.empty
        or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        for parameter in inspect.signature(recipe).parameters.values()
    )


@dataclass(frozen=True, eq=False, repr=False)
class Method:
    """How a model is trained: what is searched for, what is minimised, and the numbers of both.

    :mod:`methods` has the published ones. A method without a ``loss`` minimises Eq. 2; one of your
    own is two functions, ``find`` and ``loss``, and :func:`register_method` makes it known by name.
    Both are written for leading dimensions ``(..., n, *features)``, so that they train fleets too.

    Attributes:
        name: in commands, tables and files.
        generator: of the counterfactuals, or the name of one.
        objective: the weights of Eq. 2.
        training: epochs, batches and all other numbers.
        loss: ``loss(model, batch, found)`` in place of Eq. 2, with gradients; the model is in
            training mode. See :meth:`LossTerms.sum`.
        find: ``find(round)``: what the loss gets as ``found``, at the current weights and without
            gradients by them: attacks, samples, counterfactuals. Not called during burn-in, when
            only the class loss counts.
        remember: ``remember(data, lead)``: the memory before the first epoch, tensors ``(*lead,
            …)``.
        check: ``check(models, data)``: raises before training if it cannot train these models on
            these rows.
        values: a regression: y are numbers ``(n,)``, and the model has one output ``(n, 1)``
            instead of logits.
        searches: ``find`` calls :meth:`Round.search`; generators that cannot serve training are
            refused then.
        numbers: what its function in :data:`METHODS` was called with.
        make: that function.
        constraints: of search and loss; by default a box inferred from the training rows (Eq. 12).
        num_std: n_σ of the inferred box.
        budget: the share of training accuracy that counterfactuals may cost, relative to a
            conventional reference (:class:`AccuracyBudget`); ``None`` sets no limit.
        members: of an ensemble, trained from seeds of their own, logits averaged; 1 trains a single
            model.
        bootstrap: let each member train on a bootstrap sample of the rows.
        project_categories: treat categories as categories in training, not as continuous (as run).
            Read by those who make the constraints, such as the classifier.
        stated: names of settings that were changed by :meth:`replace`.

    Examples:
        >>> import counterfactual_training as ct
        >>> data = ct.load_dataset("moons")
        >>> x, y = data.x_train[:200], data.y_train[:200]
        >>> method = ct.methods.ct_published(epochs=2, lambda_reg=0.25)
        >>> method = method.replace("generator.max_steps", 20)
        >>> print(method)
        ct_published(lambda_reg=0.25, generator.max_steps=20, epochs=2)
        >>> ct.train(ct.mlp(2, 2), x, y, method).history.last("epoch")
        2.0

        One of your own:

        >>> def loss(model, batch, noisy):
        ...     logits = model(noisy)
        ...     return ct.LossTerms.sum(
        ...         logits, class_loss=ct.class_loss(logits, batch.y, batch.weight)
        ...     )
        >>> noise = ct.Method("noise", loss=loss, find=lambda now: now.x + 0.1 * now.normal())
        >>> ct.train(ct.mlp(2, 2), x, y, noise.replace("epochs", 2)).history.last("epoch")
        2.0
    """

    name: str = "ct_published"
    generator: Generator | FromRows = field(default_factory=ecco)
    objective: Objective = field(default_factory=Objective)
    training: TrainConfig = field(default_factory=TrainConfig)
    loss: Loss | None = None
    find: Find | None = None
    remember: Callable[[TrainingRows, torch.Size], Memory] | None = None
    check: Callable[[Sequence[nn.Module], TrainingRows], None] | None = None
    values: bool = False
    searches: bool = False
    numbers: Mapping[str, Any] = field(default_factory=dict)
    make: Callable[..., Method] | None = None
    constraints: Constraints | None = None
    num_std: float = 2.0
    budget: float | None = None
    members: int = 1
    bootstrap: bool = False
    project_categories: bool = False
    stated: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        check_count("members", self.members)
        self._check_parts()
        self._check_numbers()
        # A loss of one's own is not the paper's method, which this name stands for.
        if self.loss is not None and self.make is None and self.name == Method.name:
            object.__setattr__(self, "name", "own")
        if isinstance(self.generator, str):
            if needs_rows(self.generator):
                generator: Generator | FromRows = FromRows(self.generator)
            else:
                generator = make_generator(self.generator)
            object.__setattr__(self, "generator", generator)  # the class is frozen
        if self.budget is not None and self.loss is not None:
            raise InputError(
                f"A budget weakens the terms of Eq. 2, and {self.name!r} has a loss of its own."
            )

    def _check_numbers(self) -> None:
        if not _is_number(self.num_std) or not 0 <= self.num_std < math.inf:
            raise bad_value("num_std", "a finite number of at least 0", self.num_std)
        if self.budget is not None and not (_is_number(self.budget) and 0 < self.budget < 1):
            raise bad_value(
                "budget", "a share of the training rows between 0 and 1", self.budget
            )
        for name in ("bootstrap", "project_categories"):
            if not isinstance(getattr(self, name), bool):
                raise bad_value(name, "True or False", getattr(self, name))

    def _check_parts(self) -> None:
        for name in _FUNCTIONS:
            part = getattr(self, name)
            if part is not None and not callable(part):
                raise InputError(
                    f"{name} of the method {self.name!r} must be a function, got "
                    f"{type(part).__name__}; published methods are made by name: ct.methods.pgd()."
                )
        if self.find is not None and self.loss is None:
            raise InputError(
                f"The method {self.name!r} has a find and no loss to use what it finds: state "
                "loss(model, batch, found)."
            )
        kinds = {"objective": Objective, "training": TrainConfig}
        for name, kind in kinds.items():
            part = getattr(self, name)
            if not isinstance(part, kind):
                raise InputError(
                    f"{name} of the method {self.name!r} is of the class {kind.__name__}, got "
                    f"{part!r}."
                )
        if not isinstance(self.generator, Generator | FromRows | str):
            raise InputError(
                f"generator of the method {self.name!r} is a Generator or the name of one, got "
                f"{type(self.generator).__name__}."
            )

    def __deepcopy__(self, memo: dict[int, Any]) -> Method:
        # Nothing in it changes, and fleets tell equal losses by identity.
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        # Functions within functions cannot be pickled: the method of that name makes them again.
        name = None
        if self.make is not None:
            name = self.name
        origin = {name: getattr(self, name) for name in _ORIGIN if name != "make"}
        changes = {**self._differing(), **origin}
        return _unpickled, (name, self.values, dict(self.numbers), changes)

    # ---- what it does ----------------------------------------------------------------------------

    @property
    def minimised(self) -> Objective:
        """What is minimised: the loss of its own, or Eq. 2."""
        if self.loss is None:
            return self.objective
        return OwnLoss(method=self)

    @property
    def searcher(self) -> Generator:
        """The generator, which :meth:`with_rows` has made if it learns from rows."""
        if isinstance(self.generator, FromRows):
            raise TypeError(f"with_rows makes the generator {self.generator.name!r} first")
        return self.generator

    @property
    def needs_counterfactuals(self) -> bool:
        """Whether anything is searched for while it trains."""
        if self.loss is None:
            return self.objective.needs_counterfactuals
        return self.searches

    def states(self, path: str) -> bool:
        """Whether a setting of the training was stated, by its user or by the method, not left at
        the default of :class:`TrainConfig`.
        """
        name = path.partition(".")[2]
        differs = getattr(self.training, name) != getattr(TrainConfig(), name)
        return differs or path in self.stated

    def conventional(self) -> Method:
        """The same run without counterfactuals."""
        if self.values:
            template = VALUE_METHODS["conventional"]()
        else:
            template = METHODS["conventional"]()
        parts = ("name", "numbers", "make", *_FUNCTIONS, "searches")
        return replace(
            self,
            **{name: getattr(template, name) for name in parts},
            objective=replace(template.objective, lambda_class=self.objective.lambda_class),
            budget=None,
            stated=frozenset(path for path in self.stated if path.startswith("training.")),
        )

    def seeded(self, seed: int) -> Method:
        """The same run from another seed."""
        return replace(self, training=replace(self.training, seed=seed))

    def with_rows(
        self, x_train: Tensor | None, y_train: Tensor | None = None, **learned: Any
    ) -> Method:
        """With the generator that learns from these rows ``(n, d)`` of classes ``(n,)``, if it is
        one that does.

        Args:
            learned: by the names of the recipe's arguments, what an earlier one has learned.
        """
        if isinstance(self.generator, Generator):
            return self
        settings = {**self.generator.settings, **learned}
        generator = make_generator(self.generator.name, x_train, y_train, **settings)
        return replace(self, generator=generator)

    # ---- its settings by name --------------------------------------------------------------------

    def settings(self) -> dict[str, Value]:
        """Every setting that has an effect, by its dotted name: ``"objective.lambda_div"``,
        ``"generator.max_steps"``, ``"training.epochs"``; numbers of a loss of its own by their own.
        """
        return {name: value for name, value in self._every().items() if _plain(value)}

    def _every(self) -> dict[str, Any]:
        """As :meth:`settings`, with those that are tensors or functions."""
        settings: dict[str, Any] = dict(self.numbers)
        if self.loss is None:
            settings |= _dotted("objective", vars(self.objective))
        if self.needs_counterfactuals:
            settings |= _dotted("generator", self.generator.numbers())
        settings |= _dotted("training", asdict(self.training))
        settings |= {name: getattr(self, name) for name in _PLAIN}
        return settings

    def path(self, name: str) -> str:
        """The dotted name of a setting that may be written short: ``"epochs"`` is
        ``"training.epochs"``.

        Short names are looked up among the method's own numbers, the objective, the training and
        the generator, in this order.
        """
        if name in self.numbers or name in (*_PLAIN, *_PARTS):
            return name
        part, dot, rest = name.partition(".")
        if dot and part in ("objective", "training", "generator"):
            if part != "generator":
                check_name(f"setting of {part}:", rest, self._names(part))
            return name
        for part in ("objective", "training", "generator"):
            if name in self._names(part):
                return f"{part}.{name}"
        valid = [*self.numbers, *_WEIGHTS, *_TRAINING, *self._names("generator"), *_PLAIN]
        check_name(f"setting of the method {self.name!r}:", name, dict.fromkeys(valid))
        return name

    def _names(self, part: str) -> tuple[str, ...]:
        if part == "objective":
            return _WEIGHTS
        if part == "training":
            return _TRAINING
        return tuple(dict.fromkeys([*NUMBERS, *self.generator.numbers()]))

    def replace(self, name: str | Mapping[str, Any], value: Any = None) -> Method:
        """A copy with a setting changed, or several, by their dotted or short names.

        Args:
            name: such as ``"generator.max_steps"``; or a dict of such names and values.
            value: of that setting.
        """
        if isinstance(name, str):
            changes = {name: value}
        else:
            changes = dict(name)
        method = self
        # Parts first: their settings may be among the changes. Then numbers of its own, which
        # may decide settings.
        for name in sorted(changes, key=self._order):
            method = method._replaced(name, changes[name])
        return method

    def _order(self, name: str) -> int:
        if name in self.numbers:
            return 1
        if name in _PARTS:
            return 0
        return 2

    def _replaced(self, name: str, value: Any) -> Method:
        path = self.path(name)
        stated = self.stated | {path}
        if path in self.numbers:
            return replace(self._rebuilt({**self.numbers, path: value}), stated=stated)
        part, _, rest = path.partition(".")
        if path == "generator":
            return replace(self, generator=value, stated=stated)
        if not rest:
            return replace(self, **{path: value}, stated=stated)
        if part == "objective" and self.loss is not None:
            raise InputError(
                f"{rest} has no effect: the method {self.name!r} has a loss of its own."
            )
        if part == "generator":
            changed: Any = self.generator.with_numbers({rest: value})
        else:
            changed = replace(getattr(self, part), **{rest: value})
        return replace(self, **{part: changed}, stated=stated)

    def _rebuilt(self, numbers: Mapping[str, Any]) -> Method:
        """The method of other numbers, with all other settings of this one."""
        if self.make is None:
            raise InputError(
                f"The method {self.name!r} was made by hand; change what its functions use, or "
                "register a function that takes numbers."
            )
        old = self._template()
        method = self.make(**numbers)
        parts = self._differing()
        for name in ("objective", "training"):
            if name in parts and type(parts[name]) is type(getattr(method, name)):
                settings = vars(parts[name])
                old_settings = vars(getattr(old, name))
                changed = {
                    setting: settings[setting]
                    for setting in settings
                    if settings[setting] is not old_settings[setting]
                }
                parts[name] = replace(getattr(method, name), **changed)
        return replace(method, **parts, name=self.name, make=self.make)

    def _template(self) -> Method:
        """What its function returns for its numbers."""
        if self.make is None:
            return Method(self.name)
        return self.make(**self.numbers)

    def _differing(self) -> dict[str, Any]:
        """Fields that are not those that its function returned for its numbers."""
        template = self._template()
        names = [field.name for field in fields(self) if field.name not in _ORIGIN]
        return {
            name: getattr(self, name)
            for name in names
            if getattr(self, name) is not getattr(template, name)
        }

    # ---- as text and as plain values -------------------------------------------------------------

    def __repr__(self) -> str:
        return f"Method({str(self)!r})"

    def __str__(self) -> str:
        """Its name, and what differs from the method of that name: ``pgd(epsilon=0.2)``."""
        changed = self._changed()
        if not changed:
            return self.name
        stated = [f"{self._short(path)}={value}" for path, value in changed.items()]
        return f"{self.name}({', '.join(stated)})"

    def to_dict(self) -> dict[str, Any]:
        """Its name and what differs from the method of that name, for files; :func:`make_method`
        reads it. Constraints belong to data and are left out.

        Raises if that cannot say it all, because a generator or a loss is your own.
        """
        unwritten = self._unwritten()
        if unwritten:
            raise InputError(
                f"The method {self.name!r} holds objects of your own ({', '.join(unwritten)}), "
                "which cannot be written as plain values: register a function that makes it with "
                "ct.register_method, or pass it again when you load."
            )
        return {"name": self.name, **self._changed()}

    def _unwritten(self) -> list[str]:
        """Names of what plain values cannot describe."""
        if self.make is None:
            return [name for name in _FUNCTIONS if getattr(self, name) is not None] or ["name"]
        differing = self._differing()
        names = [name for name in (*_FUNCTIONS, "values", "searches") if name in differing]
        if type(self.objective) is not Objective:
            names.append("objective")
        if type(self.training) is not TrainConfig:
            names.append("training")
        if self.needs_counterfactuals and not self._same_generator(self._usual()):
            names.append("generator")
        return names + [name for name, value in self._every().items() if not _plain(value)]

    def _usual(self) -> Method:
        """What its function returns for its numbers, with this generator's recipe."""
        usual = self._template()
        name = self.generator.name
        by_recipe = name in GENERATORS and (needs_rows(name) or stands_alone(name))
        if name != usual.generator.name and by_recipe:
            return usual.replace("generator", name)
        return usual

    def _same_generator(self, usual: Method) -> bool:
        """Whether this generator is the usual one but for its numbers."""
        mine = self.generator
        theirs = usual.generator
        if isinstance(mine, FromRows) or isinstance(theirs, FromRows):
            return type(mine) is type(theirs)
        return mine.content() == theirs.with_numbers(mine.numbers()).content()

    def _changed(self) -> dict[str, Value]:
        """Settings that differ from those of the method of this name, as it is registered."""
        registered = self._usual()
        usual = _dotted("generator", registered.generator.numbers()) | registered.settings()
        if self.make is not None:
            usual |= self.make().numbers
        # What was stated has an effect even where it is the default: a classifier then leaves it.
        changed = {
            path: value
            for path, value in self.settings().items()
            if path not in usual or usual[path] != value or path in self.stated
        }
        if self.make is not None and self.generator.name != self._template().generator.name:
            return {"generator": self.generator.name, **changed}
        return changed

    def _short(self, path: str) -> str:
        """Without its part, where that says the same."""
        part, _, rest = path.partition(".")
        if part in ("objective", "training") and self.path(rest) == path:
            return rest
        return path


def _unpickled(
    name: str | None, values: bool, numbers: Mapping[str, Any], changes: Mapping[str, Any]
) -> Method:
    """The inverse of :meth:`Method.__reduce__`."""
    if name is None:
        return Method(**changes)
    # The registry imports this module.
    from counterfactual_training.training.registry import make_method

    return replace(make_method({"name": name, **numbers}, values), **changes)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _plain(value: Any) -> bool:
    """Whether a file can hold it."""
    if isinstance(value, tuple):
        return all(_plain(item) for item in value)
    return value is None or isinstance(value, str | int | float)


def _dotted(part: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{part}.{name}": value for name, value in values.items()}


@dataclass(frozen=True, eq=False)
class OwnLoss(Objective):
    """A method's own loss in place of Eq. 2. The weights of Eq. 2 have no effect."""

    method: Method = None  # type: ignore[assignment]  # required; fields of Objective have defaults

    @property
    def needs_counterfactuals(self) -> bool:
        return self.method.find is not None

    # The history shows all terms.
    needs_divergence = needs_adversarial = property(lambda self: True)

    @property
    def title(self) -> str:
        return f"The loss of the method {self.method.name!r}"

    def fit_loss(self, outputs: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
        if self.method.values:
            return value_loss(outputs, y, weight)
        return class_loss(outputs, y, weight)

    def hits(self, outputs: Tensor, y: Tensor) -> Tensor:
        # A number is never simply right, so a regression has no accuracy.
        if self.method.values:
            return y.new_full(y.shape[:-1], torch.nan)
        return super().hits(outputs, y)

    def __call__(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        explanations: Any = None,
        weight: Tensor | None = None,
    ) -> LossTerms:
        if explanations is None and self.method.find is not None:  # burn-in
            logits = at_least_single(model(x))
            return LossTerms.sum(logits, class_loss=self.fit_loss(logits, y, weight))
        loss: Any = self.method.loss
        return loss(model, Batch(x, y, weight), explanations)
