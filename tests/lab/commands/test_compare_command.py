"""``ct compare``: what it prints and writes, and what it refuses."""

import json

import numpy as np
import pandas as pd
import pytest

from counterfactual_lab.arena.arena_results import TABLES
from counterfactual_lab.commands import compare as command
from counterfactual_lab.reports.arena_figures import _front
from counterfactual_lab.truth.caps import Caps
from counterfactual_training.cli import main, make_parser

pytest.importorskip("matplotlib", reason="figures need the extra 'lab'")


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    monkeypatch.setattr(
        command, "_CAPS", Caps(rows=300, individuals=30, judge_rows=150, epochs=2)
    )


@pytest.mark.check
def test_one_table_one_page_and_pictures(tmp_path, capsys):
    out, runs = tmp_path / "out", tmp_path / "runs"
    what = [
        "--data",
        "linearly-separable",
        "--methods",
        "pgd,conventional + density",
        "--generators",
        "generic",
        "--seeds",
        "2",
    ]
    arguments = ["compare", *what, "--workers", "1", "--out", str(out), "--runs", str(runs)]
    assert main(arguments) == 0
    printed = capsys.readouterr()
    assert (
        "Searched by generic, τ = .5" in printed.out
        and "[3/3] LS conventional + density: done" in printed.err
    )
    written = {path.relative_to(out).as_posix() for path in out.rglob("*.*")}
    pictures = {
        f"figures/{name}.png"
        for name in (
            "overview_5",
            "overview_95",
            "price_generic",
            "acceptance",
            "accuracy",
            "robust",
        )
    }
    tables = {f"{name}.csv" for name in TABLES}
    assert written == pictures | tables | {"arena.md", "arena.html", "provenance/arena.json"}
    page = (out / "arena.md").read_text()
    assert all(f"({name})" in page for name in pictures) and "ct compare --data" in page
    assert "What wins where" in (out / "arena.html").read_text()
    assert "By other families, searched by generic" in page
    assert "By refits, searched by generic" in page
    assert main([*arguments, "--json"]) == 0
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    assert document["failures"] == {} and printed.err == ""
    assert {row["method"] for row in document["tables"]["arena"]} == {
        "conventional",
        "pgd",
        "conventional + density",
    }


def test_what_another_choice_replaces_is_told(tmp_path, capsys):
    before = pd.DataFrame({"data": ["LS", "CH"], "method": ["conventional", "ct_published"]})
    before.to_csv(tmp_path / "arena.csv", index=False)
    command._tell_what_is_replaced(tmp_path, before)
    assert not capsys.readouterr().err
    command._tell_what_is_replaced(tmp_path, before.iloc[:1])
    told = capsys.readouterr().err
    assert (
        "no longer show the data sets CH" in told
        and "no longer show the methods ct_published; --out keeps both" in told
    )


def test_mistyped_names_are_told_before_training(tmp_path, capsys):
    assert (
        main(
            [
                "compare",
                "--methods",
                "trade",
                "--out",
                str(tmp_path / "out"),
                "--runs",
                str(tmp_path / "r"),
            ]
        )
        == 2
    )
    assert "'trades'" in capsys.readouterr().err


def test_the_front_holds_what_nothing_beats_in_both():
    cost, gain = np.array([1.0, 2.0, 2.0, 3.0, 0.5]), np.array([1.0, 2.0, 1.5, 1.9, 0.0])
    assert _front(cost, gain).tolist() == [True, True, False, False, True]


@pytest.fixture
def people(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"age": rng.integers(18, 80, 120), "debt": rng.normal(5, 2, 120).round(1)}
    )
    path = tmp_path / "people.csv"
    frame.assign(granted=np.where(frame["age"] > 10 * frame["debt"], "yes", "no")).to_csv(
        path, index=False
    )
    return str(path)


def test_a_csv_file_of_ones_own_is_a_data_set(people, tmp_path, capsys):
    words = ["compare", "--data", people, "--target", "granted", "--test-share", "0.25"]
    (data,) = command._data(make_parser(words).parse_args(words))
    assert (data.name, data.class_names, data.num_features) == ("people", ("no", "yes"), 2)
    assert (len(data.y_train), len(data.y_test)) == (90, 30)
    out = ["--out", str(tmp_path / "out"), "--runs", str(tmp_path / "runs")]
    assert main(["compare", "--data", "LS", "--target", "granted", *out]) == 2
    assert "--target is for CSV files" in capsys.readouterr().err


@pytest.mark.check
def test_a_csv_file_of_ones_own_is_compared_on(people, tmp_path, capsys):
    out = ["--workers", "1", "--out", str(tmp_path / "out"), "--runs", str(tmp_path / "runs")]
    what = ["--methods", "conventional", "--generators", "generic", "--seeds", "1"]
    assert main(["compare", "--data", people, "--target", "granted", *what, *out]) == 0
    assert "people" in capsys.readouterr().out
