"""Relations between columns as a person writes them, read by a small parser that executes nothing.

    satisfactory <= total                     a linear inequality: <=, >=, < or >
    a + 2*b = 100                             a linear equation
    ratio = debt / income                     a column that follows others: alone, on the left
    job = pilot requires licence = yes        a category that needs another

Columns are written as they are called; quotes (``"``, ``'`` or a backtick) help where that is ambiguous: names like a
number, or ``"a-b"`` beside columns a and b.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import NoReturn

from counterfactual_training.constraints.expression import Expression
from counterfactual_training.errors import ConstraintError, unknown

_NUMBER = re.compile(r"(\d[\d_]*\.?\d*|\.\d+)([eE][+-]?\d+)?")
_SIGN = re.compile(r"<=|>=|==|≤|≥|[-+*/()<>=−·]")
_SAME = {"≤": "<=", "≥": ">=", "==": "=", "−": "-", "·": "*"}
_REQUIRES = re.compile(r"""("[^"]*"|'[^']*'|`[^`]*`)|(?<!\S)requires(?!\S)""")
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


@dataclass(frozen=True)
class _Token:
    kind: str  # "number", "column", "sign" or "end"
    text: str
    start: int


def read_relation(text: object, names: Collection[str]) -> Comparison | tuple[Condition, Condition]:
    """What a relation says about columns with these names."""
    if not isinstance(text, str) or not text.strip():
        raise ConstraintError(f"A relation is text such as {'a <= b'!r}, got {text!r}.")
    parser = _Parser(text, names)
    split = [found for found in _REQUIRES.finditer(text) if found.group(1) is None]
    if not split:
        return parser.comparison()
    if len(split) > 1:
        parser.fail('expected "requires" once', split[1].start())
    middle = split[0]
    return parser.condition(0, middle.start()), parser.condition(middle.end(), len(text))


class _Parser:
    def __init__(self, text: str, names: Collection[str]) -> None:
        self.text, self.names = text, names
        self.longest = sorted((name for name in names if not _NUMBER.fullmatch(name)), key=len, reverse=True)

    def fail(self, what: str, start: int) -> NoReturn:
        raise ConstraintError(
            f"The relation {self.text!r} cannot be read: {what}:\n    {self.text}\n    {' ' * start}^"
        )

    # ---- words -----------------------------------------------------------------------------------------------------

    def _token(self, start: int) -> tuple[_Token, int]:
        """The token at or after a place, and where it ends."""
        text = self.text
        while start < len(text) and text[start].isspace():
            start += 1
        if start == len(text):
            return _Token("end", "the end", start), start
        if text[start] in "\"'`":
            end = text.find(text[start], start + 1)
            if end < 0:
                self.fail("a quote is not closed", start)
            name = text[start + 1 : end]
            if name not in self.names:
                raise ConstraintError(f"The relation {text!r}: {unknown('column', name, self.names)}")
            return _Token("column", name, start), end + 1
        for name in self.longest:
            if text.startswith(name, start) and not _goes_on(name, text, start + len(name)):
                return _Token("column", name, start), start + len(name)
        number = _NUMBER.match(text, start)
        if number:
            return _Token("number", number.group().replace("_", ""), start), number.end()
        sign = _SIGN.match(text, start)
        if sign:
            return _Token("sign", _SAME.get(sign.group(), sign.group()), start), sign.end()
        word = re.match(r"[^\W\d]\w*", text[start:])
        if word:
            raise ConstraintError(f"The relation {text!r}: {unknown('column', word.group(), self.names)}")
        self.fail(f"{text[start]!r} means nothing here", start)

    # ---- comparisons -----------------------------------------------------------------------------------------------

    def comparison(self) -> Comparison:
        self.now, self.at = self._token(0)
        left = self._sum()
        sign = self.now
        if sign.text not in _COMPARE or sign.kind != "sign":
            self.fail(f"expected <=, >=, <, > or = instead of {_shown(sign)}", sign.start)
        self._advance()
        right = self._sum()
        if self.now.kind != "end":
            self.fail(f"expected an operator or the end instead of {_shown(self.now)}", self.now.start)
        return Comparison(left, sign.text, right)

    def _advance(self) -> _Token:
        token = self.now
        self.now, self.at = self._token(self.at)
        return token

    def _is(self, *signs: str) -> bool:
        return self.now.kind == "sign" and self.now.text in signs

    def _sum(self) -> Expression:
        found = self._product()
        while self._is("+", "-"):
            found = found.joined(self._advance().text, self._product())
        return found

    def _product(self) -> Expression:
        found = self._factor()
        while self._is("*", "/"):
            sign = self._advance()
            other = self._factor()
            constant = other.linear()
            if sign.text == "/" and constant is not None and not constant[0] and constant[1] == 0:
                self.fail("this divides by zero", sign.start)
            found = found.joined(sign.text, other)
        return found

    def _factor(self) -> Expression:
        token = self._advance()
        if token.kind == "number":
            return Expression.number(float(token.text))
        if token.kind == "column":
            return Expression.column(token.text)
        if token.kind == "sign" and token.text in ("+", "-"):
            return Expression.number(1.0 if token.text == "+" else -1.0).joined("*", self._factor())
        if token.kind == "sign" and token.text == "(":
            found = self._sum()
            if not self._is(")"):
                self.fail(f'expected ")" instead of {_shown(self.now)}', self.now.start)
            self._advance()
            return found
        self.fail(f'expected a column, a number or "(" instead of {_shown(token)}', token.start)

    # ---- categories ------------------------------------------------------------------------------------------------

    def condition(self, start: int, end: int) -> Condition:
        token, at = self._token(start)
        if token.kind != "column" or at > end:
            self.fail(f"expected a column instead of {_shown(token)}", min(token.start, end))
        sign = re.compile(r"\s*==?").match(self.text, at, end)
        if sign is None:
            self.fail(f'expected "=" and a category after {token.text!r}', at)
        category = self.text[sign.end() : end].strip()
        if len(category) > 1 and category[0] == category[-1] and category[0] in "\"'`":
            category = category[1:-1]
        if not category:
            self.fail("expected a category", sign.end())
        return Condition(token.text, category)


def _goes_on(name: str, text: str, end: int) -> bool:
    """Whether a word that ends in a name goes on after it."""
    return end < len(text) and _in_word(name[-1]) and _in_word(text[end])


def _in_word(letter: str) -> bool:
    return letter.isalnum() or letter == "_"


def _shown(token: _Token) -> str:
    return token.text if token.kind == "end" else repr(token.text)
