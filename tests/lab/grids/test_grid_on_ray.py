"""A grid on a real Ray cluster of this machine, a node of which is killed while it trains a
fleet.
"""

import io
import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from counterfactual_lab.grids import job as grid_job
from counterfactual_lab.grids import run as running
from counterfactual_lab.grids.file import parse_grid
from counterfactual_lab.grids.run import GridWork, run_grid
from counterfactual_lab.runs.store import Store
from counterfactual_training.engine.launch import Engine
from tiny_grid import TINIEST_GRID

ray = pytest.importorskip("ray", reason="Ray is not installed (extra: ray)")

pytestmark = pytest.mark.check
MARKS, PAUSE = "CT_TEST_MARKS", 1.0
# Epochs are part of a fleet's shape: two fleets for each number, of the settings and of their
# baselines.
GRID = TINIEST_GRID.replace("epochs = 1", "epochs = [1, 2, 3]")


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """A head that does no work, and two nodes with one processor each."""
    from ray.cluster_utils import Cluster

    here = Path(__file__)
    on_path = os.pathsep.join(
        [str(here.parent), str(here.parents[2]), os.environ.get("PYTHONPATH", "")]
    )
    (tmp_path / "marks").mkdir()
    monkeypatch.setenv("PYTHONPATH", on_path)  # the job below, on every node
    monkeypatch.setenv(MARKS, str(tmp_path / "marks"))
    made = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
    )
    for _ in range(2):
        made.add_node(num_cpus=1)
    made.wait_for_nodes()
    yield made
    ray.shutdown()
    made.shutdown()


def marked(benches, job):
    """The real job, which says on which node it begins, and leaves time to kill it."""
    with (Path(os.environ[MARKS]) / job.id).open("a") as file:
        file.write(f"{ray.get_runtime_context().get_node_id()}\n")
    time.sleep(PAUSE)
    return grid_job.run_job(benches, job)


def kill_a_node_at_work(cluster, marks, runs, killed):
    """As soon as one fleet is done: the node of another that is in its pause."""
    while not killed:
        time.sleep(0.02)
        fresh = [
            path for path in marks.iterdir() if time.time() - path.stat().st_mtime < PAUSE / 2
        ]
        for path in fresh if any(runs.glob("*.json")) else ():
            for node in cluster.worker_nodes:
                if node.node_id in path.read_text():
                    killed.append((path.name, node.node_id))
                    return cluster.remove_node(node, allow_graceful=False)


def test_a_grid_that_loses_a_node_is_the_grid_of_one_process(cluster, tmp_path, monkeypatch):
    work = GridWork.from_grids(parse_grid(GRID, "grid.toml"))
    away, killed = tmp_path / "away", []
    killer = threading.Thread(
        target=kill_a_node_at_work,
        args=(cluster, tmp_path / "marks", away / "runs", killed),
        daemon=True,
    )
    killer.start()
    with monkeypatch.context() as patch:
        patch.setattr(running, "run_job", marked)
        found = run_grid(work, away, Engine("ray", address=cluster.address), "", io.StringIO())
    killer.join(10)
    assert (found.runs, found.before, found.failures) == (9, 0, {})
    [(job, node)] = killed
    begun = {path.name: path.read_text().split() for path in (tmp_path / "marks").iterdir()}
    assert len(begun) == 6
    assert (
        begun[job][0] == node and len(begun[job]) == 2 and begun[job][1] != node
    )  # begun anew elsewhere

    assert (
        run_grid(work, tmp_path / "here", Engine(workers=1), "", io.StringIO()).failures == {}
    )
    for run in work.runs:
        one, other = Store(away).load(run), Store(tmp_path / "here").load(run)
        assert one.numbers == pytest.approx(other.numbers, rel=1e-5)
        for name, values in one.arrays.items():
            np.testing.assert_allclose(values, other.arrays[name], rtol=1e-4, atol=1e-6)
