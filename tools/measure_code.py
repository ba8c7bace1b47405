"""How much a reader has to hold: ``python -m tools.measure_code`` writes ``results/code.md``.

Style is counted in the source of the package. Frames, lines and modules are counted while it runs:
one small training, and one cell of a quick reproduction in a process of its own.

*Lines to read for one epoch*: a plain network of two layers trains by plain ``ct`` on forty points.
Of every function of the package that runs between the start of an epoch of Algorithm 1 and its end
(:data:`EPOCH`), all lines are counted once, without docstrings, comments and blanks; a function
that runs counts whole, with the branches that this training does not take. *Lines to read for one
training*: the same of all that runs from the call of ``ct.train`` to its return, which is arguments
and their checks, the run, the epochs, callbacks and the result. Imports and class bodies do not
count. The table of these lines by file also says how many of them run: the rest are branches that
this training does not take. Version 0.1 (commit 8ce5593) was counted by the same two functions:
``python -m tools.measure_code --lines`` with PYTHONPATH at its ``src`` prints its numbers.

*Vague names*: variables, parameters, attributes, functions and classes called by one of
:data:`_VAGUE`, which do not say what they hold; each definition and assignment counts.
``python -m tools.measure_code --names COMMIT`` counts those of another commit, word by word.
"""

from __future__ import annotations

import ast
import inspect
import io
import re
import subprocess
import sys
import tarfile
import tempfile
import textwrap
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

import counterfactual_training as ct

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
# The function that is one epoch of Algorithm 1, by file and name: now, and in version 0.1.
EPOCH = (("training/algorithm.py", "one_epoch"), ("training/loop.py", "advance"))
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_NAMED = (*_FUNCTIONS, ast.ClassDef)
# What adds a way through a function.
_BRANCHES = (
    ast.If,
    ast.For,
    ast.While,
    ast.IfExp,
    ast.ExceptHandler,
    ast.comprehension,
    ast.Assert,
)
# Parameters by which the classifier is told how to train.
_METHOD_ARGUMENTS = (
    "method",
    "preset",
    "regime",
    "objective",
    "setting",
    "recipe",
    "generator",
)
# Adjectives and participles as names.
_VAGUE = frozenset(
    {
        "asked",
        "dear",
        "found",
        "given",
        "known",
        "left",
        "made",
        "own",
        "said",
        "there",
        "told",
        "whole",
    }
)
# Version 0.1, counted by the authors of the plan but for lines to read and vague names, and what
# the plan asks for.
# Version 0.1.
_BEFORE = "8ce5593"
_PLAN = {
    "ways to ask for CT": ("5", "1"),
    "frames from `ct.train` to Eq. 1": ("12", "≤ 6"),
    "lines to read for one epoch": ("1,323", "≤ 700"),
    "characters to read for one epoch": ("67,689", ""),
    "lines to read for one training": ("1,976", ""),
    "modules loaded by one `ct reproduce` cell": ("243", "≤ 110"),
    "public names defined in two or more modules": ("76", "≤ 10"),
    "files that name the rule `max_change`": ("13", "≤ 5"),
    "characters per line of code": ("47", "≤ 36"),
    "tuple assignments, % of assignments": ("8.3", "≤ 1"),
    "conditional expressions per 100 lines": ("4.4", "≤ 1.5"),
    "functions with more than 8 parameters": ("21", "≤ 6"),
    "parameters of the classifier": ("44", "≤ 28"),
    "most complex function": ("32", "≤ 12"),
    "vague names": ("863", ""),
}


# ---- style ---------------------------------------------------------------------------------------


def sources() -> Iterator[tuple[Path, str, ast.Module]]:
    """Every file of the package: path, text and tree."""
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        yield path, text, ast.parse(text)


def code_lines(text: str, tree: ast.Module) -> list[str]:
    """Lines without docstrings, comments and blanks."""
    described = docstring_lines(tree)
    return [
        line.strip()
        for number, line in enumerate(text.splitlines(), 1)
        if number not in described and is_code(line)
    ]


def docstring_lines(tree: ast.Module) -> set[int]:
    described: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, *_NAMED)) and ast.get_docstring(node) is not None:
            first = node.body[0]
            described.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return described


def is_code(line: str) -> bool:
    """Neither blank nor a comment."""
    text = line.strip()
    return bool(text) and not text.startswith("#")


def is_tuple_assignment(node: ast.Assign) -> bool:
    """``a, b = x, y``."""
    return isinstance(node.value, ast.Tuple) and isinstance(node.targets[0], ast.Tuple)


