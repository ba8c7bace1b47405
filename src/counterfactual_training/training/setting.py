"""All settings of a training run, and the presets. The defaults are what the authors ran;
``preset("as_printed")`` follows the text. The table *Paper and authors' code* in ARCHITECTURE.md
lists all differences.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from numbers import Integral
from typing import Any, Literal, get_args, get_origin, get_type_hints

from torch import Tensor

from counterfactual_training.constraints import Constraints
from counterfactual_training.defaults import BURN_IN, EPOCHS, LEARNING_RATE, SEED
from counterfactual_training.errors import InputError, check_count, check_name, lookup
from counterfactual_training.generators import Generator, ecco
from counterfactual_training.training.objective import Objective, make_objective
from counterfactual_training.training.regime import Regime, RegimeLoss
from counterfactual_training.training.sampling import TargetRule

Value = float | int
Refresh = Literal["epoch", "batch"]
AdversarialLabel = Literal["true", "predicted"]
Immature = Literal["replace", "drop", "keep"]

# Numbers of a setting, by the names of CounterfactualClassifier's parameters; all others are the
# generator's.
OF_OBJECTIVE = ("lambda_div", "lambda_reg", "lambda_adv")
OF_CONFIG = ("learning_rate", "burn_in", "num_counterfactuals")
WHOLE = ("max_steps", "num_counterfactuals", "steps", "most", "buffer", "warm_up", "target")
# The optimizer has a learning rate too.
_SEARCH_NAMES = {"learning_rate": "search_learning_rate"}
# Whole numbers of a config, and the smallest allowed.
_WHOLE = {
    "epochs": 0,
    "batch_size": 1,
    "num_counterfactuals": 1,
    "max_bad_updates": 1,
    "seed": -math.inf,
    "threads": 1,
    "accumulate": 1,
    "positives": 1,
}


@dataclass(frozen=True)
class TrainConfig:
    """How to train.

    Attributes:
        epochs: passes over the data.
        batch_size: rows per update.
        learning_rate: of Adam, where no optimizer is given.
        num_counterfactuals: searched per epoch; raised to one per batch if lower.
        burn_in: share of the epochs, at the start, trained conventionally.
        refresh: search once per ``"epoch"`` (as run) or anew for every ``"batch"``.
        shuffle: new batches each epoch, or the same in the same order (as run).
        target_rule: how y⁺ is drawn: uniformly among the classes ``"not_predicted"`` for the
            factual (as run), ``"not_true"``, all (``"uniform"``, Alg. 1), or by class frequency
            (``"prior"``, §3.2).
        adversarial_label: x_adv carries its factual's ``"true"`` label (final paper) or the
            ``"predicted"`` one (preprint of July 2025).
        immature: what happens to x′ that missed τ: ``"replace"`` it by its x⁺, so that it counts in
            the ridge only (as run); ``"drop"`` it from the means; ``"keep"`` it (as printed:
            exhausting all T steps is maturity too). Factuals that already were of the target class
            never count as counterfactuals.
        max_bad_updates: consecutive updates with a non-finite loss or gradient after which training
            stops.
        seed: of everything random; the same seed gives the same weights.
        threads: CPU threads; by default one for small models.
        accumulate: mini-batches per update, whose gradients are averaged.
        positives: rows of the target class drawn for each x′; the nearest one, in L1, becomes its
            x⁺.

    Examples:
        >>> import counterfactual_training as ct
        >>> data = ct.load_dataset("moons")
        >>> config = ct.TrainConfig(epochs=4, burn_in=0.5, batch_size=100, num_counterfactuals=100)
        >>> result = ct.train(ct.mlp(2, 2), data.x_train, data.y_train, config=config)
        >>> config.burn_in_epochs
        2
        >>> result.history.to_frame()["share_mature"].isna().tolist()  # no search in burn-in
        [True, True, False, False]
    """

    epochs: int = EPOCHS
    batch_size: int = 30
    learning_rate: float = LEARNING_RATE
    num_counterfactuals: int = 1000
    burn_in: float = BURN_IN
    refresh: Refresh = "epoch"
    shuffle: bool = False
    target_rule: TargetRule = "not_predicted"
    adversarial_label: AdversarialLabel = "true"
    immature: Immature = "replace"
    max_bad_updates: int = 20
    seed: int = SEED
    threads: int | None = None
    accumulate: int = 1
    positives: int = 1

    def __post_init__(self) -> None:
        for name, smallest in _WHOLE.items():
            value = getattr(self, name)
            if name == "threads" and value is None:
                continue
            if (
                not isinstance(value, Integral)
                or isinstance(value, bool)
                or int(value) < smallest
            ):
                if smallest == -math.inf:
                    least = ""
                else:
                    least = f" of at least {smallest}"
                raise InputError(f"{name} must be a whole number{least}, got {value!r}.")
            # NumPy's integers cannot be written as JSON
            object.__setattr__(self, name, int(value))
        if not 0 < self.learning_rate < float("inf"):
            raise InputError(
                f"learning_rate must be positive and finite, got {self.learning_rate}."
            )
        if not 0 <= self.burn_in <= 1:
            raise InputError(f"burn_in is a share of the epochs in [0, 1], got {self.burn_in}.")
        for name, kind in get_type_hints(type(self)).items():
            if get_origin(kind) is Literal:
                check_name(name, getattr(self, name), get_args(kind))

    @property
    def burn_in_epochs(self) -> int:
        """Epochs trained conventionally, at the start."""
        return round(self.burn_in * self.epochs)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TrainConfig:
        """From the table of a config file."""
        for key in values:
            check_name("setting", key, [own.name for own in fields(cls)])
        return cls(**values)


@dataclass(frozen=True, eq=False)
class Setting:
    """How a model is trained; see :func:`preset`.

    Attributes:
        generator: of the counterfactuals.
        constraints: by default a box inferred from the training rows (Eq. 12).
        objective: the weights of Eq. 2.
        regime: what to train on instead of counterfactuals and Eq. 2, such as attacks; ``None`` is
            this paper's method.
        config: all other settings.
        num_std: n_σ of the inferred box.
        budget: the share of training accuracy that counterfactuals may cost, relative to a
            conventional twin (:class:`AccuracyBudget`); ``None`` sets no limit.
        members: of an ensemble, trained one by one from seeds of their own, logits averaged; 1
            trains a single model.
        project_categories: treat categories as categories in training, not as continuous (as run).
            Read by those who make the constraints, such as the classifier.

    Examples:
        >>> import counterfactual_training as ct
        >>> data = ct.load_dataset("moons")
        >>> config = ct.TrainConfig(epochs=2, batch_size=100)
        >>> setting = ct.Setting(
        ...     ct.ecco(max_steps=10), objective=ct.Objective(lambda_reg=0.25), config=config
        ... )
        >>> result = ct.train(ct.mlp(2, 2), data.x_train, data.y_train, setting=setting)
        >>> changed = setting.with_numbers({"max_steps": 20}).seeded(1)
        >>> changed.generator.max_steps, changed.objective.lambda_reg, changed.config.seed
        (20, 0.25, 1)
    """

    generator: Generator = field(default_factory=ecco)
    constraints: Constraints | None = None
    objective: Objective = field(default_factory=Objective)
    config: TrainConfig = field(default_factory=TrainConfig)
    num_std: float = 2.0
    budget: float | None = None
    project_categories: bool = False
    regime: Regime | None = None
    members: int = 1

    def __post_init__(self) -> None:
        check_count("members", self.members)
        if isinstance(self.regime, str):
            name = self.regime
            raise InputError(
                f"regime is a Regime, got the name {name!r}: use make_regime({name!r}) or "
                f"train(regime={name!r})."
            )
        if self.regime is not None and not isinstance(self.regime, Regime):
            raise InputError(
                f"regime is a Regime or None, got {type(self.regime).__name__}; see make_regime."
            )
        if self.budget is not None and not 0 < self.budget < 1:
            raise InputError(
                f"budget is a share of the training rows between 0 and 1, got {self.budget!r}."
            )
        if self.budget is not None and self.regime is not None:
            raise InputError(
                f"A budget weakens the terms of Eq. 2, and {self.regime.name!r} has a loss of "
                "its own."
            )

    @property
    def loss(self) -> Objective:
        """What is minimised: the regime's loss, or Eq. 2."""
        if self.regime is None:
            return self.objective
        return RegimeLoss(regime=self.regime)

    @property
    def values(self) -> bool:
        """Whether this trains a regression, of numbers instead of classes."""
        return self.regime is not None and self.regime.values

    def conventional(self) -> Setting:
        """The same run without counterfactuals: the baseline."""
        objective = make_objective("vanilla", lambda_class=float(self.objective.lambda_class))
        return replace(self, objective=objective, budget=None, regime=None)

    def seeded(self, seed: int) -> Setting:
        """The same run from another seed."""
        return replace(self, config=replace(self.config, seed=seed))

    def numbers(self) -> dict[str, Value]:
        """The numbers that have an effect, by the names of the classifier's parameters; ablated
        terms are left out.

        Of a regime with a loss of its own: those of its recipe, and the learning rate.
        """
        if self.regime is not None:
            own = {
                name: number
                for name, number in self.regime.numbers.items()
                if type(number) in (int, float)
            }
            return {**own, "learning_rate": self.config.learning_rate}
        found: dict[str, Any] = {
            _SEARCH_NAMES.get(n, n): number for n, number in self.generator.numbers().items()
        }
        found |= {name: getattr(self.objective, name) for name in OF_OBJECTIVE}
        found |= {name: getattr(self.config, name) for name in OF_CONFIG}
        plain = {
            name: number for name, number in found.items() if not isinstance(number, Tensor)
        }
        used = {
            name: number for name, number in plain.items() if number or name not in OF_OBJECTIVE
        }
        return {
            name: int(number) if name in WHOLE else float(number)
            for name, number in used.items()
        }

    def with_numbers(self, numbers: Mapping[str, Value]) -> Setting:
        """The inverse of :meth:`numbers`: a copy with some of them changed."""
        valid = [*self.numbers(), *(OF_OBJECTIVE if self.regime is None else ())]
        for name, number in numbers.items():
            check_name("number of this setting:", name, dict.fromkeys(valid))
            if name in WHOLE and not float(number).is_integer():
                raise InputError(f"{name} is a whole number, got {number!r}.")
        typed = {
            name: int(number) if name in WHOLE else float(number)
            for name, number in numbers.items()
        }
        if self.regime is not None:
            rate = typed.pop("learning_rate", self.config.learning_rate)
            if not typed:
                made = self.regime
            else:
                made = self.regime.with_numbers(typed)
            return replace(self, regime=made, config=replace(self.config, learning_rate=rate))
        parts = in_parts(typed)
        return replace(
            self,
            generator=self.generator.with_numbers(parts["generator"]),
            objective=replace(self.objective, **parts["objective"]),
            config=replace(self.config, **parts["config"]),
        )

    def describe(self) -> dict[str, Any]:
        """Everything but the constraints, as plain values."""
        return {
            "generator": {"name": self.generator.name, **self.generator.numbers()},
            "objective": dict(vars(self.objective)),
            "training": asdict(self.config),
            **(
                {}
                if self.regime is None
                else {"regime": {"name": self.regime.name, **self.regime.numbers}}
            ),
            **({} if self.members == 1 else {"members": self.members}),
        }


