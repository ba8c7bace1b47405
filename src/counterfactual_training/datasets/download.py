"""Find a data file in the user's folder or the cache, or download it from its official source.

Every file is checked by sha256 before it is used. A download enters the cache under a lock, by an
atomic rename.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
import tempfile
import warnings
import zipfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path

from counterfactual_training.datasets.sources import FILES, DataFile, Remote
from counterfactual_training.errors import FileError, from_outside
from counterfactual_training.persistence import atomic_write, locked
from counterfactual_training.progress import StatusLine, bar

LOCK_TIMEOUT = 1800.0
_STALL_SECONDS = 20.0
_GZIP = b"\x1f\x8b"
_ZIP = b"PK\x03\x04"
# The largest file has 47 MB. Reading stops here, so a small archive cannot fill the memory.
_MAX_BYTES = 100_000_000
_BROKEN = (
    OSError,
    EOFError,
    KeyError,
    RuntimeError,
    zlib.error,
    zipfile.BadZipFile,
    tarfile.TarError,
)


@dataclass(frozen=True)
class FetchedFile:
    """A checked file: where it is, where it came from, and its content."""

    path: Path
    origin: str
    content: bytes = field(repr=False)


def data_home() -> Path | None:
    """The user's own data folder, ``CT_DATA_HOME``; searched first, never written to."""
    value = os.environ.get("CT_DATA_HOME", "").strip()
    if value:
        return Path(value).expanduser()
    return None


def cache_home() -> Path:
    """Where downloads are kept: ``CT_CACHE``, or the platform's cache folder."""
    value = os.environ.get("CT_CACHE", "").strip()
    if value:
        return Path(value).expanduser()
    import pooch  # slow to import, and most users have all files already

    return Path(pooch.os_cache("counterfactual-training"))


def present(file: DataFile) -> Path | None:
    """The path of a file of this name on this machine; its content is not checked."""
    folders = [folder for folder in (data_home(), cache_home()) if folder is not None]
    return next(
        (path for folder in folders for path in _candidates(file, folder) if path.is_file()),
        None,
    )


def fetch(file: DataFile, *, allow_download: bool = True) -> FetchedFile:
    """The file from ``CT_DATA_HOME``, the cache, or the first source that has it.

    Raises:
        FileError: nothing worked; the message lists what was tried, and how to place the file by
            hand.
    """
    tried: list[str] = []
    home = data_home()
    if home is None:
        tried.append("CT_DATA_HOME: not set")
    elif not home.is_dir():
        tried.append(f"CT_DATA_HOME {home}: not a folder")
    elif fetched := _read_from(home, file, tried):
        return fetched
    fetched = _read_from(cache_home(), file, tried)
    if fetched is None and allow_download and file.remotes:
        locks = cache_home() / "locks"
        try:
            locks.mkdir(parents=True, exist_ok=True)
            with locked(locks / f"{file.name}.lock", LOCK_TIMEOUT):
                # Another process may have downloaded it while this one waited.
                fetched = _read_from(cache_home(), file, []) or _download(file, tried)
        except OSError as error:  # of the disk; those of the network are FileErrors by now
            what = f"{cache_home()} cannot be written ({error.strerror})"
            raise FileError(f"{what}. Set CT_CACHE to a folder that can be written.") from error
    if fetched is None:
        raise FileError(_explain(file, tried, allow_download))
    return fetched


# ---- on this machine -----------------------------------------------------------------------------


def _candidates(file: DataFile, folder: Path) -> list[Path]:
    names = (file.path, file.plain_path, f"{file.plain_path}.gz", f"{file.plain_path}.zip")
    return [folder / name for name in dict.fromkeys(names)]


def _read_from(folder: Path, file: DataFile, tried: list[str]) -> FetchedFile | None:
    candidates = _candidates(file, folder)
    existing = [path for path in candidates if path.is_file()]
    for path in existing:
        try:
            return FetchedFile(
                path, str(path), _checked(_unpack(path.read_bytes(), file.name), file)
            )
        except (FileError, OSError) as error:
            warnings.warn(f"{path} is not used: {error}", stacklevel=from_outside())
            tried.append(f"{path}: {error}")
    if not existing:
        tried.append(f"{candidates[0]}: not there")
    return None


