"""The arguments of :func:`train` and :class:`Fleet`, checked before training starts."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset

from counterfactual_training.constraints import Constraints
from counterfactual_training.errors import InputError, ModelError, from_outside
from counterfactual_training.generators import evaluating
from counterfactual_training.generators.model_checks import (
    check_inputs,
    check_tensor,
    first_logits,
)
from counterfactual_training.training.callbacks import Callback, EpochProgress, overrides
from counterfactual_training.training.method import Method
from counterfactual_training.training.objective import Objective
from counterfactual_training.training.rows import FetchedRows, Read, TrainingRows

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
Source = Tensor | Dataset | DataLoader
Validation = tuple[Tensor, Tensor] | Dataset | DataLoader
ClassWeight = Mapping[int, float] | str | Tensor


def training_rows(
    models: Sequence[nn.Module],
    x: Source,
    y: Tensor | None,
    sample_weight: Tensor | None,
    class_weight: ClassWeight | None,
    values: bool = False,
) -> TrainingRows:
    """Rows that fit the models; with ``values``, y are numbers."""
    if values:
        return _value_rows(models, x, y, sample_weight, class_weight)
    if isinstance(x, Tensor):
        rows = _tensor_rows(models, x, y, sample_weight, class_weight)
    else:
        if y is not None and not isinstance(x, Dataset | DataLoader):
            raise InputError(
                f"x must be a torch tensor, got {type(x).__name__}; convert it with "
                "torch.as_tensor(x)."
            )
        if y is not None or sample_weight is not None:
            raise InputError(
                "A data set brings its own classes and weights, as items (x, y) or (x, y, weight)."
            )
        rows = _fetched_rows(models[0], x, class_weight)
    if rows.weight is not None and not bool((rows.weight.sum(-1) > 0).all()):
        raise InputError("All rows have a weight of 0; nothing is left to train on.")
    _try_models(models, rows)
    return rows


def _tensor_rows(
    models: Sequence[nn.Module],
    x: Tensor,
    y: Tensor | None,
    sample_weight: Tensor | None,
    class_weight: ClassWeight | None,
) -> TrainingRows:
    """Rows in memory; their weights are those of rows times those of classes."""
    if y is None:
        raise InputError("Training needs classes: pass y (n,) beside x, or a Dataset of pairs.")
    check_inputs(models[0], x, y)
    members = len(models)
    if y.dim() > 2 or y.numel() == 0 or (y.dim() == 2 and len(y) != members):
        if members == 1:
            shapes = "(n,)"
        else:
            shapes = f"(n,) or ({members}, n)"
        raise InputError(
            f"Training needs rows: x (n, *features) and y {shapes}, got y of shape "
            f"{tuple(y.shape)}."
        )
    num_classes = _num_classes(y)
    weight = _row_weights(y, sample_weight, x)
    by_class = _class_weights(y, num_classes, class_weight, x)
    if by_class is not None:
        by_label = by_class.gather(-1, y.long().reshape(len(by_class), -1)).reshape(y.shape)
        if weight is None:
            weight = by_label
        else:
            weight = weight * by_label
    return TrainingRows(x, y.long(), num_classes, weight)


def _fetched_rows(
    model: nn.Module, x: Dataset | DataLoader, class_weight: ClassWeight | None
) -> FetchedRows:
    """Rows of a data set, read once for classes and weights and fetched when they are needed."""
    read = Read.all(x)
    num_classes = _num_classes(read.y)
    _row_weights(read.y, read.weight, read.example)
    by_class = _class_weights(read.y, num_classes, class_weight, read.example)
    if by_class is None:
        weights = None
    else:
        weights = by_class[0]
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    rows = FetchedRows(x, read, num_classes, device, weights)
    # A few rows will do: NaN was looked for in all of them while they were read.
    check_inputs(model, *rows.first(64))
    return rows


def _value_rows(
    models: Sequence[nn.Module],
    x: Source,
    y: Tensor | None,
    sample_weight: Tensor | None,
    class_weight: Any = None,
) -> TrainingRows:
    """Rows with numbers, for models of one output."""
    if (
        not isinstance(x, Tensor)
        or not isinstance(y, Tensor)
        or y.dim() != 1
        or not y.is_floating_point()
    ):
        raise InputError(
            "A regression trains on tensors x (n, *features) and y (n,), y of floating point."
        )
    if class_weight is not None:
        raise InputError(
            "class_weight has no effect on a regression, which has no classes; use sample_weight."
        )
    # The shapes, devices and values of x are checked as for classes.
    check_inputs(models[0], x, torch.zeros_like(y, dtype=torch.long))
    if not y.numel() or not bool(torch.isfinite(y).all()):
        raise InputError("y must hold at least one number, and neither NaN nor infinity.")
    rows = TrainingRows(
        x,
        y.to(torch.promote_types(x.dtype, torch.float32)),
        0,
        _row_weights(y, sample_weight, x),
    )
    for model in models:
        with evaluating(model), torch.no_grad():
            shape = tuple(check_tensor(model(x[:2])).shape)
        if shape != (len(x[:2]), 1):
            raise ModelError(
                f"The model returned {shape} for {len(x[:2])} rows; a regression has one output, "
                "(n, 1)."
            )
    return rows


def _num_classes(y: Tensor) -> int:
    """k; every set of rows must hold every class 0..k−1."""
    counts = torch.bincount(y.flatten().cpu().clamp_min(0))
    for member_labels in y.reshape(-1, y.shape[-1]):
        classes = member_labels.unique().tolist()
        if len(counts) < 2 or classes != list(range(len(counts))):
            raise InputError(
                "y must hold every class index 0..k−1 and at least two classes; found "
                f"{classes[:20]}."
            )
    return len(counts)


def _row_weights(y: Tensor, stated: Tensor | None, like: Tensor) -> Tensor | None:
    """The weights of single rows, checked."""
    if stated is None:
        return None
    weight = torch.as_tensor(stated).to(
        like.device, torch.promote_types(like.dtype, torch.float32)
    )
    if weight.shape != y.shape or not _sound(weight):
        raise InputError(
            f"sample_weight holds one finite number of at least 0 per row, {tuple(y.shape)}; got "
            "shape "
            f"{tuple(weight.shape)}{f' from {float(weight.min()):g}' if weight.numel() else ''}."
        )
    return weight


def _class_weights(
    y: Tensor, num_classes: int, class_weight: ClassWeight | None, like: Tensor
) -> Tensor | None:
    """The weights of classes ``(1, k)``; ``(members, k)`` if members have their own rows."""
    if class_weight is None:
        return None
    sets = y.reshape(-1, y.shape[-1])
    kind = torch.promote_types(like.dtype, torch.float32)
    if isinstance(class_weight, str):
        if class_weight != "balanced":
            raise InputError(
                f"class_weight is 'balanced' or one number per class, got {class_weight!r}."
            )
        counts = torch.stack([torch.bincount(labels, minlength=num_classes) for labels in sets])
        return (sets.shape[-1] / (num_classes * counts.double())).to(like.device, kind)
    if isinstance(class_weight, Mapping):
        strange = [k for k in class_weight if k not in range(num_classes)]
        if strange:
            raise InputError(
                f"class_weight names class {strange[0]!r}; the classes are 0..{num_classes - 1}."
            )
        class_weight = torch.tensor(
            [float(class_weight.get(k, 1.0)) for k in range(num_classes)]
        )
    each = torch.as_tensor(class_weight)
    if each.shape != (num_classes,) or not _sound(each):
        raise InputError(
            f"class_weight holds one finite number of at least 0 for each of {num_classes} classes."
        )
    return each.expand(len(sets), -1).to(like.device, kind)


def _sound(weights: Tensor) -> bool:
    return bool((torch.isfinite(weights) & (weights >= 0)).all())


def validation_rows(
    models: Sequence[nn.Module], validation: Validation | None, data: TrainingRows
) -> TrainingRows | None:
    """Validation rows that fit the models and have no other classes."""
    if validation is None:
        return None
    if isinstance(validation, tuple | list):
        x, y = (part.to(data.y.device) for part in validation)
        if not data.num_classes:
            return _value_rows(models, x, y, None)
        check_inputs(models[0], x, y)
        if y.dim() > 2 or (y.dim() == 2 and len(y) != len(models)):
            raise InputError(
                f"Validation rows are given for {len(y)} members of a fleet of {len(models)}."
            )
        rows = TrainingRows(x, y.long(), data.num_classes)
    else:
        rows = FetchedRows(validation, Read.all(validation), data.num_classes, data.y.device)
        check_inputs(models[0], *rows.first(64))
    _try_models(models, rows)
    if rows.num_rows and not 0 <= int(rows.y.min()) <= int(rows.y.max()) < data.num_classes:
        raise InputError(
            f"Validation classes must lie in 0..{data.num_classes - 1}, got "
            f"{rows.y.unique().tolist()}."
        )
    return rows


def _try_models(models: Sequence[nn.Module], rows: TrainingRows) -> None:
    """Raise unless every model returns logits of the rows' classes."""
    for i, model in enumerate(models):
        x, y = rows.for_members(i).first(64)
        with evaluating(model), torch.no_grad():
            first_logits(model, x, y, num_classes=rows.num_classes)


