"""The layers of a network that applies them one after the other, whatever its class.

A module of one's own that is a chain of linear layers and activations can be run without autograd,
and stacked without vmap. Its ``forward`` is traced on a copy. Whatever a trace might not show, such
as hooks, branches, counters or changed buffers, makes it no chain: then it is run as it is.
"""

from __future__ import annotations

import copy
import dis
import functools
import itertools
import types
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from counterfactual_training.models.classifiers import Asinh
from counterfactual_training.torch_internals import module_hooked, tensor_version

# Elementwise layers.
ELEMENTWISE = (
    nn.ReLU,
    nn.SiLU,
    nn.Tanh,
    nn.Sigmoid,
    nn.GELU,
    nn.ELU,
    nn.SELU,
    nn.LeakyReLU,
    nn.Softplus,
    nn.Identity,
    Asinh,
)
# Functions and methods of a tensor that are such layers, with the layers' default settings.
_FUNCTIONS: dict[Any, type[nn.Module]] = {
    torch.relu: nn.ReLU,
    functional.relu: nn.ReLU,
    "relu": nn.ReLU,
    torch.tanh: nn.Tanh,
    functional.tanh: nn.Tanh,
    "tanh": nn.Tanh,
    torch.sigmoid: nn.Sigmoid,
    functional.sigmoid: nn.Sigmoid,
    "sigmoid": nn.Sigmoid,
    functional.silu: nn.SiLU,
    functional.gelu: nn.GELU,
    functional.elu: nn.ELU,
    functional.selu: nn.SELU,
    functional.leaky_relu: nn.LeakyReLU,
    functional.softplus: nn.Softplus,
    torch.selu: nn.SELU,
    torch.asinh: Asinh,
    "asinh": Asinh,
}
# What code must not do to be known from one trace: branch, change something, or enter a context.
_UNTRACEABLE = (
    "POP_JUMP",
    "JUMP_IF",
    "STORE_ATTR",
    "STORE_GLOBAL",
    "STORE_DEREF",
    "STORE_SUBSCR",
    "DELETE",
    "IMPORT",
    "WITH",
    "LOAD_SPECIAL",
    "YIELD",
    "RAISE",
    "SETUP",
)
_HARMLESS = ("super", "__class__", "reversed", "range", "len", "enumerate", "zip")


def hooked(module: nn.Module) -> bool:
    """Whether calling the module runs hooks, or a ``forward`` that is not its class's."""
    return "forward" in vars(module) or module_hooked(module)


