"""A grid is a product of settings; each of its points is a model to train, known by the content of its settings."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from counterfactual_training.datasets.dataset import PaperSettings
from counterfactual_training.errors import InputError
from counterfactual_training.evaluation.protocol import PUBLISHED, EvaluationProtocol
from counterfactual_training.experiments.grid.settings import Settings, canonical, is_conventional, published
from counterfactual_training.experiments.paper.cells import short_name

# Raised whenever results of older code must not be mixed with new ones.
FORMAT = 1
ROWS = ("train", "validation", "test")
QUICK_EPOCHS, QUICK_RUNS, QUICK_INDIVIDUALS = 0.1, 2, 50
# Shared by the cells of one fleet; all else may differ from member to member.
_SHAPE = (
    "model.hidden",
    "model.activation",
    "training.batch_size",
    "training.epochs",
    "training.num_counterfactuals",
    "training.refresh",
    "training.shuffle",
    "training.target_rule",
    "training.adversarial_label",
    "training.immature",
)


# The published protocol with the paper's numbers for grids (Note 2).
PROTOCOL = replace(PUBLISHED, num_individuals=100, num_runs=5, attacks=("fgsm",), attribution_rounds=0)


@dataclass(frozen=True)
class Measurement:
    """How the models of a grid are measured.

    Attributes:
        on: rows whose counterfactuals are searched. The paper took training rows, so that test rows stay unseen by
            whoever picks a setting; accuracy is always that of test rows, as in the paper.
        protected: whether the protected features are immutable in these searches.
        protocol: everything else.
    """

    on: str = "train"
    protected: bool = False
    protocol: EvaluationProtocol = PROTOCOL


@dataclass(frozen=True)
class GridCell:
    """One model: all that decides its numbers, and nothing else. Equal cells give equal results.

    Attributes:
        settings: as :func:`canonical` leaves them, sorted by name.
        seed: of the weights and the draws of training.
    """

    data: str
    seed: int
    settings: tuple[tuple[str, Any], ...]
    measurement: Measurement = Measurement()

    @classmethod
    def of(cls, data: str, seed: int, settings: Settings, measurement: Measurement) -> GridCell:
        return cls(data, seed, tuple(sorted(canonical(settings).items())), measurement)

    def content(self) -> dict[str, Any]:
        """The cell as plain values."""
        return {
            "data": self.data,
            "seed": self.seed,
            "settings": dict(self.settings),
            "measurement": asdict(self.measurement),
        }

    @cached_property
    def id(self) -> str:
        """A name that is safe for a file, and different for any other content."""
        return f"{self.data}-{digest({'format': FORMAT, **self.content()})[:20]}"

    @cached_property
    def values(self) -> Settings:
        return dict(self.settings)

    @property
    def is_conventional(self) -> bool:
        """Whether it is trained without counterfactuals."""
        return is_conventional(self.values)

    @property
    def gate(self) -> str:
        """Kind of the gate that is fitted to the trained model, or ``"none"``."""
        return str(self.values.get("gate", "none"))

    @cached_property
    def ungated(self) -> GridCell:
        """What is trained; a gate comes after."""
        return replace(self, settings=tuple(pair for pair in self.settings if pair[0] != "gate"))

    @property
    def shape(self) -> tuple[Any, ...]:
        """What all members of a fleet have in common."""
        return (self.data, self.measurement, *(self.values[name] for name in _SHAPE))

    @property
    def generator(self) -> str:
        """Name of the generator; empty for a baseline."""
        return str(self.values.get("generator.name", ""))


@dataclass(frozen=True)
class Point:
    """One setting of a grid.

    Attributes:
        seed: the grid's; the model's own may differ, see :class:`Grid`.
        values: what the grid says of this setting, by dotted name.
        cell: the model.
        baseline: the conventional model of the same shape and seed that it is compared with; it has no gate.
    """

    data: str
    seed: int
    values: tuple[tuple[str, Any], ...]
    cell: GridCell
    baseline: GridCell


@dataclass(frozen=True)
class Grid:
    """The Cartesian product of lists of settings, on each data set, from each seed.

    Attributes:
        values: by dotted name, one value or several; what is not named is as published for the data set.
        own_seeds: every setting trains from a seed of its own, derived from its content and shared only with its
            baseline and with settings that differ by their gate; else all settings train from the same seeds, and those
            that decide the same numbers (an energy penalty without ECCo, say) share one model.
        quick: whether it was shortened to a taste.
    """

    name: str
    title: str
    data: tuple[str, ...]
    seeds: tuple[int, ...]
    values: tuple[tuple[str, tuple[Any, ...]], ...]
    measurement: Measurement = Measurement()
    own_seeds: bool = False
    quick: bool = False

    @property
    def axes(self) -> dict[str, tuple[Any, ...]]:
        """The settings that vary; whether counterfactuals are used at all is not one of them."""
        return {k: v for k, v in self.values if len(v) > 1 and not (k == "objective.name" and set(v) <= _PAIR)}

    @property
    def num_settings(self) -> int:
        """Per data set and seed, counted without making them."""
        return math.prod(len(values) for _, values in self.values)

    @property
    def num_points(self) -> int:
        return self.num_settings * len(self.data) * len(self.seeds)

    def changed(self, data: Sequence[str] | None = None, seeds: int | None = None, quick: bool = False) -> Grid:
        """The same grid on other data, from other seeds, or shortened to a taste."""
        out = self
        if data:
            out = replace(out, data=tuple(dict.fromkeys(short_name(name) for name in data)))
        if seeds is not None:
            if seeds < 1:
                raise InputError(f"seeds must be 1 or more, got {seeds}.")
            out = replace(out, seeds=tuple(range(seeds)))
        return out._shortened() if quick else out

    def _shortened(self) -> Grid:
        values = dict(self.values)
        epochs = values.get("training.epochs", (100,))
        values["training.epochs"] = tuple(max(1, round(QUICK_EPOCHS * number)) for number in epochs)
        protocol = replace(self.measurement.protocol, num_runs=QUICK_RUNS, num_individuals=QUICK_INDIVIDUALS)
        measurement = replace(self.measurement, protocol=protocol)
        return replace(self, values=tuple(values.items()), measurement=measurement, quick=True)

    def points(self, paper: Mapping[str, PaperSettings]) -> Iterator[Point]:
        """All settings, given the published ones of each data set."""
        names = [name for name, _ in self.values]
        for data in self.data:
            default = published(paper[data])
            for seed in self.seeds:
                for chosen in itertools.product(*(values for _, values in self.values)):
                    yield self.point(data, seed, default, dict(zip(names, chosen, strict=True)))

    def point(self, data: str, seed: int, default: Settings, chosen: Settings) -> Point:
        """One combination of the grid's values, the rest by default."""
        settings = {**default, **chosen}
        # A gate is fitted to a model: those that differ by it alone train from the same seed.
        conventional = {k: v for k, v in settings.items() if k != "gate"} | {"objective.name": "vanilla"}
        own = _derived(seed, data, conventional) if self.own_seeds else seed
        return Point(
            data,
            seed,
            tuple(chosen.items()),
            GridCell.of(data, own, settings, self.measurement),
            GridCell.of(data, own, conventional, self.measurement),
        )


_PAIR = {"full", "vanilla"}


def grid_from(content: Mapping[str, Any]) -> Grid:
    """A grid from what ``dataclasses.asdict`` made of it, after a trip through JSON."""
    measurement = content["measurement"]
    measurement = Measurement(**{**measurement, "protocol": EvaluationProtocol(**_tuples(measurement["protocol"]))})
    return Grid(**{**_tuples(content), "measurement": measurement})


def _tuples(content: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _tuple(value) for name, value in content.items()}


def _tuple(value: Any) -> Any:
    return tuple(map(_tuple, value)) if isinstance(value, list) else value


def cells_of(points: Sequence[Point]) -> list[GridCell]:
    """Each model once, baselines included."""
    return list(dict.fromkeys(cell for point in points for cell in (point.baseline, point.cell)))


def _derived(seed: int, data: str, settings: Settings) -> int:
    return int(digest({"seed": seed, "data": data, **settings})[:7], 16)


def digest(content: Mapping[str, Any]) -> str:
    """A checksum of plain values."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
