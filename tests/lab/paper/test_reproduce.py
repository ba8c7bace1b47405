"""The experiments by name, and the two commands around them."""

import json
import warnings

import pandas as pd
import pytest

from counterfactual_lab.grids.run import GridWork, load_data
from counterfactual_lab.paper.figure1 import figure1
from counterfactual_lab.paper.names import EXPERIMENTS
from counterfactual_lab.paper.reproduce import (
    FULL,
    Extent,
    effort_of,
    experiment_grids,
    reproduce,
)
from counterfactual_lab.paper_data import SYNTHETIC
from counterfactual_lab.reports import paper_report
from counterfactual_lab.truth import entrants
from counterfactual_training.cli import main
from counterfactual_training.engine.launch import Engine
from counterfactual_training.errors import InputError
from counterfactual_training.evaluation.findings import MeasurementWarning
from counterfactual_training.generators import GENERATORS, generic


@pytest.mark.check
def test_everything_needs_five_models_of_nine_data_sets():
    grids = experiment_grids("all")
    runs = GridWork.from_grids(*grids.values(), strict=False).runs
    assert len(runs) == len({(run.label, run.id) for run in runs}) == 5 * (8 * 5 + 3)
    assert all(effort_of(grid) == FULL for grid in grids.values())
    assert {run.model for run in runs} == {
        "conventional",
        "ct_published",
        "ct_published protected",
        "ct_published(lambda_adv=0)",
        "ct_published(lambda_div=0, lambda_reg=0)",
    }


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if name != "mnist-figures"])
def test_a_quick_look_needs_no_data_files(name):
    assert all(
        set(grid.data) <= set(SYNTHETIC)
        for grid in experiment_grids(name, Extent(quick=True)).values()
    )


def test_data_and_seeds_are_obeyed():
    grid = experiment_grids("main", Extent(["ch", "LS"], 2))["main"]
    assert set(grid.data) == {"LS", "CH"} and grid.seeds == (0, 1)
    with pytest.raises(InputError, match="Did you mean 'ablation'"):
        experiment_grids("ablatoin")


@pytest.mark.check
def test_a_reproduction_can_be_repeated_from_what_is_stored(tmp_path, tiny):
    extent = Extent(["LS"], seeds=1, changes=tiny)
    options = {"engine": Engine(workers=1), "command": "ct reproduce main"}
    (first,) = reproduce("main", tmp_path, extent, **options)
    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.*")}
    (second,) = reproduce("main", tmp_path, extent, **options)
    assert stamps == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.*")}
    for name, table in first.tables.items():
        pd.testing.assert_frame_equal(table, second.tables[name])
    assert first.provenance["command"] == "ct reproduce main" and first.provenance["runs"] == 3
    assert "not the published settings" in first.provenance["effort"]


@pytest.mark.check
def test_intervals_of_one_training_run_are_warned_about(tmp_path, tiny):
    alone = Engine(workers=1)
    with pytest.warns(MeasurementWarning, match="one_seed"):
        reproduce("synthetic", tmp_path, Extent(["LS"], 1, changes=tiny), engine=alone)
    with warnings.catch_warnings():
        warnings.simplefilter("error", MeasurementWarning)
        reproduce("synthetic", tmp_path, Extent(["LS"], 2, changes=tiny), engine=alone)


