"""Items as tasks of a Ray cluster. The only file that imports Ray.

Ray itself starts a task again when its worker or node dies, or when its result is lost with a node.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import platform
import re
import socket
import sys
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Any

from counterfactual_training.engine.launch import (
    Engine,
    Failed,
    Task,
    attempt,
    lost,
    reason,
    set_up_worker,
)
from counterfactual_training.errors import (
    CounterfactualTrainingError,
    InputError,
    MissingExtraError,
)
from counterfactual_training.versions import PACKAGE, versions

_AHEAD = 2  # tasks submitted per processor, so that none waits for its next
_POLL_SECONDS = 10.0  # after which the size of the cluster is asked again: nodes come and go
_CONNECT_SECONDS = 5.0
_HOW_TO_INSTALL = 'pip install "counterfactual-training[ray]"'
_HOW_TO_START = (
    "Start one with `ray start --head --port=6379` on the first machine and `ray start "
    "--address=HOST:6379` on each "
    "of the others, this one included; from outside use ray://HOST:10001. Without an address Ray "
    "runs on this machine."
)


def require_ray() -> Any:
    """The module ray, or how to install it."""
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError(f'The engine "ray" needs Ray: {_HOW_TO_INSTALL}.') from error
    return ray


def on_ray(
    task: Task, items: Sequence[Any], shared: Any, engine: Engine
) -> Iterator[tuple[Any, Any | Failed]]:
    """Pairs of item and result from a Ray cluster; a session that the caller has opened is used and
    left open.
    """
    ray = require_ray()
    with _connected(ray, engine):
        remote = ray.remote(num_cpus=1, max_retries=engine.max_retries)(_run)
        work = ray.put((task, shared))  # one copy per node
        mine = versions()[PACKAGE]
        waiting = deque(range(len(items)))
        running = dict[Any, int]()
        try:
            while waiting or running:
                while waiting and len(running) < _AHEAD * _num_cpus(ray):
                    index = waiting.popleft()
                    try:
                        running[remote.remote(mine, work, items[index])] = index
                    except TypeError as error:
                        yield (
                            items[index],
                            Failed(
                                f"The item cannot be sent to another process ({reason(error)})."
                            ),
                        )
                for done in _finished(ray, list(running)):
                    yield items[running.pop(done)], _result(ray, done, engine)
        finally:
            for unfinished in running:
                ray.cancel(unfinished, force=True)


def num_processors(engine: Engine) -> int:
    """The number of processors of the cluster at this moment; at least one."""
    ray = require_ray()
    if _address(engine) == "local" and not ray.is_initialized():
        return engine.workers
    with _connected(ray, engine):
        return _num_cpus(ray)


def _run(version: str, work: tuple[Task, Any], item: Any) -> Any:
    """One item, on a node."""
    mine = versions()[PACKAGE]
    if mine != version:
        raise InputError(
            f"Versions differ: node {platform.node()} has counterfactual-training {mine}, the "
            f"driver has {version}. "
            "Install the same one everywhere and start again."
        )
    set_up_worker()
    return attempt(*work, item)


def _num_cpus(ray: Any) -> int:
    num_cpus = int(ray.cluster_resources().get("CPU", 0))
    if not num_cpus:
        warnings.warn(
            "The cluster has no processors yet; waiting for nodes to join.", stacklevel=2
        )
    return max(num_cpus, 1)


def _finished(ray: Any, running: list[Any]) -> list[Any]:
    """All tasks that are done by now, waiting for the first; or none after a while."""
    done, rest = ray.wait(running, num_returns=1, timeout=_POLL_SECONDS)
    if done and rest:
        done += ray.wait(rest, num_returns=len(rest), timeout=0)[0]
    return list(done)


def _result(ray: Any, done: Any, engine: Engine) -> Any | Failed:
    errors = ray.exceptions
    try:
        return ray.get(done)
    except (
        errors.WorkerCrashedError,
        errors.NodeDiedError,
        errors.OutOfMemoryError,
        errors.ObjectLostError,
    ):
        return lost(engine.max_retries + 1)
    except errors.RayTaskError as error:
        # Errors of the task itself are caught on the node.
        if isinstance(error.cause, InputError):
            raise error.cause from None
        last = ([line.strip() for line in str(error).splitlines() if line.strip()] or [""])[-1]
        if "pickle" in last:
            return Failed(f"The result cannot be sent back ({last}).")
        raise CounterfactualTrainingError(
            f"A node of the cluster cannot run this package ({last}). Every node needs the same "
            "Python and the same "
            f"version: {_HOW_TO_INSTALL}."
        ) from error


# ---- the session ---------------------------------------------------------------------------------


@contextmanager
def _connected(ray: Any, engine: Engine) -> Iterator[None]:
    """A session with the cluster, closed afterwards unless it was open before."""
    if ray.is_initialized():
        yield
        return
    address = _address(engine)
    quiet = {"logging_level": logging.ERROR, "log_to_driver": False}
    try:
        if address == "local":
            ray.init("local", num_cpus=engine.workers, include_dashboard=False, **quiet)
        else:
            _check_answers(address)
            ray.init(address, **quiet)
    except CounterfactualTrainingError:
        raise
    except Exception as error:
        ray.shutdown()
        raise InputError(
            f"Cannot connect to a Ray cluster at {address!r} ({reason(error)}). {_HOW_TO_START}"
        ) from error
    # Ray prints pages about dead nodes, at any moment, to standard output, which belongs to our
    # results.
    with redirect_stdout(sys.stderr):
        try:
            yield
        finally:
            ray.shutdown()


def _address(engine: Engine) -> str:
    return engine.address or os.environ.get("RAY_ADDRESS") or "local"


def _check_answers(address: str) -> None:
    """Raise unless something listens at ``host:port`` or ``ray://host:port``: Ray itself would try
    for minutes.
    """
    if address == "auto":
        return
    match = re.fullmatch(
        r"(?P<client>ray://)?(?P<host>[^/:\s]+|\[[0-9a-fA-F:]+\]):(?P<port>\d{1,5})", address
    )
    if match is None or int(match["port"]) > 65535:
        raise InputError(
            f"{address!r} is not a valid Ray address: expected auto, host:port or ray://host:port."
        )
    if match["client"] and importlib.util.find_spec("grpc") is None:
        raise MissingExtraError(
            f"An address that begins with ray:// needs Ray's client: {_HOW_TO_INSTALL}."
        )
    try:
        socket.create_connection(
            (match["host"].strip("[]"), int(match["port"])), _CONNECT_SECONDS
        ).close()
    except OSError as error:
        problem = error.strerror or str(error)
        raise InputError(
            f"No Ray cluster answers at {address!r} ({problem}). {_HOW_TO_START}"
        ) from error
