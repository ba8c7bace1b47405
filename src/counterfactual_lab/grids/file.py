"""Grid files: TOML, read and checked before anything runs."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from counterfactual_lab.grids.grid import Grid
from counterfactual_lab.grids.grid_run import (
    ALL_ROWS,
    AS_TRAINED,
    ROWS,
    Measurement,
)
from counterfactual_lab.grids.settings import KEYS, typed
from counterfactual_lab.paper_data import KINDS, short_name
from counterfactual_lab.runs.run import as_tuples
from counterfactual_training.errors import (
    Argument,
    CounterfactualTrainingError,
    FileError,
    InputError,
    Remedy,
    check_name,
    lookup,
    unknown,
)
from counterfactual_training.evaluation.protocol import PROTOCOLS, EvaluationProtocol

_TABLES = ("generator", "objective", "training", "model", "evaluation")
_TOP = (
    "name",
    "title",
    "data",
    "seeds",
    "image_seeds",
    "own_seeds",
    "protected",
    "alone",
    "gate",
    "method",
)
_PROTOCOL = tuple(
    f.name for f in fields(EvaluationProtocol) if f.name not in ("name", "individuals")
)
_MEASUREMENT = tuple(f.name for f in fields(Measurement) if f.name != "protocol")
_EVALUATION = (*_MEASUREMENT, "protocol", *_PROTOCOL)


def shipped_grids() -> dict[str, Grid]:
    """The paper's hyper-parameter grids, by name."""
    grids = [parse_grid(text, name) for name, text in _shipped("grids").items()]
    return {grid.name: grid for grid in sorted(grids, key=lambda grid: -grid.num_points)}


@cache
def _shipped(folder: str) -> dict[str, str]:
    """Texts of the files that come with the package: of the hyper-parameter grids, or of the
    paper's tables.
    """
    home = files(f"counterfactual_lab.{folder}") / "files"
    names = sorted(entry.name for entry in home.iterdir() if entry.name.endswith(".toml"))
    return {
        name.removesuffix(".toml"): (home / name).read_text(encoding="utf-8") for name in names
    }


def load_grid(
    name: str | Path, quick: bool = False, changes: Mapping[str, Any] | None = None
) -> Grid:
    """A grid by the name of a shipped one, or from a file.

    Args:
        quick: shorten it for a quick look, as its table ``[quick]`` says.
        changes: settings other than those of the file, by dotted name; a name without a dot is one
            of ``[training]``.
    """
    return parse_grid(*_text(name), quick, changes)


def _text(name: str | Path) -> tuple[str, str]:
    """The text of a grid, and its file."""
    path = Path(name)
    if path.suffix != ".toml" and not path.is_file():
        shipped = {**_shipped("grids"), **_shipped("paper")}
        if str(name) in shipped:
            return shipped[str(name)], str(name)
        raise InputError(
            f"{unknown('grid', str(name), shipped)} A grid of your own is a file: name it with its "
            ".toml."
        )
    try:
        return path.read_text(encoding="utf-8"), str(path)
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(
            f"The grid file {str(path)!r} cannot be read: {getattr(error, 'strerror', error)}."
        ) from error


def parse_grid(
    text: str, source: str, quick: bool = False, changes: Mapping[str, Any] | None = None
) -> Grid:
    """A grid from the text of its file; ``source`` names the file in error messages."""
    try:
        content = _content(text, source)
        short = content.pop("quick", None)
        has_quick_form = quick and isinstance(short, dict)
        if has_quick_form:
            content = _merged(content, short)
        named = {
            n if "." in n or n in _TOP else f"training.{n}": value
            for n, value in (changes or {}).items()
        }
        for name, value in named.items():
            table, _, key = name.rpartition(".")
            content = _merged(content, {table: {key: value}} if table else {key: value})
        grid = _grid(content, Path(source).stem)
        # A grid whose file marks it as quick is not shortened again.
        grid = replace(
            grid, changes=tuple(sorted(as_tuples(named).items())), quick=has_quick_form
        )
        return grid.changed(quick=quick)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{source} is not TOML: {error}.") from error
    except CounterfactualTrainingError as error:
        raise InputError(f"{source}: {error}") from error