def with_constraints(method: Method, data: TrainingRows, member: int = 0) -> Method:
    """The method with constraints, checked against the training rows, or inferred from them."""
    reason = getattr(method.searcher.rule, "cannot_train", "")
    searches = method.needs_counterfactuals
    if reason and searches:
        raise InputError(
            f"The generator {method.searcher.name!r} cannot serve training: {reason}. Train "
            "with another one, "
            "such as 'ecco', and use this one to explain."
        )
    if searches:
        method.searcher.check_features(data.num_features)
    constraints = method.constraints
    if isinstance(data, FetchedRows):
        read = data.read
        rows = torch.stack([read.low, read.high])  # all rows lie in a box if their extremes do
        constraints = constraints or Constraints.build(
            len(read.low), domain=read.box(method.num_std)
        )
    else:
        rows = data.possible(member)
        constraints = constraints or Constraints.infer(rows, num_std=method.num_std)
    constraints.to(rows).check_factuals(rows.flatten(1))
    objective = method.objective
    if method.loss is None and objective.lacks_ridge:
        warnings.warn(
            f"lambda_div={objective.lambda_div} without a ridge, lambda_reg=0: nothing keeps the "
            "energies from growing "
            "without end, and accuracy falls. State lambda_reg, such as the published "
            f"{Objective.lambda_reg}.",
            stacklevel=from_outside(),
        )
    # Where everything may change recourse is cheap, and the term would only cost plausibility.
    if objective.lambda_recourse and not bool(constraints.immutable.any()):
        objective = replace(objective, lambda_recourse=0.0)
    return replace(method, constraints=constraints.to(data.first(1)[0]), objective=objective)


