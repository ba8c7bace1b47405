"""Figures of grids are drawn from any table a grid can give; what they show is looked at by
people.
"""

import struct

import numpy as np
import pandas as pd
import pytest

from counterfactual_lab.reports.grid_figures import (
    _roles,
    axis_maturity_figure,
    axis_overview_figure,
    detail_figure,
    label,
)
from counterfactual_lab.reports.grid_report import best_tables, marginal_tables

AXES = ["generator.name", "generator.max_steps", "objective.lambda_reg", "training.burn_in"]


def size(png: bytes) -> tuple[int, int]:
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", png[16:24])


def changes(value: float = -10.0) -> pd.DataFrame:
    index = pd.MultiIndex.from_product(
        [["Moon", "OL"], ["ecco", "revise"], [5, 25, 50], [0.0, 0.1], [0.0, 0.5], [0, 1, 2]],
        names=["data", *AXES, "run"],
    )
    table = index.to_frame(index=False)
    return table.assign(metric="implausibility", change=value + np.arange(len(table)) % 7)


def maturity() -> pd.DataFrame:
    return changes().rename(columns={"run": "epoch"}).assign(**{"share mature": 0.5})


@pytest.mark.check
def test_every_figure_draws():
    table = changes()
    assert size(axis_overview_figure(table, AXES, "implausibility"))[0] > 1000
    assert (
        size(detail_figure(table, AXES, "Moon", "implausibility", remark="A quick look."))[0]
        > 500
    )
    assert size(axis_maturity_figure(maturity(), AXES))[0] > 1000
    assert size(detail_figure(table, AXES[1:2], "OL", "implausibility"))[0] > 200


@pytest.mark.parametrize("value", [np.nan, 5000.0, -100.0])
def test_figures_survive_values_that_are_missing_or_absurd(value):
    table = changes(value)
    size(axis_overview_figure(table, AXES[:1], "implausibility"))
    size(detail_figure(table, AXES[:2], "Moon", "implausibility"))


def test_the_same_table_gives_the_same_file():
    assert axis_overview_figure(changes(), AXES[:1], "implausibility") == axis_overview_figure(
        changes(), AXES[:1], "implausibility"
    )


def test_roles_show_the_generator_as_colour_and_the_longest_axis_along():
    assert _roles(changes(), AXES) == (
        "generator.name",
        "generator.max_steps",
        "objective.lambda_reg",
        "training.burn_in",
    )
    assert _roles(changes(), AXES[1:3]) == (
        "objective.lambda_reg",
        "generator.max_steps",
        None,
        None,
    )
    assert _roles(changes(), AXES[:1]) == (None, "generator.name", None, None)


def test_labels_are_the_papers_and_others_are_readable():
    assert label("generator.decision_threshold") == "threshold τ"
    assert label("training.target_rule") == "target rule"


def marginal() -> pd.DataFrame:
    row = {
        "data": "Moon",
        "axis": "generator.max_steps",
        "value": 5,
        "settings": 3,
        "validity": 0.98,
        "stopped": 1,
    }
    for metric in ("implausibility", "implausibility_mmd", "cost"):
        row |= {f"{metric} low": -20.0, f"{metric} median": -10.0, f"{metric} high": 1.0}
    return pd.DataFrame([{**row, "accuracy change, points": -0.1, "share mature": 0.5}])


def test_tables_say_what_each_value_does():
    (table,) = marginal_tables(marginal())
    assert table.rows[0] == (
        "steps T",
        "5",
        "3",
        *["−10.0 [−20.0, 1.0]"] * 3,
        "0.98",
        "−0.1",
        "0.50",
    )
    assert any("ended early" in note for note in table.notes)


def test_the_best_settings_come_first_and_those_without_valid_counterfactuals_not_at_all():
    columns = {
        "data": "Moon",
        "method": "ct_published",
        "gate": "none",
        "generator.max_steps": [5, 25, 50],
        "implausibility": [1.5, 1.2, 0.1],
        "implausibility change %": -5.0,
        "cost change %": 2.0,
        "validity": [1.0, 0.9, 0.1],
        "accuracy": 0.99,
        "share mature": 0.7,
    }
    (table,) = best_tables(pd.DataFrame(columns), ["generator.max_steps"])
    assert [row[1] for row in table.rows] == ["25", "5"]


def test_nothing_finished_makes_no_tables():
    assert (
        marginal_tables(pd.DataFrame()) == []
        and best_tables(pd.DataFrame(), ["generator.max_steps"]) == []
    )