def num_parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Without ``self`` and ``cls``."""
    named = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
    return sum(one.arg not in ("self", "cls") for one in named)


def complexity(function: ast.AST) -> int:
    """Ways through a function: one, and one for each branch; functions inside count alone."""
    ways = 1
    waiting = list(ast.iter_child_nodes(function))
    while waiting:
        node = waiting.pop()
        if isinstance(node, _FUNCTIONS):
            continue
        ways += isinstance(node, _BRANCHES)
        if isinstance(node, ast.BoolOp):
            ways += len(node.values) - 1
        waiting += ast.iter_child_nodes(node)
    return ways


def vague_names(tree: ast.Module) -> Iterator[str]:
    """Every definition or assignment of a name of :data:`_VAGUE`."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                pass
            case ast.arg(arg=name) | ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                pass
            case _:
                continue
        word = name.strip("_").lower()
        if word in _VAGUE:
            yield word


def sources_at(commit: str, folder: str) -> Iterator[tuple[str, str]]:
    """Every Python file below a folder at a commit: its path and text."""
    archive = subprocess.run(
        ["git", "archive", commit, folder], cwd=ROOT, capture_output=True, check=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        for member in files:
            content = files.extractfile(member)
            if content is not None and member.name.endswith(".py"):
                yield member.name, content.read().decode()


def vague_names_at(commit: str) -> Counter[str]:
    """Vague names in ``src`` at a commit."""
    counts: Counter[str] = Counter()
    for _, text in sources_at(commit, "src"):
        counts.update(vague_names(ast.parse(text)))
    return counts


def style() -> dict[str, str]:
    """What the source tells."""
    lines: list[str] = []
    counts: Counter[str] = Counter()
    homes: dict[str, set[Path]] = {}
    most = (0, "")
    for path, text, tree in sources():
        lines += code_lines(text, tree)
        counts["rule"] += "max_change" in text.replace("max_changes", "")
        for node in tree.body:
            if isinstance(node, _NAMED) and not node.name.startswith("_"):
                homes.setdefault(node.name, set()).add(path)
        counts["vague"] += sum(1 for _ in vague_names(tree))
        for node in ast.walk(tree):
            counts["conditions"] += isinstance(node, ast.IfExp)
            if isinstance(node, ast.Assign):
                counts["assignments"] += 1
                counts["tuples"] += is_tuple_assignment(node)
            if isinstance(node, _FUNCTIONS):
                counts["long"] += num_parameters(node) > 8
                most = max(most, (complexity(node), node.name))
    return {
        "public names defined in two or more modules": str(
            sum(len(paths) > 1 for paths in homes.values())
        ),
        "files that name the rule `max_change`": str(counts["rule"]),
        "characters per line of code": f"{sum(map(len, lines)) / len(lines):.1f}",
        "tuple assignments, % of assignments": (
            f"{100 * counts['tuples'] / counts['assignments']:.2f}"
        ),
        "conditional expressions per 100 lines": f"{100 * counts['conditions'] / len(lines):.2f}",
        "functions with more than 8 parameters": str(counts["long"]),
        "most complex function": f"{most[0]} (`{most[1]}`)",
        "vague names": str(counts["vague"]),
    }


# ---- one training --------------------------------------------------------------------------------


class RunningLines:
    """The lines that run of some functions, by file and number."""

    def __init__(self, codes: Iterable[CodeType]) -> None:
        self.codes = frozenset(codes)
        self.lines: set[tuple[str, int]] = set()

    def __call__(self, frame: FrameType, _event: str, _: Any) -> RunningLines | None:
        if frame.f_code not in self.codes:
            return None
        self.lines.add((frame.f_code.co_filename, frame.f_lineno))
        return self


class Watch:
    """Which functions run in a training and in its epochs, and how deep Eq. 1 is."""

    def __init__(self) -> None:
        self.source = str(Path(ct.__file__).parents[1])
        self.training: set[CodeType] = set()
        self.epoch: set[CodeType] = set()
        self.epochs = 0  # that are running now
        self.depth: int | None = None

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event not in ("call", "return") or not self.is_ours(frame):
            return
        code = frame.f_code
        if any(
            code.co_filename.endswith(file) and code.co_name == name for file, name in EPOCH
        ):
            self.epochs += 1 if event == "call" else -1
        if event == "return":
            return
        self.training.add(code)
        if self.epochs:
            self.epoch.add(code)
        if self.depth is None and code.co_filename.endswith("/gradient.py"):
            self.depth = self.frames_since_train(frame)

    def is_ours(self, frame: FrameType) -> bool:
        return frame.f_code.co_filename.startswith(self.source)

    def frames_since_train(self, frame: FrameType) -> int:
        count = 0
        above: FrameType | None = frame
        while above is not None and above.f_code.co_name != "train":
            count += self.is_ours(above)
            above = above.f_back
        return count


def lines_to_read(codes: Iterable[CodeType]) -> dict[tuple[str, int], str]:
    """Lines of code of these functions by file and number; what contains another one counts
    once.
    """
    seen: dict[tuple[str, int], str] = {}
    for code in codes:
        lines, first = inspect.getsourcelines(code)
        text = textwrap.dedent("".join(lines))
        # Of a lambda or a comprehension, source begins in the middle of a statement.
        described = set()
        if text.startswith(("def ", "async def ", "@")):
            described = docstring_lines(ast.parse(text))
        for at, line in enumerate(lines):
            if at + 1 not in described and is_code(line):
                seen[code.co_filename, first + at] = line.strip()
    return seen


def lines_that_run(
    codes: Collection[CodeType], train: Callable[[], object]
) -> list[tuple[str, int]]:
    """Those of :func:`lines_to_read` that are not in a statement of which no line runs."""
    running = RunningLines(codes)
    sys.settrace(running)
    try:
        train()
    finally:
        sys.settrace(None)
    idle: set[tuple[str, int]] = set()
    for file in {code.co_filename for code in codes}:
        for node in ast.walk(ast.parse(Path(file).read_text(encoding="utf-8"))):
            if not isinstance(node, ast.stmt):
                continue
            numbers = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            statement = {(file, number) for number in numbers}
            if not statement & running.lines:
                idle |= statement
    return [place for place in lines_to_read(codes) if place not in idle]


def watched(train: Callable[[], object]) -> Watch:
    """What runs in a training that has run before: the first one imports and caches."""
    train()
    watch = Watch()
    sys.setprofile(watch)
    try:
        train()
    finally:
        sys.setprofile(None)
    if not watch.epoch:
        raise RuntimeError(f"No epoch was seen; does EPOCH name its function? {EPOCH}")
    return watch


def plain_training() -> object:
    """Two epochs of Counterfactual Training on forty points."""
    x = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    y = (x.sum(-1) > 0).long()
    if hasattr(ct, "methods"):
        how: dict[str, Any] = {"method": ct.methods.ct_published(epochs=2)}
    else:
        # Version 0.1.
        how = {"generator": "ecco", "config": ct.TrainConfig(epochs=2)}
    return ct.train(ct.mlp(2, 2), x, y, **how, progress=False)


def one_training() -> dict[str, str]:
    """What a reader of a training has to read."""
    watch = watched(plain_training)
    epoch = lines_to_read(watch.epoch)
    return {
        "frames from `ct.train` to Eq. 1": str(watch.depth),
        "lines to read for one epoch": f"{len(epoch):,}",
        "characters to read for one epoch": f"{sum(map(len, epoch.values())):,}",
        "lines to read for one training": f"{len(lines_to_read(watch.training)):,}",
    }


def epoch_by_file() -> list[str]:
    """A Markdown table of the lines to read for one epoch: how many of each file, and what for."""
    codes = watched(plain_training).epoch
    lines = Counter(file for file, _ in lines_to_read(codes))
    running = Counter(file for file, _ in lines_that_run(codes, plain_training))
    files = sorted(lines, key=lambda file: -lines[file])
    rows = [
        f"| `{Path(file).relative_to(Path(ct.__file__).parent)}` | {lines[file]} | "
        f"{running[file]} | {purpose(file)} |"
        for file in files
    ]
    return [
        "| file | lines | that run | what it is for |",
        "|---|--:|--:|---|",
        *rows,
        f"| all | {lines.total():,} | {running.total():,} | |",
    ]


def advice_by_file() -> list[str]:
    """A Markdown table of the lines of the advice engine, in version 0.1 and now."""
    parent = SOURCE / "counterfactual_training" / "tables" / "advice"
    before = {
        Path(name).name: text
        for name, text in sources_at(_BEFORE, "src/counterfactual_training/advice")
    }
    now = {path.name: text for path, text, _ in sources() if path.parent == parent}
    rows = []
    totals = [0, 0, 0, 0]
    for name in sorted({*before, *now}):
        counts = [*_lengths(before.get(name, "")), *_lengths(now.get(name, ""))]
        totals = [total + count for total, count in zip(totals, counts, strict=True)]
        rows.append(
            f"| `{name}` | {' | '.join(f'{count:,}' if count else '–' for count in counts)} |"
        )
    return [
        "| file | 0.1, lines | of code | now, lines | of code |",
        "|---|--:|--:|--:|--:|",
        *rows,
        f"| all | {' | '.join(f'{total:,}' for total in totals)} |",
    ]


def _lengths(text: str) -> tuple[int, int]:
    """Lines of a file, and those of code."""
    return len(text.splitlines()), len(code_lines(text, ast.parse(text)))


def purpose(file: str) -> str:
    """The first sentence of a file."""
    text = ast.get_docstring(ast.parse(Path(file).read_text(encoding="utf-8"))) or ""
    first = " ".join(text.split("\n\n")[0].split())
    # Not at the full stop of "Eq. 2" or "Altmeyer et al. 2025".
    return re.split(r"(?<!Eq)(?<!et al)\.(?: |$)", first)[0]


def one_cell() -> dict[str, str]:
    """Modules after one cell of a quick reproduction, planned, trained, measured and reported in
    one process.

    By default, other processes train, and whatever only they load would not be seen.
    """
    code = (
        "import sys; from counterfactual_training.cli import main; main(sys.argv[1:]); "
        "print(sum(name.startswith('counterfactual_') for name in sys.modules), file=sys.stderr)"
    )
    with tempfile.TemporaryDirectory() as folder:
        words = [
            "reproduce",
            "main",
            "--quick",
            "--data",
            "LS",
            "--seeds",
            "1",
            "--workers",
            "1",
            "--out",
            folder,
            "--runs",
            f"{folder}/runs",
        ]
        done = subprocess.run(
            [sys.executable, "-c", code, *words], capture_output=True, text=True, check=True
        )
    return {"modules loaded by one `ct reproduce` cell": done.stderr.split()[-1]}


def classifier() -> dict[str, str]:
    """What one has to choose from."""
    parameters = inspect.signature(ct.CounterfactualClassifier).parameters
    return {
        "ways to ask for CT": str(sum(name in parameters for name in _METHOD_ARGUMENTS)),
        "parameters of the classifier": str(len(parameters)),
    }


def main() -> None:
    torch.set_num_threads(1)
    if "--lines" in sys.argv:
        print(*(f"{name}: {value}" for name, value in one_training().items()), sep="\n")
        print(*epoch_by_file(), sep="\n")
        return
    if "--names" in sys.argv:
        counts = vague_names_at(sys.argv[-1])
        print(counts.total(), *(f"{name}: {count}" for name, count in counts.most_common()))
        return
    numbers = {**classifier(), **one_training(), **one_cell(), **style()}
    words = sorted(_VAGUE)
    lines = [
        "# What a reader has to hold",
        "",
        f"`python -m tools.measure_code`, counterfactual-training {ct.__version__}, torch "
        f"{torch.__version__}, Python {sys.version.split()[0]}. The column *0.1* and the aims are "
        "those of the plan; some were counted by hand, by other rules than these. *Lines to read* "
        "are lines of code, without docstrings, comments and blanks, of all functions that run "
        "in an epoch of plain `ct` on a plain network, or from the call of `ct.train` to its end; "
        "0.1 (commit 8ce5593) was counted alike, by `--lines`. *Vague names* are variables, "
        f"parameters, attributes and functions called {', '.join(f'`{name}`' for name in words)}; "
        "before most were replaced (commit 4913c517), there were 475 (`--names 4913c517`).",
        "",
        "| | 0.1 | now | aim |",
        "|---|--:|--:|--:|",
        *(
            f"| {name} | {before} | {numbers[name]} | {aim} |"
            for name, (before, aim) in _PLAN.items()
        ),
        "",
        "## Lines to read for one epoch",
        "",
        "All lines of the functions that run in one epoch of plain `ct` on a plain network, and "
        "those of them that run: the others are branches for something else, such as a fleet.",
        "",
        *epoch_by_file(),
        "",
        "## Lines of the advice engine",
        "",
        f"`advice/` of 0.1 (commit {_BEFORE}) and `tables/advice/` now, which also holds best "
        "efforts, tables of printable values, black boxes and advice that lasts.",
        "",
        *advice_by_file(),
    ]
    (ROOT / "results" / "code.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
