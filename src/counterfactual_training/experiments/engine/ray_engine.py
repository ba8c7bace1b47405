"""Items as tasks of a Ray cluster. The only file that imports Ray.

Ray's own retries are off: a task that died, or whose result went down with its node, is submitted again from here, so
that one count holds for every kind of loss and nothing is begun again once its result has arrived.
"""

from __future__ import annotations

import logging
import os
import platform
import time
import uuid
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from counterfactual_training.errors import CounterfactualTrainingError, InputError, MissingExtraError
from counterfactual_training.experiments.engine.engine import Agenda, Engine, Failed, reason
from counterfactual_training.experiments.engine.parcels import answer, open_result, pack_item, pack_luggage, unpack
from counterfactual_training.experiments.engine.ray_address import HOW_TO_START, check_answers
from counterfactual_training.experiments.engine.worker import Task, attempt, settle

_AHEAD = 2  # tasks in flight per processor, so that none waits for its next; a million items stay with the caller
_LOOK_AGAIN = 10.0  # seconds after which the size of the cluster is asked again


def require_ray() -> Any:
    """The module ray, or how to get it."""
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError('The engine "ray" needs Ray: pip install "counterfactual-training[ray]".') from error
    return ray


def package_version() -> str:
    import counterfactual_training

    return counterfactual_training.__version__


@dataclass(frozen=True)
class Parcel:
    """Task and shared data, packed: one object per node, unpacked once per worker process."""

    key: str
    content: np.ndarray = field(compare=False, repr=False)  # bytes as an array, which Ray shares uncopied


@dataclass(frozen=True)
class Refused:
    """A node that must not take part, and why."""

    reason: str


def on_ray(task: Task, items: Sequence[Any], shared: Any, engine: Engine) -> Iterator[tuple[Any, Any | Failed]]:
    """Pairs of item and result from a Ray cluster; a session that the caller has opened before is used as it is."""
    ray = require_ray()
    # Ray's pickle also takes functions of the caller's main module, which nodes do not have.
    luggage = np.frombuffer(pack_luggage(task, shared, ray.cloudpickle.dumps), dtype=np.uint8)
    with _connected(ray, engine):
        remote = ray.remote(num_cpus=1, max_retries=0)(_run)
        parcel = ray.put(Parcel(uuid.uuid4().hex, luggage))
        agenda, cluster = Agenda(len(items), engine.max_retries), _Cluster(ray)
        flying: dict[Any, int] = {}
        try:
            while agenda or flying:
                while agenda and len(flying) < _AHEAD * cluster.num_cpus():
                    index = agenda.next()
                    flying[remote.remote(package_version(), parcel, pack_item(items[index]))] = index
                for done in _finished(ray, list(flying)):
                    index = flying.pop(done)
                    for outcome in _outcome(ray, done, index, agenda):
                        yield items[index], outcome
        finally:
            for unfinished in flying:
                ray.cancel(unfinished, force=True)


def num_processors(engine: Engine) -> int:
    """Of the cluster, at this moment; at least one."""
    ray = require_ray()
    if _address(engine) == "local" and not ray.is_initialized():
        return engine.workers
    with _connected(ray, engine):
        return _Cluster(ray).num_cpus()


def _run(version: str, parcel: Parcel, item: bytes) -> bytes | Refused:
    """One item, on a node."""
    mine = package_version()
    if mine != version:
        return Refused(f"node {platform.node()} has counterfactual-training {mine}, the driver has {version}")
    return answer(_unpacked(parcel), item)


@lru_cache(maxsize=1)
def _unpacked(parcel: Parcel) -> tuple[Task, Any] | Failed:
    settle()  # once per process, as this is
    return attempt(unpack, None, parcel.content)


