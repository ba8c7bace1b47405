"""A run of a grid: one model to train and measure, with all its settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from counterfactual_lab.grids.settings import (
    CONVENTIONAL,
    OF_RUN,
    Settings,
    canonical,
    method_from,
)
from counterfactual_lab.runs.run import Run, as_tuples
from counterfactual_training.evaluation.protocol import PAIRED, PUBLISHED, EvaluationProtocol
from counterfactual_training.training.method import Method
from counterfactual_training.training.methods import METHODS_WITH_NETWORK
from counterfactual_training.training.registry import make_method

ROWS = ("train", "validation", "test")
# Searched under the constraints of training; conventional models, which know none, under both
# kinds.
AS_TRAINED = "as_trained"
ALL_ROWS = "all"
# The published protocol with the paper's numbers for grids (Note 2).
PROTOCOL = replace(
    PUBLISHED, num_individuals=100, num_runs=5, attacks=("fgsm",), attribution_rounds=0
)


@dataclass(frozen=True)
class Measurement:
    """How the models of a grid are measured.

    Attributes:
        on: rows whose counterfactuals are searched. The paper's grids use training rows, so that no
            setting is chosen by test rows; accuracy is always that of test rows, as in the paper.
        protected: whether the protected features are immutable in these searches, or
            :data:`AS_TRAINED`.
        protocol: everything else.
        protected_threshold: τ of searches with protected features immutable; by default the
            protocol's.
        paired: individuals of the paired protocol, measured beside the other: a number, or
            ``"all"`` rows.
        own_draws: individuals and attacks are drawn by the seed of the model instead of the
            protocol's.
    """

    on: str = "train"
    protected: bool | str = False
    protocol: EvaluationProtocol = PROTOCOL
    protected_threshold: float | None = None
    paired: int | str = 0
    own_draws: bool = False

    @classmethod
    def from_content(cls, content: Mapping[str, Any]) -> Measurement:
        """The inverse of :meth:`content`, also after a trip through JSON."""
        return cls(
            **{**content, "protocol": EvaluationProtocol(**as_tuples(content["protocol"]))}
        )

    def content(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


@dataclass(frozen=True)
class GridRun(Run):
    """One model: everything that decides its numbers, and nothing else. Equal runs give equal
    results.

    Attributes:
        settings: those of the method, as :func:`canonical` returns them, and those of
            :data:`OF_RUN`; sorted by name.
    """

    measurement: Measurement = Measurement()

    @classmethod
    def from_method(
        cls,
        data: str,
        seed: int,
        method: Method,
        values: Settings,
        measurement: Measurement,
    ) -> GridRun:
        """Trained by the method, from the seed; ``values`` has the settings of
        :data:`OF_RUN`.
        """
        settings_of_run = {name: values[name] for name in OF_RUN}
        trained = canonical(method)
        if trained["method"] == CONVENTIONAL:
            # It searches nothing, so nothing is protected.
            settings_of_run["protected"] = False
        return cls(
            data, seed, tuple(sorted({**trained, **settings_of_run}.items())), measurement
        )

    @classmethod
    def from_content(cls, content: Mapping[str, Any]) -> GridRun:
        """The inverse of :meth:`content`, also after a trip through JSON."""
        settings = tuple(sorted(as_tuples(content["settings"]).items()))
        return cls(
            content["data"],
            content["seed"],
            settings,
            Measurement.from_content(content["measurement"]),
        )

    @property
    def model(self) -> str:
        """``conventional``, ``ct``, ``ct protected``, ``pgd(epsilon=0.2)``, …"""
        if self.protected:
            return f"{self.text} protected"
        return self.text

    @property
    def brings_network(self) -> bool:
        """Whether the method brings its own network; layers and activation then have no effect."""
        return self.name in METHODS_WITH_NETWORK

    @property
    def name(self) -> str:
        """Of its method."""
        return str(self.values["method"])

    @cached_property
    def text(self) -> str:
        """Its method with the numbers of its own that differ from the usual ones, and the terms of
        Eq. 2 that it leaves out; other settings may differ from data set to data set.
        """
        usual = make_method(self.name)
        changed = {
            name: self.values[name]
            for name, number in usual.numbers.items()
            if self.values.get(name) != number
        }
        if usual.loss is None:
            changed |= {
                term: 0
                for term, weight in vars(usual.objective).items()
                if weight and not self.values[f"objective.{term}"]
            }
        if not changed:
            return self.name
        return f"{self.name}({', '.join(f'{name}={value}' for name, value in changed.items())})"

    # Not cached: runs are sent to workers and back.
    @property
    def method(self) -> Method:
        """What :func:`train` gets, before it knows the rows."""
        return method_from(self.values).seeded(self.seed)

    @property
    def is_conventional(self) -> bool:
        """Whether it is trained without counterfactuals, by nothing but the class loss."""
        return self.name == CONVENTIONAL

    @property
    def protected(self) -> bool:
        """Whether training knows the protected features."""
        return bool(self.values["protected"])

    @property
    def alone(self) -> bool:
        """Whether it trains by itself, on rows of its own, instead of in a fleet."""
        return bool(self.values["alone"])

    @property
    def gate(self) -> str:
        """Kind of the gate that is fitted to the trained model, or ``"none"``."""
        return str(self.values["gate"])

    @cached_property
    def ungated(self) -> GridRun:
        """What is trained; a gate comes after."""
        return replace(self, settings=tuple(sorted({**self.values, "gate": "none"}.items())))

    @property
    def generator(self) -> str:
        """Name of the generator; empty where nothing is searched."""
        return str(self.values.get("generator", ""))

    @property
    def constraint_kinds(self) -> tuple[str, ...]:
        """Constraints of the searches at evaluation: ``free``, ``protected`` or both."""
        protected = self.measurement.protected
        if protected != AS_TRAINED:
            if protected:
                return ("protected",)
            return ("free",)
        if self.protected:
            return ("protected",)
        if self.is_conventional:
            return ("free", "protected")
        return ("free",)

    def protocol(self, kind: str) -> EvaluationProtocol:
        """The protocol of searches under these constraints."""
        # Individuals are drawn by each model's own predictions, as by the authors; models of one
        # seed that predict alike also draw alike, which makes our spread between runs a little
        # smaller than independent draws would.
        if self.measurement.own_draws:
            seed = self.seed
        else:
            seed = self.measurement.protocol.seed
        return replace(
            self.measurement.protocol, decision_threshold=self._threshold(kind), seed=seed
        )

    def paired_protocol(self, kind: str) -> EvaluationProtocol:
        """The paired one; unfaithfulness, which no table reports, is left out."""
        if self.measurement.paired == ALL_ROWS:
            count = None
        else:
            count = int(self.measurement.paired)
        return replace(
            PAIRED,
            num_individuals=count,
            decision_threshold=self._threshold(kind),
            langevin_steps=0,
        )

    def _threshold(self, kind: str) -> float:
        threshold = self.measurement.protected_threshold
        if threshold is not None and kind == "protected":
            return threshold
        return self.measurement.protocol.decision_threshold
