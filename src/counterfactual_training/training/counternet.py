"""CounterNet's method, for the network that goes with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from counterfactual_training.constraints import Constraints
from counterfactual_training.core.energy import mean_rows
from counterfactual_training.core.precision import at_least_single
from counterfactual_training.errors import InputError, ModelError, check_name
from counterfactual_training.models.counternet import CounterNet, feasible
from counterfactual_training.training.method import Method
from counterfactual_training.training.objective import Batch, LossTerms
from counterfactual_training.training.round import Round
from counterfactual_training.training.rows import TrainingRows
from counterfactual_training.training.train_config import TrainConfig

LearningMethods = Literal["explainer", "all"]


def counternet(
    fit: float = 1.0,
    cost: float = 0.01,
    validity: float = 0.2,
    second: LearningMethods = "explainer",
) -> Method:
    """CounterNet (Guo, Nguyen and Yadav 2023), λ₁, λ₂ and λ₃ as its authors have them for Adult:

        λ₁ mean (p(x) − y)² + λ₂ mean ‖x′ − x‖²/d + λ₃ mean (p(x′) − (1 − round p(x)))²

    p is the probability of class 1, x′ what the network proposes under the constraints. λ₂ is taken
    before box and directions cut the proposal, so that it leads back there.

    The authors update twice per batch, by block-wise coordinate descent: first by λ₁, then by the
    rest. Here both are one update, **a departure**: of the weights before the first.
    ``second="explainer"`` gives the gradients of λ₂ and λ₃ to the explainer alone, so that advice
    does not change decisions; ``"all"`` to every weight, as their code of 2021 does. They also
    smooth labels and clip gradients at 0.5; for the latter there is :class:`ClipGradient`.
    """
    check_name("second", second, get_args(LearningMethods))
    alone = second == "explainer"

    def loss(model: nn.Module, batch: Batch, rules: Constraints) -> LossTerms:
        logits, proposal = (
            at_least_single(part) for part in model(batch.x, propose=True, detach=alone)
        )
        x = batch.x.to(proposal)
        probability = logits.softmax(-1)[..., 1]
        soft, x_cf = feasible(proposal, x, rules.to(proposal))
        wanted = (probability.detach() < 0.5).to(x)  # 1 − round p
        near = (soft - x).square().mean(-1)

        def missed(points: Tensor) -> Tensor:
            after = at_least_single(model(points.to(batch.x))).softmax(-1)[..., 1]
            return mean_rows((after - wanted).square(), batch.weight)

        return LossTerms.sum(
            logits,
            class_loss=fit * mean_rows((probability - batch.y).square(), batch.weight),
            cost=cost * mean_rows(near, batch.weight),
            validity=validity * (_by_input(missed, x_cf) if alone else missed(x_cf)),
        )

    def find(now: Round) -> Constraints:
        return now.constraints.to(now.x)

    # As its authors trained it.
    training = TrainConfig(batch_size=128, learning_rate=0.003, shuffle=True)
    return Method(loss=loss, find=find, check=_check, training=training)


def _by_input(loss: Callable[[Tensor], Tensor], points: Tensor) -> Tensor:
    """The loss at points, whose gradient reaches what made the points, but not the weights that the
    loss uses.
    """
    leaf = points.detach().requires_grad_()
    value = loss(leaf)
    (slope,) = torch.autograd.grad(value.sum(), leaf)
    lead = value.dim()
    # 0, with the slope as its gradient
    through = (slope * (points - leaf.detach())).flatten(lead).sum(-1)
    return value.detach() + through


def _check(models: Sequence[nn.Module], data: TrainingRows) -> None:
    """Before training: two classes, and the network that the loss is about."""
    if data.num_classes != 2:
        raise InputError(
            "CounterNet answers with the opposite of its prediction, so it needs two classes, "
            f"got {data.num_classes}. "
            "Choose another method, and explain by search."
        )
    for model in models:
        if not isinstance(model, CounterNet):
            raise ModelError(
                f"The method 'counternet' trains a network of its own, got {type(model).__name__}: "
                f"pass ct.counternet({data.num_features}), or train this one by another method."
            )
