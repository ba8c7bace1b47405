"""A run: data x method x seed x measurement, identified by its content."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

# Increase it whenever results of older code must not be mixed with new ones.
FORMAT = 3
_UNSAFE = re.compile(r"[^A-Za-z0-9_]+")
_LONGEST = 40  # of the name of a data set, in names of files


@dataclass(frozen=True)
class Run:
    """One model and how it is measured: everything that decides the numbers, and nothing else.
    Equal runs give equal results.

    Attributes:
        data: name of the data set.
        seed: of the weights and the draws of training.
        settings: of the method, plain values sorted by name; ``method`` is its name or its text.
        measurement: plain values sorted by name, or something with a ``content()`` of such.
    """

    data: str
    seed: int
    settings: tuple[tuple[str, Any], ...]
    measurement: Any = ()

    def content(self) -> dict[str, Any]:
        """The run as plain values."""
        measured = self.measurement
        if isinstance(measured, tuple):
            plain = dict(measured)
        else:
            plain = measured.content()
        return {
            "data": self.data,
            "seed": self.seed,
            "settings": dict(self.settings),
            "measurement": plain,
        }

    @cached_property
    def id(self) -> str:
        """A name that is safe for a file, and different for any other content."""
        start = _UNSAFE.sub("-", self.data)[:_LONGEST]
        return f"{start}-{digest({'format': FORMAT, **self.content()})[:20]}"

    @cached_property
    def values(self) -> dict[str, Any]:
        """The settings by name."""
        return dict(self.settings)

    @property
    def model(self) -> str:
        """What the trained model is called in tables."""
        return str(self.values["method"])

    @property
    def label(self) -> str:
        """``Moon ct protected seed 0``."""
        return f"{self.data} {self.model} seed {self.seed}"


R = TypeVar("R", bound=Run)


def as_tuples(content: Any) -> Any:
    """Plain values with tuples for the lists that JSON made of them."""
    if isinstance(content, Mapping):
        return {name: as_tuples(value) for name, value in content.items()}
    if isinstance(content, (list, tuple)):
        return tuple(map(as_tuples, content))
    return content


def digest(content: Mapping[str, Any]) -> str:
    """A checksum of plain values."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
