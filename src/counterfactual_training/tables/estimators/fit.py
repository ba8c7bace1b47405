"""From checked rows to a trained model: one training, the best of several restarts, or a study of
settings.
"""

from __future__ import annotations

import copy
import math
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from counterfactual_training.constraints import Constraints
from counterfactual_training.errors import InputError, check_name, from_outside
from counterfactual_training.gates import Gate, few_rows, gate_of
from counterfactual_training.generators import Generator
from counterfactual_training.models import Asinh, Ensemble, squash
from counterfactual_training.tables.columns.encode import Encoder, Scale
from counterfactual_training.tables.columns.model_space import device_and_dtype, encode_rows
from counterfactual_training.tables.columns.special import codes_in_words, find_codes
from counterfactual_training.tables.columns.unchangeable import unchangeable_in_words
from counterfactual_training.tables.estimators import parameters
from counterfactual_training.tables.estimators.inputs import resolve_schema
from counterfactual_training.tables.estimators.networks import seeded_model
from counterfactual_training.torch_internals import module_hooked
from counterfactual_training.training import (
    Callback,
    EarlyStopping,
    Fleet,
    History,
    Member,
    Setting,
    train,
)
from counterfactual_training.training.callbacks import PrintLoss
from counterfactual_training.tuning import (
    Goal,
    Measure,
    Task,
    Tuning,
    TuningPlan,
    make_space,
    tune,
)
from counterfactual_training.tuning.space import FIXED, OF_REGIMES
from counterfactual_training.tuning.tuner import StudyStatus

# Fewer rows than this held out: chance would decide when to stop, so training runs all epochs on
# all rows.
_FEWEST = 10
# Share of the rows held out to choose a restart, or settings, by.
VALIDATION_SHARE = 0.2


@dataclass(frozen=True, eq=False)
class PreparedFit:
    """A classifier about to be trained.

    Attributes:
        model: untrained.
        encoder: fitted to the training rows.
        constraints: the rules of the columns in model space.
        classes: labels, in the order of the model's outputs.
        x, y: ``(n, d)`` rows in model space and ``(n,)`` class indices, or numbers of a regression.
        setting: how to train; its seed also drew the model's weights.
        make_model: another untrained model, its weights drawn by a seed.
        held_out: row numbers ``(v,)`` kept from training to stop early by; empty without early
            stopping.
        class_weight: the weight of rows by class index, or ``"balanced"``.
        patience: epochs without a lower loss on the rows held out before training stops; ``None``:
            never.
        gate: the kind to fit after training, or ``"none"``.
        sample_weight: ``(n,)`` of the rows in the losses; ``None`` weighs all alike.
        listeners: callbacks beside early stopping.
        stopping_share: share of the rows that early stopping holds out, if there are enough; 0
            without it.
        checkpoint: a file to save to while training, and to resume from if it exists.
    """

    model: nn.Module
    encoder: Encoder
    constraints: Constraints
    classes: np.ndarray
    x: Tensor
    y: Tensor
    setting: Setting
    make_model: Callable[[int], nn.Module]
    held_out: Tensor
    class_weight: dict[int, float] | str | None
    patience: int | None
    gate: str
    sample_weight: Tensor | None = None
    listeners: tuple[Callback, ...] = ()
    stopping_share: float = 0.0
    checkpoint: str | Path | None = None

    def callbacks(self) -> list[Callback]:
        """Early stopping, if there is any, which restores the best epoch; and the user's own."""
        if self.patience is None:
            return list(self.listeners)
        return [
            EarlyStopping(self.patience, metric="validation_loss", mode="min"),
            *self.listeners,
        ]

    def one_epoch(self) -> PreparedFit:
        """The same with one epoch on all rows."""
        once = replace(self.setting, config=replace(self.setting.config, epochs=1))
        return replace(self, setting=once, held_out=self.held_out[:0], patience=None)

    def train(
        self, progress: bool | None, optimizer: torch.optim.Optimizer | None = None
    ) -> History:
        """Train the model, in place."""
        x, y, options = self._rows()
        options |= {"progress": progress, "optimizer": optimizer}
        network = self.model
        if self._squashes_alone(network):
            # The same weights behind inputs that are squashed once, instead of in every epoch.
            network = network[1:]
            squash(x)
            if "validation" in options:
                squash(options["validation"][0])
        return train(network, x, y, setting=self.setting, **options).history

    def _squashes_alone(self, network: nn.Module) -> TypeGuard[nn.Sequential]:
        """Whether training asks for nothing but outputs for whole rows, of a network that first
        squashes these.
        """
        if type(network) is not nn.Sequential or not isinstance(network[0], Asinh):
            return False
        # In their own order batches are views, and matrix products round by how rows lie in memory.
        drawn = self.setting.config.shuffle and len(self.held_out) > 0
        searches = self.setting.regime is not None or self.setting.loss.needs_counterfactuals
        watched = not all(isinstance(listener, PrintLoss) for listener in self.listeners)
        return (
            drawn
            and not searches
            and not watched
            and not any(map(module_hooked, (network, network[0])))
        )

    def train_ensemble(self, num: int, progress: bool | None) -> tuple[Ensemble, History]:
        """Train ``num`` models from different seeds, as one fleet; together with the history of the
        first.
        """
        x, y, options = self._rows()
        first = self.setting.config.seed
        # Weights and draws of a member come from one seed, as if it were trained alone.
        members = [
            Member(self.make_model(seed), self.setting.seeded(seed))
            for seed in range(first, first + num)
        ]
        results = Fleet(members).train(x, y, progress=progress, **options)
        return Ensemble([result.model for result in results]), results[0].history

    def _rows(self) -> tuple[Tensor, Tensor, dict[str, Any]]:
        """Rows and classes to train on, and the arguments of a training that follow from them."""
        x = self.x
        y = self.y
        weight = self.sample_weight
        held = self.held_out
        options: dict[str, Any] = {
            "callbacks": self.callbacks(),
            "class_weight": self.class_weight,
        }
        if len(held):
            kept = torch.ones(len(y), dtype=torch.bool, device=y.device).index_fill(
                0, held, False
            )
            options["validation"] = (x[held], y[held])
            x = x[kept]
            y = y[kept]
            if weight is None:
                weight = None
            else:
                weight = weight[kept]
        return x, y, options | {"sample_weight": weight, "checkpoint": self.checkpoint}

    def fit_gate(self, model: nn.Module) -> Gate | None:
        """The gate of the trained model; ``None`` if it gets none."""
        if self.gate == "none":
            return None
        gate = gate_of(
            model, self.x, self.y, self.gate, self.constraints, seed=self.setting.config.seed
        )
        said = few_rows(gate, self.y, [repr(label) for label in self.classes.tolist()])
        if said is not None:
            warnings.warn(said, stacklevel=from_outside())
        return gate


