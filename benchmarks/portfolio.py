"""A whole portfolio by one command: people per second, memory of the command and its workers.

    python -m benchmarks.portfolio results [--people 100000] [--workers 2]

One network with a gate is fitted to other people of the same made-up table. Memory is that of the
processes, looked at ten times a second; pages that processes share count in each.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

import counterfactual_training as ct
from benchmarks.report import circumstances
from counterfactual_training.text import duration

_TRAINED_ON = 5_000
_LARGER = 1_000_000
_LOOK_SECONDS = 0.1


def make_people(n: int, seed: int) -> tuple[pd.DataFrame, np.ndarray]:
    """A table like those of credit: amounts, counts, categories and an identifier; and who
    defaults.
    """
    rng = np.random.default_rng(seed)
    people = pd.DataFrame(
        {
            "customer": [f"C{i:07d}" for i in rng.permutation(n)],
            "age": rng.integers(19, 75, n),
            "income": rng.gamma(9.0, 300.0, n).round(2),
            "debt": rng.gamma(2.0, 2500.0, n).round(2),
            "savings": rng.gamma(1.0, 3000.0, n).round(2),
            "late_payments": rng.poisson(1.5, n),
            "cards": rng.integers(0, 8, n),
            "months_employed": rng.gamma(2.0, 30.0, n).astype(int),
            "job": rng.choice(["clerk", "cook", "driver", "nurse", "teacher"], n),
            "home": rng.choice(["own", "rent", "parents"], n, p=[0.4, 0.5, 0.1]),
            "purpose": rng.choice(["car", "furniture", "education", "other"], n),
        }
    )
    risk = (
        people["debt"] / 1500
        - people["income"] / 700
        - people["savings"] / 4000
        + 0.9 * people["late_payments"]
    )
    risk += (
        0.2 * people["cards"] - people["months_employed"] / 80 - 0.5 * (people["home"] == "own")
    )
    risk += rng.normal(0, 1, n)
    return people, np.where(risk > np.quantile(risk, 0.6), "yes", "no")


@dataclass
class Memory:
    """Resident MB of the command and of each process below it: the largest so far, and the largest
    of each third.
    """

    command: list[float] = field(default_factory=list)
    workers: list[float] = field(default_factory=list)

    def look(self, pid: int) -> None:
        below = [_resident(child) for child in _below(pid)]
        self.command.append(_resident(pid))
        self.workers.append(max(below, default=0.0))

    def row(self, name: str) -> str:
        seen = getattr(self, name)
        cut = [
            max(seen[k * len(seen) // 3 : (k + 1) * len(seen) // 3], default=0.0)
            for k in range(3)
        ]
        process = {"command": "the command", "workers": "the largest worker"}[name]
        return f"| {process} | {' | '.join(f'{value:,.0f}' for value in cut)} |"


def _below(pid: int) -> list[int]:
    """All descendants of a process."""
    pids = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                pids += [child, *_below(child)]
    return pids


def _resident(pid: int) -> float:
    with contextlib.suppress(OSError):
        return (
            int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            * os.sysconf("SC_PAGE_SIZE")
            / 1e6
        )
    return 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", metavar="DIR", help="writes portfolio.md there")
    parser.add_argument("--people", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        text = measured(Path(name), arguments)
    out = Path(arguments.out)
    out.mkdir(parents=True, exist_ok=True)
    (out / "portfolio.md").write_text(text, encoding="utf-8")
    print(text)


def measured(folder: Path, arguments: argparse.Namespace) -> str:
    """Run the command and describe what was seen."""
    train, default = make_people(_TRAINED_ON, arguments.seed)
    rules = {"age": "none", "debt": "decrease", "late_payments": "decrease", "purpose": "none"}
    classifier = ct.CounterfactualClassifier(
        "conventional", mutability=rules, random_state=arguments.seed
    )
    classifier.fit(train.drop(columns="customer"), default).save(folder / "loan.safetensors")
    make_people(arguments.people, arguments.seed + 1)[0].to_csv(folder / "big.csv", index=False)
    words = [
        "explain",
        "loan.safetensors",
        "--data",
        "big.csv",
        "--all",
        "--out",
        "answers.csv",
        "--positive",
        "no",
    ]
    words += ["--label", "customer", "--workers", str(arguments.workers)]
    memory = Memory()
    started = time.perf_counter()
    command = [sys.executable, "-m", "counterfactual_training.cli", *words]
    with subprocess.Popen(command, cwd=folder, env=_environment()) as process:  # noqa: S603
        while process.poll() is None:
            memory.look(process.pid)
            time.sleep(_LOOK_SECONDS)
    seconds = time.perf_counter() - started
    if process.returncode != 0:
        raise SystemExit(f"The command failed with {process.returncode}.")
    answers = pd.read_csv(folder / "answers.csv", usecols=["row", "status"])
    if answers["row"].tolist() != list(range(arguments.people)):
        raise SystemExit("The answers are not one per person, in their order.")
    sizes = {file: (folder / file).stat().st_size / 1e6 for file in ("big.csv", "answers.csv")}
    return _page(
        arguments, words, seconds, memory, answers["status"].value_counts().to_dict(), sizes
    )


def _environment() -> dict[str, str]:
    """This package, wherever the command runs."""
    source = Path(ct.__file__).parent.parent
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")]),
    }


def _page(
    arguments: argparse.Namespace,
    words: list[str],
    seconds: float,
    memory: Memory,
    status: dict[str, int],
    sizes: dict[str, float],
) -> str:
    about = circumstances()
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    speed = arguments.people / seconds
    options = (
        f"--people {arguments.people} --workers {arguments.workers} --seed {arguments.seed}"
    )
    counts = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in status.items())
    larger = f"{duration(_LARGER / speed)} (extrapolated)"
    files = " and ".join(f"`{file}` of {size:,.1f} MB" for file, size in sizes.items())
    return f"""# A whole portfolio

`python -m benchmarks.portfolio results {options}`, {about["date"]}, {about["machine"]}, {versions}.

`ct {" ".join(words)}`: one network with a gate, fitted to {_TRAINED_ON:,} made-up people with ten
columns, explains {arguments.people:,} others ({counts}). Everything counts, from starting the
command to the complete file: {files}.

| people | seconds | people per second | {_LARGER:,} people at this speed |
|---|---|---|---|
| {arguments.people:,} | {seconds:,.0f} | {speed:,.0f} | {larger} |

Resident MB, the most seen in each third of the run. Memory that does not grow with the number of
rows is the same in all thirds, once the workers have started.

| process | first third | second | last |
|---|---|---|---|
{memory.row("command")}
{memory.row("workers")}
"""


if __name__ == "__main__":
    main()
