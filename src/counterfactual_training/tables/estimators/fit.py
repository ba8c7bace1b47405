"""From checked rows to a trained model: one training, or the best of several restarts."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from counterfactual_training.constraints import Constraints
from counterfactual_training.errors import (
    InputError,
    InputWarning,
    ModelError,
    check_name,
    from_outside,
)
from counterfactual_training.gates import Gate, few_rows, gate_of
from counterfactual_training.generators import Generator
from counterfactual_training.models.classifiers import Asinh, squash
from counterfactual_training.models.ensemble import Ensemble
from counterfactual_training.tables.columns.encode import Encoder, Scale
from counterfactual_training.tables.columns.model_space import device_and_dtype, encode_rows
from counterfactual_training.tables.columns.special import codes_warning, find_codes
from counterfactual_training.tables.columns.unchangeable import (
    counts_rows,
    unchangeable_warning,
)
from counterfactual_training.tables.estimators import parameters
from counterfactual_training.tables.estimators.inputs import resolve_schema
from counterfactual_training.tables.estimators.networks import seeded_model
from counterfactual_training.tables.estimators.validation import ValidationRows
from counterfactual_training.torch_internals import module_hooked
from counterfactual_training.training.callbacks import Callback, EarlyStopping, PrintLoss
from counterfactual_training.training.fleet import Fleet, Member, members_of, sound_members
from counterfactual_training.training.method import Method
from counterfactual_training.training.rows import too_rare
from counterfactual_training.training.run import History, TrainResult
from counterfactual_training.training.train import train

# Fewer rows than this held out: chance would decide when to stop, so training runs all epochs on
# all rows.
_FEWEST = 10
# A relation that a smaller share of the training rows keeps is one that nobody keeps.
_HARDLY = 0.01
# Share of the rows held out to choose a restart, or settings, by.
VALIDATION_SHARE = 0.2


class Epochs(NamedTuple):
    """How long a network trained.

    Attributes:
        run: epochs.
        best: those of them that made its weights, if it went back to the best one.
    """

    run: int
    best: int


class Trained(NamedTuple):
    """What was trained.

    Attributes:
        model: a network, or the ensemble of those that did not diverge.
        histories: of each network.
        places: of each network, among those that were to be trained.
    """

    model: nn.Module
    histories: Sequence[History]
    places: Sequence[int] = (0,)

    def epochs(self, before: Sequence[Epochs] = ()) -> list[Epochs]:
        """Of each network, on top of what those that training went on from had ``before``."""
        made = []
        for place, history in zip(self.places, self.histories, strict=True):
            run = len(history.records)
            best = history.best_epoch
            if place < len(before):
                run += before[place].run
                best += before[place].best
            made.append(Epochs(run, best))
        return made


@dataclass(frozen=True, eq=False)
class PreparedFit:
    """A classifier about to be trained.

    Attributes:
        model: untrained.
        encoder: fitted to the training rows.
        constraints: the rules of the columns in model space.
        classes: labels, in the order of the model's outputs.
        x, y: ``(n, d)`` rows in model space and ``(n,)`` class indices, or numbers of a regression.
        method: how to train; its seed also drew the model's weights.
        make_model: another untrained model, its weights drawn by a seed.
        held_out: row numbers ``(v,)`` kept from training, to stop early or keep a budget of
            accuracy by; empty without either.
        class_weight: the weight of rows by class index, or ``"balanced"``.
        patience: epochs without a lower loss on the rows held out before training stops; ``None``:
            never.
        gate: the kind to fit after training, or ``"none"``.
        sample_weight: ``(n,)`` of the rows in the losses; ``None`` weighs all alike.
        listeners: callbacks beside early stopping.
        stopping_share: share of the rows that early stopping holds out, if there are enough; 0
            without it.
        checkpoint: a file to save to while training, and to resume from if it exists.
        goes_on: whether the model is one that was trained before.
    """

    model: nn.Module
    encoder: Encoder
    constraints: Constraints
    classes: np.ndarray
    x: Tensor
    y: Tensor
    method: Method
    make_model: Callable[[int], nn.Module]
    held_out: Tensor
    class_weight: dict[int, float] | str | None
    patience: int | None
    gate: str
    sample_weight: Tensor | None = None
    listeners: tuple[Callback, ...] = ()
    stopping_share: float = 0.0
    checkpoint: str | Path | None = None
    goes_on: bool = False

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
        once = self.method.replace("training.epochs", 1)
        return replace(self, method=once, held_out=self.held_out[:0], patience=None)

    def train(
        self,
        progress: bool | None,
        networks: Sequence[nn.Module] | None = None,
        optimizers: Sequence[torch.optim.Optimizer] | None = None,
    ) -> Trained:
        """Train the model, in place, or the members of an ensemble, as one fleet.

        Args:
            networks: members to train; new ones by default.
            optimizers: one for each network. Members then train one by one, and what the optimizers
                remember goes on.
        """
        if self.method.members > 1:
            return self._train_members(progress, networks, optimizers)
        x, y, options = self.rows()
        options["progress"] = progress
        if optimizers is not None:
            options["optimizer"] = optimizers[0]
        network = self.model
        if self._squashes_alone(network):
            # The same weights behind inputs that are squashed once, instead of in every epoch.
            network = network[1:]
            squash(x)
            if "validation" in options:
                squash(options["validation"][0])
        return _usable(
            Trained(self.model, [train(network, x, y, self.method, **options).history])
        )

    def _squashes_alone(self, network: nn.Module) -> TypeGuard[nn.Sequential]:
        """Whether training asks for nothing but outputs for whole rows, of a network that first
        squashes these.
        """
        if type(network) is not nn.Sequential or not isinstance(network[0], Asinh):
            return False
        # In their own order batches are views, and matrix products round by how rows lie in memory.
        drawn = self.method.training.shuffle and len(self.held_out) > 0
        searches = self.method.loss is not None or self.method.needs_counterfactuals
        watched = not all(isinstance(listener, PrintLoss) for listener in self.listeners)
        return (
            drawn
            and not searches
            and not watched
            and not any(map(module_hooked, (network, network[0])))
        )

    def _train_members(
        self,
        progress: bool | None,
        networks: Sequence[nn.Module] | None,
        optimizers: Sequence[torch.optim.Optimizer] | None,
    ) -> Trained:
        x, y, options = self.rows()
        if networks is None:
            networks = self.networks()
        weight = options["sample_weight"]
        labels = [*self.classes.tolist()] or None
        members = members_of(networks, self.method, y, weight, labels)
        if optimizers is None:
            results = Fleet(members).train(x, y, progress=progress, **options)
        else:
            results = [
                _trained_alone(member, x, y, options | {"optimizer": optimizer})
                for member, optimizer in zip(members, optimizers, strict=True)
            ]
        sound = sound_members(results)
        model = Ensemble([results[i].model for i in sound])
        return _usable(Trained(model, [results[i].history for i in sound], sound))

    def of_one_network(self) -> PreparedFit:
        """The same for one network that trains on all rows."""
        return replace(self, method=replace(self.method, members=1, bootstrap=False))

    def with_enough_rows(self) -> PreparedFit:
        """The same, or of one network if a class has too few rows to draw samples of."""
        rare = None
        if self.method.members > 1 and self.method.bootstrap:
            rare = too_rare(self.rows()[1])
        if rare is None:
            return self
        message = (
            f"{self.method.name!r} trains one network on all rows instead of "
            f"{self.method.members}: {self.classes.tolist()[rare]!r} has one row to train on, too "
            "few to draw samples of."
        )
        warnings.warn(InputWarning(message), stacklevel=from_outside())
        return self.of_one_network()

    def networks(self) -> list[nn.Module]:
        """The members to train: new ones, or those of the ensemble that training goes on from."""
        num = self.method.members
        if not self.goes_on:
            # Weights and draws of a member come from one seed, as if it were trained alone.
            first = self.method.training.seed
            return [self.make_model(seed) for seed in range(first, first + num)]
        if not isinstance(self.model, Ensemble):
            raise InputError(
                f"Training goes on with one network, and the method {self.method.name!r} has "
                f"{num}: fit anew."
            )
        models = list(self.model.members)
        # Of five members, one that diverged may be missing.
        if len(models) != num and "members" in self.method.stated:
            raise InputError(
                f"Training goes on with the {len(models)} members there are, and the method "
                f"{self.method.name!r} is about {num}: state members={len(models)}, or fit anew."
            )
        return models

    def rows(self) -> tuple[Tensor, Tensor, dict[str, Any]]:
        """Rows and classes to train on, and the arguments of a training that follow from them."""
        x = self.x
        y = self.y
        weight = self.sample_weight
        held_out = self.held_out
        options: dict[str, Any] = {
            "callbacks": self.callbacks(),
            "class_weight": self.class_weight,
        }
        if len(held_out):
            in_training = torch.ones(len(y), dtype=torch.bool, device=y.device).index_fill(
                0, held_out, False
            )
            options["validation"] = (x[held_out], y[held_out])
            x = x[in_training]
            y = y[in_training]
            if weight is not None:
                weight = weight[in_training]
        return x, y, options | {"sample_weight": weight, "checkpoint": self.checkpoint}

    def fit_gate(self, model: nn.Module) -> Gate | None:
        """The gate of the trained model; ``None`` if it gets none."""
        if self.gate == "none":
            return None
        gate = gate_of(
            model, self.x, self.y, self.gate, self.constraints, seed=self.method.training.seed
        )
        message = few_rows(gate, self.y, [repr(label) for label in self.classes.tolist()])
        if message is not None:
            warnings.warn(message, stacklevel=from_outside())
        return gate


def _usable(trained: Trained) -> Trained:
    """The same; raise if it would predict NaN."""
    if not any(history.usable for history in trained.histories):
        raise ModelError(
            "Training diverged: what was trained returns NaN or infinity for the rows that it was "
            "trained on. State a smaller learning_rate."
        )
    return trained


def _trained_alone(
    member: Member, x: Tensor, y: Tensor, options: dict[str, Any]
) -> TrainResult:
    """A member of an ensemble, trained on the rows that it drew."""
    weight = options["sample_weight"]
    if member.rows is not None:
        rows = member.rows.to(y.device)
        x = x[rows]
        y = y[rows]
        if weight is not None:
            weight = weight[rows]
    return train(member.model, x, y, member.method, **options | {"sample_weight": weight})


class Start(NamedTuple):
    """What a training goes on from; with new weights if not with a copy of the model."""

    encoder: Encoder
    classes: np.ndarray
    model: nn.Module
    generator: Generator
    copied: bool = True


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
        start: training continues with this encoder and, unless it says otherwise, a copy of this
            model.
        values: labels are a regression's numbers, so there are no classes and one output.
    """
    base = parameters.method_of(params)
    _check_kind(base, values)
    if start is None:
        encoder = _fitted_encoder(params, frame, params["scaling"])
    else:
        encoder = start.encoder
    classes, y_index = _outputs(labels, start, values)
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
    goes_on = start is not None and start.copied
    if start is not None and goes_on:
        make_model = partial(_copied, start.model)
    else:
        make_model = partial(new_model, x)
    limits = _training_constraints(rules, base.project_categories)
    y = torch.as_tensor(y_index.astype(np.float32 if values else np.int64), device=x.device)
    if start is None:
        learned = None
    else:
        learned = parameters.learned_by(start.generator)
    method = parameters.method_for_rows(params, x, limits, seed, y, learned)
    stopping_share = parameters.held_out_share(params, base)
    held_out = stopping_rows(torch.zeros_like(y) if values else y, stopping_share, seed)
    if sample_weight is None:
        weight = None
    else:
        weight = torch.as_tensor(sample_weight, device=x.device)
    return PreparedFit(
        make_model(seed),
        encoder,
        rules,
        classes,
        x,
        y,
        method,
        make_model,
        held_out.to(y.device),
        _by_index(params["class_weight"], classes),
        parameters.patience(params, base, len(held_out)),
        params["gate"],
        weight,
        parameters.make_callbacks(params),
        stopping_share,
        goes_on=goes_on,
    )


