"""Write the reference pages that come from the code: every public name, setting, command and rule.

python -m tools.reference            # writes docs/reference/
python -m tools.reference --check    # fails if a page is not what the code says
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import counterfactual_training as ct
from counterfactual_training.cli import main as run_ct
from counterfactual_training.cli import make_parser
from counterfactual_training.cli.commands import COMMANDS
from counterfactual_training.rules import RULES, Rule
from tools.names import GROUPS, WRITTEN_BY, cell, constant, first_sentence, names_of
from tools.settings import settings_page

REFERENCE = Path(__file__).parent.parent / "docs" / "reference"
_COLUMNS = "100"  # width of the help texts


# ---- names ---------------------------------------------------------------------------------------


def api_page(group: str) -> str:
    """One page of the API reference: a table of its names, then each with signature, arguments and
    example.
    """
    title, _ = GROUPS[group]
    table = [f"| [`{name}`](#{name}) | {first_sentence(name)} |" for name in names_of(group)]
    lines = [
        WRITTEN_BY,
        "",
        f"# {title}",
        "",
        "`import counterfactual_training as ct`, then `ct.` and the name.",
        "",
    ]
    lines += ["| name | what it is |", "|---|---|", *table]
    for name in names_of(group):
        lines += ["", f'<a id="{name}"></a>', "", f"::: {_path(name)}"]
        # What one calls is inherited: fit, explain, tune.
        if GROUPS[group][1][0] == "tables.estimators":
            lines += ["    options:", "      inherited_members: true"]
    return "\n".join(lines) + "\n"


def api_index() -> str:
    """All public names on one page."""
    lines = [
        WRITTEN_BY,
        "",
        "# All public names",
        "",
        "`import counterfactual_training as ct` offers:",
        "",
    ]
    for group, (title, _) in GROUPS.items():
        names = ", ".join(f"[`{name}`]({group}.md#{name})" for name in names_of(group))
        lines.append(f"- [{title}]({group}.md): {names}")
    return "\n".join(lines) + "\n"


def _path(name: str) -> str:
    """Where the reader of the source finds a name: the module that defines it."""
    if inspect.ismodule(getattr(ct, name)):
        return str(getattr(ct, name).__name__)
    if inspect.isclass(value := getattr(ct, name)) or inspect.isroutine(value):
        return f"{value.__module__}.{name}"
    if inspect.ismodule(value):
        return value.__name__
    return str(constant(name).path)


# ---- commands ------------------------------------------------------------------------------------


def commands_page() -> str:
    """The help of every command."""
    lines = [
        WRITTEN_BY,
        "",
        "# Commands",
        "",
        "`ct --help`, and what every command says of itself.",
        "",
    ]
    lines += [
        f"- [`ct {name}`](#ct-{name}): {command.purpose}" for name, command in COMMANDS.items()
    ]
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
    inner = [
        action
        for action in top.choices[command]._actions
        if isinstance(action, argparse._SubParsersAction)
    ]
    return [name for action in inner for name in action.choices]


# ---- rules ---------------------------------------------------------------------------------------

_SORTS = {
    "filter": (
        "Filters",
        "A filter leaves out values that a column may not take, before any are combined.",
    ),
    "limit": ("Limits", "A limit says how far the search goes, or what it pays."),
    "check": (
        "Checks",
        "A check judges a whole row that was changed, because it takes several columns to tell. "
        "Rows that break one "
        "already are told so, and not made worse.",
    ),
}
_PLACES = {"fit": "model", "question": "question"}
_ABOUT_RULES = """\
What advice keeps. State rules for the model, in a schema, or for one question, in `explain`; a
guide is [here](../how-to/constraints.md). A question only adds to what the model was told. What
is stated nowhere is learned from the training rows, or is implied. Options of `ct`
have the same names, with hyphens; so have fields of the [HTTP API](http-api.md)."""


def rules_page() -> str:
    """Every rule of advice, by what it is."""
    lines = [WRITTEN_BY, "", "# Rules", "", _ABOUT_RULES]
    for sort, (title, description) in _SORTS.items():
        lines += ["", f"## {title}", "", description, ""]
        lines += [
            "| rule | meaning | for the | columns | written as |",
            "|---|---|---|---|---|",
        ]
        lines += [_rule(rule) for rule in RULES if rule.sort == sort]
    return "\n".join(lines) + "\n"


def _rule(rule: Rule) -> str:
    places = ", ".join(_PLACES[place] for place in rule.stated) or "–"
    return (
        f"| `{rule.name}` | {cell(rule.meaning)} | {places} | {rule.columns} | {rule.written} |"
    )


# ---- all of them ---------------------------------------------------------------------------------


PAGES: dict[str, Callable[[], str]] = {
    **{f"api/{group}.md": (lambda group=group: api_page(group)) for group in GROUPS},
    "api/index.md": api_index,
    "settings.md": settings_page,
    "commands.md": commands_page,
    "rules.md": rules_page,
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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail if a page would change"
    )
    write_reference(parser.parse_args().check)


if __name__ == "__main__":
    main()
