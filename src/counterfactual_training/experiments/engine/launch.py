"""One function that runs many independent items, wherever they run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from counterfactual_training.experiments.engine.engine import Engine, Failed, Task, attempt
from counterfactual_training.experiments.engine.processes import in_processes

__all__ = ["Engine", "Failed", "capacity", "launch"]

_DEFAULT = Engine()


def launch(
    task: Task, items: Sequence[Any], shared: Any = None, *, engine: Engine = _DEFAULT
) -> Iterator[tuple[Any, Any | Failed]]:
    """Run ``task(shared, item)`` for each item; yields item and result as they finish, each item exactly once.

    An item that raises gives :class:`Failed`, and so does one whose worker died too often; the others continue.
    Closing the iterator stops the work. Workers of a cluster share no disk with the caller, so the caller should write
    the results.

    Args:
        task: a function of a module, so that workers can import it; must not change ``shared``.
        items: what differs between the calls; small.
        shared: what they have in common, such as the data; sent once to each worker or node.
        engine: where to run. More than one worker means processes that import the caller's main module: a script needs
            its ``if __name__ == "__main__":``.
    """
    if not items:
        return iter(())
    if engine.name == "ray":
        from counterfactual_training.experiments.engine.ray_engine import on_ray, require_ray

        require_ray()
        return on_ray(task, items, shared, engine)
    if engine.workers == 1:
        return ((item, attempt(task, shared, item)) for item in items)
    return in_processes(task, items, shared, engine)


def capacity(engine: Engine) -> int:
    """How many items run at once.

    A cluster is asked, so an address that does not answer raises here, before anything has been prepared.
    """
    if engine.name == "processes":
        return engine.workers
    from counterfactual_training.experiments.engine.ray_engine import num_processors

    return num_processors(engine)
