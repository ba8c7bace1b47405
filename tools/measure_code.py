"""How much a reader has to hold: ``python -m tools.measure_code`` writes ``results/code.md``.

Style is counted in the source of the package. Frames, lines and modules are counted while it runs:
one small training, and one cell of a quick reproduction in a process of its own.
"""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

import counterfactual_training as ct

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
_WHOLE = (ast.FunctionDef, ast.AsyncFunctionDef)
_NAMED = (*_WHOLE, ast.ClassDef)
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
_ASKED_BY = ("method", "preset", "regime", "objective", "setting", "recipe", "generator")
# Version 0.1, counted by the authors of the plan, and what the plan asks for.
_PLAN = {
    "ways to ask for CT": ("5", "1"),
    "frames from `ct.train` to Eq. 1": ("12", "≤ 6"),
    "lines to read for one epoch": ("2,515", "≤ 700"),
    "modules loaded by one `ct reproduce` cell": ("243", "≤ 110"),
    "public names defined in two or more modules": ("76", "≤ 10"),
    "files that name the rule `max_change`": ("13", "≤ 5"),
    "characters per line of code": ("47", "≤ 36"),
    "tuple assignments, % of assignments": ("8.3", "≤ 1"),
    "conditional expressions per 100 lines": ("4.4", "≤ 1.5"),
    "functions with more than 8 parameters": ("21", "≤ 6"),
    "parameters of the classifier": ("44", "≤ 28"),
    "most complex function": ("32", "≤ 12"),
}


# ---- style ---------------------------------------------------------------------------------------


def sources() -> Iterator[tuple[Path, str, ast.Module]]:
    """Every file of the package: path, text and tree."""
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        yield path, text, ast.parse(text)


def code_lines(text: str, tree: ast.Module) -> list[str]:
    """Lines without docstrings, comments and blanks."""
    described: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, *_NAMED)) and ast.get_docstring(node) is not None:
            first = node.body[0]
            described.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    lines = [
        line.strip()
        for number, line in enumerate(text.splitlines(), 1)
        if number not in described
    ]
    return [line for line in lines if line and not line.startswith("#")]


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
        if isinstance(node, _WHOLE):
            continue
        ways += isinstance(node, _BRANCHES)
        if isinstance(node, ast.BoolOp):
            ways += len(node.values) - 1
        waiting += ast.iter_child_nodes(node)
    return ways


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
        for node in ast.walk(tree):
            counts["conditions"] += isinstance(node, ast.IfExp)
            if isinstance(node, ast.Assign):
                counts["assignments"] += 1
                counts["tuples"] += is_tuple_assignment(node)
            if isinstance(node, _WHOLE):
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
    }


# ---- one training --------------------------------------------------------------------------------


class Watch:
    """Which functions of the package run during a training, and how deep Eq. 1 is."""

    def __init__(self) -> None:
        self.ran: set[CodeType] = set()
        self.depth: int | None = None

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or not _is_ours(frame):
            return
        self.ran.add(frame.f_code)
        if self.depth is None and frame.f_code.co_filename.endswith("generators/gradient.py"):
            self.depth = self._frames_since_train(frame)

    def _frames_since_train(self, frame: FrameType) -> int:
        count = 0
        above: FrameType | None = frame
        while above is not None and above.f_code.co_name != "train":
            count += _is_ours(above)
            above = above.f_back
        return count

    def lines(self) -> int:
        """Of the functions that ran; what contains another one counts once."""
        seen: set[tuple[str, int]] = set()
        for code in self.ran:
            text, first = inspect.getsourcelines(code)
            seen |= {(code.co_filename, first + at) for at in range(len(text))}
        return len(seen)


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(str(SOURCE))


def one_training() -> dict[str, str]:
    """Two epochs of Counterfactual Training on forty points."""
    x = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    y = (x.sum(-1) > 0).long()
    method = ct.methods.ct(epochs=2)
    # The first training imports and caches; the second one is watched.
    ct.train(ct.mlp(2, 2), x, y, method, progress=False)
    watch = Watch()
    sys.setprofile(watch)
    try:
        ct.train(ct.mlp(2, 2), x, y, method, progress=False)
    finally:
        sys.setprofile(None)
    return {
        "frames from `ct.train` to Eq. 1": str(watch.depth),
        "lines to read for one epoch": f"{watch.lines():,}",
    }


def one_cell() -> dict[str, str]:
    """Modules of the package after one cell of a quick reproduction."""
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
            "--out",
            folder,
        ]
        done = subprocess.run(
            [sys.executable, "-c", code, *words], capture_output=True, text=True, check=True
        )
    return {"modules loaded by one `ct reproduce` cell": done.stderr.split()[-1]}


def classifier() -> dict[str, str]:
    """What one has to choose from."""
    parameters = inspect.signature(ct.CounterfactualClassifier).parameters
    return {
        "ways to ask for CT": str(sum(name in parameters for name in _ASKED_BY)),
        "parameters of the classifier": str(len(parameters)),
    }


def main() -> None:
    torch.set_num_threads(1)
    found = {**classifier(), **one_training(), **one_cell(), **style()}
    lines = [
        "# What a reader has to hold",
        "",
        f"`python -m tools.measure_code`, counterfactual-training {ct.__version__}, torch "
        f"{torch.__version__}, Python {sys.version.split()[0]}. The column *0.1* and the aims are "
        "those of the plan; some were counted by hand, by other rules than these.",
        "",
        "| | 0.1 | now | aim |",
        "|---|--:|--:|--:|",
        *(
            f"| {name} | {before} | {found[name]} | {aim} |"
            for name, (before, aim) in _PLAN.items()
        ),
    ]
    (ROOT / "results" / "code.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
