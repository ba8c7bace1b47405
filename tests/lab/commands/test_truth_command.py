"""``ct truth``: what it prints and writes, and what it refuses."""

import json
import re

import pandas as pd
import pytest

import counterfactual_training as ct
from counterfactual_lab.commands import truth as command
from counterfactual_lab.reports.gains_page import PICTURED, gains_page
from counterfactual_lab.truth import gains
from counterfactual_lab.truth.caps import Caps
from counterfactual_training.cli import main
from counterfactual_training.errors import InputError
from counterfactual_training.generators import GENERATORS
from counterfactual_training.training.method import Method
from counterfactual_training.training.registry import METHODS, register_method

pytest.importorskip("matplotlib", reason="figures need the extra 'lab'")

TABLES = (
    *("truth", "truth_by_seed", "truth_performance", "truth_gains", "truth_acceptance"),
    *PICTURED,
)


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    """So little of everything that a test can afford it; plain small steps instead of the line
    search.
    """
    monkeypatch.setattr(
        command, "_CAPS", Caps(rows=300, individuals=40, judge_rows=150, epochs=2)
    )
    monkeypatch.setitem(
        GENERATORS, "line", lambda: ct.generic(lambda_cost=0.0, learning_rate=0.1, max_steps=60)
    )


@pytest.mark.check
def test_tables_are_printed_and_written_and_made_once(tmp_path, capsys):
    out, runs = tmp_path / "out", tmp_path / "runs"
    what = ["--data", "LS", "--seeds", "2", "--methods", "conventional rescaled,ct"]
    arguments = ["truth", *what, "--workers", "1", "--out", str(out), "--runs", str(runs)]
    assert main(arguments) == 0
    printed = capsys.readouterr()
    assert (
        "rows cut from the training rows" in printed.out
        and "conventional rescaled" in printed.out
    )
    assert "τ = .95*" in printed.out and "[2/2] LS seed" in printed.err
    written = {path.name for path in out.rglob("*.*")}
    assert written == {
        "truth.csv",
        "truth_by_seed.csv",
        "truth.md",
        "truth_gains.csv",
        "truth_performance.csv",
        "truth_acceptance.csv",
        "acceptance.png",
        "price.png",
        "floor.png",
    }
    assert "p_holm" in pd.read_csv(out / "truth.csv").columns
    assert main([*arguments, "--json"]) == 0
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    assert document["rows"] == "tuning" and document["failures"] == {} and printed.err == ""


@pytest.mark.check
def test_one_command_writes_tables_pictures_and_the_page(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(
        gains, "AS_PUBLISHED", Caps(rows=300, individuals=40, judge_rows=150, epochs=2)
    )
    out, page = tmp_path / "results" / "truth", tmp_path / "docs" / "gains.md"
    where = ["--out", str(out), "--runs", str(tmp_path / "runs"), "--page", str(page)]
    what = [
        "--data",
        "LS",
        "--seeds",
        "1",
        "--methods",
        "ct,conventional rescaled",
        "--workers",
        "1",
    ]
    assert main(["truth", *what, *where]) == 0
    assert f"{page}" not in capsys.readouterr().err
    text = page.read_text(encoding="utf-8")
    assert "rows cut from the training rows" in text and "| LS " in text
    links = re.findall(r"\]\(([^)#]+)\)", text)
    assert "../results/truth/figures/overshoot.png" in links and all(
        (page.parent / link).is_file() for link in links
    )
    # The page follows from the files beside it.
    read = {name: pd.read_csv(out / f"{name}.csv", dtype={"tau": str}) for name in TABLES}
    head = next(line for line in text.splitlines() if line.startswith("Measured on"))
    assert gains_page(read, "../results/truth", head) == text
    assert main(["truth", *what, *where[:-1], str(tmp_path)]) == 2
    assert "is a folder" in capsys.readouterr().err


@pytest.mark.check
def test_a_failure_is_told_after_the_tables(tmp_path, capsys, monkeypatch):
    def broken() -> Method:
        def loss(model, batch, found):
            raise InputError("no room to move")

        return Method(loss=loss)

    monkeypatch.setitem(METHODS, "broken", register_method(broken, {}))
    where = ["--out", str(tmp_path / "out"), "--runs", str(tmp_path / "runs")]
    arguments = [
        "truth",
        "--data",
        "LS",
        "--seeds",
        "1",
        "--methods",
        "broken",
        "--workers",
        "1",
        *where,
    ]
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert (
        "conventional" in printed.out
        and "no room to move" in printed.err
        and "LS broken seed 0" in printed.err
    )


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--methods", "BLL"], "method"),
        (["--data", "Adlt"], "Did you mean 'Adult'"),
        (["--seeds", "0"], "1 or more"),
    ],
)
def test_bad_options_are_refused_in_one_line(tmp_path, options, reason, capsys):
    assert main(["truth", "--out", str(tmp_path), "--runs", str(tmp_path), *options]) == 2
    assert reason in capsys.readouterr().err
