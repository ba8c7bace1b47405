"""Bodies of requests, read strictly: every kind of value checks its input, and describes itself for
the API's document.

A value that does not fit raises :class:`RefusedError`, which says where it stands and what was
expected there.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from counterfactual_training.errors import Argument, InputError, Remedy, unknown

# What a message shows of a value that was refused.
_SHOWN = 60


# Arguments of the library that requests call otherwise.
_FIELDS = {"n_options": "options"}


class RefusedError(InputError):
    """A request that cannot be answered as it is: a status, a code for programs, a sentence for
    people.
    """

    def __init__(
        self,
        message: str,
        field: str | None = None,
        code: str = "bad_request",
        status: int = 400,
    ) -> None:
        super().__init__(message, code=code, field=field)
        self.status = status

    @classmethod
    def of(cls, error: InputError) -> RefusedError:
        """An error of the library in the words of the API."""
        if isinstance(error, RefusedError):
            return error
        name, point, column = (error.field or "").partition(".")
        field = f"{_FIELDS.get(name, name)}{point}{column}"
        return cls(error.worded(_say), field or None, error.code)


def _say(part: Argument | Remedy) -> str:
    if isinstance(part, Argument) and part.value is None:
        return _FIELDS.get(part.name, part.name)
    return str(part)


class Kind(Protocol):
    """A kind of value: reads it, or raises :class:`RefusedError`; and says what it is as JSON
    Schema.
    """

    def read(self, value: Any, where: str) -> Any: ...

    def schema(self) -> dict[str, Any]: ...


def parse(body: bytes) -> dict[str, Any]:
    """The JSON object in a body. Duplicate keys, NaN and infinity are refused: other parsers read
    them otherwise.
    """
    try:
        text = body.decode()
    except UnicodeDecodeError:
        raise RefusedError("The body is not JSON: it is not UTF-8.", code="bad_json") from None
    try:
        document = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except RecursionError:
        raise RefusedError("The body is nested too deeply.", code="bad_json") from None
    except RefusedError:
        raise
    except ValueError as error:  # also numbers of thousands of digits
        if isinstance(error, json.JSONDecodeError):
            reason = str(error)
        else:
            reason = "a number has too many digits"
        raise RefusedError(f"The body is not JSON: {reason}.", code="bad_json") from None
    if not isinstance(document, dict):
        raise RefusedError(
            f"The body must be a JSON object, got {_name(document)}.", code="bad_json"
        )
    return document


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise RefusedError("The body holds the same key twice in one object.", code="bad_json")
    return fields


def _no_constant(name: str) -> Any:
    raise RefusedError(
        f"{name} is not JSON; write null for what is not known.", code="bad_json"
    )


def _name(value: Any) -> str:
    names = {
        dict: "an object",
        list: "a list",
        str: "text",
        bool: "true or false",
        type(None): "null",
    }
    return names.get(type(value), "a number")


def shown_value(value: Any) -> Any:
    """A value for a message; of a long one, its beginning."""
    if isinstance(value, str) and len(value) <= _SHOWN:
        return value
    return _shown(value)


def _shown(value: Any) -> str:
    if not isinstance(value, (dict, list)):
        text = json.dumps(value)
    else:
        text = _name(value)
    if len(text) <= _SHOWN:
        return text
    return text[: _SHOWN - 1] + "…"


def _expected(where: str, what: str, value: Any) -> RefusedError:
    return RefusedError(f"{where} must be {what}, got {_shown(value)}.", where)


# ---- kinds ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Number:
    """A finite number from ``low`` to ``high``; with ``integer``, a whole one."""

    low: float = -1e300
    high: float = 1e300
    integer: bool = False

    def read(self, value: Any, where: str) -> Any:
        plain = isinstance(value, (int, float)) and not isinstance(value, bool)
        # Compared first: an integer of hundreds of digits has no float.
        if (
            not plain
            or not self.low <= value <= self.high
            or not math.isfinite(value)
            or (self.integer and value % 1)
        ):
            if self.high >= 1e300 and self.low <= -1e300:
                span = ""
            else:
                span = f" from {self.low:g} to {self.high:g}"
            raise _expected(
                where, f"{'a whole number' if self.integer else 'a number'}{span}", value
            )
        if self.integer:
            return int(value)
        return value

    def schema(self) -> dict[str, Any]:
        return {
            "type": "integer" if self.integer else "number",
            "minimum": self.low,
            "maximum": self.high,
        }


@dataclass(frozen=True)
class Text:
    """Text of at most so many characters."""

    longest: int = 1000

    def read(self, value: Any, where: str) -> str:
        if not isinstance(value, str) or len(value) > self.longest:
            raise _expected(where, f"text of at most {self.longest} characters", value)
        try:
            value.encode()
        except UnicodeEncodeError:  # half of a surrogate pair
            raise RefusedError(
                f"{where} holds a character that is no Unicode.", where
            ) from None
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "maxLength": self.longest}


@dataclass(frozen=True)
class Flag:
    """True or false."""

    def read(self, value: Any, where: str) -> bool:
        if not isinstance(value, bool):
            raise _expected(where, "true or false", value)
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "boolean"}


@dataclass(frozen=True)
class Scalar:
    """Text, a number, true, false or null: a cell, a category, a class."""

    def read(self, value: Any, where: str) -> Any:
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, (int, float)):
            return Number().read(value, where)
        if not isinstance(value, str):
            raise _expected(where, "text, a number, true, false or null", value)
        return Text().read(value, where)

    def schema(self) -> dict[str, Any]:
        return Either([Number(), Text(), Maybe(Flag())]).schema()


@dataclass(frozen=True)
class OneOf:
    """One of these values, and of no other type: 1 is not true."""

    choices: Sequence[Any]
    what: str = "value"

    def read(self, value: Any, where: str) -> Any:
        for choice in self.choices:
            if value == choice and isinstance(value, bool) == isinstance(choice, bool):
                return choice
        raise RefusedError(
            f"{where}: {unknown(self.what, shown_value(value), self.choices)}", where
        )

    def schema(self) -> dict[str, Any]:
        return {"enum": list(self.choices)}


@dataclass(frozen=True)
class Either:
    """What any of several kinds takes."""

    kinds: Sequence[Kind]

    def read(self, value: Any, where: str) -> Any:
        errors = []
        for kind in self.kinds:
            try:
                return kind.read(value, where)
            except RefusedError as error:
                errors.append(error)
        raise errors[0]

    def schema(self) -> dict[str, Any]:
        schemas: list[dict[str, Any]] = []
        for kind in self.kinds:
            schema = kind.schema()
            if schema in schemas:
                schemas += []
            else:
                schemas += [schema]
        if len(schemas) > 1:
            return {"anyOf": schemas}
        return schemas[0]


@dataclass(frozen=True)
class Many:
    """A list of at most so many entries of one kind; with ``unique``, of different ones."""

    entry: Kind
    most: int
    least: int = 0
    unique: bool = False

    def read(self, value: Any, where: str) -> list[Any]:
        if not isinstance(value, list):
            raise _expected(where, "a list", value)
        if not self.least <= len(value) <= self.most:
            if self.least == 0:
                span = f"at most {self.most}"
            else:
                span = f"{self.least} to {self.most}"
            if len(value) > self.most:
                code = "too_many"
            else:
                code = "bad_request"
            raise RefusedError(
                f"{where} must have {span} entries, got {len(value)}.", where, code
            )
        entries = [self.entry.read(entry, f"{where}[{i}]") for i, entry in enumerate(value)]
        if self.unique and len(set(entries)) < len(entries):
            raise RefusedError(f"{where} must hold different entries, got one twice.", where)
        return entries

    def schema(self) -> dict[str, Any]:
        if self.unique:
            different = {"uniqueItems": True}
        else:
            different = {}
        size = {"minItems": self.least, "maxItems": self.most}
        return {"type": "array", "items": self.entry.schema(), **size, **different}


@dataclass(frozen=True)
class ByName:
    """An object whose keys are known names, such as columns."""

    names: Sequence[str]
    entry: Kind

    def read(self, value: Any, where: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _expected(where, "an object", value)
        return {
            OneOf(self.names, "column").read(name, where): self.entry.read(
                entry, f"{where}.{name}"
            )
            for name, entry in value.items()
        }

    def schema(self) -> dict[str, Any]:
        return {
            "type": "object",
            "propertyNames": {"enum": list(self.names)},
            "additionalProperties": self.entry.schema(),
        }


@dataclass(frozen=True)
class Maybe:
    """A kind, or null."""

    inner: Kind

    def read(self, value: Any, where: str) -> Any:
        if value is None:
            return None
        return self.inner.read(value, where)

    def schema(self) -> dict[str, Any]:
        return {"anyOf": [self.inner.schema(), {"type": "null"}]}


@dataclass(frozen=True)
class Anything:
    """An object that its reader checks itself, such as a receipt."""

    def read(self, value: Any, where: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _expected(where, "an object", value)
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "object"}


@dataclass(frozen=True)
class Fields:
    """An object with these fields and no others; and with exactly one of those in ``one_of``."""

    kinds: Mapping[str, Kind]
    required: Sequence[str] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    one_of: Sequence[str] = ()

    def read(self, value: Any, where: str = "") -> dict[str, Any]:
        """The fields by name; those that are absent have their default, or ``None``."""
        if not isinstance(value, dict):
            raise _expected(where or "The body", "an object", value)
        if where:
            at = f"{where}."
        else:
            at = ""
        self._check_names(value, where, at)
        return {
            name: kind.read(value[name], f"{at}{name}")
            if name in value
            else self.defaults.get(name)
            for name, kind in self.kinds.items()
        }

    def _check_names(self, value: Mapping[str, Any], where: str, at: str) -> None:
        for name in value:
            if name not in self.kinds:
                raise self._unknown(name, where, at)
        for name in self.required:
            if name not in value:
                raise RefusedError(f"{at}{name} is missing.", f"{at}{name}")
        if self.one_of and sum(name in value for name in self.one_of) != 1:
            raise RefusedError(f"{where} must have either {' or '.join(self.one_of)}.", where)

    def _unknown(self, name: str, where: str, at: str) -> RefusedError:
        if len(name) > _SHOWN:
            name = name[: _SHOWN - 1] + "…"
        what = f"field in {where}" if where else "field"
        return RefusedError(unknown(what, name, self.kinds), f"{at}{name}")

    def schema(self) -> dict[str, Any]:
        properties = {name: kind.schema() for name, kind in self.kinds.items()}
        for name, value in self.defaults.items():
            properties[name] = {**properties[name], "default": value}
        if self.required:
            required = {"required": list(self.required)}
        else:
            required = {}
        if self.one_of:
            one_of = {"oneOf": [{"required": [name]} for name in self.one_of]}
        else:
            one_of = {}
        fields = {"type": "object", "properties": properties, "additionalProperties": False}
        return {**fields, **required, **one_of}
