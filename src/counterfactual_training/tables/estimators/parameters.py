"""What the parameters of the estimators mean for a training: a method with sizes that suit the
rows, and for an answer: a generator.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import replace
from numbers import Real
from typing import Any, Literal, get_args

from torch import Tensor

from counterfactual_training.constraints import Constraints
from counterfactual_training.errors import InputError, bad_value, check_name
from counterfactual_training.gates import KINDS as GATES
from counterfactual_training.generators import (
    GENERATORS,
    Generator,
    LatentSpace,
    line,
    make_generator,
)
from counterfactual_training.generators.data_penalties import learned as learned_from_data
from counterfactual_training.models.vae import VAE
from counterfactual_training.training.callbacks import Callback, PrintLoss
from counterfactual_training.training.method import Method
from counterfactual_training.training.registry import is_published, make_method

# Steps of a search for people; the paper evaluated with as many. Training wants many quick searches
# and uses fewer.
EXPLAIN_STEPS = 50
# A class with this probability is the decision, whatever the others have.
DECISION = 0.5
# Learning rates of networks that want another one than the method's. Neuro-trees' authors have
# 0.01, with batches of 2,048 rows; this one was better for our smaller batches, on rows held out of
# the training rows of CH and GMSC.
RATES = {"neurotree": 0.003}
# Share of the first hidden layer's units that start as bends in single columns. Chosen, like the
# network's other defaults, for accuracy and log-loss on twelve tables, never on the paper's test
# rows.
BENT = 0.25
Scaling = Literal["standard", "robust", "quantile"]
Params = Mapping[str, Any]


# ---- training ------------------------------------------------------------------------------------


def method_of(params: Params) -> Method:
    """The method that is stated, before it knows any rows; checked together with scaling and
    gate.
    """
    check_name("scaling", params["scaling"], get_args(Scaling))
    check_name("gate", params["gate"], (*GATES, "none"))
    method = make_method(params["method"])
    # Constraints are in model space, which depends on the encoder that is yet to be fitted.
    if method.constraints is not None:
        raise InputError(
            "A method's constraints have no effect here: state mutability, domain or schema, "
            "column by column."
        )
    for name, here in (("num_std", "num_std"), ("training.seed", "random_state")):
        if name in method.stated and params[here] is not None:
            raise InputError(
                f"{name} of the method has no effect here; state the estimator's own "
                f"{here}, or {here}=None.",
                field="method",
            )
    return replace(method, num_std=num_std_of(params, method.num_std))


def num_std_of(params: Params, otherwise: float) -> float:
    """n_σ as it is stated; ``None`` means the method's."""
    wide = params["num_std"]
    if wide is None:
        return otherwise
    if not isinstance(wide, Real) or isinstance(wide, bool) or not 0 <= float(wide) < math.inf:
        raise bad_value("num_std", "a number of standard deviations, 0 or more", wide)
    return float(wide)


def stops_early(params: Params, method: Method) -> bool:
    """Whether rows are held out to stop by."""
    if params["early_stopping"] is None:
        # A budget weighs accuracy itself, and returns to the last epoch within it.
        return method.budget is None
    return bool(params["early_stopping"])


def held_out_share(params: Params, method: Method) -> float:
    """Share of the rows to stop early by, or to keep a budget of accuracy on."""
    if stops_early(params, method) or method.budget is not None:
        return float(params["validation_fraction"])
    return 0.0


def patience(params: Params, method: Method, num_held_out: int) -> int | None:
    """Epochs without a lower loss after which training stops; ``None`` runs all."""
    if num_held_out and stops_early(params, method):
        return int(params["n_iter_no_change"])
    return None


