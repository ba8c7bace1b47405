"""The site that `make docs` built, in a real browser, from its folder: offline, wide and narrow,
light and dark.
"""

import re
import shutil
from pathlib import Path

import pytest

from run_pages import ROOT

SITE = ROOT / "site"
CHROMIUM = shutil.which("chromium")
PAGES = (
    "index.html",
    "tutorials/dataframe.html",
    "explanation/method.html",
    "reference/settings.html",
)

pytestmark = [
    pytest.mark.check,
    pytest.mark.skipif(not CHROMIUM, reason="Chromium is not installed"),
    pytest.mark.skipif(
        not (SITE / "index.html").is_file(), reason="the site is not built: make docs"
    ),
]


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-background-networking"]
        )
        yield opened
        opened.close()


@pytest.fixture
def tab(browser):
    """A page that notes what it asks of the network, and what goes wrong in it."""
    page = browser.new_page()
    page.wrong = []
    page.on(
        "request",
        lambda asked: page.wrong.append(asked.url) if asked.url.startswith("http") else None,
    )
    page.on("requestfailed", lambda asked: page.wrong.append(asked.url))
    page.on("pageerror", lambda error: page.wrong.append(str(error)))
    yield page
    page.close()
    assert not page.wrong


def address(page: str) -> str:
    return Path(SITE / page).as_uri()


def test_search_works_from_a_folder(tab):
    tab.goto(address("index.html"))
    tab.wait_for_load_state("networkidle")
    tab.keyboard.press("Control+k")
    tab.keyboard.type("plausibility floor")
    tab.get_by_text(re.compile(r"\d+ results")).first.wait_for(timeout=10_000)
    tab.keyboard.press("Enter")
    tab.wait_for_url("**/explanation/plausibility.html**", timeout=10_000)


def test_formulas_are_set(tab):
    tab.goto(address("explanation/method.html"))
    tab.locator(".katex").first.wait_for(timeout=10_000)
    assert tab.locator(".katex").count() > 20 and tab.locator(".katex-error").count() == 0
    assert "$$" not in tab.locator("article").inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1400])
def test_no_page_is_wider_than_its_window(width, scheme, tab):
    tab.set_viewport_size({"width": width, "height": 900})
    tab.emulate_media(color_scheme=scheme)
    for name in PAGES:
        tab.goto(address(name))
        tab.wait_for_timeout(200)
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        light = (
            tab.evaluate("getComputedStyle(document.body).backgroundColor").count("255") == 3
        )
        assert light == (scheme == "light")
