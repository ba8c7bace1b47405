"""Run the application on this machine: a socket, a web server around it, and a browser to look at
it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import secrets
import shutil
import socket
import warnings
import webbrowser
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType

import uvicorn

from counterfactual_serve.app import make_app
from counterfactual_serve.connection import HeaderTimeoutProtocol
from counterfactual_serve.desk import GRACE
from counterfactual_serve.guard import LOOPBACK, Access, Guard, host_name, is_loopback
from counterfactual_serve.metrics import log_to_stderr
from counterfactual_serve.questions import Limits
from counterfactual_serve.served import Served
from counterfactual_training import defaults
from counterfactual_training.errors import InputError

# Ports after the wanted one that are tried, to name one that is free.
_NEAR = 100
# Connections that are open at once.
_CONNECTIONS = 1000
_SHORTEST_TOKEN = 16


@dataclass(frozen=True)
class Address:
    """Where the server listens, and what it is called there.

    Attributes:
        names: further names it is known by, such as that of a proxy.
        token: asked for; ``None`` makes one up if the address is not this machine's own.
    """

    host: str = defaults.HOST
    port: int = defaults.PORT
    names: tuple[str, ...] = ()
    token: str | None = None

    def access(self) -> Access:
        """Who may ask. Requests from other machines need a token."""
        if self.token is None:
            token = None
        else:
            token = self.token.strip()
        if token is not None and len(token) < _SHORTEST_TOKEN:
            raise InputError(
                f"The token has {len(token)} characters; use {_SHORTEST_TOKEN} or more."
            )
        for name in self.names:
            if not host_name(name):
                raise InputError(
                    f"--allow-host takes a name such as advice.example.org, got {name!r}."
                )
        # A proxy that has a name for it shows it to others, too.
        if token is None and (self.names or not is_loopback(self.host)):
            token = secrets.token_urlsafe(24)
        hosts = (*LOOPBACK, *([] if self.host in ("0.0.0.0", "::") else [self.host.lower()]))  # noqa: S104
        return Access(tuple(dict.fromkeys([*hosts, *map(host_name, self.names)])), token)

    def listen(self) -> socket.socket:
        """A socket; an error that names a free port if this one is taken."""
        if not 0 <= self.port < 65536:
            raise InputError(f"--port must be from 0 to 65535, got {self.port}.")
        try:
            return _bind(self.host, self.port)
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                free = self._free()
            else:
                free = None
            if free is None:
                raise InputError(
                    f"Cannot listen on {self.host} port {self.port}: {error.strerror}."
                ) from None
            raise InputError(
                f"Port {self.port} is in use; {free} is free: add --port {free}."
            ) from None

    def _free(self) -> int | None:
        for port in range(self.port + 1, min(65536, self.port + _NEAR)):
            with contextlib.suppress(OSError):
                _bind(self.host, port).close()
                return port
        return None


def _bind(host: str, port: int) -> socket.socket:
    if ":" in host:
        family = socket.AF_INET6
    else:
        family = socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if os.name == "posix":  # a restart need not wait for connections that are still closing
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(2048)
    except OSError:
        listener.close()
        raise
    listener.set_inheritable(False)
    return listener


def url_of(address: Address, port: int, token: str | None = None) -> str:
    """What to type into a browser; the token stands behind #, which browsers do not send."""
    host = "127.0.0.1" if address.host in ("0.0.0.0", "::") else address.host  # noqa: S104
    if ":" in host:
        host = f"[{host}]"
    return f"http://{host}:{port}/" + (f"#token={token}" if token else "")


def run_server(
    served: Served,
    listener: socket.socket,
    *,
    access: Access,
    limits: Limits,
    workers: int,
    key: bytes | None,
    root_path: str = "",
    log_level: str = "info",
) -> None:
    """Serve until a signal ends it: requests that have begun are answered first."""
    log_to_stderr(log_level)
    # They quote cells; what clients should know is in the notes of their answers.
    warnings.simplefilter("ignore")
    app = make_app(served, access=access, limits=limits, workers=workers, key=key)
    make_server(app, limits, root_path).run(sockets=[listener])


def make_server(app: Guard, limits: Limits, root_path: str = "") -> uvicorn.Server:
    """A web server around the application, to be run on a socket."""
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,  # it would log addresses and queries
        server_header=False,
        ws="none",
        root_path=f"/{root_path.strip('/')}" if root_path.strip("/") else "",
        http=HeaderTimeoutProtocol,
        limit_concurrency=_CONNECTIONS,
        timeout_keep_alive=15,
        # As long as a search may take, even one that has to be ended.
        timeout_graceful_shutdown=int(limits.seconds + GRACE) + 5,
        h11_max_incomplete_event_size=32_768,
    )
    return _Server(config, app.stopping)


class _Server(uvicorn.Server):
    """Tells the application when it is told to stop, before it waits for the requests that have
    begun.
    """

    def __init__(self, config: uvicorn.Config, stopping: Callable[[], None]) -> None:
        super().__init__(config)
        self._stopping = stopping

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        asyncio.get_running_loop().call_soon_threadsafe(self._stopping)


def open_browser(url: str) -> bool:
    """Show a page; ``False`` if there is no browser, or no screen."""
    screen = (
        os.name != "posix" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    )
    if not screen and shutil.which("open") is None:
        return False
    with contextlib.suppress(webbrowser.Error):
        return webbrowser.open(url)
    return False