class Start(NamedTuple):
    """What a training goes on from."""

    encoder: Encoder
    classes: np.ndarray
    model: nn.Module
    generator: Generator


def prepare(
    params: Mapping[str, Any],
    frame: pd.DataFrame,
    labels: np.ndarray,
    seed: int,
    sample_weight: np.ndarray | None = None,
    start: Start | None = None,
    values: bool = False,
) -> PreparedFit:
    """Fit the encoder, and translate the classifier's parameters for these rows.

    Args:
        seed: of the weights and of the training.
        start: goes on with this encoder and a copy of this model.
        values: labels are a regression's numbers, so there are no classes and one output.
    """
    preset = parameters.make_preset(params)
    base = parameters.base_setting(params)
    if start is None:
        encoder = _fitted_encoder(params, frame, preset.scaling)
    else:
        encoder = start.encoder
    # Going on, classes keep the order of the model's outputs, which a new sort need not have.
    if values:
        classes = np.zeros(0)
        y_index = labels
    else:
        classes, y_index = np.unique(labels, return_inverse=True)
    if start is not None:
        known = start.classes.tolist()
        classes, y_index = (
            start.classes,
            np.array([known.index(label) for label in classes.tolist()])[y_index],
        )
    # Training may use the whole range of the data; advice later keeps to its bulk.
    rules = encoder.constraints(base.num_std, keep_sign=True, keep_outside=True)
    new_model = partial(
        seeded_model, params, len(encoder.names_), 1 if values else len(classes)
    )
    # A model is made for its device and precision alone, because bends and bins need the encoded
    # rows first.
    x = encode_rows(
        encoder,
        frame,
        device_and_dtype(new_model(None, seed) if start is None else start.model),
    )
    if start is None:
        make_model = partial(new_model, x)
    else:
        make_model = partial(_copied, start.model)
    limits = _training_constraints(rules, base.project_categories)
    y = torch.as_tensor(y_index.astype(np.float32 if values else np.int64), device=x.device)
    if start is None:
        learned = None
    else:
        learned = parameters.learned_by(start.generator)
    setting = parameters.make_setting(params, x, limits, seed, y, learned)
    if preset.early_stopping:
        stopping_share = preset.validation_fraction
    else:
        stopping_share = 0.0
    held_out = _stopping_rows(torch.zeros_like(y) if values else y, stopping_share, seed)
    return PreparedFit(
        make_model(seed),
        encoder,
        rules,
        classes,
        x,
        y,
        setting,
        make_model,
        held_out.to(y.device),
        _by_index(params["class_weight"], classes),
        preset.n_iter_no_change if len(held_out) else None,
        preset.gate,
        None if sample_weight is None else torch.as_tensor(sample_weight, device=x.device),
        parameters.make_callbacks(params),
        stopping_share,
    )


