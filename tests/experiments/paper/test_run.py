"""Running cells: resumable at any kill, one failure does not lose the others."""

import io
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict

import numpy as np
import pytest

from counterfactual_training.errors import FileError, InputError
from counterfactual_training.experiments.paper import run as runner
from counterfactual_training.experiments.paper.cells import Cell, make_cells
from counterfactual_training.experiments.paper.run import run_cell, run_cells
from counterfactual_training.experiments.paper.store import Store


def test_a_finished_cell_is_skipped_and_says_what_it_measured(tmp_path, tiny):
    cell = Cell("LS", "vanilla", effort=tiny)
    run_cell(cell, tmp_path, "ct reproduce")
    store = Store(tmp_path)
    marker = store.folder(cell) / "done.json"
    before = marker.stat().st_mtime_ns
    stream = io.StringIO()
    assert run_cells([cell], tmp_path, workers=1, stream=stream) == []
    assert marker.stat().st_mtime_ns == before and stream.getvalue() == ""

    found = store.load(cell)
    assert found.array("published/free/implausibility").shape == (5, 3)
    assert found.array("paired/protected/cost").shape == (5, 900)
    # As many individuals as asked for, at most.
    assert 0 < np.isfinite(found.array("paired/free/validity")).sum(1).max() <= 40
    assert found.array("attack/pgd").shape == (3,) and found.array("attribution").shape == (2,)
    assert 0 <= found.numbers["accuracy"] <= 1 and found.numbers["missing/free"] == 0
    assert found.done["settings"]["training"]["batch_size"] == 30
    assert not store.checkpoint(cell).exists()


def test_cells_of_one_seed_start_from_the_same_weights_and_seeds_differ(tmp_path, tiny):
    from counterfactual_training.datasets.catalog import load_dataset

    data = load_dataset("LS", "as_run")
    a, b, c = (next(runner.untrained(data, seed).parameters()) for seed in (1, 1, 2))
    assert a.equal(b) and not a.equal(c)


def test_one_failure_does_not_lose_the_others(tmp_path, tiny, monkeypatch):
    load = runner.load_data

    def broken(cell):
        if cell.data == "OL":
            raise FileError("no such file,\n anywhere")
        return load(cell)

    monkeypatch.setattr(runner, "load_data", broken)
    cells = make_cells(["LS", "OL"], ["vanilla"], 1, tiny)
    stream = io.StringIO()
    failures = run_cells(cells, tmp_path, workers=1, stream=stream)
    assert [(f.cell.data, f.reason) for f in failures] == [("OL", "no such file, anywhere")]
    assert Store(tmp_path).is_done(cells[0])
    assert "OL vanilla seed 0 failed" in stream.getvalue() and "[1/2] LS vanilla seed 0" in stream.getvalue()


_SCRIPT = """
import sys
from counterfactual_training.experiments.paper.cells import Effort, make_cells
from counterfactual_training.experiments.paper.run import run_cells
cells = make_cells(["LS"], ["vanilla", "full"], 1, Effort(**{effort!r}))
run_cells(cells, sys.argv[1], workers=1)
"""


def test_killed_in_the_middle_and_rerun_equals_never_killed(tmp_path, tiny):
    """kill −9 once the first cell has begun to train; the same command again, against a run that was left alone."""
    effort = {**asdict(tiny), "epochs": 8}
    process = subprocess.Popen([sys.executable, "-c", _SCRIPT.format(effort=effort), str(tmp_path / "killed")])
    while process.poll() is None and not list((tmp_path / "killed").glob("*/checkpoint.safetensors")):
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    cells = make_cells(["LS"], ["vanilla", "full"], 1, type(tiny)(**effort))
    assert not any(Store(tmp_path / "killed").is_done(cell) for cell in cells)
    for folder in ("killed", "whole"):
        assert run_cells(cells, tmp_path / folder, workers=1, stream=io.StringIO()) == []
    assert_same(cells, tmp_path / "killed", tmp_path / "whole")


def test_worker_processes_give_what_this_process_gives(tmp_path, tiny):
    cells = make_cells(["LS"], ["vanilla", "full"], 1, tiny)
    for folder, workers in (("one", 1), ("two", 2)):
        assert run_cells(cells, tmp_path / folder, workers, stream=io.StringIO()) == []
    assert_same(cells, tmp_path / "one", tmp_path / "two")


def assert_same(cells, one, other):
    for cell in cells:
        a, b = (Store(folder).load(cell) for folder in (one, other))
        assert a.numbers == b.numbers and set(a.tensors) == set(b.tensors)
        for name in a.tensors:
            np.testing.assert_array_equal(a.array(name), b.array(name))
        columns = [name for name in a.history.columns if name != "seconds"]
        assert a.history[columns].equals(b.history[columns])


def test_no_workers_is_refused(tmp_path, tiny):
    with pytest.raises(InputError, match="workers"):
        run_cells([Cell("LS", "full", effort=tiny)], tmp_path, workers=0)
