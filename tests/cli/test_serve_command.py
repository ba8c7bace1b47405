"""``ct serve`` as a process: it starts, refuses what it cannot serve, survives kill −9, and stops with grace."""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import numpy as np
import pandas as pd
import pytest

from counterfactual_training.cli import main
from counterfactual_training.estimator import CounterfactualClassifier
from counterfactual_training.estimator.file import Origin, save_classifier
from counterfactual_training.models import mlp

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A model file, and a table with its class."""
    folder = tmp_path_factory.mktemp("served")
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"debt": rng.uniform(0, 50, 300).round(1), "years": rng.integers(0, 20, 300)})
    y = pd.Series(np.where(frame["debt"] - frame["years"] < 15, "yes", "no"), dtype=object)
    classifier = CounterfactualClassifier(epochs=10, random_state=0, progress=False, mutability={}).fit(frame, y)
    save_classifier(folder / "model.safetensors", classifier, Origin("granted", "yes"))
    frame.assign(granted=y).to_csv(folder / "people.csv", index=False)
    return folder


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextlib.contextmanager
def serving(files, port, *options, **environment):
    """A server that answers; its process."""
    command = [sys.executable, "-m", "counterfactual_training.cli", "serve", str(files / "model.safetensors")]
    command += ["--port", str(port), "--workers", "1", *options]
    with started(command, port, **environment) as process:
        yield process


@contextlib.contextmanager
def started(command, port, **environment):
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}
    )
    try:
        for _ in range(300):
            with contextlib.suppress(OSError):
                get(port, "/health")
                break
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.1)
        yield process
    finally:
        process.kill()
        process.wait()


def get(port, path, **headers):
    with urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers)) as answer:
        return json.load(answer)


def post(port, path, body, **headers):
    headers = {"Content-Type": "application/json", **headers}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/api/v1/{path}", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as answer:  # noqa: S310 - our own address
        return json.load(answer)


def test_a_receipt_made_before_kill_9_verifies_after_the_restart(files, tmp_path, capsys, monkeypatch):
    port, data, key = free_port(), ("--data", str(files / "people.csv"), "--no-open"), {"CT_RECEIPT_KEY": "k" * 32}
    with serving(files, port, *data, **key) as process:
        row = post(port, "rows", {"decision": "no", "limit": 1})["rows"][0]["values"]
        plan = post(port, "explain", {"rows": [row]})["answers"][0]["plans"][0]
        receipt = post(port, "receipt", {"row": row, "plan": plan["values"]})["receipt"]
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    with serving(files, port, *data, **key):
        assert post(port, "verify", {"receipt": receipt})["valid"]
        # The same question has the same answer.
        assert post(port, "explain", {"rows": [row]})["answers"][0]["plans"][0] == plan
    file = tmp_path / "receipt.json"
    file.write_text(json.dumps(receipt))
    monkeypatch.setenv("CT_RECEIPT_KEY", "k" * 32)
    assert main(["verify", str(file), "--model", str(files / "model.safetensors")]) == 0
    assert "ok  signature" in capsys.readouterr().out
    file.write_text(json.dumps({**receipt, "plan": row}))
    assert main(["verify", str(file), "--model", str(files / "model.safetensors"), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["valid"] is False


def test_a_server_that_is_told_to_stop_first_answers(files):
    port = free_port()
    with serving(files, port, "--no-open") as process:
        answers = []
        row = {"debt": 49.0, "years": 1}
        body = {"rows": [row] * 40, "options": 5}
        asking = threading.Thread(target=lambda: answers.append(post(port, "explain", body)))
        asking.start()
        time.sleep(0.3)
        process.send_signal(signal.SIGTERM)
        asking.join(60)
        process.wait(60)
        log = [json.loads(line) for line in process.stderr.read().splitlines() if line.startswith("{")]
    assert len(answers[0]["answers"]) == 40 and log[-1]["event"] == "stopped"


def test_a_connection_that_never_ends_its_headers_is_closed(files):
    port = free_port()
    quick = "import counterfactual_training.serve.connection as c; c.HEADER_SECONDS = 1.0; "
    words = ["serve", str(files / "model.safetensors"), "--port", str(port), "--no-open", "--workers", "1"]
    code = f"{quick}from counterfactual_training.cli import main; main({words!r})"
    with started([sys.executable, "-c", code], port), socket.create_connection(("127.0.0.1", port), timeout=20) as slow:
        slow.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        assert slow.recv(100) == b""
        patient = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        for _ in range(2):  # on one connection
            patient.request("GET", "/health")
            assert json.load(patient.getresponse())["status"] == "ok"
            time.sleep(1.5)  # the limit is for headers, not for what comes after them
        patient.close()


def test_without_data_nobodys_row_is_shown_and_without_a_browser_the_address_is(files):
    port = free_port()
    with serving(files, port, DISPLAY="", WAYLAND_DISPLAY="") as process:
        assert get(port, "/api/model")["data"] is None
        with pytest.raises(urllib.error.HTTPError, match="404"):
            post(port, "rows", {})
        time.sleep(1.5)
        process.kill()
        said, noted = process.communicate()
    assert said == f"Open http://127.0.0.1:{port}/ to look; Ctrl-C ends it.\n"
    assert f"no browser found: open http://127.0.0.1:{port}/ yourself" in noted


def test_rows_beyond_the_limit_are_told_and_the_first_ones_shown(files):
    port = free_port()
    data = ("--data", str(files / "people.csv"), "--max-people", "20", "--no-open")
    with serving(files, port, *data, CT_TOKEN="t" * 20) as process:
        token = {"Authorization": f"Bearer {'t' * 20}"}
        assert get(port, "/api/model", **token)["data"] == {
            "name": "people.csv", "rows": 20, "total": 300, "labelled": True, "truncated": True,
            "columns": ["debt", "years"],
        }  # fmt: skip
        with pytest.raises(urllib.error.HTTPError, match="401"):
            get(port, "/api/model")
        process.kill()
        said, noted = process.communicate()
    assert "people.csv has 300 rows; the first 20 are shown: --max-people shows more" in noted
    assert f"Open http://127.0.0.1:{port}/#token={'t' * 20} to look" in said and "asks for the token" in said


# ---- what cannot be served -------------------------------------------------------------------------------------------


def refused(capsys, *words):
    assert main(["serve", *map(str, words), "--no-open", "--port", str(free_port())]) == 2
    return capsys.readouterr().err


def test_a_port_in_use_names_the_next_free_one(files, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["serve", str(files / "model.safetensors"), "--port", str(port), "--no-open"]) == 2
    said = capsys.readouterr().err
    free = int(said.split("; ")[1].split(" ")[0])
    assert f"Port {port} is in use" in said and f"add --port {free}" in said and port < free < port + 100


def test_files_that_are_no_models(files, tmp_path, capsys):
    assert "There is no file" in refused(capsys, tmp_path / "absent.safetensors")
    assert "is not a file of this package" in refused(capsys, files / "people.csv")


def test_a_model_whose_own_code_is_needed(tmp_path, capsys):
    frame = pd.DataFrame({"a": np.arange(40.0), "b": np.arange(40.0) % 7})
    own = CounterfactualClassifier(mlp, epochs=1, gate="none", progress=False)
    own.fit(frame, np.arange(40) // 20).save(tmp_path / "own.safetensors")
    assert "a model of your own" in refused(capsys, tmp_path / "own.safetensors")


def test_data_whose_columns_do_not_fit(files, tmp_path, capsys):
    pd.DataFrame({"debt": [1.0], "age": [3]}).to_csv(tmp_path / "other.csv", index=False)
    said = refused(capsys, files / "model.safetensors", "--data", tmp_path / "other.csv")
    assert "lacks 1 column(s) that the model needs: 'years'" in said


def test_data_whose_cells_do_not_fit_are_told_before_the_page_opens(files, tmp_path, capsys):
    pd.DataFrame({"debt": ["x", "y"], "years": [1, 2]}).to_csv(tmp_path / "other.csv", index=False)
    assert main(["serve", str(files / "model.safetensors"), "--data", str(tmp_path / "other.csv"), "--no-open"]) == 2
    captured = capsys.readouterr()
    assert "Open http" not in captured.out and "debt" in captured.err and "Traceback" not in captured.err


def test_a_rival_of_other_columns_or_classes(files, tmp_path, capsys):
    frame = pd.DataFrame({"debt": np.arange(40.0), "age": np.arange(40)})
    other = CounterfactualClassifier(epochs=1, gate="none", progress=False, mutability={})
    other.fit(frame, np.where(np.arange(40) < 20, "yes", "no")).save(tmp_path / "other.safetensors")
    said = refused(capsys, files / "model.safetensors", "--against", tmp_path / "other.safetensors")
    assert "only one of them has 'age'" in said
    frame = frame.rename(columns={"age": "years"})
    other.fit(frame, np.where(np.arange(40) < 20, "a", "b")).save(tmp_path / "other.safetensors")
    assert "its classes are" in refused(
        capsys, files / "model.safetensors", "--against", tmp_path / "other.safetensors"
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--max-seconds", "0"], "--max-seconds must be above 0"),
        (["--target", "maybe"], "Unknown class in --target 'maybe'"),
        (["--host", "no such host"], "Cannot listen on"),
        (["--allow-host", "https://advice.example.org"], "--allow-host takes a name"),
        (["--max-waiting", "3"], "--max-waiting must be at least --max-rows"),
        (["--port", "99999"], "--port must be from 0 to 65535"),
    ],
)
def test_options_that_make_no_sense(files, capsys, options, said):
    words = ["serve", str(files / "model.safetensors"), "--no-open", *options]
    assert main([*words, *([] if "--port" in options else ["--port", str(free_port())])]) == 2
    assert said in capsys.readouterr().err


def test_short_tokens_are_refused(files, capsys, monkeypatch):
    monkeypatch.setenv("CT_TOKEN", "secret")
    assert "The token has 6 characters" in refused(capsys, files / "model.safetensors")


@pytest.mark.parametrize("content", ["", "[]", "{", "\udcff", '{"kind": "x"}'])
def test_receipts_that_are_none(files, tmp_path, capsys, content):
    (tmp_path / "r.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    assert main(["verify", str(tmp_path / "r.json"), "--model", str(files / "model.safetensors")]) == 2
    captured = capsys.readouterr()
    assert "no receipt" in captured.err + captured.out