def _fitted_encoder(params: Mapping[str, Any], frame: pd.DataFrame, scaling: str) -> Encoder:
    """The encoder of the training rows; points out what looks like special codes, and what nobody
    can change.
    """
    schema = resolve_schema(
        frame,
        *(params[name] for name in ("schema", "mutability", "domain", "special", "relations")),
    )
    # Ranks are the network's affair: in a scale that is not linear, steps and relations would not
    # be the user's.
    if scaling == "standard":
        scale: Scale = True
    else:
        scale = "robust"
    encoder = Encoder(
        schema, unseen=params["unseen"], missing=params["missing"], scale=scale
    ).fit(frame)
    hints = [
        codes_in_words(find_codes(encoder.schema_, frame)),
        _broken_in_words(encoder, frame),
    ]
    # Whoever states mutability has thought about it.
    if params["mutability"] is None:
        hints.append(unchangeable_in_words(encoder.schema_))
    for said in hints:
        if said is not None:
            warnings.warn(said, stacklevel=from_outside())
    return encoder


def validation_split(
    y: Tensor, share: float, seed: int, keep_single: bool = False
) -> tuple[Tensor, Tensor]:
    """Row numbers ``(train, validation)``; the share of every class is held out: at least one row,
    never all.

    A class with one row is an error, unless ``keep_single`` leaves that row to training.
    """
    if not 0 < share < 1:
        raise InputError(f"The share of rows to validate on lies between 0 and 1, got {share}.")
    rng = torch.Generator().manual_seed(seed)
    held_out = torch.zeros(len(y), dtype=torch.bool)
    for label in y.unique():
        rows = (y == label).nonzero().flatten().cpu()
        if len(rows) < 2 and not keep_single:
            raise InputError(
                "Rows are held out to choose on: every class needs at least two, one of them to "
                "train on."
            )
        # A class with one row gives min(1, 0) = 0: nothing is held out.
        take = min(max(round(share * len(rows)), 1), len(rows) - 1)
        held_out[rows[torch.randperm(len(rows), generator=rng)[:take]]] = True
    return (~held_out).nonzero().flatten(), held_out.nonzero().flatten()


def _broken_in_words(encoder: Encoder, frame: pd.DataFrame) -> str | None:
    """What to say about relations that most training rows break: nearly always a slip."""
    if encoder.schema_.relations:
        shares = encoder.broken_relations(frame)
    else:
        shares = {}
    said = [f'"{text}" ({share:.0%})' for text, share in shares.items() if share > 0.5]
    if said:
        return f"Most training rows break {', '.join(said)}: is the relation as you meant it?"
    return None


def _stopping_rows(y: Tensor, share: float, seed: int) -> Tensor:
    """Row numbers to stop early by; none if the share is 0, or the rows are few."""
    if share:
        held_out = validation_split(y, share, seed, keep_single=True)[1]
    else:
        held_out = torch.tensor([], dtype=torch.long)
    if len(held_out) >= _FEWEST:
        return held_out
    return held_out[:0]


def _training_constraints(rules: Constraints, project_categories: bool) -> Constraints:
    """Directions, box and reachable categories. Numbers stay continuous; so do categories, as in
    the authors' code, unless they are projected."""
    free = replace(rules, lattices=())
    if project_categories:
        return free
    return replace(free, category_projection="never")


def _by_index(given: Any, classes: np.ndarray) -> dict[int, float] | str | None:
    """Class weights by index, as training wants them; users give them by label."""
    if not isinstance(given, Mapping):
        return given
    labels = classes.tolist()
    for label in given:
        check_name("class in class_weight:", label, labels)
    return {labels.index(label): float(weight) for label, weight in given.items()}


def _copied(model: nn.Module, seed: int) -> nn.Module:
    return copy.deepcopy(model)


# ---- restarts ------------------------------------------------------------------------------------


