"""Messages of the library, which speak to Python users, in the words of the command line."""

from __future__ import annotations

import re

_SAID: tuple[tuple[str, str], ...] = (
    (
        r"state schema=\{('.*?'|\".*?\"): \{'(\w+)': (.+?)\}\}",
        r"write [\1] and below it \2 = \3 into a file for --schema",
    ),
    (r"have missing ones filled by missing='impute'", "have blanks filled in with --missing impute"),
    (r"Encoder\(missing='impute'\) uses", "--missing impute of `ct train` uses"),
    (r"every value reads as a number, so convert it with pd\.to_numeric", "write all of its cells as numbers"),
    (r"convert it, for example with pd\.to_numeric, or state another kind", "correct the cell, or state another kind"),
    (r"drop it if it is a name or an identifier", "leave it out with --drop if it is a name or an identifier"),
    (r"; drop the column", "; leave it out with --drop"),
    (
        r"\(for example days since a fixed date\) or drop it",
        "(for example days since a fixed date), or leave it out: --drop",
    ),
    (r"; drop it or convert it", "; leave it out with --drop"),
    (r"use allowed= to list categories", "list the categories as allowed in a file for --schema"),
    (r"The frame has 0 rows", "There are no rows"),
    (r"in the frame\b|from the frame\b", "in the file"),
    (r"preset='as_run', the paper's method, or objective='full' trains with them", "--objective full trains with them"),
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


def _codes(found: re.Match[str]) -> str:
    """``state special={"late": [-9]}`` as ``add --special late=-9``."""
    pairs = re.findall(r"[\"'](.+?)[\"']: \[(.*?)\]", found[1])
    return "add --special " + " ".join(f"{name}={codes.replace(' ', '')}" for name, codes in pairs)


def _immutable(found: re.Match[str]) -> str:
    """``state mutability={"age": "none"}, or …`` as ``add --immutable age``."""
    return "add --immutable " + ",".join(re.findall(r'"([^"]+)": "none"', found[1]))


def in_flags(message: str) -> str:
    """A message with the names of Python's arguments replaced by those of options."""
    message = re.sub(r"state special=\{(.*?)\}", _codes, message)
    message = re.sub(r"state mutability=\{(.*?)\}, or mutability=\{\}.*$", _immutable, message)
    for pattern, words in _SAID:
        message = re.sub(pattern, words, message)
    return message
