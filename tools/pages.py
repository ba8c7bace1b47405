"""Run the code of documentation pages; paste what it prints and draws into them.

    python -m tools.pages docs/tutorials/dataframe.md            # runs it and compares with what is
    pasted python -m tools.pages docs/tutorials/dataframe.md --write    # runs it and pastes outputs
    and pictures

Blocks of a page share one namespace and one empty folder. ``python`` is executed, ``bash`` line by
line; a block with a title is written to the file of that name. CONTRIBUTING.md describes the
comments that make a block quicker in tests.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import os
import re
import shutil
import sys
import tempfile
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

from tools.commands import check, run_line
from tools.markdown import Block, Quick, blocks
from tools.outputs import agree

ROOT = Path(__file__).parent.parent
PICTURE = re.compile(r"!\[[^\]]*\]\((images/[\w./-]+\.png)\)")
WRITTEN_BY = "*Outputs by `python -m tools.pages"


@dataclass
class PageRun:
    """What running a page gave.

    Attributes:
        printed: for each block with a pasted output, what it really printed.
        outdated: what the page shows and the code no longer prints, a sentence each.
        faults: what else went wrong; a page stops at the first block that fails.
    """

    printed: list[tuple[Block, str]] = field(default_factory=list)
    outdated: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


def run_page(page: Path, quick: Quick = "always") -> PageRun:
    """Run all blocks of a page in the current folder; ``quick`` says which of them as the comments
    for tests ask.
    """
    run = PageRun()
    # Where dataclasses of the page look for their names.
    module = sys.modules["__page__"] = ModuleType("__page__")
    scope = vars(module)
    comparable = True
    for block in blocks(page.read_text(encoding="utf-8")):
        # A block that does not run as it stands is not what later outputs were made by.
        comparable = comparable and not (block.shortened(quick) and block.not_run is None)
        try:
            if block.shortened(quick):
                code = block.quickened()
            else:
                code = block.code
            if block.runs(quick):
                printed = _run(block, code, scope, page.name)
            else:
                printed = _check(block, page.name)
        except (Exception, SystemExit):
            run.faults.append(
                f"{page.name}, line {block.first + 1}: {traceback.format_exc(limit=-4)}"
            )
            break
        if block.output and block.runs(quick):
            run.printed.append((block, printed))
            as_shown = agree(block.output.code, printed, numbers=block.varies is None)
            if comparable and not block.shortened(quick) and not as_shown:
                run.outdated.append(
                    f"{page.name}, line {block.output.first + 1}: the page "
                    f"shows\n{block.output.code}\n"
                    f"but the code above prints\n{printed}\n"
                    f"If that is right, run python -m tools.pages {page.name} --write."
                )
    if not run.faults:
        run.faults += [
            f"{page.name}: no block draws {name}"
            for name in pictures(page)
            if not Path(name).is_file()
        ]
    return run


def pictures(page: Path) -> list[str]:
    """File names of the pictures that the page's own code draws."""
    folder = f"images/{page.stem}/"
    return [
        link.removeprefix(folder)
        for link in PICTURE.findall(page.read_text(encoding="utf-8"))
        if link.startswith(folder)
    ]


def write_page(page: Path, run: PageRun) -> None:
    """Paste outputs into the page and pictures beside it; the last line says which command did."""
    lines = page.read_text(encoding="utf-8").splitlines()
    for block, printed in reversed(run.printed):
        shown = block.output
        assert shown is not None  # noqa: S101
        lines[shown.first : shown.last] = [
            shown.indent + line if line else "" for line in printed.splitlines()
        ]
    if lines and lines[-1].startswith(WRITTEN_BY):
        lines = lines[:-2]
    if run.printed or pictures(page):
        path = page.resolve().relative_to(ROOT).as_posix()
        packages = (
            f"counterfactual-training {version('counterfactual-training')}, torch "
            f"{version('torch').split('+')[0]}"
        )
        python = f"Python {sys.version_info.major}.{sys.version_info.minor}"
        lines += [
            "",
            f"{WRITTEN_BY} {path} --write` with {packages} and {python}, "
            f"{date.today().isoformat()}.*",
        ]
    page.write_text("\n".join(lines) + "\n", encoding="utf-8")
    for name in pictures(page):
        beside = page.parent / "images" / page.stem / name
        beside.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(name, beside)


def _run(block: Block, code: str, scope: dict[str, object], name: str) -> str:
    """Execute one block, and return what it printed."""
    if block.title:
        Path(block.title).parent.mkdir(parents=True, exist_ok=True)
        Path(block.title).write_text(code + "\n", encoding="utf-8")
        return ""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        if block.language == "python":
            _execute(code, scope, f"{name}:{block.first + 1}")
        elif block.language == "bash":
            for line in commands(code):
                run_line(line)
    return "\n".join(line.rstrip() for line in out.getvalue().strip("\n").splitlines())


def _check(block: Block, name: str) -> str:
    """What can be told of a block without running it; it prints nothing."""
    if block.language == "python":
        compile(block.code, name, "exec", dont_inherit=True)
    elif block.language == "bash":
        for line in commands(block.code):
            check(line)
    return ""


def _execute(code: str, scope: dict[str, object], name: str) -> None:
    """Execute as a notebook would: the value of a last expression is shown. Lines keep their place
    in tracebacks.
    """
    tree = ast.parse(code, name)
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = tree.body.pop()
    else:
        last = None
    exec(compile(tree, name, "exec", dont_inherit=True), scope)  # noqa: S102
    if last is not None:
        value = eval(  # noqa: S307
            compile(ast.Expression(last.value), name, "eval", dont_inherit=True), scope
        )
        if value is not None:
            print(value if hasattr(value, "to_string") else repr(value))


def commands(code: str) -> list[str]:
    """The commands of a bash block: continued lines joined, comments and blanks left out."""
    joined = re.sub(r"\\\n\s*", "", code)
    return [
        line
        for line in joined.splitlines()
        if line.strip() and not line.lstrip().startswith("#")
    ]


@contextlib.contextmanager
def empty_folder() -> Iterator[Path]:
    """Work in an empty folder, as a new user does, without a screen; go back afterwards."""
    import matplotlib
    import pandas as pd

    matplotlib.use("Agg")
    before = Path.cwd()
    with (
        tempfile.TemporaryDirectory() as folder,
        pd.option_context("display.width", 110, "display.max_columns", 20),
    ):
        os.chdir(folder)
        try:
            yield Path(folder)
        finally:
            os.chdir(before)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument(
        "--write", action="store_true", help="paste outputs and pictures into the pages"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="as the tests do: with the replacements that make it quick",
    )
    args = parser.parse_args()
    failed = False
    for page in [path.resolve() for path in args.pages]:
        with empty_folder():
            run = run_page(page, "always" if args.quick and not args.write else "never")
            faults = run.faults + ([] if args.write else run.outdated)
            if args.write and not faults:
                write_page(page, run)
        print(*(faults or [f"{page.name}: fine"]), sep="\n")
        failed |= bool(faults)
    sys.exit(failed)


if __name__ == "__main__":
    main()
