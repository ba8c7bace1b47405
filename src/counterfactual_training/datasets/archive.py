"""Reading one named file out of gzip, zip and tar.gz, in memory, up to a limit.

Nothing is ever extracted to disk, so no archive can write anywhere: path traversal and links have nothing to act on.
Sizes that an archive states about itself are not believed; reading stops at the limit.
"""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
import zlib
from typing import Protocol

from counterfactual_training.errors import FileError

GZIP_MAGIC = b"\x1f\x8b"
ZIP_MAGIC = b"PK\x03\x04"
# What a tar may unpack to before its member is reached, as a multiple of the member's own limit.
TAR_SLACK = 64
BROKEN = (OSError, EOFError, zlib.error, zipfile.BadZipFile, tarfile.TarError, RuntimeError, NotImplementedError)


class Readable(Protocol):
    """Anything that gives up to ``size`` bytes."""

    def read(self, size: int, /) -> bytes: ...


def unpack(data: bytes, name: str, max_bytes: int) -> bytes:
    """Content of a file that may be stored as it is, gzipped, or as member ``name`` of a zip."""
    if data.startswith(ZIP_MAGIC):
        return read_member(data, name, max_bytes)
    stream: Readable = io.BytesIO(data)
    if data.startswith(GZIP_MAGIC):
        stream = gzip.GzipFile(fileobj=io.BytesIO(data))
    try:
        return _read_up_to(stream, max_bytes, name)
    except BROKEN as error:
        raise FileError(f"{name} cannot be unpacked ({error})") from error


def read_member(data: bytes, member: str, max_bytes: int) -> bytes:
    """Content of one regular file inside a zip or a tar.gz."""
    read = _zip_member if data.startswith(ZIP_MAGIC) else _tar_member
    try:
        return read(io.BytesIO(data), member, max_bytes)
    except BROKEN as error:
        raise FileError(f"the archive cannot be read ({error})") from error


def _zip_member(stream: io.BytesIO, member: str, max_bytes: int) -> bytes:
    with zipfile.ZipFile(stream) as archive:
        if member not in archive.namelist():
            raise FileError(f"the zip has no member {member!r}")
        with archive.open(member) as content:
            return _read_up_to(content, max_bytes, member)


def _tar_member(stream: io.BytesIO, member: str, max_bytes: int) -> bytes:
    unpacked = _Capped(gzip.GzipFile(fileobj=stream), TAR_SLACK * max_bytes)
    with tarfile.open(fileobj=unpacked, mode="r|") as archive:
        for entry in archive:
            if entry.name.removeprefix("./") != member:
                continue
            content = archive.extractfile(entry) if entry.isreg() else None
            if content is None:
                raise FileError(f"the member {member!r} of the tar is not a regular file")
            return _read_up_to(content, max_bytes, member)
    raise FileError(f"the tar has no member {member!r}")


def _read_up_to(stream: Readable, max_bytes: int, name: str) -> bytes:
    content = stream.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise FileError(f"{name} holds more than the {max_bytes:,} bytes it may have")
    return content


class _Capped(io.RawIOBase):
    """A readable stream that refuses to give more than so many bytes in all."""

    def __init__(self, stream: Readable, max_bytes: int) -> None:
        self._stream = stream
        self._left = max_bytes

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        chunk = self._stream.read(size if 0 <= size <= self._left else self._left + 1)
        self._left -= len(chunk)
        if self._left < 0:
            raise FileError("the archive unpacks to far more than it may")
        return chunk
