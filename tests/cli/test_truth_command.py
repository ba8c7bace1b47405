"""``ct truth``: what it prints and writes, and what it refuses."""

import json

import pandas as pd
import pytest

import counterfactual_training as ct
from counterfactual_training.cli import main
from counterfactual_training.cli import truth as command
from counterfactual_training.errors import InputError
from counterfactual_training.experiments.truth_methods import METHODS, Caps, Method
from counterfactual_training.search import GENERATORS

pytest.importorskip("matplotlib", reason="figures need the extra 'report'")


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    """So little of everything that a test can afford it; plain small steps instead of the line search."""
    monkeypatch.setattr(command, "Caps", lambda: Caps(rows=300, individuals=40, judge_rows=150, epochs=2))
    monkeypatch.setitem(GENERATORS, "line", lambda: ct.generic(lambda_cost=0.0, learning_rate=0.1, max_steps=60))


def test_tables_are_printed_and_written_and_made_once(tmp_path, capsys):
    out, runs = tmp_path / "out", tmp_path / "runs"
    what = ["--data", "LS", "--seeds", "2", "--methods", "BL rescaled,CT"]
    arguments = ["truth", *what, "--workers", "1", "--out", str(out), "--runs", str(runs)]
    assert main(arguments) == 0
    printed = capsys.readouterr()
    assert "rows cut from the training rows" in printed.out and "BL rescaled" in printed.out
    assert "τ = .95*" in printed.out and "[2/2] LS seed" in printed.err
    written = {path.name for path in out.rglob("*.*")}
    assert written == {"truth.csv", "truth.md", "truth_gains.csv", "truth_performance.csv", "price.png"}
    assert "p_holm" in pd.read_csv(out / "truth.csv").columns
    assert main([*arguments, "--json"]) == 0
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    assert document["rows"] == "tuning" and document["failures"] == [] and printed.err == ""


def test_a_failure_is_told_after_the_tables(tmp_path, capsys, monkeypatch):
    def broken(fit):
        raise InputError("no room to move")

    monkeypatch.setitem(METHODS, "broken", Method(broken))
    where = ["--out", str(tmp_path / "out"), "--runs", str(tmp_path / "runs")]
    arguments = ["truth", "--data", "LS", "--seeds", "1", "--methods", "broken", "--workers", "1", *where]
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert "BL" in printed.out and "no room to move" in printed.err and "LS broken seed 0" in printed.err


@pytest.mark.parametrize(
    ("options", "reason"),
    [(["--methods", "BLL"], "method"), (["--data", "Adlt"], "Did you mean 'Adult'"), (["--seeds", "0"], "1 or more")],
)
def test_bad_options_are_refused_in_one_line(tmp_path, options, reason, capsys):
    assert main(["truth", "--out", str(tmp_path), "--runs", str(tmp_path), *options]) == 2
    assert reason in capsys.readouterr().err
