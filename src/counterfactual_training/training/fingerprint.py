"""Tell one run from another by what its parts are: values, tensors and code, not how they print."""

from __future__ import annotations

import dis
import functools
import hashlib
import sys
import types
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pickle import PickleError
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from counterfactual_training.training.callbacks import Callback
from counterfactual_training.training.rows import FetchedRows
from counterfactual_training.training.run import Run

_BLOCK = 2**24  # bytes hashed at once, so that rows on disk need not fit into memory
_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)
# What a class may hold that decides what its objects do.
_TOLD = (Tensor, np.ndarray, list, tuple, dict, set, frozenset, types.FunctionType, functools.partial, type)
# Code of these packages is told by its name, not by its content.
_KNOWN = {"counterfactual_training", "torch", "numpy", "builtins", *sys.stdlib_module_names} - {"__main__"}
_OF_MODULES = vars(nn.Module()).keys()
_OF_CLASSES = {
    "__module__", "__doc__", "__dict__", "__weakref__", "__annotations__", "__qualname__", "__firstlineno__",
    "__static_attributes__", "__slotnames__",
}  # fmt: skip
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_SCHEDULED = ("params", "lr", "initial_lr")  # the rate is told as it was before a scheduler changed it


def fingerprint(run: Run) -> str:
    """A digest of all that decides what a run computes, except the weights it starts from."""
    digest = Digest()
    digest.add([run.members, run.epochs])
    for model, setting in zip(run.models, run.settings, strict=True):
        digest.add_trained(model)
        config = {field.name: getattr(setting.config, field.name) for field in fields(setting.config)}
        del config["threads"]
        digest.add([config, setting.generator, setting.constraints, setting.objective])
    groups = [{k: v for k, v in group.items() if k not in _SCHEDULED} for group in run.optimizer.param_groups]
    rates = [group.get("initial_lr", group["lr"]) for group in run.optimizer.param_groups]
    digest.add([type(run.optimizer), groups, rates])
    digest.add([run.data.y, run.data.weight])
    # Rows fetched one by one are told by their classes and the first of them; reading all would be another epoch.
    if isinstance(run.data, FetchedRows):
        digest.add([run.data.first(64)[0], [type(own) for own in run.data.samplers]])
        digest.add([run.data.num_batches(run.config.batch_size), run.data.smallest_batch(run.config.batch_size)])
    else:
        digest.add(run.data.x)
    deciding = [c for c in run.callbacks if c in run.stateful_callbacks or c in run.listeners("before_step")]
    for callback in deciding:
        digest.add([type(callback), {k: v for k, v in vars(callback).items() if k not in _state_names(callback)}])
    if deciding and run.validation is not None:
        digest.add([run.validation.y, run.validation.first(64)[0]])
    return digest.hexdigest()


def _state_names(callback: Callback) -> set[str]:
    """What a callback changes while it listens; it may have none before its first run."""
    try:
        return set(callback.state_dict())
    except AttributeError:
        return set()


