"""Errors and warnings of the library in the words of the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from counterfactual_training.cli.parsing import pasted
from counterfactual_training.errors import Action, Argument, Remedy, Worded

# Arguments whose option has the same name.
_SAME = (
    *("activation", "against", "at_most_lost", "batch", "checkpoint", "confidence", "delta"),
    *("difficulty", "domain", "epochs", "epsilons", "gate", "hidden", "lasting"),
    *("learning_rate", "lock", "max_change", "max_changes", "method", "missing", "mutability"),
    *("objectives", "people", "relations", "retrain", "scaling", "schema", "seed", "space"),
    *("special", "step", "storage", "study", "vary", "witnesses"),
)
# Arguments of the library, and the option that stands for each.
FLAGS = {
    **{name: f"--{name.replace('_', '-')}" for name in _SAME},
    "attacks": "--attack",
    "groups": "--group",
    "n_options": "--options",
    "n_seeds": "--seeds",
    "n_trials": "--trials",
    "num_individuals": "--people",
    "num_runs": "--repeats",
    "random_state": "--seed",
    # In Python, a class; the option --target is a column.
    "target": "--positive",
}


def in_flags(message: object) -> str:
    """The message of an error or a warning, with options where Python has arguments."""
    if isinstance(message, Worded):
        return message.worded(_say)
    return str(message)


def _say(part: Argument | Remedy) -> str:
    if isinstance(part, Remedy):
        return REMEDIES[part.action](part.value)
    if part.name not in FLAGS:
        return str(part)
    if part.value is None:
        return FLAGS[part.name]
    return pasted(FLAGS[part.name], [str(part.value)])


def _describe(value: tuple[str, str, str]) -> str:
    column, rule, text = value
    return f"write [{column!r}] and below it {rule} = {text} into a file for --schema"


def _state_codes(codes: Mapping[str, Sequence[int]]) -> str:
    items = [f"{name}={','.join(map(str, values))}" for name, values in codes.items()]
    return f"add {pasted('--special', items)}"


REMEDIES: dict[Action, Callable[[Any], str]] = {
    "drop": lambda column: f"leave it out with {pasted('--drop', [column])}",
    "write_numbers": lambda column: "write all of its cells as numbers",
    "convert": lambda line: f"write numbers into the file, with pandas: `{line}`",
    "list_allowed": lambda column: "list the categories as allowed in a file for --schema",
    "describe": _describe,
    "state_codes": _state_codes,
    "hold": lambda columns: f"add {pasted('--immutable', columns)}",
}
