"""The same classifier again, on bootstrap samples: witnesses of how long advice lasts."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from counterfactual_training.errors import InputError, check_count, from_outside
from counterfactual_training.models.ensemble import Ensemble, adjoining_layers
from counterfactual_training.tables.advice.points import in_blocks
from counterfactual_training.tables.advice.testimony import check_enough, decision_odds
from counterfactual_training.tables.columns.encode import Encoder
from counterfactual_training.tables.columns.model_space import device_and_dtype, encode_rows
from counterfactual_training.tables.estimators.fit import PreparedFit, Start, prepare
from counterfactual_training.tables.estimators.inputs import frame_and_labels, row_weights
from counterfactual_training.training.callbacks import EpochsOfMembers
from counterfactual_training.training.fleet import Fleet, Member, member_of
from counterfactual_training.training.rows import draw_with_replacement
from counterfactual_training.training.run import TrainResult

# Seeds of weights and draws lie below.
_SEEDS = 2**31 - 1


class Refits:
    """Networks of one encoding that are asked together.

    Args:
        models: maps of rows of the encoder ``(n, d)`` to logits ``(n, k)``; may be ensembles.
        encoder: fitted.
        classes: labels ``(k,)``, in the order of the outputs.
        kind: what they are.
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        encoder: Encoder,
        classes: np.ndarray,
        kind: str = "refits",
    ) -> None:
        self.models = list(models)
        self.encoder = encoder
        self.classes = classes
        self.kind = kind

    def __len__(self) -> int:
        return len(self.models)

    def logits(self, x: Tensor) -> Tensor:
        """Of all models ``(W, n, k)`` for rows ``(n, d)``, on the CPU."""
        if self._joined is None:
            return torch.stack([in_blocks(model, x) for model in self.models])
        of_networks = in_blocks(self._joined, x).unflatten(-1, (sum(self._sizes), -1))
        # The members of an ensemble are next to each other; their mean is what it says.
        parts = of_networks.split(self._sizes, 1)
        return torch.stack([part.mean(1) for part in parts])

    def log_odds(self, rows: pd.DataFrame, target: np.ndarray) -> NDArray[np.float64]:
        if not len(rows):
            return np.zeros((len(self), 0))
        with warnings.catch_warnings():
            # On unknown categories, told when the question was asked.
            warnings.simplefilter("ignore")
            x = encode_rows(self.encoder, rows, device_and_dtype(self.models[0]))
        probability = self.logits(x).double().softmax(-1).numpy()
        return decision_odds(probability, self.classes, target)

    def halves(self) -> tuple[Refits, Refits]:
        return self._halves

    @cached_property
    def _halves(self) -> tuple[Refits, Refits]:
        half = len(self) // 2
        first, second = (
            Refits(part, self.encoder, self.classes, self.kind)
            for part in (self.models[:half], self.models[half:])
        )
        return first, second

    @cached_property
    def _networks(self) -> list[list[nn.Module]]:
        return [
            list(model.members) if type(model) is Ensemble else [model] for model in self.models
        ]

    @cached_property
    def _sizes(self) -> list[int]:
        return [len(networks) for networks in self._networks]

    @cached_property
    def _joined(self) -> nn.Sequential | None:
        """All networks as one, whose outputs stand side by side; ``None`` if they cannot be
        joined.
        """
        layers = adjoining_layers([one for networks in self._networks for one in networks])
        return None if layers is None else nn.Sequential(*layers).eval()

    def __getstate__(self) -> dict[str, Any]:
        # What can be made anew from the models.
        kept = ("models", "encoder", "classes", "kind")
        return {name: vars(self)[name] for name in kept}


