"""Run wrong versions of the code, each with the tests that should notice it.

    python -m tools.mutants                     # all of tools/mutants.toml
    python -m tools.mutants gates search        # folders or houses, or names of entries
    python -m tools.mutants --check             # only: is the list up to date?

Each wrong version is one change in a copy of ``src``. It is noticed if one of its tests fails.
Tests that need more than ``--seconds`` of processor time leave it undecided, which counts as not
noticed. The exit code is 0 if at least 95 % are noticed, 1 if fewer are, and 2 if the list is out
of date or its tests fail on the code as it is.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = "counterfactual_training"
OTHER_HOUSES = ("counterfactual_lab", "counterfactual_serve")
LIST = Path(__file__).with_name("mutants.toml")
_ENOUGH = 0.95
_PATIENCE = 20  # seconds on a clock for each processor second: a test may also wait for ever
# Imported once and shared by all wrong versions: what the package and its tests need, but not the
# package itself.
_SHARED = (
    *(
        "torch",
        "torch.func",
        "torch._dynamo",
        "pandas",
        "scipy.stats",
        "sklearn.linear_model",
        "sklearn.ensemble",
    ),
    *("safetensors.torch", "pooch", "pytest"),
)
# One failure is enough, and its name is wanted; nothing is kept in the repository.
_OPTIONS = ("-x", "-q", "-rfE", "--tb=line", "-p", "no:cacheprovider", "-p", "no:xdist")
_NOTICED = "noticed"
_SURVIVED = "survived"
_UNDECIDED = "undecided"


@dataclass(frozen=True)
class Mutant:
    """A wrong version of one file.

    Attributes:
        name: to ask for it on the command line.
        file: path inside the library, or the name of another house and a path inside it.
        old, new: text that occurs once in the file, and what stands there instead.
        means: what is wrong then.
        tests: files or node ids that should notice it.
    """

    name: str
    file: str
    old: str
    new: str
    means: str
    tests: tuple[str, ...]

    @property
    def folder(self) -> str:
        """The folder of the library, or the other house; files beside folders stand for
        themselves.
        """
        return self.file.partition("/")[0]

    def path(self, source: Path) -> Path:
        """The file in a folder of all houses."""
        if self.folder in OTHER_HOUSES:
            return source / self.file
        return source / PACKAGE / self.file

    def mutated(self, source: str) -> str:
        return source.replace(self.old, self.new)


# ---- the list ------------------------------------------------------------------------------------


def read_list(path: Path = LIST) -> list[Mutant]:
    """The entries of a list."""
    entries = tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]
    return [Mutant(**{**entry, "tests": tuple(entry["tests"])}) for entry in entries]


def problems(mutants: Iterable[Mutant], root: Path = ROOT) -> list[str]:
    """What is out of date in a list, by the names of its entries."""
    messages = []
    names = set()
    for mutant in mutants:
        messages += [f"{mutant.name}: {message}" for message in _problems(mutant, root)]
        if mutant.name in names:
            messages.append(f"{mutant.name}: two entries have this name")
        names.add(mutant.name)
    return messages


def _problems(mutant: Mutant, root: Path) -> list[str]:
    messages = []
    path = mutant.path(root / "src")
    if not path.is_file():
        return [f"there is no file {mutant.file}"]
    times = path.read_text(encoding="utf-8").count(mutant.old)
    if times != 1:
        messages.append(
            f"its old text occurs {times} times in {mutant.file}, not once: {mutant.old.strip()!r}"
        )
    if mutant.old.split() == mutant.new.split():
        messages.append("its new text is the old one")
    if not mutant.tests:
        messages.append("it names no tests")
    for test in mutant.tests:
        file = test.partition("::")[0]
        if not (root / file).exists():
            messages.append(f"there is no {file}")
    return messages


def changes_nothing(mutant: Mutant, root: Path = ROOT) -> bool:
    """Whether the change is one of comments and spaces alone; raises SyntaxError if the new text is
    no Python.
    """
    source = mutant.path(root / "src").read_text(encoding="utf-8")
    return ast.dump(ast.parse(source)) == ast.dump(ast.parse(mutant.mutated(source)))


def chosen(mutants: Sequence[Mutant], wanted: Sequence[str]) -> list[Mutant]:
    """The entries of these names and folders; all without any."""
    valid = {mutant.name for mutant in mutants} | {mutant.folder for mutant in mutants}
    unknown = [word for word in wanted if word not in valid]
    if unknown:
        raise SystemExit(f"No entry and no folder of the list is called {', '.join(unknown)}.")
    return [
        mutant
        for mutant in mutants
        if not wanted or mutant.name in wanted or mutant.folder in wanted
    ]


# ---- one process per wrong version ---------------------------------------------------------------


@dataclass
class Job:
    """Tests to run with a copy of the source.

    Attributes:
        mutant: ``None`` for the code as it is.
        folder: of the copy, while it is there.
        status: how the process ended, as of ``os.waitpid``.
        seconds: processor time.
    """

    mutant: Mutant | None
    tests: tuple[str, ...]
    folder: Path = ROOT
    status: int = 0
    seconds: float = 0.0
    output: str = ""

    @property
    def timed_out(self) -> bool:
        return os.WIFSIGNALED(self.status) and os.WTERMSIG(self.status) in (
            signal.SIGXCPU,
            signal.SIGALRM,
        )

    @property
    def passed(self) -> bool:
        return os.WIFEXITED(self.status) and os.WEXITSTATUS(self.status) == 0

    @property
    def outcome(self) -> str:
        if self.timed_out:
            return _UNDECIDED
        if self.passed:
            return _SURVIVED
        return _NOTICED


def run_jobs(jobs: Sequence[Job], number: int, limit: int, done: Callable[[Job], None]) -> None:
    """Run jobs in forks of this process, ``number`` at a time; ``done`` is called as each one
    ends.
    """
    waiting = list(reversed(jobs))
    running: dict[int, Job] = {}
    try:
        while waiting or running:
            while waiting and len(running) < number:
                job = waiting.pop()
                running[_start(job, limit)] = job
            process, status, usage = os.wait3(0)
            job = running.pop(process)
            job.status = status
            job.seconds = usage.ru_utime + usage.ru_stime
            _clear(process, job)
            done(job)
    finally:
        for process, job in running.items():
            _clear(process, job)


def _start(job: Job, limit: int) -> int:
    job.folder = Path(tempfile.mkdtemp(prefix="mutant-"))
    shutil.copytree(
        ROOT / "src", job.folder / "src", ignore=shutil.ignore_patterns("node_modules")
    )
    if job.mutant is not None:
        path = job.mutant.path(job.folder / "src")
        path.write_text(job.mutant.mutated(path.read_text(encoding="utf-8")), encoding="utf-8")
        # Bytecode is as new as its source to the second, and this one may have been written within
        # it.
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
            compiled.unlink()
    sys.stdout.flush()
    process = os.fork()
    if process == 0:
        _run(job.folder, job.tests, limit)
    return process


def _run(folder: Path, tests: Sequence[str], limit: int) -> None:
    """In the new process: run the tests with the copy on the path, and end."""
    code = 70
    try:
        os.setsid()  # so that what tests start can be ended with them
        output = os.open(folder / "output", os.O_CREAT | os.O_WRONLY)
        os.dup2(output, 1)
        os.dup2(output, 2)
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
        signal.alarm(_PATIENCE * limit)
        source = str(folder / "src")
        sys.path.insert(0, source)
        os.environ["PYTHONPATH"] = source
        import pytest

        # Tests that are named one by one run even if they are left to `make check`.
        if all("::" in test for test in tests):
            named = ["-m", "check or not check"]
        else:
            named = []
        code = int(pytest.main([*_OPTIONS, *named, f"--basetemp={folder / 'tmp'}", *tests]))
        home = str(getattr(sys.modules.get(PACKAGE), "__file__", ""))
        if code == 0 and not home.startswith(source):
            print(f"The tests imported {home or 'nothing'} instead of the copy.")
            code = 71
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _clear(process: int, job: Job) -> None:
    """End what the tests of a job have left, and remove its copy."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)
    output = job.folder / "output"
    if output.exists():
        job.output = output.read_text(encoding="utf-8", errors="replace")
    shutil.rmtree(job.folder, ignore_errors=True)


