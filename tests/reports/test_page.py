"""The demo's page: complete, self-contained, its numbers those of the table."""

import re
from datetime import UTC, datetime
from html.parser import HTMLParser

import pandas as pd
import pytest

from counterfactual_training.reports.page import Picture, RunInfo, demo_page
from counterfactual_training.reports.tables import METRICS

VOID = {"meta", "img", "source", "br", "link", "input", "hr"}
PNG = b"\x89PNG a picture"


def make_table() -> pd.DataFrame:
    rows = []
    for i, (data, held) in enumerate((d, h) for d, name in (("loan", "age"), ("moons", "x1")) for h in ("", name)):
        for k, training in enumerate(("conventional", "counterfactual")):
            values = {metric.name: 0.1 * (i + 1) + 0.011 * j + 0.003 * k for j, metric in enumerate(METRICS)}
            rows.append({"data": data, "training": training, "protected": held, **values})
    return pd.DataFrame(rows)


def make_page(**changes) -> str:
    settings = {"model": "linear <b>classifier</b>", "train_rows": 1000, "test_rows": 400, "protected": ["age"]}
    people = [{"age": 31, "debt": 42.5, "conventional": "with less.", "counterfactual": "with even less & more."}]
    run = RunInfo("ct demo --out 'my demo'", datetime(2026, 1, 2, 3, 4, tzinfo=UTC), 31.4, {"torch": "2.13"}, False)
    arguments = {
        "table": make_table(),
        "pictures": [Picture(name, PNG, PNG + b"!", f"panels of {name}") for name in ("loan", "moons")],
        "advice": pd.DataFrame(people),
        "debt_per_year": {"conventional": 0.748, "counterfactual": 0.54},
        "settings": {"loan": settings, "moons": settings},
        "epsilon": 0.3,
        "run": run,
    }
    return demo_page(**{**arguments, **changes})


class Reader(HTMLParser):
    """Checks nesting, collects attributes and the cells of the table of results."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.cells: list[list[str]] = []
        self.inside = False
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.links += [value or "" for name, value in attrs if name in {"src", "href", "srcset", "action", "data"}]
        self.inside = self.inside or dict(attrs).get("id") == "results"
        if tag not in VOID:
            self.open.append(tag)
        if self.inside and tag == "tr":
            self.cells.append([])
        if self.inside and tag in {"td", "th"}:
            self.cells[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        self.inside = self.inside and tag != "table"

    def handle_data(self, data):
        if self.inside and self.cells and self.cells[-1] and self.open[-1] in {"td", "th"}:
            self.cells[-1][-1] += data.strip()


def test_the_page_asks_nobody_for_anything():
    page = make_page()
    reader = Reader(page)
    assert reader.open == []
    assert len(reader.links) == 4 and all(link.startswith("data:image/png;base64,") for link in reader.links)
    assert not re.search(r"https?:|//[a-z]|@import|url\(|<script|<link|<iframe", page.lower())


def test_the_numbers_of_the_page_are_those_of_the_table():
    rows = Reader(make_page()).cells[1:]
    printed = [row[-len(METRICS) :] for row in rows if "change" not in row]
    expected = [[metric.text(row[metric.name]) for metric in METRICS] for _, row in make_table().iterrows()]
    assert printed == expected


def test_every_metric_is_explained_with_its_direction():
    page = make_page()
    for metric in METRICS:
        assert f"<dt>{metric.label} {metric.arrow}</dt>" in page
        assert metric.meaning in page
    assert page.count("is better") == len(METRICS)


def test_the_page_tells_how_to_run_it_again_and_what_people_are_told():
    page = make_page()
    for words in (
        "ct demo --out &#39;my demo&#39;",
        "02 January 2026",
        "31 seconds",
        "torch 2.13",
        "With even less &amp; more.",
    ):
        assert words in page
    assert "540 dollars of debt" in page and "instead of\n748" in page


def test_text_is_escaped_and_a_quick_run_says_so():
    assert "linear &lt;b&gt;classifier&lt;/b&gt;" in make_page()
    quick = RunInfo("ct demo --quick", datetime(2026, 1, 2, tzinfo=UTC), 3.0, {}, True)
    assert "This was a quick run" in make_page(run=quick) and "This was a quick run" not in make_page()


def test_a_page_without_one_of_its_data_sets_is_a_mistake():
    table = make_table()
    with pytest.raises(KeyError):
        make_page(table=table[table["data"] == "loan"])
