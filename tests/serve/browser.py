"""A real browser and real servers: `ct serve` in a process of its own, Chromium driven by Playwright."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from serving import make_people, train

from counterfactual_training.estimator import CounterfactualClassifier

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
WIDE, PHONE = {"width": 1400, "height": 900}, {"width": 400, "height": 850}
# Milliseconds that the page has for an answer: generous, because other tests run beside.
PATIENCE = 30_000


class Server:
    """`ct serve` in a process, that can be killed and started again on the same port."""

    def __init__(self, model: Path, *arguments: str, token: str | None = None) -> None:
        self.command = [str(model), *arguments]
        self.token, self.port, self.url = token, 0, ""
        self.process: subprocess.Popen | None = None

    def start(self) -> "Server":
        self.begin()
        return self.ready()

    def begin(self) -> None:
        command = [sys.executable, "-m", "counterfactual_training.cli", "serve", *self.command, "--no-open", "--json"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"} | ({"CT_TOKEN": self.token} if self.token else {})
        self.process = subprocess.Popen(
            [*command, "--workers", "1", "--port", str(self.port), "--log-level", "error"],
            stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True,
        )  # fmt: skip

    def ready(self) -> "Server":
        """Wait until it answers."""
        assert self.process is not None and self.process.stdout is not None
        # The document comes in one piece, but over several lines.
        text = ""
        while not text.rstrip().endswith("}"):
            line = self.process.stdout.readline()
            assert line, f"the server ended: {self.process.poll()}"
            text += line
        self.url = json.loads(text)["url"].partition("#")[0]
        self.port = int(self.url.rstrip("/").rpartition(":")[2])
        for _ in range(200):
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}health", timeout=2):  # noqa: S310
                return self
            time.sleep(0.1)
        raise AssertionError("the server does not answer")

    def kill(self) -> None:
        """As `kill -9` does: no time to say goodbye."""
        if self.process is not None and self.process.poll() is None:
            # The process only, by its id: its workers end when they find it gone.
            self.process.kill()
            self.process.wait()


def find_browser() -> str:
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is installed")
    return found


@pytest.fixture(scope="module", name="browser")
def run_browser() -> Iterator:
    """Chromium; the tests are skipped where it or Playwright is missing."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = find_browser()
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield chromium
        chromium.close()


def save_models(folder: Path) -> tuple[Path, Path, Path]:
    """Files of a model, of a rival, and of people."""
    files = folder / "people.safetensors", folder / "rival.safetensors", folder / "people.csv"
    train().save(files[0])
    train(seed=1, gate="none").save(files[1])
    frame, y = make_people(200, seed=1)
    frame.assign(decided=y).to_csv(files[2], index=False)
    return files


def people_server(folder: Path) -> Server:
    """A server with rows and two models."""
    model, rival, data = save_models(folder)
    given = ("--against", str(rival), "--data", str(data), "--target-column", "decided", "--target", "granted")
    return Server(model, *given)


@pytest.fixture(scope="module", name="server")
def run_server(tmp_path_factory, browser) -> Iterator[Server]:
    running = people_server(tmp_path_factory.mktemp("served")).start()
    yield running
    running.kill()


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
def opened(browser, server: Server, hash: str = "", size=WIDE, options: int = 1, **settings) -> Iterator:
    """A page of its own, watched; at the end it must have asked nobody but the server.

    It offers so many plans; the others, that most tests do not look at, take most of the time.
    """
    context = browser.new_context(viewport=size, accept_downloads=True, **settings)
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    watch = Watch(page, server.url)
    page.route("**/api/v1/model", lambda route: _limit(route, options))
    page.goto(server.url + hash)
    yield page
    watch.check()
    context.close()


def settled(page) -> None:
    """Wait until no panel that is shown is at work."""
    page.locator("main .panel >> visible=true").first.wait_for()
    page.wait_for_timeout(50)  # what a click begins, begins after it
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


ODD_CLASS, ODD_CATEGORY = "<script>document.title='class'</script>", "<img src=x onerror=document.title='category'>"
ODD_NAMES = ("<b>bold</b>", "größe 📏 שלום", "a_very_long_name_" * 8)


def odd_server(folder: Path, token: str | None = None) -> Server:
    """A server whose columns, categories and classes try to be HTML, to be long, and to be many."""
    import numpy as np
    import pandas as pd

    rng = np.random.default_rng(0)
    columns = {name: rng.choice([ODD_CATEGORY, "plain", "x" * 150], 120) for name in ODD_NAMES}
    frame = pd.DataFrame(columns | {f"column {i}": rng.normal(size=120) for i in range(110)})
    score = frame["column 0"] + (frame[ODD_NAMES[0]] == "plain")
    y = pd.Series(np.where(score > 0.5, "fine", ODD_CLASS), dtype=object)
    classifier = CounterfactualClassifier(epochs=2, random_state=0, progress=False, gate="none", hidden=(8,))
    classifier.fit(frame, y).save(folder / "odd.safetensors")
    frame.assign(decided=y).to_csv(folder / "odd.csv", index=False)
    given = ("--data", str(folder / "odd.csv"), "--target-column", "decided", "--target", "fine")
    return Server(folder / "odd.safetensors", *given, token=token)