def noticed_by(output: str) -> str:
    """The test that failed first, from what pytest printed."""
    for line in output.splitlines():
        if line.startswith(("FAILED ", "ERROR ")):
            return line.partition(" ")[2].partition(" - ")[0]
    return ""


# ---- all of them ---------------------------------------------------------------------------------


def run(mutants: Sequence[Mutant], number: int, limit: int) -> int:
    """Run wrong versions and print what was noticed; returns the exit code."""
    empty = [mutant.name for mutant in mutants if changes_nothing(mutant)]
    if empty:
        print(f"These entries change comments or spaces alone: {', '.join(empty)}.")
        return 2
    started = time.monotonic()
    os.environ["OMP_NUM_THREADS"] = "1"  # threads do not survive a fork
    for module in _SHARED:
        importlib.import_module(module)
    if not _sound(mutants, number, limit):
        return 2
    jobs = [Job(mutant, mutant.tests) for mutant in mutants]
    run_jobs(jobs, number, limit, _report)
    code = _summary(jobs)
    print(
        f"{time.monotonic() - started:.0f} s on a clock, {sum(job.seconds for job in jobs):.0f} "
        "of the processor."
    )
    return code


def _sound(mutants: Sequence[Mutant], number: int, limit: int) -> bool:
    """Whether no test fails on the code as it is: otherwise a failure would say nothing."""
    selections = dict.fromkeys(mutant.tests for mutant in mutants)
    jobs = [Job(None, tests) for tests in selections]
    print(f"{len(jobs)} selections of tests on the code as it is …")
    run_jobs(jobs, number, limit, lambda job: None)
    for job in jobs:
        if job.timed_out:
            print(
                f"{' '.join(job.tests)} need more than {limit} s of the processor: what they "
                "miss is undecided."
            )
    broken = [job for job in jobs if not job.passed and not job.timed_out]
    for job in broken:
        print(f"On the code as it is, {' '.join(job.tests)} fail:\n{job.output[-2000:]}")
    return not broken


