"""One model where a method wants several: copies of it, or why it stays alone."""

from __future__ import annotations

import copy
import warnings
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from counterfactual_training.errors import InputWarning, ModelError, from_outside
from counterfactual_training.models.ensemble import Ensemble
from counterfactual_training.training.method import Method
from counterfactual_training.training.registry import of_one_network
from counterfactual_training.training.rows import too_rare


def with_members(
    model: nn.Module, method: Method, x: Any, y: Tensor | None, optimizer: Any
) -> tuple[nn.Module, Method]:
    """An ensemble of the model and copies of it, and the method; or the model, and the method of
    one network, with a warning that says why.

    Members start from the same weights, and differ by the rows that each draws.

    Args:
        x, y, optimizer: as for :func:`train`.
    """
    reason = _reason_for_one(model, method, x, y, optimizer)
    if reason is None:
        members = _copies(model, method.members - 1)
        if members is not None:
            return Ensemble([model, *members]), method
        reason = f"{type(model).__name__} cannot be copied"
    one = of_one_network(method)
    if one.members > 1:
        raise ModelError(
            f"{method.name!r} trains {method.members} networks, got one "
            f"{type(model).__name__}: {reason}. Pass ct.Ensemble([make() for _ in "
            f"range({method.members})]), where make returns a network with weights of its own."
        )
    warnings.warn(
        InputWarning(
            f"{method.name!r} trains one network on all rows instead of {method.members}: "
            f"{reason}. Pass a ct.Ensemble for several, or state members=1."
        ),
        stacklevel=from_outside(),
    )
    return model, one


def _reason_for_one(
    model: nn.Module, method: Method, x: Any, y: Tensor | None, optimizer: Any
) -> str | None:
    """Why copies would not do."""
    if not method.bootstrap:
        return "its copies, with the same weights and the same rows, would learn alike"
    if isinstance(model, DistributedDataParallel):
        return "it is distributed over processes"
    if not isinstance(x, Tensor) or y is None:
        return "members draw their rows from tensors x and y, not from a data set"
    rare = too_rare(y)
    if rare is not None:
        return f"class {rare} has one row, too few to draw samples of"
    if optimizer is not None:
        return "the optimizer belongs to one network"
    return None


def _copies(model: nn.Module, num: int) -> list[nn.Module] | None:
    """Modules with weights of their own; ``None`` if the model does not let itself be copied."""
    tensors = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
    copies = []
    for _ in range(num):
        try:
            one = copy.deepcopy(model)
        except Exception:
            # Locks, files, handles, tensors of a graph: whatever a module of somebody else holds.
            return None
        if tensors & {id(tensor) for tensor in (*one.parameters(), *one.buffers())}:
            return None
        copies.append(one)
    return copies
