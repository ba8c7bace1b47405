"""Train one model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from counterfactual_training.constraints import Constraints
from counterfactual_training.errors import InputError
from counterfactual_training.models.ensemble import Ensemble
from counterfactual_training.torch_modes import with_gradients
from counterfactual_training.training import arguments
from counterfactual_training.training.algorithm import fit
from counterfactual_training.training.callbacks import Callback
from counterfactual_training.training.checkpoint import Checkpoint
from counterfactual_training.training.copies import with_members
from counterfactual_training.training.fleet import Fleet, members_of, sound_members
from counterfactual_training.training.method import METHODS, Method
from counterfactual_training.training.registry import make_method
from counterfactual_training.training.rows import TrainingRows
from counterfactual_training.training.run import Run, TrainResult

OptimizerFactory = Callable[[Iterator[nn.Parameter]], Optimizer]


@with_gradients
def train(  # noqa: PLR0913  # public
    model: nn.Module,
    x: arguments.Source,
    y: Tensor | None = None,
    method: Method | Mapping[str, Any] | str | None = None,
    constraints: Constraints | None = None,
    *,
    validation: arguments.Validation | None = None,
    sample_weight: Tensor | None = None,
    class_weight: arguments.ClassWeight | None = None,
    optimizer: Optimizer | OptimizerFactory | None = None,
    callbacks: Sequence[Callback] = (),
    checkpoint: str | Path | None = None,
    progress: bool | None = None,
    device: str | torch.device | None = None,
) -> TrainResult:
    """Train a classifier, in place, so that its explanations become plausible and actionable.

    Parts in eval mode within a model in training mode stay so; a model in eval mode is trained
    whole.

    Args:
        model: maps ``(n, *features)`` to logits ``(n, k)``; may be wrapped in
            ``DistributedDataParallel``.
        x: ``(n, *features)`` rows, possibly memory-mapped; or a map-style ``Dataset`` of ``(x, y)``
            or ``(x, y, weight)``, or its ``DataLoader``, which then makes the batches.
        y: ``(n,)`` class indices; numbers for a method of :mod:`regression`, whose model has one
            output.
        method: how, to be stated: by its name in :mod:`methods`, with settings
            (``"pgd(epsilon=0.2)"``) or as a :class:`Method`. Methods of several networks train the
            members of an :class:`Ensemble`; one model becomes several by copies of it, if each
            draws rows of its own, as in ``"bag"`` and ``"ct"``.
        constraints: of search and loss; by default those of the method, or a box inferred from x
            (Eq. 12).
        validation: rows and classes whose loss and accuracy are logged every epoch, for callbacks
            only.
        sample_weight: ``(n,)`` weights of the rows in class loss and adversarial loss.
        class_weight: one number per class for the same losses, or ``"balanced"``.
        optimizer: of the model's parameters, or a function that makes one; Adam by default.
        callbacks: called at every update and epoch, in this order.
        checkpoint: a file to save to while training, and to resume from if it exists.
        progress: show a status line; by default on a terminal.
        device: where to train; by default where the model is.

    Returns:
        The model, in eval mode, and its history; of several networks their :class:`Ensemble`, whose
        first member is the model itself if the others are copies.

    Examples:
        >>> import counterfactual_training as ct
        >>> data = ct.load_dataset("moons")
        >>> x, y = data.x_train[:200], data.y_train[:200]
        >>> constraints = ct.Constraints.infer(x, mutability={0: "none"})  # nobody can change 0
        >>> model = ct.mlp(2, 2)
        >>> method = ct.methods.ct_published(epochs=3, learning_rate=0.01, decision_threshold=0.5)
        >>> result = ct.train(model, x, y, method, constraints)
        >>> model(x).shape, list(result.history.to_frame()["epoch"])
        (torch.Size([200, 2]), [1, 2, 3])
    """
    if method is None:
        raise InputError(
            'ct.train needs a method: "bag", which classifiers have by default, or another of '
            f"{', '.join(METHODS)}."
        )
    if device is not None:
        model, x, y = _moved(device, model, x, y)
    chosen = make_method(method)
    if constraints is not None:
        chosen = replace(chosen, constraints=constraints)
    if isinstance(x, Tensor):
        chosen = chosen.with_rows(x, y)
    else:
        chosen = chosen.with_rows(None)
    counted = chosen.make is None or "members" in chosen.stated
    if chosen.members > 1 and not isinstance(model, Ensemble):
        model, chosen = with_members(model, chosen, x, y, optimizer)
    if chosen.members > 1 and isinstance(model, Ensemble):
        return _train_members(
            model,
            chosen,
            optimizer,
            counted=counted,
            x=x,
            y=y,
            validation=validation,
            sample_weight=sample_weight,
            class_weight=class_weight,
            callbacks=callbacks,
            checkpoint=checkpoint,
            progress=progress,
        )
    inner = model
    processes = 1
    if isinstance(model, DistributedDataParallel):
        from counterfactual_training.training.distributed import Ranks

        inner = model.module
        processes = Ranks.from_model(model).size
    data = arguments.training_rows([inner], x, y, sample_weight, class_weight, chosen.values)
    validation_rows = arguments.validation_rows([inner], validation, data)
    chosen = arguments.with_constraints(chosen, data)
    arguments.check_modes(inner, chosen, data, processes)
    listeners = arguments.listeners(callbacks, [chosen], progress)
    if optimizer is not None:
        if not isinstance(optimizer, Optimizer):
            optimizer = optimizer(inner.parameters())
        arguments.check_optimizer(inner, optimizer, chosen, listeners)
    run, saver = _run(model, chosen, data, validation_rows, optimizer, listeners, checkpoint)
    fit(run, saver)
    return run.results()[0]


def _moved(
    device: str | torch.device, model: nn.Module, x: arguments.Source, y: Tensor | None
) -> tuple[nn.Module, arguments.Source, Tensor | None]:
    """Model and rows on a device; items of a data set are moved batch by batch."""
    if isinstance(x, Tensor):
        x = x.to(device)
    if y is not None:
        y = y.to(device)
    return model.to(device), x, y


def _run(
    model: nn.Module,
    method: Method,
    data: TrainingRows,
    validation: TrainingRows | None,
    optimizer: Optimizer | None,
    listeners: Sequence[Callback],
    checkpoint: str | Path | None,
) -> tuple[Run, Checkpoint | None]:
    """The run of one model, and what saves it."""
    if isinstance(model, DistributedDataParallel):
        from counterfactual_training.training.distributed import (
            DistributedCheckpoint,
            DistributedRun,
        )

        shared = DistributedRun(model, method, data, validation, optimizer, listeners)
        return shared, None if checkpoint is None else DistributedCheckpoint(checkpoint, shared)
    run = Run([model], [method], data, validation, optimizer=optimizer, callbacks=listeners)
    return run, None if checkpoint is None else Checkpoint(checkpoint, run)


def _train_members(
    model: Ensemble,
    method: Method,
    optimizer: Optimizer | OptimizerFactory | None,
    counted: bool,
    **arguments_of_fleet: Any,
) -> TrainResult:
    """The networks of an ensemble as a fleet, each with a seed of its own.

    ``counted``: there must be as many as the method says.
    """
    if counted and len(model.members) != method.members:
        raise InputError(
            f"The method is about {method.members} members, the ensemble has "
            f"{len(model.members)}."
        )
    if optimizer is not None:
        raise InputError("Members of an ensemble have an Adam each; leave the optimizer out.")
    y = arguments_of_fleet["y"]
    if method.bootstrap and not isinstance(y, Tensor):
        raise InputError("A bag draws its rows: give x and y as tensors, not as a data set.")
    weight = arguments_of_fleet["sample_weight"]
    results = Fleet(members_of(list(model.members), method, y, weight)).train(
        **arguments_of_fleet
    )
    sound = sound_members(results)
    if len(sound) < len(results):
        model = Ensemble([results[i].model for i in sound])
    return TrainResult(model.eval(), results[sound[0]].history)
