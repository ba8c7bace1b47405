"""Build the documentation site from a copy of the pages, and check it.

    python -m tools.site           # writes site/; open site/index.html
    python -m tools.site --serve   # the same, on a local port

Pages link to other files of the repository, as they should when read there. In the site, whatever
they link to comes along: results and pictures as they are, source files as pages. README.md becomes
the first page.
"""

from __future__ import annotations

import argparse
import http.server
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from tools.names import undocumented
from tools.notebooks import write_notebooks
from tools.reference import write_reference

ROOT = Path(__file__).parent.parent
STAGED = ROOT / "build" / "docs"
SITE = ROOT / "site"
_LINK = re.compile(r"`[^`]+`|(\]\()([^)\s]+)(\))")  # code that looks like a link is none
_FENCE = re.compile(r"^ *(```+)")
_SOURCES = {".py": "python", ".toml": "toml"}
_UNSEARCHED = (
    "---\nsearch:\n  exclude: true\n---\n\n"  # code and tables would bury what explains them
)
# The theme takes this from a CDN to search in pages that were opened from a folder; ours is in
# docs/assets.
_SHIM = "https://unpkg.com/iframe-worker/shim"
_LOCAL_SHIM = "assets/iframe-worker.js"


# ---- staging -------------------------------------------------------------------------------------


