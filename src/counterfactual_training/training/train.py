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
from counterfactual_training.training.callbacks import Callback
from counterfactual_training.training.checkpoint import Checkpoint
from counterfactual_training.training.distributed import Ranks, unwrapped
from counterfactual_training.training.loop import fit
from counterfactual_training.training.objective import Objective, make_objective
from counterfactual_training.training.regime import Regime
from counterfactual_training.training.regimes import make_regime
from counterfactual_training.training.run import Run, TrainResult
from counterfactual_training.training.setting import Setting, TrainConfig, preset

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
    regime: Regime | str | None = None,
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

    Parts in eval mode within a model in training mode stay so; a model in eval mode is trained whole.

    Args:
        model: maps ``(n, *features)`` to logits ``(n, k)``; may be wrapped in ``DistributedDataParallel``.
        x: ``(n, *features)`` rows, possibly memory-mapped; or a map-style ``Dataset`` of ``(x, y)`` or
            ``(x, y, weight)``, or its ``DataLoader``, which then makes the batches.
        y: ``(n,)`` class indices; numbers for a :mod:`regression` regime, whose model has one output.
        generator: of the counterfactuals, or its name.
        constraints: of search and loss; by default a box inferred from x (Eq. 12).
        objective: the weights of Eq. 2, or a name from :data:`OBJECTIVES`.
        config: all other settings.
        setting: these four together, or the name of a preset; arguments given beside it take precedence.
        regime: another way to train, or its name in :data:`REGIMES`.
        validation: rows and classes whose loss and accuracy are logged every epoch, for callbacks only.
        sample_weight: ``(n,)`` weights of the rows in class loss and adversarial loss.
        class_weight: one number per class for the same losses, or ``"balanced"``.
        optimizer: of the model's parameters, or a function that makes one; Adam by default.
        callbacks, checkpoint: called at every update and epoch; a file to save to, and to resume from if it exists.
        progress: show a status line; by default on a terminal.
        device: where to train; by default where the model is.
    """
    if device is not None:
        model, y = model.to(device), None if y is None else y.to(device)
        x = x.to(device) if isinstance(x, Tensor) else x
    inner, ranks = unwrapped(model), Ranks.from_model(model)
    base, rows = _base(setting, regime), (x, y) if isinstance(x, Tensor) else (None, None)
    data = arguments.training_rows([inner], x, y, sample_weight, class_weight, base.values)
    held = arguments.validation_rows([inner], validation, data)
    chosen = arguments.with_constraints(_stated(base, generator, constraints, objective, config, *rows), data)
    arguments.check_modes(inner, chosen, data, ranks)
    listeners = arguments.listeners(callbacks, [chosen], progress)
    if optimizer is not None:
        optimizer = optimizer if isinstance(optimizer, Optimizer) else optimizer(inner.parameters())
        arguments.check_optimizer(inner, optimizer, chosen, ranks, listeners)
    run = Run([model], [chosen], data, held, optimizer=optimizer, callbacks=listeners)
    arguments.check_ranks(run)
    fit(run, None if checkpoint is None else Checkpoint(checkpoint, run))
    return run.results()[0]


def _base(setting: Setting | str | None, regime: Regime | str | None) -> Setting:
    """The setting, trained by a regime; a name may also stand for a whole setting, such as ``"as_printed"``."""
    base = preset(setting) if isinstance(setting, str) else setting
    if regime is None:
        return base or Setting()
    if isinstance(regime, Regime):
        return replace(base or Setting(), regime=regime)
    chosen = make_regime(regime)
    return chosen if base is None else replace(base, regime=chosen.regime, objective=chosen.objective)


def _stated(
    base: Setting,
    generator: Generator | str | None,
    constraints: Constraints | None,
    objective: Objective | str | None,
    config: TrainConfig | None,
    x_train: Tensor | None,
    y_train: Tensor | None,
) -> Setting:
    """The setting, with the arguments given beside it in place of its parts."""
    return replace(
        base,
        generator=make_generator(generator or base.generator, x_train, y_train),
        constraints=constraints if constraints is not None else base.constraints,
        objective=make_objective(objective) if isinstance(objective, str) else objective or base.objective,
        config=config or base.config,
    )
