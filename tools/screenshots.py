"""Pictures of every panel of `ct serve`, at three widths, light and dark, to be looked at.

    python -m tools.screenshots OUT MODEL --data FILE [--against MODEL] [--positive CLASS]
    [--target COLUMN]

Needs Playwright and Chromium or Chrome. Exits with an error if a panel is wider than the screen, or
complains.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from counterfactual_lab.reports.style import palette_png

PANELS = ("people", "plans", "map", "compare", "groups", "card", "receipt")
WIDTHS = {1400: 900, 900: 1000, 400: 850}
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
# Milliseconds: a model card and an audit take their time.
PATIENCE = 180_000


def main() -> None:
    arguments = _read()
    arguments.out.mkdir(parents=True, exist_ok=True)
    with _serving(arguments) as url, browsing() as browser:
        complaints = [
            complaint
            for scheme in ("light", "dark")
            for width, height in WIDTHS.items()
            for complaint in _photograph(browser, url, arguments.out, scheme, width, height)
        ]
    print(f"{len(list(arguments.out.glob('*.png')))} pictures in {arguments.out}")
    if complaints:
        sys.exit("\n".join(complaints))


def _read() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("model")
    for name in ("--data", "--against", "--positive", "--target"):
        parser.add_argument(name)
    return parser.parse_args()


@contextmanager
def _serving(arguments: argparse.Namespace) -> Iterator[str]:
    """The address of a server that ends with the block."""
    command = [
        sys.executable,
        "-m",
        "counterfactual_training.cli",
        "serve",
        arguments.model,
        "--json",
        "--no-open",
    ]
    for name in ("data", "against", "positive", "target"):
        if getattr(arguments, name) is not None:
            command += [f"--{name}", getattr(arguments, name)]
    process = subprocess.Popen(
        [*command, "--port", "0", "--log-level", "error"], stdout=subprocess.PIPE, text=True
    )
    try:
        yield _address(process)
    finally:
        process.terminate()
        process.wait()


def _address(process: subprocess.Popen[str]) -> str:
    text = ""
    while not text.rstrip().endswith("}"):
        if process.stdout:
            line = process.stdout.readline()
        else:
            line = ""
        if not line:
            sys.exit("ct serve did not start")
        text += line
    url: str = json.loads(text)["url"]
    for _ in range(100):
        with suppress(OSError), urlopen(f"{url}health", timeout=2):  # noqa: S310
            return url
        time.sleep(0.2)
    sys.exit("ct serve does not answer")


@contextmanager
def browsing() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        sys.exit(f"no browser found: install one of {', '.join(BROWSERS)}")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-gpu"]
        )
        yield browser
        browser.close()


def _photograph(
    browser: Any, url: str, out: Path, scheme: str, width: int, height: int
) -> Iterator[str]:
    """Write one picture per panel; yield what is wrong with them."""
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme
    )
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(url)
    page.locator("main .panel >> visible=true").first.wait_for()
    for name in PANELS:
        page.goto(f"{url}#{name}")
        if not page.locator(f"#panel-{name}").is_visible():
            continue  # there is nothing to compare with, or no data
        _fill(page, name)
        picture = palette_png(page.screenshot(full_page=True))
        (out / f"{name}-{width}-{scheme}.png").write_bytes(picture)
        wide = page.evaluate("document.documentElement.scrollWidth")
        if wide > width:
            yield f"{name}, {width} pixels, {scheme}: the page is {wide} pixels wide"
    context.close()
    yield from errors


def _fill(page: Any, name: str) -> None:
    """What takes a click, and waiting."""
    if name == "groups":
        page.locator("#run-audit").click()
        page.locator("#audit h3").first.wait_for()
    page.wait_for_timeout(200)
    page.locator(".busy >> visible=true").first.wait_for(state="detached")
    page.wait_for_timeout(300)


if __name__ == "__main__":
    main()
