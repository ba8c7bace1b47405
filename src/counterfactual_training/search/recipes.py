"""One published method each: a recipe fills a :class:`Generator`, its citation is its docstring.

A recipe of your own is a function that returns a :class:`Generator`; put it into :data:`GENERATORS` with
:func:`register_generator` and every command, config file and test knows it by name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from torch import Tensor

from counterfactual_training.errors import InputError, unknown
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
    """Generic plus a penalty on the energy, for faithfulness: ECCCo (Altmeyer et al. 2024) but its conformal term."""
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
    """Class loss alone, by steps that depend on neither their size nor the scale of the logits (:mod:`line_search`)."""
    return Generator(
        "line",
        learning_rate=learning_rate,
        max_steps=max_steps,
        decision_threshold=decision_threshold,
        step_rule="line",
        **settings,
    )


GENERATORS: dict[str, Recipe] = {"generic": generic, "ecco": ecco, "revise": revise, "line": line}


def register_generator(name: str, recipe: Recipe) -> None:
    """Make a recipe known by name."""
    GENERATORS[name] = recipe


def make_generator(name: str | Generator, x_train: Tensor | None = None, **settings: Any) -> Generator:
    """The generator of that name; ``x_train`` is used by recipes that learn from data first."""
    if isinstance(name, Generator):
        return name.replace(**settings) if settings else name
    recipe = _recipe(name)
    if x_train is not None and "x_train" in inspect.signature(recipe).parameters:
        settings = {"x_train": x_train, **settings}
    return recipe(**settings)


def make_alike(name: str, like: Generator, x_train: Tensor | None = None, **settings: Any) -> Generator:
    """The generator of that name, in all that is not stated as ``like`` where that can be said of both.

    A weight, ``decay`` or ``energy_ridge`` that the recipe does not take has no effect. Of the settings of the search,
    those count in which ``like`` differs from a plain :class:`Generator`, because a recipe may have its own; the length
    and number of its steps only if they go by the same rule.
    """
    usual = {f.name: f.default for f in fields(Generator) if f.name in (*NUMBERS, "strict_epsilon", "step_rule")}
    search = {n: getattr(like, n) for n, plain in usual.items() if getattr(like, n) != plain}
    stated = {n: value for n, value in settings.items() if n in usual}
    rest = _penalty_settings(like) | settings
    takes = inspect.signature(_recipe(name)).parameters
    made = make_generator(name, x_train, **{n: v for n, v in rest.items() if n in takes and n not in usual})
    if made.step_rule != search.get("step_rule", "fixed"):
        search = {n: value for n, value in search.items() if n not in ("learning_rate", "max_steps")}
    return made.replace(**(search | stated))


def _penalty_settings(generator: Generator) -> dict[str, Any]:
    """What a recipe must be told to make such penalties."""
    energies = [{"decay": p.decay, "energy_ridge": p.ridge} for p in generator.penalties if isinstance(p, Energy)]
    weights = {name: weight for name, weight in generator.numbers().items() if name not in NUMBERS}
    return weights | (energies[0] if energies else {})


def _recipe(name: str) -> Recipe:
    if name not in GENERATORS:
        raise InputError(unknown("generator", name, GENERATORS))
    return GENERATORS[name]
