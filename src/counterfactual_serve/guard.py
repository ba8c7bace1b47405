"""The checks that every request passes first, and the headers that every answer carries.

* The ``Host`` must be one that the server is known by. A page of another site whose name was
  pointed to this machine (DNS rebinding) sends its own.
* A browser says where a request comes from, in ``Origin`` and ``Sec-Fetch-Site``: only our own page
  may ask.
* Bodies are JSON and nothing else (:func:`check_json`): what a form of another page can send is
  refused, so no request can be forged.
* With a token, the API answers only requests that carry it.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass
from typing import Any

from counterfactual_serve.metrics import Metrics, log
from counterfactual_serve.reading import RefusedError
from counterfactual_serve.served import API

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = (
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
    (b"x-api-version", str(API).encode()),
)
# An address in brackets, or a name; then perhaps a port.
_HOST = re.compile(r"(?:\[(?P<six>[0-9a-f:.]+)\]|(?P<name>[^\s:/@\[\]]+))(?::\d{1,5})?")
LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Access:
    """Who may ask.

    Attributes:
        hosts: names that the server is known by, without ports.
        token: what the API asks for; ``None`` asks for nothing.
    """

    hosts: tuple[str, ...] = LOOPBACK
    token: str | None = None

    def check(self, scope: Scope) -> None:
        """Raise :class:`RefusedError` unless the request may pass."""
        closed = not _open(route_of(scope))
        headers = _headers(scope)
        host = self._host(headers)
        origin = _only(headers, "origin")
        # The scheme is not compared: behind a proxy, the page is https and this request is not.
        if origin is not None and origin.partition("://")[2].lower() != host.lower():
            raise RefusedError(
                "This request comes from another page.", code="origin", status=403
            )
        # Following a link to the page is harmless; asking the API from elsewhere is not.
        site = _only(headers, "sec-fetch-site")
        if site not in (None, "same-origin", "none") and closed:
            raise RefusedError(
                "This request comes from another site.", code="origin", status=403
            )
        if (
            self.token is not None
            and closed
            and not self._knows(_only(headers, "authorization"))
        ):
            raise RefusedError(
                "This server asks for a token: Authorization: Bearer …",
                code="token",
                status=401,
            )
        # Two ways to say where a body ends: a proxy may believe the other one.
        names = [name for name, _ in headers]
        if "content-length" in names and "transfer-encoding" in names:
            raise RefusedError(
                "A body has a length or comes in chunks, not both.",
                code="bad_request",
                status=400,
            )

    def _host(self, headers: list[tuple[str, str]]) -> str:
        host = _only(headers, "host")
        if host is None:
            name = ""
        else:
            name = host_name(host)
        # Unknown names are refused, even if the list holds an empty one.
        if host is None or not name or name not in self.hosts:
            raise RefusedError(
                "This server is not known by that name; --allow-host adds one.",
                code="host",
                status=403,
            )
        return host

    def _knows(self, header: str | None) -> bool:
        scheme, _, token = (header or "").partition(" ")
        # Compared in constant time, as bytes: text that is no ASCII would raise an error.
        return scheme.lower() == "bearer" and hmac.compare_digest(
            token.strip().encode(), (self.token or "").encode()
        )


def check_json(scope: Scope) -> None:
    """Raise :class:`RefusedError` unless a body is declared as JSON; for paths that read one."""
    kind = (_only(_headers(scope), "content-type") or "").partition(";")[0].strip().lower()
    if kind != "application/json":
        message = "Send JSON, with Content-Type: application/json."
        raise RefusedError(message, code="content_type", status=415)


def route_of(scope: Scope) -> str:
    """The path without the prefix under which a proxy mounts the application."""
    prefix = scope.get("root_path", "").rstrip("/")
    path: str = scope["path"]
    if prefix and path.startswith(f"{prefix}/"):
        return path.removeprefix(prefix)
    return path


def _open(path: str) -> bool:
    """The empty page, its style and script, and the health check. All else may hold data."""
    return path in ("/", "/health") or path.startswith("/static/")


def host_name(host: str) -> str:
    """``[::1]:8000`` as ``::1``, ``Example.org:80`` as ``example.org``; empty for text that is not
    a name and a port.
    """
    match = _HOST.fullmatch(host.strip().lower())
    if match is None:
        return ""
    return match["six"] or match["name"]


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens there."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _headers(scope: Scope) -> list[tuple[str, str]]:
    return [
        (name.decode("latin-1").lower(), value.decode("latin-1"))
        for name, value in scope["headers"]
    ]


def _only(headers: Iterable[tuple[str, str]], name: str) -> str | None:
    """The value of a header; two of them would mean one thing to us and another to a proxy."""
    values = [value for key, value in headers if key == name]
    if len(values) > 1:
        raise RefusedError(f"The header {name} stands twice.", code="bad_request", status=400)
    if values:
        return values[0]
    return None


class Guard:
    """The outermost layer: checks access, adds headers, counts and logs.

    Args:
        answer: writes a refusal.
        routes: the paths to name in logs; others may hold anything.
        stopping: called when the server stops: what takes minutes is then cancelled.
    """

    def __init__(
        self,
        app: App,
        access: Access,
        metrics: Metrics,
        answer: Callable[[RefusedError, Scope, Receive, Send], Awaitable[None]],
        routes: Callable[[str], str],
        stopping: Callable[[], None] = lambda: None,
    ) -> None:
        self._app = app
        self._access = access
        self._metrics = metrics
        self._answer = answer
        self._routes = routes
        self.stopping = stopping

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            else:  # websockets, of which there are none
                await send({"type": "websocket.close", "code": 1000})
            return
        started = time.perf_counter()
        status = 500
        scope["request_id"] = uuid.uuid4().hex[:16]

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = int(message["status"])
                headers = [
                    *message.get("headers", ()),
                    *_HEADERS,
                    (b"x-request-id", scope["request_id"].encode()),
                ]
                # Data of people must not be cached; style and script have names that change with
                # their content.
                if not any(name == b"cache-control" for name, _ in headers):
                    headers.append((b"cache-control", b"no-store"))
                message = {**message, "headers": headers}
            await send(message)

        try:
            try:
                self._access.check(scope)
            except RefusedError as refused:
                await self._answer(refused, scope, receive, sending)
            else:
                await self._app(scope, receive, sending)
        finally:
            seconds = time.perf_counter() - started
            path = self._routes(route_of(scope))
            self._metrics.answered(path, status, seconds)
            if scope["method"] in ("GET", "POST", "HEAD"):
                method = scope["method"]
            else:
                method = "other"
            facts = {
                "id": scope["request_id"],
                "method": method,
                "path": path,
                "status": status,
            }
            log("request", **facts, ms=round(1000 * seconds, 1), **scope.get("facts", {}))
