"""People to decide on, a classifier of them, and ways to ask the API."""

import contextlib
import queue
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import pytest

from counterfactual_serve.app import make_app
from counterfactual_serve.guard import Guard
from counterfactual_serve.questions import Limits
from counterfactual_serve.served import Served
from counterfactual_serve.server import Address, make_server
from counterfactual_serve.worker import GoneError
from counterfactual_training.tables.estimators.classifier import CounterfactualClassifier

BASE = "http://127.0.0.1:8000"
# Seconds: what hangs still fails, and a busy machine does not matter.
PATIENCE = 300.0


def make_people(number: int = 600, seed: int = 0) -> tuple[pd.DataFrame, pd.Series]:
    """Applicants with numbers, integers, categories, an ordered one and a flag; who has more income
    and less debt is granted."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": rng.integers(18, 80, number),
            "income": np.round(rng.gamma(4, 10, number), 1),
            "debt": np.round(rng.gamma(2, 12, number), 1),
            "job": rng.choice(["clerk", "nurse", "pilot"], number),
            "owner": rng.choice([True, False], number),
            "sex": rng.choice(["female", "male"], number),
        }
    )
    score = frame["income"] - frame["debt"] + 8 * (frame["job"] == "pilot") + 6 * frame["owner"]
    score += rng.normal(0, 4, number) - 10 * (frame["sex"] == "female")
    return frame, pd.Series(np.where(score > 15, "granted", "denied"), dtype=object)


def train(seed: int = 0, **settings) -> CounterfactualClassifier:
    frame, y = make_people()
    schema = {"income": {"unit": "thousand dollars"}, "debt": {"unit": "thousand dollars"}}
    rules = {"mutability": {"age": "none", "sex": "none", "debt": "decrease"}, "schema": schema}
    classifier = CounterfactualClassifier(
        epochs=15, random_state=seed, progress=False, **rules, **settings
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return classifier.fit(frame, y)


def ask(client, path, **body):
    """The answer to a POST, which must succeed."""
    response = client.post(f"/api/v1/{path}", json=body)
    assert response.status_code == 200, response.text
    return response.json()


# ---- workers without processes -------------------------------------------------------------------


class Here:
    """A worker without a process: the thread that asks it searches."""

    def __init__(self, served: Served | None = None) -> None:
        self.served = served
        self.starts = 0

    def start(self) -> None:
        self.starts = 1

    def stop(self) -> None:
        pass

    def ask(self, task, *arguments, seconds: float, gone: threading.Event) -> Any:
        return task(self.served, *arguments)


@dataclass
class Call:
    """A task that a worker was given."""

    arguments: tuple[Any, ...]
    gone: threading.Event
    result: "queue.Queue[Any]" = field(default_factory=queue.Queue)

    @property
    def frame(self) -> pd.DataFrame:
        """The rows to search."""
        return self.arguments[1]

    def answer(self, result: Any = None) -> None:
        """End it: by default with an answer per row, which says its income. An error is raised."""
        if result is None:
            result = (
                [{"row": i, "income": income} for i, income in enumerate(self.frame["income"])],
                True,
            )
        self.result.put(result)


class Held(Here):
    """A worker that does what the test says, when the test says so; until then, it waits as a
    process would.
    """

    def __init__(self, served: Served | None = None) -> None:
        super().__init__(served)
        self._calls: queue.Queue[Call] = queue.Queue()

    def next_call(self) -> Call:
        """Wait for the next task."""
        return self._calls.get(timeout=PATIENCE)

    def ask(self, task, *arguments, seconds: float, gone: threading.Event) -> Any:
        call = Call(arguments, gone)
        self._calls.put(call)
        while True:
            with contextlib.suppress(queue.Empty):
                result = call.result.get(timeout=0.01)
                break
            if gone.is_set():
                raise GoneError
        if isinstance(result, Exception):
            raise result
        return result


def app_of(served: Served, worker=Here, **settings) -> Guard:
    """The application with workers that need no process."""
    with pytest.MonkeyPatch.context() as patch:
        make_workers = "counterfactual_serve.app.make_workers"
        patch.setattr(
            make_workers, lambda served, number: [worker(served) for _ in range(number)]
        )
        return make_app(served, **{"workers": 1, **settings})


# ---- a server in a thread ------------------------------------------------------------------------


class LocalServer:
    """A server in a thread; it can be ended at once, and started again on the same port.

    Args:
        make: the application; it is made anew for every start, as by a process.
    """

    def __init__(self, make: Callable[[], Guard], token: str | None = None) -> None:
        self._make = make
        self._server: Any = None
        self._thread: threading.Thread | None = None
        self.token = token
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def start(self) -> "LocalServer":
        # Connections wait at the socket until the application is ready.
        listener = Address(port=self.port).listen()
        self.port = listener.getsockname()[1]
        self._server = make_server(self._make(), Limits())
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [listener]})
        self._thread.start()
        return self

    def tell_to_stop(self) -> None:
        """As SIGTERM does; whoever waits for an answer is waited for."""
        connection = next(iter(self._server.server_state.connections))
        told = threading.Event()

        def tell() -> None:
            self._server.handle_exit(signal.SIGTERM, None)
            told.set()

        connection.loop.call_soon_threadsafe(tell)
        assert told.wait(PATIENCE)

    def kill(self) -> None:
        """End it; whoever waits for an answer gets none."""
        if self._thread is None:
            return
        for connection in list(self._server.server_state.connections):
            connection.loop.call_soon_threadsafe(connection.transport.abort)
        self._server.should_exit = True
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "the server does not end"
        self._thread = None


@contextlib.contextmanager
def running(make: Callable[[], Guard], token: str | None = None) -> Iterator[LocalServer]:
    server = LocalServer(make, token).start()
    try:
        yield server
    finally:
        server.kill()