def method_for_rows(
    params: Params,
    x_train: Tensor,
    constraints: Constraints,
    seed: int,
    y_train: Tensor | None = None,
    learned: Mapping[str, Any] | None = None,
) -> Method:
    """Everything that decides the training on rows x_train ``(n, d)`` of classes ``(n,)``.

    Args:
        learned: what the generator of an earlier training has learned (:func:`learned_by`).
    """
    method = method_of(params)
    num_rows = len(x_train)
    sizes: dict[str, Any] = {"seed": seed}
    if not method.states("training.num_counterfactuals"):
        sizes["num_counterfactuals"] = min(5000, max(100, num_rows // 4))
    if not method.states("training.shuffle"):
        # The authors did not shuffle; a frame sorted by class needs it.
        sizes["shuffle"] = True
    sizes |= _batch_size(params, method, num_rows)
    sizes |= _learning_rate(params, method)
    if params["epochs"] is not None:
        sizes["epochs"] = params["epochs"]
    if sizes.get("epochs", method.training.epochs) == 0:
        raise InputError(
            "epochs=0 would leave the random weights that training starts from; state at least 1."
        )
    one = replace(
        method,
        # One network has all rows.
        bootstrap=method.bootstrap and method.members > 1,
        constraints=constraints,
        training=replace(method.training, **sizes),
    )
    return one.with_rows(x_train, y_train, **(learned or {}))


def _batch_size(params: Params, method: Method, num_rows: int) -> dict[str, int]:
    stated = params["batch_size"]
    if isinstance(stated, str) and stated != "auto":
        raise bad_value("batch_size", "a whole number or 'auto'", stated)
    if not isinstance(stated, str):
        return {"batch_size": stated}
    usual = usual_batch_size(num_rows)
    # Stated by a method of this package, not by its user: meant for thousands of rows, not for
    # millions.
    by_user = {"training", "training.batch_size"} & method.stated
    if is_published(method) and not by_user:
        return {"batch_size": max(method.training.batch_size, usual)}
    if method.states("training.batch_size"):
        return {}
    return {"batch_size": usual}


def _learning_rate(params: Params, method: Method) -> dict[str, float]:
    if params["learning_rate"] is not None:
        return {"learning_rate": params["learning_rate"]}
    # A model may be a function, which need not be hashable.
    has_rate = isinstance(params["model"], str) and params["model"] in RATES
    if has_rate and not method.states("training.learning_rate"):
        return {"learning_rate": RATES[params["model"]]}
    return {}


def usual_batch_size(num_rows: int) -> int:
    """A hundredth of the rows, from 30 to 1000."""
    return min(1000, max(30, num_rows // 100))


def make_callbacks(params: Params) -> tuple[Callback, ...]:
    """The user's callbacks, and the one that prints."""
    callbacks = params["callbacks"] or ()
    if not isinstance(callbacks, list | tuple):
        raise InputError(
            f"callbacks is a list of ct.Callback, got {type(callbacks).__name__}; write [callback]."
        )
    if params["verbose"]:
        return (*callbacks, PrintLoss())
    return tuple(callbacks)


# ---- generators ----------------------------------------------------------------------------------


def make_explainer(
    trained: Generator,
    choice: str | Generator | None,
    confidence: float | None,
    max_steps: int | None,
) -> tuple[Generator, bool]:
    """The generator of an explanation, and whether it asks for the decision alone.

    Args:
        trained: the generator of the training.
        given, confidence, max_steps: as the user stated them for this explanation. A ready-made
            generator has its own threshold.
    """
    if choice is None:
        base = line()
    elif isinstance(choice, Generator):
        base = choice
    else:
        base = _named(choice, trained)
    # Recipes by name have the short searches of training; ready-made ones and "line" know how long
    # they search.
    short = not isinstance(choice, Generator) and base.step_rule != "line"
    steps = max_steps
    if steps is None and short:
        steps = EXPLAIN_STEPS
    threshold = confidence
    # A ready-made generator was made with the threshold that its user wants.
    if threshold is None and isinstance(choice, Generator):
        threshold = float(choice.decision_threshold)
    changes: dict[str, Any] = {"decision_threshold": threshold}
    if threshold is None:
        changes["decision_threshold"] = DECISION
    if steps is not None:
        changes["max_steps"] = steps
    return base.replace(**changes), threshold is None


def _named(name: str, trained: Generator) -> Generator:
    """The generator of that name, with what that of the training has learned."""
    if name == trained.name:
        return trained
    check_name("generator", name, GENERATORS)
    learned = learned_by(trained)
    takes = inspect.signature(GENERATORS[name]).parameters
    if name == "revise" and "vae" not in learned:
        raise InputError(
            "REVISE needs a VAE of the training data: fit with "
            "method='ct_published(generator=revise)', or pass revise(vae)."
        )
    return make_generator(
        name, **{setting: learned[setting] for setting in learned if setting in takes}
    )


def learned_by(generator: Generator) -> dict[str, Any]:
    """What its recipe learned from data, by the names of the recipe's arguments: a VAE, or
    tensors.
    """
    learned: dict[str, Any] = learned_from_data((*generator.penalties, generator.step_rule))
    vae = vae_of(generator)
    if vae is not None:
        learned = learned | {"vae": vae}
    return learned


def vae_of(generator: Generator) -> VAE | None:
    """The VAE whose latent space a generator searches, if any."""
    if isinstance(generator.space, LatentSpace):
        return generator.space.vae
    return None
