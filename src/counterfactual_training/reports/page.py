"""Pages that a reader can keep: one HTML file each, images and style inside, no request to anywhere."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

import pandas as pd

from counterfactual_training.reports.extra import need
from counterfactual_training.reports.tables import METRICS, Pair, pairs

# What stands on top: data set, whether all is mutable, metric, and what to say of it.
_FACTS = (
    (
        "loan",
        True,
        "implausibility",
        "distance of loan counterfactuals from people who really got a loan (IP, {} to {})",
    ),
    (
        "loan",
        False,
        "cost",
        "asked of loan applicants by a model that knows that nobody can change age (cost, {} to {})",
    ),
    (
        "moons",
        True,
        "implausibility",
        "distance of counterfactuals from the other moon, for a neural network (IP, {} to {})",
    ),
    ("moons", True, "robust_accuracy", "accuracy of that neural network under attack ({} to {})"),
)


@dataclass(frozen=True)
class Picture:
    """A figure in light and dark, with its caption's data set."""

    data: str
    light: bytes
    dark: bytes
    description: str

    @property
    def light_uri(self) -> str:
        return _data_uri(self.light)

    @property
    def dark_uri(self) -> str:
        return _data_uri(self.dark)


@dataclass(frozen=True)
class RunInfo:
    """How a result came about."""

    command: str
    date: datetime
    seconds: float
    versions: Mapping[str, str]
    quick: bool = False


def demo_page(
    table: pd.DataFrame,
    pictures: Sequence[Picture],
    advice: pd.DataFrame,
    debt_per_year: Mapping[str, float],
    settings: Mapping[str, Mapping[str, Any]],
    epsilon: float,
    run: RunInfo,
) -> str:
    """The report of ``ct demo``.

    Args:
        table: see :func:`tables.pairs`; the data sets are ``loan`` and ``moons``.
        pictures: one per data set.
        advice: columns ``age``, ``debt``, and a sentence per training.
        debt_per_year: by training, thousand dollars of debt that weigh as much as a year of age.
        settings: by data set, see the keys that the template names.
        epsilon: budget of the attack behind the robust accuracy.
    """
    compared = {(pair.data, pair.free): pair for pair in pairs(table)}
    return (
        _environment()
        .get_template("demo.html")
        .render(
            metrics=METRICS,
            pairs=compared.values(),
            facts=[_fact(compared[data, free], metric, text) for data, free, metric, text in _FACTS],
            moons_cost=compared["moons", False].of("cost").change,
            pictures={picture.data: picture for picture in pictures},
            people=advice.to_dict("records"),
            debt_per_year=debt_per_year,
            settings=settings,
            epsilon=epsilon,
            run=run,
        )
    )


def _fact(pair: Pair, metric: str, text: str) -> dict[str, Any]:
    found = pair.of(metric)
    return {"change": found.change, "good": found.ours.best, "text": text.format(found.baseline.text, found.ours.text)}


def _data_uri(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode('ascii')}"


@cache
def _environment() -> Any:
    jinja2 = need("jinja2")
    return jinja2.Environment(
        loader=jinja2.PackageLoader("counterfactual_training.reports", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
