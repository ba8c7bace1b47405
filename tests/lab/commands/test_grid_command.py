"""``ct grid``: run, status, report, list."""

import errno
import json
import os
from pathlib import Path

import pytest

from counterfactual_lab.grids import run as running
from counterfactual_training.cli import main
from tiny_grid import TINY_GRID

TINY = f'title = "Tiny"{TINY_GRID}'


@pytest.fixture
def file(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return path


def test_run_status_and_report(file, capsys):
    assert main(["grid", "run", str(file), "--workers", "1", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (
        document["models"] == 5 and document["failures"] == {} and document["done_before"] == 0
    )
    written = {Path(name).name for name in document["files"]}
    assert {
        "tiny.csv",
        "tiny_summary.csv",
        "tiny.md",
        "tiny.html",
        "tiny_ip.png",
        "tiny_maturity.png",
    } <= written
    page = Path("grids/tiny.html").read_text()
    assert "Tiny" in page and "ct grid run" in page and "train rows" in page
    header = Path("grids/tiny.csv").read_text().splitlines()[0]
    assert header.startswith(
        "data,seed,generator.name,generator.max_steps,method,gate,run,metric"
    )

    assert main(["grid", "status"]) == 0
    assert "5 of 5 models" in capsys.readouterr().out
    assert main(["grid", "report", "--out", "again"]) == 0
    assert "What each setting does on LS" in capsys.readouterr().out
    assert Path("again/tiny.csv").read_bytes() == Path("grids/tiny.csv").read_bytes()
    assert main(["grid", "run", str(file), "--dry-run"]) == 0
    assert "nothing to do" in capsys.readouterr().out


def test_a_dry_run_counts_and_trains_nothing(file, capsys):
    assert main(["grid", "run", "generators", "--data", "Moon,OL", "--dry-run", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["settings"] == document["models"] == 540 and document["seconds"] > 10
    assert not Path("grid-runs").exists() and not Path("grids").exists()


def test_very_many_settings_need_a_yes(file, capsys, monkeypatch):
    monkeypatch.setattr("counterfactual_lab.commands.grid.MANY_SETTINGS", 50)
    file.write_text(
        TINY.replace("max_steps = [2, 4]", f"max_steps = {list(range(1, 61))}").replace(
            "s = 1\n", "s = 900\n"
        )
    )
    assert main(["grid", "run", str(file)]) == 2
    said = capsys.readouterr().err
    assert "120 settings" in said and "--yes" in said and ("min" in said or " h " in said)
    assert not Path("grid-runs").exists()
    assert main(["grid", "run", str(file), "--dry-run"]) == 0
    assert "120" in capsys.readouterr().out

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "run_grid", stop)
    assert main(["grid", "run", str(file), "--yes"]) == 130


def test_mistakes_end_before_anything_runs(file, capsys, monkeypatch):
    monkeypatch.setattr(running, "launch", None)
    file.write_text(TINY.replace("max_steps", "max_step"))
    assert main(["grid", "run", str(file)]) == 2
    said = capsys.readouterr().err
    assert "tiny.toml" in said and "generator.max_steps" in said
    assert main(["grid", "run", "generator"]) == 2
    assert "Did you mean 'generators'" in capsys.readouterr().err
    assert main(["grid", "run", "generators", "--workers", "0"]) == 2
    assert "workers must be 1 or more" in capsys.readouterr().err
    assert main(["grid", "run", "generators", "--address", "here:1"]) == 2
    assert "ray" in capsys.readouterr().err
    assert main(["grid", "report"]) == 2
    assert "No grid was run" in capsys.readouterr().err
    assert main(["grid", "report", str(file).replace("tiny", "none")]) == 2
    capsys.readouterr()
    file.write_text(TINY)
    assert main(["grid", "report", str(file)]) == 2
    assert "Nothing of 'tiny' is finished" in capsys.readouterr().err
    assert not Path("grid-runs").exists()


def test_list(capsys):
    assert main(["grid", "list"]) == 0
    out = capsys.readouterr().out
    assert "generators" in out and "270 settings" in out and "learning-rate" in out


def broken(monkeypatch, kind):
    """Fleets of one kind, conventional or not, find a full disk; of none: all do."""
    working = running.run_job

    def run(benches, job):
        if kind is None or job.runs[0].is_conventional == kind:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return working(benches, job)

    monkeypatch.setattr(running, "run_job", run)


@pytest.mark.parametrize("kind", [None, True])
def test_where_nothing_can_be_compared_the_failures_are_told(file, capsys, monkeypatch, kind):
    broken(monkeypatch, kind)
    assert main(["grid", "run", str(file), "--workers", "1"]) == 2
    said = capsys.readouterr().err
    assert (
        "nothing to report" in said
        and "no space left for 'grid-runs'" in said
        and "unexpected" not in said
    )
    assert not Path("grids").exists()


def test_conventional_models_alone_and_grids_without_an_axis_are_reported(
    file, capsys, monkeypatch
):
    file.write_text(
        TINY.replace(
            'title = "Tiny"', 'title = "Tiny"\nmethod = ["ct_published", "conventional"]'
        )
    )
    with monkeypatch.context() as patch:
        broken(patch, False)
        assert main(["grid", "run", str(file), "--workers", "1"]) == 2
    said = capsys.readouterr().err
    assert "These tables are incomplete" in said and "unexpected" not in said
    assert "conventional" in Path("grids/tiny_summary.csv").read_text()
    file.write_text(TINY.replace('["ecco", "generic"]', '"ecco"').replace("[2, 4]", "2"))
    assert main(["grid", "run", str(file), "--workers", "1"]) == 0


@pytest.mark.check
def test_models_that_train_alone_are_reported_with_their_command(file, capsys):
    file.write_text(
        TINY.replace('title = "Tiny"', 'title = "Tiny"\nalone = true').replace(
            '["ecco", "generic"]', '"ecco"'
        )
    )
    assert main(["grid", "run", str(file), "--workers", "1"]) == 0
    assert "ct grid run" in Path("grids/tiny.html").read_text()
    assert main(["grid", "report", str(file)]) == 0
