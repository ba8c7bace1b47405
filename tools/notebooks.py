"""Write the tutorials as notebooks, from the pages themselves: text and code, no outputs.

python -m tools.notebooks            # writes docs/tutorials/*.ipynb
python -m tools.notebooks --check    # fails if a notebook is not what its page says
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

from tools.markdown import Block, blocks
from tools.pages import PICTURE, WRITTEN_BY, commands

TUTORIALS = Path(__file__).parent.parent / "docs" / "tutorials"
_COMMENT = re.compile(r"^<!--.*-->\n", re.MULTILINE)


def notebook(page: Path) -> str:
    """A page as a notebook. Outputs and pictures are left out: running the notebook makes them."""
    lines = page.read_text(encoding="utf-8").splitlines()
    cells = []
    after = 0
    for block in blocks("\n".join(lines)):
        if _source(block) is None:
            continue
        cells += [_text(lines[after : block.first - 1]), _cell("code", _source(block) or "")]
        after = (block.output or block).last + 1
    cells.append(_text(lines[after:]))
    numbered = [
        {"id": f"{page.stem}-{number}", **cell}
        for number, cell in enumerate(c for c in cells if c["source"])
    ]
    python = {"display_name": "Python 3", "language": "python", "name": "python3"}
    content = {
        "cells": numbered,
        "metadata": {"kernelspec": python},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _source(block: Block) -> str | None:
    """A block as a notebook runs it; ``None`` if it is only to be read."""
    if block.not_run or (block.language not in ("python", "bash") and not block.title):
        return None
    if block.title:
        return f"%%writefile {block.title}\n{block.code}"
    if block.language == "python":
        return block.code
    # Who has the notebook has the package.
    lines = [line for line in commands(block.code) if not line.startswith("pip ")]
    return "\n".join(f"!{line}" for line in lines) or None


def _text(lines: list[str]) -> dict[str, Any]:
    text = "\n".join(
        line for line in lines if not (PICTURE.search(line) or line.startswith(WRITTEN_BY))
    )
    return _cell("markdown", _COMMENT.sub("", text + "\n").strip())


def _cell(kind: str, source: str) -> dict[str, Any]:
    if kind == "code":
        more = {"execution_count": None, "outputs": []}
    else:
        more = {}
    return {
        "cell_type": kind,
        "metadata": {},
        "source": source.splitlines(keepends=True),
        **more,
    }


def write_notebooks(check: bool = False) -> None:
    """Write those that are not there or not up to date; with ``check``, exit instead."""
    for page in sorted(set(TUTORIALS.glob("*.md")) - {TUTORIALS / "index.md"}):
        path = page.with_suffix(".ipynb")
        text = notebook(page)
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        if check:
            sys.exit(
                f"{path.name} is not what {page.name} says; run python -m tools.notebooks."
            )
        path.write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail if a notebook would change"
    )
    write_notebooks(parser.parse_args().check)


if __name__ == "__main__":
    main()
