"""Every block of the pages in docs/tutorials runs and prints what the page shows."""

from run_pages import pages, runs

test_page = runs(pages("tutorials"))
