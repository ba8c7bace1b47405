"""The fingerprint of a run: a digest of its values, tensors and code."""

from __future__ import annotations

import dis
import functools
import hashlib
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from enum import Enum
from pickle import PickleError
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from counterfactual_training.torch_internals import module_hooks
from counterfactual_training.training.callbacks import Callback
from counterfactual_training.training.rows import DrawnRows, FetchedRows
from counterfactual_training.training.run import Run

_BLOCK = 2**24  # bytes hashed at once: rows on disk may not fit into memory
_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.Size, Enum)
# Code of these packages is identified by its name, not by its content.
_NAMED_PACKAGES = {
    "counterfactual_training",
    "counterfactual_lab",
    "counterfactual_serve",
    "torch",
    "numpy",
    "builtins",
    *sys.stdlib_module_names,
}
_OF_MODULES = vars(nn.Module()).keys()
# The initial rate is added separately: schedulers change the current one.
_SCHEDULED = (
    "params",
    "lr",
    "initial_lr",
)


def fingerprint(run: Run) -> str:
    """A digest of everything that decides what a run computes, except its initial weights."""
    digest = Digest()
    for model in run.models:
        digest.add_trained(model)
        # Parts in eval mode stay there.
        digest.add([module.training for module in model.modules()])
    _add_inputs(digest, run)
    groups = run.optimizer.param_groups
    digest.add(
        [
            run.members,
            type(run.optimizer),
            [group.get("initial_lr", group["lr"]) for group in groups],
        ]
    )
    digest.add([{k: v for k, v in group.items() if k not in _SCHEDULED} for group in groups])
    deciding = _deciding(run)
    for callback in deciding:
        digest.add(
            [
                type(callback),
                {k: v for k, v in vars(callback).items() if k not in _state_names(callback)},
            ]
        )
    if deciding and run.validation is not None:
        held = run.validation
        digest.add([held.y, held.first(64)[0] if isinstance(held, FetchedRows) else held.x])
    return digest.hexdigest()


def _deciding(run: Run) -> list[Callback]:
    """The callbacks that may change what is computed."""
    listening = [*run.listeners("state_dict"), *run.listeners("before_step")]
    return [callback for callback in run.callbacks if callback in listening]


def fingerprint_of_inputs(run: Run) -> str:
    """A digest of rows and settings, which all processes must share; their models may differ."""
    digest = Digest()
    for model in run.models:
        digest.know(model)
    _add_inputs(digest, run)
    return digest.hexdigest()


def _add_inputs(digest: Digest, run: Run) -> None:
    data = run.data
    size = run.config.batch_size
    for method in run.methods:
        # A run may continue with other threads.
        config = asdict(method.training) | {"threads": None}
        digest.add(
            [config, method.generator, method.constraints, method.objective, method.budget]
        )
        digest.add([method.loss, method.find, method.remember, dict(method.numbers)])
    digest.add([data.y, data.weight])
    # Reading all fetched rows would cost another epoch: their classes and the first rows must do.
    if isinstance(data, FetchedRows):
        digest.add([data.first(64)[0], [type(sampler) for sampler in data.samplers]])
        digest.add([data.num_batches(size), data.smallest_batch(size)])
    else:
        digest.add(data.x)
    if isinstance(data, DrawnRows):
        digest.add(data.places)


def _state_names(callback: Callback) -> set[str]:
    """The attributes that a callback changes during training."""
    try:
        return set(callback.state_dict())
    except AttributeError:
        return set()