def named_parts(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """Its children; unlike ``named_children()``, one that occurs twice is listed twice."""
    every = module.named_modules(remove_duplicate=False)
    return [(name, part) for name, part in every if name and "." not in name]


def named_layers(model: nn.Module) -> list[tuple[str, nn.Module]] | None:
    """Linear layers and elementwise ones in the order in which the model applies them.

    ``None`` if it does anything else. Names are those in the model; ``""`` for functions.
    """
    if any(hooked(module) for module in model.modules()):
        return None
    # Exact types throughout: a subclass may compute anything.
    if type(model) is nn.Sequential:
        layers = named_parts(model)
        if all(_is_layer(part) for _, part in layers):
            return layers
    if not _traceable(model):
        return None
    return _traced(model)


def _is_layer(module: nn.Module) -> bool:
    return type(module) is nn.Linear or type(module) in ELEMENTWISE


def _traceable(model: nn.Module) -> bool:
    """Whether its parts have nothing that a trace would not show."""
    for module in model.modules():
        if _is_layer(module) or type(module) in (nn.Sequential, nn.ModuleList):
            continue
        kind: Any = type(module)
        # Such a part computes something itself.
        if _is_torch(kind.__module__) or any(True for _ in module.parameters(recurse=False)):
            return False
        if not _plain_class(kind) or not all(
            _plain_value(part) for part in vars(module).values()
        ):
            return False
    return True


def _plain_value(value: Any) -> bool:
    """Whether an attribute holds no function that might do more than compute."""
    if isinstance(value, dict):
        return all(_plain_value(item) for item in value.values())
    if isinstance(value, list | tuple | set):
        return all(_plain_value(item) for item in value)
    return isinstance(value, nn.Module) or not callable(value) or _of_torch(value)


@functools.lru_cache(maxsize=1000)
def _plain_class(kind: Any) -> bool:
    """Whether ``forward``, with the methods it calls, only calls layers and functions of torch."""
    overrides_call = kind.__call__ is not nn.Module.__call__
    overrides_getattr = kind.__getattr__ is not nn.Module.__getattr__
    if (
        overrides_call
        or overrides_getattr
        or kind.__getattribute__ is not object.__getattribute__
    ):
        return False
    waiting = ["forward"]
    seen = set(waiting)
    while waiting:
        name = waiting.pop()
        for base in kind.__mro__:  # all of them: a method may call that of its parent
            method = vars(base).get(name)
            if method is None or _is_torch(base.__module__):
                continue
            if not isinstance(method, types.FunctionType):
                return False
            for code in _codes(method.__code__):
                if not _plain_code(code, method):
                    return False
                called = {
                    other for other in code.co_names if _is_user_attribute(kind, other)
                } - seen
                waiting += called
                seen |= called
    return True


def _is_user_attribute(kind: type, name: str) -> bool:
    """Whether a class of the user's has this attribute."""
    return any(name in vars(base) for base in kind.__mro__ if not _is_torch(base.__module__))


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code of a function, and of those written inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _plain_code(code: types.CodeType, method: types.FunctionType) -> bool:
    for step in dis.get_instructions(code):
        if any(word in step.opname for word in _UNTRACEABLE):
            return False
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            is_of_torch = _of_torch(method.__globals__.get(step.argval))
            if step.argval not in _HARMLESS and not is_of_torch:
                return False
        if step.opname in ("LOAD_DEREF", "LOAD_CLASSDEREF") and step.argval not in _HARMLESS:
            return False
    return True


def _is_torch(module: str | None) -> bool:
    return module is not None and module.split(".")[0] in ("torch", "builtins")


def _of_torch(value: Any) -> bool:
    """Whether it is a module, function or class of torch."""
    if isinstance(value, types.ModuleType):
        return _is_torch(value.__name__)
    name = getattr(value, "__module__", None)
    # Some functions of torch have no module.
    builtin = isinstance(value, types.BuiltinFunctionType) and value in _FUNCTIONS
    return callable(value) and (builtin or (name is not None and name.startswith("torch")))


def _traced(model: nn.Module) -> list[tuple[str, nn.Module]] | None:
    """The layers by a trace of a copy, which shares the parameters."""
    try:
        clone = copy.deepcopy(
            model, {id(parameter): parameter for parameter in model.parameters()}
        )
        before = _state(clone)
        nodes = list(fx.Tracer().trace(clone).nodes)
    except Exception:  # a user's code may do what a copy or a proxy cannot
        return None
    if _state(clone) != before or len(nodes) < 3 or nodes[-1].args != (nodes[-2],):
        return None
    layers: list[tuple[str, nn.Module]] = []
    parts = dict(model.named_modules())
    for behind, node in itertools.pairwise(nodes[:-1]):
        if node.args != (behind,):
            return None
        name, layer = _at_node(node, parts)
        if layer is None or not _is_layer(layer):
            return None
        layers.append((name, layer))
    return layers


def _at_node(node: fx.Node, parts: Mapping[str, nn.Module]) -> tuple[str, nn.Module | None]:
    """The layer that a node calls, with its name; functions have none."""
    if node.op == "call_module" and not node.kwargs:
        return str(node.target), parts.get(str(node.target))
    if node.op in ("call_function", "call_method"):
        return "", _layer_of(node.target, node.kwargs)
    return "", None


def _layer_of(function: Any, options: Mapping[str, Any]) -> nn.Module | None:
    """The layer that does what a function does with these options."""
    kind = _FUNCTIONS.get(function)
    if kind is None or options.get("inplace", False):
        return None
    # Layers and functions have the same options by the same names.
    return kind(**options)


def _state(model: nn.Module) -> list[Any]:
    """What a forward pass may change: attributes of all parts, and versions of buffers."""
    held = [_held(vars(part), set()) for part in model.modules()]
    return [*held, *(tensor_version(buffer) for buffer in model.buffers())]


def _held(value: Any, seen: set[int]) -> Any:
    """Equal before and after if nothing inside was replaced, added or removed."""
    if id(value) in seen or isinstance(value, Tensor | nn.Module | type | types.FunctionType):
        return id(value)
    seen.add(id(value))
    if isinstance(value, dict):
        return [(id(key), _held(part, seen)) for key, part in value.items()]
    if isinstance(value, list | tuple | set | frozenset):
        return [_held(part, seen) for part in value]
    inside = getattr(value, "__dict__", None)
    if isinstance(inside, dict):
        return (id(value), _held(inside, seen))
    if hasattr(value, "__len__"):
        return (id(value), len(value))
    return id(value)
