"""Which processes work on a study, and which are dead: a killed process leaves trials that never end."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# A process of another machine counts as dead after so long without a sign of life.
PATIENCE_SECONDS = 600.0
# How often a living process gives one.
EVERY_SECONDS = 15.0


def _host() -> str:
    """The machine and its PID namespace: process numbers of another container mean nothing here."""
    try:
        space = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        space = ""
    return f"{socket.gethostname()} {space}".strip()


def _runs(pid: int, started: str) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # another user's process, so it exists
    return _started(pid) == started


def _started(pid: int) -> str:
    """When a process started, because numbers are reused; empty if unknown."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    fields = text.rpartition(")")[2].split()
    # A zombie has ended; its parent has not noticed yet.
    return "" if fields[0] == "Z" else fields[19]


def sign_of_life(pid: int | None = None, present: bool = True) -> dict[str, Any]:
    """What a process, by default this one, stores in a study: who it is, and when it was last seen."""
    pid = os.getpid() if pid is None else pid
    return {"host": _host(), "pid": pid, "started": _started(pid), "seen": time.time(), "present": present}


def is_dead(sign: Mapping[str, Any] | None) -> bool:
    """On this machine: is there such a process? On others: has it been silent for too long?"""
    if sign is None or not sign.get("present", False):
        return True
    if sign["host"] == _host():
        return not _runs(int(sign["pid"]), str(sign["started"]))
    return time.time() - float(sign["seen"]) > PATIENCE_SECONDS