class Digest:
    """SHA-256 of nested values: each by type and content, functions by code and closures."""

    def __init__(self) -> None:
        self.sha = hashlib.sha256()
        self.seen = dict[
            int, tuple[Any, bytes]
        ]()  # keeps the objects alive, so that no id is reused

    def hexdigest(self) -> str:
        return self.sha.hexdigest()

    def add(self, value: Any) -> None:
        if isinstance(value, _PLAIN):
            self._plain(value)
        elif id(value) in self.seen:
            self.sha.update(self.seen[id(value)][1])
        else:
            # By its own digest, so that it makes no difference whether two places share an object
            # or hold equal ones.
            outer = self.sha
            self.sha = hashlib.sha256()
            # Ends the recursion of objects that hold themselves.
            self.seen[id(value)] = (
                value,
                b"what contains this",
            )
            self._content(value)
            self.seen[id(value)] = value, self.sha.digest()
            outer.update(self.sha.digest())
            self.sha = outer

    def know(self, model: nn.Module) -> None:
        """Identify a trained model by names and shapes wherever it occurs, because training changes
        its weights.
        """
        self.seen |= {
            id(module): (module, f"module {name}".encode())
            for name, module in model.named_modules()
        }
        self.seen |= {
            id(p): (p, f"{p.dtype} {tuple(p.shape)}".encode()) for p in model.parameters()
        }

    def add_trained(self, model: nn.Module) -> None:
        """A model by its shapes, code and constants."""
        self.know(model)
        for name, module in model.named_modules():
            installed = _is_installed(type(module).__module__)
            # Private attributes of torch's modules follow from the rest; their buffers are
            # statistics.
            attributes = {
                k: v
                for k, v in vars(module).items()
                if k not in _OF_MODULES and not (installed and k.startswith("_"))
            }
            weights = [
                [part, w.requires_grad, w] for part, w in module.named_parameters(recurse=False)
            ]
            self.add([name, type(module), attributes, module_hooks(module), weights])
            if not installed:
                self.add(dict(module.named_buffers(recurse=False)))

    def _content(self, value: Any) -> None:
        self._plain(type(value).__qualname__)
        if isinstance(value, Tensor):
            self._tensor(value)
        elif isinstance(value, nn.Module):
            self.add_trained(value)
            self.add(dict(value.state_dict()))  # of another network, such as a VAE
        elif isinstance(value, list | tuple):
            self._plain(len(value))
            for item in value:
                self.add(item)
        else:
            self.add(_parts(value))

    def _plain(self, value: Any) -> None:
        if isinstance(value, bytes):
            content = value
        else:
            content = f"{type(value).__name__} {value!r}".encode()
        self.sha.update(len(content).to_bytes(8, "little") + content)

    def _tensor(self, value: Tensor) -> None:
        self._plain(f"{value.dtype} {tuple(value.shape)}")
        if value.is_contiguous():
            rows = value.detach().reshape(-1)
        else:
            rows = value.detach()
        size = max(1, rows[:1].numel() * rows.element_size())
        for block in rows.split(max(1, _BLOCK // size)):
            self.sha.update(block.cpu().contiguous().reshape(-1).view(torch.uint8).numpy())


def _parts_of_function(function: types.FunctionType) -> list[Any]:
    parts = [function.__qualname__, list(function.__closure__ or ())]
    if _is_installed(function.__module__):
        return [*parts, function.__module__]
    code = function.__code__
    around = function.__globals__
    used = {name: around[name] for name in _names(code, "LOAD_GLOBAL") if name in around}
    for name, value in list(used.items()):  # constants of the user's other modules
        if isinstance(value, types.ModuleType) and not _is_installed(value.__name__):
            attributes = _names(code, "LOAD_ATTR", "LOAD_METHOD")
            used |= {
                f"{name}.{attribute}": vars(value)[attribute]
                for attribute in attributes
                if attribute in vars(value)
            }
    return [*parts, code, function.__defaults__, function.__kwdefaults__, used]


def _names(code: types.CodeType, *operations: str) -> list[str]:
    """Names loaded by these operations, including inner functions."""
    loaded = [step.argval for step in dis.get_instructions(code) if step.opname in operations]
    within = [const for const in code.co_consts if isinstance(const, types.CodeType)]
    return list(
        dict.fromkeys(
            [*loaded, *(name for inner in within for name in _names(inner, *operations))]
        )
    )


def _parts_of_cell(cell: types.CellType) -> list[Any]:
    """A variable of a closure, which may have no value yet."""
    try:
        return [cell.cell_contents]
    except ValueError:
        return []


def _parts_of_class(kind: type) -> list[Any]:
    parts: list[Any] = [kind.__module__, kind.__qualname__]
    if _is_installed(kind.__module__):
        return parts
    # Of the attributes that Python itself adds, only code matters.
    members = {k: v for k, v in vars(kind).items() if callable(v) or not k.startswith("__")}
    return [*parts, kind.__bases__, members]


def _parts_of_instance(value: Any) -> list[Any]:
    """Any other object by its pickle state, without cached properties."""
    try:
        parts: Any = value.__reduce_ex__(4)
    except (TypeError, PickleError, AttributeError, NotImplementedError, RuntimeError):
        if hasattr(value, "__dict__"):
            parts = vars(value)
        else:
            parts = getattr(value, "__name__", None)
    contents: list[Any] = [type(value)]
    for part in parts if isinstance(parts, tuple) else [parts]:
        if isinstance(part, dict):
            cached = functools.cached_property
            part = {
                k: v
                for k, v in part.items()
                if not isinstance(getattr(type(value), str(k), None), cached)
            }
        contents.append(list(part) if isinstance(part, Iterator) else part)
    return contents


# The parts of a value, which can be digested in turn; the first kind that fits counts.
_PARTS: list[tuple[Any, Callable[[Any], Any]]] = [
    (Mapping, lambda value: [[key, item] for key, item in value.items()]),
    (set | frozenset, lambda value: sorted(_digest(item) for item in value)),
    (
        np.generic | np.ndarray,
        lambda v: [str(v.dtype), v.shape, v.tolist() if v.dtype.hasobject else v.tobytes()],
    ),
    (types.FunctionType, _parts_of_function),
    (
        types.CodeType,
        lambda code: [code.co_code, code.co_consts, code.co_names, code.co_freevars],
    ),
    (types.CellType, _parts_of_cell),
    (types.ModuleType, lambda module: module.__name__),
    (type, _parts_of_class),
    (torch.device, lambda device: device.type),  # each process has its own index
    (property, lambda value: value.fget),
]


def _parts(value: Any) -> Any:
    for kind, parts in _PARTS:
        if isinstance(value, kind):
            return parts(value)
    # Methods of a class, static ones and cached functions wrap a function.
    if hasattr(value, "__wrapped__"):
        return value.__wrapped__
    return _parts_of_instance(value)


def _is_installed(module: str | None) -> bool:
    """Whether code is identified by its name: this package, the standard library, installed
    packages.
    """
    top = (module or "").partition(".")[0]
    place = getattr(sys.modules.get(top), "__file__", None) or ""
    return top in _NAMED_PACKAGES or "site-packages" in place or "dist-packages" in place


def _digest(value: Any) -> str:
    digest = Digest()
    digest.add(value)
    return digest.hexdigest()
