"""What training refuses before it starts."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset

from counterfactual_training.constraints import Constraints, Domain
from counterfactual_training.errors import InputError
from counterfactual_training.search import evaluating
from counterfactual_training.search.checks import check_inputs, first_logits
from counterfactual_training.training.distributed import Ranks
from counterfactual_training.training.fingerprint import Digest
from counterfactual_training.training.rows import FetchedRows, Read, Rows
from counterfactual_training.training.run import Run
from counterfactual_training.training.setting import Setting

Source = Tensor | Dataset | DataLoader
Validation = tuple[Tensor, Tensor] | Dataset | DataLoader
ClassWeight = Mapping[int, float] | str | Tensor


def training_rows(
    model: nn.Module,
    x: Source,
    y: Tensor | None,
    setting: Setting,
    members: int = 1,
    sample_weight: Tensor | None = None,
    class_weight: ClassWeight | None = None,
) -> tuple[Rows, Domain | None]:
    """Rows that fit the model, and the box around those that are not in memory."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    if isinstance(x, Tensor):
        if y is None:
            raise InputError("Training needs classes: pass y (n,) beside x, or a Dataset of pairs.")
        check_inputs(model, x, y)
        if y.dim() > 2 or y.numel() == 0 or (y.dim() == 2 and len(y) != members):
            shapes = "(n,)" if members == 1 else f"(n,) or ({members}, n)"
            raise InputError(f"Training needs rows: x (n, *features) and y {shapes}, got y of shape {tuple(y.shape)}.")
        num_classes = _num_classes(y)
        weight = _weights(y, num_classes, sample_weight, class_weight, x)
        return Rows(x, y.long(), num_classes, weight), None
    if y is not None or sample_weight is not None:
        raise InputError("A data set brings its own classes and weights, as items (x, y) or (x, y, weight).")
    read = Read.all(x, setting.num_std)
    num_classes = _num_classes(read.y)
    weight = _weights(read.y, num_classes, read.weight, class_weight, read.example)
    if class_weight is not None:
        raise InputError("Class weights need tensors; let the data set give (x, y, weight) instead.")
    return FetchedRows(x, read._replace(weight=weight), num_classes, device), read.domain


def _num_classes(y: Tensor) -> int:
    """k, where every row set holds every class 0..k−1."""
    counts = torch.bincount(y.flatten().cpu().clamp_min(0))
    for own in y.reshape(-1, y.shape[-1]):
        found = own.unique().tolist()
        if len(counts) < 2 or found != list(range(len(counts))):
            raise InputError(f"y must hold every class index 0..k−1 and at least two classes; found {found[:20]}.")
    return len(counts)


def _weights(
    y: Tensor, num_classes: int, sample: Tensor | None, by_class: ClassWeight | None, like: Tensor
) -> Tensor | None:
    """What each row counts: its own weight times that of its class."""
    weight = None
    if sample is not None:
        weight = torch.as_tensor(sample).to(like)
        if weight.shape != y.shape or not bool(torch.isfinite(weight).all()) or bool((weight < 0).any()):
            raise InputError(f"sample_weight holds one finite number of at least 0 per row, {tuple(y.shape)}.")
        if not bool((weight.sum(-1) > 0).all()):
            raise InputError("All rows have a sample_weight of 0; nothing is left to train on.")
    if by_class is None:
        return weight
    counts = torch.bincount(y.flatten(), minlength=num_classes)
    if isinstance(by_class, str):
        if by_class != "balanced":
            raise InputError(f"class_weight is 'balanced' or one number per class, got {by_class!r}.")
        each = y.numel() / (num_classes * counts)
    elif isinstance(by_class, Mapping):
        strange = [k for k in by_class if k not in range(num_classes)]
        if strange:
            raise InputError(f"class_weight speaks of class {strange[0]!r}; the classes are 0..{num_classes - 1}.")
        each = torch.tensor([float(by_class.get(k, 1.0)) for k in range(num_classes)], device=y.device)
    else:
        each = torch.as_tensor(by_class)
    if each.shape != (num_classes,) or not bool(torch.isfinite(each).all()) or bool((each < 0).any()):
        raise InputError(f"class_weight holds one finite number of at least 0 for each of {num_classes} classes.")
    scaled = each.to(like)[y.long()]
    return scaled if weight is None else weight * scaled


