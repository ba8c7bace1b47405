"""Write the reference pages that come from the code: every public name, every setting, every command.

python -m tools.reference            # writes docs/reference/
python -m tools.reference --check    # fails if a page is not what the code says
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import inspect
import io
import os
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import griffe

import counterfactual_training as ct
from counterfactual_training.cli import COMMANDS, make_parser
from counterfactual_training.cli import main as run_ct
from counterfactual_training.estimator.parameters import PRESETS
from tools.names import GROUPS, linked, names_of

REFERENCE = Path(__file__).parent.parent / "docs" / "reference"
_MADE = "<!-- written by python -m tools.reference: change the code, not this page -->"
# What settings.md lists, in its order. The first sentence of each docstring introduces its table.
_SETTINGS = (
    *("CounterfactualClassifier", "CounterfactualRegressor", "Setting", "TrainConfig", "Objective", "Generator"),
    *("GateConfig", "EvaluationProtocol"),
)
_COLUMNS = "100"  # width of the help texts


# ---- names -----------------------------------------------------------------------------------------------------------


def api_page(group: str) -> str:
    """One page of the API reference: a table of its names, then each with signature, arguments and example."""
    title, _ = GROUPS[group]
    table = [f"| [`{name}`](#{name}) | {_first_sentence(name)} |" for name in names_of(group)]
    lines = [_MADE, "", f"# {title}", "", "`import counterfactual_training as ct`, then `ct.` and the name.", ""]
    lines += ["| name | what it is |", "|---|---|", *table]
    for name in names_of(group):
        lines += ["", f'<a id="{name}"></a>', "", f"::: {_path(name)}"]
    return "\n".join(lines) + "\n"


def api_index() -> str:
    """All public names on one page."""
    lines = [_MADE, "", "# All public names", "", "`import counterfactual_training as ct` offers:", ""]
    for group, (title, _) in GROUPS.items():
        names = ", ".join(f"[`{name}`]({group}.md#{name})" for name in names_of(group))
        lines.append(f"- [{title}]({group}.md): {names}")
    return "\n".join(lines) + "\n"


def documented(name: str) -> str:
    """The docstring of a constant, which only the source holds: it stands below the assignment."""
    return str(_constant(name).docstring.value)


def _path(name: str) -> str:
    """Where the reader of the source finds a name: the module that defines it."""
    if inspect.isclass(value := getattr(ct, name)) or inspect.isroutine(value):
        return f"{value.__module__}.{name}"
    return str(_constant(name).path)


@cache
def _constant(name: str) -> Any:
    package = griffe.load("counterfactual_training", search_paths=[REFERENCE.parents[1] / "src"], resolve_aliases=True)
    return package[ct._HOME[name]][name].final_target


def _first_sentence(name: str, folder: str = "") -> str:
    value = getattr(ct, name)
    told = inspect.getdoc(value) if inspect.isclass(value) or inspect.isroutine(value) else documented(name)
    return _cell(linked((told or "").partition("\n\n")[0], folder))


# ---- settings --------------------------------------------------------------------------------------------------------


def settings_page() -> str:
    """Every setting with its default, from the classes that own them, and what the presets change."""
    lines = [
        _MADE,
        "",
        "# Settings",
        "",
        "Every setting and its default, read from the code. Where the classifier and the ",
    ]
    lines[-1] += "regressor have `None`, their [preset](#presets) decides."
    for name in _SETTINGS:
        lines += ["", f"## {name}", "", f"{_first_sentence(name, 'api/')} [Reference]({_api(name)}).", ""]
        lines += ["| setting | default | meaning |", "|---|---|---|", *_rows(getattr(ct, name))]
    return "\n".join([*lines, *_presets()]) + "\n"


def _api(name: str) -> str:
    group = next(group for group in GROUPS if name in names_of(group))
    return f"api/{group}.md#{name}"


def _rows(owner: type) -> list[str]:
    """One row for each meaning: settings that the docstring describes together stand together."""
    told, values = _meanings(owner), _defaults(owner)
    together: dict[str, list[str]] = {}
    for name in values:
        together.setdefault(told.get(name, name), []).append(name)
    return [_row([(name, _default(values[name])) for name in names], told) for names in together.values()]


def _row(settings: list[tuple[str, str]], told: Mapping[str, str]) -> str:
    names, defaults = zip(*settings, strict=True)
    said = told.get(names[0], "")
    return f"| {', '.join(f'`{name}`' for name in names)} | {', '.join(dict.fromkeys(defaults))} | {said} |"


def _defaults(owner: type) -> dict[str, Any]:
    """By setting: fields of a dataclass that its constructor takes, or arguments of the constructor."""
    if not dataclasses.is_dataclass(owner):
        return {name: of.default for name, of in inspect.signature(owner).parameters.items()}
    return {
        of.name: of.default_factory() if of.default_factory is not dataclasses.MISSING else of.default
        for of in dataclasses.fields(owner)
        if of.init
    }


def _default(value: Any) -> str:
    if value is dataclasses.MISSING or value is inspect.Parameter.empty:
        return "*required*"
    if value is None:
        return "`None`"
    if isinstance(value, float | int | str | tuple):
        return f"`{value!r}`" if value != () else "`()`"
    return f"`{getattr(value, 'name', None) or type(value).__name__}`"


def _meanings(owner: type) -> dict[str, str]:
    """What the docstring says of each setting; ``a, b: …`` is said of both."""
    told = {}
    for section in griffe.Docstring(inspect.getdoc(owner) or "").parse("google", warnings=False):
        if section.kind.value in ("parameters", "attributes"):
            for item in section.value:
                told |= {name.strip(): _cell(linked(item.description, "api/")) for name in item.name.split(",")}
    return told


def _presets() -> list[str]:
    """What presets of the classifier disagree on."""
    told = {name: _flat(preset) for name, preset in PRESETS.items()}
    keys = list(dict.fromkeys(key for values in told.values() for key in values))
    differing = [key for key in keys if len({values.get(key, "–") for values in told.values()}) > 1]
    lines = ["", "## Presets", "", "`CounterfactualClassifier(preset=…)`, where they differ. `ct.preset(…)` gives the "]
    lines[-1] += "training setting of all but `default`."
    lines += ["", f"| setting | {' | '.join(f'`{name}`' for name in told)} |", "|---|" + "---|" * len(told)]
    rows = [f"| `{key}` | {' | '.join(values.get(key, '–') for values in told.values())} |" for key in differing]
    return [*lines, *rows]


def _flat(preset: Any) -> dict[str, str]:
    """A preset as ``part.setting: value``."""
    values = {key: _default(value) for key, value in vars(preset).items() if key != "setting"}
    for part, numbers in preset.setting.describe().items():
        inner = numbers if isinstance(numbers, Mapping) else {"": numbers}
        values |= {f"{part}.{key}".rstrip("."): _default(value) for key, value in inner.items()}
    return values


# ---- commands --------------------------------------------------------------------------------------------------------


def commands_page() -> str:
    """The help of every command."""
    lines = [_MADE, "", "# Commands", "", "`ct --help`, and what every command says of itself.", ""]
    lines += [f"- [`ct {name}`](#ct-{name}): {purpose}" for name, purpose in COMMANDS.items()]
    for name in COMMANDS:
        lines += ["", f"## ct {name}", "", "```text", _help(name), "```"]
        for action in _actions(name):
            lines += ["", f"### ct {name} {action}", "", "```text", _help(name, action), "```"]
    return "\n".join(lines) + "\n"


def _help(*words: str) -> str:
    out = io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.suppress(SystemExit),
        mock.patch.dict(os.environ, {"COLUMNS": _COLUMNS, "NO_COLOR": "1"}),
    ):
        run_ct([*words, "--help"])
    return out.getvalue().rstrip()


def _actions(command: str) -> list[str]:
    """Commands within a command: ``ct grid run``."""
    top = next(action for action in make_parser([command])._actions if action.choices)
    inner = [action for action in top.choices[command]._actions if isinstance(action, argparse._SubParsersAction)]
    return [name for action in inner for name in action.choices]


# ---- all of them -----------------------------------------------------------------------------------------------------


def _cell(text: str) -> str:
    """Text as one cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


PAGES: dict[str, Callable[[], str]] = {
    **{f"api/{group}.md": (lambda group=group: api_page(group)) for group in GROUPS},
    "api/index.md": api_index,
    "settings.md": settings_page,
    "commands.md": commands_page,
}


def write_reference(check: bool = False) -> None:
    """Write the pages that are not there or not up to date; with ``check``, exit instead."""
    for path, text in {REFERENCE / name: page() for name, page in PAGES.items()}.items():
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        if check:
            sys.exit(f"{path.name} is not what the code says; run python -m tools.reference.")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page would change")
    write_reference(parser.parse_args().check)


if __name__ == "__main__":
    main()
