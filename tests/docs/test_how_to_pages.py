"""Every block of the pages in docs/how-to runs and prints what the page shows."""

import pytest

from run_pages import pages, runs

pytestmark = pytest.mark.check

test_page = runs(pages("how-to"))
