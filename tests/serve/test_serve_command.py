"""``ct serve``: what it says and serves, what it refuses; as a process, it survives kill −9, and
stops with grace.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.request

import numpy as np
import pandas as pd
import pytest

from counterfactual_serve.commands import serve as command
from counterfactual_training.cli import main
from counterfactual_training.cli.saved_models import open_model
from counterfactual_training.models.classifiers import mlp
from counterfactual_training.tables.estimators.classifier import CounterfactualClassifier
from counterfactual_training.tables.estimators.file import Origin

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from counterfactual_serve.receipt import make_receipt

# Seconds: what hangs still fails, and a busy machine does not matter.
PATIENCE = 300


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A model file, and a table with its class."""
    folder = tmp_path_factory.mktemp("served")
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"debt": rng.uniform(0, 50, 300).round(1), "years": rng.integers(0, 20, 300)}
    )
    y = pd.Series(np.where(frame["debt"] - frame["years"] < 15, "yes", "no"), dtype=object)
    classifier = CounterfactualClassifier(
        model="linear",
        learning_rate=0.1,
        epochs=10,
        random_state=0,
        progress=False,
        mutability={},
        gate="none",
    )
    classifier.fit(frame, y)
    classifier.origin_ = Origin("granted", "yes")
    classifier.save(folder / "model.safetensors")
    frame.assign(granted=y).to_csv(folder / "people.csv", index=False)
    return folder


# ---- what is served ------------------------------------------------------------------------------


@pytest.fixture
def served(files, monkeypatch):
    """Call the command, but run no server: what it would have served, and how."""
    calls = []

    def remember(model, listener, **settings):
        calls.append((model, {"listener": listener, **settings}))

    monkeypatch.setattr("counterfactual_serve.server.run_server", remember)

    def serve(*words):
        assert main(["serve", str(files / "model.safetensors"), "--port", "0", *words]) == 0
        return calls.pop()

    return serve


def test_without_data_nobodys_row_is_shown(served, capsys):
    model, settings = served("--no-open")
    port = settings["listener"].getsockname
    assert model.rows is None and model.against is None and model.model.wanted == "yes"
    assert settings["access"].token is None and settings["key"] is None
    said = capsys.readouterr()
    assert said.out.startswith("Open http://127.0.0.1:") and said.out.endswith(
        "/ to look; Ctrl-C ends it.\n"
    )
    with pytest.raises(
        OSError, match="Bad file descriptor"
    ):  # closed when the server has ended
        port()


def test_without_a_browser_the_address_is_told(served, capsys, monkeypatch):
    class Now:
        """A timer that does not wait."""

        def __init__(self, seconds, act, arguments):
            self.start = lambda: act(*arguments)

    monkeypatch.setattr(command.threading, "Timer", Now)
    monkeypatch.setattr("counterfactual_serve.server.open_browser", lambda url: False)
    served()
    said = capsys.readouterr()
    url = said.out.split()[1]
    assert f"no browser found: open {url} yourself" in said.err


def test_rows_beyond_the_limit_are_told_and_the_first_ones_shown(
    served, files, capsys, monkeypatch
):
    monkeypatch.setenv("CT_TOKEN", "t" * 20)
    model, settings = served(
        "--data", str(files / "people.csv"), "--max-people", "20", "--no-open"
    )
    assert model.document()["data"] == {
        "name": "people.csv",
        "rows": 20,
        "total": 300,
        "labelled": True,
        "truncated": True,
        "columns": ["debt", "years"],
    }
    assert settings["access"].token == "t" * 20
    said = capsys.readouterr()
    assert (
        "people.csv has 300 rows; the first 20 are shown: --max-people shows more" in said.err
    )
    assert f"/#token={'t' * 20} to look" in said.out and "asks for the token" in said.out


# ---- processes -----------------------------------------------------------------------------------