@pytest.mark.check
def test_the_commands_write_tables_figures_and_a_page(tmp_path, tiny, monkeypatch, capsys):
    monkeypatch.setitem(GENERATORS, "line", lambda: generic(lambda_cost=0.0, max_steps=60))
    # What is stored is not trained again.
    monkeypatch.setattr(entrants, "trained", None)
    out, runs = str(tmp_path / "out"), str(tmp_path / "runs")
    arguments = [
        "--quick",
        "--data",
        "LS",
        "--seeds",
        "1",
        "--workers",
        "1",
        "--out",
        out,
        "--runs",
        runs,
    ]
    arguments += changed(tiny)
    assert main(["reproduce", "main", *arguments, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["quick"] and not document["failures"]
    assert {"main", "main_paired", "main_by_seed", "truth", "truth_gains"} <= set(
        document["tables"]
    )
    assert {row["method"] for row in document["tables"]["truth"]} == {
        "conventional",
        "conventional rescaled",
        "ct_published",
    }
    for name in (
        "main.csv",
        "truth.csv",
        "main.md",
        "main.tex",
        "figures/main.png",
        "figures/main_maturity.png",
        "provenance/main.json",
    ):
        assert (tmp_path / "out" / name).stat().st_size > 0, name
    written = pd.read_csv(tmp_path / "out" / "main.csv")
    assert list(written.columns) == [
        "data",
        "metric",
        "quantity",
        "published",
        "ours",
        "low",
        "high",
        "seeds",
    ]
    assert "not the published settings" in (tmp_path / "out" / "main.md").read_text()

    assert main(["reproduce", "synthetic", *arguments]) == 0
    text = capsys.readouterr().out
    assert "26.3" in text and "share mature" in text and "A quick look" in text

    page = tmp_path / "report.html"
    with monkeypatch.context() as patch:
        patch.setattr(paper_report, "_images", lambda one: [])  # the second page has them
        assert main(["report", runs, "--out", str(page), "--tables", out]) == 0
    assert "share mature" in page.read_text() and "Figure 1" not in page.read_text()
    assert main(["reproduce", "figure1", *arguments]) == 0
    assert main(["report", runs, "--out", str(page), "--tables", out]) == 0
    html = page.read_text()
    assert (
        "Figure 1" in html
        and "other learning rates had failed" in html
        and "quick: not the published" in html
    )
    assert (
        "data:image/png;base64," in html
        and "A quick look" in html
        and "ct reproduce main" in html
    )
    assert "http://" not in html and "https://" not in html


@pytest.mark.check
def test_a_failed_model_is_told_and_the_rest_is_written(tmp_path, tiny, monkeypatch, capsys):
    monkeypatch.setenv("CT_DATA_HOME", str(tmp_path / "nowhere"))
    monkeypatch.setattr(
        "counterfactual_lab.grids.run.load_data",
        lambda name: (
            (_ for _ in ()).throw(InputError("no data")) if name == "OL" else load_data(name)
        ),
    )
    arguments = [
        "--quick",
        "--data",
        "LS,OL",
        "--seeds",
        "1",
        "--workers",
        "1",
        "--out",
        str(tmp_path / "out"),
    ]
    assert (
        main(
            [
                "reproduce",
                "synthetic",
                *arguments,
                *changed(tiny),
                "--runs",
                str(tmp_path / "runs"),
            ]
        )
        == 2
    )
    captured = capsys.readouterr()
    assert "2 failed" in captured.err and "no data" in captured.err
    assert pd.read_csv(tmp_path / "out" / "synthetic.csv")["data"].tolist() == ["LS"]


def changed(settings):
    return [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["reproduce", "main", "--data", "Adlt"], "Did you mean 'Adult'"),
        (["reproduce", "main", "--seeds", "0"], "seeds must be 1 or more"),
        (["reproduce", "main", "--set", "burn_in"], "NAME=VALUE"),
        (["reproduce", "main", "--set", "burnin=1"], "Did you mean 'training.burn_in'"),
        (["report", "nothing-here"], "no finished models"),
    ],
)
def test_bad_input_is_told_in_one_line(arguments, reason, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    complaint = capsys.readouterr().err
    assert reason in complaint and complaint.count("\n") == 1


@pytest.mark.check
def test_figure_1_tilts_the_boundary_away_from_the_immutable_feature():
    panels, table = figure1(epochs=8)
    conventional, plausible, _, protected = table.to_dict("records")
    assert plausible["implausibility"] < conventional["implausibility"]
    assert protected["share_age"] < 0.7 * conventional["share_age"]
    assert all((p.counterfactuals[:, 0] == p.factuals[:, 0]).all() for p in panels[2:])
