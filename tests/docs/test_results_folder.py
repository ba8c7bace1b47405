"""The folder ``results/`` stays small, and its README names each file with the command that writes
it.
"""

import re
import subprocess
from fnmatch import fnmatch

import pytest

from run_pages import ROOT

RESULTS = ROOT / "results"
MEGABYTES = 3


@pytest.fixture(scope="module")
def tracked():
    """Paths in ``results/`` that git keeps, without those deleted since the last commit."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git repository")
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=RESULTS, check=True, capture_output=True, text=True
    ).stdout
    return [path for path in listed.split("\0") if path and (RESULTS / path).is_file()]


@pytest.fixture(scope="module")
def named():
    """What the first column of the first table names; a star stands for any part of a name."""
    text = (RESULTS / "README.md").read_text(encoding="utf-8")
    kept = text[: text.index("\n## ")]
    rows = [line for line in kept.splitlines() if line.startswith("| `")]
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[1])]


def test_it_is_small(tracked):
    assert sum((RESULTS / path).stat().st_size for path in tracked) <= MEGABYTES * 1e6


def test_every_file_is_named(tracked, named):
    assert [path for path in tracked if not any(matches(path, name) for name in named)] == []


def test_every_name_is_that_of_a_file(tracked, named):
    assert [name for name in named if not any(matches(path, name) for path in tracked)] == []


def matches(path, name):
    """As a shell does: a star does not reach into folders."""
    return path.count("/") == name.count("/") and fnmatch(path, name)
