"""One status line: it renews itself on a terminal and is silent elsewhere; messages that stay are
printed anywhere.
"""

from __future__ import annotations

import shutil
import sys
import threading
from typing import TextIO

_CLEAR = "\r\033[K"
_BAR_WIDTH = 20


class StatusLine:
    """A line of text that replaces the one before.

    Args:
        stream: where to write; standard error by default.
        live: whether to show the line; by default, only where the stream is a terminal.
    """

    def __init__(self, stream: TextIO | None = None, live: bool | None = None) -> None:
        if stream is None:
            self.stream = sys.stderr
        else:
            self.stream = stream
        if live is None:
            self.live = self.stream.isatty()
        else:
            self.live = live
        self._text = ""
        # Work that is watched from a thread of its own must not print into the middle of a message.
        self._lock = threading.Lock()

    def show(self, text: str) -> None:
        """Replace the line, cut to the width of the terminal; does nothing where the line is not
        live.
        """
        width = shutil.get_terminal_size().columns - 1
        if not len(text) <= width:
            text = f"{text[: width - 1]}…"
        if self.live and text != self._text:
            with self._lock:
                print(f"{_CLEAR}{text}", end="", file=self.stream, flush=True)
                self._text = text

    def say(self, text: str) -> None:
        """Print a message that stays, above the line if there is one."""
        with self._lock:
            print(f"{_CLEAR if self.live else ''}{text}", file=self.stream, flush=True)
            self._text = ""

    def close(self) -> None:
        """Remove the line."""
        self.show("")


def bar(share: float) -> str:
    """``━━━━━───────────────`` for a share from 0 to 1."""
    filled = min(_BAR_WIDTH, max(0, int(_BAR_WIDTH * share)))
    return "━" * filled + "─" * (_BAR_WIDTH - filled)
