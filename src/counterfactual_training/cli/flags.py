"""Messages of the library, which speak to Python users, in the words of the command line."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from counterfactual_training.cli.parsing import pasted

# A name of a column in double quotes, with \\" for a quote in it.
_NAME = r'"(?:[^"\\]|\\.)*"'


def _codes(found: re.Match[str]) -> str:
    """``state special={"late": [-9]}`` as ``add --special late=-9``."""
    pairs = re.findall(rf"({_NAME}): \[(.*?)\]", found[1])
    return "add " + pasted(
        "--special", [f"{json.loads(name)}={codes.replace(' ', '')}" for name, codes in pairs]
    )


def _immutable(found: re.Match[str]) -> str:
    """``state mutability={"age": "none"}, or …`` as ``add --immutable age``."""
    return "add " + pasted(
        "--immutable",
        [json.loads(name) for name in re.findall(rf'({_NAME}): "none"', found[1])],
    )


# In this order: what states a rule first, because its words occur in others.
_SAID: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (r"state special=\{(.*)\}", _codes),
    (r"state mutability=\{(.*)\}, or mutability=\{\}.*$", _immutable),
    (
        r"state schema=\{('.*?'|\".*?\"): \{'(\w+)': (.+?)\}\}",
        r"write [\1] and below it \2 = \3 into a file for --schema",
    ),
    (
        r"have missing ones filled by missing='impute'",
        "have blanks filled in with --missing impute",
    ),
    (r"Encoder\(missing='impute'\) uses", "--missing impute uses"),
    (
        r"every value reads as a number, so convert it with pd\.to_numeric",
        "write all of its cells as numbers",
    ),
    (
        r"convert it, for example with pd\.to_numeric, or state another kind",
        "correct the cell, or state another kind",
    ),
    (
        r"drop it if it is a name or an identifier",
        "leave it out with --drop if it is a name or an identifier",
    ),
    (
        r"drop it or turn it into numbers: (?=`)",
        "leave it out with --drop, or write numbers into the file, with pandas: ",
    ),
    (r"; drop the column", "; leave it out with --drop"),
    (r"; drop it or convert it", "; leave it out with --drop"),
    (
        r"use allowed= to list categories",
        "list the categories as allowed in a file for --schema",
    ),
    (r"The frame has 0 rows", "There are no rows"),
    (r"in the frame\b|from the frame\b", "in the file"),
    (
        r"preset='as_run', the paper's method, or objective='full' trains with them",
        "--objective full trains with them",
    ),
    (r"\bn_options must\b", "--options must"),
    (r"\bmax_changes must\b", "--max-changes must"),
    (r"\bconfidence must\b|\bdecision_threshold must\b", "--confidence must"),
    (r"\bepochs must\b", "--epochs must"),
    (r"\blearning_rate must\b", "--learning-rate must"),
    (r"\bburn_in (?=must|is)", "--burn-in "),
    (r"Layer widths must", "--hidden: widths must"),
    (r"\bin (lock|vary)\b", r"in --\1"),
    (r"\bhidden must\b", "--hidden must"),
)


def in_flags(message: str) -> str:
    """A message with the names of Python's arguments replaced by those of options."""
    for pattern, words in _SAID:
        message = re.sub(pattern, words, message)
    return message
