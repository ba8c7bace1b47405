"""The page about a classifier: complete, self-contained, and safe."""

import json
import math
import re

import numpy as np
import pandas as pd
import pytest

from counterfactual_training.cli import main
from counterfactual_training.tables.pages.files import RunInfo
from counterfactual_training.tables.pages.model_page import write_model_page
from counterfactual_training.tables.pages.portrait import Advice, Person, Portrait

EVIL = "<script>alert(1)</script>"


def make(**changes) -> Portrait:
    nothing = math.nan
    advice = Advice(
        10,
        {"converged": 6, "infeasible": 4},
        0.6,
        0.9,
        1.5,
        1.2,
        (("age", "may not change", 3),),
    )
    values = {
        "classes": ("no", EVIL),
        "target": EVIL,
        "rows": 40,
        "accuracy": 0.8,
        "majority": 0.6,
        "usual": "no",
        "confusion": np.array([[20, 4], [4, 12]]),
        "calibration": ((0.9, 1.0, 40, 0.95, 0.8),),
        "importance": pd.DataFrame(
            {"column": [EVIL], "shift": [0.2], "lost": [0.1], "mutability": ["none"]}
        ),
        "advice": advice,
        "groups": pd.DataFrame(
            {"column": ["sex"], "group": ["f"], "people": [5], "answered": [0.4]}
        ),
        "people": (Person(3, {"age": "31", EVIL: EVIL}, "no", (f"With {EVIL} lower, ...",)),),
        "rival": "without the gate",
        "rival_accuracy": 0.8,
        "rival_advice": Advice(10, {"converged": 10}, 1.0, 0.3, 0.5, nothing, ()),
    }
    return Portrait(**(values | changes))


@pytest.fixture
def page(tmp_path):
    def written(portrait: Portrait) -> str:
        path = tmp_path / "page.html"
        write_model_page(
            portrait,
            path,
            facts=[("file", EVIL)],
            columns=[[EVIL, "integer", "", "none", ""]],
            measured="40 rows held out",
            name=EVIL,
            relations=[f"paid <= {EVIL}"],
            run=RunInfo("ct report"),
        )
        return path.read_text(encoding="utf-8").replace("\N{NO-BREAK SPACE}", " ")

    return written


def test_everything_is_told_and_nothing_is_markup(page):
    html = page(make())
    for said in (
        "80.0 %",
        "60.0 %",
        "40 rows held out",
        "may not change",
        "no answer: rules",
        "40 % of 5",
        "30 %",
    ):
        assert said in html
    for said in (
        "paid &lt;= ",
        "stated confidence",
        "in the first answer",
        "Options change different columns, except",
    ):
        assert said in html
    assert "<script" not in html and "&lt;script&gt;" in html
    assert not re.search(r"(src|href)=|url\(|@import", html)  # nothing is requested


@pytest.mark.parametrize(
    "changes",
    [
        {"rival": "", "rival_advice": None, "rival_accuracy": math.nan},
        {
            "advice": Advice(0, {}, math.nan, math.nan, math.nan, math.nan, ()),
            "people": (),
            "target": None,
        },
        {"importance": pd.DataFrame(columns=["column", "shift", "lost", "mutability"])},
    ],
    ids=["no rival", "nobody asks", "too wide"],
)
def test_what_is_not_there_is_left_out(page, changes):
    html = page(make(**changes))
    assert "nan" not in html.lower().replace("explanation", "")


@pytest.mark.check
def test_the_command_writes_the_page(tmp_path, capsys):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"debt": rng.gamma(2, 2, 80).round(2), "age": rng.integers(20, 70, 80)}
    )
    frame["limit"] = frame["debt"].round() + rng.integers(1, 9, 80)
    frame["paid"] = np.where(frame["debt"] < 3, "yes", "no")
    rules = tmp_path / "rules.toml"
    rules.write_text(
        'relations = ["debt <= limit"]\n[debt]\ndomain = [0, 99]\nmax_change = 50\n'
        "[limit]\nstep = 0.5\nspecial = [-9]\n"
    )
    csv, model, out = (str(tmp_path / name) for name in ("p.csv", "m.safetensors", "page.html"))
    frame.to_csv(csv, index=False)
    command = [
        "train",
        csv,
        "--target",
        "paid",
        "--positive",
        "yes",
        "--immutable",
        "age",
        "--epochs",
        "30",
    ]
    command += ["--schema", str(rules)]
    assert main([*command, "--out", model]) == 0
    capsys.readouterr()
    assert main(["report", model, "--data", csv, "--out", out, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["test_rows"] == 16 and document["importance"][0]["column"] == "debt"
    text = (tmp_path / "page.html").read_text()
    assert "16 rows held out of training (of 80 in" in text and "without the gate" in text
    for said in (
        "debt &lt;= limit",
        "in [0, 99]; changes by at most 50",
        "code -9, never advised; in steps of 0.5",
    ):
        assert said in text
    for words, said in (
        (["report", model], "--data"),
        (["report", str(tmp_path), "--data", csv], "--data goes with"),
    ):
        assert main([*words, "--out", out]) == 2
        assert said in capsys.readouterr().err
