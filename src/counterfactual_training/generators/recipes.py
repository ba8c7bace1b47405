"""Recipes: one function per published method, which returns a :class:`Generator`.

To add your own, write a function that returns a :class:`Generator` and pass it to
:func:`register_generator`; every command and config file then knows it by name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec

import torch
from torch import Tensor, nn

from counterfactual_training.core.broadcast import Number
from counterfactual_training.defaults import GENERATORS as NAMES
from counterfactual_training.errors import InputError, check_count, check_name, lookup
from counterfactual_training.generators.data_penalties import (
    Gravity,
    Invalidation,
    ScaledDistance,
    SetSize,
    TargetLoss,
    median_deviation,
)
from counterfactual_training.generators.generator import Generator
from counterfactual_training.generators.model_checks import check_finite
from counterfactual_training.generators.penalties import Decay, Distance, Energy
from counterfactual_training.generators.spaces import LatentSpace
from counterfactual_training.generators.steps import Greedy, Shrink

if TYPE_CHECKING:
    from counterfactual_training.generators.robust import Ball
    from counterfactual_training.models.vae import VAE

Recipe = Callable[..., Generator]
P = ParamSpec("P")

_PER_CLASS, _MOST = 1000, 2000  # training rows kept of each class, and in all


def _recipe(make: Callable[P, Generator]) -> Callable[P, Generator]:
    """A recipe that says which names it takes, if it is given another one."""
    arguments = [
        name
        for name, part in inspect.signature(make).parameters.items()
        if part.kind is not part.VAR_KEYWORD
    ]
    valid = dict.fromkeys(
        [*arguments, *(part.name for part in fields(Generator) if part.name != "name")]
    )

    @wraps(make)
    def named(*args: P.args, **settings: P.kwargs) -> Generator:
        for name in settings:
            check_name(f"setting of {make.__name__!r}:", name, valid)
        return make(*args, **settings)

    return named


@_recipe
def generic(lambda_cost: float = 0.001, **settings: Any) -> Generator:
    """Class loss and distance: Wachter, Mittelstadt and Russell (2017).

    Args:
        lambda_cost: weight of the distance ‖x′ − x‖₁.
        **settings: other fields of :class:`Generator`, such as ``decision_threshold``.

    Examples:
        >>> import counterfactual_training as ct
        >>> data = ct.load_dataset("moons")
        >>> method = ct.methods.conventional(epochs=5, learning_rate=0.01)
        >>> model = ct.train(ct.mlp(2, 2), data.x_train, data.y_train, method).model
        >>> other = 1 - data.y_test  # the class that each row is not
        >>> result = ct.search(model, data.x_test, other, ct.generic())
        >>> result.x_cf.shape
        torch.Size([900, 2])
        >>> bool(result.converged.float().mean() > 0.9)
        True
    """
    return Generator("generic", penalties=(Distance(lambda_cost),), **settings)


@_recipe
def ecco(
    lambda_cost: float = 0.001,
    lambda_energy: float = 5.0,
    decay: Decay = "polynomial",
    energy_ridge: float = 1e-3,
    **settings: Any,
) -> Generator:
    """Generic plus an energy penalty, for faithfulness: ECCCo (Altmeyer et al. 2024) without its
    conformal term.

    Args:
        lambda_cost: weight of the distance ‖x′ − x‖₁.
        lambda_energy: weight of the energy, the negative logit of the target class.
        decay: how that weight falls during the search, ``"polynomial"`` or ``"none"``.
        energy_ridge: weight of the squared energy, relative to the energy.
        **settings: other fields of :class:`Generator`, such as ``decision_threshold``.

    Examples:
        >>> import counterfactual_training as ct
        >>> data = ct.load_dataset("moons")
        >>> method = ct.methods.conventional(epochs=5, learning_rate=0.01)
        >>> model = ct.train(ct.mlp(2, 2), data.x_train, data.y_train, method).model
        >>> x, y_target = data.x_test, 1 - data.y_test
        >>> plain = ct.search(model, x, y_target, ct.generic())
        >>> faithful = ct.search(model, x, y_target, ct.ecco())
        >>> energy = [
        ...     -model(result.x_cf).gather(1, y_target[:, None]).mean()
        ...     for result in (plain, faithful)
        ... ]
        >>> bool(energy[1] < energy[0])
        True
    """
    penalties = (Distance(lambda_cost), Energy(lambda_energy, decay, energy_ridge))
    return Generator("ecco", penalties=penalties, **settings)


@_recipe
def revise(
    vae: VAE | None = None,
    lambda_cost: float = 0.001,
    reencode: bool = True,
    x_train: Tensor | None = None,
    **settings: Any,
) -> Generator:
    """Generic in the latent space of a VAE: REVISE (Joshi et al. 2019).

    Args:
        vae: the autoencoder, from :func:`fit_vae`; without one, it is fitted to ``x_train``.
        lambda_cost: weight of the distance ‖x′ − x‖₁.
        reencode: draw the latent point again after every step, as the authors do.
        x_train: ``(n, d)`` training rows, used if there is no ``vae``.
        **settings: other fields of :class:`Generator`, such as ``decision_threshold``.

    Examples:
        >>> import counterfactual_training as ct
        >>> data = ct.load_dataset("moons")
        >>> generator = ct.revise(ct.fit_vae(data.x_train[:200], epochs=10))
        >>> generator.space.vae.latent_dim
        2
        >>> result = ct.search(ct.mlp(2, 2), data.x_test, 1 - data.y_test, generator)
        >>> result.x_cf.shape
        torch.Size([900, 2])
    """
    if vae is None:
        if x_train is None:
            raise InputError(
                "REVISE searches the latent space of a VAE: pass vae=fit_vae(x), or x_train= to "
                "fit one."
            )
        from counterfactual_training.models.vae import fit_vae

        vae = fit_vae(x_train)
    return Generator(
        "revise",
        penalties=(Distance(lambda_cost),),
        space=LatentSpace(vae, reencode),
        **settings,
    )


@_recipe
def line(
    learning_rate: float = 0.05,
    max_steps: int = 300,
    decision_threshold: float = 0.5,
    **settings: Any,
) -> Generator:
    """Class loss alone, by a line search that no step size and no scale of the logits affects
    (:mod:`line_search`).

    Args:
        learning_rate: η, which limits the length of a step.
        max_steps: how many steps to try.
        decision_threshold: τ, on which the search ends.
        **settings: other fields of :class:`Generator`, such as ``epsilon``.

    Examples:
        >>> import counterfactual_training as ct
        >>> data = ct.load_dataset("moons")
        >>> method = ct.methods.conventional(epochs=5, learning_rate=0.01)
        >>> model = ct.train(ct.mlp(2, 2), data.x_train, data.y_train, method).model
        >>> result = ct.search(model, data.x_test, 1 - data.y_test, ct.line(decision_threshold=0.6))
        >>> round(float(result.confidence[result.mature].max()), 3)
        0.6
    """
    return Generator(
        "line",
        learning_rate=learning_rate,
        max_steps=max_steps,
        decision_threshold=decision_threshold,
        step_rule="line",
        **settings,
    )


@_recipe
def wachter(
    lambda_cost: float = 0.1,
    x_train: Tensor | None = None,
    scale: Tensor | None = None,
    **settings: Any,
) -> Generator:
    """Class loss and distance in units of the median absolute deviation of ``x_train``: Wachter et
    al. (2017).

    Args:
        lambda_cost: weight of the distance.
        x_train: ``(n, d)`` training rows.
        scale: ``(d,)`` the unit of each feature, instead of ``x_train``.
        **settings: other fields of :class:`Generator`, such as ``decision_threshold``.

    Examples:
        >>> import counterfactual_training as ct
        >>> data = ct.load_dataset("moons")
        >>> method = ct.methods.conventional(epochs=5, learning_rate=0.01)
        >>> model = ct.train(ct.mlp(2, 2), data.x_train, data.y_train, method).model
        >>> generator = ct.wachter(x_train=data.x_train)
        >>> result = ct.search(model, data.x_test, 1 - data.y_test, generator)
        >>> bool(result.converged.float().mean() > 0.9)
        True
    """
    if scale is None:
        scale = median_deviation(_flat("wachter", x_train))
    return Generator("wachter", penalties=(ScaledDistance(lambda_cost, scale),), **settings)


@_recipe
def greedy(
    most: int | None = None, learning_rate: Number = 0.1, max_steps: int = 100, **settings: Any
) -> Generator:
    """One feature per step, by η, the one with the largest gradient and at most ``most`` times:
    Schut et al. (2021).

    Class loss alone.

    Args:
        most: how often one feature may move; by default 1/η.
        learning_rate: η, the length of every step.
        max_steps: how many steps to make.
        **settings: other fields of :class:`Generator`, such as ``decision_threshold``.

    Examples:
        >>> import counterfactual_training as ct
        >>> data = ct.load_dataset("moons")
        >>> method = ct.methods.conventional(epochs=5, learning_rate=0.01)
        >>> model = ct.train(ct.mlp(2, 2), data.x_train, data.y_train, method).model
        >>> result = ct.search(model, data.x_test, 1 - data.y_test, ct.greedy(learning_rate=0.25))
        >>> moves = (result.x_cf - data.x_test) / 0.25  # whole numbers of steps
        >>> bool((moves - moves.round()).abs().max() < 0.001)
        True
    """
    settings = {"step_rule": Greedy(most), **settings}
    return Generator("greedy", learning_rate=learning_rate, max_steps=max_steps, **settings)


@_recipe
def sparse(lambda_sparse: float = 0.05, most: int | None = None, **settings: Any) -> Generator:
    """Class loss and λ‖Δ‖₁ by proximal steps, which leave most features exactly as they are (Beck
    and Teboulle 2009).

    Args:
        lambda_sparse: λ.
        most: how many features may change; after each step all but the largest changes are taken
            back (Blumensath and Davies 2009). ``None`` sets no limit.
        **settings: other fields of :class:`Generator`, such as ``decision_threshold``.

    Examples:
        >>> import counterfactual_training as ct
        >>> data = ct.load_dataset("moons")
        >>> method = ct.methods.conventional(epochs=5, learning_rate=0.01)
        >>> model = ct.train(ct.mlp(2, 2), data.x_train, data.y_train, method).model
        >>> result = ct.search(model, data.x_test, 1 - data.y_test, ct.sparse(most=1))
        >>> int((result.x_cf != data.x_test).sum(-1).max())  # features changed in a row
        1
    """
    return Generator("sparse", **{"step_rule": Shrink(lambda_sparse, most), **settings})


@_recipe
def gravitational(
    lambda_cost: float = 0.1,
    lambda_gravity: float = 0.5,
    nearest: int = 50,
    x_train: Tensor | None = None,
    y_train: Tensor | None = None,
    rows: Tensor | None = None,
    labels: Tensor | None = None,
    **settings: Any,
) -> Generator:
    """Generic plus the distance to the ``nearest`` rows of the target class: Altmeyer et al.
    (2023).

    At most 1000 rows of each class are kept.

    Args:
        lambda_cost: weight of the distance ‖x′ − x‖₁.
        lambda_gravity: weight of the mean distance to those rows.
        nearest: how many rows pull.
        x_train: ``(n, d)`` training rows.
        y_train: ``(n,)`` their classes.
        rows: ``(m, d)`` the rows themselves, instead of a sample of ``x_train``.
        labels: ``(m,)`` their classes.
        **settings: other fields of :class:`Generator`, such as ``decision_threshold``.

    Examples:
        >>> import counterfactual_training as ct
        >>> data = ct.load_dataset("moons")
        >>> method = ct.methods.conventional(epochs=5, learning_rate=0.01)
        >>> model = ct.train(ct.mlp(2, 2), data.x_train, data.y_train, method).model
        >>> generator = ct.gravitational(x_train=data.x_train, y_train=data.y_train)
        >>> result = ct.search(model, data.x_test, 1 - data.y_test, generator)
        >>> bool(result.converged.float().mean() > 0.9)
        True
    """
    if rows is None or labels is None:
        rows, labels = _sample("gravitational", x_train, y_train)
    pull = Gravity(lambda_gravity, rows, labels, check_count("nearest", nearest))
    return Generator("gravitational", penalties=(Distance(lambda_cost), pull), **settings)


@_recipe
def claproar(lambda_cost: float = 0.1, lambda_loss: float = 0.5, **settings: Any) -> Generator:
    """Generic plus the loss of a model trained on x′: Altmeyer et al. (2023).

    Args:
        lambda_cost: weight of the distance ‖x′ − x‖₁.
        lambda_loss: weight of the cross-entropy CE(M(x′), y⁺).
        **settings: other fields of :class:`Generator`, such as ``decision_threshold``.

    Examples:
        >>> import counterfactual_training as ct
        >>> data = ct.load_dataset("moons")
        >>> method = ct.methods.conventional(epochs=5, learning_rate=0.01)
        >>> model = ct.train(ct.mlp(2, 2), data.x_train, data.y_train, method).model
        >>> result = ct.search(model, data.x_test, 1 - data.y_test, ct.claproar())
        >>> bool(result.converged.float().mean() > 0.9)
        True
    """
    return Generator(
        "claproar", penalties=(Distance(lambda_cost), TargetLoss(lambda_loss)), **settings
    )


@_recipe
def eccco(  # noqa: PLR0913  # public
    lambda_cost: float = 0.001,
    lambda_energy: float = 5.0,
    lambda_conformal: float = 0.4,
    decay: Decay = "polynomial",
    energy_ridge: float = 1e-3,
    coverage: float = 0.95,
    size: float = 1.0,
    temperature: float = 0.1,
    x_train: Tensor | None = None,
    y_train: Tensor | None = None,
    x_calibration: Tensor | None = None,
    y_calibration: Tensor | None = None,
    **settings: Any,
) -> Generator:
    """ECCo plus the size of the conformal set of classes, for certainty: Altmeyer et al. (2024).

    The sets are calibrated at the start of every search, on rows that the model should not have
    been trained on. Without such rows up to 1000 training rows of each class serve, which makes
    sets somewhat too small.

    Args:
        lambda_cost: weight of the distance ‖x′ − x‖₁.
        lambda_energy: weight of the energy, as in :func:`ecco`.
        lambda_conformal: weight of the set size.
        decay: as in :func:`ecco`.
        energy_ridge: as in :func:`ecco`.
        coverage: how often a set must contain the true class.
        size: set size that costs nothing.
        temperature: smoothness of the set size.
        x_train: ``(n, d)`` training rows, used without calibration rows.
        y_train: ``(n,)`` their classes.
        x_calibration: ``(m, d)`` calibration rows.
        y_calibration: ``(m,)`` their classes.
        **settings: other fields of :class:`Generator`, such as ``decision_threshold``.

    Examples:
        >>> import counterfactual_training as ct
        >>> data = ct.load_dataset("moons")
        >>> method = ct.methods.conventional(epochs=5, learning_rate=0.01)
        >>> model = ct.train(ct.mlp(2, 2), data.x_train, data.y_train, method).model
        >>> generator = ct.eccco(x_calibration=data.x_test, y_calibration=data.y_test, coverage=0.9)
        >>> result = ct.search(model, data.x_test, 1 - data.y_test, generator)
        >>> bool(result.converged.float().mean() > 0.9)
        True
    """
    if x_calibration is None or y_calibration is None:
        x_calibration, y_calibration = _sample("eccco", x_train, y_train)
    certainty = SetSize(
        lambda_conformal, x_calibration, y_calibration, coverage, size, temperature
    )
    penalties = (Distance(lambda_cost), Energy(lambda_energy, decay, energy_ridge), certainty)
    return Generator("eccco", penalties=penalties, **settings)


@_recipe
def probe(
    lambda_cost: float = 0.001,
    lambda_invalidation: float = 3.0,
    sigma: float = 0.1,
    rate: float = 0.45,
    **settings: Any,
) -> Generator:
    """Generic plus the chance that noise undoes x′, above a tolerated rate: PROBE (Pawelczyk et al.
    2023).

    Args:
        lambda_cost: weight of the distance ‖x′ − x‖₁.
        lambda_invalidation: weight of that chance.
        sigma: standard deviation of the noise.
        rate: the chance that is tolerated.
        **settings: other fields of :class:`Generator`, such as ``decision_threshold``.

    Examples:
        >>> import counterfactual_training as ct
        >>> data = ct.load_dataset("moons")
        >>> method = ct.methods.conventional(epochs=5, learning_rate=0.01)
        >>> model = ct.train(ct.mlp(2, 2), data.x_train, data.y_train, method).model
        >>> x_cf = ct.search(model, data.x_test, 1 - data.y_test, ct.probe()).x_cf
        >>> noisy = x_cf + 0.1 * x_cf.new_empty(x_cf.shape).normal_()
        >>> bool((model(noisy).argmax(-1) == 1 - data.y_test).float().mean() > 0.9)
        True
    """
    penalties = (Distance(lambda_cost), Invalidation(lambda_invalidation, sigma, rate))
    return Generator("probe", penalties=penalties, **settings)


@_recipe
def roar(
    lambda_cost: float = 0.1, delta_max: float = 0.1, ball: Ball = "linf", **settings: Any
) -> Generator:
    """Generic for the worst model near this one: ROAR (Upadhyay, Joshi and Lakkaraju 2021).

    Minimises ``max_δ CE(M_δ(x′), y⁺) + λ‖x′ − x‖₁`` over ‖δ‖_p ≤ δ_max, with the model approximated
    by a linear one whose weights and intercept δ is added to; :class:`WorstCase` has the closed
    form. A row is done when also the worst model gives it τ. Where none does, because δ_max
    outweighs the slope of the model, it ends where the objective led it, which may be short of τ.

    Departures from the paper: the linear model is the exact gradient at each x′, instead of LIME's
    once at x; a row ends at the worst case's τ, instead of where the objective stops falling; a
    target among many classes is set against all others. The ball is around the weights of model
    space, so the result depends on how features are scaled, and on where their origin is.

    Args:
        lambda_cost: weight of the distance ‖x′ − x‖₁.
        delta_max: radius of the ball of changes to weights and intercept.
        ball: its norm, ``"l1"``, ``"l2"`` or the authors' ``"linf"``.
        **settings: other fields of :class:`Generator`, such as ``decision_threshold``.

    Examples:
        >>> import counterfactual_training as ct
        >>> data = ct.load_dataset("moons")
        >>> method = ct.methods.conventional(epochs=5, learning_rate=0.01)
        >>> model = ct.train(ct.mlp(2, 2), data.x_train, data.y_train, method).model
        >>> settings = {"decision_threshold": 0.5, "lambda_cost": 0.01, "max_steps": 100}
        >>> plain, robust = (
        ...     ct.search(model, data.x_test, 1 - data.y_test, ct.roar(delta_max=most, **settings))
        ...     for most in (0.0, 0.3)
        ... )
        >>> bool(robust.confidence[robust.mature].mean() > plain.confidence[plain.mature].mean())
        True
    """
    from counterfactual_training.generators.robust import WorstCase

    worst = WorstCase(delta_max, ball)
    return Generator("roar", penalties=(Distance(lambda_cost), worst), **settings)


@_recipe
def betarce(  # public
    models: Sequence[nn.Module],
    share: float = 0.8,
    confidence: float = 0.9,
    width: float = 0.1,
    num: int = 100,
    lambda_cost: float = 0.001,
    max_steps: int = 130,
    **settings: Any,
) -> Generator:
    """Generic, then moved until enough other models accept it to guarantee that a share of all such
    models does: BetaRCE (Stępka, Lango and Stefanowski 2025).

    Models of one kind, such as those trained on bootstrap samples, are asked; :class:`Guarantee`
    says how many of them must accept (:func:`guaranteed_share`). The answer of plain descent is the
    base; if it does not suffice, the nearest of ``num`` points in growing shells around it that
    does is the answer (:mod:`spheres`). ``step_rule="normalised"`` or another rule descends
    on instead.

    A row for which the guarantee is not reached within ``max_steps`` ends at its base, converged if
    that is at τ. Models that searched flatter the answer: they guarantee less than they say, and
    others should report.

    Departures from the paper: one-hot columns and numbers with steps are drawn as continuous ones
    and rounded, instead of by tossing coins; rules hold for every point; the base is searched in
    the same loop.

    Args:
        models: torch modules from rows ``(n, d)`` of model space to logits ``(n, k)``.
        share: δ, of all models of their kind that should accept.
        confidence: α, of the guarantee.
        width: of a shell, by L2.
        num: points per row and shell.
        lambda_cost: weight of the distance ‖x′ − x‖₁ in the search for the base.
        max_steps: of the descent and the shells together.
        **settings: other fields of :class:`Generator`, such as ``decision_threshold``.

    Examples:
        >>> import torch
        >>> import counterfactual_training as ct
        >>> data = ct.load_dataset("moons")
        >>> method = ct.methods.conventional(epochs=5, learning_rate=0.01)
        >>> others = [
        ...     ct.train(ct.mlp(2, 2), data.x_train[i::6], data.y_train[i::6], method).model
        ...     for i in range(6)
        ... ]
        >>> model = others.pop()
        >>> x, y_target = data.x_test[:50], 1 - data.y_test[:50]
        >>> generator = ct.betarce(others, share=0.7, decision_threshold=0.5)
        >>> x_cf = ct.search(model, x, y_target, generator).x_cf
        >>> agree = torch.stack([other(x_cf).argmax(-1) == y_target for other in others]).sum(0)
        >>> bool((ct.guaranteed_share(agree, 5) >= 0.7).mean() > 0.9)
        True
    """
    from counterfactual_training.generators.gradient_free import SeedSpace
    from counterfactual_training.generators.robust import Guarantee
    from counterfactual_training.generators.spheres import SpheresAround

    guarantee = Guarantee(tuple(models), share, confidence)
    if "step_rule" not in settings:
        settings["step_rule"] = SpheresAround(guarantee, width, num)
        settings.setdefault("space", SeedSpace())
    penalties = (Distance(lambda_cost), guarantee)
    return Generator("betarce", penalties=penalties, max_steps=max_steps, **settings)


@_recipe
def nearest_unlike(
    max_steps: int = 100,
    x_train: Tensor | None = None,
    rows: Tensor | None = None,
    **settings: Any,
) -> Generator:
    """The nearest training row that the model gives the target class, moved inside the rules: no
    gradient is needed.

    Known as the nearest unlike neighbour (Dasarathy 1995; Nugent and Cunningham 2005). One row is
    tried per step, of at most 2000.

    Args:
        max_steps: how many rows to try.
        x_train: ``(n, d)`` training rows.
        rows: ``(m, d)`` the rows to try, instead of a sample of ``x_train``.
        **settings: other fields of :class:`Generator`, such as ``decision_threshold``.

    Examples:
        >>> import counterfactual_training as ct
        >>> data = ct.load_dataset("moons")
        >>> method = ct.methods.conventional(epochs=5, learning_rate=0.01)
        >>> model = ct.train(ct.mlp(2, 2), data.x_train, data.y_train, method).model
        >>> generator = ct.nearest_unlike(x_train=data.x_train)
        >>> result = ct.search(model, data.x_test[:20], 1 - data.y_test[:20], generator)
        >>> found = result.x_cf[result.mature]
        >>> bool((found[:, None] == data.x_train).all(-1).any(-1).all())  # each is a training row
        True
    """
    if rows is None:
        rows = _flat("nearest_unlike", x_train)
        # A random sample, because rows may be sorted.
        rows = rows[
            torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))[:_MOST].to(
                rows.device
            )
        ]
    from counterfactual_training.generators.gradient_free import NearestRows

    settings = {"step_rule": NearestRows(rows), **settings}
    return Generator("nearest_unlike", max_steps=max_steps, **settings)


@_recipe
def dice(
    num: int = 4,
    lambda_cost: float = 0.5,
    lambda_diversity: float = 1.0,
    learning_rate: Number = 0.05,
    max_steps: int = 100,
    x_train: Tensor | None = None,
    scale: Tensor | None = None,
    **settings: Any,
) -> Generator:
    """``num`` answers to each row that differ from each other, in ``SearchResult.answers``:
    Mothilal et al. (2020).

    A hinge as class loss, λ_cost times the mean of |Δ_d|/MAD_d, −λ_diversity · det K
    (:class:`Diversity`), and Adam. The answers to a row end together: at τ, not before half of the
    steps. With ``num=1`` nothing is there to differ from: the search ends at τ, its result is the
    answer, and ``answers`` is None.

    Args:
        num: answers per row.
        lambda_cost: weight of the distance.
        lambda_diversity: weight of the diversity.
        learning_rate: η of Adam.
        max_steps: how many steps to make.
        x_train: ``(n, d)`` training rows, for the MAD of each feature; without them it is 1.
        scale: ``(d,)`` what each |Δ_d| is divided by, instead of d · MAD_d of ``x_train``.
        **settings: other fields of :class:`Generator`, such as ``decision_threshold``.

    Examples:
        >>> import counterfactual_training as ct
        >>> data = ct.load_dataset("moons")
        >>> method = ct.methods.conventional(epochs=5, learning_rate=0.01)
        >>> model = ct.train(ct.mlp(2, 2), data.x_train, data.y_train, method).model
        >>> generator = ct.dice(num=3, x_train=data.x_train)
        >>> result = ct.search(model, data.x_test[:20], 1 - data.y_test[:20], generator)
        >>> result.x_cf.shape, result.answers.x_cf.shape  # the best one, and all
        (torch.Size([20, 2]), torch.Size([20, 3, 2]))
    """
    from counterfactual_training.generators.diversity import HINGE, Diversity, Scatter

    if scale is None and x_train is not None:
        rows = _flat("dice", x_train)
        scale = median_deviation(rows) * rows.shape[1]  # their distance is a mean over features
    penalties = (HINGE, ScaledDistance(lambda_cost, scale), Diversity(lambda_diversity, scale))
    settings = {
        "learning_rate": learning_rate,
        "max_steps": max_steps,
        "step_rule": Scatter(),
        **settings,
    }
    return Generator("dice", penalties=penalties, num_answers=num, **settings)


@_recipe
def growing_spheres(
    learning_rate: Number = 0.2, max_steps: int = 50, num: int = 1000, **settings: Any
) -> Generator:
    """The nearest of ``num`` random points in shells of width η around x, with few changes: Laugel
    et al. (2018).

    No gradient is needed.

    Args:
        learning_rate: η, the width of a shell.
        max_steps: how many shells to try.
        num: points per shell.
        **settings: other fields of :class:`Generator`, such as ``decision_threshold``.

    Examples:
        >>> import counterfactual_training as ct
        >>> data = ct.load_dataset("moons")
        >>> method = ct.methods.conventional(epochs=5, learning_rate=0.01)
        >>> model = ct.train(ct.mlp(2, 2), data.x_train, data.y_train, method).model
        >>> generator = ct.growing_spheres(num=200)
        >>> result = ct.search(model, data.x_test[:50], 1 - data.y_test[:50], generator)
        >>> bool(result.converged.float().mean() > 0.9)
        True
    """
    from counterfactual_training.generators.gradient_free import GrowingSpheres, SeedSpace

    settings = {"step_rule": GrowingSpheres(num), "space": SeedSpace(), **settings}
    return Generator(
        "growing_spheres", learning_rate=learning_rate, max_steps=max_steps, **settings
    )


def _flat(name: str, x_train: Tensor | None) -> Tensor:
    """Training rows ``(n, d)``; raises if there are none."""
    if x_train is None or len(x_train) == 0:
        raise InputError(
            f"The generator {name!r} learns from training rows: fit with generator={name!r}, or "
            "pass "
            f"make_generator({name!r}, x_train, y_train)."
        )
    if not isinstance(x_train, Tensor):
        raise InputError(
            f"x_train must be a torch tensor, got {type(x_train).__name__}; use torch.as_tensor."
        )
    rows = x_train.detach().reshape(len(x_train), -1)
    try:
        check_finite(rows)
    except InputError as error:
        raise InputError(f"x_train of the generator {name!r}: {error}") from error
    return rows


def _sample(name: str, x_train: Tensor | None, y_train: Tensor | None) -> tuple[Tensor, Tensor]:
    """At most 1000 training rows of each class, always the same ones, and their classes."""
    x = _flat(name, x_train)
    if y_train is None or y_train.shape != x.shape[:1]:
        if y_train is None:
            came = "none"
        else:
            came = f"shape {tuple(y_train.shape)}"
        raise InputError(
            f"The generator {name!r} needs y_train, one class for each of {len(x)} rows; got "
            f"{came}."
        )
    # A random sample, because rows may be sorted; seeded, so that searches are repeatable.
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0)).to(x.device)
    y = y_train.to(x.device)
    kept = torch.cat([order[y[order] == label][:_PER_CLASS] for label in y.unique().tolist()])
    return x[kept], y[kept].long()


_RECIPES: tuple[Recipe, ...] = (
    *(
        generic,
        ecco,
        revise,
        line,
        wachter,
        greedy,
        sparse,
        gravitational,
        claproar,
        eccco,
        probe,
        roar,
    ),
    *(nearest_unlike, growing_spheres, dice),
)
GENERATORS: dict[str, Recipe] = dict(zip(NAMES, _RECIPES, strict=True))


def register_generator(name: str, recipe: Recipe) -> None:
    """Register a recipe under a name.

    Args:
        name: what :func:`make_generator`, classifiers and config files read in this process then
            call it, and commands of ``ct`` that are told by ``--register`` the file that says this.
        recipe: a function that returns a :class:`Generator`; it is passed ``x_train`` and
            ``y_train`` if it takes them.

    Examples:
        >>> import counterfactual_training as ct
        >>> from counterfactual_training.generators import GENERATORS
        >>> def quick(**settings):
        ...     return ct.generic(max_steps=5, **settings)
        >>> ct.register_generator("quick", quick)
        >>> ct.make_generator("quick", decision_threshold=0.5).max_steps
        5
        >>> del GENERATORS["quick"]  # forget it again
    """
    if name in NAMES:
        raise InputError(
            f"{name!r} is a generator of this package; register yours under another name."
        )
    GENERATORS[name] = recipe


def make_generator(
    name: str | Generator,
    x_train: Tensor | None = None,
    y_train: Tensor | None = None,
    **settings: Any,
) -> Generator:
    """The generator of that name.

    Args:
        name: of a recipe; or a :class:`Generator`, of which ``settings`` are changed.
        x_train: ``(n, d)`` training rows, for recipes that learn from them.
        y_train: ``(n,)`` their classes, for the same recipes.
        **settings: arguments of the recipe.

    Examples:
        >>> import counterfactual_training as ct
        >>> data = ct.load_dataset("moons")
        >>> generator = ct.make_generator("gravitational", data.x_train, data.y_train, max_steps=50)
        >>> generator.name, generator.max_steps, len(generator.penalties)
        ('gravitational', 50, 2)
    """
    if isinstance(name, Generator):
        if settings:
            return name.replace(**settings)
        return name
    recipe = lookup("generator", name, GENERATORS)
    # Only recipes that fit something name the rows; others would refuse them.
    rows = {"x_train": x_train, "y_train": y_train}
    takes = inspect.signature(recipe).parameters
    return recipe(
        **{n: value for n, value in rows.items() if value is not None and n in takes} | settings
    )
