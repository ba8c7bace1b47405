"""Recipes: one function per published method, which returns a :class:`Generator`.

To add your own, write a function that returns a :class:`Generator` and pass it to :func:`register_generator`; every
command and config file then knows it by name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from torch import Tensor

from counterfactual_training.defaults import GENERATORS as NAMES
from counterfactual_training.errors import InputError, lookup
from counterfactual_training.models.vae import VAE, fit_vae
from counterfactual_training.search.generator import NUMBERS, Generator
from counterfactual_training.search.penalties import Decay, Distance, Energy
from counterfactual_training.search.spaces import LatentSpace

Recipe = Callable[..., Generator]


def generic(lambda_cost: float = 0.001, **settings: Any) -> Generator:
    """Class loss and distance: Wachter, Mittelstadt and Russell (2017)."""
    return Generator("generic", penalties=(Distance(lambda_cost),), **settings)


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


GENERATORS: dict[str, Recipe] = dict(zip(NAMES, (generic, ecco, revise, line), strict=True))


def register_generator(name: str, recipe: Recipe) -> None:
    """Register a recipe under a name."""
    GENERATORS[name] = recipe


def make_generator(name: str | Generator, x_train: Tensor | None = None, **settings: Any) -> Generator:
    """The generator of that name; ``x_train`` is used by recipes that learn from data first."""
    if isinstance(name, Generator):
        return name.replace(**settings) if settings else name
    recipe = lookup("generator", name, GENERATORS)
    # Only recipes that fit something name x_train; others would refuse it.
    if x_train is not None and "x_train" in inspect.signature(recipe).parameters:
        settings = {"x_train": x_train, **settings}
    return recipe(**settings)


def make_alike(name: str, like: Generator, x_train: Tensor | None = None, **settings: Any) -> Generator:
    """The generator of that name, with ``settings``, and otherwise with the settings of ``like`` that it shares.

    A weight, ``decay`` or ``energy_ridge`` that the recipe does not take has no effect. Search settings are copied if
    ``like`` differs from a plain :class:`Generator` in them, because a recipe may have defaults of its own;
    ``learning_rate`` and ``max_steps`` are copied only if both use the same step rule.
    """
    # What of ``like`` was stated, as far as that can be told: whatever differs from a plain generator.
    usual = {f.name: f.default for f in fields(Generator) if f.name in (*NUMBERS, "strict_epsilon", "step_rule")}
    search = {n: getattr(like, n) for n, plain in usual.items() if getattr(like, n) != plain}
    stated = {n: value for n, value in settings.items() if n in usual}
    weights = {n: weight for n, weight in like.numbers().items() if n not in NUMBERS}
    energies = [{"decay": p.decay, "energy_ridge": p.ridge} for p in like.penalties if isinstance(p, Energy)]
    # Later wins: settings stated for this call override what is taken from ``like``.
    rest = weights | (energies[0] if energies else {}) | settings
    takes = inspect.signature(lookup("generator", name, GENERATORS)).parameters
    made = make_generator(name, x_train, **{n: v for n, v in rest.items() if n in takes and n not in usual})
    # η and T of a descent mean something else to a line search.
    if made.step_rule != search.get("step_rule", "fixed"):
        search = {n: value for n, value in search.items() if n not in ("learning_rate", "max_steps")}
    return made.replace(**(search | stated))
