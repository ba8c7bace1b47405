"""Recipes: one function per published method, which returns a :class:`Generator`.

To add your own, write a function that returns a :class:`Generator` and pass it to :func:`register_generator`; every
command and config file then knows it by name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from typing import Any, ParamSpec

import torch
from torch import Tensor

from counterfactual_training.core.broadcast import Number
from counterfactual_training.defaults import GENERATORS as NAMES
from counterfactual_training.errors import InputError, check_count, check_name, lookup
from counterfactual_training.models.vae import VAE, fit_vae
from counterfactual_training.search.data_penalties import (
    Gravity,
    Invalidation,
    ScaledDistance,
    SetSize,
    TargetLoss,
    median_deviation,
)
from counterfactual_training.search.diversity import HINGE, Diversity, Scatter
from counterfactual_training.search.generator import NUMBERS, Generator
from counterfactual_training.search.gradient_free import GrowingSpheres, NearestRows, SeedSpace
from counterfactual_training.search.model_checks import check_finite
from counterfactual_training.search.penalties import Decay, Distance, Energy
from counterfactual_training.search.spaces import LatentSpace
from counterfactual_training.search.steps import Greedy, Shrink

Recipe = Callable[..., Generator]
P = ParamSpec("P")

_PER_CLASS, _MOST = 1000, 2000  # training rows kept of each class, and in all


def _recipe(make: Callable[P, Generator]) -> Callable[P, Generator]:
    """A recipe that says which names it takes, if it is given another one."""
    own = [name for name, part in inspect.signature(make).parameters.items() if part.kind is not part.VAR_KEYWORD]
    valid = dict.fromkeys([*own, *(part.name for part in fields(Generator) if part.name != "name")])

    @wraps(make)
    def named(*args: P.args, **settings: P.kwargs) -> Generator:
        for name in settings:
            check_name(f"setting of {make.__name__!r}:", name, valid)
        return make(*args, **settings)

    return named


@_recipe
def generic(lambda_cost: float = 0.001, **settings: Any) -> Generator:
    """Class loss and distance: Wachter, Mittelstadt and Russell (2017)."""
    return Generator("generic", penalties=(Distance(lambda_cost),), **settings)


@_recipe
def ecco(
    lambda_cost: float = 0.001,
    lambda_energy: float = 5.0,
    decay: Decay = "polynomial",
    energy_ridge: float = 1e-3,
    **settings: Any,
) -> Generator:
    """Generic plus an energy penalty, for faithfulness: ECCCo (Altmeyer et al. 2024) without its conformal term."""
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
    """Generic in the latent space of a VAE: REVISE (Joshi et al. 2019). Without one, a VAE is fitted to ``x_train``."""
    if vae is None:
        if x_train is None:
            raise InputError("REVISE searches the latent space of a VAE: pass vae=fit_vae(x), or x_train= to fit one.")
        vae = fit_vae(x_train)
    return Generator("revise", penalties=(Distance(lambda_cost),), space=LatentSpace(vae, reencode), **settings)


@_recipe
def line(
    learning_rate: float = 0.05, max_steps: int = 300, decision_threshold: float = 0.5, **settings: Any
) -> Generator:
    """Class loss alone, by a line search that no step size and no scale of the logits affects (:mod:`line_search`)."""
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
    lambda_cost: float = 0.1, x_train: Tensor | None = None, scale: Tensor | None = None, **settings: Any
) -> Generator:
    """Class loss and distance in units of the median absolute deviation of ``x_train``: Wachter et al. (2017)."""
    if scale is None:
        scale = median_deviation(_flat("wachter", x_train))
    return Generator("wachter", penalties=(ScaledDistance(lambda_cost, scale),), **settings)


@_recipe
def greedy(most: int | None = None, learning_rate: Number = 0.1, max_steps: int = 100, **settings: Any) -> Generator:
    """One feature per step, by η, the one with the largest gradient and at most ``most`` times: Schut et al. (2021).

    By default ``most`` is 1/η. Class loss alone.
    """
    settings = {"step_rule": Greedy(most), **settings}
    return Generator("greedy", learning_rate=learning_rate, max_steps=max_steps, **settings)


@_recipe
def sparse(lambda_sparse: float = 0.05, most: int | None = None, **settings: Any) -> Generator:
    """Class loss and λ‖Δ‖₁ by proximal steps, which leave most features exactly as they are (Beck and Teboulle 2009).

    With ``most``, no more than that many features change: after each step all but the largest changes are taken back
    (Blumensath and Davies 2009).
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
    """Generic plus the distance to the ``nearest`` rows of the target class: Altmeyer et al. (2023).

    At most 1000 rows of each class are kept.
    """
    if rows is None or labels is None:
        rows, labels = _sample("gravitational", x_train, y_train)
    pull = Gravity(lambda_gravity, rows, labels, check_count("nearest", nearest))
    return Generator("gravitational", penalties=(Distance(lambda_cost), pull), **settings)


