"""The numbers of a training run that every method has. The defaults are what the authors ran; the
table *Paper and authors' code* in docs/explanation/decisions.md lists where the text differs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral
from typing import Literal, get_args, get_origin, get_type_hints

from counterfactual_training.defaults import BURN_IN, EPOCHS, LEARNING_RATE, SEED
from counterfactual_training.errors import bad_value, check_name
from counterfactual_training.training.sampling import TargetRule

Refresh = Literal["epoch", "batch"]
AdversarialLabel = Literal["true", "predicted"]
Immature = Literal["replace", "drop", "keep"]

# Whole numbers of a config, and the smallest allowed.
_COUNTS = {
    "epochs": 0,
    "batch_size": 1,
    "num_counterfactuals": 1,
    "max_bad_updates": 1,
    "seed": -math.inf,
    "threads": 1,
    "accumulate": 1,
    "positives": 1,
}


@dataclass(frozen=True)
class TrainConfig:
    """How to train.

    Attributes:
        epochs: passes over the data.
        batch_size: rows per update.
        learning_rate: of Adam, where no optimizer is given.
        num_counterfactuals: searched per epoch; raised to one per batch if lower.
        burn_in: share of the epochs, at the start, trained conventionally.
        refresh: search once per ``"epoch"`` (as run) or again for every ``"batch"``.
        shuffle: new batches each epoch, or the same in the same order (as run).
        target_rule: how y⁺ is drawn: uniformly among the classes ``"not_predicted"`` for the
            factual (as run), ``"not_true"``, all (``"uniform"``, Alg. 1), or by class frequency
            (``"prior"``, §3.2).
        adversarial_label: x_adv carries its factual's ``"true"`` label (final paper) or the
            ``"predicted"`` one (preprint of July 2025).
        immature: what happens to x′ that missed τ: ``"replace"`` it by its x⁺, so that it counts in
            the ridge only (as run); ``"drop"`` it from the means; ``"keep"`` it (as printed:
            exhausting all T steps is maturity too). Factuals that already were of the target class
            never count as counterfactuals.
        max_bad_updates: consecutive updates with a non-finite loss or gradient after which training
            stops.
        seed: of everything random; the same seed gives the same weights.
        threads: CPU threads; by default one for small models.
        accumulate: mini-batches per update, whose gradients are averaged.
        positives: rows of the target class drawn for each x′; the nearest one, in L1, becomes its
            x⁺.

    Examples:
        >>> import counterfactual_training as ct
        >>> data = ct.load_dataset("moons")
        >>> method = ct.methods.ct_published(
        ...     epochs=4, burn_in=0.5, batch_size=100, num_counterfactuals=100
        ... )
        >>> result = ct.train(ct.mlp(2, 2), data.x_train, data.y_train, method)
        >>> method.training.burn_in_epochs
        2
        >>> result.history.to_frame()["share_mature"].isna().tolist()  # no search in burn-in
        [True, True, False, False]
    """

    epochs: int = EPOCHS
    batch_size: int = 30
    learning_rate: float = LEARNING_RATE
    num_counterfactuals: int = 1000
    burn_in: float = BURN_IN
    refresh: Refresh = "epoch"
    shuffle: bool = False
    target_rule: TargetRule = "not_predicted"
    adversarial_label: AdversarialLabel = "true"
    immature: Immature = "replace"
    max_bad_updates: int = 20
    seed: int = SEED
    threads: int | None = None
    accumulate: int = 1
    positives: int = 1

    def __post_init__(self) -> None:
        for name, smallest in _COUNTS.items():
            value = getattr(self, name)
            if name == "threads" and value is None:
                continue
            if (
                not isinstance(value, Integral)
                or isinstance(value, bool)
                or int(value) < smallest
            ):
                if smallest == -math.inf:
                    least = ""
                else:
                    least = f" of at least {smallest}"
                raise bad_value(name, f"a whole number{least}", value)
            # NumPy's integers cannot be written as JSON
            object.__setattr__(self, name, int(value))
        if not 0 < self.learning_rate < float("inf"):
            raise bad_value("learning_rate", "positive and finite", self.learning_rate)
        if not 0 <= self.burn_in <= 1:
            raise bad_value("burn_in", "a share of the epochs in [0, 1]", self.burn_in)
        for name, kind in get_type_hints(type(self)).items():
            if get_origin(kind) is Literal:
                check_name(name, getattr(self, name), get_args(kind))

    @property
    def burn_in_epochs(self) -> int:
        """Epochs trained conventionally, at the start."""
        return round(self.burn_in * self.epochs)
