"""Where each public name stands in the API reference, and the links that docstrings make to it."""

from __future__ import annotations

import inspect
import re
from functools import cache
from pathlib import Path
from typing import Any

import griffe

import counterfactual_training as ct

# Page of the reference, its title, and the folders and modules whose public names it describes.
GROUPS = {
    "classifier": ("Data frames", ("tables.estimators", "tables.advice", "tables.columns")),
    "training": ("Training", ("training", "core.losses")),
    "search": ("Search", ("generators", "core.guarantee")),
    "constraints": ("Constraints", ("constraints",)),
    "gates": ("Gates", ("gates",)),
    "models": ("Models", ("models",)),
    "evaluation": ("Evaluation", ("evaluation",)),
    "data": ("Data sets", ("datasets",)),
    "audits": ("Audits and export", ("tables.audits", "tables.export")),
    "errors": ("Errors", ("errors",)),
}
# The first line of a page that comes from code.
WRITTEN_BY = "<!-- written by python -m tools.reference: change the code, not this page -->"
_SOURCE = Path(__file__).parent.parent / "src"
_ROLE = re.compile(r":(class|func|meth|data|mod|attr|exc):`~?([^`]+)`")


def names_of(group: str) -> list[str]:
    """The public names of a page, classes first, as ``__all__`` lists them."""
    described = GROUPS[group][1]
    return [name for name in ct.__all__ if _is_within(ct._HOME.get(name, ""), described)]


def _is_within(module: str, described: tuple[str, ...]) -> bool:
    return any(f"{module}.".startswith(f"{folder}.") for folder in described)


PAGE_OF = {name: group for group in GROUPS for name in names_of(group)}


def undocumented() -> list[str]:
    """Public names that no page of the reference lists, or that say nothing of themselves."""
    described = {name for name in PAGE_OF if docstring(name)}
    return sorted(set(ct.__all__) - described)


def docstring(name: str) -> str:
    """Of a public name. That of a constant only the source holds, below the assignment."""
    value = getattr(ct, name)
    if inspect.isclass(value) or inspect.isroutine(value) or inspect.ismodule(value):
        if inspect.isclass(value):
            text = vars(value).get("__doc__")
        else:
            text = value.__doc__
        return inspect.cleandoc(text or "")
    return str(getattr(constant(name).docstring, "value", ""))


@cache
def constant(name: str) -> Any:
    """A public constant, as Griffe reads it from the source."""
    package = griffe.load(
        "counterfactual_training", search_paths=[_SOURCE], resolve_aliases=True
    )
    member = package[ct._HOME[name]][name]
    if member.is_alias:
        return member.final_target
    return member


def linked(text: str, folder: str = "") -> str:
    """Text with Sphinx roles as Markdown: a link where the name is public, code otherwise.

    Args:
        text: of a docstring.
        folder: of the API pages, seen from the page that shows the text: ``"api/"``.
    """

    def link(role: re.Match[str]) -> str:
        if role[2].startswith("counterfactual_training."):
            name = role[2].rpartition(".")[2]
        else:
            name = role[2]
        owner = name.partition(".")[0]
        if name == "RULES":
            return f"[`RULES`]({'' if folder else '../'}rules.md)"
        # A method goes by the name of its class; alone it is one of the class that is being
        # described.
        has_page = owner in PAGE_OF and (role[1] != "meth" or "." in name)
        if has_page:
            return f"[`{name}`]({folder}{PAGE_OF[owner]}.md#{owner})"
        return f"`{name}`"

    return _ROLE.sub(link, text)


def first_sentence(name: str, folder: str = "") -> str:
    """How the docstring of a public name begins, as a cell of a table."""
    return cell(linked(docstring(name).partition("\n\n")[0], folder))


def cell(text: str) -> str:
    """Text as one cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")
