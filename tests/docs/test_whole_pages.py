"""Pages that tests shorten, once more as they stand: only then can what they show be compared."""

import pytest

from run_pages import ROOT, runs
from tools.markdown import blocks

# Half a minute each. After changing one: python -m tools.pages docs/how-to/tuning.md
TOO_LONG = {"imbalanced", "reproduce-a-cell", "tuning"}
SHORTENED = [
    page
    for page in sorted((ROOT / "docs").rglob("*.md"))
    if page.stem not in TOO_LONG
    and any(block.quick and block.runs(quick=False) for block in blocks(page.read_text(encoding="utf-8")))
]

test_page = pytest.mark.exhaustive(runs(SHORTENED, quick=False))


def test_some_pages_are_shortened():
    assert len(SHORTENED) > 5
