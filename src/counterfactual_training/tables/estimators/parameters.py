"""What the classifier's flat parameters mean: presets, and their translation into generator,
objective, setting.

``None`` means what the preset says. Each default is stated once: here, in a preset, or where the
setting is defined.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from numbers import Real
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from counterfactual_training.constraints import Constraints
from counterfactual_training.errors import InputError, check_name, lookup
from counterfactual_training.gates import KINDS as GATES
from counterfactual_training.generators import GENERATORS, Generator, LatentSpace, line
from counterfactual_training.generators.data_penalties import learned as learned_from_data
from counterfactual_training.generators.recipes import make_alike
from counterfactual_training.models import VAE, shape_of
from counterfactual_training.tables.columns.encode import Encoder
from counterfactual_training.training import (
    REGIMES,
    Callback,
    Objective,
    Regime,
    Setting,
    TrainConfig,
    make_objective,
    make_regime,
    preset,
)
from counterfactual_training.training.callbacks import PrintLoss
from counterfactual_training.training.regimes import inner_regime
from counterfactual_training.training.setting import OF_OBJECTIVE, in_parts

# Steps of a search for people; the paper evaluated with as many. Training wants many quick searches
# and uses fewer.
EXPLAIN_STEPS = 50
# A class with this probability is the decision, whatever the others have.
DECISION = 0.5
# Learning rates of networks that want another one than the preset's. Neuro-trees' authors have
# 0.01, with batches of 2,048 rows; this one was better for our smaller batches, on rows held out of
# the training rows of CH and GMSC.
RATES = {"neurotree": 0.003}
Scaling = Literal["standard", "robust", "quantile"]
Params = Mapping[str, Any]

# Of the generator: numbers of the search, and weights of penalties.
_SEARCH = ("max_steps", "decision_threshold", "epsilon", "search_learning_rate")
WEIGHTS = ("lambda_cost", "lambda_energy")


# ---- presets -------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Preset:
    """A way to train, with the network and the treatment of rows that belong to it; by default the
    paper's.

    Attributes:
        setting: of the training.
        hidden, activation: of the network.
        bent: share of the first hidden layer's units that start as bends in single columns
            (:func:`bend`).
        scaling: of numbers, see :class:`Encoder`. ``"robust"`` leaves outliers far out, so the
            network takes their logarithm (:class:`Asinh`). ``"quantile"`` encodes as ``"robust"``
            does, and the network takes ranks (:class:`Quantiles`).
        early_stopping: hold rows out, stop when their loss no longer falls, and keep the best
            epoch.
        validation_fraction: share of the rows to hold out.
        n_iter_no_change: epochs without a lower loss after which training stops.
        gate: kind of gate to fit to the trained model, see :func:`fit_gate`; or ``"none"``.
        explainer: generator of explanations for people; ``None`` is the generator of the training.
    """

    setting: Setting = field(default_factory=Setting)
    hidden: tuple[int, ...] = (32,)
    activation: str = "relu"
    bent: float = 0.0
    scaling: Scaling = "standard"
    early_stopping: bool = False
    validation_fraction: float = 0.15
    n_iter_no_change: int = 10
    gate: str = "none"
    explainer: Generator | None = None


# Chosen for accuracy and log-loss on twelve tables, the bends on eight of them; never on the
# paper's test rows.
DEFAULT = Preset(
    Setting(objective=make_objective("vanilla"), config=TrainConfig(shuffle=True)),
    hidden=(64, 64),
    activation="swish",
    bent=0.25,
    scaling="robust",
    early_stopping=True,
    gate="density",
    explainer=line(),
)
PRESETS = {
    "default": DEFAULT,
    "cheap_recourse": replace(DEFAULT, setting=preset("cheap_recourse"), early_stopping=False),
    "as_run": Preset(),
    "as_printed": Preset(preset("as_printed")),
}


def make_preset(params: Params) -> Preset:
    """The preset, with what is stated about the network, the encoder, the gate and the rows to hold
    out.
    """
    # Parameters of the same name as a field of the preset replace it.
    stated = _stated(params, [f.name for f in fields(Preset) if f.name in params])
    found = replace(_named_preset(params), **stated)
    # A budget weighs accuracy itself, and returns to the last epoch within it.
    if base_setting(params).budget is not None and "early_stopping" not in stated:
        found = replace(found, early_stopping=False)
    check_name("scaling", found.scaling, get_args(Scaling))
    check_name("gate", found.gate, (*GATES, "none"))
    return found


def base_setting(params: Params) -> Setting:
    """The preset's training setting, before anything else that is stated."""
    found = _trained_by(params["regime"], _named_preset(params).setting)
    # Constraints are in model space, which depends on the encoder that is yet to be fitted.
    if found.constraints is not None:
        raise InputError(
            "A preset's constraints have no effect: state mutability, domain or schema, column "
            "by column."
        )
    wide = params["num_std"]
    if wide is None:
        return found
    if not isinstance(wide, Real) or isinstance(wide, bool) or not 0 <= float(wide) < math.inf:
        raise InputError(
            f"num_std must be a number of standard deviations, 0 or more, got {wide!r}."
        )
    return replace(found, num_std=float(wide))


