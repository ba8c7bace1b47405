"""Grid files: TOML, read and checked before anything runs."""

from __future__ import annotations

import tomllib
from dataclasses import fields, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from counterfactual_training.errors import CounterfactualTrainingError, FileError, InputError, unknown
from counterfactual_training.evaluation.protocol import PROTOCOLS, EvaluationProtocol
from counterfactual_training.experiments.grid.grid import ROWS, Grid, Measurement
from counterfactual_training.experiments.grid.settings import KEYS, TYPES
from counterfactual_training.experiments.paper.cells import short_name

_TABLES = ("generator", "objective", "training", "model", "evaluation")
_TOP = ("name", "title", "data", "seeds", "own_seeds", "protected", "gate")
_PROTOCOL = {f.name: f for f in fields(EvaluationProtocol) if f.name not in ("name", "individuals")}
_EVALUATION = ("on", "protected", "protocol", *_PROTOCOL)


def shipped_grids() -> dict[str, Grid]:
    """The paper's grids, by name."""
    folder = files("counterfactual_training.experiments.grid") / "files"
    found = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".toml"))
    grids = [parse_grid((folder / name).read_text(encoding="utf-8"), name) for name in found]
    return {grid.name: grid for grid in sorted(grids, key=lambda grid: -grid.num_points)}


def load_grid(name: str | Path) -> Grid:
    """A grid by the name of a shipped one, or from a file."""
    path = Path(name)
    if path.suffix != ".toml" and not path.is_file():
        known = shipped_grids()
        if str(name) in known:
            return known[str(name)]
        raise InputError(f"{unknown('grid', str(name), known)} A grid of your own is a file: name it with its .toml.")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"The grid file {str(path)!r} cannot be read: {getattr(error, 'strerror', error)}.") from error
    return parse_grid(text, str(path))


def parse_grid(text: str, source: str) -> Grid:
    """A grid from the text of its file; ``source`` stands in every complaint."""
    try:
        return _grid(tomllib.loads(text), Path(source).stem)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{source} is not TOML: {error}.") from error
    except CounterfactualTrainingError as error:
        raise InputError(f"{source}: {error}") from error


def _grid(content: dict[str, Any], stem: str) -> Grid:
    flat = _flat(content)
    data = _listed(flat.pop("data", None), "data", str)
    return Grid(
        name=_one(flat.pop("name", stem), "name", str),
        title=_one(flat.pop("title", ""), "title", str),
        data=tuple(dict.fromkeys(short_name(name) for name in data)),
        seeds=_seeds(flat.pop("seeds", 1)),
        own_seeds=_one(flat.pop("own_seeds", False), "own_seeds", bool),
        measurement=_measurement({k: flat.pop(k) for k in list(flat) if k.startswith("evaluation.")}),
        values=tuple((name, _values(name, given)) for name, given in flat.items()),
    )


def _flat(content: dict[str, Any]) -> dict[str, Any]:
    """Dotted names; those that no grid knows are refused."""
    valid = [*_TOP, *(f"evaluation.{name}" for name in _EVALUATION), *KEYS]
    out: dict[str, Any] = {}
    for name, value in content.items():
        if isinstance(value, dict):
            if name not in _TABLES:
                raise InputError(unknown("table", name, _TABLES))
            out |= {f"{name}.{key}": inner for key, inner in value.items()}
        else:
            out[name] = value
    for name in out:
        if name in _TABLES:
            raise InputError(f"{name} is a table, got {out[name]!r}; write [{name}] and its settings below.")
        if name not in valid:
            # The neighbours in its own table are the likelier ones.
            near = [v for v in valid if v.partition(".")[0] == name.partition(".")[0]] if "." in name else []
            raise InputError(unknown("key", name, near or valid))
    return out


def _values(name: str, given: Any) -> tuple[Any, ...]:
    """One value, or the list of them that makes an axis."""
    key = KEYS[name]
    widths = key.kind is tuple and isinstance(given, list) and not any(isinstance(width, list) for width in given)
    values = given if isinstance(given, list) and not widths else [given]
    if not values:
        raise InputError(f"{name} is an empty list: give at least one value, or leave the key out.")
    checked = []
    for value in values:
        try:
            checked.append(key.value(value))
        except CounterfactualTrainingError as error:
            text = str(error)
            raise InputError(text if text.startswith(name) else f"{name}: {text}") from error
    twice = [value for value in checked if checked.count(value) > 1]
    if twice:
        raise InputError(f"{name} names {twice[0]!r} more than once.")
    return tuple(checked)


def _measurement(flat: dict[str, Any]) -> Measurement:
    given = {name.removeprefix("evaluation."): value for name, value in flat.items()}
    default = Measurement()
    on = _one(given.pop("on", default.on), "evaluation.on", str)
    if on not in ROWS:
        raise InputError(unknown("rows of evaluation.on:", on, ROWS))
    protected = _one(given.pop("protected", default.protected), "evaluation.protected", bool)
    protocol = default.protocol
    if "protocol" in given:
        name = _one(given.pop("protocol"), "evaluation.protocol", str)
        if name not in PROTOCOLS:
            raise InputError(unknown("protocol", name, PROTOCOLS))
        if name != protocol.name:
            chosen = PROTOCOLS[name]
            protocol = replace(chosen, num_individuals=protocol.num_individuals, num_runs=protocol.num_runs)
    changes = {name: _protocol_value(name, value, getattr(EvaluationProtocol(), name)) for name, value in given.items()}
    return Measurement(on, protected, _searchable(replace(protocol, **changes)))


def _searchable(protocol: EvaluationProtocol) -> EvaluationProtocol:
    """The protocol, if a search can be made of it."""
    for name in ("lambda_energy", "epsilons"):
        if any(not 0 <= value < float("inf") for value in getattr(protocol, name)):
            raise InputError(f"evaluation.{name} must be finite and not negative, got {list(getattr(protocol, name))}.")
    for name in ("max_steps", "decision_threshold", "learning_rate", "lambda_cost"):
        try:
            KEYS[f"generator.{name}"].check(getattr(protocol, name))
        except CounterfactualTrainingError as error:
            raise InputError(f"evaluation.{name}: {error}") from error
    return protocol


def _protocol_value(name: str, given: Any, default: Any) -> Any:
    label = f"evaluation.{name}"
    if isinstance(default, tuple):
        return _listed(given, label, type(default[0]))
    if isinstance(given, list):
        raise InputError(f"{label} is one value, got a list; all models of a grid are measured alike.")
    return _one(given, label, int if default is None else type(default))


def _one(given: Any, name: str, kind: type) -> Any:
    if kind is float and type(given) is int:
        return float(given)
    if type(given) is not kind:
        raise InputError(f"{name} is {TYPES[kind]}, got {given!r}.")
    return given


def _listed(given: Any, name: str, kind: type) -> tuple[Any, ...]:
    """One or several values of a kind."""
    values = given if isinstance(given, list) else [] if given is None else [given]
    if not values:
        raise InputError(f"{name} is missing: give one value or a list of them.")
    return tuple(dict.fromkeys(_one(value, name, kind) for value in values))


def _seeds(given: Any) -> tuple[int, ...]:
    """A count, or the seeds themselves."""
    if type(given) is int:
        if given < 1:
            raise InputError(f"seeds must be 1 or more, or a list of them, got {given}.")
        return tuple(range(given))
    return _listed(given, "seeds", int)
