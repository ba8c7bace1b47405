"""All settings of a training run in one object, and the presets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from torch import Tensor

from counterfactual_training.constraints import Constraints
from counterfactual_training.errors import InputError, check_name, lookup
from counterfactual_training.search import Generator, ecco
from counterfactual_training.training.config import TrainConfig
from counterfactual_training.training.objective import Objective, make_objective

Value = float | int

# Numbers of a setting, by the names of CounterfactualClassifier's parameters; all others are the generator's.
OF_OBJECTIVE = ("lambda_div", "lambda_reg", "lambda_adv")
OF_CONFIG = ("learning_rate", "burn_in", "num_counterfactuals")
WHOLE = ("max_steps", "num_counterfactuals")
_SEARCH_NAMES = {"learning_rate": "search_learning_rate"}


@dataclass(frozen=True, eq=False)
class Setting:
    """How a model is trained; see :func:`preset`.

    Attributes:
        generator: of the counterfactuals.
        constraints: by default a box inferred from the training rows (Eq. 12).
        objective: the weights of Eq. 2.
        config: all other settings.
        num_std: n_σ of the inferred box.
        budget: the share of training accuracy that counterfactuals may cost, relative to a conventional twin
            (:class:`AccuracyBudget`); ``None`` sets no limit.
        project_categories: treat categories as categories in training, not as continuous (as run). Read by those who
            make the constraints, such as the classifier.
    """

    generator: Generator = field(default_factory=ecco)
    constraints: Constraints | None = None
    objective: Objective = field(default_factory=Objective)
    config: TrainConfig = field(default_factory=TrainConfig)
    num_std: float = 2.0
    budget: float | None = None
    project_categories: bool = False

    def __post_init__(self) -> None:
        if self.budget is not None and not 0 < self.budget < 1:
            raise InputError(f"budget is a share of the training rows between 0 and 1, got {self.budget!r}.")

    def conventional(self) -> Setting:
        """The same run without counterfactuals: the baseline."""
        objective = make_objective("vanilla", lambda_class=float(self.objective.lambda_class))
        return replace(self, objective=objective, budget=None)

    def seeded(self, seed: int) -> Setting:
        return replace(self, config=replace(self.config, seed=seed))

    def numbers(self) -> dict[str, Value]:
        """The numbers that have an effect, by the names of the classifier's parameters; ablated terms are left out."""
        found: dict[str, Any] = {_SEARCH_NAMES.get(n, n): number for n, number in self.generator.numbers().items()}
        found |= {name: getattr(self.objective, name) for name in OF_OBJECTIVE}
        found |= {name: getattr(self.config, name) for name in OF_CONFIG}
        plain = {name: number for name, number in found.items() if not isinstance(number, Tensor)}
        used = {name: number for name, number in plain.items() if number or name not in OF_OBJECTIVE}
        return {name: int(number) if name in WHOLE else float(number) for name, number in used.items()}

    def with_numbers(self, numbers: Mapping[str, Value]) -> Setting:
        """The inverse of :meth:`numbers`: a copy with some of them changed."""
        valid = [*self.numbers(), *OF_OBJECTIVE]
        for name, number in numbers.items():
            check_name("number of this setting:", name, dict.fromkeys(valid))
            if name in WHOLE and not float(number).is_integer():
                raise InputError(f"{name} is a whole number, got {number!r}.")
        parts = in_parts({name: int(number) if name in WHOLE else float(number) for name, number in numbers.items()})
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
        }


def in_parts(numbers: Mapping[str, Value]) -> dict[str, dict[str, Any]]:
    """The numbers of a setting by the part they belong to, with the names they have there."""
    parts: dict[str, dict[str, Any]] = {"generator": {}, "objective": {}, "config": {}}
    inside = {outside: own for own, outside in _SEARCH_NAMES.items()}
    for name, number in numbers.items():
        part = "objective" if name in OF_OBJECTIVE else "config" if name in OF_CONFIG else "generator"
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
    objective=Objective(lambda_div=0.0, lambda_reg=0.0, lambda_adv=0.0, lambda_contrast=0.1, lambda_recourse=0.5),
    config=TrainConfig(shuffle=True, immature="keep", positives=4),
    num_std=0.0,
    budget=0.0025,
    project_categories=True,
)
PRESETS = {"as_run": AS_RUN, "as_printed": AS_PRINTED, "cheap_recourse": CHEAP_RECOURSE}


def preset(name: str) -> Setting:
    """A setting by name: ``"as_run"`` (published numbers), ``"as_printed"`` (the text) or ``"cheap_recourse"``."""
    return lookup("preset", name, PRESETS)
