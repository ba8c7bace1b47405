"""The paper's data sets: names, kinds, order."""

from __future__ import annotations

import pandas as pd

from counterfactual_training.datasets.catalog import CATALOG, catalog_key
from counterfactual_training.errors import check_name

SYNTHETIC = ("LS", "Circ", "Moon", "OL")
TABULAR = ("Adult", "CH", "Cred", "GMSC")
IMAGES = ("MNIST",)
PAPER_ORDER = (*SYNTHETIC, *TABULAR, *IMAGES)
KINDS = {"synthetic": SYNTHETIC, "tabular": TABULAR, "images": IMAGES}


def kind_of(data: str) -> str:
    """``synthetic``, ``tabular`` or ``images``."""
    return next(kind for kind, names in KINDS.items() if data in names)


def short_name(data: str) -> str:
    """The paper's short name of a data set, given that or the catalogue's, in any case."""
    short = {key: entry.short_name for entry in CATALOG.values() for key in (entry.name, entry.short_name.lower())}
    name = short.get(catalog_key(data), data)
    # The catalogue holds more than the paper's data sets: loan has no published settings.
    check_name("data set", name, PAPER_ORDER)
    return name


def in_paper_order(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of a table by data set in the paper's order, otherwise as they come."""
    place = {name: i for i, name in enumerate(PAPER_ORDER)}
    return table.sort_values("data", key=lambda column: column.map(place), kind="stable").reset_index(drop=True)
