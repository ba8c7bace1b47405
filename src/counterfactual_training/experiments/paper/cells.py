"""A cell is one model of the paper's experiments: data, objective, protected or not, seed, how long."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from counterfactual_training.datasets.catalog import CATALOG
from counterfactual_training.datasets.dataset import Dataset
from counterfactual_training.errors import InputError, unknown
from counterfactual_training.search import ecco
from counterfactual_training.training import OBJECTIVES, Setting, TrainConfig, make_objective

# Raised whenever stored results of older code must not be mixed with new ones.
FORMAT = 1

SYNTHETIC = ("LS", "Circ", "Moon", "OL")
TABULAR = ("Adult", "CH", "Cred", "GMSC")
IMAGES = ("MNIST",)
PAPER_ORDER = (*SYNTHETIC, *TABULAR, *IMAGES)


@dataclass(frozen=True)
class Effort:
    """How long a cell is trained and how thoroughly it is measured. The defaults are the published ones.

    Attributes:
        name: stands in every output.
        epochs: of training.
        num_runs: repetitions of the published evaluation.
        num_individuals: of one repetition; by default what the paper took for that kind of data.
        paired_individuals: of the paired evaluation; by default every test row.
        num_epsilons: budgets of the attacks, evenly spaced from 0 to 0.1.
        attribution_rounds: of the sensitivity to protected features.
    """

    name: str = "full"
    epochs: int = 100
    num_runs: int = 100
    num_individuals: int | None = None
    paired_individuals: int | None = None
    num_epsilons: int = 10
    attribution_rounds: int = 100

    def individuals(self, data: str) -> int:
        """Per run and λ_energy."""
        if self.num_individuals is not None:
            return self.num_individuals
        return 250 if data in SYNTHETIC else 25 if data in IMAGES else 100

    def describe(self) -> str:
        return f"{self.epochs} epochs, {self.num_runs} evaluation runs"


FULL = Effort()
QUICK = Effort("quick", 20, 10, 50, 300, 4, 10)


@dataclass(frozen=True)
class Cell:
    """One training run and its evaluation; equal cells give equal results.

    Attributes:
        data: the paper's short name.
        objective: ``vanilla``, ``full``, ``divergence`` or ``adversarial``.
        protected: whether training knows the protected features.
        seed: of weights, draws and the validation split. Cells of one seed start from the same weights.
        effort: how much of it.
        changes: settings of :class:`TrainConfig` that differ from the published ones, as sorted pairs.
    """

    data: str
    objective: str
    protected: bool = False
    seed: int = 0
    effort: Effort = FULL
    changes: tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise InputError(unknown("objective", self.objective, OBJECTIVES))
        object.__setattr__(self, "data", short_name(self.data))

    @property
    def id(self) -> str:
        """A name that is safe for a folder, unique for the content."""
        content = json.dumps({"format": FORMAT, **asdict(self)}, sort_keys=True)
        digest = hashlib.sha256(content.encode()).hexdigest()[:10]
        return f"{self.label.replace(' ', '-')}-{digest}"

    @property
    def label(self) -> str:
        return f"{self.data} {self.model} seed {self.seed}"

    @property
    def model(self) -> str:
        """``vanilla``, ``full``, ``full protected``, …"""
        return f"{self.objective} protected" if self.protected else self.objective

    @property
    def settings_measured(self) -> tuple[str, ...]:
        """Constraints under which counterfactuals are searched at evaluation: the experiments that use this cell."""
        if self.protected:
            return ("protected",)
        return ("free", "protected") if self.objective == "vanilla" else ("free",)

    def setting(self, data: Dataset) -> Setting:
        """The published settings for this data set."""
        paper = data.settings
        constraints = data.training_constraints
        config = TrainConfig(
            epochs=self.effort.epochs,
            batch_size=paper.batch_size,
            num_counterfactuals=paper.num_counterfactuals,
            seed=self.seed,
        )
        return Setting(
            generator=ecco(decision_threshold=paper.decision_threshold),
            constraints=data.protect(constraints) if self.protected else constraints,
            objective=make_objective(self.objective, lambda_reg=paper.lambda_reg),
            config=replace(config, **_checked(dict(self.changes))),
        )

    @property
    def expected_cost(self) -> float:
        """Roughly how long the cell takes, in any unit: long ones start first, and the time left is guessed by it."""
        train, search = _COSTS[self.data]
        share = self.effort.epochs / FULL.epochs
        return 3 + share * (train + (search if self.objective != "vanilla" else 0.0))


# Seconds on one core: a conventional model with its evaluation, and what counterfactuals add to its training.
_COSTS = {
    "LS": (9, 9), "Circ": (9, 9), "Moon": (10, 10), "OL": (10, 12), "Adult": (30, 18), "CH": (7, 5), "Cred": (9, 9),
    "GMSC": (6, 8), "MNIST": (70, 85),
}  # fmt: skip


def short_name(data: str) -> str:
    """The paper's short name of a data set, given that or the catalogue's, in any case."""
    wanted = str(data).strip().lower().replace("-", "_").replace(" ", "_")
    for name, entry in CATALOG.items():
        if entry.short_name in _COSTS and wanted in (name, entry.short_name.lower()):
            return entry.short_name
    raise InputError(unknown("data set", data, [e.short_name for e in CATALOG.values() if e.short_name in _COSTS]))


def seeds_of(data: str, seeds: int | None) -> range:
    """Training seeds: as many as asked for; else five, and three of MNIST."""
    if seeds is not None and seeds < 1:
        raise InputError(f"seeds must be 1 or more, got {seeds}.")
    return range(seeds if seeds is not None else 3 if data in IMAGES else 5)


def make_cells(
    data: Iterable[str],
    models: Sequence[str],
    seeds: int | None = None,
    effort: Effort = FULL,
    changes: dict[str, Any] | None = None,
) -> list[Cell]:
    """One cell per data set, model (``"full"``, ``"full protected"``, …) and seed, in the paper's order."""
    pairs = tuple(sorted(_checked(changes or {}).items()))
    wanted = sorted({short_name(name) for name in data}, key=PAPER_ORDER.index)
    if not wanted:
        raise InputError(f"No data set named. Valid: {', '.join(PAPER_ORDER)}.")
    return [
        Cell(name, model.removesuffix(" protected"), model.endswith(" protected"), seed, effort, pairs)
        for name in wanted
        for model in models
        for seed in seeds_of(name, seeds)
    ]


def _checked(changes: dict[str, Any]) -> dict[str, Any]:
    TrainConfig.from_dict(changes)
    return changes
