"""One bundle for all that decides a training run but its model and rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from torch import Tensor

from counterfactual_training.constraints import Constraints
from counterfactual_training.errors import InputError, unknown
from counterfactual_training.search import Generator, ecco
from counterfactual_training.training.config import TrainConfig
from counterfactual_training.training.objective import Objective, make_objective

Value = float | int

# Numbers of a setting, by the names that CounterfactualClassifier has for them; all others are the generator's.
OF_OBJECTIVE = ("lambda_div", "lambda_reg", "lambda_adv")
OF_CONFIG = ("learning_rate", "burn_in", "num_counterfactuals")
WHOLE = ("max_steps", "num_counterfactuals")
_SEARCH_NAMES = {"learning_rate": "search_learning_rate"}


@dataclass(frozen=True, eq=False)
class Setting:
    """How a model is trained. The presets ``as_run`` and ``as_printed`` collect everything in which the paper as
    printed and the code as run differ (reference implementation, list D1-D21).

    Attributes:
        generator: of the counterfactuals.
        constraints: what may move; inferred from the training rows (a box by Eq. 12) if not given.
        objective: the weights of Eq. 2.
        config: all other settings.
        num_std: n_σ of the inferred box, Eq. 12.
        length_scale: of the kernel of IP*, Eq. 6, for whoever measures the model.
        budget: accuracy on the training rows that counterfactuals may cost, against a conventional twin that is trained
            beside (:class:`AccuracyBudget`); ``None`` sets no limit.
        project_categories: training searches with categories as categories, as people are advised; else they are
            continuous there, as the authors had them. For whoever makes the constraints, such as the classifier.
    """

    generator: Generator = field(default_factory=ecco)
    constraints: Constraints | None = None
    objective: Objective = field(default_factory=Objective)
    config: TrainConfig = field(default_factory=TrainConfig)
    num_std: float = 2.0
    length_scale: float = 5.0
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
        """The numbers that have an effect, whole ones as ``int``; ablated terms and absent penalties are left out.

        They go by the names of :data:`OF_OBJECTIVE`, :data:`OF_CONFIG` and :meth:`Generator.numbers`, where the
        generator's learning rate is ``search_learning_rate``.
        """
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
            if name not in valid:
                raise InputError(unknown("number of this setting:", name, dict.fromkeys(valid)))
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
        """All but the constraints as plain values."""
        return {
            "generator": {"name": self.generator.name, **self.generator.numbers()},
            "objective": dict(vars(self.objective)),
            "training": asdict(self.config),
        }


def in_parts(numbers: Mapping[str, Value]) -> dict[str, dict[str, Any]]:
    """The numbers of a setting by the part they belong to and the name they have there."""
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
    length_scale=0.5,
)
# Steps towards another decision become shorter, under a budget of accuracy; most for people who cannot change all.
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
    """``"as_run"`` reproduces the published numbers; ``"as_printed"`` follows the text; ``"cheap_recourse"`` shortens
    the way to another decision."""
    if name not in PRESETS:
        raise InputError(unknown("preset", name, PRESETS))
    return PRESETS[name]
