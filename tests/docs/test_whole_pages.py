"""Pages that tests shorten, once more as they stand: only then can what they show be compared."""

import pytest

from run_pages import ROOT, runs
from tools.markdown import blocks

SHORTENED = [
    page
    for page in sorted((ROOT / "docs").rglob("*.md"))
    if any(block.quick and block.runs(quick=False) for block in blocks(page.read_text(encoding="utf-8")))
]

test_page = pytest.mark.exhaustive(runs(SHORTENED, quick=False))


def test_some_pages_are_shortened():
    assert SHORTENED