def refit(
    classifier: Any, X: Any, y: Any, num: int, sample_weight: Any = None, seed: int = 0
) -> Refits:
    """So many networks like those of a fitted classifier, each trained on a bootstrap sample of the
    rows; all of them as one fleet.

    Each network trains for as many epochs as that of the classifier did up to its best one, the
    first of a bag like the first of the classifier's: rows that a sample has
    twice, once to train on and once to stop by, would let them learn it by heart. A method with a
    budget of accuracy keeps it on rows that none of them is trained on. Of several restarts, a
    refit has one.

    Args:
        classifier: fitted, with an encoding that refits share.
        X, y, sample_weight: the rows, classes and weights that it was fitted to.
        num: how many.
        seed: of the samples and of the trainings.
    """
    check_is_fitted(classifier, "model_")
    check_enough(check_count("num", num))
    frame, labels = frame_and_labels(classifier, X, y, reset=False)
    weight = row_weights(sample_weight, len(labels))
    with warnings.catch_warnings():
        # Said when the classifier itself was fitted.
        warnings.simplefilter("ignore", UserWarning)
        prepared = _prepared(classifier, frame, labels, weight, seed)
        models = _trained(prepared, num, seed)
    if len(models) < num:
        warnings.warn(
            f"Of {num} witnesses {num - len(models)} diverged and are left out; a lower "
            "learning_rate would keep them.",
            stacklevel=from_outside(),
        )
    check_enough(len(models))
    return Refits(models, classifier.encoder_, classifier.classes_)


def _prepared(
    classifier: Any,
    frame: pd.DataFrame,
    labels: np.ndarray,
    weight: np.ndarray | None,
    seed: int,
) -> PreparedFit:
    """A training like that of the classifier, from new weights and in its encoding."""
    epochs = _best_epochs(classifier)
    params = classifier.get_params(deep=False) | {
        "gate": "none",
        "early_stopping": False,
        "epochs": max(epochs),
        "verbose": False,
    }
    model = classifier.model_
    start = Start(
        classifier.encoder_, classifier.classes_, model, classifier.generator_, copied=False
    )
    if len(set(epochs)) > 1:
        params["callbacks"] = [*(params["callbacks"] or ()), EpochsOfMembers(epochs)]
    prepared = prepare(params, frame, labels, seed, weight, start)
    # A bag that had too few rows to draw from is one network.
    if not isinstance(model, Ensemble) and classifier.method_.members == 1:
        return prepared.of_one_network()
    return prepared


def _best_epochs(classifier: Any) -> list[int]:
    """How many epochs each of its networks trained for, without those that brought nothing before
    it stopped.
    """
    if not classifier.epochs_:
        raise InputError(
            "This classifier was trained elsewhere, so it cannot be trained again like that: give "
            "an Explainer other models as witnesses=."
        )
    return [epochs.best for epochs in classifier.epochs_]


def _trained(prepared: PreparedFit, num: int, seed: int) -> list[nn.Module]:
    """The refits that did not diverge; members of bags draw from what their refit has drawn."""
    x, y, options = prepared.rows()
    method = prepared.method
    weight = options["sample_weight"]
    rng = torch.Generator().manual_seed(seed)
    members: list[Member] = []
    for _ in range(num):
        sample = draw_with_replacement(y, rng, weight)
        seeds = torch.randint(_SEEDS, (method.members,), generator=rng)
        for seed_of_member in seeds.tolist():
            model = prepared.make_model(seed_of_member)
            drawn = (y.cpu()[sample], None if weight is None else weight.cpu()[sample])
            one = member_of(model, method.seeded(seed_of_member), *drawn)
            rows = sample if one.rows is None else sample[one.rows]
            members.append(replace(one, rows=rows))
    results = Fleet(members).train(x, y, progress=False, **options)
    groups = [results[i : i + method.members] for i in range(0, len(results), method.members)]
    models = [_assembled(group) for group in groups]
    return [model for model in models if model is not None]


def _assembled(results: Sequence[TrainResult]) -> nn.Module | None:
    """The network, or the ensemble of those that did not diverge; ``None`` if all did."""
    sound = [result.model for result in results if not result.history.diverged]
    if not sound:
        return None
    if len(results) == 1:
        return sound[0].eval()
    return Ensemble(sound).eval()
