"""The demo's page: complete, self-contained, its numbers those of the table."""

import re
from datetime import UTC, datetime
from html.parser import HTMLParser

import jinja2
import pandas as pd
import pytest

from counterfactual_lab.demo import DemoResult
from counterfactual_lab.reports.demo_report import demo_page
from counterfactual_lab.reports.files import Image
from counterfactual_training.evaluation.metrics import METRICS
from counterfactual_training.evaluation.metrics_text import value_text
from counterfactual_training.evaluation.protocol import EvaluationProtocol
from counterfactual_training.tables.pages.files import RunInfo

VOID = {"meta", "img", "source", "br", "link", "input", "hr"}

PNG = b"\x89PNG a picture"


def make_table() -> pd.DataFrame:
    rows = []
    for i, (data, held) in enumerate(
        (d, h) for d, name in (("loan", "age"), ("moons", "x1")) for h in ("", name)
    ):
        for k, training in enumerate(("conventional", "counterfactual")):
            values = {
                name: 0.1 * (i + 1) + 0.011 * j + 0.003 * k for j, name in enumerate(METRICS)
            }
            rows.append({"data": data, "method": training, "protected": held, **values})
    return pd.DataFrame(rows)


RUN = RunInfo(
    "ct demo --out 'my demo'",
    31.4,
    date=datetime(2026, 1, 2, 3, 4, tzinfo=UTC),
    versions={"torch": "2.13"},
)


def make_page(table: pd.DataFrame | None = None, run: RunInfo = RUN) -> str:
    settings = {
        "model": "linear <b>classifier</b>",
        "train_rows": 1000,
        "test_rows": 400,
        "protected": ["age"],
    }
    people = [
        {
            "age": 31,
            "debt": 42.5,
            "conventional": "with less.",
            "counterfactual": "with even less & more.",
        }
    ]
    result = DemoResult(
        table=make_table() if table is None else table,
        panels=(),
        advice=pd.DataFrame(people),
        debt_per_year={"conventional": 0.748, "counterfactual": 0.54},
        lenders={},
        applicants=pd.DataFrame(),
        settings={"loan": settings, "moons": settings},
        protocol=EvaluationProtocol(epsilons=(0.3,)),
    )
    images = {
        name: Image(name, f"panels of {name}", PNG, PNG + b"!") for name in ("loan", "moons")
    }
    return demo_page(result, images, run)


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
        self.links += [
            value or ""
            for name, value in attrs
            if name in {"src", "href", "srcset", "action", "data"}
        ]
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
    assert len(reader.links) == 4 and all(
        link.startswith("data:image/png;base64,") for link in reader.links
    )
    assert not re.search(r"https?:|//[a-z]|@import|url\(|<script|<link|<iframe", page.lower())


def test_the_numbers_of_the_page_are_those_of_the_table():
    rows = Reader(make_page()).cells[1:]
    printed = [row[-len(METRICS) :] for row in rows if "change" not in row]
    expected = [
        [value_text(metric, row[name]) for name, metric in METRICS.items()]
        for _, row in make_table().iterrows()
    ]
    assert printed == expected


def test_every_metric_is_explained_with_its_direction():
    page = make_page()
    for metric in METRICS.values():
        assert f"<dt>{metric.title}</dt>" in page
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
    quick = RunInfo("ct demo --quick", 3.0, quick=True)
    assert (
        "This was a quick run" in make_page(run=quick)
        and "This was a quick run" not in make_page()
    )


def test_a_page_without_one_of_its_data_sets_is_a_mistake():
    table = make_table()
    with pytest.raises(jinja2.UndefinedError):
        make_page(table=table[table["data"] == "loan"])
