"""Which processes work on a study, and which of them are dead: a killed one leaves trials behind that never end."""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# A process of another machine that has said nothing for so long is taken for dead.
PATIENCE_SECONDS = 600.0
# How often a living one speaks up.
EVERY_SECONDS = 15.0


def _host() -> str:
    """The machine, and the container in it: process numbers of another one mean nothing here."""
    try:
        space = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        space = ""
    return f"{socket.gethostname()} {space}".strip()


def _own_start() -> str:
    return _started(os.getpid())


def _runs(pid: int, started: str) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # somebody else's, so it lives
    return _started(pid) == started


def _started(pid: int) -> str:
    """When a process began, so that another one of the same number is not taken for it; empty where nobody knows."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    fields = text.rpartition(")")[2].split()
    # A zombie has ended and only waits for its parent to notice.
    return "" if fields[0] == "Z" else fields[19]


@dataclass(frozen=True)
class Worker:
    """One process, as others can tell whether it still lives."""

    host: str = field(default_factory=_host)
    pid: int = field(default_factory=os.getpid)
    started: str = field(default_factory=_own_start)
    id: str = field(default_factory=lambda: uuid.uuid4().hex[:12])

    def sign(self, present: bool = True) -> dict[str, Any]:
        """What it leaves in the study: who it is, and when it was last seen."""
        return {"host": self.host, "pid": self.pid, "started": self.started, "seen": time.time(), "present": present}


def is_dead(sign: Mapping[str, Any] | None) -> bool:
    """Of this machine, exactly: is there such a process? Of others, by their silence."""
    if sign is None or not sign.get("present", False):
        return True
    if sign["host"] == _host():
        return not _runs(int(sign["pid"]), str(sign["started"]))
    return time.time() - float(sign["seen"]) > PATIENCE_SECONDS