def _check_kind(method: Method, values: bool) -> None:
    """Raise if a method of numbers is to train a classifier, or one of classes a regressor."""
    if method.values and not values:
        raise InputError(
            f"The method {method.name!r} has values=True, so it trains regressors, not classifiers."
        )
    if values and not method.values:
        raise InputError(
            f"The method {method.name!r} trains classifiers; one of numbers has values=True."
        )


def _outputs(
    labels: np.ndarray, start: Start | None, values: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Classes in the order of the model's outputs, and for each row its place among them; numbers
    have no classes and stay as they are.
    """
    if values:
        return np.zeros(0), labels
    classes, places = np.unique(labels, return_inverse=True)
    if start is None:
        return classes, places
    # Going on, classes keep the order of the model's outputs, which a new sort need not have.
    known = start.classes.tolist()
    return start.classes, np.array([known.index(label) for label in classes.tolist()])[places]


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
        codes_warning(find_codes(encoder.schema_, frame)),
        _broken_warning(encoder, frame),
    ]
    # Whoever states mutability has thought about it.
    if params["mutability"] is None:
        counting = [
            column.feature.name
            for column in encoder.columns_
            if counts_rows(column, frame[column.feature.name])
        ]
        hints.append(unchangeable_warning(encoder.schema_, counting))
    for hint in hints:
        if hint is not None:
            warnings.warn(hint, stacklevel=from_outside())
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


def _broken_warning(encoder: Encoder, frame: pd.DataFrame) -> InputWarning | None:
    """What to say about relations that most training rows break, or that nobody keeps: nearly
    always a slip.
    """
    if encoder.schema_.relations:
        shares = encoder.broken_relations(frame)
    else:
        shares = {}
    told = []
    # A column that follows others is made to.
    follows = {rule.text for rule in encoder.schema_.book.follows}
    hardly = {
        text: share
        for text, share in shares.items()
        if share > 1 - _HARDLY and text not in follows
    }
    if hardly:
        if min(hardly.values()) == 1.0:
            who = "No training row keeps"
        else:
            who = f"Fewer than {_HARDLY:.0%} of the training rows keep"
        listed = ", ".join(f'"{text}"' for text in hardly)
        told.append(f"{who} {listed}, so that there may be no advice which does")
    broken = [
        f'"{text}" ({share:.0%})'
        for text, share in shares.items()
        if share > 0.5 and text not in hardly
    ]
    if broken:
        told.append(f"Most training rows break {', '.join(broken)}")
    if told:
        return InputWarning(f"{'. '.join(told)}: is the relation as you meant it?")
    return None


def stopping_rows(y: Tensor, share: float, seed: int) -> Tensor:
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


def _by_index(class_weight: Any, classes: np.ndarray) -> dict[int, float] | str | None:
    """Class weights by index, as training wants them; users give them by label."""
    if not isinstance(class_weight, Mapping):
        return class_weight
    labels = classes.tolist()
    for label in class_weight:
        check_name("class in class_weight:", label, labels)
    return {labels.index(label): float(weight) for label, weight in class_weight.items()}


def _copied(model: nn.Module, seed: int) -> nn.Module:
    try:
        return copy.deepcopy(model)
    except Exception as error:  # what a module of somebody else raises
        raise ModelError(
            f"Training goes on with a copy of the model, and {type(model).__name__} cannot be "
            f"copied ({error}): fit anew, or train model_ itself with ct.train."
        ) from error


# ---- restarts ------------------------------------------------------------------------------------


def best_restart(prepared: PreparedFit, num: int, progress: bool | None) -> Trained:
    """Train as a fleet from ``num`` seeds on four fifths of the rows; keep one by the others.

    The choice is the most plausible model among those whose validation accuracy is within one
    standard error of the best.
    """
    x = prepared.x
    y = prepared.y
    method = prepared.method
    rows, held_out = (
        part.to(x.device)
        for part in validation_split(y, VALIDATION_SHARE, method.training.seed)
    )
    first = method.training.seed
    seeds = range(first, first + num)
    # Weights and draws of a member come from one seed, as if it were trained alone.
    members = [Member(prepared.make_model(seed), method.seeded(seed)) for seed in seeds]
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
    results = [one for one in results if one.history.usable] or results
    measured = ValidationRows(*validation, prepared.constraints)(
        [[result.model] for result in results]
    )
    accuracy = [metrics["accuracy"] for metrics in measured]
    # The binomial standard error of the best accuracy: differences below it are chance.
    error = math.sqrt(max(accuracy) * (1 - max(accuracy)) / len(held_out))
    good = [i for i in range(len(results)) if accuracy[i] >= max(accuracy) - error]
    # Ties go to the more accurate model, then to the first seed: the same choice in every run.
    best = min(good, key=lambda i: (_or_worst(measured[i]["implausibility"]), -accuracy[i], i))
    return _usable(Trained(results[best].model, [results[best].history]))


def _or_worst(value: float) -> float:
    # NaN if no counterfactual is valid, which is worse than any number; comparisons with NaN would
    # pick at random.
    if math.isfinite(value):
        return value
    return math.inf