def _content(text: str, source: str, seen: tuple[str, ...] = ()) -> dict[str, Any]:
    """What the file says, added to the grid that it extends; a file name is relative to the file
    that names it.
    """
    content = tomllib.loads(text)
    base = content.pop("extends", None)
    if base is None:
        return content
    name = typed(base, "extends", str)
    text, base = _text(Path(source).parent / name if name.endswith(".toml") else name)
    if base in (*seen, source):
        raise InputError(
            f"extends goes round in a circle: {' → '.join((*seen, source, base))}."
        )
    inherited = _content(text, base, (*seen, source))
    return _merged(
        {name: value for name, value in inherited.items() if name not in ("name", "title")},
        content,
    )


def _merged(content: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    out = dict(content)
    for name, value in more.items():
        both = isinstance(value, dict) and isinstance(out.get(name), dict)
        if both:
            out[name] = _merged(out[name], value)
        else:
            out[name] = value
    return out


def _grid(content: dict[str, Any], stem: str) -> Grid:
    flat = _flat(content)
    data = _listed(flat.pop("data", None), "data", str)
    individuals = flat.get("evaluation.num_individuals")
    if isinstance(individuals, dict):
        by_kind = flat.pop("evaluation.num_individuals")
    else:
        by_kind = {}
    for kind, count in by_kind.items():
        check_name("kind of data in evaluation.num_individuals:", kind, KINDS)
        typed(count, f"evaluation.num_individuals.{kind}", int)
    images = flat.pop("image_seeds", None)
    return Grid(
        name=typed(flat.pop("name", stem), "name", str),
        title=typed(flat.pop("title", ""), "title", str),
        data=tuple(dict.fromkeys(short_name(name) for name in data)),
        seeds=_seeds(flat.pop("seeds", 1)),
        own_seeds=typed(flat.pop("own_seeds", False), "own_seeds", bool),
        measurement=_measurement(
            {k: flat.pop(k) for k in list(flat) if k.startswith("evaluation.")}
        ),
        values=tuple((name, _values(name, entry)) for name, entry in flat.items()),
        image_seeds=None if images is None else _seeds(images),
        individuals=tuple(by_kind.items()),
    )


def _flat(content: dict[str, Any]) -> dict[str, Any]:
    """Dotted names; unknown ones raise an error."""
    valid = [*_TOP, *(f"evaluation.{name}" for name in _EVALUATION), *KEYS]
    out: dict[str, Any] = {}
    for name, value in content.items():
        if isinstance(value, dict):
            check_name("table", name, _TABLES)
            out |= {f"{name}.{key}": inner for key, inner in value.items()}
        else:
            out[name] = value
    for name in out:
        if name in _TABLES:
            raise InputError(
                f"{name} is a table, got {out[name]!r}; write [{name}] and its settings below."
            )
        if name not in valid:
            # Names of the same table are the likelier ones.
            if "." in name:
                near = [v for v in valid if v.partition(".")[0] == name.partition(".")[0]]
            else:
                near = []
            raise InputError(unknown("key", name, near or valid))
    return out


def _values(name: str, entry: Any) -> tuple[Any, ...]:
    """One value, or the list of values that makes an axis."""
    key = KEYS[name]
    widths = (
        key.kind is tuple
        and isinstance(entry, list)
        and not any(isinstance(width, list) for width in entry)
    )
    if isinstance(entry, list) and not widths:
        values = entry
    else:
        values = [entry]
    if not values:
        raise InputError(
            f"{name} is an empty list: give at least one value, or leave the key out."
        )
    checked = []
    for value in values:
        try:
            checked.append(typed(value, name, key.kind))
            key.check(checked[-1])
        except CounterfactualTrainingError as error:
            raise _at_key(error, name) from error
    twice = [value for value in checked if checked.count(value) > 1]
    if twice:
        raise InputError(f"{name} names {twice[0]!r} more than once.")
    return tuple(checked)


def _at_key(error: CounterfactualTrainingError, key: str) -> InputError:
    """The error about a key of the file, in the file's words."""

    def say(part: Argument | Remedy) -> str:
        if isinstance(part, Argument) and part.name == error.field:
            return key
        return str(part)

    text = error.worded(say)
    # The message about a wrong value names what it is the value of.
    if error.code != "bad_value":
        text = f"{key}: {text}"
    return InputError(text, code=error.code, field=key, expected=error.expected)


def _measurement(flat: dict[str, Any]) -> Measurement:
    settings = {name.removeprefix("evaluation."): value for name, value in flat.items()}
    default = Measurement()
    options = {name: settings.pop(name) for name in _MEASUREMENT if name in settings}
    check_name(
        "rows of evaluation.on:",
        typed(options.get("on", default.on), "evaluation.on", str),
        ROWS,
    )
    if options.get("protected", AS_TRAINED) != AS_TRAINED:
        typed(options["protected"], "evaluation.protected", bool)
    if options.get("protected_threshold") is not None:
        threshold = typed(
            options["protected_threshold"], "evaluation.protected_threshold", float
        )
        KEYS["generator.decision_threshold"].check(threshold)
    paired = options.get("paired", ALL_ROWS)
    if paired != ALL_ROWS and (type(paired) is not int or paired < 0):
        raise InputError(
            f'evaluation.paired is a number of individuals or "{ALL_ROWS}", got {paired!r}.'
        )
    typed(options.get("own_draws", False), "evaluation.own_draws", bool)
    protocol = default.protocol
    if "protocol" in settings:
        chosen = lookup(
            "protocol", typed(settings.pop("protocol"), "evaluation.protocol", str), PROTOCOLS
        )
        if chosen.name != protocol.name:
            protocol = replace(
                chosen, num_individuals=protocol.num_individuals, num_runs=protocol.num_runs
            )
    changes = {
        name: _protocol_value(name, value, getattr(EvaluationProtocol(), name))
        for name, value in settings.items()
    }
    return Measurement(**options, protocol=_searchable(replace(protocol, **changes)))


def _searchable(protocol: EvaluationProtocol) -> EvaluationProtocol:
    """The protocol, after checking the settings of its search."""
    for name in ("lambda_energy", "epsilons"):
        if any(not 0 <= value < float("inf") for value in getattr(protocol, name)):
            raise InputError(
                f"evaluation.{name} must be finite and not negative, got "
                f"{list(getattr(protocol, name))}."
            )
    for name in ("max_steps", "decision_threshold", "learning_rate", "lambda_cost"):
        try:
            KEYS[f"generator.{name}"].check(getattr(protocol, name))
        except CounterfactualTrainingError as error:
            raise InputError(f"evaluation.{name}: {error}") from error
    return protocol


def _protocol_value(name: str, value: Any, default: Any) -> Any:
    label = f"evaluation.{name}"
    if isinstance(default, tuple):
        return _listed(value, label, type(default[0]))
    if isinstance(value, list):
        raise InputError(
            f"{label} is one value, got a list; all models of a grid are measured alike."
        )
    return typed(value, label, int if default is None else type(default))


def _listed(entry: Any, name: str, kind: type) -> tuple[Any, ...]:
    """One or several values of a kind."""
    if isinstance(entry, list):
        values = entry
    elif entry is None:
        values = []
    else:
        values = [entry]
    if not values:
        raise InputError(f"{name} is missing: give one value or a list of them.")
    return tuple(dict.fromkeys(typed(value, name, kind) for value in values))


def _seeds(value: Any) -> tuple[int, ...]:
    """A count, or the seeds themselves."""
    if type(value) is int:
        if value < 1:
            raise InputError(f"seeds must be 1 or more, or a list of them, got {value}.")
        return tuple(range(value))
    return _listed(value, "seeds", int)
