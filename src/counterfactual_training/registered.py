"""Files of a user that register methods, generators or metrics, so that commands know them by
name.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from counterfactual_training.errors import FileError, InputError


class Registered(NamedTuple):
    """A file and its content, which workers on other machines run too."""

    path: str
    text: str


_files: list[Registered] = []


def register_file(path: str | Path) -> None:
    """Run a Python file that registers something: ``@ct.register_method``,
    ``ct.register_generator``. Workers of :func:`launch` run it as well.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FileError(
            f"The file to register {str(path)!r} cannot be read: {reason}."
        ) from error
    run_files([Registered(str(path), text)])


def registered_files() -> tuple[Registered, ...]:
    """Those that this process has run."""
    return tuple(_files)


def run_files(files: Iterable[Registered]) -> None:
    """Run those that this process has not run yet."""
    for file in files:
        if file in _files:
            continue
        module = ModuleType(Path(file.path).stem)
        module.__file__ = file.path
        try:
            # The user's own file, named by the user, as ``python FILE`` would run it.
            exec(compile(file.text, file.path, "exec"), module.__dict__)  # noqa: S102
        except Exception as error:
            raise InputError(
                f"{file.path!r} fails while it registers: {type(error).__name__}: {error}"
            ) from error
        _files.append(file)
