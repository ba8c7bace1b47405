"""Commands that take long survive `kill -9`: the same command again ends as one that was left in
peace.
"""

import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import counterfactual_training as ct
from counterfactual_lab.commands import compare, truth
from counterfactual_lab.truth.caps import Caps
from counterfactual_training.cli import main
from counterfactual_training.training import checkpoint
from forked import fork
from tiny_grid import TINY_GRID

pytestmark = pytest.mark.check

TIMES = ["seconds", "slower"]
TINY = Caps(rows=300, individuals=30, judge_rows=150, epochs=2)


def die_at(
    number: int, owner: object, name: str, counts: Callable[..., bool] = lambda *_: True
) -> None:
    """Let the process kill itself right after the so-and-so-many-th call that counts."""
    original = getattr(owner, name)
    calls = []

    def call(*arguments, **options):
        result = original(*arguments, **options)
        if counts(*arguments):
            calls.append(arguments)
        if len(calls) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, call)


def kill(command: list[str], prepare: Callable[[], None]) -> None:
    """Run the command in another process, which kills itself in the middle."""

    def work() -> None:
        prepare()
        main(command)

    process = fork(work)
    process.join()
    assert process.exitcode == -signal.SIGKILL


def into(folder: Path):
    """Whether a file is renamed into the folder: it is complete from then on."""
    return lambda source, target, *_: folder in Path(target).parents


@pytest.fixture
def people(tmp_path) -> str:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"age": rng.integers(18, 80, 200), "debt": rng.gamma(2, 10, 200).round(1)}
    )
    labels = np.where(frame["debt"] - 0.2 * frame["age"] < 10, "yes", "no")
    path = tmp_path / "people.csv"
    frame.assign(granted=labels).to_csv(path, index=False)
    return str(path)


def expect_same_models(
    one: ct.CounterfactualClassifier, other: ct.CounterfactualClassifier
) -> None:
    for name, value in one.model_.state_dict().items():
        assert torch.equal(value, other.model_.state_dict()[name]), name
    records = [one.history_.records, other.history_.records]
    without = [
        [{k: v for k, v in r.items() if k != "seconds"} for r in record] for record in records
    ]
    assert repr(without[0]) == repr(without[1])  # NaN differs from itself


@pytest.mark.parametrize(
    "options", [[], ["--method", "ct_published"]], ids=["default", "counterfactuals"]
)
def test_train(people, tmp_path, options):
    whole = tmp_path / "whole.safetensors"
    killed = tmp_path / "killed.safetensors"
    state = tmp_path / "state"
    command = ["train", people, "--target", "granted", "--epochs", "12", *options]
    resumable = [*command, "--out", str(killed), "--checkpoint", str(state)]

    def prepare() -> None:
        checkpoint._SPARING = 0  # a save after every epoch
        die_at(5, checkpoint.Checkpoint, "save")

    kill(resumable, prepare)
    assert state.exists() and not killed.exists()
    seen = []
    original = checkpoint.Checkpoint.resume
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            checkpoint.Checkpoint,
            "resume",
            lambda self, run: (original(self, run), seen.append(run.epoch)),
        )
        assert main(resumable) == 0
    assert seen == [5], "it goes on where it was killed"
    assert not state.exists(), "what is saved needs no checkpoint"
    assert main([*command, "--out", str(whole)]) == 0
    models = [ct.CounterfactualClassifier.load(path) for path in (whole, killed)]
    expect_same_models(*models)


def tables(folder: Path) -> dict[str, pd.DataFrame]:
    """All tables in a folder, without how long it took."""
    filled = [path for path in sorted(folder.rglob("*.csv")) if path.read_text().strip()]
    assert filled
    return {
        path.name: pd.read_csv(path).drop(columns=TIMES, errors="ignore") for path in filled
    }


def expect_same_tables(killed: Path, whole: Path) -> None:
    one = tables(killed)
    other = tables(whole)
    assert one.keys() == other.keys()
    for name, table in one.items():
        pd.testing.assert_frame_equal(table, other[name], check_exact=True, obj=name)


