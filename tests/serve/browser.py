"""Chromium, driven by Playwright; pages of servers that run in this process, and what tests do on
them.
"""

import contextlib
import shutil
from collections.abc import Iterator

import numpy as np
import pandas as pd
import pytest
from serving import PATIENCE, LocalServer

from counterfactual_serve.served import Model, Served, ServedRows
from counterfactual_training.tables.estimators.classifier import CounterfactualClassifier

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
WIDE, PHONE = {"width": 1400, "height": 900}, {"width": 400, "height": 850}

# Tells on the document what the page still waits for: `data-timers` counts timers that are about to
# do something, and `data-calm` is there once several frames after `stir()` nothing was waited for,
# no request either. The watch over the server gets more time: a busy machine is not a lost
# connection.
WATCH = """
(() => {
  const later = window.setTimeout, never = window.clearTimeout;
  const ask = window.fetch, limit = AbortSignal.timeout;
  const timers = new Set();
  let requests = 0, calm = 0;
  const count = () => { document.documentElement.dataset.timers = timers.size; };
  window.setTimeout = (act, wait, ...rest) => {
    const timer = later(() => { timers.delete(timer); count(); act(...rest); }, wait);
    if (!(wait >= 1000)) { timers.add(timer); count(); }
    return timer;
  };
  window.clearTimeout = (timer) => { if (timers.delete(timer)) count(); never(timer); };
  window.fetch = async (what, how) => {
    if (String(what).endsWith("health")) return ask(what, how);
    requests += 1;
    try {
      const answer = await ask(what, how);
      await answer.clone().arrayBuffer();
      return answer;
    } finally {
      // Whoever asked has had its turn by then, and may have asked again.
      later(() => { requests -= 1; }, 0);
    }
  };
  AbortSignal.timeout = (wait) => limit(60 * wait);
  const look = () => {
    calm = requests || timers.size ? 0 : calm + 1;
    if (calm > 3) document.documentElement.dataset.calm = "";
    else requestAnimationFrame(look);
  };
  window.stir = () => {
    delete document.documentElement.dataset.calm;
    calm = 0;
    requestAnimationFrame(look);
  };
})();
"""


def find_browser() -> str:
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is installed")
    return found


@contextlib.contextmanager
def chromium() -> Iterator:
    """The browser; tests are skipped where it or Playwright is missing."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed"
    )
    path = find_browser()
    playwright.expect.set_options(timeout=1000 * PATIENCE)
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-gpu"]
        )
        yield browser
        browser.close()


class Watch:
    """What a page asks for and complains about."""

    def __init__(self, page, url: str) -> None:
        self.url, self.asked, self.complaints = url, [], []
        page.on("request", lambda request: self.asked.append(request.url))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", self._hear)

    def _hear(self, message) -> None:
        # That a request failed is said by the browser itself, also where a test makes it fail.
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.complaints.append(message.text)

    def check(self) -> None:
        """No request left the machine, and nothing went wrong in the page."""
        assert not self.complaints, self.complaints
        away = [url for url in self.asked if not url.startswith((self.url, "data:", "blob:"))]
        assert not away, away


def _limit(route, options: int) -> None:
    response = route.fetch()
    found = response.json()
    if "limits" in found:  # no refusal
        found["limits"]["options"] = options
    route.fulfill(response=response, json=found)


@contextlib.contextmanager
def opened(
    browser, server: LocalServer, hash: str = "", size=WIDE, options: int = 1, **settings
) -> Iterator:
    """A page of its own, watched; at the end it must have asked nobody but the server.

    It offers so many plans; the others, that most tests do not look at, take most of the time.
    """
    context = browser.new_context(viewport=size, accept_downloads=True, **settings)
    context.set_default_timeout(1000 * PATIENCE)
    context.add_init_script(WATCH)
    page = context.new_page()
    try:
        watch = Watch(page, server.url)
        page.route("**/api/v1/model", lambda route: _limit(route, options))
        page.goto(server.url + hash)
        yield page
        watch.check()
    finally:
        context.close()


def settled(page) -> None:
    """Wait until no panel that is shown is at work."""
    page.locator("main .panel >> visible=true").first.wait_for()
    page.evaluate("stir()")
    page.locator("html[data-calm]").wait_for(state="attached")
    page.locator(".busy >> visible=true").first.wait_for(state="detached")


def go(page, name: str) -> None:
    """To a panel, by its link."""
    page.locator(f"#nav a[href='#{name}'] >> visible=true").click()
    settled(page)


def key(page, name: str):
    """A control by the name that the page gives it."""
    return page.locator(f"[data-key='{name}'] >> visible=true")


def ask_again(page) -> None:
    key(page, "ask").click()
    settled(page)


def changed_columns(page) -> list[list[str]]:
    """Columns that each plan shown changes."""
    plans = page.locator("#plans-content .plan").all()
    return [plan.locator(".changes .name").all_inner_texts() for plan in plans]


ODD_CLASS, ODD_CATEGORY = (
    "<script>document.title='class'</script>",
    "<img src=x onerror=document.title='category'>",
)
ODD_NAMES = ("<b>bold</b>", "größe 📏 שלום", "a_very_long_name_" * 8)


def odd_model() -> Served:
    """A model whose columns, categories and classes try to be HTML, to be long, and to be many."""
    rng = np.random.default_rng(0)
    columns = {name: rng.choice([ODD_CATEGORY, "plain", "x" * 150], 120) for name in ODD_NAMES}
    frame = pd.DataFrame(columns | {f"column {i}": rng.normal(size=120) for i in range(110)})
    score = frame["column 0"] + (frame[ODD_NAMES[0]] == "plain")
    y = pd.Series(np.where(score > 0.5, "fine", ODD_CLASS), dtype=object)
    classifier = CounterfactualClassifier(
        epochs=2, random_state=0, progress=False, gate="none", hidden=(8,)
    )
    model = Model(classifier.fit(frame, y), "odd.safetensors", "c" * 64, "fine")
    return Served(model, rows=ServedRows("odd.csv", frame, y, total=len(frame)))
