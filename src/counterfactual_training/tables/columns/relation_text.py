"""Relations between columns as a person writes them, read by a small parser that executes nothing.

    satisfactory <= total                     a linear inequality: <=, >=, < or >
    a + 2*b = 100                             a linear equation
    ratio = debt / income                     a column that follows others: alone, on the left
    job = pilot requires licence = yes        a category that needs another

Columns are written as they are called; quotes (``"``, ``'`` or a backtick) help where that is
ambiguous: names like a number, or ``"a-b"`` beside columns a and b.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from math import isfinite
from typing import NamedTuple, NoReturn

from counterfactual_training.constraints.expression import Expression
from counterfactual_training.errors import ConstraintError, unknown

_NUMBER = r"(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_SIGN = r"<=|>=|==|≤|≥|[-+*/()<>=−·]"
_SAME = {"≤": "<=", "≥": ">=", "==": "=", "−": "-", "·": "*"}
_QUOTED = r"""(?P<quote>["'`])(?P<quoted>.*?)(?P=quote)"""
_REQUIRES = re.compile(rf"{_QUOTED}|(?<!\S)(?P<requires>requires)(?!\S)")
_COMPARE = ("<=", ">=", "<", ">", "=")


@dataclass(frozen=True)
class Comparison:
    """``left sign right``, where sign is one of ``<= >= < > =``."""

    left: Expression
    sign: str
    right: Expression


@dataclass(frozen=True)
class Condition:
    """``column = category``, the category as text."""

    column: str
    category: str


class _Token(NamedTuple):
    kind: str  # "number", "column", "sign" or "end"
    text: str
    start: int
    end: int

    def __str__(self) -> str:
        if self.kind == "end":
            return "the end"
        return repr(self.text)


def read_relation(
    text: object, names: Collection[str]
) -> Comparison | tuple[Condition, Condition]:
    """What a relation says about columns with these names."""
    if not isinstance(text, str) or not text.strip():
        raise ConstraintError(f"A relation is text such as {'a <= b'!r}, got {text!r}.")
    parser = _Parser(text, names)
    split = [word for word in _REQUIRES.finditer(text) if word["requires"]]
    if not split:
        try:
            return parser.comparison()
        except RecursionError:
            raise ConstraintError(
                f"The relation {text!r} is nested too deeply; use fewer brackets."
            ) from None
    if len(split) > 1:
        parser.fail('expected "requires" once', split[1].start())
    middle = split[0]
    return parser.condition(0, middle.start()), parser.condition(middle.end(), len(text))


class _Parser:
    def __init__(self, text: str, names: Collection[str]) -> None:
        self.text = text
        self.names = names
        # The longest name first, "a-b" before "a"; a word that only begins like a name is another
        # word.
        longest = sorted(
            (name for name in names if not re.fullmatch(_NUMBER, name)), key=len, reverse=True
        )
        any_column = rf"(?:{'|'.join(map(re.escape, longest)) or '(?!)'})(?!(?<=\w)\w)"
        self.tokens = re.compile(
            rf"\s*(?:(?P<end>\Z)|{_QUOTED}|(?P<column>{any_column})|(?P<number>{_NUMBER})|(?P<sign>{_SIGN})"
            r"|(?P<word>[^\W\d]\w*)|(?P<other>.))"
        )

    def fail(self, what: str, start: int) -> NoReturn:
        raise ConstraintError(
            f"The relation {self.text!r} cannot be read: {what}:\n    {self.text}\n    "
            f"{' ' * start}^"
        )

    def _token(self, place: int) -> _Token:
        """The token at or after a place."""
        match = self.tokens.match(self.text, place)
        assert match is not None and match.lastgroup is not None  # noqa: S101 - the pattern takes any character
        kind = match.lastgroup
        text = match[match.lastgroup]
        start = match.start("quote" if kind == "quoted" else kind)
        if kind in ("quoted", "word"):
            if text not in self.names:
                raise ConstraintError(
                    f"The relation {self.text!r}: {unknown('column', text, self.names)}"
                )
            kind = "column"
        if kind == "other":
            self.fail(
                "a quote is not closed" if text in "\"'`" else f"{text!r} means nothing here",
                start,
            )
        if kind == "number":
            text = text.replace("_", "")
        elif kind == "sign":
            text = _SAME.get(text, text)
        return _Token(kind, text, start, match.end())

    # ---- comparisons -----------------------------------------------------------------------------

    def comparison(self) -> Comparison:
        self.now = self._token(0)
        left = self._sum()
        sign = self.now
        if not self._is(*_COMPARE):
            self.fail(f"expected <=, >=, <, > or = instead of {sign}", sign.start)
        self._advance()
        right = self._sum()
        if self.now.kind != "end":
            self.fail(f"expected an operator or the end instead of {self.now}", self.now.start)
        weights, constant = left.joined("-", right).linear() or ({}, 0.0)
        if not all(map(isfinite, (*weights.values(), constant))):
            self.fail("these numbers are too large", 0)
        return Comparison(left, sign.text, right)

    def _advance(self) -> _Token:
        token = self.now
        self.now = self._token(self.now.end)
        return token

    def _is(self, *signs: str) -> bool:
        return self.now.kind == "sign" and self.now.text in signs

    def _sum(self) -> Expression:
        expression = self._product()
        while self._is("+", "-"):
            expression = expression.joined(self._advance().text, self._product())
        return expression

    def _product(self) -> Expression:
        expression = self._factor()
        while self._is("*", "/"):
            sign = self._advance()
            other = self._factor()
            constant = other.linear()
            if (
                sign.text == "/"
                and constant is not None
                and not constant[0]
                and constant[1] == 0
            ):
                self.fail("this divides by zero", sign.start)
            expression = expression.joined(sign.text, other)
        return expression

    def _factor(self) -> Expression:
        token = self._advance()
        if token.kind == "number":
            return Expression.number(float(token.text))
        if token.kind == "column":
            return Expression.column(token.text)
        if token.kind == "sign" and token.text in ("+", "-"):
            return Expression.number(1.0 if token.text == "+" else -1.0).joined(
                "*", self._factor()
            )
        if token.kind == "sign" and token.text == "(":
            expression = self._sum()
            if not self._is(")"):
                self.fail(f'expected ")" instead of {self.now}', self.now.start)
            self._advance()
            return expression
        self.fail(f'expected a column, a number or "(" instead of {token}', token.start)

    # ---- categories ------------------------------------------------------------------------------

    def condition(self, start: int, end: int) -> Condition:
        token = self._token(start)
        if token.kind != "column" or token.end > end:
            self.fail(f"expected a column instead of {token}", min(token.start, end))
        # Not by tokens: a category may be any text, of several words and with signs.
        sign = re.compile(r"\s*==?").match(self.text, token.end, end)
        if sign is None:
            self.fail(f'expected "=" and a category after {token}', token.end)
        category = self.text[sign.end() : end].strip()
        if len(category) > 1 and category[0] == category[-1] and category[0] in "\"'`":
            category = category[1:-1]
        if not category:
            self.fail("expected a category", sign.end())
        return Condition(token.text, category)