def check_modes(
    model: nn.Module, method: Method, data: TrainingRows, processes: int = 1
) -> None:
    """Warn about batch normalisation in eval mode; raise if a batch has a single row."""
    norms = [
        (name, module) for name, module in model.named_modules() if isinstance(module, _NORMS)
    ]
    if not norms:
        return
    name, norm = norms[0]
    if not model.training:
        text = f"The model came in eval mode and holds {type(norm).__name__}: all of it is trained."
        advice = "To keep parts frozen call model.train() first, then .eval() on these parts."
        warnings.warn(f"{text} {advice}", stacklevel=from_outside())
    # Counterfactuals share the forward pass of their batch, so only conventional batches can have a
    # single row.
    plain = method.training.burn_in_epochs > 0 or not method.minimised.needs_counterfactuals
    least = data.smallest_batch(method.training.batch_size)
    where = ""
    if processes > 1 and not data.divided:
        least = least // processes
        where = f" on one of {processes} processes"
    if plain and least <= 1 and not _takes_one_row(model, data):
        raise InputError(
            f"{data.num_rows} rows in batches of {method.training.batch_size} leave one with a "
            f"single row{where}, on "
            f"which {name!r} cannot compute statistics; choose another batch_size."
        )


def _takes_one_row(model: nn.Module, data: TrainingRows) -> bool:
    """Whether training on one row works, as with images, which have many values per channel."""
    # A copy, because a forward pass in training mode changes running statistics.
    if model.training:
        clone = copy.deepcopy(model)
    else:
        clone = copy.deepcopy(model).train()
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            clone(data.first(1)[0])
    except ValueError:
        return False
    return True


def check_optimizer(
    model: nn.Module,
    optimizer: Optimizer,
    method: Method,
    callbacks: Sequence[Callback],
) -> None:
    trained = {id(parameter) for parameter in model.parameters()}
    if not any(
        id(parameter) in trained
        for group in optimizer.param_groups
        for parameter in group["params"]
    ):
        raise InputError(
            "The optimizer holds none of this model's parameters; make it with model.parameters()."
        )
    if not isinstance(optimizer, torch.optim.LBFGS):
        return
    if method.training.accumulate > 1:
        raise InputError(
            "LBFGS asks for the loss of one batch again and again: accumulate=1 only."
        )
    if any(overrides(callback, "before_step") for callback in callbacks):
        raise InputError(
            "LBFGS computes its gradients itself, so callbacks cannot change them before its step."
        )


def listeners(
    callbacks: Sequence[Callback], methods: Sequence[Method], progress: bool | None
) -> list[Callback]:
    """The user's callbacks, checked, between that of budgets and the status line."""
    if not isinstance(callbacks, list | tuple):
        raise InputError(
            f"callbacks is a list of ct.Callback, got {type(callbacks).__name__}; write [callback]."
        )
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise InputError(
                f"Callbacks derive from ct.Callback, got {type(callback).__name__}."
            )
    # First, so that the user's callbacks find its columns in the history, and can replace the
    # weights it ends with.
    if any(method.budget is not None for method in methods):
        from counterfactual_training.training.budget import AccuracyBudget

        budgets = [AccuracyBudget()]
    else:
        budgets = []
    return [*budgets, *callbacks, EpochProgress(progress)]
