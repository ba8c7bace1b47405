"""Over real sockets: clients that hang up or never come to an end, and a server that is told to stop."""

import contextlib
import http.client
import json
import socket
import threading

import pytest
from serving import PATIENCE, Held, app_of, running

from counterfactual_training.serve import connection


@pytest.fixture
def worker():
    return Held()


@pytest.fixture
def server(served, worker):
    with running(lambda: app_of(served, lambda served: worker)) as server:
        yield server


def request(path: str, body: dict, port: int) -> bytes:
    content = json.dumps(body).encode()
    head = f"POST /api/v1/{path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


def post(server, path: str, **body) -> dict:
    client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
    with contextlib.closing(client):
        client.request("POST", f"/api/v1/{path}", json.dumps(body), {"Content-Type": "application/json"})
        return json.load(client.getresponse())


def test_a_search_ends_when_its_client_hangs_up(server, worker, denied):
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(request("explain", {"rows": denied[:1]}, server.port))
        search = worker.next_call()
        assert not search.gone.is_set()
    # The connection is closed.
    assert search.gone.wait(PATIENCE)


def test_who_needs_no_change_waits_for_nobody(server, worker, served, denied):
    granted = served.people[served.decided[0] == 1].astype(object).head(1).to_dict("records")
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(request("explain", {"rows": denied[:1]}, server.port))
        search = worker.next_call()
        # The only worker is busy, and stays so.
        found = post(server, "explain", rows=granted)
        assert not search.gone.is_set()
    plan = found["answers"][0]["plans"][0]
    assert plan["status"] == "already_there" and plan["values"] == granted[0] and plan["cost"] == 0
    assert found["complete"] and found["batch"] == 0 and found["answers"][0]["searched"]


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
    client = threading.Thread(target=lambda: answers.append(post(server, "explain", rows=denied[:1])))
    client.start()
    search = worker.next_call()
    server.tell_to_stop()
    assert not search.gone.is_set()
    search.answer(([{"row": 0, "searched": True, "target": "granted", "plans": [], "notes": []}], True))
    client.join(PATIENCE)
    assert answers[0]["complete"] and answers[0]["answers"][0]["decision"] == "denied"
