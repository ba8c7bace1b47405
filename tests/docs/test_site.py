"""Pages that come from code are up to date, every page has a place, and the checks of the site find
what is wrong.
"""

import json
from pathlib import Path

import pytest

from run_pages import ROOT
from tools import reference, site
from tools.notebooks import TUTORIALS, notebook

yaml = pytest.importorskip("yaml", reason="the site needs the extra 'dev': make check")

pytestmark = pytest.mark.check

NAV = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
NOTEBOOKS = sorted(TUTORIALS.glob("*.ipynb"))


def leaves(nav: object) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    return [
        leaf
        for inner in (nav.values() if isinstance(nav, dict) else nav)
        for leaf in leaves(inner)
    ]


def test_every_page_is_in_the_navigation_once():
    there = {
        path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")
    }
    named = leaves(NAV)
    assert len(set(named)) == len(named)
    assert set(named) - there == {
        "index.md",
        "ARCHITECTURE.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "results/README.md",
    }
    assert not there - set(named)


@pytest.mark.parametrize("name", reference.PAGES)
def test_reference_pages_are_what_the_code_says(name):
    assert (reference.REFERENCE / name).read_text(encoding="utf-8") == reference.PAGES[
        name
    ](), "run python -m tools.reference"


def test_settings_tell_every_field_and_its_meaning():
    page = (reference.REFERENCE / "settings.md").read_text(encoding="utf-8")
    assert "| `epochs` | `100` | passes over the data. |" in page
    empty = [
        line
        for line in page.splitlines()
        if line.startswith("| `") and line.rstrip("| ").endswith("`")
    ]
    assert not [line for line in empty if line.endswith("|  |")]


def test_every_tutorial_is_a_notebook():
    assert {path.stem for path in NOTEBOOKS} == {
        path.stem for path in TUTORIALS.glob("*.md")
    } - {"index"}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_what_their_pages_say(path):
    import nbformat

    text = path.read_text(encoding="utf-8")
    assert text == notebook(path.with_suffix(".md")), "run python -m tools.notebooks"
    nbformat.validate(nbformat.reads(text, as_version=4))
    kinds = {cell["cell_type"] for cell in json.loads(text)["cells"]}
    assert kinds == {"code", "markdown"} and "```python" not in text


def test_a_notebook_runs(tmp_path):
    import nbformat
    from nbclient import NotebookClient

    book = nbformat.read(TUTORIALS / "dataframe.ipynb", as_version=4)
    done = NotebookClient(
        book, timeout=300, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    shown = [out for cell in done.cells if cell.cell_type == "code" for out in cell.outputs]
    assert any("image/png" in out.get("data", {}) for out in shown) and any(
        "would be" in str(out) for out in shown
    )


def test_links_lead_to_where_the_site_has_it(tmp_path, monkeypatch):
    monkeypatch.setattr(site, "ROOT", tmp_path)
    for name in (
        "README.md",
        "docs/how-to/serve.md",
        "results/a.csv",
        "examples/b.py",
        "results/more/c.csv",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    page = tmp_path / "docs" / "how-to" / "serve.md"
    page.write_text(
        "[a](../../results/a.csv) [b](../../examples/b.py#x) [c](../../README.md) "
        "[d](../../results/more)\n"
        "[e](https://example.org) [f](#here)\n```\n[g](nowhere.md)\n```\n"
    )
    linked: list[Path] = []
    assert site._relinked(page, linked) == (
        "[a](../results/a.csv) [b](../examples/b.md#x) [c](../index.md) "
        "[d](../results/more/index.md)\n"
        "[e](https://example.org) [f](#here)\n```\n[g](nowhere.md)\n```\n"
    )
    assert [path.name for path in linked] == ["a.csv", "b.py", "README.md", "more"]
    page.write_text("[h](gone.md)")
    with pytest.raises(
        SystemExit, match=r"how-to/serve\.md links to gone\.md, which does not exist"
    ):
        site._relinked(page, [])


def test_the_check_of_a_site_finds_what_is_wrong(tmp_path):
    (tmp_path / "a.html").write_text(
        '<a href="b.html#x">1</a><a href="c.html">2</a><a href="b.html#y">3</a>'
    )
    (tmp_path / "b.html").write_text(
        '<p id="x"><script src="https://cdn.example/x.js"></script><img src="x.png">'
    )
    assert sorted(site.faults(tmp_path)) == [
        "a.html: b.html#y has no such anchor",
        "a.html: c.html does not exist",
        "b.html: loads https://cdn.example/x.js from another host",
        "b.html: x.png does not exist",
    ]