def stage() -> None:
    """Copy all pages, and what they link to, with links that hold in the site."""
    shutil.rmtree(STAGED, ignore_errors=True)
    shutil.copytree(ROOT / "docs" / "assets", STAGED / "assets")
    waiting = [
        *sorted((ROOT / "docs").rglob("*.md")),
        *(ROOT / name for name in ("README.md", "ARCHITECTURE.md")),
    ]
    waiting += [ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", ROOT / "results" / "README.md"]
    done: dict[PurePosixPath, Path] = {}
    while waiting:
        path = waiting.pop()
        if (before := done.setdefault(site_path(path), path)) != path:
            sys.exit(
                f"{before.relative_to(ROOT)} and {path.relative_to(ROOT)} have the same place in "
                "the site."
            )
        if (STAGED / site_path(path)).exists():
            waiting += []
        else:
            waiting += _stage(path)


def site_path(path: Path) -> PurePosixPath:
    """Where a file of the repository stands in the site."""
    inside = PurePosixPath(path.relative_to(ROOT).as_posix())
    if inside == PurePosixPath("README.md"):
        return PurePosixPath("index.md")
    if inside.parts[0] == "docs":
        return PurePosixPath(*inside.parts[1:])
    if path.is_dir():
        return inside / "index.md"
    # A page of its own, which would be overwritten.
    if path.suffix == ".md" and path.with_suffix(".html").is_file():
        return inside.with_name(f"{path.stem}-tables.md")
    if path.suffix in _SOURCES:
        return inside.with_suffix(".md")
    return inside


def _stage(path: Path) -> list[Path]:
    """Write one file of the site, and return what it links to."""
    target = STAGED / site_path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    linked: list[Path] = []
    if path.is_dir():
        linked = sorted(
            inner for inner in path.iterdir() if not inner.name.startswith((".", "__"))
        )
        files = [
            f"- [{inner.name}]({os.path.relpath(STAGED / site_path(inner), target.parent)})"
            for inner in linked
        ]
        text = "\n".join([f"# {path.relative_to(ROOT)}", "", *files]) + "\n"
        target.write_text(_UNSEARCHED + text, encoding="utf-8")
    elif path.suffix in _SOURCES:
        name = path.relative_to(ROOT)
        code = path.read_text(encoding="utf-8").rstrip()
        text = f"# {name}\n\n````{_SOURCES[path.suffix]}\n{code}\n````\n"
        target.write_text(_UNSEARCHED + text, encoding="utf-8")
    elif path.suffix == ".md":
        text = _relinked(path, linked)
        if (notebook := path.with_suffix(".ipynb")).is_file():
            linked.append(notebook)
            title, rest = text.split("\n", 1)
            text = f"{title}\n\n[This page as a notebook]({notebook.name})\n{rest}"
        searched = path.parts[len(ROOT.parts)] != "results" or path.name == "README.md"
        target.write_text(text if searched else _UNSEARCHED + text, encoding="utf-8")
    else:
        shutil.copyfile(path, target)
    return linked


def _relinked(path: Path, linked: list[Path]) -> str:
    """The text of a page, its links as they are in the site; what they lead to is added to
    ``linked``.
    """

    def relink(match: re.Match[str]) -> str:
        address, sharp, anchor = (match[2] or "").partition("#")
        if not address or urlsplit(address).scheme:
            return match[0]
        to = Path(os.path.normpath(path.parent / address))
        if not to.exists():
            sys.exit(f"{path.relative_to(ROOT)} links to {address}, which does not exist.")
        linked.append(to)
        relative = os.path.relpath(site_path(to), site_path(path).parent)
        return f"{match[1]}{relative}{sharp}{anchor}{match[3]}"

    return "".join(
        line if code else _LINK.sub(relink, line)
        for line, code in _with_code(path.read_text(encoding="utf-8"))
    )


def _with_code(text: str) -> Iterator[tuple[str, bool]]:
    """Lines of a page, and whether each is code."""
    fence = ""
    for line in text.splitlines(keepends=True):
        ticks = _FENCE.match(line)
        yield line, bool(fence or ticks)
        if ticks and not fence:
            fence = ticks[1]
        elif fence and line.strip() == fence:
            fence = ""


# ---- building ------------------------------------------------------------------------------------


def build() -> None:
    """Build strictly: a link to nowhere or a name that is not there fails."""
    shutil.rmtree(SITE, ignore_errors=True)
    command = [Path(sys.executable).with_name("zensical"), "build", "--strict", "--clean"]
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{done.stdout}\n{done.stderr}")
    for page in SITE.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        page.write_text(
            text.replace(_SHIM, os.path.relpath(SITE / _LOCAL_SHIM, page.parent)),
            encoding="utf-8",
        )


class _Page(HTMLParser):
    """What a page links to, what it loads, and the anchors that it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif tag == "link" and values.get("rel") not in ("canonical", "prev", "next"):
            self.loads.append(values.get("href", ""))
        elif tag in ("img", "script") and values.get("src"):
            self.loads.append(values["src"])


def faults(site: Path = SITE) -> list[str]:
    """Links to pages or anchors that are not there, and whatever would be loaded from another
    host.
    """
    pages = {
        path: _Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))
    }
    messages = []
    for path, page in pages.items():
        message: Callable[[str], str] = partial("{}: {}".format, path.relative_to(site))
        messages += [
            message(f"loads {url} from another host")
            for url in page.loads
            if urlsplit(url).netloc
        ]
        for url in [*page.links, *page.loads]:
            parts = urlsplit(url)
            if parts.scheme or parts.netloc or path.name == "404.html":
                continue
            if parts.path:
                to = Path(os.path.normpath(path.parent / unquote(parts.path)))
            else:
                to = path
            if to.is_dir():
                to = to / "index.html"
            if not to.is_file():
                messages.append(message(f"{url} does not exist"))
            elif (
                parts.fragment
                and to in pages
                and unquote(parts.fragment) not in pages[to].anchors
            ):
                messages.append(message(f"{url} has no such anchor"))
    return messages


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--serve", action="store_true", help="serve the site on a local port afterwards"
    )
    serve = parser.parse_args().serve
    if missing := undocumented():
        sys.exit(
            f"Public names without a docstring or a place in the reference: {', '.join(missing)}."
        )
    write_reference()
    write_notebooks()
    stage()
    build()
    if wrong := faults():
        sys.exit("\n".join(wrong))
    print(
        f"{sum(1 for _ in SITE.rglob('*.html'))} pages: open "
        f"{(SITE / 'index.html').relative_to(ROOT)}"
    )
    if serve:
        handler = partial(http.server.SimpleHTTPRequestHandler, directory=SITE)
        with http.server.ThreadingHTTPServer(("127.0.0.1", 8001), handler) as server:
            print("http://127.0.0.1:8001 (Ctrl-C ends)")
            server.serve_forever()


if __name__ == "__main__":
    main()
