"""Requests that nobody should send: each is refused clearly, valid ones between them are answered
as before, and the log holds nothing of them. ``python -m benchmarks.serve_fuzz`` sends the same to
a server over sockets."""

import io
import json
import logging
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2]))  # `benchmarks` is no part of the package

from benchmarks.serve_fuzz import Case, Fuzzer, World, judge, judge_log
from counterfactual_serve.metrics import JsonLines

LOGGER = logging.getLogger("counterfactual_serve")


@pytest.fixture
def written():
    """What the server logs, as it would be on stderr."""
    text, level = io.StringIO(), LOGGER.level
    handler = logging.StreamHandler(text)
    handler.setFormatter(JsonLines())
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.INFO)
    yield text
    LOGGER.removeHandler(handler)
    LOGGER.setLevel(level)


@pytest.fixture(scope="module")
def world(client):
    def ask(method, path, document):
        response = client.request(method, path, json=document)
        assert response.status_code == 200, response.text
        return response.json()

    return World.look(ask)


def send(client, case: Case):
    body = iter([case.body]) if case.chunked else case.body
    return client.request(case.method, case.path, headers=list(case.headers), content=body)


def problems(client, world: World, number: int, seed: int) -> list[str]:
    found = []
    for case in Fuzzer(world, seed).cases(number, wire=False):
        response = send(client, case)
        # This client may write "get" as "GET", which is then a good request; over sockets it is
        # sent as it is.
        if case.method == "get" and response.status_code == 200:
            continue
        wrong = judge(case, response.status_code, response.headers, response.content, world)
        if wrong is not None:
            found.append(
                f"{case.kind}: {case.method} {case.path[:80]} {case.headers} "
                f"{case.body[:300]!r}: {wrong}"
            )
    return found


@pytest.mark.filterwarnings(
    "ignore:Categories that training never saw"
)  # they stand in the notes of answers
# Seeds differ, so that the many are others than the few.
@pytest.mark.parametrize(
    ("number", "seed"), [(200, 0), pytest.param(1_500, 1, marks=pytest.mark.check)]
)
def test_whatever_is_sent_is_refused_clearly_and_nothing_is_logged(
    client, world, written, number, seed
):
    assert problems(client, world, number, seed) == []
    log = written.getvalue()
    assert log.count('"event": "request"') == number and judge_log(log) == []
    assert "ct_worker_restarts_total 0" in client.get("/metrics").text


def test_the_same_seed_sends_the_same(world):
    first, again, other = (list(Fuzzer(world, seed).cases(60)) for seed in (3, 3, 4))
    assert first == again != other
    assert len({case.kind for case in Fuzzer(world).cases(400)}) > 20


def test_the_judge_finds_what_is_wrong(world):
    """A test that finds nothing is worth nothing unless it can find something."""
    case = Case("any", "refused")
    headers = {"x-api-version": "1", "content-type": "application/json"}
    clear = {"code": "bad_request", "message": "rows must be a list, got 5.", "field": "rows"}

    def judged(status, body, expect="refused", reference=""):
        asked = Case(case.kind, expect, reference=reference)
        return judge(
            asked,
            status,
            headers,
            body if isinstance(body, bytes) else json.dumps(body).encode(),
            world,
        )

    assert judged(400, {"error": clear}) is None and "status 500" in judged(
        500, {"error": clear}
    )
    assert "was answered" in judged(200, {}) and "refused" in judged(
        400, {"error": clear}, "same"
    )
    assert "no clear message" in judged(400, {"error": {**clear, "message": "bad"}})
    assert "inside" in judged(400, {"error": {**clear, "message": "KeyError: 'age' in frame."}})
    assert "another answer" in judged(200, {"status": "ok"}, "same", "health")
    assert judged(200, {"valid": False}, "invalid") is None and "receipt" in judged(
        200, {"valid": True}, "invalid"
    )
    assert judge_log('{"event": "request", "path": "other"}') == []
    assert (
        len(
            judge_log(
                '{"event": "x", "path": "/CANARY1"}\nTraceback\n{"event": "fault"}\n{"age": '
                "7319.0451}"
            )
        )
        == 4
    )