def _report(job: Job) -> None:
    if job.mutant is not None:
        line = f"{job.outcome:9}  {job.seconds:5.1f} s  {job.mutant.folder}: {job.mutant.name}"
        print(f"{line}  {noticed_by(job.output)}".rstrip(), flush=True)


def _summary(jobs: Sequence[Job]) -> int:
    """Print shares and what was not noticed."""
    for outcome in (_SURVIVED, _UNDECIDED):
        mutants = [
            job.mutant for job in jobs if job.outcome == outcome and job.mutant is not None
        ]
        if mutants:
            print(f"\n{outcome}:")
        for mutant in mutants:
            print(f"  {mutant.name} ({mutant.file}): {mutant.means}")
    print("\nnoticed")
    folders = sorted({job.mutant.folder for job in jobs if job.mutant is not None})
    for folder in folders:
        share = [job for job in jobs if job.mutant is not None and job.mutant.folder == folder]
        print(f"  {folder:12} {_share(share)}")
    print(f"  {'all':12} {_share(jobs)}")
    noticed = sum(job.outcome == _NOTICED for job in jobs)
    return int(noticed < _ENOUGH * len(jobs))


def _share(jobs: Sequence[Job]) -> str:
    noticed = sum(job.outcome == _NOTICED for job in jobs)
    return f"{noticed:3} of {len(jobs):3}, {100 * noticed / len(jobs):.0f} %"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.mutants", description="Run wrong versions of the code."
    )
    parser.add_argument(
        "wanted", nargs="*", help="names of entries, or folders of the package; all by default"
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time (2)")
    parser.add_argument(
        "--seconds", type=int, default=30, help="processor time for the tests of each (30)"
    )
    parser.add_argument(
        "--check", action="store_true", help="only look whether the list is up to date"
    )
    options = parser.parse_args(arguments)
    mutants = read_list()
    messages = problems(mutants)
    if messages:
        print("tools/mutants.toml is out of date:", *messages, sep="\n  ")
        return 2
    if options.check:
        return 0
    return run(chosen(mutants, options.wanted), options.jobs, options.seconds)


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main())