def tuned(params: Params, setting: Setting, found: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters of a classifier with the numbers that tuning found for a setting; a regime's go
    into ``regime``.
    """
    if setting.regime is None:
        own = {}
    else:
        own = {n: v for n, v in found.items() if n in setting.regime.numbers}
    if setting.regime is None or not own:
        return dict(found)
    given = params["regime"]
    if isinstance(given, str):
        named = {"name": given}
    else:
        named = given
    if isinstance(named, Mapping):
        regime = {**named, **own}
    else:
        regime = setting.regime.with_numbers(own)
    return {
        **{name: value for name, value in found.items() if name not in own},
        "regime": regime,
    }


def _trained_by(regime: str | Mapping[str, Any] | Regime | None, usual: Setting) -> Setting:
    """The setting of a regime; without one, the preset's own."""
    if regime is None:
        return usual
    if isinstance(regime, Mapping):
        if "name" not in regime:
            raise InputError(
                f"A regime as a dict needs a name, such as {{'name': 'pgd', …}}, got "
                f"{dict(regime)}."
            )
        return make_regime(**regime)
    if isinstance(regime, Regime):
        return replace(usual, regime=regime, budget=None)
    check_name(
        "regime",
        inner_regime(regime) if isinstance(regime, str) else regime,
        (*REGIMES, "or a Regime"),
    )
    return make_regime(regime)


def _named_preset(params: Params) -> Preset:
    given = params["preset"]
    # A user's own setting goes with the paper's network and treatment of rows.
    if isinstance(given, Setting):
        return Preset(given)
    return lookup("preset", given, PRESETS)


# ---- training ------------------------------------------------------------------------------------


def make_setting(
    params: Params,
    x_train: Tensor,
    constraints: Constraints,
    seed: int,
    y_train: Tensor | None = None,
    learned: Mapping[str, Any] | None = None,
) -> Setting:
    """Everything that decides the training on rows; they and ``learned`` as in
    :func:`make_training_generator`.
    """
    if params["epochs"] == 0:
        raise InputError(
            "epochs=0 would leave the random weights that training starts from; state at least 1."
        )
    base = base_setting(params)
    num_rows = len(x_train)
    if base.regime is not None:
        beside = _stated(params, ("objective", *OF_OBJECTIVE))
    else:
        beside = {}
    if base.regime is not None and beside:
        raise InputError(
            f"{next(iter(beside))} has no effect: the regime {base.regime.name!r} has a loss of "
            "its own."
        )
    config = replace(
        base.config,
        batch_size=_size(params, "batch_size", usual_batch_size(num_rows)),
        num_counterfactuals=_size(
            params, "num_counterfactuals", min(5000, max(100, num_rows // 4))
        ),
        seed=seed,
        **_usual_rate(params)
        | _stated(params, ("epochs", "learning_rate", "burn_in", "shuffle")),
    )
    generator = make_training_generator(params, x_train, y_train, learned)
    objective = _objective(params, base.objective)
    # Of an ensemble, this is the training of one member.
    one = replace(base, members=1)
    return replace(
        one, generator=generator, constraints=constraints, objective=objective, config=config
    )


def _usual_rate(params: Params) -> dict[str, float]:
    """The learning rate that belongs to the network; who states a whole setting has stated the
    rate, too.
    """
    # Not the keys alone: a model may be a function, which need not be hashable.
    known = (
        isinstance(params["model"], str)
        and params["model"] in RATES
        and isinstance(params["preset"], str)
    )
    if known:
        return {"learning_rate": RATES[params["model"]]}
    return {}


def make_callbacks(params: Params) -> tuple[Callback, ...]:
    """The user's callbacks, and the one that prints."""
    given = params["callbacks"] or ()
    if not isinstance(given, list | tuple):
        raise InputError(
            f"callbacks is a list of ct.Callback, got {type(given).__name__}; write [callback]."
        )
    return (*given, *([PrintLoss()] if params["verbose"] else []))


def usual_batch_size(num_rows: int) -> int:
    """A hundredth of the rows, from 30 to 1000."""
    return min(1000, max(30, num_rows // 100))


def _objective(params: Params, usual: Objective) -> Objective:
    weights = _stated(params, OF_OBJECTIVE)
    if params["objective"] is None:
        spec = usual
    else:
        spec = params["objective"]
    # A preset without divergence has no ridge either; whoever switches the divergence on needs the
    # published one.
    switched_on = (
        spec is usual and not usual.lacks_ridge and replace(usual, **weights).lacks_ridge
    )
    if switched_on and "lambda_reg" not in weights:
        weights["lambda_reg"] = Objective.lambda_reg
    if isinstance(spec, Objective):
        return replace(spec, **weights)
    # A term that the preset leaves out has weight 0 there; a named objective keeps its own weight
    # for it.
    used = {
        name: weight for name, weight in vars(usual).items() if torch.as_tensor(weight).any()
    }
    return make_objective(spec, **(used | weights))


def _size(params: Params, name: str, automatic: int) -> int:
    value = params[name]
    if isinstance(value, str) and value != "auto":
        raise InputError(f"{name} must be a whole number or 'auto', got {value!r}.")
    if isinstance(value, str):
        return automatic
    return value


def _stated(params: Params, names: Iterable[str]) -> dict[str, Any]:
    return {name: params[name] for name in names if params[name] is not None}


# ---- generators ----------------------------------------------------------------------------------


def make_training_generator(
    params: Params,
    x_train: Tensor | None = None,
    y_train: Tensor | None = None,
    learned: Mapping[str, Any] | None = None,
) -> Generator:
    """The generator of counterfactuals in training.

    Recipes that need data take what an earlier generator has ``learned`` (:func:`learned_by`), or
    learn from rows x_train ``(n, d)`` of classes y_train ``(n,)``.
    """
    spec = params["generator"]
    like = base_setting(params).generator
    stated = in_parts(_stated(params, (*_SEARCH, *WEIGHTS)))["generator"]
    if spec is None:
        return like.with_numbers(
            {name: number for name, number in stated.items() if name in like.numbers()}
        )
    if isinstance(spec, Generator):
        for name in WEIGHTS:
            if name in stated:
                raise InputError(
                    f"{name} has no effect on a ready-made generator; state it when you make one."
                )
        return spec.with_numbers(stated)
    return make_alike(spec, like, x_train, y_train, **stated, **(learned or {}))


def make_explainer(
    params: Params,
    trained: Generator,
    given: str | Generator | None,
    confidence: float | None,
    max_steps: int | None,
) -> tuple[Generator, bool]:
    """The generator of an explanation, and whether it asks for the decision alone.

    Args:
        trained: the generator of the training.
        given, confidence, max_steps: as the user stated them for this explanation. A ready-made
            generator has its own threshold, and so has a classifier that states one.
    """
    if isinstance(given, str):
        learned = learned_by(trained)
        if given == "revise" and "vae" not in learned:
            raise InputError(
                "REVISE needs a VAE of the training data: fit with generator='revise', or pass "
                "revise(vae)."
            )
        base = make_training_generator({**params, "generator": given}, learned=learned)
    else:
        if given is None:
            base = _usual_explainer(params, trained)
        else:
            base = given
    # Recipes by name have the short searches of training; ready-made ones and "line" know how long
    # they search.
    short = not isinstance(given, Generator) and base.step_rule != "line"
    steps = EXPLAIN_STEPS if max_steps is None and short else max_steps
    if confidence is None:
        stated = params["decision_threshold"]
    else:
        stated = confidence
    # A ready-made generator was made with the threshold that its user wants.
    if confidence is None and isinstance(given, Generator):
        stated = given.decision_threshold
    if stated is None:
        threshold = DECISION
    else:
        threshold = stated
    changes = {"decision_threshold": threshold, "max_steps": steps}
    return base.replace(
        **{name: value for name, value in changes.items() if value is not None}
    ), stated is None


def _usual_explainer(params: Params, trained: Generator) -> Generator:
    """The preset's explainer; the generator of the training if that was stated or the preset has no
    explainer.
    """
    found = make_preset(params).explainer
    # Who states a generator wants explanations by it.
    if found is None or params["generator"] is not None:
        return trained
    return found


def params_of_trained(
    model: nn.Module, encoder: Encoder, generator: Generator
) -> dict[str, Any]:
    """Parameters of a classifier that would have trained this MLP on rows of this encoder."""
    shape = shape_of(model)
    return {
        "preset": "as_run",
        "hidden": shape["hidden"],
        "activation": shape.get("activation"),
        "schema": encoder.schema_,
        "unseen": encoder.unseen,
        "missing": encoder.missing,
        **_params_of(generator),
    }


def _params_of(generator: Generator) -> dict[str, Any]:
    """Parameters from which :func:`make_training_generator` makes this generator; the object itself
    if none do.
    """
    numbers = Setting(generator).numbers()
    params = {name: numbers.get(name) for name in (*_SEARCH, *WEIGHTS)} | {
        "generator": generator.name
    }
    if generator.name in GENERATORS:
        alike = {**params, "preset": "as_run", "regime": None, "num_std": None}
        again = make_training_generator(alike, learned=learned_by(generator))
        # Only if the parameters lead back to this very generator; else the object itself is the
        # parameter.
        if _content(again) == _content(generator):
            return params
    return {"generator": generator}


def _content(generator: Generator) -> tuple[Any, ...]:
    """What a generator does, in a form that can be compared."""
    values = tuple(
        getattr(generator, f.name)
        for f in fields(Generator)
        if f.name not in ("penalties", "space")
    )
    penalties = tuple((type(penalty), vars(penalty)) for penalty in generator.penalties)
    return values, penalties, type(generator.space), vars(generator.space)


def learned_by(generator: Generator) -> dict[str, Any]:
    """What its recipe learned from data, by the names of the recipe's arguments: a VAE, or
    tensors.
    """
    vae = vae_of(generator)
    return learned_from_data((*generator.penalties, generator.step_rule)) | (
        {} if vae is None else {"vae": vae}
    )


def vae_of(generator: Generator) -> VAE | None:
    """The VAE whose latent space a generator searches, if any."""
    if isinstance(generator.space, LatentSpace):
        return generator.space.vae
    return None
