"""A classifier of a named data set: train it with the paper's settings, save, load and explain
it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from counterfactual_training.constraints import Constraints
from counterfactual_training.datasets.dataset import Dataset, Variant
from counterfactual_training.defaults import GENERATOR, VARIANT
from counterfactual_training.errors import FileError, lookup
from counterfactual_training.generators import Generator, make_generator
from counterfactual_training.models import mlp
from counterfactual_training.persistence import load_file, load_weights, save_file
from counterfactual_training.tables.columns.encode import Encoder
from counterfactual_training.tables.estimators import CounterfactualClassifier
from counterfactual_training.torch_modes import single_precision
from counterfactual_training.training import (
    History,
    Setting,
    TrainConfig,
    make_objective,
    train,
)

KIND = "data set classifier"
M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True)
class Recipe:
    """How a classifier of a named data set is trained; everything else is as published for the data
    set.

    Attributes:
        data, variant: see :func:`load_dataset`.
        objective: ``full``, ``vanilla``, ``divergence`` or ``adversarial``.
        protected: columns that no counterfactual may change, in training and afterwards.
        generator: of the counterfactuals in training.
        hidden: widths of the hidden layers; none makes a linear classifier.
        epochs, learning_rate, burn_in, seed: see :class:`TrainConfig`.
    """

    data: str
    variant: Variant = VARIANT
    objective: str = "full"
    protected: tuple[str, ...] = ()
    generator: str = GENERATOR
    hidden: tuple[int, ...] = (32,)
    epochs: int = TrainConfig.epochs
    learning_rate: float = TrainConfig.learning_rate
    burn_in: float = TrainConfig.burn_in
    seed: int = TrainConfig.seed

    def setting(self, data: Dataset) -> Setting:
        """How to train on the data set that the recipe names."""
        paper = data.settings
        # A generator with a latent space fits it to the training rows; held-out rows are for the
        # log only.
        rows, _ = data.validation_split(torch.Generator().manual_seed(self.seed))
        return Setting(
            make_generator(
                self.generator,
                data.x_train[rows],
                data.y_train[rows],
                decision_threshold=paper.decision_threshold,
            ),
            protected_constraints(data, data.training_constraints, self.protected),
            make_objective(self.objective, lambda_reg=paper.lambda_reg),
            TrainConfig(
                epochs=self.epochs,
                batch_size=paper.batch_size,
                learning_rate=self.learning_rate,
                num_counterfactuals=paper.num_counterfactuals,
                burn_in=self.burn_in,
                seed=self.seed,
            ),
        )


@dataclass(frozen=True, eq=False)
class TrainedClassifier:
    """The model, how it was made, and how its last epoch went."""

    model: nn.Module
    recipe: Recipe
    numbers: dict[str, float]

    def save(self, path: str | Path) -> None:
        """Weights and JSON in one file, nothing that could run."""
        content = {"recipe": asdict(self.recipe), "numbers": self.numbers}
        save_file(path, KIND, self.model.state_dict(), content)

    @classmethod
    def load(cls, path: str | Path) -> TrainedClassifier:
        """The inverse of :meth:`save`."""
        state, content = load_file(path, KIND)
        try:
            stored = {field.name: content["recipe"][field.name] for field in fields(Recipe)}
            stored |= {name: tuple(stored[name]) for name in ("protected", "hidden")}
            recipe = Recipe(**stored)
            numbers = {str(k): float(v) for k, v in content["numbers"].items()}
            model = _of_size(state)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise FileError(
                f"{str(path)!r} is damaged: it does not describe a classifier."
            ) from error
        load_weights(model, state, str(path))
        return cls(model.eval(), recipe, numbers)


def _of_size(state: dict[str, Tensor]) -> nn.Module:
    """An MLP for these weights. Its widths are theirs, so that no file can demand more memory than
    its own size.
    """
    layers = sorted(
        (name for name in state if state[name].dim() == 2),
        key=lambda name: int(name.partition(".")[0]),
    )
    widths = [state[name].shape[0] for name in layers]
    return mlp(state[layers[0]].shape[1], widths[-1], widths[:-1])


def with_weights(seed: int, make: Callable[[], M]) -> M:
    """A model whose float32 weights are drawn by the seed; torch's global random state stays as it
    is.
    """
    with torch.random.fork_rng(devices=[]), single_precision():
        torch.manual_seed(seed)
        return make()


def untrained(data: Dataset, seed: int, hidden: Sequence[int] = (32,)) -> nn.Module:
    """A classifier of the data set, by default the paper's, with weights drawn by the seed."""
    return with_weights(seed, lambda: mlp(data.num_features, data.num_classes, hidden))


def fit_model(
    model: nn.Module,
    data: Dataset,
    setting: Setting,
    progress: bool | None = None,
    checkpoint: str | Path | None = None,
) -> History:
    """Train the model in place, on the rows that validation does not hold out."""
    rows, held_out = data.validation_split(torch.Generator().manual_seed(setting.config.seed))
    return train(
        model,
        data.x_train[rows],
        data.y_train[rows],
        setting=setting,
        validation=(data.x_train[held_out], data.y_train[held_out]) if len(held_out) else None,
        progress=progress,
        checkpoint=checkpoint,
    ).history


def fit(
    recipe: Recipe,
    data: Dataset,
    progress: bool | None = None,
    checkpoint: str | Path | None = None,
) -> TrainedClassifier:
    """Train as the recipe says, on the rows that validation does not hold out; a checkpoint makes
    it resumable.
    """
    model = untrained(data, recipe.seed, recipe.hidden)
    history = fit_model(model, data, recipe.setting(data), progress, checkpoint)
    numbers = {name: history.last(name) for name in ("validation_accuracy", "share_mature")}
    return TrainedClassifier(
        model.eval(), recipe, {"training_accuracy": history.last("accuracy"), **numbers}
    )


def protected_constraints(
    data: Dataset, constraints: Constraints, columns: tuple[str, ...]
) -> Constraints:
    """The constraints with these columns of the frame immutable, instead of those that the paper
    protected.
    """
    slices = encoder_of(data).slices_
    parts = [lookup(f"column of {data.name}:", name, slices) for name in columns]
    held = tuple(j for part in parts for j in range(part.start, part.stop))
    return replace(data, protected=held).protect(constraints)


def protected_columns(data: Dataset) -> tuple[str, ...]:
    """The columns of the frame that the paper protected."""
    held = set(data.protected)
    return tuple(
        name
        for name, part in encoder_of(data).slices_.items()
        if held & set(range(part.start, part.stop))
    )


def encoder_of(data: Dataset) -> Encoder:
    """The data set's encoder; one that changes nothing where features already are the model's
    inputs.
    """
    if data.encoder is not None:
        return data.encoder
    return Encoder(data.schema, scale=False).fit(data.frame_train)


def as_classifier(
    model: nn.Module, data: Dataset, generator: Generator, protected: tuple[str, ...] = ()
) -> CounterfactualClassifier:
    """A model of a data set with the scikit-learn face, so that it explains in the units of
    ``data.frame_test``.

    Args:
        protected: columns that may not change, in addition to those of the data set's schema.
    """
    encoder = encoder_of(data)
    if protected:
        schema = encoder.schema_.override(mutability=dict.fromkeys(protected, "none"))
        encoder = Encoder.from_dict({**encoder.to_dict(), "schema": schema.to_dict()})
    return CounterfactualClassifier.from_trained(model, encoder, data.class_names, generator)