@contextlib.contextmanager
def serving(files, port, log):
    """A server that answers: its process, and its port."""
    words = [
        str(files / "model.safetensors"),
        "--data",
        str(files / "people.csv"),
        "--no-open",
        "--port",
        str(port),
    ]
    command = [
        sys.executable,
        "-m",
        "counterfactual_training.cli",
        "serve",
        *words,
        "--workers",
        "1",
    ]
    environment = {**os.environ, "CT_RECEIPT_KEY": "k" * 32}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
    ) as process:
        try:
            # Whoever asks now waits at the socket until the server is ready.
            url = process.stdout.readline().split()[1]
            assert ask(url, "health")["status"] == "ok"
            yield process, url
        finally:
            process.kill()


def ask(url, path, **body):
    content = json.dumps(body).encode() if body else None
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}{path}", content, headers)  # noqa: S310
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:  # noqa: S310 - our own address
        return json.load(answer)


@pytest.mark.check
def test_a_receipt_outlives_kill_9_and_a_server_that_is_told_to_stop_first_answers(
    files, tmp_path
):
    with (tmp_path / "log").open("w+") as log, serving(files, 0, log) as (process, url):
        row = ask(url, "api/rows", decision="no", limit=1)["rows"][0]["values"]
        plan = ask(url, "api/explain", rows=[row])["answers"][0]["plans"][0]
        receipt = ask(url, "api/receipt", row=row, plan=plan["values"])["receipt"]
        process.kill()
        process.wait()
    port = url.rstrip("/").rpartition(":")[2]
    with (tmp_path / "log").open("w+") as log, serving(files, port, log) as (process, url):
        assert ask(url, "api/verify", receipt=receipt)["valid"]
        # The same question has the same answer.
        assert ask(url, "api/explain", rows=[row])["answers"][0]["plans"][0] == plan
        answers = []
        asking = threading.Thread(
            target=lambda: answers.append(
                ask(url, "api/explain", rows=[row] * 8, options=3, lock=["years"])
            )
        )
        asking.start()
        while _number(url, "ct_batches_total") < 2:
            assert asking.is_alive() or answers
        process.send_signal(signal.SIGTERM)
        asking.join(PATIENCE)
        process.wait(PATIENCE)
        log.seek(0)
        lines = [json.loads(line) for line in log if line.startswith("{")]
    assert len(answers[0]["answers"]) == 8 and lines[-1]["event"] == "stopped"


def _number(url, name):
    with urllib.request.urlopen(f"{url}metrics", timeout=PATIENCE) as answer:  # noqa: S310 - our own address
        lines = answer.read().decode().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


# ---- what cannot be served -----------------------------------------------------------------------


def refused(capsys, *words):
    assert main(["serve", *map(str, words), "--no-open", "--port", "0"]) == 2
    return capsys.readouterr().err


