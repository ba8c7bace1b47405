"""The paper's nine data sets behind one call, and what the command line says about them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

from counterfactual_training.constraints import Constraints
from counterfactual_training.datasets.dataset import Dataset, PaperSettings, Variant
from counterfactual_training.datasets.download import fetch, present
from counterfactual_training.datasets.images import MNIST_FILES, MNIST_TITLE, load_mnist
from counterfactual_training.datasets.sources import data_file
from counterfactual_training.datasets.synthetic import (
    DATA_SEED,
    Sampler,
    circles,
    linearly_separable,
    moons,
    overlapping,
)
from counterfactual_training.datasets.tables import DOMAIN_NUM_STD, TABLES, Table, load_table
from counterfactual_training.errors import InputError, unknown
from counterfactual_training.tabular.feature import Feature
from counterfactual_training.tabular.schema import Schema

NUM_TRAIN, NUM_TEST = 3600, 900

Read = Callable[[str], bytes]


@dataclass(frozen=True)
class Entry:
    """A data set that can be loaded.

    Attributes:
        short_name: in the paper's tables.
        files: names of the data files that each variant needs; its keys are the variants there are.
        load: builds a variant, given a seed and a way to read data files.
    """

    name: str
    short_name: str
    title: str
    files: dict[Variant, tuple[str, ...]]
    load: Callable[[Variant, int, Read], Dataset]


def load_dataset(
    name: str, variant: Variant = "default", *, seed: int = DATA_SEED, allow_download: bool = True
) -> Dataset:
    """One of the paper's data sets, with its splits, scaling, encoding and protected features.

    Args:
        name: see :func:`list_datasets`; the paper's short names (LS, OL, Circ, Moon, CH, Cred, …) in any case.
        variant: ``default``, the paper's rows with every one-hot group as it should be; ``as_run``, the same with the
            quirks that moved the published numbers (Adult's ``education_num`` counted among the levels of
            ``education``; categories projected after every search step at evaluation and ignored in training);
            ``full``, all rows of the source: Adult with its own test file, the others cut 80 : 20 in a fixed random
            order, missing values of Give Me Some Credit replaced by the training median.
        seed: of the points drawn for a synthetic set; the others are fixed.
        allow_download: whether a file that is neither in ``CT_DATA_HOME`` nor in the cache may be fetched.
    """
    entry = _entry(name)
    files = _files(entry, variant)
    siblings = [data_file(file) for file in files]

    def read(file: str) -> bytes:
        if file not in files:
            raise InputError(f"{entry.name} ({variant}) has no file {file!r}.")
        return fetch(data_file(file), allow_download=allow_download, siblings=siblings).content

    return entry.load(variant, seed, read)


def list_datasets() -> list[dict[str, Any]]:
    """For ``ct data list``: name, short name, title, variants, and the variants whose files are on this machine."""
    return [
        {
            "name": entry.name,
            "short_name": entry.short_name,
            "title": entry.title,
            "variants": list(entry.files),
            "ready": [v for v, files in entry.files.items() if all(present(data_file(file)) for file in files)],
        }
        for entry in CATALOG.values()
    ]


def dataset_info(name: str, variant: Variant = "default", *, allow_download: bool = True) -> dict[str, Any]:
    """For ``ct data info``: what :meth:`Dataset.info` says, the names, and the files with their terms."""
    entry = _entry(name)
    info = load_dataset(name, variant, allow_download=allow_download).info()
    files = [data_file(file) for file in _files(entry, variant)]
    return {
        **info,
        "short_name": entry.short_name,
        "variants": list(entry.files),
        "files": [{"file": file.name, "path": str(present(file)), "terms": file.terms} for file in files],
    }


def fetch_dataset(name: str, variant: Variant = "default") -> list[dict[str, str]]:
    """For ``ct data fetch``: have every file of the data set on this machine; where each is and came from."""
    files = [data_file(file) for file in _files(_entry(name), variant)]
    found = [(file.name, fetch(file, siblings=files)) for file in files]
    return [{"file": file, "path": str(where.path), "origin": where.origin} for file, where in found]


def dataset_names() -> tuple[str, ...]:
    """The nine names."""
    return tuple(CATALOG)


def _entry(name: str) -> Entry:
    wanted = str(name).strip().lower().replace("-", "_").replace(" ", "_")
    for entry in CATALOG.values():
        if wanted in (entry.name, entry.short_name.lower()):
            return entry
    shorts = [entry.short_name for entry in CATALOG.values() if entry.short_name.lower() != entry.name]
    raise InputError(unknown("data set", wanted, [*CATALOG, *shorts]))


def _files(entry: Entry, variant: Variant) -> tuple[str, ...]:
    if not isinstance(variant, str) or variant not in entry.files:
        raise InputError(unknown(f"variant of {entry.name}:", variant, entry.files))
    return entry.files[variant]


def _synthetic(
    name: str, short: str, title: str, sampler: Sampler, classes: tuple[str, str], tau: float, reg: float
) -> Entry:
    settings = PaperSettings(30, tau, reg, 1000, 600)

    def load(variant: Variant, seed: int, read: Read) -> Dataset:
        x, y = sampler(NUM_TRAIN + NUM_TEST, torch.Generator().manual_seed(seed))
        x_train = x[:NUM_TRAIN]
        constraints = Constraints.infer(x_train, num_std=DOMAIN_NUM_STD, names=("x1", "x2"))
        return Dataset(
            name=name,
            title=title,
            variant=variant,
            x_train=x_train,
            y_train=y[:NUM_TRAIN],
            x_test=x[NUM_TRAIN:],
            y_test=y[NUM_TRAIN:],
            class_names=classes,
            feature_names=("x1", "x2"),
            schema=Schema((Feature("x1", "numeric"), Feature("x2", "numeric"))),
            encoder=None,
            constraints=constraints,
            training_constraints=constraints,
            protected=(0,),
            settings=settings,
        )

    return Entry(name, short, title, {"default": (), "as_run": ()}, load)


def _table(table: Table, short: str) -> Entry:
    def load(variant: Variant, seed: int, read: Read) -> Dataset:
        return load_table(table, variant, read)

    files: dict[Variant, tuple[str, ...]] = {"default": table.files, "as_run": table.files, "full": table.full_files}
    return Entry(table.name, short, table.title, files, load)


def _mnist() -> Entry:
    def load(variant: Variant, seed: int, read: Read) -> Dataset:
        return load_mnist(variant, read)

    files: dict[Variant, tuple[str, ...]] = {"default": MNIST_FILES, "as_run": MNIST_FILES, "full": MNIST_FILES}
    return Entry("mnist", "MNIST", MNIST_TITLE, files, load)


_ENTRIES = (
    _synthetic(
        "linearly_separable",
        "LS",
        "Two distant Gaussian blobs",
        linearly_separable,
        ("lower right", "upper left"),
        0.5,
        0.01,
    ),
    _synthetic(
        "overlapping", "OL", "Two overlapping Gaussian blobs", overlapping, ("lower right", "upper left"), 0.5, 0.25
    ),
    _synthetic("circles", "Circ", "A blob inside a circle", circles, ("inner", "outer"), 0.5, 0.5),
    _synthetic("moons", "Moon", "Two interlocking half moons", moons, ("upper", "lower"), 0.9, 0.25),
    *(_table(table, short) for table, short in zip(TABLES, ("Adult", "CH", "Cred", "GMSC"), strict=True)),
    _mnist(),
)

CATALOG = MappingProxyType({entry.name: entry for entry in _ENTRIES})
