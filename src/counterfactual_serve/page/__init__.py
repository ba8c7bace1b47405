"""The page: one template, a style and a script that ``make page`` builds from ``source/``. It holds
no data, and asks the API for all of it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import jinja2
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from counterfactual_serve.served import Served

_HERE = Path(__file__).parent
_KINDS = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
# Names change with the content, so a browser may keep what it has.
_FOR_EVER = "public, max-age=31536000, immutable"


def make_page(served: Served) -> list[Route]:
    """The routes of the page and of its files."""
    files = {
        path.name: path.read_bytes()
        for path in sorted((_HERE / "static").iterdir())
        if path.suffix in _KINDS
    }
    urls = {
        name: f"static/{name}?v={hashlib.sha256(content).hexdigest()[:12]}"
        for name, content in files.items()
    }
    loader = jinja2.FileSystemLoader(_HERE / "templates")
    environment = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined
    )
    title = served.model.name
    page = environment.get_template("index.html").render(
        title=title, lang="en", bundle=urls["page.js"], style=urls["page.css"]
    )

    async def index(request: Request) -> Response:
        return Response(page, media_type="text/html")

    def file(name: str) -> Route:
        async def send(request: Request) -> Response:
            return Response(
                files[name],
                headers={"content-type": _KINDS[Path(name).suffix], "cache-control": _FOR_EVER},
            )

        return Route(f"/static/{name}", send, methods=["GET"])

    return [Route("/", index, methods=["GET"]), *map(file, files)]
