"""The fenced blocks of a Markdown page, each with its directives and the output that is pasted
below it.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

_FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>`{3,})(?P<language>[\w-]*)(?P<rest>.*)$")
_TITLE = re.compile(r'title="([^"]+)"')
# Which blocks with a comment for tests run as it says: none, those that cannot run as they stand,
# or all.
Quick = Literal["never", "needed", "always"]
_COMMENT = re.compile(r"^\s*<!-- *(quick|not run|varies): *(.*?) *-->\s*$")


@dataclass(frozen=True)
class Block:
    """A fence and its content.

    Attributes:
        language, title: what stands behind the ticks: ```` ```toml title="rules.toml" ````.
        code: the content, without the fence's indent.
        first, last: lines of the content, counted from zero; ``last`` is the line that closes the
            fence.
        quick: texts to replace in tests, with what; an empty text appends to each command.
        not_run: why the block does not run as it stands; in tests it may still, quickened. ``None``
            for blocks that do.
        varies: what in the output differs from run to run, so that its numbers are not compared.
        output: content of a block ``text`` directly below, which shows what this one prints.
    """

    language: str
    title: str | None
    code: str
    first: int
    last: int
    indent: str = ""
    quick: tuple[tuple[str, str], ...] = ()
    not_run: str | None = None
    varies: str | None = None
    output: Block | None = None

    def shortened(self, quick: Quick) -> bool:
        """Whether the block runs as its comments for tests say, and not as it stands."""
        if quick == "needed":
            return bool(self.quick) and self.not_run is not None
        return bool(self.quick) and quick == "always"

    def runs(self, quick: Quick) -> bool:
        """Whether the block is executed: as it stands, or as tests have it."""
        return self.not_run is None or self.shortened(quick)

    def quickened(self) -> str:
        """The code that tests run."""
        code = self.code
        for old, new in self.quick:
            if not old:
                code = "\n".join(
                    f"{_uncommented(line)} {new}" if line.strip() else line
                    for line in code.splitlines()
                )
            elif old not in code:
                raise ValueError(
                    f"line {self.first + 1}: quick would replace {old!r}, which the block does "
                    "not hold"
                )
            if old:
                code = code.replace(old, new)
        return code


def blocks(page: str) -> list[Block]:
    """All blocks of a page, in their order; a pasted output belongs to the block that prints it."""
    lines = page.splitlines()
    fences = list(_fences(lines))
    outputs = {
        id(shown): block for block, shown in pairwise(fences) if _shows(lines, block, shown)
    }
    by_code = {id(block): shown for shown in fences if (block := outputs.get(id(shown)))}
    return [
        Block(**{**vars(block), "output": by_code.get(id(block))})
        for block in fences
        if id(block) not in outputs
    ]


def _fences(lines: list[str]) -> list[Block]:
    """The fences alone: a fence ends at as many ticks as it began with."""
    fences = []
    number = 0
    while number < len(lines):
        opened = _FENCE.match(lines[number])
        if not opened:
            number += 1
            continue
        first = number + 1
        closing = opened["indent"] + opened["ticks"]
        last = next((n for n in range(first, len(lines)) if lines[n].rstrip() == closing), None)
        if last is None:
            raise ValueError(f"line {first}: this fence is not closed")
        fences.append(_block(lines, opened, first, last))
        number = last + 1
    return fences


def _block(lines: list[str], opened: re.Match[str], first: int, last: int) -> Block:
    quick = []
    comments = {"not run": None, "varies": None}
    above = first - 2
    while above >= 0 and (comment := _COMMENT.match(lines[above])):
        if comment[1] == "quick":
            quick.insert(0, _replacement(comment[2]))
        else:
            comments[comment[1]] = comment[2]
        above -= 1
    title = _TITLE.search(opened["rest"])
    code = textwrap.dedent("\n".join(lines[first:last]))
    return Block(
        opened["language"],
        title[1] if title else None,
        code,
        first,
        last,
        opened["indent"],
        tuple(quick),
        comments["not run"],
        comments["varies"],
    )


def _replacement(comment: str) -> tuple[str, str]:
    if comment.startswith("+ "):
        return "", comment[2:]
    old, arrow, new = comment.partition(" -> ")
    if not arrow:
        raise ValueError(f"a quick comment reads 'old -> new' or '+ options', got {comment!r}")
    return old, new


def _shows(lines: list[str], block: Block, shown: Block) -> bool:
    between = lines[block.last + 1 : shown.first - 1]
    runs = block.language in ("python", "bash") and not block.title
    return runs and shown.language == "text" and not any(line.strip() for line in between)


def _uncommented(line: str) -> str:
    """A command without the comment behind it."""
    return re.sub(r"\s+# .*$", "", line)
