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

from counterfactual_lab.grids import run as grid_run
from counterfactual_lab.grids import task as grid_task
from counterfactual_lab.grids.file import parse_grid
from counterfactual_lab.grids.run import GridWork, run_grid
from counterfactual_lab.grids.store import Store
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
    monkeypatch.setenv("PYTHONPATH", on_path)  # the task below, on every node
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


def marked(benches, task):
    """The real task, which says on which node it begins, and leaves time to kill it."""
    with (Path(os.environ[MARKS]) / task.id).open("a") as file:
        file.write(f"{ray.get_runtime_context().get_node_id()}\n")
    time.sleep(PAUSE)
    return grid_task.run_task(benches, task)


def kill_a_node_at_work(cluster, marks, cells, killed):
    """As soon as one fleet is done: the node of another that is in its pause."""
    while not killed:
        time.sleep(0.02)
        fresh = [
            path for path in marks.iterdir() if time.time() - path.stat().st_mtime < PAUSE / 2
        ]
        for path in fresh if any(cells.glob("*.json")) else ():
            for node in cluster.worker_nodes:
                if node.node_id in path.read_text():
                    killed.append((path.name, node.node_id))
                    return cluster.remove_node(node, allow_graceful=False)


def test_a_grid_that_loses_a_node_is_the_grid_of_one_process(cluster, tmp_path, monkeypatch):
    work = GridWork.from_grids(parse_grid(GRID, "grid.toml"))
    away, killed = tmp_path / "away", []
    killer = threading.Thread(
        target=kill_a_node_at_work,
        args=(cluster, tmp_path / "marks", away / "cells", killed),
        daemon=True,
    )
    killer.start()
    with monkeypatch.context() as patch:
        patch.setattr(grid_run, "run_task", marked)
        found = run_grid(work, away, Engine("ray", address=cluster.address), "", io.StringIO())
    killer.join(10)
    assert (found.cells, found.before, found.failures) == (9, 0, {})
    [(task, node)] = killed
    begun = {path.name: path.read_text().split() for path in (tmp_path / "marks").iterdir()}
    assert len(begun) == 6
    assert (
        begun[task][0] == node and len(begun[task]) == 2 and begun[task][1] != node
    )  # begun anew elsewhere

    assert (
        run_grid(work, tmp_path / "here", Engine(workers=1), "", io.StringIO()).failures == {}
    )
    for cell in work.cells:
        one, other = Store(away).load(cell), Store(tmp_path / "here").load(cell)
        assert one.numbers == pytest.approx(other.numbers, rel=1e-5)
        for name, values in one.arrays.items():
            np.testing.assert_allclose(values, other.arrays[name], rtol=1e-4, atol=1e-6)
