"""The README fits on a screen, runs as written, and its figures are those of the results."""

import re
from pathlib import Path

import pandas as pd
import pytest

from run_pages import ROOT, runs

README = (ROOT / "README.md").read_text(encoding="utf-8")

test_page = pytest.mark.check(runs([ROOT / "README.md"]))


def test_it_is_short():
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    words = re.findall(r"\w+", re.sub(r"\]\([^)]*\)", "", README))  # links as they are read
    assert len(README.splitlines()) < 60 and len(words) < 560


def row(page: Path, first: str, heading: str) -> list[str]:
    """Cells of a row of a table, by the heading above the table and the row's first cell."""
    text = page.read_text(encoding="utf-8")
    below = text[text.index(heading) :]
    return next(
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in below.splitlines()
        if line.startswith("|") and line.strip("|").split("|")[0].strip() == first
    )


def test_its_gains_are_those_of_the_truth_tables():
    truth = pd.read_csv(ROOT / "results" / "truth" / "quoted.csv", dtype={"tau": str})
    nearer = truth.query(
        "method == 'default network + density' and metric == 'nn5' and tau == '.5' and setting "
        "== 'free'"
    ).set_index("data")
    real = nearer.loc[["Adult", "CH", "Cred", "GMSC"], "change"].round().astype(int)
    made_up = nearer.drop(real.index)["change"].round().astype(int)
    assert (
        f"{real.min()} to {real.max()} % closer on four real data sets" in README
        and len(nearer) == 8
    )
    assert f"{made_up.min()} to {made_up.max()} % on four made-up ones" in README
    assert (
        nearer["verdict"] == "better"
    ).sum() == 6 and "significant on six of the eight" in README
    for method, said in (
        ("default network + density", "people must change {} % more (median)"),
        ("ct_published", "people must change {} % more"),
    ):
        cells = row(
            ROOT / "docs" / "explanation" / "gains.md",
            method,
            "### Median change over data sets",
        )
        assert said.format(cells[2]) in README
    assert f"only {cells[1].removeprefix('−')} % closer" in README
    left = truth.query(
        "method == 'ct_published' and metric == 'ip' and tau == '.5' and setting == 'free' and "
        "verdict == 'better'"
    )
    shares = left["change"].round().astype(int)
    assert len(left) == 3 and truth["data"].nunique() == 9
    assert f"falls by {shares.min()} to {shares.max()} % on three of nine data sets" in README


def test_its_picture_shows_what_its_caption_says():
    shown = pd.read_csv(ROOT / "results" / "before_after.csv").set_index("model")["distance"]
    published = shown["Counterfactual Training as published"]
    conventional = shown["conventional network"]
    default = shown["default: bag of networks with a gate"]
    assert default < published < conventional
    assert (
        f"nearer to them ({published:.2f}) than a conventional network ({conventional:.2f})"
        in README
    )
    assert f"nearest ({default:.2f})" in README


def test_its_example_is_one_where_the_gate_matters():
    """Without a gate, advice ends where nobody with a loan is; with it, it does not."""
    (printed,) = re.findall(r"```text\n(.*?)```", README, re.DOTALL)
    most = float(re.search(r"owes more than ([\d.]+)", printed)[1])
    without_gate, with_gate = (float(debt) for debt in re.findall(r"to ([\d.]+)\)", printed))
    assert without_gate > most >= with_gate


def test_its_other_figures_are_in_the_results():
    fit = row(
        ROOT / "results" / "default_ablation.md", "*the default itself*", "# What each part"
    )[-1]
    assert f"`fit` takes {float(fit):.1f} times as long" in README
    arena = (ROOT / "docs" / "explanation" / "arena.md").read_text(encoding="utf-8")
    assert (
        "CT 18 to 28" in arena
        and "18 to 28 points more accuracy under attack (PGD, ε = 0.1)" in README
    )
    models = pd.read_csv(ROOT / "results" / "arena" / "arena_models.csv").query(
        "method == 'ct_published'"
    )
    gains = models[models["metric"] == "robust_accuracy@0.1"].set_index("data")["change"]
    points = (100 * gains[["Adult", "CH", "Cred", "GMSC", "MNIST"]]).round()
    assert (points.min(), points.max()) == (18, 28)
    rules = (ROOT / "results" / "rules.md").read_text(encoding="utf-8")
    number = re.search(r"^([\d,]+) counterfactuals, 0 broken rules", rules, re.MULTILINE)[1]
    assert f"none broken in {number} counterfactuals" in README
