"""Pages and provenance of results name files of the repository that exist."""

import re

import pytest

from run_pages import ROOT

FOLDERS = "docs|results|src|examples|benchmarks|lab|tools|tests"
# A path as it stands in a sentence, a command or a link, up to its last letter or digit.
PATH = re.compile(rf"(?<![\w/.-])(?:\.\./)*((?:{FOLDERS})/[\w./-]*\w)")
MODULE = re.compile(r"python -m ((?:benchmarks|lab|tools)[\w.]*\w)")
PAGES = [ROOT / "README.md", ROOT / "docs" / "explanation" / "gains.md"]
PAGES += sorted(
    path for kind in ("md", "json") for path in (ROOT / "results").rglob(f"*.{kind}")
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_path_that_a_page_names_exists(page):
    text = page.read_text(encoding="utf-8")
    paths = set(PATH.findall(text))
    paths |= {module.replace(".", "/") for module in MODULE.findall(text)}
    missing = [
        path
        for path in paths
        if not (ROOT / path).exists() and not (ROOT / f"{path}.py").exists()
    ]
    assert missing == []


def test_the_readme_names_paths():
    """The pattern finds what it is there for."""
    assert "results/rules.md" in PATH.findall(PAGES[0].read_text(encoding="utf-8"))
    assert PATH.findall("see `ct truth --page docs/gains.md`.") == ["docs/gains.md"]
