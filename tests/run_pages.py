"""One test for each page of a folder. A file of tests for each folder, so that they run side by
side.
"""

import gc
from collections.abc import Callable
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

from tools.pages import empty_folder, run_page

ROOT = Path(__file__).parent.parent
# Half a minute each as they stand. After changing one: python -m tools.pages docs/how-to/tuning.md
TOO_LONG = {"imbalanced", "reproduce-a-cell", "tuning"}


def pages(folder: str) -> list[Path]:
    found = sorted((ROOT / "docs" / folder).glob("*.md"))
    assert found, f"docs/{folder} has no pages"
    return found


def runs(found: list[Path]) -> Callable[..., None]:
    @pytest.mark.filterwarnings("ignore")
    @pytest.mark.parametrize("page", found, ids=lambda page: page.stem)
    def test_page(page, undisturbed):
        with empty_folder():
            result = run_page(page, "always" if page.stem in TOO_LONG else "needed")
        plt.close("all")
        gc.collect()
        assert not result.faults + result.outdated, "\n".join(result.faults + result.outdated)

    return test_page