@_recipe
def claproar(lambda_cost: float = 0.1, lambda_loss: float = 0.5, **settings: Any) -> Generator:
    """Generic plus the loss of a model trained on x′: Altmeyer et al. (2023)."""
    return Generator("claproar", penalties=(Distance(lambda_cost), TargetLoss(lambda_loss)), **settings)


@_recipe
def eccco(
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

    The sets are calibrated at the start of every search, on rows that the model should not have been trained on.
    Without such rows up to 1000 training rows of each class serve, which makes sets somewhat too small.
    """
    if x_calibration is None or y_calibration is None:
        x_calibration, y_calibration = _sample("eccco", x_train, y_train)
    certainty = SetSize(lambda_conformal, x_calibration, y_calibration, coverage, size, temperature)
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
    """Generic plus the chance that noise undoes x′, above a tolerated rate: PROBE (Pawelczyk et al. 2023)."""
    penalties = (Distance(lambda_cost), Invalidation(lambda_invalidation, sigma, rate))
    return Generator("probe", penalties=penalties, **settings)


@_recipe
def nearest_unlike(
    max_steps: int = 100, x_train: Tensor | None = None, rows: Tensor | None = None, **settings: Any
) -> Generator:
    """The nearest training row that the model gives the target class, moved inside the rules: no gradient is needed.

    Known as the nearest unlike neighbour (Dasarathy 1995; Nugent and Cunningham 2005). One row is tried per step, of
    at most 2000.
    """
    if rows is None:
        rows = _flat("nearest_unlike", x_train)
        # A random sample, because rows may be sorted.
        rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))[:_MOST].to(rows.device)]
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
    """``num`` answers to each row that differ from each other, in ``SearchResult.answers``: Mothilal et al. (2020).

    A hinge as class loss, λ_cost times the mean of |Δ_d|/MAD_d, −λ_diversity · det K (:class:`Diversity`), and Adam.
    Without ``x_train`` the MAD is 1. The answers to a row end together: at τ, not before half of the steps. With
    ``num=1`` nothing is there to differ from: the search ends at τ, its result is the answer, and ``answers`` is None.
    """
    if scale is None and x_train is not None:
        rows = _flat("dice", x_train)
        scale = median_deviation(rows) * rows.shape[1]  # their distance is a mean over features
    penalties = (HINGE, ScaledDistance(lambda_cost, scale), Diversity(lambda_diversity, scale))
    settings = {"learning_rate": learning_rate, "max_steps": max_steps, "step_rule": Scatter(), **settings}
    return Generator("dice", penalties=penalties, num_answers=num, **settings)


@_recipe
def growing_spheres(learning_rate: Number = 0.2, max_steps: int = 50, num: int = 1000, **settings: Any) -> Generator:
    """The nearest of ``num`` random points in shells of width η around x, with few changes: Laugel et al. (2018).

    No gradient is needed.
    """
    settings = {"step_rule": GrowingSpheres(num), "space": SeedSpace(), **settings}
    return Generator("growing_spheres", learning_rate=learning_rate, max_steps=max_steps, **settings)


def _flat(name: str, x_train: Tensor | None) -> Tensor:
    """Training rows ``(n, d)``; raises if there are none."""
    if x_train is None or len(x_train) == 0:
        raise InputError(
            f"The generator {name!r} learns from training rows: fit with generator={name!r}, or pass "
            f"make_generator({name!r}, x_train, y_train)."
        )
    if not isinstance(x_train, Tensor):
        raise InputError(f"x_train must be a torch tensor, got {type(x_train).__name__}; use torch.as_tensor.")
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
        came = "none" if y_train is None else f"shape {tuple(y_train.shape)}"
        raise InputError(f"The generator {name!r} needs y_train, one class for each of {len(x)} rows; got {came}.")
    # A random sample, because rows may be sorted; seeded, so that searches are repeatable.
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0)).to(x.device)
    y = y_train.to(x.device)
    kept = torch.cat([order[y[order] == label][:_PER_CLASS] for label in y.unique().tolist()])
    return x[kept], y[kept].long()


_RECIPES: tuple[Recipe, ...] = (
    *(generic, ecco, revise, line, wachter, greedy, sparse, gravitational, claproar, eccco, probe),
    *(nearest_unlike, growing_spheres, dice),
)
GENERATORS: dict[str, Recipe] = dict(zip(NAMES, _RECIPES, strict=True))


def register_generator(name: str, recipe: Recipe) -> None:
    """Register a recipe under a name."""
    GENERATORS[name] = recipe


def make_generator(
    name: str | Generator, x_train: Tensor | None = None, y_train: Tensor | None = None, **settings: Any
) -> Generator:
    """The generator of that name; ``x_train`` and ``y_train`` are used by recipes that learn from data first."""
    if isinstance(name, Generator):
        return name.replace(**settings) if settings else name
    recipe = lookup("generator", name, GENERATORS)
    # Only recipes that fit something name the rows; others would refuse them.
    rows = {"x_train": x_train, "y_train": y_train}
    takes = inspect.signature(recipe).parameters
    return recipe(**{n: value for n, value in rows.items() if value is not None and n in takes} | settings)


def make_alike(
    name: str, like: Generator, x_train: Tensor | None = None, y_train: Tensor | None = None, **settings: Any
) -> Generator:
    """The generator of that name, with ``settings``, and otherwise with the settings of ``like`` that it shares.

    A weight, ``decay`` or ``energy_ridge`` that the recipe does not take has no effect. Search settings are copied if
    ``like`` differs from a plain :class:`Generator` in them, and weights if they differ from those of its recipe,
    because a recipe may have defaults of its own; ``learning_rate`` and ``max_steps`` are copied only if both use the
    same step rule.
    """
    # What of ``like`` was stated, as far as that can be told: whatever differs from a plain generator.
    usual = {f.name: f.default for f in fields(Generator) if f.name in (*NUMBERS, "strict_epsilon", "step_rule")}
    search = {n: getattr(like, n) for n, plain in usual.items() if getattr(like, n) != plain}
    stated = {n: value for n, value in settings.items() if n in usual}
    plain = inspect.signature(GENERATORS[like.name]).parameters if like.name in GENERATORS else {}
    weights = {n: weight for n, weight in like.numbers().items() if n not in NUMBERS}
    # Weights of a fleet are tensors, which no recipe has by default.
    own = {n: plain[n].default for n in weights if n in plain}
    weights = {n: w for n, w in weights.items() if n not in own or isinstance(w, Tensor) or w != own[n]}
    energies = [{"decay": p.decay, "energy_ridge": p.ridge} for p in like.penalties if isinstance(p, Energy)]
    # Later wins: settings stated for this call override what is taken from ``like``.
    rest = weights | (energies[0] if energies else {}) | settings
    takes = inspect.signature(lookup("generator", name, GENERATORS)).parameters
    made = make_generator(name, x_train, y_train, **{n: v for n, v in rest.items() if n in takes and n not in usual})
    # η and T of one step rule mean something else to another; a recipe's own rule is what the recipe is about.
    if made.step_rule != like.step_rule:
        search = {n: value for n, value in search.items() if n not in ("learning_rate", "max_steps")}
    if made.step_rule != "fixed":
        search.pop("step_rule", None)
    return made.replace(**(search | stated))
