"""Train one model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from counterfactual_training.constraints import Constraints
from counterfactual_training.search import Generator, make_generator
from counterfactual_training.training import arguments
from counterfactual_training.training.budget import budgets
from counterfactual_training.training.callbacks import Callback, Progress
from counterfactual_training.training.checkpoint import Checkpoint
from counterfactual_training.training.config import TrainConfig
from counterfactual_training.training.distributed import Ranks, unwrapped
from counterfactual_training.training.loop import fit
from counterfactual_training.training.objective import Objective, make_objective
from counterfactual_training.training.run import Run, TrainResult
from counterfactual_training.training.setting import Setting, preset

OptimizerFactory = Callable[[Iterator[nn.Parameter]], Optimizer]


def train(
    model: nn.Module,
    x: arguments.Source,
    y: Tensor | None = None,
    generator: Generator | str | None = None,
    constraints: Constraints | None = None,
    objective: Objective | str | None = None,
    config: TrainConfig | None = None,
    *,
    setting: Setting | str | None = None,
    validation: arguments.Validation | None = None,
    sample_weight: Tensor | None = None,
    class_weight: arguments.ClassWeight | None = None,
    optimizer: Optimizer | OptimizerFactory | None = None,
    callbacks: Sequence[Callback] = (),
    checkpoint: str | Path | None = None,
    progress: bool | None = None,
    device: str | torch.device | None = None,
) -> TrainResult:
    """Train a classifier, in place, so that its counterfactual explanations become plausible and actionable.

    Starts from the weights the model has, so a trained model is fine-tuned. Modules that are in eval mode within a
    model in training mode stay there; a model in eval mode is trained whole. It is left in eval mode.

    Args:
        model: any module that maps ``(n, *features)`` to logits ``(n, k)``. Wrapped in ``DistributedDataParallel`` it
            trains on all processes of its group.
        x: ``(n, *features)`` training rows, which may be memory-mapped; or a map-style ``Dataset`` of ``(x, y)`` or
            ``(x, y, weight)``, or a ``DataLoader`` of one, which then makes the batches.
        y: ``(n,)`` class indices.
        generator: of the counterfactuals, or the name of one.
        constraints: what may move, in the search and in the loss; inferred from x (a box by Eq. 12) if not given.
        objective: the weights of Eq. 2, or the name of a set of them.
        config: all other settings.
        setting: all four together, or the name of a preset; what is given beside it wins.
        validation: rows and classes whose loss and accuracy are logged every epoch; they influence callbacks only.
        sample_weight: ``(n,)`` what each row counts in the class loss and the adversarial loss.
        class_weight: a number per class for the same losses, or ``"balanced"``.
        optimizer: an optimizer of the model's parameters or a function that makes one; Adam if not given.
        callbacks: listeners, called at every update and epoch.
        checkpoint: file to save to after epochs, and to resume from if it exists.
        progress: show a bar; by default on a terminal.
        device: where to train; by default where the model is.
    """
    if device is not None:
        model = model.to(device)
        x = x.to(device) if isinstance(x, Tensor) else x
        y = None if y is None else y.to(device)
    inner, ranks = unwrapped(model), Ranks.of(model)
    chosen = preset(setting) if isinstance(setting, str) else setting or Setting()
    chosen = replace(
        chosen,
        constraints=constraints if constraints is not None else chosen.constraints,
        objective=make_objective(objective) if isinstance(objective, str) else objective or chosen.objective,
        config=config or chosen.config,
    )
    data = arguments.training_rows(inner, x, y, 1, sample_weight, class_weight)
    arguments.try_model(inner, data, data.num_classes)
    held = arguments.validation_rows(inner, validation, data)
    known = x if isinstance(x, Tensor) else None
    chosen = replace(chosen, generator=make_generator(generator or chosen.generator, x_train=known))
    chosen = arguments.with_constraints(chosen, data)
    arguments.check_modes(inner, chosen, data, ranks)
    listeners = [*budgets([chosen]), *arguments.checked_callbacks(callbacks), Progress(progress)]
    if optimizer is not None:
        optimizer = optimizer if isinstance(optimizer, Optimizer) else optimizer(inner.parameters())
        arguments.check_optimizer(inner, optimizer, chosen, ranks, listeners)
    run = Run([model], [chosen], data, held, optimizer=optimizer, callbacks=listeners)
    arguments.check_ranks(run)
    fit(run, None if checkpoint is None else Checkpoint(checkpoint, run))
    return run.results()[0]