def test_a_port_in_use_names_the_next_free_one(files, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert (
            main(["serve", str(files / "model.safetensors"), "--port", str(port), "--no-open"])
            == 2
        )
    said = capsys.readouterr().err
    free = int(said.split("; ")[1].split(" ")[0])
    assert (
        f"Port {port} is in use" in said
        and f"add --port {free}" in said
        and port < free < port + 100
    )


def test_files_that_are_no_models(files, tmp_path, capsys):
    assert "There is no file" in refused(capsys, tmp_path / "absent.safetensors")
    assert "is not a file of this package" in refused(capsys, files / "people.csv")


def test_a_model_whose_own_code_is_needed(tmp_path, capsys):
    frame = pd.DataFrame({"a": np.arange(40.0), "b": np.arange(40.0) % 7})
    own = CounterfactualClassifier(model=mlp, epochs=1, gate="none", progress=False)
    own.fit(frame, np.arange(40) // 20).save(tmp_path / "own.safetensors")
    assert "a model of your own" in refused(capsys, tmp_path / "own.safetensors")


def test_data_whose_columns_do_not_fit(files, tmp_path, capsys):
    pd.DataFrame({"debt": [1.0], "age": [3]}).to_csv(tmp_path / "other.csv", index=False)
    said = refused(capsys, files / "model.safetensors", "--data", tmp_path / "other.csv")
    assert "lacks 1 column(s) that the model needs: 'years'" in said


def test_data_whose_cells_do_not_fit_are_told_before_the_page_opens(files, tmp_path, capsys):
    pd.DataFrame({"debt": ["x", "y"], "years": [1, 2]}).to_csv(
        tmp_path / "other.csv", index=False
    )
    words = [
        "serve",
        str(files / "model.safetensors"),
        "--data",
        str(tmp_path / "other.csv"),
        "--no-open",
    ]
    assert main([*words, "--port", "0"]) == 2
    captured = capsys.readouterr()
    assert (
        "Open http" not in captured.out
        and "debt" in captured.err
        and "Traceback" not in captured.err
    )


def test_a_rival_of_other_columns_or_classes(files, tmp_path, capsys):
    frame = pd.DataFrame({"debt": np.arange(40.0), "age": np.arange(40)})
    other = CounterfactualClassifier(epochs=1, gate="none", progress=False, mutability={})
    other.fit(frame, np.where(np.arange(40) < 20, "yes", "no")).save(
        tmp_path / "other.safetensors"
    )
    said = refused(
        capsys, files / "model.safetensors", "--against", tmp_path / "other.safetensors"
    )
    assert "only one of them has 'age'" in said
    frame = frame.rename(columns={"age": "years"})
    other.fit(frame, np.where(np.arange(40) < 20, "a", "b")).save(
        tmp_path / "other.safetensors"
    )
    assert "its classes are" in refused(
        capsys, files / "model.safetensors", "--against", tmp_path / "other.safetensors"
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--max-seconds", "0"], "--max-seconds must be above 0"),
        (["--positive", "maybe"], "Unknown class in --positive 'maybe'"),
        (["--host", "no such host"], "Cannot listen on"),
        (["--allow-host", "https://advice.example.org"], "--allow-host takes a name"),
        (["--max-waiting", "3"], "--max-waiting must be at least --max-rows"),
        (["--port", "99999"], "--port must be from 0 to 65535"),
    ],
)
def test_options_that_make_no_sense(files, capsys, options, said):
    words = ["serve", str(files / "model.safetensors"), "--no-open", *options]
    assert main([*words, *([] if "--port" in options else ["--port", "0"])]) == 2
    assert said in capsys.readouterr().err


def test_short_tokens_are_refused(files, capsys, monkeypatch):
    monkeypatch.setenv("CT_TOKEN", "secret")
    assert "The token has 6 characters" in refused(capsys, files / "model.safetensors")


def test_receipts_are_verified(files, tmp_path, capsys, monkeypatch):
    model = command.as_served(open_model(files / "model.safetensors"))
    row = {"debt": 40.0, "years": 1}
    receipt = make_receipt(model, row, {"debt": 2.0, "years": 1}, {}, b"k" * 32)
    words = [
        "verify",
        str(tmp_path / "receipt.json"),
        "--model",
        str(files / "model.safetensors"),
    ]
    monkeypatch.setenv("CT_RECEIPT_KEY", "k" * 32)
    (tmp_path / "receipt.json").write_text(json.dumps(receipt))
    assert main(words) == 0
    assert "ok  signature" in capsys.readouterr().out
    (tmp_path / "receipt.json").write_text(json.dumps({**receipt, "plan": row}))
    assert main([*words, "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["valid"] is False


@pytest.mark.parametrize("content", ["", "[]", "{", "\udcff", '{"kind": "x"}'])
def test_receipts_that_are_none(files, tmp_path, capsys, content):
    (tmp_path / "r.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    assert (
        main(["verify", str(tmp_path / "r.json"), "--model", str(files / "model.safetensors")])
        == 2
    )
    captured = capsys.readouterr()
    assert "no receipt" in captured.err + captured.out