class Digest:
    """SHA-256 of nested things: each by its type and its content, functions by their code and what they hold."""

    def __init__(self) -> None:
        self.sha = hashlib.sha256()
        self.seen = dict[int, tuple[Any, bytes]]()  # the objects too, so that no other one gets their address
        self.trained = set[int]()

    def hexdigest(self) -> str:
        return self.sha.hexdigest()

    def add(self, value: Any) -> None:
        if isinstance(value, (*_PLAIN, Enum)):
            self._text(f"{type(value).__name__} {value!r}")
        elif id(value) in self.seen:
            self.sha.update(self.seen[id(value)][1])
        else:
            outer, self.sha = self.sha, hashlib.sha256()
            self.seen[id(value)] = value, b"what contains this"
            self._object(value)
            self.seen[id(value)] = value, self.sha.digest()
            self.sha = outer
            self.add(value)

    def add_trained(self, model: nn.Module) -> None:
        """A model by its shape, code and constants; its weights are what training changes."""
        self.trained |= {id(parameter) for parameter in model.parameters()}
        self.seen |= {id(module): (module, f"module {name}".encode()) for name, module in model.named_modules()}
        for name, module in model.named_modules():
            self._text(name)
            self.add(type(module))
            own = {k: v for k, v in vars(module).items() if k not in _OF_MODULES}
            if _is_known(type(module).__module__):  # what torch's modules keep for themselves follows from the rest
                own = {k: v for k, v in own.items() if not k.startswith("_")}
            self.add(own)
            for hooks in _HOOKS:
                self.add(list(getattr(module, hooks).values()))
            for part, weight in module.named_parameters(recurse=False):
                self._text(f"{part} {weight.requires_grad}")
                self.add(weight)
            if not _is_known(type(module).__module__):  # those of torch's modules are statistics
                self.add(dict(module.named_buffers(recurse=False)))

    def _object(self, value: Any) -> None:
        self._text(type(value).__qualname__)
        if isinstance(value, Tensor):
            self._tensor(value)
        elif isinstance(value, np.generic | np.ndarray):
            self._array(np.asarray(value))
        elif isinstance(value, Mapping):
            self.add([[key, item] for key, item in value.items()])
        elif isinstance(value, set | frozenset):
            self.add(sorted(_digest(item) for item in value))
        elif isinstance(value, list | tuple | deque):
            self._text(str(len(value)))
            for item in value:
                self.add(item)
        elif isinstance(value, types.FunctionType):
            self._function(value)
        elif isinstance(value, types.CodeType):
            self.add([value.co_code, value.co_consts, value.co_names, value.co_freevars])
        elif isinstance(value, types.ModuleType):
            self._text(value.__name__)
        elif isinstance(value, type):
            self._class(value)
        elif isinstance(value, nn.Module):
            self.add_trained(value)
            self.add(dict(value.state_dict()))  # of a network that is not the one trained, such as a VAE
        elif isinstance(value, functools.partial):
            self.add([value.func, value.args, value.keywords])
        elif isinstance(value, types.MethodType):
            self.add([value.__func__, value.__self__])
        else:
            self._instance(value)

    def _instance(self, value: Any) -> None:
        """Anything else, by what a copy of it would be made from."""
        self._class(type(value))
        if is_dataclass(value) and _is_known(type(value).__module__):
            self.add({field.name: getattr(value, field.name) for field in fields(value)})  # not what it has cached
            return
        try:
            parts: Any = value.__reduce_ex__(4)
        except (TypeError, PickleError, AttributeError, NotImplementedError, RuntimeError):
            parts = vars(value) if hasattr(value, "__dict__") else getattr(value, "__name__", None)
        for part in parts if isinstance(parts, tuple) else [parts]:
            if isinstance(part, dict):
                part = {k: v for k, v in part.items() if not _is_cached(type(value), k)}
            if not isinstance(part, Iterator):
                self.add(part)

    def _function(self, function: types.FunctionType) -> None:
        self._text(function.__qualname__)
        if _is_known(function.__module__):
            self._text(function.__module__)
        else:
            self.add([function.__code__, function.__defaults__, function.__kwdefaults__])
            around = function.__globals__
            used = {name: around[name] for name in _names(function.__code__, "LOAD_GLOBAL") if name in around}
            for name, value in list(used.items()):  # constants of the user's other modules
                if isinstance(value, types.ModuleType) and not _is_known(value.__name__):
                    attributes = _names(function.__code__, "LOAD_ATTR", "LOAD_METHOD")
                    used |= {f"{name}.{own}": vars(value)[own] for own in attributes if own in vars(value)}
            self.add(used)
        cells = function.__closure__ or ()
        self.add([cell.cell_contents for cell in cells if _filled(cell)])

    def _class(self, kind: type) -> None:
        self._text(f"{kind.__module__}.{kind.__qualname__}")
        if not _is_known(kind.__module__):
            self.add([base for base in kind.__bases__ if base is not object])
            for name, value in vars(kind).items():
                if name not in _OF_CLASSES:
                    self._text(name)
                    inner = _inner(value)
                    self.add(inner if isinstance(inner, (*_PLAIN, *_TOLD)) else type(inner).__name__)

    def _array(self, value: np.ndarray) -> None:
        self._text(f"{value.dtype} {value.shape}")
        if value.dtype.hasobject:
            self.add(value.tolist())
        else:
            self.sha.update(np.ascontiguousarray(value).tobytes())

    def _tensor(self, value: Tensor) -> None:
        self._text(f"{value.dtype} {tuple(value.shape)}")
        if id(value) in self.trained:
            return
        flat = value.detach().reshape(-1) if value.is_contiguous() else None
        rows = (flat if flat is not None else value.detach()) if value.dim() else value.detach().reshape(1)
        each = max(1, rows[:1].numel() * rows.element_size())
        for block in rows.split(max(1, _BLOCK // each)):
            content = block.cpu().contiguous()
            if content.numel():
                self.sha.update(content.reshape(-1).view(torch.uint8).numpy().data)

    def _text(self, text: str) -> None:
        content = text.encode()
        self.sha.update(len(content).to_bytes(8, "little") + content)


def _names(code: types.CodeType, *operations: str) -> list[str]:
    """What is loaded by these operations, also in functions within."""
    own = [step.argval for step in dis.get_instructions(code) if step.opname in operations]
    within = [const for const in code.co_consts if isinstance(const, types.CodeType)]
    return list(dict.fromkeys([*own, *(name for inner in within for name in _names(inner, *operations))]))


def _inner(value: Any) -> Any:
    """The function inside what a decorator has made of it."""
    if isinstance(value, property):
        return value.fget
    if isinstance(value, staticmethod | classmethod):
        return value.__func__
    return value.func if isinstance(value, functools.cached_property) else value


def _is_cached(kind: type, name: Any) -> bool:
    return isinstance(name, str) and isinstance(getattr(kind, name, None), functools.cached_property)


def _is_known(module: str | None) -> bool:
    """Whether code is told by its name: that of this package, of the standard library, of installed packages."""
    top = (module or "").partition(".")[0]
    place = getattr(sys.modules.get(top), "__file__", None) or ""
    return top in _KNOWN or "site-packages" in place or "dist-packages" in place


def _digest(value: Any) -> str:
    digest = Digest()
    digest.add(value)
    return digest.hexdigest()


def _filled(cell: types.CellType) -> bool:
    """Whether the variable of a closure has a value yet."""
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True