def run_twice(
    command: Callable[[Path], list[str]], tmp_path: Path, number: int
) -> tuple[Path, Path]:
    """Killed once its so-and-so-many-th result is stored, and run again; and in peace,
    elsewhere.
    """
    killed = tmp_path / "killed"
    whole = tmp_path / "whole"
    stored = into(killed / "runs")
    kill(command(killed), partial(die_at, number, os, "replace", stored))
    before = {
        path: path.stat().st_mtime_ns for path in (killed / "runs").rglob("*") if path.is_file()
    }
    assert before
    assert main(command(killed)) == 0
    after = {path: path.stat().st_mtime_ns for path in before if path.exists()}
    kept = [path for path in before if before[path] == after.get(path)]
    assert kept, "what was done is not done again"
    assert main(command(whole)) == 0
    return killed / "out", whole / "out"


def test_grid_run(tmp_path):
    grid = tmp_path / "tiny.toml"
    grid.write_text(TINY_GRID)

    def command(folder: Path) -> list[str]:
        where = ["--runs", str(folder / "runs"), "--out", str(folder / "out")]
        return ["grid", "run", str(grid), "--workers", "1", *where]

    expect_same_tables(*run_twice(command, tmp_path, 4))


def test_compare(tmp_path, monkeypatch):
    monkeypatch.setattr(compare, "_CAPS", TINY)

    def command(folder: Path) -> list[str]:
        what = [
            "--data",
            "LS",
            "--methods",
            "pgd,conventional + density",
            "--generators",
            "generic",
            "--seeds",
            "1",
        ]
        where = ["--runs", str(folder / "runs"), "--out", str(folder / "out")]
        return ["compare", *what, "--workers", "1", *where]

    # Marker, then per method two tables, what is pending, and two files: the second was begun.
    expect_same_tables(*run_twice(command, tmp_path, 8))


def test_truth(tmp_path, monkeypatch):
    monkeypatch.setattr(truth, "_CAPS", TINY)

    def command(folder: Path) -> list[str]:
        what = ["--data", "LS", "--methods", "ct_published", "--seeds", "2"]
        where = ["--runs", str(folder / "runs"), "--out", str(folder / "out")]
        return ["truth", *what, "--workers", "1", *where]

    expect_same_tables(*run_twice(command, tmp_path, 6))


def test_tune(tmp_path):
    """Trials that were running when it was killed are tried again, with the same settings."""
    from optuna.study import Study

    from counterfactual_lab.tuning import RANGES

    space = tmp_path / "space.toml"
    fixed = [f'{name} = "published"' for name in RANGES if name != "objective.lambda_reg"]
    space.write_text("\n".join([*fixed, "lambda_reg = [0.01, 0.02, 0.05, 0.1]"]))

    def command(folder: str) -> list[str]:
        numbers = ["--trials", "4", "--batch", "2", "--epochs", "3", "--at-most-lost", "90"]
        return [
            "tune",
            "--method",
            "ct_published",
            "loan",
            *numbers,
            "--space",
            str(space),
            "--out",
            str(tmp_path / folder),
        ]

    kill(command("killed"), partial(die_at, 3, Study, "tell"))
    assert main(command("killed")) == 0
    assert main(command("whole")) == 0
    trials = [pd.read_csv(tmp_path / folder / "trials.csv") for folder in ("killed", "whole")]
    for table in trials:
        assert table["state"].isin(["complete", "pruned", "fail"]).all()
    finished = [table[table["state"] != "fail"] for table in trials]
    columns = ["objective.lambda_reg", "implausibility", "accuracy"]
    results = [table[columns].sort_values(columns).reset_index(drop=True) for table in finished]
    pd.testing.assert_frame_equal(*results, check_exact=True)
    best = [(tmp_path / folder / "best.toml").read_text() for folder in ("killed", "whole")]
    assert best[0] == best[1]
