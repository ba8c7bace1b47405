"""The page of an audit: complete, self-contained, escaped; scales and numbers as people read
them.
"""

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from counterfactual_training.tables.audits import AuditProtocol, Subject, audit
from counterfactual_training.tables.estimators.classifier import CounterfactualClassifier
from counterfactual_training.tables.pages.audit_page import Scale, audit_page
from counterfactual_training.tables.pages.audit_tables import (
    audit_markdown,
    audit_text,
    long_table,
    shown,
    with_interval,
    worst,
)
from counterfactual_training.tables.pages.files import RunInfo

EVIL = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def found():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"debt": rng.gamma(2, 10, 160).round(1), EVIL: rng.integers(0, 9, 160)}
    )
    y = np.where(frame["debt"] > 18, EVIL, "yes")
    classifier = CounterfactualClassifier(
        epochs=8, gate="none", random_state=0, mutability={EVIL: "none"}
    )
    classifier.fit(frame[:80], y[:80])
    people = frame[80:].assign(**{"a group": np.where(rng.random(80) < 0.5, EVIL, "m")})
    subject = Subject(classifier, EVIL)
    return audit(
        subject,
        people,
        y[80:],
        ["a group"],
        "yes",
        against=Subject(classifier, "twin"),
        protocol=AuditProtocol(resamples=50),
    )


def test_the_page_is_self_contained_and_escaped(found):
    page = audit_page(found, RunInfo("ct audit x", 3.0), EVIL)
    assert "<script" not in page and "&lt;script" in page
    assert not re.search(r"(src|href)=|https?://", page)
    assert page.count("<svg") == page.count("</svg>")
    assert "Burden of the same people" in page and "prefers-color-scheme: dark" in page
    # Every plot can be read aloud.
    assert all(label for label in re.findall(r'role="img" aria-label="([^"]*)"', page))
    # A model compared with itself differs from itself by nothing, and that is not clear.
    assert 'class="clear">difference' not in page


def test_markdown_has_all_parts(found):
    text = audit_markdown(found, RunInfo("ct audit x", 3.0), "a title")
    # Names are text: a bar would end a cell.
    assert "<script" not in text.replace("\\<", "")
    for part in (
        "# Audit: a title",
        "`ct audit x`",
        "### everybody",
        "### a group",
        "## Meaning",
        "| NAWB",
    ):
        assert part in text


@pytest.mark.check
def test_the_worst_group_stands_in_text_markdown_and_page(found):
    found = replace(
        found, groups=found.groups.assign(few=False)
    )  # a few people are enough here
    measures = found.to_dict()["columns"][1]["measures"]
    social = next(measure for measure in measures if measure["id"] == "social_burden")
    # Of a sum over groups of different size there is no gap, so only this tells who carries most.
    assert social["models"][0]["gap"] is None and social["models"][0]["worst"] is not None
    said = worst(social["models"][0], social["unit"])
    text, page = audit_text(found), audit_page(found, RunInfo("ct audit x", 3.0))
    assert f"{social['models'][0]['worst']['group']}: " in said
    assert text.count("worst group") >= len(measures) - 1 and said in text
    assert re.search(r"\| Social burden +\| worst group", audit_markdown(found, RunInfo()))
    assert page.count("Worst group, ") >= len(measures) - 1
    everybody = text[: text.index("a group\n")]
    assert "worst group" not in everybody


@pytest.mark.parametrize(
    ("values", "few", "text"),
    [
        ([0.2, 0.9, 0.4], [False] * 3, "b: 90.0 %"),
        ([1.0, 1.0, 0.0], [False, False, True], "all alike: 100.0 %"),
        ([0.2, 0.9, 0.9], [False] * 3, "b and c: 90.0 %"),
        ([None, 0.9, 0.4], [False] * 3, "b: 90.0 %"),
    ],
)
def test_the_worst_group_in_words(values, few, text):
    groups = [
        {"group": g, "value": v, "few": f} for g, v, f in zip("abc", values, few, strict=True)
    ]
    value = 1.0 if "alike" in text else 0.9
    assert worst({"worst": {"group": "b", "value": value}, "groups": groups}, "share") == text
    assert worst({"worst": None, "groups": groups}, "share") == "–"


def test_the_csv_holds_every_number(found):
    table = long_table(found)
    assert len(table) == sum(len(part) for part in found.tables().values())
    assert table["value"].notna().any() and set(table["table"]) == set(found.tables())


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.1234, "share", "12.3 %"),
        (2.345, "cost", "2.35"),
        (None, "cost", "–"),
        (-0.5, "cost", "−0.50"),
    ],
)
def test_numbers_as_people_read_them(value, unit, text):
    assert shown(value, unit) == text


def test_a_difference_of_shares_is_in_points():
    line = {"value": 0.1, "low": 0.05, "high": 0.15}
    assert with_interval(line, "share") == "10.0 % [5.0, 15.0]"
    assert with_interval(line, "share", difference=True) == "10.0 points [5.0, 15.0]"


@pytest.mark.parametrize(
    ("low", "high"), [(0.0, 0.0), (0.2, 0.9), (100.0, 101.0), (1e-6, 2e-6)]
)
def test_a_scale_holds_its_intervals(low, high):
    scale = Scale.of([{"low": low, "high": high, "value": low}], "cost")
    assert (scale.low <= low and scale.high >= high > scale.low) or high == low == 0
    assert 2 <= scale.place(low) <= scale.place(high) <= 98
    assert [at for at, _ in scale.ticks] == sorted(at for at, _ in scale.ticks) and len(
        scale.ticks
    ) >= 2
