"""How an audit measures."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real

from counterfactual_training.defaults import AUDIT_PEOPLE, WEIGHT_NOISE
from counterfactual_training.errors import InputError, check_count


@dataclass(frozen=True)
class AuditProtocol:
    """How :func:`audit` measures, as :class:`EvaluationProtocol` says it of :func:`evaluate`.

    Attributes:
        people: the most to explain per model, drawn so that small groups are not lost.
        confidence: that advice asks for; by default what each model asks for by itself.
        retrain: how often each model is trained again by another seed, and as often without a part
            of the rows; 0 leaves this out.
        delta: size of the noise on weights, relative to the typical weight of a layer; ``None``
            measures without noise.
        proxies: whether to measure what gives groups away.
        resamples: draws of the bootstrap.
        level: of its intervals.
        seed: of everything that is drawn: people, resamples, noise and trainings.

    Examples:
        >>> import counterfactual_training as ct
        >>> quick = ct.AuditProtocol(people=50, resamples=500)
        >>> quick.people, quick.retrain
        (50, 0)
    """

    people: int = AUDIT_PEOPLE
    confidence: float | None = None
    retrain: int = 0
    delta: float | None = WEIGHT_NOISE
    proxies: bool = True
    resamples: int = 2000
    level: float = 0.95
    seed: int = 0

    def __post_init__(self) -> None:
        check_count("people", self.people)
        check_count("resamples", self.resamples)
        check_count("retrain", self.retrain, least=0)
        check_count("seed", self.seed, least=0)
        level = self.level
        if not (isinstance(level, Real) and 0 < float(level) < 1):
            raise InputError(f"level must be a number between 0 and 1, got {level!r}.")
        delta = self.delta
        if delta is None:
            return
        if not (isinstance(delta, Real) and 0 < float(delta) < math.inf):
            raise InputError(
                f"delta must be a number above 0, got {delta!r}; None measures without noise."
            )


USUAL = AuditProtocol()
