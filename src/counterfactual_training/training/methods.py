"""Published methods, each a function of its numbers. All honour the constraints: no attack, sample
or target moves what may not. Every other setting may be stated, too: ``pgd(epochs=20)``,
``ct_published(lambda_adv=0)``.

Formulas are for a batch of rows x with classes y; f are the logits, LSE f(x) their logsumexp, P the
projection onto what the constraints allow. Numbers such as ε are in the units of the inputs, which
should have a common scale.

Examples:
    >>> import counterfactual_training as ct
    >>> print(ct.methods.ct_published(lambda_adv=0, epochs=20))
    ct_published(lambda_adv=0, epochs=20)
    >>> ct.methods.pgd(epsilon=0.2).numbers["epsilon"]
    0.2
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, kl_div, softplus

from counterfactual_training.core.energy import mean_rows
from counterfactual_training.core.losses import class_loss
from counterfactual_training.core.precision import at_least_single
from counterfactual_training.errors import InputError, unknown
from counterfactual_training.generators import Generator, ecco
from counterfactual_training.generators.perturbations import ascend, input_gradient
from counterfactual_training.training import counternet as counternet_module
from counterfactual_training.training.method import Method
from counterfactual_training.training.objective import Batch, LossTerms, Objective
from counterfactual_training.training.registry import METHODS, register_method
from counterfactual_training.training.registry import bag as bag
from counterfactual_training.training.registry import ensemble as ensemble
from counterfactual_training.training.round import Memory, Round, put, take
from counterfactual_training.training.rows import TrainingRows
from counterfactual_training.training.train_config import TrainConfig

__all__ = [
    "bag",
    "cat",
    "cheap_recourse",
    "conventional",
    "counternet",
    "ct",
    "ct_as_printed",
    "ct_published",
    "dat",
    "ensemble",
    "gradient_supervision",
    "jem",
    "misob",
    "pgd",
    "ross",
    "trades",
]

# |L| beyond which an energy model counts as diverged; the authors of JEM stop there.
_DIVERGED = 1e8
# Rows among which gradient supervision looks for a neighbour.
_CANDIDATES = 2000


@register_method
def conventional() -> Method:
    """Training without counterfactuals: ``CE(f(x), y)``."""
    return Method(objective=Objective(lambda_div=0.0, lambda_reg=0.0, lambda_adv=0.0))


@register_method
def ct(epsilon: float = 0.1, steps: int = 2) -> Method:
    """Counterfactual Training of a bag: each member learns from the rows that it drew and from
    its own nascent counterfactuals, ``CE(f(x), y) + ½ CE(f(x_adv), y)``.

    x_adv is where a search for another class stands after so many steps of signed gradients, ε in
    all: it knows the target and what may not change. Averaging the members takes away what a
    search could exploit in one of them, and pays for the accuracy that the second term costs.
    The published method is :func:`ct_published`.
    """
    # Rounding must not put the last step beyond ε, or it would not be nascent.
    search = Generator(
        "nascent",
        learning_rate=epsilon / steps,
        max_steps=steps,
        epsilon=1.001 * epsilon,
        decision_threshold=0.95,
        step_rule="signed",
    )
    return Method(
        generator=search,
        objective=Objective(lambda_div=0.0, lambda_reg=0.0, lambda_adv=0.5),
        training=TrainConfig(batch_size=100, learning_rate=3e-3, target_rule="not_true"),
        members=5,
        bootstrap=True,
    )


@register_method
def ct_published() -> Method:
    """Counterfactual Training as its authors ran it: Eq. 2 by Algorithm 1.

    Ablations are its numbers: ``ct_published(lambda_adv=0)`` has no adversarial term,
    ``ct_published(lambda_div=0, lambda_reg=0)`` neither divergence nor ridge.
    """
    return Method()


@register_method
def ct_as_printed() -> Method:
    """Counterfactual Training as the paper prints it, where that differs from what its authors ran
    (the table *Paper and authors' code* in docs/explanation/decisions.md).
    """
    return Method(
        generator=ecco(learning_rate=0.25, decay="none", energy_ridge=0.0, strict_epsilon=True),
        training=TrainConfig(
            refresh="batch", shuffle=True, target_rule="uniform", immature="keep"
        ),
        num_std=3.0,
    )


@register_method
def cheap_recourse() -> Method:
    """Cheaper recourse, above all for people with immutable features: a logistic contrast and a
    recourse loss, as far as a budget of accuracy lets.
    """
    return Method(
        generator=ecco(decision_threshold=0.5, max_steps=50),
        objective=Objective(
            lambda_div=0.0,
            lambda_reg=0.0,
            lambda_adv=0.0,
            lambda_contrast=0.1,
            lambda_recourse=0.5,
        ),
        training=TrainConfig(shuffle=True, immature="keep", positives=4),
        num_std=0.0,
        budget=0.0025,
        project_categories=True,
    )


@register_method
def pgd(epsilon: float = 0.1, steps: int = 10, step_size: float | None = None) -> Method:
    """Adversarial training (Madry et al. 2018): ``CE(f(x*), y)``, x* by ascent of the loss in the
    ε-ball.

    The step size is 2.5 ε / steps by default. The history's accuracy is that under attack.
    """
    rate = step_size or 2.5 * epsilon / steps

    def find(now: Round) -> Tensor:
        box = now.box(epsilon)
        start = (now.x + epsilon * (2 * now.uniform() - 1)).clamp(*box)
        return ascend(lambda x: input_gradient(now.model, x, now.y), start, box, steps, rate)

    def loss(model: nn.Module, batch: Batch, x_adv: Tensor) -> LossTerms:
        logits = at_least_single(model(x_adv))
        return LossTerms.sum(logits, adversarial=class_loss(logits, batch.y, batch.weight))

    return Method(loss=loss, find=find)


@register_method
def trades(
    beta: float = 1.0, epsilon: float = 0.1, steps: int = 10, step_size: float | None = None
) -> Method:
    """TRADES (Zhang et al. 2019): ``CE(f(x), y) + β KL(p(x) ‖ p(x*))``, x* maximises the KL in the
    ε-ball.
    """
    rate = step_size or 2.5 * epsilon / steps

    def find(now: Round) -> Tensor:
        box = now.box(epsilon)
        clean = at_least_single(now.model(now.x)).softmax(-1)
        # At x itself the KL has no slope, hence the noise.
        start = (now.x + 1e-3 * now.normal()).clamp(*box)
        # ∂KL/∂f(x*) = p(x*) − p(x).
        return ascend(
            lambda x: now.slope(x, lambda f: f.softmax(-1) - clean), start, box, steps, rate
        )

    def loss(model: nn.Module, batch: Batch, x_adv: Tensor) -> LossTerms:
        logits, attacked = _logits(model, batch.y, batch.x, x_adv)
        gap = kl_div(
            attacked.log_softmax(-1), logits.log_softmax(-1), reduction="none", log_target=True
        ).sum(-1)
        fit = class_loss(logits, batch.y, batch.weight)
        return LossTerms.sum(
            logits, class_loss=fit, adversarial=beta * mean_rows(gap, batch.weight)
        )

    return Method(loss=loss, find=find)


@register_method
def jem(
    weight: float = 1.0,
    ridge: float = 0.1,
    steps: int = 20,
    step_size: float = 1.0,
    noise: float = 0.01,
    clip: float = 0.1,
    buffer: int = 10_000,
    restart: float = 0.05,
) -> Method:
    """JEM (Grathwohl et al. 2020): ``CE + w (LSE f(x̃) − LSE f(x)) + ridge (LSE² f(x) + LSE²
    f(x̃))``.

    Samples x̃ start from a replay buffer, or at random in the box of the training rows, and follow
    ``x̃ ← P(x̃ + a ∇LSE + σ N(0, 1))``. Two things keep it stable: no feature moves by more than
    ``clip`` in a step, and the ridge keeps energies small (as ECCCo.jl does on tables). Immutable
    features of a sample are those of its row.
    """

    def remember(data: TrainingRows, lead: torch.Size) -> Memory:
        lower, upper = data.span
        # The same for all members; they differ from the first batch on.
        rng = torch.Generator().manual_seed(0)
        features = lower.shape[data.y.dim() :]
        drawn = torch.rand(buffer, *features, generator=rng, dtype=torch.float32)
        start = lower + (upper - lower) * drawn.to(lower)
        return {"buffer": start.expand(*lead, buffer, *features).clone()}

    def find(now: Round) -> Tensor:
        held = now.memory["buffer"]
        rows = now.y.shape[-1]
        places = now.choose(held.shape[now.y.dim() - 1], rows)
        lower, upper = now.data.span
        fresh = lower + (upper - lower) * now.uniform()
        start = torch.where(now.per_row(now.uniform(rows) < restart), fresh, take(held, places))
        fixed = now.immutable
        x = torch.where(fixed, now.x, start)
        for _ in range(steps):
            step = step_size * now.slope(x, lambda f: f.softmax(-1)) + noise * now.normal()
            x = torch.where(fixed, x, (x + step.clamp(-clip, clip)).clamp(lower, upper))
        now.memory["buffer"] = put(held, places, x)
        return x

    def loss(model: nn.Module, batch: Batch, sampled: Tensor) -> LossTerms:
        logits, others = _logits(model, batch.y, batch.x, sampled)
        real = logits.logsumexp(-1)
        fake = others.logsumexp(-1)
        divergence = mean_rows(fake - real)
        # Not a number: such updates are skipped, and a run of them stops training at its last sound
        # weights.
        divergence = torch.where(divergence.abs() > _DIVERGED, torch.nan, divergence)
        return LossTerms.sum(
            logits,
            class_loss=class_loss(logits, batch.y, batch.weight),
            divergence=weight * divergence,
            ridge=ridge * mean_rows(real.square() + fake.square()),
        )

    return Method(loss=loss, find=find, remember=remember)


@register_method
def dat(
    epsilon: float = 0.1,
    steps: int = 10,
    sample_size: float = 0.1,
    most: int = 40,
    auc: float = 0.8,
) -> Method:
    """DAT (arXiv 2510.13872): ``CE(f(x*), y) + BCE(LSE f(x), 1) + BCE(LSE f(x̃), 0)``, with x* as
    in ``pgd``.

    x̃ climbs LSE f by normalised steps from points of the box with independent columns; it may take
    one step more whenever the energy tells batch and samples apart (AUC ≥ 0.8). Bounded, where
    JEM's divergence is not.
    """
    attack = pgd(epsilon, steps).find

    def remember(data: TrainingRows, lead: torch.Size) -> Memory:
        return {"steps": torch.ones(lead, dtype=torch.float32)}

    def find(now: Round) -> tuple[Tensor, Tensor]:
        lower, upper = now.data.span
        allowed = now.memory["steps"].to(now.x.device)
        fixed = now.immutable
        x = torch.where(fixed, now.x, lower + (upper - lower) * now.uniform())
        for step in range(int(allowed.max())):
            slope = now.slope(x, lambda f: f.softmax(-1)).masked_fill(fixed, 0.0)
            length = now.per_row(slope.flatten(now.y.dim()).norm(dim=-1).clamp_min(1e-12))
            going = (step < allowed).reshape(*allowed.shape, *[1] * (x.dim() - allowed.dim()))
            x = torch.where(going, (x + sample_size * slope / length).clamp(lower, upper), x)
        x = torch.where(fixed, now.x, x)  # a row outside the box keeps what may not change
        real, fake = (now.model(rows).logsumexp(-1) for rows in (now.x, x))
        above = (real.unsqueeze(-1) > fake.unsqueeze(-2)).float().mean((-1, -2))
        now.memory["steps"] = torch.where(above >= auc, (allowed + 1).clamp_max(most), allowed)
        return attack(now), x  # type: ignore[misc]  # pgd always has one

    def loss(model: nn.Module, batch: Batch, points: tuple[Tensor, Tensor]) -> LossTerms:
        attacked, clean, sampled = _logits(model, batch.y, points[0], batch.x, points[1])
        discrimination = mean_rows(
            softplus(-clean.logsumexp(-1)) + softplus(sampled.logsumexp(-1))
        )
        return LossTerms.sum(
            clean,
            adversarial=class_loss(attacked, batch.y, batch.weight),
            divergence=discrimination,
        )

    return Method(loss=loss, find=find, remember=remember)


@register_method
def ross(weight: float = 0.8, reach: float = 0.75, target: int = 1) -> Method:
    """Recourse training (Ross, Lakkaraju and Bastani 2021): ``CE(f(x), y) + λ CE(f(x + δ*),
    target)``.

    δ* minimises the linearised loss of the target over the changes that are allowed, none of which
    exceeds ``reach``: over a box that is ``P(−reach · sign ∇)``. (The authors' code minimises the
    negative; this follows the paper.)
    """

    def find(now: Round) -> Tensor:
        wanted = torch.full_like(now.y, target)
        # One step of gradient descent by its sign, as far as one may go.
        return ascend(
            lambda x: -input_gradient(now.model, x, wanted), now.x, now.box(reach), 1, reach
        )

    def loss(model: nn.Module, batch: Batch, moved: Tensor) -> LossTerms:
        logits, after = _logits(model, batch.y, batch.x, moved)
        fit = class_loss(logits, batch.y, batch.weight)
        wanted = torch.full_like(batch.y, target)
        return LossTerms.sum(
            logits, class_loss=fit, recourse=weight * class_loss(after, wanted, batch.weight)
        )

    return Method(loss=loss, find=find, check=partial(_check_target, target))


@register_method
def gradient_supervision(weight: float = 1.0) -> Method:
    """Gradient supervision (Teney et al. 2020): ``CE + λ mean(1 − cos(∇ₓ f_{y⁺}, x⁺ − x))``.

    x⁺ is the nearest row of another class, among 2,000 training rows; differences that mutability
    forbids do not count. Needs second derivatives.
    """

    def find(now: Round) -> tuple[Tensor, Tensor]:
        places = now.choose(now.data.num_rows, min(now.data.num_rows, _CANDIDATES))
        others, labels, _ = now.data.at(places)
        lead = now.y.dim()
        distance = torch.cdist(now.x.flatten(lead), others.flatten(lead))
        distance = distance.masked_fill(now.y.unsqueeze(-1) == labels.unsqueeze(-2), torch.inf)
        nearest = distance.argmin(-1)
        change = (take(others, nearest) - now.x).flatten(lead)
        return now.constraints.to(change).mask_step(change), labels.gather(-1, nearest)

    def loss(model: nn.Module, batch: Batch, pairs: tuple[Tensor, Tensor]) -> LossTerms:
        (change, y_target), leaf = pairs, batch.x.detach().requires_grad_()
        logits = at_least_single(model(leaf))
        chosen = logits.gather(-1, y_target.unsqueeze(-1)).sum()
        (slope,) = torch.autograd.grad(chosen, leaf, create_graph=True)
        apart = 1 - cosine_similarity(slope.flatten(batch.y.dim()), change, dim=-1)
        fit = class_loss(logits, batch.y, batch.weight)
        return LossTerms.sum(
            logits, class_loss=fit, alignment=weight * mean_rows(apart, batch.weight)
        )

    return Method(loss=loss, find=find)


Pairs = Callable[[Round], tuple[Tensor, Tensor, Tensor]]


@register_method
def cat(weight: float = 1.0, share: float = 0.25, augment: Pairs | None = None) -> Method:
    """Counterfactual adversarial training (Luu and Inoue 2023): ``CE(f(x), y) + λ CE(f(x′), y⁺)``.

    x′ are counterfactuals of the share of rows with the highest entropy, those that arrived. Meant
    for fine-tuning: ``burn_in`` trains the model first. ``augment(round)`` may
    bring other pairs: rows ``(..., m, *features)``, their classes and weights ``(..., m)``.
    """

    def searched(now: Round) -> tuple[Tensor, Tensor, Tensor]:
        logs = at_least_single(now.model(now.x)).log_softmax(-1)
        entropy = -(logs.exp() * logs).sum(-1)
        most = entropy.topk(max(1, round(share * entropy.shape[-1])), -1).indices
        part = replace(now, x=take(now.x, most), y=now.y.gather(-1, most))
        y_target = part.targets()
        counterfactuals = part.search(y_target)
        return counterfactuals.x_cf, y_target, counterfactuals.converged.to(now.x)

    def loss(
        model: nn.Module, batch: Batch, counterfactuals: tuple[Tensor, Tensor, Tensor]
    ) -> LossTerms:
        x_cf, y_target, counted = counterfactuals
        logits, after = _logits(model, batch.y, batch.x, x_cf)
        fit = class_loss(logits, batch.y, batch.weight)
        return LossTerms.sum(
            logits, class_loss=fit, augmented=weight * class_loss(after, y_target, counted)
        )

    # Without a trained model, entropy says nothing.
    fine_tuning = TrainConfig(burn_in=0.5)
    return Method(
        loss=loss,
        find=augment or searched,
        searches=augment is None,
        training=fine_tuning,
    )


@register_method
def misob(strength: float = 0.2, target: int = 1, warm_up: int = 2) -> Method:
    """MISOB (2025): rows weigh ``1 + .2 n s_i / Σs``, with s the cost of recourse of rows that are
    wrongly denied.

    Lowers the burden of recourse without knowing who belongs to which group; the first epochs train
    conventionally.
    """

    def find(now: Round) -> Tensor:
        if now.epoch < warm_up:
            return torch.ones_like(now.y, dtype=now.x.dtype)
        denied = (now.y == target) & (now.model(now.x).argmax(-1) != target)
        # Rows that are not denied ask for the class they have, and are done before the search
        # starts.
        result = now.search(torch.where(denied, target, now.model(now.x).argmax(-1)))
        cost = (result.x_cf - now.x).abs().flatten(now.y.dim()).sum(-1) * denied
        return 1 + strength * cost.shape[-1] * cost / cost.sum(-1, keepdim=True).clamp_min(
            1e-12
        )

    def loss(model: nn.Module, batch: Batch, burden: Tensor) -> LossTerms:
        logits = at_least_single(model(batch.x))
        if batch.weight is None:
            weight = burden
        else:
            weight = burden * batch.weight
        return LossTerms.sum(logits, class_loss=class_loss(logits, batch.y, weight))

    return Method(loss=loss, find=find, check=partial(_check_target, target), searches=True)


counternet = register_method(counternet_module.counternet)
# Pickled by the name it has here.
counternet.__module__ = __name__

# Methods with another network than the usual one.
METHODS_WITH_NETWORK = ("counternet",)

# ---- what they share --------------------------------------------------------------------------


def _logits(model: nn.Module, y: Tensor, *rows: Tensor) -> list[Tensor]:
    """Logits ``(..., n, k)`` of several sets of rows by one forward pass, so that batch statistics
    see all of them.
    """
    dim = y.dim() - 1
    joined = at_least_single(model(torch.cat(rows, dim)))
    return list(joined.split([part.shape[dim] for part in rows], dim))


def _check_target(target: int, models: Sequence[nn.Module], data: TrainingRows) -> None:
    if target >= data.num_classes:
        raise InputError(
            f"target is one of the classes 0..{data.num_classes - 1}, got {target}."
        )


def __getattr__(name: str) -> Any:
    """A method that somebody else registered."""
    try:
        return METHODS[name]
    except KeyError:
        raise AttributeError(unknown("method", name, METHODS)) from None
