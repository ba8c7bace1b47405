"""The paper's data sets: names, kinds, order; and every number it published, from
``paper/published.csv``.

Tables in it: ``main`` (reductions in %, with ± and asterisk), ``means`` (absolute values, and the
difference with its 99 % interval), ``unconstrained`` (cost reduction without protected features),
``validity``, ``attribution`` (median, 95 % interval), ``ablation`` and ``robustness`` (read off
figures: ``spread`` is the reading error, ``approximate`` marks values partly hidden in the figure),
``by_lambda`` and ``accuracy`` (printed only in a draft).

Sources: ``satml`` the final paper, ``preprint`` the version of July 2025, ``draft`` an earlier
    submission.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import pandas as pd

from counterfactual_training.datasets.catalog import CATALOG, catalog_key
from counterfactual_training.errors import check_name

SYNTHETIC = ("LS", "Circ", "Moon", "OL")
TABULAR = ("Adult", "CH", "Cred", "GMSC")
IMAGES = ("MNIST",)
PAPER_ORDER = (*SYNTHETIC, *TABULAR, *IMAGES)
# The models of the paper's tables: methods, and CT that knows the protected features. Its terms are
# told apart by the weights that are 0.
CONVENTIONAL = "conventional"
CT = "ct_published"
PROTECTED = "ct_published protected"
DIVERGENCE = "ct_published(lambda_adv=0)"
ADVERSARIAL = "ct_published(lambda_div=0, lambda_reg=0)"
# What the paper calls them, from table to table.
_PRINTED = {
    CONVENTIONAL: ("baseline", "vanilla"),
    CT: ("ct_published", "full"),
    DIVERGENCE: ("divergence",),
    ADVERSARIAL: ("adversarial",),
}
KEYS = ["table", "data", "metric", "quantity", "detail", "source"]  # of a published number
KINDS = {"synthetic": SYNTHETIC, "tabular": TABULAR, "images": IMAGES}


def kind_of(data: str) -> str:
    """``synthetic``, ``tabular`` or ``images``."""
    return next(kind for kind, names in KINDS.items() if data in names)


def num_classes(data: str) -> int:
    """Classes of one of the paper's data sets, without loading it: digits have ten."""
    if data in IMAGES:
        return 10
    return 2


def short_name(data: str) -> str:
    """The paper's short name of a data set, given that or the catalogue's, in any case."""
    short = {
        key: entry.short_name
        for entry in CATALOG.values()
        for key in (entry.name, entry.short_name.lower())
    }
    name = short.get(catalog_key(data), data)
    # The catalogue holds more than the paper's data sets: loan has no published settings.
    check_name("data set", name, PAPER_ORDER)
    return name


def in_paper_order(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of a table by data set in the paper's order, otherwise as they come."""
    place = {name: i for i, name in enumerate(PAPER_ORDER)}
    return table.sort_values(
        "data", key=lambda column: column.map(place), kind="stable"
    ).reset_index(drop=True)


@cache
def published_numbers() -> pd.DataFrame:
    """All of them, the printed averages (``Avg.``) included; not to be changed."""
    with (files("counterfactual_lab.paper") / "published.csv").open(encoding="utf-8") as file:
        frame = pd.read_csv(file, dtype={"detail": "str"})
    return frame.assign(detail=frame["detail"].fillna(""))


def published_value(
    table: str,
    data: str,
    metric: str,
    quantity: str,
    detail: str = "",
    source: str = "satml",
    column: str = "value",
) -> float:
    """One published number; NaN where the paper has none. The quantity may be a method."""
    numbers = published_numbers()
    others = [key for key in KEYS if key != "quantity"]
    wanted = pd.Series((table, data, metric, detail, source), others)
    named = numbers["quantity"].isin(_PRINTED.get(quantity, (quantity,)))
    rows = numbers[named & (numbers[others] == wanted).all(axis=1)]
    if len(rows):
        return float(rows[column].iloc[0])
    return float("nan")
