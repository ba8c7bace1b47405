"""Arithmetic over columns, with derivatives: what a column that follows others is computed by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_SIGNS = {"+": 1.0, "-": -1.0}


@dataclass(frozen=True)
class Expression:
    """A number, a column, or two expressions joined by ``+``, ``-``, ``*`` or ``/``.

    Values may be floats, arrays or tensors: whatever knows the four operations.
    """

    op: str  #: ``"number"``, ``"column"`` or one of ``+-*/``
    value: Any = None  #: the number, or the name of the column
    left: Expression | None = None
    right: Expression | None = None

    @classmethod
    def number(cls, value: float) -> Expression:
        return cls("number", float(value))

    @classmethod
    def column(cls, name: str) -> Expression:
        return cls("column", name)

    def joined(self, op: str, other: Expression) -> Expression:
        return Expression(op, None, self, other)

    @property
    def parts(self) -> tuple[Expression, ...]:
        if self.left is None or self.right is None:
            return ()
        return (self.left, self.right)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns in it, each once, in the order they are written."""
        return tuple(dict.fromkeys(self._named()))

    def _named(self) -> Iterator[str]:
        if self.op == "column":
            yield self.value
        for part in self.parts:
            yield from part._named()

    def __call__(self, values: Mapping[str, Any]) -> Any:
        """The value, given those of the columns."""
        return self.derive(values)[0]

    def derive(self, values: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """The value, and its derivative by each column it depends on."""
        if self.op == "number":
            return self.value, {}
        if self.op == "column":
            return values[self.value], {self.value: 1.0}
        (a, by_a), (b, by_b) = (part.derive(values) for part in self.parts)
        if self.op == "+":
            return a + b, _sum(by_a, 1.0, by_b, 1.0)
        if self.op == "-":
            return a - b, _sum(by_a, 1.0, by_b, -1.0)
        if self.op == "*":
            return a * b, _sum(by_a, b, by_b, a)
        # Division by zero is left to the values' own rules: tensors give infinity, which callers
        # filter.
        return a / b, _sum(by_a, 1 / b, by_b, -a / (b * b))

    def linear(self) -> tuple[dict[str, float], float] | None:
        """Weight by column and constant, if the expression is linear."""
        if self.op == "number":
            return {}, self.value
        if self.op == "column":
            return {self.value: 1.0}, 0.0
        a, b = (part.linear() for part in self.parts)
        if a is None or b is None:
            return None
        if self.op in _SIGNS:
            sign = _SIGNS[self.op]
            return _sum(a[0], 1.0, b[0], sign), a[1] + sign * b[1]
        if self.op == "*":
            a, b = (b, a) if a[0] else (a, b)  # the constant first
        # A quotient is linear only over a constant other than 0; dividing is then multiplying by
        # its inverse.
        elif b[0] or b[1] == 0:
            return None
        else:
            a, b = ({}, 1 / b[1]), a
        # A product of two columns is not linear.
        if a[0]:
            return None
        return (_sum(b[0], a[1], {}, 0.0), a[1] * b[1])


def _sum(
    one: dict[str, Any], by_one: Any, other: dict[str, Any], by_other: Any
) -> dict[str, Any]:
    """``one · by_one + other · by_other``, column by column."""
    scaled = {name: value * by_one for name, value in one.items()}
    for name, value in other.items():
        if name in scaled:
            scaled[name] = scaled[name] + value * by_other
        else:
            scaled[name] = value * by_other
    return scaled
