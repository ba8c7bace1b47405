"""Files come from the user's folder, the cache or a server that may fail; only checked content is
ever used or kept.
"""

import gzip
import hashlib
import io
import multiprocessing
import os
import tarfile
import threading
import time
import warnings
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from counterfactual_training.datasets import download
from counterfactual_training.datasets.download import cache_home, data_home, fetch
from counterfactual_training.datasets.sources import FILES, DataFile, Remote
from counterfactual_training.errors import FileError
from counterfactual_training.persistence import locked
from forked import fork

# Read before the fixtures hide it.
REAL_HOME = os.environ.get("CT_DATA_HOME", "")
CONTENT = bytes(range(256)) * 400


class Server:
    """A local web server whose every path is a function of the request handler."""

    def __init__(self) -> None:
        self.routes: dict[str, Callable[[BaseHTTPRequestHandler], None]] = {}
        self.requests: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.requests.append(self.path)
                outer.routes[self.path](self)

            def log_message(self, *args: object) -> None:
                pass

        self.httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.httpd.daemon_threads = True
        # Clients that hang up are what these tests are about; no traceback is wanted.
        self.httpd.handle_error = lambda *args: None  # type: ignore[method-assign]
        threading.Thread(
            target=self.httpd.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        ).start()

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.httpd.server_port}{path}"


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.httpd.shutdown()
    server.httpd.server_close()


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    cache = tmp_path / "cache"
    monkeypatch.setenv("CT_CACHE", str(cache))
    monkeypatch.delenv("CT_DATA_HOME", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    # pooch waits a second before it tries again.
    monkeypatch.setattr("pooch.core.time", SimpleNamespace(sleep=lambda seconds: None))
    return cache


def wanted(*remotes: Remote, content: bytes = CONTENT, name: str = "thing.bin") -> DataFile:
    return DataFile(
        path=f"raw/thing/{name}.gz",
        sha256=(hashlib.sha256(content).hexdigest(),),
        by_hand=f"{name} from the attic",
        terms="none",
        remotes=remotes,
    )


def serve(
    body: bytes,
    *,
    cut: int | None = None,
    after: threading.Event | None = None,
) -> Callable[[BaseHTTPRequestHandler], None]:
    """Answer with ``body``, ``after`` an event; ``cut`` ends the connection early while announcing
    everything.
    """

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        if after is not None:
            after.wait(300)
        handler.wfile.write(body[:cut])

    return answer


def in_turn(
    *answers: Callable[[BaseHTTPRequestHandler], None],
) -> Callable[[BaseHTTPRequestHandler], None]:
    left = list(answers)

    def answer(handler: BaseHTTPRequestHandler) -> None:
        (left.pop(0) if len(left) > 1 else left[0])(handler)

    return answer


def place(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def tree(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def fails(file: DataFile, match: str) -> str:
    """The error of a download, which leaves nothing but its lock behind."""
    with pytest.raises(FileError, match=match) as caught:
        fetch(file)
    assert tree(cache_home()) <= {f"locks/{file.name}.lock"}, "an unusable file was kept"
    return str(caught.value)


# ---- where files are looked for ------------------------------------------------------------------


def test_the_official_source_fills_the_cache_once(server, own_cache):
    server.routes["/thing"] = serve(CONTENT)
    file = wanted(Remote(server.url("/thing")))
    found = fetch(file)
    assert found.content == CONTENT and found.origin == server.url("/thing")
    assert (
        found.path == own_cache / "raw/thing/thing.bin" and found.path.read_bytes() == CONTENT
    )
    assert fetch(file).origin == str(found.path)
    assert len(server.requests) == 1
    assert tree(own_cache) == {"raw/thing/thing.bin", "locks/thing.bin.lock"}


@pytest.mark.parametrize("name", ["thing.bin", "thing.bin.gz", "thing.bin.zip"])
def test_data_home_comes_before_the_cache_and_is_never_written(
    tmp_path, own_cache, monkeypatch, name
):
    stored = {
        "bin": CONTENT,
        "gz": gzip.compress(CONTENT),
        "zip": zip_of(**{"thing.bin": CONTENT}),
    }
    place(own_cache / "raw/thing/thing.bin", CONTENT)
    home = tmp_path / "home"
    place(home / "raw/thing" / name, stored[name.rpartition(".")[2]])
    monkeypatch.setenv("CT_DATA_HOME", str(home))
    found = fetch(wanted())
    assert found.path == home / "raw/thing" / name and found.content == CONTENT
    found.path.unlink()
    assert fetch(wanted()).path == own_cache / "raw/thing/thing.bin"
    assert tree(home) == set()


def test_an_altered_file_in_data_home_is_named_and_not_used(server, tmp_path, monkeypatch):
    server.routes["/thing"] = serve(CONTENT)
    altered = tmp_path / "home/raw/thing/thing.bin"
    place(altered, CONTENT[:-1] + b"!")
    monkeypatch.setenv("CT_DATA_HOME", str(tmp_path / "home"))
    with pytest.warns(UserWarning, match="home.*is not used.*altered"):
        found = fetch(wanted(Remote(server.url("/thing"))))
    assert found.content == CONTENT and found.origin == server.url("/thing")
    assert altered.read_bytes() == CONTENT[:-1] + b"!"
    with (
        pytest.warns(UserWarning, match="is not used"),
        pytest.raises(FileError, match=r"(?s)altered.*place it by hand"),
    ):
        fetch(
            replace(wanted(), path="raw/thing/thing.bin", sha256=("0" * 64,)),
            allow_download=False,
        )


@pytest.mark.parametrize(
    "damage", [CONTENT[: len(CONTENT) // 2], b"", CONTENT + b"x", gzip.compress(CONTENT)[:-9]]
)
def test_a_damaged_cache_heals(server, own_cache, damage):
    server.routes["/thing"] = serve(CONTENT)
    file = wanted(Remote(server.url("/thing")))
    place(own_cache / "raw/thing/thing.bin.gz", damage)
    with pytest.warns(UserWarning, match="is not used"):
        assert fetch(file).content == CONTENT
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert fetch(file).content == CONTENT


def test_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    assert cache_home() == tmp_path / "cache"
    assert data_home() is None
    monkeypatch.delenv("CT_CACHE")
    assert "counterfactual-training" in cache_home().parts


def test_no_source_lists_every_attempt_and_how_to_place_the_file(
    server, tmp_path, own_cache, monkeypatch
):
    monkeypatch.setenv("CT_DATA_HOME", str(tmp_path / "absent"))
    server.routes["/gone"] = lambda handler: handler.send_error(404)
    server.routes["/wrong"] = serve(b"x" * len(CONTENT))
    refused = "http://127.0.0.1:9/refused"
    file = wanted(Remote(server.url("/gone")), Remote(server.url("/wrong")), Remote(refused))
    message = fails(file, r"thing.bin could not be obtained. Tried:")
    for line in (
        f"{tmp_path / 'absent'}: not a folder",
        f"{own_cache / file.path}: not there",
        f"{server.url('/gone')}: download failed (404",
        f"{server.url('/wrong')}: not thing.bin, truncated or altered",
        f"{refused}: download failed",
        "get thing.bin from the attic",
        str(own_cache / "raw/thing/thing.bin"),
        "CT_DATA_HOME",
        file.sha256[0],
    ):
        assert line in message


def test_without_permission_to_download_nothing_is_asked(server):
    with pytest.raises(FileError, match="switched off"):
        fetch(wanted(Remote(server.url("/thing"))), allow_download=False)
    assert not server.requests


def test_a_file_behind_a_login_says_how_to_get_it():
    with pytest.raises(FileError, match=r"(?s)requires a login.*kaggle\.com.*cs-training\.csv"):
        fetch(FILES["cs-training.csv"])


def test_a_cache_that_cannot_be_written_is_said(server, tmp_path, monkeypatch):
    (tmp_path / "occupied").write_text("a file, not a folder")
    monkeypatch.setenv("CT_CACHE", str(tmp_path / "occupied"))
    with pytest.raises(FileError, match="Set CT_CACHE"):
        fetch(wanted(Remote(server.url("/thing"))))


def test_disk_full_is_said(server, own_cache, monkeypatch):
    def no_space(*args: object) -> None:
        raise OSError(28, "No space left on device")

    server.routes["/thing"] = serve(CONTENT)
    monkeypatch.setattr(os, "fsync", no_space)
    fails(wanted(Remote(server.url("/thing"))), "No space left.*Set CT_CACHE")


# ---- a network that misbehaves -------------------------------------------------------------------


def test_a_broken_connection_is_tried_again(server):
    server.routes["/thing"] = in_turn(serve(CONTENT, cut=30_000), serve(CONTENT))
    assert fetch(wanted(Remote(server.url("/thing")))).content == CONTENT


def test_a_connection_that_keeps_breaking_leaves_nothing(server):
    server.routes["/broken"] = serve(CONTENT, cut=30_000)
    fails(wanted(Remote(server.url("/broken"))), "download failed")


@pytest.mark.parametrize(
    "body", [b"", CONTENT[:-1], CONTENT[:-1] + b"!", b"<html>log in to the hotel</html>"]
)
def test_a_corrupt_answer_is_refused_and_the_next_source_used(server, body):
    server.routes["/bad"] = serve(body)
    server.routes["/good"] = serve(gzip.compress(CONTENT))
    fails(wanted(Remote(server.url("/bad"))), "truncated or altered")
    assert (
        fetch(wanted(Remote(server.url("/bad")), Remote(server.url("/good")))).content
        == CONTENT
    )


def test_a_stall_ends(server, monkeypatch):
    monkeypatch.setattr(download, "_STALL_SECONDS", 0.3)
    never = threading.Event()
    server.routes["/stall"] = serve(CONTENT, after=never)
    fails(wanted(Remote(server.url("/stall"))), "timed out")
    never.set()


def test_only_the_web_is_read(server, tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(CONTENT)
    fails(wanted(Remote(secret.as_uri())), "download failed")


def test_progress_is_shown_on_the_status_line(server, capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    server.routes["/thing"] = serve(CONTENT)
    fetch(wanted(Remote(server.url("/thing"))))
    shown = capsys.readouterr().err
    assert "thing.bin  ━━━━━━━━━━━━━━━━━━━━  0.1 MB" in shown and shown.endswith("\r\033[K")


# ---- archives ------------------------------------------------------------------------------------


def zip_of(**members: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name.replace("__", "../"), content)
    return out.getvalue()


def tar_of(*entries: tuple[str, bytes | str]) -> bytes:
    """Bytes make a regular file, a string makes a symbolic link."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, content in entries:
            info = tarfile.TarInfo(name)
            if isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
                archive.addfile(info)
            else:
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


HOSTILE = tar_of(("../../evil", b"evil"), ("/abs", b"e"), ("l", "/etc"), ("thing", CONTENT))
GOOD_ARCHIVES = {
    "zip": (zip_of(other=b"x", thing=CONTENT), "thing"),
    "tar": (tar_of(("a/other", b"x"), ("a/thing", CONTENT)), "a/thing"),
    "tar with dots": (tar_of(("./a/thing", CONTENT)), "a/thing"),
    "zip with a hostile neighbour": (zip_of(__evil=b"evil", thing=CONTENT), "thing"),
    "tar with hostile neighbours": (HOSTILE, "thing"),
}


@pytest.mark.parametrize("kind", GOOD_ARCHIVES)
def test_only_the_named_member_is_read(server, tmp_path, kind):
    body, member = GOOD_ARCHIVES[kind]
    server.routes["/archive"] = serve(body)
    assert fetch(wanted(Remote(server.url("/archive"), member))).content == CONTENT
    assert tree(tmp_path) == {"cache/raw/thing/thing.bin", "cache/locks/thing.bin.lock"}


BAD_ARCHIVES = {
    "no such member": (zip_of(other=CONTENT), "no item named 'thing'"),
    "no such member in tar": (tar_of(("other", CONTENT)), "no file 'thing'"),
    "altered member": (zip_of(thing=CONTENT[::-1]), "truncated or altered"),
    "symbolic link": (tar_of(("thing", "/etc/passwd")), "no file 'thing'"),
    "zip bomb": (
        zip_of(thing=b"\0" * 3_000_000),
        "not thing.bin, truncated or altered: found 1,000,000 bytes",
    ),
    "truncated zip": (zip_of(thing=CONTENT)[:-30], "cannot be unpacked"),
    "truncated tar": (tar_of(("thing", CONTENT))[:300], "cannot be unpacked"),
    "not an archive": (b"<html>sorry</html>", "cannot be unpacked"),
    "empty": (b"", "cannot be unpacked"),
}


@pytest.mark.parametrize("kind", BAD_ARCHIVES)
def test_a_bad_archive_changes_nothing(server, monkeypatch, kind):
    monkeypatch.setattr(download, "_MAX_BYTES", 1_000_000)
    body, reason = BAD_ARCHIVES[kind]
    server.routes["/archive"] = serve(body)
    fails(wanted(Remote(server.url("/archive"), "thing")), reason)


def test_an_archive_of_several_files_comes_once(server, own_cache, monkeypatch):
    server.routes["/all.zip"] = serve(zip_of(thing=CONTENT, other=b"other", bad=b"altered"))
    contents = {"thing": CONTENT, "other": b"other", "bad": b"genuine"}
    files = {
        name: wanted(Remote(server.url("/all.zip"), name), content=content, name=name)
        for name, content in contents.items()
    }
    monkeypatch.setattr(download, "FILES", files)
    assert fetch(files["thing"]).content == CONTENT
    assert fetch(files["other"]).content == b"other"
    assert len(server.requests) == 1
    assert tree(own_cache / "raw") == {"thing/thing", "thing/other"}
    with pytest.raises(FileError, match="truncated or altered"):
        fetch(files["bad"])


# ---- many processes ------------------------------------------------------------------------------


def ask(file: DataFile, start: Any, results: Any) -> None:
    """What a process does: it waits, and then asks for the file."""
    start.wait()
    found = fetch(file)
    results.put((len(found.content), found.origin.startswith("http")))


def test_processes_asking_at_once_download_once_and_a_killed_one_is_not_in_the_way(
    server, own_cache
):
    file = wanted(Remote(server.url("/thing")))
    context = multiprocessing.get_context("fork")
    first, rest, results = context.Event(), context.Event(), context.Queue()
    killed = fork(ask, file, first, results)
    others = [fork(ask, file, rest, results) for _ in range(2)]
    never = threading.Event()
    server.routes["/thing"] = serve(CONTENT, after=never)
    first.set()
    while not server.requests:
        time.sleep(0.02)
    killed.kill()
    killed.join()
    server.routes["/thing"] = serve(CONTENT)
    rest.set()
    assert sorted(results.get(timeout=300) for _ in others) == [
        (len(CONTENT), False),
        (len(CONTENT), True),
    ]
    assert len(server.requests) == 2
    never.set()


def test_threads_asking_at_once_download_once(server):
    all_ask = threading.Event()
    server.routes["/thing"] = serve(CONTENT, after=all_ask)
    file = wanted(Remote(server.url("/thing")))
    results: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: results.append(fetch(file).content)) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    all_ask.set()
    for thread in threads:
        thread.join()
    assert results == [CONTENT] * 4 and len(server.requests) == 1


def test_a_lock_that_is_held_is_said(tmp_path):
    lock = tmp_path / "a.lock"
    with (
        locked(lock, 1),
        pytest.raises(FileError, match="Another process has held"),
        locked(lock, 0),
    ):
        pass
    with locked(lock, 0):
        pass
    with pytest.raises(FileError, match="cannot be locked"), locked(tmp_path, 0):
        pass


# ---- the table -----------------------------------------------------------------------------------


def test_the_table_of_files_is_sound():
    for name, file in FILES.items():
        assert (
            name.removeprefix("fashion_mnist/") == file.name
            and not Path(file.path).is_absolute()
            and ".." not in file.path
        )
        assert all(len(digest) == 64 and int(digest, 16) for digest in file.sha256)
        assert all(remote.url.startswith("https://") for remote in file.remotes)
        assert file.remotes or "log in" in file.by_hand


@pytest.mark.skipif(not REAL_HOME, reason="CT_DATA_HOME is not set: no real data files at hand")
@pytest.mark.parametrize("name", list(FILES))
def test_real_files_are_the_ones_in_the_table(name, monkeypatch):
    monkeypatch.setenv("CT_DATA_HOME", REAL_HOME)
    if download.present(FILES[name]) is None:
        pytest.skip(f"{FILES[name].path} is not in CT_DATA_HOME")
    assert fetch(FILES[name], allow_download=False).path.is_relative_to(REAL_HOME)
