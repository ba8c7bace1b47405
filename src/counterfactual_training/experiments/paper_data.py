"""The paper's data sets: names, kinds, order, number of training seeds."""

from __future__ import annotations

from counterfactual_training.datasets.catalog import CATALOG
from counterfactual_training.errors import InputError, unknown

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
    wanted = str(data).strip().lower().replace("-", "_").replace(" ", "_")
    for name, entry in CATALOG.items():
        # The catalogue holds more than the paper's data sets: loan has no published settings.
        if wanted in (name, entry.short_name.lower()) and entry.short_name in PAPER_ORDER:
            return entry.short_name
    raise InputError(unknown("data set", data, PAPER_ORDER))


def seeds_of(data: str, seeds: int | None) -> range:
    """Training seeds: as many as asked for; by default five, and three for MNIST."""
    if seeds is not None and seeds < 1:
        raise InputError(f"seeds must be 1 or more, got {seeds}.")
    return range(seeds if seeds is not None else 3 if data in IMAGES else 5)
