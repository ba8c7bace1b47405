"""The paper's nine data sets, its loan example and Fashion-MNIST behind one call, and what ``ct
data`` shows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, get_args

import torch

from counterfactual_training.constraints import Constraints
from counterfactual_training.datasets import synthetic
from counterfactual_training.datasets.dataset import Dataset, PaperSettings, Read, Variant
from counterfactual_training.datasets.download import fetch, present
from counterfactual_training.datasets.images import (
    FASHION_FILES,
    FASHION_TITLE,
    MNIST_FILES,
    MNIST_TITLE,
    load_fashion_mnist,
    load_mnist,
)
from counterfactual_training.datasets.sources import FILES, DataFile
from counterfactual_training.datasets.synthetic import (
    DATA_SEED,
    LOAN_CLASSES,
    LOAN_ORIGIN,
    LOAN_SCALE,
    Sampler,
    loan,
)
from counterfactual_training.datasets.tables import DOMAIN_NUM_STD, TABLES, Table, load_table
from counterfactual_training.errors import lookup
from counterfactual_training.tables.columns.feature import Feature

NUM_TRAIN = 3600
NUM_TEST = 900
LOAN_TITLE = "Loan applicants of Figure 1"
LOAN_FEATURES = (
    Feature("age", "integer", unit="years"),
    Feature("debt", "numeric", unit="thousand dollars"),
)


@dataclass(frozen=True)
class CatalogEntry:
    """A data set that can be loaded."""

    name: str
    short_name: str  #: in the paper's tables
    title: str
    #  names of the data files by variant; its keys are all variants
    files: dict[Variant, tuple[str, ...]]
    #  builds a variant, from a seed and what reads data files
    load: Callable[[Variant, int, Read], Dataset]


def load_dataset(
    name: str,
    variant: Variant = "default",
    *,
    seed: int = DATA_SEED,
    allow_download: bool = True,
) -> Dataset:
    """One of the paper's data sets, with its splits, scaling, encoding and protected features.

    Args:
        name: see :func:`list_datasets`; the paper's short names (LS, OL, Circ, Moon, CH, Cred, …)
            work in any case.
        variant: ``default``, the paper's rows with correct one-hot groups; ``as_run``, the same
            with the quirks that affected the published numbers (Adult's ``education_num`` is one of
            the levels of ``education``; categories are projected after every search step at
            evaluation and ignored in training); ``full``, all rows of the source: Adult with its
            own test file, the others split 80 : 20 in a fixed random order, missing values of Give
            Me Some Credit replaced by the training median.
        seed: of the points drawn for a synthetic set; the others are fixed.
        allow_download: whether a file that is neither in ``CT_DATA_HOME`` nor in the cache may be
            downloaded.

    Examples:
        >>> import counterfactual_training as ct
        >>> ct.load_dataset("moons")
        Dataset 'moons' (default): Two interlocking half moons
          3,600 rows to train, 900 to test
          2 features, protected: x1
          2 classes: upper 50.0%, lower 50.0%
        >>> ct.load_dataset("circles", seed=1).x_train.shape
        torch.Size([3600, 2])
    """
    entry = _entry(name)
    files = {file.name: file for file in _files(entry, variant)}
    return entry.load(
        variant, seed, lambda file: fetch(files[file], allow_download=allow_download).content
    )


def list_datasets() -> list[dict[str, Any]]:
    """For ``ct data list``: names, title, variants, and ``ready``, the variants whose files are on
    this machine.
    """
    return [
        {
            "name": entry.name,
            "short_name": entry.short_name,
            "title": entry.title,
            "variants": list(entry.files),
            "ready": [
                v
                for v, files in entry.files.items()
                if all(present(FILES[file]) for file in files)
            ],
        }
        for entry in CATALOG.values()
    ]


def dataset_info(
    name: str, variant: Variant = "default", *, allow_download: bool = True
) -> dict[str, Any]:
    """For ``ct data info``: :meth:`Dataset.info`, the names, and the files with their terms."""
    entry = _entry(name)
    files = _files(entry, variant)
    return {
        **load_dataset(name, variant, allow_download=allow_download).info(),
        "short_name": entry.short_name,
        "variants": list(entry.files),
        "files": [
            {"file": file.name, "path": str(present(file)), "terms": file.terms}
            for file in files
        ],
    }


def fetch_dataset(name: str, variant: Variant = "default") -> list[dict[str, str]]:
    """For ``ct data fetch``: download what is missing; for each file, where it is and where it came
    from.
    """
    files = [(file.name, fetch(file)) for file in _files(_entry(name), variant)]
    return [
        {"file": file, "path": str(where.path), "origin": where.origin} for file, where in files
    ]


def catalog_key(name: str) -> str:
    """A data set's name or short name as users write it, in the form in which it is looked up."""
    return str(name).strip().lower().replace("-", "_").replace(" ", "_")


def _entry(name: str) -> CatalogEntry:
    aliases = {entry.short_name.lower(): entry for entry in CATALOG.values()}
    return lookup("data set", catalog_key(name), {**CATALOG, **aliases})


def _files(entry: CatalogEntry, variant: Variant) -> list[DataFile]:
    return [
        FILES[file] for file in lookup(f"variant of {entry.name}:", str(variant), entry.files)
    ]


