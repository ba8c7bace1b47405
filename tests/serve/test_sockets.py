"""Over real sockets: clients that hang up or never come to an end, and a server that is told to
stop.
"""

import contextlib
import http.client
import json
import socket
import threading
from urllib.request import urlopen

import pytest
from serving import PATIENCE, Held, app_of, running

from counterfactual_serve import connection

ANSWER = ([{"row": 0, "target": "granted", "plans": [], "notes": []}], True)


@pytest.fixture
def worker():
    return Held()


@pytest.fixture
def server(served, worker):
    with running(lambda: app_of(served, lambda served: worker)) as server:
        yield server


def request(path: str, body: dict, port: int) -> bytes:
    content = json.dumps(body).encode()
    head = (
        f"POST /api/v1/{path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: "
        "application/json\r\n"
    )
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


def post(server, path: str, **body) -> dict:
    client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
    with contextlib.closing(client):
        client.request(
            "POST", f"/api/v1/{path}", json.dumps(body), {"Content-Type": "application/json"}
        )
        return json.load(client.getresponse())


def wait_until_waiting(server, rows: int) -> None:
    """Wait until so many rows are in the queue."""
    text = ""
    while f"ct_rows_waiting {rows}\n" not in text:
        with urlopen(f"{server.url}metrics", timeout=PATIENCE) as metrics:  # noqa: S310
            text = metrics.read().decode()


def test_who_hangs_up_leaves_the_queue(server, worker, denied):
    searching = threading.Thread(target=lambda: post(server, "explain", rows=denied[:1]))
    searching.start()
    search = worker.next_call()
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(request("explain", {"rows": denied[:1]}, server.port))
        wait_until_waiting(server, 1)
    # The connection is closed.
    wait_until_waiting(server, 0)
    search.answer(ANSWER)
    searching.join(PATIENCE)


def test_a_connection_that_never_ends_its_headers_is_closed(server, monkeypatch):
    def ask_health() -> None:
        patient.request("GET", "/health")
        assert json.load(patient.getresponse())["status"] == "ok"

    patient = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
    with contextlib.closing(patient):
        ask_health()
        monkeypatch.setattr(connection, "HEADER_SECONDS", 0.1)
        ask_health()
        with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as slow:
            slow.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n")
            assert slow.recv(100) == b""
        # The limit is for headers, not for the time between two requests of one connection.
        ask_health()


def test_a_server_that_is_told_to_stop_first_answers(server, worker, denied):
    answers = []
    client = threading.Thread(
        target=lambda: answers.append(post(server, "explain", rows=denied[:1]))
    )
    client.start()
    search = worker.next_call()
    server.tell_to_stop()
    assert not search.gone.is_set()
    search.answer(ANSWER)
    client.join(PATIENCE)
    assert answers[0]["complete"] and answers[0]["answers"][0]["target"] == "granted"
