"""Train one model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from counterfactual_training.constraints import Constraints
from counterfactual_training.errors import InputError, ModelError
from counterfactual_training.generators import Generator, make_generator
from counterfactual_training.models import Ensemble
from counterfactual_training.torch_modes import with_gradients
from counterfactual_training.training import arguments
from counterfactual_training.training.callbacks import Callback
from counterfactual_training.training.checkpoint import Checkpoint
from counterfactual_training.training.distributed import Ranks, unwrapped
from counterfactual_training.training.fleet import Fleet, Member
from counterfactual_training.training.loop import fit
from counterfactual_training.training.objective import Objective, make_objective
from counterfactual_training.training.regime import Regime
from counterfactual_training.training.regimes import make_regime
from counterfactual_training.training.rows import TrainingRows
from counterfactual_training.training.run import Run, TrainResult
from counterfactual_training.training.setting import Setting, TrainConfig, preset

OptimizerFactory = Callable[[Iterator[nn.Parameter]], Optimizer]


@with_gradients
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
    regime: Regime | Setting | str | None = None,
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
        y: ``(n,)`` class indices; numbers for a :mod:`regression` regime, whose model has one
            output.
        generator: of the counterfactuals, or its name.
        constraints: of search and loss; by default a box inferred from x (Eq. 12).
        objective: the weights of Eq. 2, or a name from :data:`OBJECTIVES`.
        config: all other settings.
        setting: these four together, or the name of a preset; arguments given beside it take
            precedence.
        regime: another way to train, its name in :data:`REGIMES`, or what :func:`make_regime`
            gives; ``"ensemble"`` is for an :class:`Ensemble`.
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
        The model, in eval mode, and its history.

    Examples:
        >>> import counterfactual_training as ct
        >>> data = ct.load_dataset("moons")
        >>> x, y = data.x_train[:200], data.y_train[:200]
        >>> constraints = ct.Constraints.infer(x, mutability={0: "none"})  # nobody can change 0
        >>> model, config = ct.mlp(2, 2), ct.TrainConfig(epochs=3, learning_rate=0.01)
        >>> result = ct.train(
        ...     model, x, y, ct.ecco(decision_threshold=0.5), constraints, config=config
        ... )
        >>> model(x).shape, list(result.history.to_frame()["epoch"])
        (torch.Size([200, 2]), [1, 2, 3])
    """
    if device is not None:
        model = model.to(device)
        if y is None:
            y = None
        else:
            y = y.to(device)
        if isinstance(x, Tensor):
            x = x.to(device)
    base = _base(setting, regime)
    rows = (x, y) if isinstance(x, Tensor) else (None, None)
    stated = partial(_stated, base, generator, constraints, objective, config, *rows)
    if base.members > 1:
        counted = not isinstance(regime, str)
        return _train_members(
            model,
            stated(),
            counted,
            optimizer,
            x=x,
            y=y,
            validation=validation,
            sample_weight=sample_weight,
            class_weight=class_weight,
            callbacks=callbacks,
            checkpoint=checkpoint,
            progress=progress,
        )
    inner = unwrapped(model)
    data = arguments.training_rows([inner], x, y, sample_weight, class_weight, base.values)
    held = arguments.validation_rows([inner], validation, data)
    chosen = arguments.with_constraints(stated(), data)
    arguments.check_modes(inner, chosen, data, Ranks.from_model(model))
    listeners = arguments.listeners(callbacks, [chosen], progress)
    run = _run(model, chosen, data, held, optimizer, listeners)
    fit(run, None if checkpoint is None else Checkpoint(checkpoint, run))
    return run.results()[0]


def _run(
    model: nn.Module,
    setting: Setting,
    data: TrainingRows,
    held: TrainingRows | None,
    given: Optimizer | OptimizerFactory | None,
    listeners: Sequence[Callback],
) -> Run:
    """The run of one model, by the user's optimizer if there is one, checked."""
    inner = unwrapped(model)
    made = None
    if given is not None:
        if isinstance(given, Optimizer):
            made = given
        else:
            made = given(inner.parameters())
        arguments.check_optimizer(inner, made, setting, Ranks.from_model(model), listeners)
    run = Run([model], [setting], data, held, optimizer=made, callbacks=listeners)
    arguments.check_ranks(run)
    return run


def _train_members(
    model: nn.Module,
    setting: Setting,
    counted: bool,
    optimizer: Optimizer | OptimizerFactory | None,
    **given: Any,
) -> TrainResult:
    """The networks of an ensemble as a fleet, each with a seed of its own.

    ``counted``: as many as the setting says; ``given``: all that :meth:`Fleet.train` takes.
    """
    if not isinstance(model, Ensemble):
        raise ModelError(
            f"An ensemble trains several networks, got one {type(model).__name__}: pass "
            "ct.Ensemble([make() for _ in "
            f"range({setting.members})]), where make returns a network with weights of its own."
        )
    if counted and len(model.members) != setting.members:
        raise InputError(
            f"The setting is about {setting.members} members, the ensemble has "
            f"{len(model.members)}."
        )
    if optimizer is not None:
        raise InputError("Members of an ensemble have an Adam each; leave the optimizer out.")
    one = replace(setting, members=1)
    first = setting.config.seed
    fleet = Fleet(
        [Member(network, one.seeded(first + i)) for i, network in enumerate(model.members)]
    )
    results = fleet.train(**given)
    return TrainResult(model.eval(), results[0].history)


def _base(setting: Setting | str | None, regime: Regime | Setting | str | None) -> Setting:
    """The setting, trained by a regime; some names stand for a setting: ``"as_printed"``."""
    base = preset(setting) if isinstance(setting, str) else setting
    if regime is None:
        return base or Setting()
    if isinstance(regime, Regime):
        return replace(base or Setting(), regime=regime)
    if isinstance(regime, Setting):
        chosen = regime
    else:
        chosen = make_regime(regime)
    if base is None:
        return chosen
    return replace(
        base, regime=chosen.regime, objective=chosen.objective, members=chosen.members
    )


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
        objective=make_objective(objective)
        if isinstance(objective, str)
        else objective or base.objective,
        config=config or base.config,
    )