def _synthetic(
    name: str,
    short: str,
    title: str,
    sampler: Sampler,
    classes: tuple[str, str],
    tau: float,
    reg: float,
) -> CatalogEntry:
    def load(variant: Variant, seed: int, read: Read) -> Dataset:
        # Samplers return the classes in random order, so the first rows are a fair split.
        x, y = sampler(NUM_TRAIN + NUM_TEST, torch.Generator().manual_seed(seed))
        constraints = Constraints.infer(
            x[:NUM_TRAIN], num_std=DOMAIN_NUM_STD, names=("x1", "x2")
        )
        return Dataset(
            name=name,
            title=title,
            variant=variant,
            x_train=x[:NUM_TRAIN],
            y_train=y[:NUM_TRAIN],
            x_test=x[NUM_TRAIN:],
            y_test=y[NUM_TRAIN:],
            class_names=classes,
            feature_names=("x1", "x2"),
            features=(Feature("x1", "numeric"), Feature("x2", "numeric")),
            encoder=None,
            constraints=constraints,
            training_constraints=constraints,
            protected=(0,),
            settings=PaperSettings(30, tau, reg, 1000, 600),
        )

    return CatalogEntry(name, short, title, {"default": (), "as_run": ()}, load)


def loan_dataset(num_train: int = 1000, num_test: int = 400, seed: int = DATA_SEED) -> Dataset:
    """Applicants in the user's units; in model space, the blobs of ``linearly_separable``, as in
    the paper.
    """
    # Here, because the other synthetic sets need no encoder.
    from counterfactual_training.tables.columns.encode import Encoder
    from counterfactual_training.tables.columns.schema import Schema

    schema = Schema(LOAN_FEATURES)
    sample = loan(num_train + num_test, torch.Generator().manual_seed(seed))
    train = sample.frame.iloc[:num_train]
    test = sample.frame.iloc[num_train:].reset_index(drop=True)
    encoder = Encoder(schema).fit(train)
    # The scale of the sampler instead of z-scores. Standardising would make *age* as informative as
    # *debt*. Counterfactuals with a fixed age would then overshoot the debts of class "loan
    # granted", and protecting age would make the model less sensitive to debt, not more.
    scales = zip(encoder.columns_, LOAN_ORIGIN, LOAN_SCALE, strict=True)
    encoder.columns_ = [
        replace(column, center=center, scale=scale) for column, center, scale in scales
    ]
    x_train, x_test = (
        torch.from_numpy(encoder.transform(part)).float() for part in (train, test)
    )
    constraints = Constraints.infer(x_train, names=schema.names)
    return Dataset(
        name="loan",
        title=LOAN_TITLE,
        variant="default",
        x_train=x_train,
        y_train=sample.y[:num_train],
        x_test=x_test,
        y_test=sample.y[num_train:],
        class_names=LOAN_CLASSES,
        feature_names=schema.names,
        features=LOAN_FEATURES,
        encoder=encoder,
        constraints=constraints,
        training_constraints=constraints,
        protected=(0,),
        settings=PaperSettings(50, 0.75, 0.01, 1000, num_validation=0),
        _frames=(train, test),
    )


def _table(table: Table) -> CatalogEntry:
    files: dict[Variant, tuple[str, ...]] = {
        "default": table.files,
        "as_run": table.files,
        "full": table.full_files,
    }
    return CatalogEntry(
        table.name,
        table.short_name,
        table.title,
        files,
        lambda variant, seed, read: load_table(table, variant, read),
    )


def _images(
    name: str,
    short: str,
    title: str,
    files: tuple[str, ...],
    load: Callable[[Variant, Read], Dataset],
) -> CatalogEntry:
    return CatalogEntry(
        name,
        short,
        title,
        dict.fromkeys(get_args(Variant), files),
        lambda variant, seed, read: load(variant, read),
    )


_BLOBS = ("lower right", "upper left")
_ENTRIES = (
    CatalogEntry(
        "loan",
        "loan",
        LOAN_TITLE,
        {"default": ()},
        lambda variant, seed, read: loan_dataset(seed=seed),
    ),
    _synthetic(
        "linearly_separable",
        "LS",
        "Two distant Gaussian blobs",
        synthetic.linearly_separable,
        _BLOBS,
        0.5,
        0.01,
    ),
    _synthetic(
        "overlapping",
        "OL",
        "Two overlapping Gaussian blobs",
        synthetic.overlapping,
        _BLOBS,
        0.5,
        0.25,
    ),
    _synthetic(
        "circles",
        "Circ",
        "A blob inside a circle",
        synthetic.circles,
        ("inner", "outer"),
        0.5,
        0.5,
    ),
    _synthetic(
        "moons",
        "Moon",
        "Two interlocking half moons",
        synthetic.moons,
        ("upper", "lower"),
        0.9,
        0.25,
    ),
    *map(_table, TABLES),
    _images("mnist", "MNIST", MNIST_TITLE, MNIST_FILES, load_mnist),
    _images("fashion_mnist", "Fashion", FASHION_TITLE, FASHION_FILES, load_fashion_mnist),
)

CATALOG = MappingProxyType({entry.name: entry for entry in _ENTRIES})
