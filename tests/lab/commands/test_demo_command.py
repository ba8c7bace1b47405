"""``ct demo``: what it prints and writes; Python code writes the same."""

import io
import json
import re
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from counterfactual_lab.demo import run_demo
from counterfactual_lab.reports.demo_report import write_demo
from counterfactual_training import cli

pytest.importorskip("matplotlib", reason="figures need the extra 'lab'")

pytestmark = pytest.mark.check

METRICS = {
    "accuracy",
    "implausibility",
    "implausibility_mmd",
    "cost",
    "validity",
    "robust_accuracy",
    "share_mature",
}


@pytest.fixture(scope="module")
def by_command(tmp_path_factory):
    """The document a quick demo prints, and the folder it writes."""
    out = tmp_path_factory.mktemp("demo") / "new" / "demo"
    with redirect_stdout(io.StringIO()) as printed:
        assert cli.main(["demo", "--quick", "--out", str(out), "--json"]) == 0
    return json.loads(printed.getvalue()), out


def test_it_prints_one_document_and_writes_a_page_and_figures(by_command):
    document, out = by_command
    json.dumps(document, allow_nan=False)
    assert [(row["data"], row["method"], row["protected"]) for row in document["rows"]] == [
        (data, training, protected)
        for data, held in (("loan", "age"), ("moons", "x1"))
        for protected in ("", held)
        for training in ("conventional", "counterfactual")
    ]
    assert all(set(row) >= METRICS for row in document["rows"])
    assert sorted(document["files"]) == sorted(str(path) for path in out.iterdir())
    page = (out / "report.html").read_text()
    for row in document["rows"]:  # the page's numbers are the table's
        assert (
            f"<td>{row['implausibility']:.2f}</td>" in page
            or f'<td class="best">{row["implausibility"]:.2f}</td>' in page
        )
    assert f"ct demo --quick --out {out} --json" in page
    assert (out / "figure1.png").read_bytes().startswith(b"\x89PNG")
    assert len(document["advice"]) == 3 and document["advice"][0]["conventional"].endswith(".")


def test_python_code_writes_what_the_command_writes(by_command, tmp_path):
    _, out = by_command
    files = write_demo(run_demo(quick=True), tmp_path)
    assert [Path(file).name for file in files] == [
        "report.html",
        "figure1.png",
        "moons.png",
        "loan.csv",
        "loan.safetensors",
        "loan-conventional.safetensors",
    ]
    for name in ("figure1.png", "moons.png"):
        assert (tmp_path / name).read_bytes() == (out / name).read_bytes()
    pages = [(folder / "report.html").read_text() for folder in (tmp_path, out)]
    cells = [re.findall(r"<td[ >].*?</td>", page, re.DOTALL) for page in pages]
    assert cells[0] == cells[1] and len(cells[0]) > 8 * len(METRICS)
    assert "To run this again" not in pages[0] and "To run this again" in pages[1]