def validation_rows(model: nn.Module, validation: Validation | None, data: Rows, members: int = 1) -> Rows | None:
    """Validation rows that fit the model and know no other classes."""
    if validation is None:
        return None
    if not isinstance(validation, tuple | list):
        read = Read.all(validation, 0.0)
        return FetchedRows(validation, read, data.num_classes, data.y.device)
    x, y = validation[0].to(data.y.device), validation[1].to(data.y.device)
    check_inputs(model, x, y)
    if y.dim() > 2 or (y.dim() == 2 and len(y) != members):
        raise InputError(f"Validation rows are given for {len(y)} members of a fleet of {members}.")
    rows = Rows(x, y.long(), data.num_classes)
    try_model(model, rows, data.num_classes)
    if y.numel() and not 0 <= int(y.min()) <= int(y.max()) < data.num_classes:
        raise InputError(f"Validation classes must lie in 0..{data.num_classes - 1}, got {y.unique().tolist()}.")
    return rows


def try_model(model: nn.Module, data: Rows, num_classes: int, member: int = 0) -> None:
    """Ask the model for some rows, and refuse what is no classifier of these classes."""
    x, y = data.of([member]).first(64) if data.own else data.first(64)
    with evaluating(model), torch.no_grad():
        first_logits(model, x, y, num_classes=num_classes)


def with_constraints(setting: Setting, data: Rows, box: Domain | None, member: int = 0) -> Setting:
    """The setting with constraints that hold the training rows; inferred from them if none are stated."""
    if isinstance(data, FetchedRows):
        if box is None:
            raise TypeError("rows that are fetched come with their box")
        edges = torch.stack([box.lower, box.upper])
        known = setting.constraints or Constraints.build(len(box.lower), domain=box)
        constraints = known.to(edges)
        constraints.check_factuals(edges)
        return replace(setting, constraints=constraints.to(data.first(1)[0]))
    rows = data.x[member] if data.own else data.x
    constraints = setting.constraints
    if constraints is None:
        constraints = Constraints.infer(rows, num_std=setting.num_std)
    constraints = constraints.to(rows)
    constraints.check_factuals(rows.flatten(1))
    return replace(setting, constraints=constraints)


def check_modes(model: nn.Module, setting: Setting, data: Rows, ranks: Ranks | None = None) -> None:
    """Say what happens to batch normalisation, which trains differently than it predicts."""
    norms = {name: module for name, module in model.named_modules() if isinstance(module, _BatchNorm)}
    if norms and not model.training:
        warnings.warn(
            f"The model came in eval mode and holds {next(iter(norms.values())).__class__.__name__}: all of it is "
            "trained. To keep parts frozen call model.train() first, then .eval() on these parts.",
            stacklevel=3,
        )
    whole = part = data.last_batch(setting.config.batch_size)
    where = ""
    if ranks is not None and ranks.size > 1 and not data.divided:
        part, where = whole // ranks.size, f" for one of {ranks.size} processes"
    for name, module in norms.items():
        rows = whole if isinstance(module, nn.SyncBatchNorm) else part
        if rows <= 1 and (module.training or not model.training):
            raise InputError(
                f"{data.num_rows} rows, the last batch of which has {whole}, leave a single row{where}, on which "
                f"{name!r} cannot compute statistics; choose another batch_size."
            )


def check_optimizer(model: nn.Module, optimizer: Optimizer) -> None:
    own = {id(parameter) for parameter in model.parameters()}
    if not any(id(parameter) in own for group in optimizer.param_groups for parameter in group["params"]):
        raise InputError("The optimizer holds none of this model's parameters; make it with model.parameters().")


def check_ranks(run: Run) -> None:
    """All processes must be given the same rows and settings, of which each then takes its part."""
    if run.ranks.size == 1:
        return
    told = Digest()
    told.add([run.settings[0].config, run.settings[0].objective, run.data.y, run.data.weight])
    if len(set(run.ranks.every(told.hexdigest()))) > 1:
        raise InputError(
            "The processes were given different rows or settings. Give all of them the whole training set and one "
            "config; each takes its part by itself (or a DataLoader with a DistributedSampler of the whole set)."
        )


def checked_callbacks(callbacks: Any) -> list[Any]:
    from counterfactual_training.training.callbacks import Callback

    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise InputError(f"Callbacks derive from ct.Callback, got {type(callback).__name__}.")
    return list(callbacks)
