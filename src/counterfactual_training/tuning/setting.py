"""A training setting, seen as named numbers that can be tuned."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from torch import nn

from counterfactual_training.constraints import Constraints
from counterfactual_training.search import Distance, Energy, Generator, Penalty
from counterfactual_training.training import Member, Objective, TrainConfig, make_objective

Value = float | int


class Knob(NamedTuple):
    """Where a number lives: a field of the generator, of the first penalty of a kind, of objective or config."""

    place: str
    field: str
    whole: bool = False


# By the names that CounterfactualClassifier has for them.
TUNABLE: Mapping[str, Knob] = {
    "decision_threshold": Knob("generator", "decision_threshold"),
    "max_steps": Knob("generator", "max_steps", whole=True),
    "search_learning_rate": Knob("generator", "learning_rate"),
    "epsilon": Knob("generator", "epsilon"),
    "lambda_cost": Knob("distance", "weight"),
    "lambda_energy": Knob("energy", "weight"),
    "lambda_div": Knob("objective", "lambda_div"),
    "lambda_reg": Knob("objective", "lambda_reg"),
    "lambda_adv": Knob("objective", "lambda_adv"),
    "learning_rate": Knob("config", "learning_rate"),
    "burn_in": Knob("config", "burn_in"),
    "num_counterfactuals": Knob("config", "num_counterfactuals", whole=True),
}
_PENALTIES = {"distance": Distance, "energy": Energy}
_WEIGHTS = ("lambda_div", "lambda_reg", "lambda_adv")


@dataclass(frozen=True, eq=False)
class Setting:
    """Everything of a training run but its model and rows."""

    generator: Generator
    constraints: Constraints
    objective: Objective
    config: TrainConfig

    def values(self) -> dict[str, Value]:
        """The numbers of this setting that have an effect: ablated terms and absent penalties are left out."""
        found: dict[str, Value] = {}
        for name, knob in TUNABLE.items():
            owner = self._owner(knob.place)
            value = None if owner is None else getattr(owner, knob.field)
            if isinstance(value, int | float) and not (name in _WEIGHTS and value == 0):
                found[name] = value
        return found

    def changed(self, values: Mapping[str, Value]) -> Setting:
        """The same setting with other numbers."""
        by_place: dict[str, dict[str, Value]] = {}
        for name, value in values.items():
            knob = TUNABLE[name]
            by_place.setdefault(knob.place, {})[knob.field] = int(value) if knob.whole else float(value)
        weights = {kind: by_place[kind]["weight"] for kind in _PENALTIES if kind in by_place}
        generator = self.generator.replace(penalties=_reweighted(self.generator.penalties, weights))
        return replace(
            self,
            generator=generator.replace(**by_place.get("generator", {})),
            objective=replace(self.objective, **by_place.get("objective", {})),
            config=replace(self.config, **by_place.get("config", {})),  # type: ignore[arg-type]
        )

    def conventional(self) -> Setting:
        """The same run without counterfactuals: the baseline."""
        return replace(self, objective=make_objective("vanilla", lambda_class=float(self.objective.lambda_class)))

    def seeded(self, seed: int) -> Setting:
        return replace(self, config=replace(self.config, seed=seed))

    def member(self, make_model: Callable[[int], nn.Module]) -> Member:
        """A member of a fleet, its weights drawn by the setting's seed."""
        model = make_model(self.config.seed)
        return Member(model, self.generator, self.constraints, self.objective, self.config)

    def _owner(self, place: str) -> object | None:
        return _first(self.generator.penalties, place) if place in _PENALTIES else getattr(self, place)


def _first(penalties: tuple[Penalty, ...], kind: str) -> Penalty | None:
    return next((penalty for penalty in penalties if isinstance(penalty, _PENALTIES[kind])), None)


def _reweighted(penalties: tuple[Penalty, ...], weights: Mapping[str, Value]) -> tuple[Penalty, ...]:
    """The same penalties, the first of each named kind with another weight."""
    for kind, weight in weights.items():
        old = _first(penalties, kind)
        if isinstance(old, Distance | Energy):
            penalties = tuple(replace(old, weight=weight) if penalty is old else penalty for penalty in penalties)
    return penalties
