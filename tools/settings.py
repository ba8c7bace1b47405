"""The page of all settings and their defaults, read from the classes that own them."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any

import griffe

import counterfactual_training as ct
from counterfactual_training.defaults import METHODS
from tools.names import PAGE_OF, WRITTEN_BY, cell, first_sentence, linked

# What the page lists, in its order. The first sentence of each docstring introduces its table.
SHOWN = (
    *(
        "CounterfactualClassifier",
        "CounterfactualRegressor",
        "Method",
        "TrainConfig",
        "Objective",
        "Generator",
    ),
    *("GateConfig", "EvaluationProtocol", "AuditProtocol"),
)


def settings_page() -> str:
    """Every setting with its default, from the classes that own them, and the published
    methods.
    """
    lines = [
        WRITTEN_BY,
        "",
        "# Settings",
        "",
        "Every setting and its default, read from the code. Where the classifier and the ",
    ]
    lines[-1] += "regressor have `None`, their [method](#methods) decides."
    for name in SHOWN:
        lines += [
            "",
            f"## {name}",
            "",
            f"{first_sentence(name, 'api/')} [Reference](api/{PAGE_OF[name]}.md#{name}).",
            "",
        ]
        lines += ["| setting | default | meaning |", "|---|---|---|", *_rows(getattr(ct, name))]
    return "\n".join([*lines, *_methods()]) + "\n"


def _rows(owner: type) -> list[str]:
    """One row for each meaning: settings that the docstring describes together stand together."""
    meanings = _meanings(owner)
    values = _defaults(owner)
    together: dict[str, list[str]] = {}
    for name in values:
        together.setdefault(meanings.get(name, name), []).append(name)
    return [
        _row([(name, _default(values[name])) for name in names], meanings)
        for names in together.values()
    ]


def _row(settings: list[tuple[str, str]], meanings: Mapping[str, str]) -> str:
    names, defaults = zip(*settings, strict=True)
    meaning = meanings.get(names[0], "")
    return (
        f"| {', '.join(f'`{name}`' for name in names)} | {', '.join(dict.fromkeys(defaults))} | "
        f"{meaning} |"
    )


def _defaults(owner: type) -> dict[str, Any]:
    """By setting: fields of a dataclass that its constructor takes, or arguments of the
    constructor.
    """
    if not dataclasses.is_dataclass(owner):
        return {name: of.default for name, of in inspect.signature(owner).parameters.items()}
    return {
        of.name: of.default_factory()
        if of.default_factory is not dataclasses.MISSING
        else of.default
        for of in dataclasses.fields(owner)
        if of.init
    }


def _default(value: Any) -> str:
    if value is dataclasses.MISSING or value is inspect.Parameter.empty:
        return "*required*"
    if value is None:
        return "`None`"
    if isinstance(value, float | int | str | tuple):
        if value != ():
            return f"`{value!r}`"
        return "`()`"
    return f"`{getattr(value, 'name', None) or type(value).__name__}`"


def _meanings(owner: type) -> dict[str, str]:
    """What the docstring says of each setting; ``a, b: …`` is said of both."""
    meanings = {}
    for section in griffe.Docstring(inspect.getdoc(owner) or "").parse(
        "google", warnings=False
    ):
        if section.kind.value in ("parameters", "attributes"):
            for item in section.value:
                meanings |= {
                    name.strip(): cell(linked(item.description, "api/"))
                    for name in item.name.split(",")
                }
    return meanings


def _methods() -> list[str]:
    """The published methods: what each minimises, its own numbers, and what else it changes."""
    usual = ct.methods.ct_published().settings()
    lines = [
        "",
        "## Methods",
        "",
        "`method=` of `ct.train`, classifier and regressor; functions of `ct.methods`. ",
    ]
    lines[-1] += "[Methods](methods.md) has their sources."
    lines += [
        "",
        "| method | what it is | its own numbers | others that differ from `ct_published` |",
        "|---|---|---|---|",
    ]
    return [*lines, *(_method(name, usual) for name in METHODS)]


def _method(name: str, usual: Mapping[str, Any]) -> str:
    make = getattr(ct.methods, name)
    method = make()
    meaning = (inspect.getdoc(make) or "").partition("\n\n")[0]
    # A formula that has a line of its own is left out.
    if meaning.endswith(":"):
        meaning = f"{meaning[:-1]}."
    differing = {
        path: value
        for path, value in method.settings().items()
        if path not in method.numbers and usual.get(path, value) != value
    }
    return (
        f"| `{name}` | {cell(linked(meaning, 'api/'))} | {_stated(method.numbers)} | "
        f"{_stated(differing)} |"
    )


def _stated(values: Mapping[str, Any]) -> str:
    """As ``epsilon=0.1, steps=10``."""
    return ", ".join(f"`{name}={value}`" for name, value in values.items()) or "–"
