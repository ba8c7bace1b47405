"""What a few models say of all models of their kind."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from counterfactual_training.errors import InputError, bad_value, check_count

# Jeffreys' prior of a share, Beta(½, ½).
_PRIOR = 0.5
# Nobody fits more models than these to advise a person.
_MOST = 10_000


def guaranteed_share(
    accepting: ArrayLike, num_models: int, confidence: float = 0.9
) -> NDArray[np.float64]:
    """The share of all models of a kind that accept an answer, at least, with this confidence.

    If m of k models, drawn independently, accept it, the posterior of that share p under Jeffreys'
    prior is Beta(½ + m, ½ + k − m). The bound is its quantile at 1 − confidence: P(p ≥ bound) =
    confidence (BetaRCE, Stępka, Lango and Stefanowski 2025; their δ is the bound, their α the
    confidence). It holds for answers that were not chosen by the verdicts of these models.

    Args:
        accepting: ``(...)`` how many accept, m.
        num_models: how many were asked, k.
        confidence: α, between 0 and 1.

    Examples:
        >>> import counterfactual_training as ct
        >>> ct.guaranteed_share([5, 10, 32], 32).round(2)  # of 32 refits
        array([0.09, 0.22, 0.96])
        >>> float(ct.guaranteed_share(5, 5).round(2))  # five of five say less
        0.77
    """
    # Here, because only guarantees need it.
    from scipy.stats import beta

    _check_confidence(confidence)
    check_count("num_models", num_models)
    counts = np.asarray(accepting)
    if bool(((counts < 0) | (counts > num_models)).any()):
        raise bad_value("accepting", f"counts from 0 to {num_models}, of all models", accepting)
    bound: Any = beta.ppf(1 - confidence, _PRIOR + counts, _PRIOR + num_models - counts)
    return np.asarray(bound, dtype=np.float64)


def models_needed(share: float, num_models: int, confidence: float = 0.9) -> int:
    """How many of so many models must accept, so that :func:`guaranteed_share` is at least
    ``share``; raises if not even all of them are enough.
    """
    if not 0 < share < 1:
        raise bad_value("share", "a share of models between 0 and 1", share)
    bounds = guaranteed_share(np.arange(num_models + 1), num_models, confidence)
    enough = np.flatnonzero(bounds >= share)
    if len(enough):
        return int(enough[0])
    raise InputError(
        f"{num_models} models that all accept guarantee a share of {bounds[-1]:.3f} with "
        f"confidence {confidence:g}, less than share={share:g}. {_remedy(share, confidence)}"
    )


def _remedy(share: float, confidence: float) -> str:
    from scipy.stats import beta

    counts = np.arange(1, _MOST)
    enough = beta.ppf(1 - confidence, _PRIOR + counts, _PRIOR) >= share
    if enough.any():
        return f"Pass at least {counts[enough.argmax()]} models, or ask for a smaller share."
    return "Ask for a smaller share."


def _check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise bad_value("confidence", "a probability between 0 and 1", confidence)