def in_parts(numbers: Mapping[str, Value]) -> dict[str, dict[str, Any]]:
    """The numbers of a setting by the part they belong to, with the names they have there."""
    parts: dict[str, dict[str, Any]] = {"generator": {}, "objective": {}, "config": {}}
    inside = {outside: own for own, outside in _SEARCH_NAMES.items()}
    for name, number in numbers.items():
        if name in OF_OBJECTIVE:
            part = "objective"
        elif name in OF_CONFIG:
            part = "config"
        else:
            part = "generator"
        parts[part][inside.get(name, name)] = number
    return parts


AS_RUN = Setting()
AS_PRINTED = Setting(
    generator=ecco(learning_rate=0.25, decay="none", energy_ridge=0.0, strict_epsilon=True),
    config=TrainConfig(refresh="batch", shuffle=True, target_rule="uniform", immature="keep"),
    num_std=3.0,
)
# Makes recourse cheaper under a budget of accuracy, above all for people with immutable features.
CHEAP_RECOURSE = Setting(
    generator=ecco(decision_threshold=0.5, max_steps=50),
    objective=Objective(
        lambda_div=0.0, lambda_reg=0.0, lambda_adv=0.0, lambda_contrast=0.1, lambda_recourse=0.5
    ),
    config=TrainConfig(shuffle=True, immature="keep", positives=4),
    num_std=0.0,
    budget=0.0025,
    project_categories=True,
)
PRESETS = {"as_run": AS_RUN, "as_printed": AS_PRINTED, "cheap_recourse": CHEAP_RECOURSE}


def preset(name: str) -> Setting:
    """A setting by name.

    Args:
        name: ``"as_run"`` (published numbers), ``"as_printed"`` (the text) or ``"cheap_recourse"``.

    Examples:
        >>> import counterfactual_training as ct
        >>> ct.preset("as_run").config.refresh, ct.preset("as_printed").config.refresh
        ('epoch', 'batch')
        >>> setting = ct.preset("cheap_recourse").with_numbers({"learning_rate": 0.01}).seeded(1)
        >>> setting.config.seed, setting.config.learning_rate
        (1, 0.01)
    """
    return lookup("preset", name, PRESETS)