def _finished(ray: Any, flying: list[Any]) -> list[Any]:
    """All that is done by now, waiting for the first; or nothing after a while."""
    done, rest = ray.wait(flying, num_returns=1, timeout=_LOOK_AGAIN)
    if done and rest:
        done += ray.wait(rest, num_returns=len(rest), timeout=0)[0]
    return list(done)


def _outcome(ray: Any, done: Any, index: int, agenda: Agenda) -> list[Any | Failed]:
    """Of a finished task; none if its item comes again."""
    lost = ray.exceptions
    try:
        content = ray.get(done)
    except (lost.WorkerCrashedError, lost.NodeDiedError, lost.OutOfMemoryError, lost.ObjectLostError) as error:
        return agenda.lost(index, _short(error))
    except lost.RayError as error:
        # What the task itself raises is caught on the node, so this node could not even begin.
        raise CounterfactualTrainingError(
            f"A node of the cluster cannot run this package ({_short(error)}). Every node needs the same Python and "
            'the same version: pip install "counterfactual-training[ray]".'
        ) from error
    if isinstance(content, Refused):
        raise InputError(f"Versions differ: {content.reason}. Install the same one everywhere and start again.")
    return [open_result(content)]


def _short(error: Exception) -> str:
    """One line of Ray's many: of what went wrong on a node the last, otherwise the first."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    name = type(error).__name__
    return lines[-1] if name.startswith("RayTaskError") else f"{name}: {lines[0]}"


class _Cluster:
    """How much room there is; nodes come and go."""

    def __init__(self, ray: Any) -> None:
        self.ray = ray
        self.asked = -_LOOK_AGAIN
        self.found = 1
        self.warned = False

    def num_cpus(self) -> int:
        if time.monotonic() - self.asked >= _LOOK_AGAIN:
            found = int(self.ray.cluster_resources().get("CPU", 0))
            if not found and not self.warned:
                warnings.warn("The cluster has no processors yet; waiting for nodes to join.", stacklevel=2)
                self.warned = True
            self.asked, self.found = time.monotonic(), max(found, 1)
        return self.found


@contextmanager
def _connected(ray: Any, engine: Engine) -> Iterator[None]:
    """A session with the cluster, closed afterwards unless it was open before."""
    if ray.is_initialized():
        yield
        return
    address = _address(engine)
    quiet = {"logging_level": logging.ERROR, "log_to_driver": False}
    with _silence(ray):
        if address == "local":
            ray.init("local", num_cpus=engine.workers, include_dashboard=False, **quiet)
        else:
            try:
                check_answers(_found(ray, address))
                ray.init(address, **quiet)
            except CounterfactualTrainingError:
                raise
            except Exception as error:
                ray.shutdown()
                raise InputError(
                    f"The Ray cluster at {address!r} does not let us in ({reason(error)}). {HOW_TO_START}"
                ) from error
        try:
            yield
        finally:
            ray.shutdown()


def _address(engine: Engine) -> str:
    return engine.address or os.environ.get("RAY_ADDRESS") or "local"


def _found(ray: Any, address: str) -> str:
    """Where ``auto`` leads; Ray may remember a cluster that is no more."""
    try:
        return address if address != "auto" else str(ray._private.services.canonicalize_bootstrap_address(address))
    except AttributeError:  # no promise of Ray's; then it finds out itself
        return address
    except ConnectionError as error:
        raise InputError(f"No Ray cluster runs on this machine. {HOW_TO_START}") from error


@contextmanager
def _silence(ray: Any) -> Iterator[None]:
    """Without Ray's pages about lost nodes on standard output, which belongs to our results.

    Ray has no setting for these messages. If its inside changes they appear again, and nothing else happens.
    """
    inside = getattr(ray._private, "worker", None)
    before = getattr(inside, "print_to_stdstream", None)
    if before is None:
        yield
        return
    inside.print_to_stdstream = lambda *_, **__: None  # type: ignore[union-attr]
    try:
        yield
    finally:
        inside.print_to_stdstream = before  # type: ignore[union-attr]