def _unpack(data: bytes, member: str, is_archive: bool = False) -> bytes:
    """The content of a file that is stored plain, gzipped, or as ``member`` of a zip or
    (``is_archive``) tar.gz.

    Archives are read in memory. Nothing is extracted to disk, so no archive can write outside the
    cache.
    """
    stream = io.BytesIO(data)
    try:
        if data.startswith(_ZIP):
            with zipfile.ZipFile(stream) as archive, archive.open(member) as content:
                return content.read(_MAX_BYTES)
        if is_archive:
            with tarfile.open(fileobj=stream, mode="r:gz") as tar:
                entry = next(
                    entry
                    for entry in tar
                    if entry.name.removeprefix("./") == member and entry.isfile()
                )
                return tar.extractfile(entry).read(_MAX_BYTES)  # type: ignore[union-attr]  # it is a regular file
        if data.startswith(_GZIP):
            return gzip.GzipFile(fileobj=stream).read(_MAX_BYTES)
    except StopIteration:
        raise FileError(f"the archive has no file {member!r}") from None
    except _BROKEN as error:
        raise FileError(f"cannot be unpacked ({error}); truncated or altered") from error
    return data


def _checked(content: bytes, file: DataFile) -> bytes:
    digest = hashlib.sha256(content).hexdigest()
    if digest not in file.sha256:
        expected = " or ".join(f"{digest[:12]}…" for digest in file.sha256)
        content_text = f"{len(content):,} bytes with sha256 {digest[:12]}…"
        raise FileError(
            f"not {file.name}, truncated or altered: found {content_text}, expected {expected}"
        )
    return content


# ---- from the network ----------------------------------------------------------------------------


class _DownloadProgress:
    """The progress bar that pooch asks for, on the status line."""

    def __init__(self, name: str) -> None:
        self.line = StatusLine()
        self.name = name
        self.total = 0
        self.done = 0

    def update(self, num_bytes: int) -> None:
        self.done += num_bytes
        if self.total:
            share = self.done / self.total
        else:
            share = 0.0
        self.line.show(f"{self.name}  {bar(share)}  {self.done / 1e6:.1f} MB")

    def reset(self) -> None:
        self.done = 0

    def close(self) -> None:
        self.line.close()


def _download(file: DataFile, tried: list[str]) -> FetchedFile | None:
    """The file from its sources in turn, stored in the cache."""
    for remote in file.remotes:
        try:
            data = _retrieve(remote.url, file.name)
            content = _checked(
                _unpack(data, remote.member or file.name, remote.member is not None), file
            )
        except FileError as error:
            tried.append(f"{remote.url}: {error}")
            continue
        path = _store(content, file)
        _store_others(data, remote, file)
        return FetchedFile(path, remote.url, content)
    return None


def _retrieve(url: str, name: str) -> bytes:
    import pooch

    progress = _DownloadProgress(name)
    downloader = pooch.HTTPDownloader(progressbar=progress, timeout=_STALL_SECONDS)
    pooch.get_logger().setLevel("WARNING")
    with tempfile.TemporaryDirectory(dir=cache_home()) as folder:
        # No hash here: those of the archives are not published. The file inside is checked instead.
        source = pooch.create(
            folder, base_url="", registry={name: None}, urls={name: url}, retry_if_failed=1
        )
        try:
            return Path(source.fetch(name, downloader=downloader)).read_bytes()
        except (OSError, ValueError) as error:  # those of requests are OSErrors
            raise FileError(f"download failed ({error})") from error
        finally:
            progress.close()


def _store(content: bytes, file: DataFile) -> Path:
    target = cache_home() / file.plain_path
    atomic_write(target, content)
    for other in _candidates(file, cache_home()):
        if other != target:  # an altered copy: a good one would have been used
            other.unlink(missing_ok=True)
    return target


def _store_others(data: bytes, remote: Remote, file: DataFile) -> None:
    """Keep the other data files of a downloaded archive, so that it is not downloaded again."""
    for other in FILES.values():
        members = [
            r.member for r in other.remotes if r.url == remote.url and r.member is not None
        ]
        if other != file and members and present(other) is None:
            try:
                _store(_checked(_unpack(data, members[0], is_archive=True), other), other)
            except FileError:
                continue  # reported when this file is asked for


def _explain(file: DataFile, tried: list[str], allow_download: bool) -> str:
    lines = [f"{file.name} could not be obtained. Tried:", *(f"  - {entry}" for entry in tried)]
    if not allow_download:
        lines.append("  - downloading was switched off")
    elif not file.remotes:
        lines.append("  - its source requires a login")
    lines += [
        f"To place it by hand, get {file.by_hand}",
        f"and put it, plain, gzipped or zipped, at {cache_home() / file.plain_path}",
        f"or at {file.plain_path} in a folder named by the environment variable CT_DATA_HOME.",
        f"Its sha256 (unpacked) must be {' or '.join(file.sha256)}.",
    ]
    return "\n".join(lines)
