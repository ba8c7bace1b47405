"""Files that are never half-written and never execute code: tensors and JSON in one safetensors
file.

The JSON part is stored in the file's metadata, so that one atomic rename publishes both.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from counterfactual_training.errors import FileError, InputError

_KEY = "counterfactual_training"


def atomic_write(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file so that a reader sees either the old or the new content, even after a crash."""
    with atomic_file(path) as file:
        file.write(content)


@contextmanager
def atomic_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file to write in parts; it replaces the target once it is complete, and is removed if it
    never is.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0o077)  # it can only be read by setting it
        os.umask(umask)
        # Mkstemp creates files that only the owner can read; open() does not.
        Path(name).chmod(0o666 & ~umask)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


@contextmanager
def locked(path: Path, timeout: float) -> Iterator[None]:
    """Hold a lock on a file, waiting up to ``timeout`` seconds; the system releases it when its
    holder ends.
    """
    lock = FileLock(path)
    try:
        lock.acquire(timeout=timeout)
    except Timeout:
        raise FileError(
            f"Another process has held {path} for {timeout:g} s. Wait for it, or end it.",
            code="locked",
        ) from None
    except (OSError, NotImplementedError) as error:
        raise FileError(
            f"{path} cannot be locked ({error}); use a folder on a local file system."
        ) from error
    try:
        yield
    finally:
        lock.release()


def save_file(
    path: str | os.PathLike[str],
    kind: str,
    tensors: Mapping[str, Tensor],
    content: Mapping[str, Any],
) -> None:
    """Save tensors and JSON-able content as one file of the given kind."""
    # safetensors does not accept tensors that share memory, so clone them.
    plain = {
        name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()
    }
    text = json.dumps(content)
    header = {"kind": kind, "format": 1, "sha256": _digest(plain, text), "content": text}
    atomic_write(path, save(plain, metadata={_KEY: json.dumps(header)}))


def file_kind(path: str | os.PathLike[str]) -> str:
    """The kind of a file that :func:`save_file` wrote; raises for any other file."""
    path = Path(path)
    with _reading(path), safe_open(path, framework="pt", device="cpu") as file:
        return str(json.loads((file.metadata() or {})[_KEY])["kind"])


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Errors met while reading a file say that it is not one of ours."""
    if not path.is_file():
        raise FileError(f"There is no file {str(path)!r}.", code="no_file")
    try:
        yield
    except (SafetensorError, OSError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise FileError(
            f"{str(path)!r} is not a file of this package, or is damaged ({type(error).__name__})."
        ) from error


def load_file(
    path: str | os.PathLike[str], kind: str
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and content of a file that :func:`save_file` wrote; raises for any other file."""
    path = Path(path)
    with _reading(path), safe_open(path, framework="pt", device="cpu") as file:
        header = json.loads((file.metadata() or {})[_KEY])
        # Clones are aligned like torch's own tensors; with other alignments the same sums may
        # round differently.
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 - not a dict
        content_kind = header["kind"]
        version = header["format"]
        text = header["content"]
        digest = header["sha256"]
        content = json.loads(text)
    if digest != _digest(tensors, text):
        raise FileError(f"{str(path)!r} is damaged: its content does not match its checksum.")
    if content_kind != kind or version != 1:
        raise FileError(
            f"{str(path)!r} holds {content_kind!r} (format {version}), expected {kind!r} (format "
            "1).",
            code="other_kind",
            expected=kind,
        )
    if not isinstance(content, dict):
        raise FileError(f"{str(path)!r} is damaged: its content is not a JSON object.")
    return tensors, content


@contextmanager
def blaming_file(path: str | os.PathLike[str]) -> Iterator[None]:
    """Errors met while making something of a file's content say that the file is damaged."""
    try:
        yield
    except FileError:  # already says what is wrong
        raise
    except (
        InputError,
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        IndexError,
        ArithmeticError,
    ) as error:
        raise FileError(f"{str(path)!r} is damaged or was altered: {error}") from error


def _digest(tensors: Mapping[str, Tensor], text: str) -> str:
    """Checksum of a file's content against accidental damage; not security-sensitive."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(
            tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
        )
    return digest.hexdigest()


def flatten_state(state: Any, prefix: str = "") -> tuple[dict[str, Tensor], Any]:
    """Split a nested state dict into tensors by path and JSON with a placeholder for each
    tensor.
    """
    if isinstance(state, Tensor):
        return {prefix: state}, {"tensor": prefix}
    if isinstance(state, Mapping):
        tensors: dict[str, Tensor] = {}
        items = []
        for i, (key, value) in enumerate(state.items()):
            if not isinstance(key, (str, int)):
                raise FileError(
                    f"Cannot save a state with key {key!r} of type {type(key).__name__}."
                )
            # Unique, even if a key contains a slash.
            inner, plain = flatten_state(value, f"{prefix}/{i}:{key}")
            tensors |= inner
            items.append([key, plain])
        return tensors, {"dict": items}
    if isinstance(state, (list, tuple)):
        parts = [flatten_state(value, f"{prefix}/{i}") for i, value in enumerate(state)]
        return {k: v for inner, _ in parts for k, v in inner.items()}, {
            "list": [plain for _, plain in parts]
        }
    if state is None or isinstance(state, (bool, int, float, str)):
        return {}, {"value": state}
    raise FileError(f"Cannot save {type(state).__name__} without pickle.")


def unflatten_state(tensors: Mapping[str, Tensor], plain: Any) -> Any:
    """Inverse of :func:`flatten_state`; tuples come back as lists."""
    if not isinstance(plain, dict) or len(plain) != 1:
        raise FileError("The file is damaged: its table of contents cannot be parsed.")
    ((kind, value),) = plain.items()
    if kind == "tensor":
        if value not in tensors:
            raise FileError(f"The file is damaged: tensor {value!r} is missing.")
        return tensors[value]
    if kind == "dict":
        return {key: unflatten_state(tensors, inner) for key, inner in value}
    if kind == "list":
        return [unflatten_state(tensors, inner) for inner in value]
    return value


def load_weights(module: torch.nn.Module, state: Mapping[str, Tensor], source: str) -> None:
    """Load weights into a module; raise, and leave it unchanged, if they do not fit."""
    before = copy.deepcopy(module.state_dict())
    try:
        module.load_state_dict(dict(state))
    except RuntimeError as error:
        module.load_state_dict(before)  # torch has already copied the weights that fit
        detail = str(error).splitlines()[-1].strip()
        raise FileError(f"The weights in {source!r} do not fit this model: {detail}") from error
