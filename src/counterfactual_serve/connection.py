"""Connections with a time limit for the headers of a request."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

# Seconds in which the headers of a request have to arrive.
HEADER_SECONDS = 15.0


class HeaderTimeoutProtocol(H11Protocol):
    """Uvicorn's HTTP/1.1; closes connections whose headers do not arrive in time.

    Uvicorn itself has a limit between requests, and none inside of one: a thousand silent
    connections would keep all others out.
    """

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:
            self._wait()
        else:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait(self) -> None:
        # Once per request: further bytes do not extend the limit.
        if self._timer is None:
            self._timer = self.loop.call_later(HEADER_SECONDS, self._give_up)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        self._timer = None
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self.transport.close()
