"""Where each public name stands in the API reference, and the links that docstrings make to it."""

from __future__ import annotations

import re

import counterfactual_training as ct

# Page of the reference, its title, and the modules whose public names it describes.
GROUPS = {
    "classifier": ("Data frames", ("estimator", "advice", "tabular")),
    "training": ("Training", ("training", "core.losses")),
    "search": ("Search", ("search",)),
    "constraints": ("Constraints", ("constraints",)),
    "gates": ("Gates", ("gates",)),
    "models": ("Models", ("models",)),
    "evaluation": ("Evaluation", ("evaluation",)),
    "data": ("Data sets", ("datasets", "datasets.synthetic")),
    "audits": ("Audits and export", ("audits", "export")),
    "errors": ("Errors", ("errors",)),
}
_ROLE = re.compile(r":(class|func|meth|data|mod|attr|exc):`~?([^`]+)`")


def names_of(group: str) -> list[str]:
    """The public names of a page, classes first, as ``__all__`` lists them."""
    return [name for name in ct.__all__ if ct._HOME[name] in GROUPS[group][1]]


PAGE_OF = {name: group for group in GROUPS for name in names_of(group)}


def linked(text: str, folder: str = "") -> str:
    """Text with Sphinx roles as Markdown: a link where the name is public, code otherwise.

    Args:
        text: of a docstring.
        folder: of the API pages, seen from the page that shows the text: ``"api/"``.
    """

    def link(role: re.Match[str]) -> str:
        name = role[2].rpartition(".")[2] if role[2].startswith("counterfactual_training") else role[2]
        owner = name.partition(".")[0]
        # A method goes by the name of its class; alone it is one of the class that is being described.
        known = owner in PAGE_OF and (role[1] != "meth" or "." in name)
        return f"[`{name}`]({folder}{PAGE_OF[owner]}.md#{owner})" if known else f"`{name}`"

    return _ROLE.sub(link, text)
