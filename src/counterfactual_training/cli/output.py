"""Results go to stdout, everything else to stderr."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from counterfactual_training.errors import InputError

# What the running command has printed about progress and problems.
_printed: ContextVar[set[str] | None] = ContextVar("printed", default=None)


def emit(arguments: argparse.Namespace, document: Mapping[str, Any], text: str) -> None:
    """Print the result of a command: the document with --json, otherwise the text."""
    if arguments.json:
        text = json.dumps(json_value(document), indent=2, ensure_ascii=False, allow_nan=False)
    sys.stdout.write(text + "\n")


@contextmanager
def notes_once() -> Iterator[None]:
    """While a command runs: it may read a file several times, but prints each note once."""
    token = _printed.set(set())
    try:
        yield
    finally:
        _printed.reset(token)


def note(message: str) -> None:
    """Print a line about progress or problems."""
    printed = _printed.get()
    if printed is not None:
        if message in printed:
            return
        printed.add(message)
    sys.stderr.write(f"ct: {message}\n")
    sys.stderr.flush()


def json_value(value: Any) -> Any:
    """Convert a value for JSON; numbers that are not finite become null."""
    if isinstance(value, Mapping):
        return {str(key): json_value(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple, set, frozenset, range)):
        return [json_value(entry) for entry in value]
    if hasattr(value, "tolist"):  # an array or a scalar of numpy
        return json_value(value.tolist())
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return None
    # Paths, dates and the like.
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return str(value)


def folder(path: str) -> Path:
    """A folder to write to, created before any work is done."""
    out = Path(path)
    out.mkdir(parents=True, exist_ok=True)
    return out


def writable(path: str, option: str = "--out") -> str:
    """Check, before any work is done, that a file can be written later."""
    file = Path(path)
    if file.is_dir():
        raise InputError(f"{option} {path!r} is a folder; name a file.")
    file.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise InputError(f"{option} {path!r} cannot be written to.")
    return path


def not_over(path: str | Path, *inputs: str | None, option: str = "--out") -> None:
    """Check, before any work is done, that a file to write is none of those to read, by whatever
    name or link.
    """
    for source in inputs:
        # Names of data sets are no files.
        if (
            source is not None
            and Path(path).exists()
            and Path(source).exists()
            and Path(path).samefile(source)
        ):
            raise InputError(
                f"{option} would overwrite {source!r}, which this command reads; name another file."
            )
