"""Models of named data sets trained again, to see whether advice of today holds then."""

from __future__ import annotations

from dataclasses import replace

import torch

from counterfactual_training.datasets.dataset import Dataset
from counterfactual_training.experiments.trained import Recipe, as_classifier, fit
from counterfactual_training.generators import make_generator
from counterfactual_training.tables.audits.people import Predicts, Retrain


def dataset_retrainer(recipe: Recipe, data: Dataset) -> Retrain:
    """Trains as the recipe says: by another seed on all rows, or by its own seed without a random
    part of them.
    """

    def retrain(seed: int, left_out: float) -> Predicts:
        kept = torch.randperm(len(data.y_train), generator=torch.Generator().manual_seed(seed))
        kept = kept[round(left_out * len(kept)) :].sort().values
        rows = replace(data, x_train=data.x_train[kept], y_train=data.y_train[kept])
        # Rows or seed: what changes with both could not be told apart.
        trained = fit(
            replace(recipe, seed=recipe.seed if left_out else seed), rows, progress=False
        )
        generator = make_generator(
            recipe.generator,
            data.x_train,
            data.y_train,
            decision_threshold=data.settings.decision_threshold,
        )
        return as_classifier(trained.model, data, generator, recipe.protected)

    return retrain
