"""Methods, data and seeds of a comparison: its runs, and the store that keeps them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from counterfactual_lab.grids.file import load_grid
from counterfactual_lab.paper_data import IMAGES, PAPER_ORDER, num_classes, short_name
from counterfactual_lab.runs.outcome import Outcome, check_versions
from counterfactual_lab.runs.run import Run
from counterfactual_lab.runs.store import Store
from counterfactual_lab.truth.caps import Caps
from counterfactual_lab.truth.entrants import Compared
from counterfactual_training.datasets.dataset import Dataset

_SEEDS = 5  # of data that is not the paper's
_REAL_ROWS = "real rows"


@dataclass(frozen=True)
class Comparison:
    """Methods x data x seeds, and where the results are.

    Attributes:
        root: folder of finished runs, see :class:`Store`; grows. What is finished is not made
            again, even if the code of a method changes: use another folder, or delete its files.
        data: data sets, or names of the paper's; by default all nine of them.
        seeds: training seeds; by default those of the paper's main table.
        methods: those compared, see :mod:`entrants`.
        on_test: measure on the test rows instead of rows cut from the training rows.
    """

    root: str | Path
    data: Sequence[str | Dataset] | None = None
    seeds: int | None = None
    methods: Sequence[str] | None = None
    on_test: bool = False
    caps: Caps = field(default_factory=Caps)

    protocol: ClassVar[str]

    @property
    def names(self) -> list[str]:
        """The texts of all methods that are compared, in order."""
        raise NotImplementedError

    @property
    def store(self) -> Store:
        return Store(self.root)

    def missing(self, jobs: Sequence[tuple[Run, ...]]) -> list[tuple[Run, ...]]:
        """The unfinished runs of each job; raises if finished ones were made by other versions."""
        store = self.store
        finished = store.done()
        done = [run for job in jobs for run in job if run.id in finished]
        outcomes = [Outcome(run, origin=store.content(run.id)["made"]) for run in done]
        check_versions(outcomes, current=True)
        unfinished = [tuple(run for run in job if run.id not in finished) for job in jobs]
        return [job for job in unfinished if job]

    @cached_property
    def user_datasets(self) -> dict[str, Dataset]:
        """Data sets that are not the paper's, by name."""
        return {data.name: data for data in self.data or () if isinstance(data, Dataset)}

    @cached_property
    def seeds_of(self) -> dict[str, list[int]]:
        """Training seeds by data set, the paper's first and in its order."""
        if self.data is None:
            names = None
        else:
            names = [short_name(name) for name in self.data if isinstance(name, str)]
        grid = load_grid("main").changed(names, self.seeds)
        paper = [name for name in PAPER_ORDER if names is None or name in names]
        seeds = {name: list(grid.seeds_of(name)) for name in paper if name in grid.data}
        return seeds | {name: list(range(self.seeds or _SEEDS)) for name in self.user_datasets}

    @property
    def order(self) -> list[str]:
        """The data sets as they are worked on: images take longest, so they start first."""
        return sorted(self.seeds_of, key=lambda name: name not in IMAGES)

    def methods_of(self, data: str) -> list[str]:
        """The methods that can be made of such data."""
        if data in self.user_datasets:
            classes = self.user_datasets[data].num_classes
        else:
            classes = num_classes(data)
        return [name for name in self.names if Compared.of(name).takes(classes, data in IMAGES)]

    @property
    def kind_of_rows(self) -> str:
        if self.on_test:
            return "test"
        return "tuning"

    def run(self, data: str, seed: int, method: str) -> Run:
        """The run of a method, known by everything that decides its numbers."""
        return self._run(data, seed, method, self.measurement(data))

    def floors(self, data: str) -> Run:
        """The run without a model: what real rows, unmoved people and neighbours are judged by."""
        return self._run(data, 0, _REAL_ROWS, {})

    def _run(self, data: str, seed: int, method: str, measurement: dict[str, Any]) -> Run:
        rows = {"rows": self.kind_of_rows, "caps": tuple(sorted(asdict(self.caps).items()))}
        if data in self.user_datasets:
            # The same file may hold other rows tomorrow.
            rows["content"] = self._digests[data]
        measured = {"protocol": self.protocol, **rows, **measurement}
        return Run(data, seed, (("method", method),), tuple(sorted(measured.items())))

    def measurement(self, data: str) -> dict[str, Any]:
        """What else decides the numbers of a run."""
        raise NotImplementedError

    @cached_property
    def _digests(self) -> dict[str, str]:
        return {name: _digest(dataset) for name, dataset in self.user_datasets.items()}


def _digest(data: Dataset) -> str:
    rules = json.dumps(data.schema.to_dict(), sort_keys=True, default=str).encode()
    parts = [
        t.contiguous().numpy().tobytes()
        for t in (data.x_train, data.y_train, data.x_test, data.y_test)
    ]
    return hashlib.sha256(b"".join([*parts, rules])).hexdigest()[:20]
