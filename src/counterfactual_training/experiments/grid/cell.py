"""A cell: one model to train and measure, identified by the content of its settings."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import Any

from counterfactual_training.evaluation.protocol import PAIRED, PUBLISHED, EvaluationProtocol
from counterfactual_training.experiments.grid.settings import (
    Settings,
    canonical,
    is_conventional,
)
from counterfactual_training.training.regimes import OWN_NETWORK

# Increase it whenever results of older code must not be mixed with new ones.
FORMAT = 1
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
        on: rows whose counterfactuals are searched. The paper's grids use training rows, so that
            nobody picks a setting by test rows; accuracy is always that of test rows, as in the
            paper.
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
        """Plain values. Fields that came later appear only where they differ: stored cells keep
        their identity.
        """
        later = {
            f.name: f.default
            for f in fields(self)
            if f.name in ("protected_threshold", "paired", "own_draws")
        }
        return {
            name: value
            for name, value in asdict(self).items()
            if name not in later or value != later[name]
        }


@dataclass(frozen=True)
class Cell:
    """One model: everything that decides its numbers, and nothing else. Equal cells give equal
    results.

    Attributes:
        settings: as :func:`canonical` returns them, sorted by name.
        seed: of the weights and the draws of training.
    """

    data: str
    seed: int
    settings: tuple[tuple[str, Any], ...]
    measurement: Measurement = Measurement()

    @classmethod
    def from_settings(
        cls, data: str, seed: int, settings: Settings, measurement: Measurement
    ) -> Cell:
        return cls(data, seed, tuple(sorted(canonical(settings).items())), measurement)

    @classmethod
    def from_content(cls, content: Mapping[str, Any]) -> Cell:
        """The inverse of :meth:`content`, also after a trip through JSON."""
        settings = tuple(sorted(as_tuples(content["settings"]).items()))
        return cls(
            content["data"],
            content["seed"],
            settings,
            Measurement.from_content(content["measurement"]),
        )

    def content(self) -> dict[str, Any]:
        """The cell as plain values."""
        measurement = self.measurement.content()
        return {
            "data": self.data,
            "seed": self.seed,
            "settings": dict(self.settings),
            "measurement": measurement,
        }

    @cached_property
    def id(self) -> str:
        """A name that is safe for a file, and different for any other content."""
        return f"{self.data}-{digest({'format': FORMAT, **self.content()})[:20]}"

    @cached_property
    def values(self) -> Settings:
        return dict(self.settings)

    @property
    def label(self) -> str:
        """``Moon full protected seed 0``."""
        return f"{self.data} {self.model} seed {self.seed}"

    @property
    def model(self) -> str:
        """``vanilla``, ``full``, ``full protected``, …"""
        if self.protected:
            return f"{self.objective} protected"
        return self.objective

    @property
    def own_network(self) -> bool:
        """Whether the regime brings its own network; layers and activation then have no effect."""
        return self.values.get("regime") in OWN_NETWORK

    @property
    def objective(self) -> str:
        """Name of the objective that has these weights, or of a regime with a loss of its own."""
        if "regime" in self.values:
            return self.values["regime"]
        if self.is_conventional:
            return "vanilla"
        if not self.values["objective.lambda_adv"]:
            return "divergence"
        if self.values["objective.lambda_div"]:
            return "full"
        return "adversarial"

    @property
    def is_conventional(self) -> bool:
        """Whether it is trained without counterfactuals."""
        return is_conventional(self.values)

    @property
    def protected(self) -> bool:
        """Whether training knows the protected features."""
        return bool(self.values["protected"])

    @property
    def alone(self) -> bool:
        """Whether it trains by itself, on rows of its own, instead of in a fleet."""
        return bool(self.values.get("alone", False))

    @property
    def gate(self) -> str:
        """Kind of the gate that is fitted to the trained model, or ``"none"``."""
        return str(self.values.get("gate", "none"))

    @cached_property
    def ungated(self) -> Cell:
        """What is trained; a gate comes after."""
        return replace(
            self, settings=tuple(pair for pair in self.settings if pair[0] != "gate")
        )

    @property
    def generator(self) -> str:
        """Name of the generator; empty for a baseline."""
        return str(self.values.get("generator.name", ""))

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
        own = self.measurement.protected_threshold
        if own is not None and kind == "protected":
            return own
        return self.measurement.protocol.decision_threshold


def as_tuples(content: Any) -> Any:
    """Plain values with tuples for the lists that JSON made of them."""
    if isinstance(content, Mapping):
        return {name: as_tuples(value) for name, value in content.items()}
    if isinstance(content, (list, tuple)):
        return tuple(map(as_tuples, content))
    return content


def digest(content: Mapping[str, Any]) -> str:
    """A checksum of plain values."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
