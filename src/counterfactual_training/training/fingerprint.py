"""Tell one run from another by what its parts are: values, tensors and code, not how they print."""

from __future__ import annotations

import functools
import hashlib
import sys
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from counterfactual_training.training.rows import FetchedRows
from counterfactual_training.training.run import Run

_BLOCK = 2**24  # bytes hashed at once, so that rows on disk need not fit into memory
_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)
# Code of these packages is told by name and version of the interpreter's environment, not by its content.
_KNOWN = {"counterfactual_training", "torch", "numpy", "builtins", *sys.stdlib_module_names} - {"__main__"}


def fingerprint(run: Run) -> str:
    """A digest of all that decides what a run computes, except the weights it starts from."""
    digest = Digest()
    digest.add([run.members, run.epochs])
    for model, setting in zip(run.models, run.settings, strict=True):
        digest.add_trained(model)
        threads = {field.name: getattr(setting.config, field.name) for field in fields(setting.config)}
        del threads["threads"]
        digest.add([threads, setting.generator, setting.constraints, setting.objective])
    groups = [{k: v for k, v in group.items() if k != "params"} for group in run.optimizer.param_groups]
    digest.add([type(run.optimizer), groups])
    digest.add([run.data.y, run.data.weight])
    # Rows fetched one by one are told by their classes and the first of them; reading all would be another epoch.
    if isinstance(run.data, FetchedRows):
        digest.add([run.data.first(64)[0], [type(own) for own in run.data.samplers]])
        digest.add([run.data.num_batches(run.config.batch_size), run.data.last_batch(run.config.batch_size)])
    else:
        digest.add(run.data.x)
    digest.add([callback for callback in run.stateful_callbacks])
    return digest.hexdigest()


class Digest:
    """SHA-256 of nested things; each is told by its type and its content, functions by their code and what they hold."""

    def __init__(self) -> None:
        self.sha, self.seen = hashlib.sha256(), dict[int, Any]()

    def hexdigest(self) -> str:
        return self.sha.hexdigest()

    def add(self, value: Any) -> None:
        if isinstance(value, _PLAIN) or isinstance(value, Enum):
            self._text(f"{type(value).__name__} {value!r}")
        elif isinstance(value, np.generic | np.ndarray):
            self.add(torch.from_numpy(np.ascontiguousarray(value)) if value.dtype.kind in "biuf" else str(value))
        elif isinstance(value, Tensor):
            self._tensor(value)
        elif id(value) in self.seen:
            self._text("seen")
        else:
            self.seen[id(value)] = value  # kept, so that no other object gets its address
            self._object(value)

    def add_trained(self, model: nn.Module) -> None:
        """A model by its shape, code and constants; its weights are what training changes."""
        for name, module in model.named_modules():
            self._text(name)
            self.add(type(module))
            own = {k: v for k, v in vars(module).items() if not k.startswith("_") and k != "training"}
            self.add({k: v for k, v in own.items() if isinstance(v, _PLAIN) or callable(v)})
            for hooks in (module._forward_hooks, module._forward_pre_hooks):
                self.add(list(hooks.values()))
            for part, weight in module.named_parameters(recurse=False):
                self._text(f"{part} {tuple(weight.shape)} {weight.dtype} {weight.requires_grad}")
            if not getattr(module, "track_running_stats", False):
                self.add(dict(module.named_buffers(recurse=False)))

    def _object(self, value: Any) -> None:
        self._text(type(value).__qualname__)
        if isinstance(value, Mapping):
            self.add([[key, item] for key, item in value.items()])
        elif isinstance(value, list | tuple | set | frozenset):
            items = sorted(value, key=repr) if isinstance(value, set | frozenset) else value
            self._text(str(len(items)))
            for item in items:
                self.add(item)
        elif isinstance(value, types.FunctionType):
            self._function(value)
        elif isinstance(value, types.MethodType):
            self.add([value.__func__, value.__self__])
        elif isinstance(value, functools.partial):
            self.add([value.func, value.args, value.keywords])
        elif isinstance(value, types.CodeType):
            self.add([value.co_code, value.co_consts, value.co_names, value.co_freevars])
        elif isinstance(value, type):
            self._class(value)
        elif isinstance(value, nn.Module):
            self.add_trained(value)
            self.add(dict(value.state_dict()))
        elif is_dataclass(value):
            self._class(type(value))
            self.add({field.name: getattr(value, field.name) for field in fields(value)})
        else:
            self._class(type(value))
            self.add(dict(getattr(value, "__dict__", {})))

    def _function(self, function: types.FunctionType) -> None:
        self._text(function.__qualname__)
        if _is_known(function.__module__):
            self._text(function.__module__)
        else:
            self.add([function.__code__, function.__defaults__, function.__kwdefaults__])
            used = {name: function.__globals__.get(name) for name in function.__code__.co_names}
            # Of the module around it: constants and functions; other modules and classes have names of their own.
            told = (*_PLAIN, Tensor, tuple, types.FunctionType)
            self.add({name: value for name, value in used.items() if isinstance(value, told)})
        cells = function.__closure__ or ()
        self.add([cell.cell_contents for cell in cells if _filled(cell)])

    def _class(self, kind: type) -> None:
        self._text(f"{kind.__module__}.{kind.__qualname__}")
        if not _is_known(kind.__module__):
            own = [v for v in vars(kind).values() if isinstance(v, types.FunctionType)]
            self.add([*(base for base in kind.__bases__ if base is not object), *own])

    def _tensor(self, value: Tensor) -> None:
        self._text(f"{value.dtype} {tuple(value.shape)}")
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


def _is_known(module: str | None) -> bool:
    return (module or "").partition(".")[0] in _KNOWN


def _filled(cell: types.CellType) -> bool:
    """Whether the variable of a closure has a value yet."""
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True
