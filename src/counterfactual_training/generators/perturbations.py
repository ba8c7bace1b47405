"""White-box attacks in the ∞-norm, inside the constraints: can a small change make the model err?

One-hot columns move like any others: a category is not flipped by an ε.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import torch
from torch import Tensor, nn

from counterfactual_training.constraints import Constraints
from counterfactual_training.errors import InputError, ModelError
from counterfactual_training.generators.model_checks import (
    check_broadcast,
    check_inputs,
    check_logits,
)
from counterfactual_training.generators.search import evaluating
from counterfactual_training.threads import sensible_threads
from counterfactual_training.torch_modes import with_gradients

# Lower and upper bounds ``(..., n, *features)`` that an attack may not leave.
Box = tuple[Tensor, Tensor]


@with_gradients
def fgsm(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    epsilon: float | Tensor,
    constraints: Constraints | None = None,
    clamp: bool = True,
) -> Tensor:
    """Fast gradient sign method (Goodfellow et al. 2015): ``x + ε sign ∇ₓ CE(M(x), y)``,
    untargeted.

    Args:
        model: returns logits.
        x: ``(..., n, *features)`` inputs.
        y: ``(..., n)`` their true classes.
        epsilon: the largest change of a feature; one number, or one per feature, in the units of
            the inputs.
        constraints: immutable features are not attacked, one-way features only their way.
        clamp: keep attacked inputs in the domain of the constraints; inputs outside it may come
            closer, but are not pulled in. The published numbers were made without.

    Returns:
        The attacked inputs, like x.

    Examples:
        >>> import counterfactual_training as ct
        >>> data = ct.load_dataset("moons")
        >>> method = ct.methods.conventional(epochs=5, learning_rate=0.01)
        >>> model = ct.train(ct.mlp(2, 2), data.x_train, data.y_train, method).model
        >>> x_adv = ct.fgsm(model, data.x_test, data.y_test, epsilon=0.3)
        >>> accuracy = [
        ...     (model(x).argmax(-1) == data.y_test).float().mean() for x in (data.x_test, x_adv)
        ... ]
        >>> bool(accuracy[1] < accuracy[0])
        True
    """
    # One step of length ε, from x itself.
    return pgd(
        model,
        x,
        y,
        epsilon,
        1,
        epsilon,
        random_start=False,
        constraints=constraints,
        clamp=clamp,
    )


@with_gradients
def pgd(  # noqa: PLR0913  # public
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    epsilon: float | Tensor,
    steps: int = 40,
    step_size: float | Tensor = 0.01,
    random_start: bool = True,
    rng: torch.Generator | None = None,
    constraints: Constraints | None = None,
    clamp: bool = True,
) -> Tensor:
    """Projected gradient descent (Madry et al. 2018): repeated FGSM steps, each projected back on
    the ε-ball.

    Args:
        model: returns logits.
        x: ``(..., n, *features)`` inputs.
        y: ``(..., n)`` their true classes.
        epsilon: the largest change of a feature, as in :func:`fgsm`.
        steps: updates; choose steps · step_size ≥ 2ε, so that every corner of the ball can be
            reached.
        step_size: of every update; one number, or one per feature.
        random_start: start at a random point of the ball, instead of x.
        rng: draws that point.
        constraints: as in :func:`fgsm`.
        clamp: as in :func:`fgsm`.

    Returns:
        The attacked inputs, like x.

    Examples:
        >>> import counterfactual_training as ct
        >>> data = ct.load_dataset("moons")
        >>> method = ct.methods.conventional(epochs=5, learning_rate=0.01)
        >>> model = ct.train(ct.mlp(2, 2), data.x_train, data.y_train, method).model
        >>> x_adv = ct.pgd(model, data.x_test, data.y_test, epsilon=0.3, steps=20, step_size=0.05)
        >>> accuracy = [
        ...     (model(x).argmax(-1) == data.y_test).float().mean() for x in (data.x_test, x_adv)
        ... ]
        >>> bool(accuracy[1] < accuracy[0])
        True
    """
    if steps < 1:
        raise InputError(f"steps must be positive, got {steps}.")
    check_inputs(model, x, y)
    # Ball, directions and domain are all boxes, so that one clamp projects onto their intersection.
    box = attack_box(x, y, epsilon, constraints, clamp)
    # As in the authors' evaluation: 40 steps of 0.01 from a random start.
    if random_start:
        start = _shake(x.detach(), epsilon, box, rng)
    else:
        start = x.detach()
    with evaluating(model), sensible_threads(model, x):
        return ascend(
            lambda x_adv: input_gradient(model, x_adv, y), start, box, steps, step_size
        )


def ascend(
    gradient: Callable[[Tensor], Tensor],
    start: Tensor,
    box: Box,
    steps: int,
    step_size: float | Tensor,
) -> Tensor:
    """``x ← clamp(x + α sign g(x))``, so many times; the gradient must be a fresh tensor, which is
    overwritten.
    """
    x_adv = start
    for _ in range(steps):
        x_adv = gradient(x_adv).sign_().mul_(_like(step_size, start)).add_(x_adv).clamp_(*box)
    return x_adv


def random_perturbation(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    epsilon: float | Tensor,
    rng: torch.Generator | None = None,
    constraints: Constraints | None = None,
    clamp: bool = True,
) -> Tensor:
    """Uniform noise in the ε-ball: no attack, but what an attack must beat. The model is not
    asked.
    """
    check_inputs(model, x, y)
    return _shake(x.detach(), epsilon, attack_box(x, y, epsilon, constraints, clamp), rng)


def attack_box(
    x: Tensor, y: Tensor, epsilon: float | Tensor, constraints: Constraints | None, clamp: bool
) -> Box:
    """How far an attack on x may go: ε-ball, mutability, domain if ``clamp``."""
    x = x.detach()
    radius = torch.as_tensor(epsilon, dtype=x.dtype, device=x.device)
    if not bool((radius >= 0).all()):
        raise InputError(f"epsilon must not be negative or NaN, got {epsilon}.")
    check_broadcast("epsilon", radius, x)
    lower = x - radius
    upper = x + radius
    if constraints is None:
        return lower, upper
    num_features = prod(x.shape[y.dim() :])
    if constraints.num_features != num_features:
        raise InputError(
            f"The constraints speak of {constraints.num_features} features, x has {num_features}."
        )
    flat = x.reshape(*y.shape, num_features)
    constraints = constraints.to(flat)
    low = lower.reshape_as(flat)
    high = upper.reshape_as(flat)
    # A direction that is forbidden ends at the input itself.
    low = torch.where(constraints.may_decrease.unsqueeze(-2), low, flat)
    high = torch.where(constraints.may_increase.unsqueeze(-2), high, flat)
    if clamp:
        bounds = constraints.bounds(flat)
        # An input outside the domain widens it to itself: a clamp could move it further than ε.
        low = torch.maximum(low, torch.minimum(bounds.lower, flat))
        high = torch.minimum(high, torch.maximum(bounds.upper, flat))
    return low.reshape_as(x), high.reshape_as(x)


def _shake(x: Tensor, epsilon: float | Tensor, box: Box, rng: torch.Generator | None) -> Tensor:
    """A point uniform in the ε-ball, clamped to the box."""
    # Drawn where the generator lives, so that a CPU generator gives the same noise on every device.
    if rng is not None:
        device = rng.device
    else:
        device = x.device
    noise = (
        torch.rand(x.shape, generator=rng, dtype=x.dtype, device=device)
        .to(x.device)
        .mul_(2)
        .sub_(1)
    )
    return noise.mul_(_like(epsilon, x)).add_(x).clamp_(*box)


def _like(value: float | Tensor, x: Tensor) -> float | Tensor:
    if isinstance(value, Tensor):
        return value.to(x)
    return value


def input_gradient(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """``∇ₓ [log Σ_{j≠y} exp M(x)_j − M(x)_y]``, like x; a fresh tensor. The model's own gradients
    are not touched.

    This is ``∇ₓ CE(M(x), y) / (1 − p_y)``: the direction of the cross-entropy's gradient, without
    its factor 1 − p_y, which rounds to zero where the model is sure and would make the attack stand
    still there.
    """
    leaf = x.detach().requires_grad_()
    with torch.enable_grad():
        logits = model(leaf)
    check_logits(logits, y)
    label = y.unsqueeze(-1)
    # The derivative by the logits: softmax over the other classes, −1 at the label.
    weights = (
        logits.detach().scatter(-1, label, -torch.inf).softmax(-1).scatter(-1, label, -1.0)
    )
    (gradient,) = torch.autograd.grad(logits, leaf, weights)
    # The sum first, which is cheap; it may be infinite though no value is.
    if not bool(torch.isfinite(gradient.sum())) and not bool(torch.isfinite(gradient).all()):
        rows = int((~torch.isfinite(gradient)).reshape(y.numel(), -1).any(-1).sum())
        raise ModelError(
            f"The gradient of {rows} of {y.numel()} rows is NaN or infinite; an attack would do "
            "nothing."
        )
    return gradient