def best_restart(
    prepared: PreparedFit, num: int, progress: bool | None
) -> tuple[nn.Module, History]:
    """Train as a fleet from ``num`` seeds on four fifths of the rows; keep one by the others.

    The choice is the most plausible model among those whose validation accuracy is within one
    standard error of the best.
    """
    x = prepared.x
    y = prepared.y
    setting = prepared.setting
    rows, held_out = (
        part.to(x.device) for part in validation_split(y, VALIDATION_SHARE, setting.config.seed)
    )
    seeds = range(setting.config.seed, setting.config.seed + num)
    # Weights and draws of a member come from one seed, as if it were trained alone.
    members = [Member(prepared.make_model(seed), setting.seeded(seed)) for seed in seeds]
    validation = (x[held_out], y[held_out])
    results = Fleet(members).train(
        x[rows],
        y[rows],
        validation=validation,
        class_weight=prepared.class_weight,
        sample_weight=None if prepared.sample_weight is None else prepared.sample_weight[rows],
        callbacks=prepared.callbacks(),
        progress=progress,
        checkpoint=prepared.checkpoint,
    )
    measured = Measure(*validation, prepared.constraints)(
        [[result.model] for result in results]
    )
    accuracy = [metrics["accuracy"] for metrics in measured]
    # The binomial standard error of the best accuracy: differences below it are chance.
    error = math.sqrt(max(accuracy) * (1 - max(accuracy)) / len(held_out))
    good = [i for i in range(num) if accuracy[i] >= max(accuracy) - error]
    # Ties go to the more accurate model, then to the first seed: the same choice in every run.
    best = min(good, key=lambda i: (_or_worst(measured[i]["implausibility"]), -accuracy[i], i))
    return results[best].model, results[best].history


def _or_worst(value: float) -> float:
    # NaN if no counterfactual is valid, which is worse than any number; comparisons with NaN would
    # pick at random.
    if math.isfinite(value):
        return value
    return math.inf


# ---- tuning --------------------------------------------------------------------------------------


def tune_settings(
    prepared: PreparedFit,
    params: Mapping[str, Any],
    goal: Goal,
    plan: TuningPlan,
    space: Mapping[str, Any] | str | Path | None,
    validation_share: float,
    num_seeds: int,
) -> Tuning:
    """Study the settings of a prepared classifier, on rows held out of its training rows."""
    changes = checked_space(prepared, params, space)
    task = tuning_task(prepared, validation_share, num_seeds)
    # A log file has no use for a line that is rewritten.
    if params["progress"] is None:
        shown = sys.stderr.isatty()
    else:
        shown = params["progress"]
    return tune(task, goal, plan, changes, StudyStatus() if shown else None)


def tuning_task(prepared: PreparedFit, validation_share: float, num_seeds: int) -> Task:
    """What is tuned: trained on a part of the rows, as ``fit`` would, and measured on the rest."""
    seed = prepared.setting.config.seed
    rows, measured = validation_split(prepared.y, validation_share, seed)
    measure = Measure(prepared.x[measured], prepared.y[measured], prepared.constraints)
    x = prepared.x[rows]
    y = prepared.y[rows]
    # Other rows than those that trials are compared by, as fit holds out rows of its own.
    held = _stopping_rows(y, prepared.stopping_share, seed).to(y.device)
    if len(held):
        stopping = (x[held], y[held])
    else:
        stopping = None
    kept = torch.ones(len(y), dtype=torch.bool, device=y.device).index_fill(0, held, False)
    # The study has its own status line; losses of every trial would bury it.
    heard = tuple(
        callback for callback in prepared.listeners if not isinstance(callback, PrintLoss)
    )
    alike = replace(
        prepared, listeners=heard, patience=prepared.patience if len(held) else None
    )
    return Task(
        prepared.make_model,
        x[kept],
        y[kept],
        measure,
        prepared.setting,
        num_seeds,
        prepared.gate,
        prepared.class_weight,
        stopping,
        alike.callbacks,
    )


def checked_space(prepared: PreparedFit, params: Mapping[str, Any], space: Any) -> Any:
    """The space to search, without the settings that this classifier cannot pass on to a
    training.
    """
    regime = prepared.setting.regime
    if regime is not None:  # of a regime with a recipe, all numbers can be passed on
        check_name("regime to tune:", regime.name, OF_REGIMES)
        return space
    if not prepared.setting.objective.needs_counterfactuals:
        raise InputError(
            "This classifier trains without counterfactuals, so there is nothing to tune. "
            "preset='as_run', the paper's "
            "method, or objective='full' trains with them."
        )
    weights = parameters.WEIGHTS
    ready_made = isinstance(params["generator"], Generator)
    # What a trial could change but the classifier could not be told afterwards.
    fixed = [
        n
        for n in prepared.setting.numbers()
        if n not in params or (ready_made and n in weights)
    ]
    if ready_made:
        if isinstance(space, str | Path) or set(weights) & set(space or {}):
            raise InputError(
                f"{' and '.join(weights)} of a ready-made generator cannot be tuned: name a "
                "generator, such as "
                "'ecco', or give the ranges of the other settings as a dict."
            )
        space = dict.fromkeys(fixed, FIXED) | dict(space or {})
    for name in fixed:
        if name in make_space(prepared.setting, space, prepared.gate):
            raise InputError(
                f"{name!r} is not a parameter of the classifier, so it cannot tune it."
            )
    return space
