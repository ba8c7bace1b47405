"""Ray for real: a cluster of several nodes on this machine, one of which is killed in the
middle.
"""

import os
import signal
import socket
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import torch

from counterfactual_training.engine import ray_engine
from counterfactual_training.engine.launch import Engine, Failed, launch
from counterfactual_training.errors import InputError, MissingExtraError
from counterfactual_training.versions import PACKAGE

ray = pytest.importorskip("ray", reason="Ray is not installed (extra: ray)")

pytestmark = pytest.mark.check
NODES, BROKEN = 2, 8
# Workers find the tasks below.
ON_PATH = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])


@pytest.fixture(scope="module")
def cluster():
    """A head that does no work, and nodes with one processor each."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", ON_PATH)
        made = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
        )
        for number in range(NODES):
            made.add_node(num_cpus=1, wait=number == NODES - 1)
        made.wait_for_nodes()
        yield made
        ray.shutdown()
        made.shutdown()


def work(shared, item):
    folder, weights = shared
    node = ray.get_runtime_context().get_node_id()
    # The test's nodes do share a disk, which shows every beginning.
    with (Path(folder) / str(item)).open("a") as file:
        file.write(f"{node}\n")
    if item == BROKEN:
        raise ZeroDivisionError("by\n zero")
    time.sleep(1.0)
    return {
        "value": (weights * item).sum(),
        "node": node,
        "threads": torch.get_num_threads(),
        "omp": os.environ.get("OMP_NUM_THREADS"),
    }


def die(shared, item):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_node_loses_nothing(cluster, tmp_path, capfd):
    """kill −9 of a node's processes while it works; every item exactly once, with the right
    value.
    """
    items = list(range(11))
    pairs, victim, node = [], None, None
    for pair in launch(work, items, (str(tmp_path), torch.arange(100.0)), engine=at(cluster)):
        pairs.append(pair)
        if len(pairs) >= 4 and node is None:
            victim, node = under_way(tmp_path, pairs, cluster)
            if node is not None:
                cluster.remove_node(node, allow_graceful=False)
    assert Counter(item for item, _ in pairs) == Counter(items)
    found = dict(pairs)
    assert found.pop(BROKEN) == Failed("ZeroDivisionError: by zero")
    assert all(outcome["value"].item() == 4950.0 * item for item, outcome in found.items())
    assert {(outcome["threads"], outcome["omp"]) for outcome in found.values()} == {(1, "1")}
    # The victim started again, unless it was just done; beside it at most what that node had been
    # given next.
    begun = {item: (tmp_path / str(item)).read_text().splitlines() for item in items}
    assert len(begun[victim]) == 2 or found[victim]["node"] == node.node_id
    assert sum(len(nodes) - 1 for nodes in begun.values()) <= 3
    assert found[items[-1]]["node"] != node.node_id
    assert not ray.is_initialized() and capfd.readouterr().out == ""


def under_way(folder, pairs, cluster):
    """An item that has begun but not arrived, and its node."""
    arrived = {str(item) for item, _ in pairs}
    for path in folder.iterdir():
        for node in cluster.worker_nodes:
            if path.name not in arrived and node.node_id in path.read_text():
                return int(path.name), node
    return None, None


def at(cluster, **settings):
    return Engine("ray", address=cluster.address, **settings)


def test_a_session_of_the_host_is_used_and_left_open(cluster, tmp_path, monkeypatch):
    """In it: a worker killed every time, a node of another version, a task of the main module."""
    ray.init(cluster.address, log_to_driver=False)
    [(item, outcome)] = launch(die, ["doomed"], engine=Engine("ray", max_retries=0))
    assert item == "doomed" and outcome.reason.startswith("Its worker process died once.")

    monkeypatch.setattr(
        "__main__.task_of_mine", lambda shared, item: shared + item, raising=False
    )
    sys.modules["__main__"].task_of_mine.__module__ = "__main__"
    assert dict(launch(sys.modules["__main__"].task_of_mine, [1], 2, engine=Engine("ray"))) == {
        1: 3
    }

    # Of the driver, not of the nodes.
    monkeypatch.setattr(ray_engine, "versions", lambda: {PACKAGE: "99.0"})
    with pytest.raises(
        InputError,
        match=r"has counterfactual-training \d\S*, the driver has 99\.0\. Install the same",
    ):
        list(launch(work, [1], (str(tmp_path), torch.ones(1)), engine=Engine("ray")))
    assert ray.is_initialized()
    ray.shutdown()


def closed_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize(
    ("address", "words"),
    [
        (closed_port, r"No Ray cluster answers at .* \(Connection refused\).*ray start --head"),
        (lambda: "no.such.host.invalid:6379", "No Ray cluster answers"),
        (
            lambda: "http://here:1",
            "is not a valid Ray address: expected auto, host:port or ray://host:port",
        ),
        (lambda: "head:six", "is not a valid Ray address"),
        (lambda: "head:70000", "is not a valid Ray address"),
    ],
)
def test_an_address_that_does_not_answer_raises(address, words):
    with pytest.raises(InputError, match=words):
        next(launch(work, [1], engine=Engine("ray", address=address())))


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(
        MissingExtraError, match=r'pip install "counterfactual-training\[ray\]"'
    ):
        launch(work, [1], engine=Engine("ray"))


def test_the_client_needs_its_own_package(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="client"):
        next(launch(work, [1], engine=Engine("ray", address="ray://127.0.0.1:10001")))
