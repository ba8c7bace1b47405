"""The training objective (Eq. 2): class loss + λ_div·divergence + λ_reg·ridge + λ_adv·adversarial loss."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from counterfactual_training.core.broadcast import Number
from counterfactual_training.core.energy import contrastive_divergence, energy_ridge
from counterfactual_training.core.losses import adversarial_loss, class_loss
from counterfactual_training.errors import InputError, unknown


class Explanations(NamedTuple):
    """Counterfactuals ready for the objective; m rows, all constants.

    ``weight`` ``(..., m)`` lets rows count less or not at all in divergence and ridge; ``None`` counts all alike.
    """

    x_cf: Tensor  # (..., m, *features) mature counterfactuals x′
    x_pos: Tensor  # (..., m, *features) real samples of the target class x⁺, protected
    x_adv: Tensor  # (..., m, *features) nascent counterfactuals
    y_target: Tensor  # (..., m)
    y_adv: Tensor  # (..., m) label of x_adv
    weight: Tensor | None = None

    def rows(self, index: slice) -> Explanations:
        """A slice of the rows."""
        dim = self.y_target.dim() - 1
        start, num = index.start, index.stop - index.start
        weight = None if self.weight is None else self.weight.narrow(dim, start, num)
        return self._replace(
            x_cf=self.x_cf.narrow(dim, start, num),
            x_pos=self.x_pos.narrow(dim, start, num),
            x_adv=self.x_adv.narrow(dim, start, num),
            y_target=self.y_target.narrow(dim, start, num),
            y_adv=self.y_adv.narrow(dim, start, num),
            weight=weight,
        )


@dataclass(frozen=True)
class LossTerms:
    """The terms of Eq. 2, unweighted, each ``()`` (or one per member of a fleet), and their weighted sum."""

    total: Tensor
    class_loss: Tensor
    divergence: Tensor
    ridge: Tensor
    adversarial: Tensor
    logits: Tensor  # (..., n, k) of the mini-batch


@dataclass(frozen=True, eq=False)
class Objective:
    """Eq. 2 with named weights. The ablations are zero weights: see :data:`OBJECTIVES`."""

    lambda_class: Number = 1.0
    lambda_div: Number = 0.5
    lambda_reg: Number = 0.1
    lambda_adv: Number = 0.25

    def __post_init__(self) -> None:
        for name, weight in vars(self).items():
            values = weight.flatten().tolist() if isinstance(weight, Tensor) else [weight]
            if any(not 0 <= value < float("inf") for value in values):
                raise InputError(f"{name} must be a finite number of at least 0, got {weight}.")

    @property
    def needs_divergence(self) -> bool:
        return _nonzero(self.lambda_div) or _nonzero(self.lambda_reg)

    @property
    def needs_adversarial(self) -> bool:
        return _nonzero(self.lambda_adv)

    @property
    def needs_counterfactuals(self) -> bool:
        return self.needs_divergence or self.needs_adversarial

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, explanations: Explanations | None = None) -> LossTerms:
        """The loss of a mini-batch, by one forward pass through everything that counts.

        Args:
            model: returns logits.
            x: ``(..., n, *features)``.
            y: ``(..., n)``.
            explanations: this batch's counterfactuals; without any (burn-in) only the class loss remains.
        """
        inputs = [x]
        if explanations is not None and self.needs_divergence:
            inputs += [explanations.x_pos, explanations.x_cf]
        if explanations is not None and self.needs_adversarial:
            inputs += [explanations.x_adv]
        rows = y.dim() - 1
        joined = model(torch.cat(inputs, rows)) if len(inputs) > 1 else model(x)
        parts = list(joined.split([part.shape[rows] for part in inputs], rows))

        logits = parts.pop(0)
        classes = class_loss(logits, y)
        total = self.lambda_class * classes
        divergence = ridge = adversarial = torch.zeros_like(classes)
        if explanations is not None and self.needs_divergence:
            logits_pos, logits_cf = parts.pop(0), parts.pop(0)
            divergence = contrastive_divergence(logits_pos, logits_cf, explanations.y_target, explanations.weight)
            ridge = energy_ridge(logits_pos, logits_cf, explanations.y_target, explanations.weight)
            total = total + self.lambda_div * divergence + self.lambda_reg * ridge
        if explanations is not None and self.needs_adversarial:
            adversarial = adversarial_loss(parts.pop(0), explanations.y_adv)
            total = total + self.lambda_adv * adversarial
        return LossTerms(total, classes, divergence, ridge, adversarial, logits)


OBJECTIVES = {
    "full": Objective(),
    "vanilla": Objective(lambda_div=0.0, lambda_reg=0.0, lambda_adv=0.0),
    "divergence": Objective(lambda_adv=0.0),
    "adversarial": Objective(lambda_div=0.0, lambda_reg=0.0),
}


def make_objective(name: str, **weights: float) -> Objective:
    """The objective of that name; weights are overridden only where the objective uses them."""
    if name not in OBJECTIVES:
        raise InputError(unknown("objective", name, OBJECTIVES))
    objective = OBJECTIVES[name]
    for weight in weights:
        if weight not in vars(objective):
            raise InputError(unknown("weight", weight, vars(objective)))
    return replace(objective, **{key: value for key, value in weights.items() if _nonzero(getattr(objective, key))})


def _nonzero(weight: Number) -> bool:
    return bool((weight != 0).any()) if isinstance(weight, Tensor) else weight != 0
