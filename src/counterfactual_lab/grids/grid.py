"""A grid: the product of lists of settings, on each data set, from each seed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from counterfactual_lab.grids.grid_run import GridRun, Measurement
from counterfactual_lab.grids.settings import (
    CONVENTIONAL,
    Settings,
    conventional_of,
    grid_method,
    usual,
)
from counterfactual_lab.paper_data import IMAGES, kind_of, short_name
from counterfactual_lab.runs.run import as_tuples, digest
from counterfactual_training.datasets.dataset import PaperSettings
from counterfactual_training.errors import InputError

QUICK_EPOCHS = 0.1
QUICK_RUNS = 2
QUICK_INDIVIDUALS = 50
_PAIR = {"ct_published", CONVENTIONAL}


@dataclass(frozen=True)
class Point:
    """One setting of a grid.

    Attributes:
        seed: the grid's; the model's own may differ, see :class:`Grid`.
        values: what the grid says of this setting, by dotted name.
        run: the model.
        conventional: the conventional model of the same shape and seed that it is compared with;
            it has no gate.
    """

    data: str
    seed: int
    values: tuple[tuple[str, Any], ...]
    run: GridRun
    conventional: GridRun


@dataclass(frozen=True)
class Grid:
    """The Cartesian product of lists of settings, on each data set, from each seed.

    Attributes:
        values: by dotted name, one value or several; settings that are not named are as published
            for the data set.
        own_seeds: every setting trains from a seed of its own, derived from its content and shared
            only with its conventional model and with settings that differ in their gate; otherwise
            all settings train from the same seeds, and those that lead to the same numbers (an
            energy penalty without ECCo, say) share one model.
        quick: whether it was shortened for a quick look.
        image_seeds: seeds of image data sets, if others.
        individuals: by kind of data, evaluation individuals per run; otherwise the protocol's
            number.
        changes: what the user changed in the grid's file, by dotted name.
    """

    name: str
    title: str
    data: tuple[str, ...]
    seeds: tuple[int, ...]
    values: tuple[tuple[str, tuple[Any, ...]], ...]
    measurement: Measurement = field(default_factory=Measurement)
    own_seeds: bool = False
    quick: bool = False
    image_seeds: tuple[int, ...] | None = None
    individuals: tuple[tuple[str, int], ...] = ()
    changes: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def from_content(cls, content: Mapping[str, Any]) -> Grid:
        """A grid from what ``dataclasses.asdict`` made of it, also after a trip through JSON."""
        return cls(
            **{
                **as_tuples(content),
                "measurement": Measurement.from_content(content["measurement"]),
            }
        )

    @property
    def axes(self) -> dict[str, tuple[Any, ...]]:
        """The settings that vary; whether counterfactuals are used at all is not one of them."""
        return {
            k: v
            for k, v in self.values
            if len(v) > 1 and not (k == "method" and set(v) <= _PAIR)
        }

    @property
    def num_settings(self) -> int:
        """Per data set and seed, counted without making them."""
        return math.prod(len(values) for _, values in self.values)

    @property
    def num_points(self) -> int:
        return self.num_settings * sum(len(self.seeds_of(data)) for data in self.data)

    @property
    def alone(self) -> bool:
        """Whether its models train one by one."""
        return True in dict(self.values).get("alone", ())

    @property
    def id(self) -> str:
        """Its name, and a checksum of its content."""
        return f"{self.name}-{digest(asdict(self))[:8]}"

    def seeds_of(self, data: str) -> tuple[int, ...]:
        if self.image_seeds is not None and data in IMAGES:
            return self.image_seeds
        return self.seeds

    def changed(
        self, data: Sequence[str] | None = None, seeds: int | None = None, quick: bool = False
    ) -> Grid:
        """The same grid on other data, from other seeds, or shortened for a quick look."""
        out = self
        if data:
            out = replace(out, data=tuple(dict.fromkeys(short_name(name) for name in data)))
        if seeds is not None:
            if seeds < 1:
                raise InputError(f"seeds must be 1 or more, got {seeds}.")
            out = replace(out, seeds=tuple(range(seeds)), image_seeds=None)
        if quick and not self.quick:
            return out._shortened()
        return out

    def _shortened(self) -> Grid:
        values = dict(self.values)
        epochs = values.get("training.epochs", (100,))
        values["training.epochs"] = tuple(
            max(1, round(QUICK_EPOCHS * number)) for number in epochs
        )
        protocol = replace(
            self.measurement.protocol, num_runs=QUICK_RUNS, num_individuals=QUICK_INDIVIDUALS
        )
        measurement = replace(self.measurement, protocol=protocol)
        return replace(
            self,
            values=tuple(values.items()),
            measurement=measurement,
            quick=True,
            individuals=(),
        )

    def points(self, paper: Mapping[str, PaperSettings]) -> Iterator[Point]:
        """All settings, given the published ones of each data set."""
        names = [name for name, _ in self.values]
        for data in self.data:
            for seed in self.seeds_of(data):
                for chosen in itertools.product(*(values for _, values in self.values)):
                    values = dict(zip(names, chosen, strict=True))
                    yield self.point(data, seed, paper[data], values)

    def point(self, data: str, seed: int, paper: PaperSettings, chosen: Settings) -> Point:
        """One combination of the grid's values, the rest by default."""
        values = usual(chosen)
        plain = {**values, "gate": "none"}
        method = grid_method(values, paper)
        # A gate is fitted to a model: those that differ in their gate only train from the same
        # seed.
        if self.own_seeds:
            settings = {name: value for name, value in plain.items() if name != "method"}
            # Seven hexadecimal digits: a seed that every library takes.
            run_seed = int(digest({"seed": seed, "data": data, **settings})[:7], 16)
        else:
            run_seed = seed
        measurement = self._measurement_of(data)
        conventional = conventional_of(values, paper)
        return Point(
            data,
            seed,
            tuple(chosen.items()),
            GridRun.from_method(data, run_seed, method, values, measurement),
            GridRun.from_method(data, run_seed, conventional, plain, measurement),
        )

    def _measurement_of(self, data: str) -> Measurement:
        if self.individuals:
            count = dict(self.individuals).get(kind_of(data))
        else:
            count = None
        if count is None:
            return self.measurement
        return replace(
            self.measurement, protocol=replace(self.measurement.protocol, num_individuals=count)
        )


def runs_of(points: Sequence[Point]) -> list[GridRun]:
    """Each model once, conventional ones included."""
    return list(
        dict.fromkeys(run for point in points for run in (point.conventional, point.run))
    )
