"""Answers about a classifier's decisions in words; :mod:`values` does the same for numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from counterfactual_training.tables.advice.words import (
    cut_off,
    plain_value,
    say_confidence,
    say_label,
)

if TYPE_CHECKING:
    from counterfactual_training.tables.advice.explanation import Explanation


# A best effort that reaches a smaller share of the confidence asked for, or of one half, does not
# come near, and its changes are not worth naming.
_NEAR = 0.2


class Outcome(Protocol):
    """What an explanation says about where a row was, and where its counterfactual is."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns of the table, see :meth:`cells`."""

    def summary(self, explanation: Explanation) -> dict[str, Any]:
        """Columns ``(n,)`` of the summary."""

    def cells(self, explanation: Explanation, i: int) -> list[str]:
        """A row of the table, in the order of ``columns``."""

    def sentence(
        self,
        explanation: Explanation,
        i: int,
        moved: str,
        hurdles: str,
        plausibility: bool = True,
    ) -> str:
        """A row in words; ``moved`` are its changes, ``hurdles`` what forbids others. Without
        ``plausibility``, that of a plausible answer is left out.
        """


class Decisions:
    """Classes, and the probability of the one asked for."""

    columns = ("decision", "confidence")

    def summary(self, explanation: Explanation) -> dict[str, Any]:
        return {
            name: getattr(explanation, name)
            for name in ("decision", "target", "prediction", "confidence")
        }

    def cells(self, explanation: Explanation, i: int) -> list[str]:
        before, after = (
            say_label(plain_value(value))
            for value in (explanation.decision[i], explanation.prediction[i])
        )
        return [
            before if before == after else f"{before} → {after}",
            cut_off(explanation.confidence[i]),
        ]

    def sentence(
        self,
        explanation: Explanation,
        i: int,
        moved: str,
        hurdles: str,
        plausibility: bool = True,
    ) -> str:
        if explanation.asked is None:
            required = ""
        else:
            required = f"{explanation.asked:g}"
        target = say_label(plain_value(explanation.target[i]))
        # As many decimals as the question has, or 0.9991 would be 0.99 beside "the 0.999 asked
        # for".
        sure = say_confidence(
            explanation.confidence[i], max(2, len(required.partition(".")[2]))
        )
        arrives = explanation.prediction[i] == explanation.target[i]
        if explanation.status[i] == "already_there":
            head = f"the decision already is {target} (confidence {sure}"
            if explanation.confidence[i] < (explanation.asked or 0.0):
                return (
                    f"{head}, below the {required} asked for); nothing needs to change for it."
                )
            return f"{head}); nothing needs to change."
        # The plausibility is named beside the confidence.
        names_plausibility = explanation.asked is not None and arrives
        doubts = doubt(explanation, i, names_plausibility, plausibility)
        # A confidence below one half was asked for.
        if explanation.status[i] in ("converged", "implausible") and not arrives:
            if moved:
                head = f"with {moved}, the probability of {target} would be"
            else:
                head = f"the probability of {target} is"
            return f"{head} {sure}, as asked for{doubts}."
        if arrives:
            sure += _met(explanation, i, required)
            return f"with {moved}, the decision would be {target} (confidence {sure}){doubts}."
        aim = f"makes the decision {target}" + (
            f" with confidence {required}" if required else ""
        )
        head = missed(explanation, i, aim, hurdles)
        if not moved:
            return f"{head} As it stands, the confidence is {sure}."
        if explanation.confidence[i] < _NEAR * (explanation.asked or 0.5):
            return f"{head} Nothing comes near: the most that was found is {sure}."
        return f"{head} The closest, with {moved}, reaches {sure}."


def missed(explanation: Explanation, i: int, aim: str, hurdles: str) -> str:
    """That nothing was found, and why if that is known."""
    if explanation.status[i] == "infeasible":
        return f"no allowed change was found that {aim}: {hurdles}."
    most = explanation.max_changes[i]
    if most is None:
        limit = ""
    else:
        limit = f" of at most {most} column{'s' * (most > 1)}"
    if hurdles:
        return f"no change{limit} was found that {aim}; in the way: {hurdles}."
    return f"no change{limit} was found that {aim}."


def doubt(
    explanation: Explanation, i: int, named: bool = False, plausibility: bool = True
) -> str:
    """What the gate says of an answer, if there is one; ``named`` if the plausibility is named
    elsewhere. Without ``plausibility``, only what speaks against the answer.
    """
    if np.isnan(explanation.plausibility[i]):
        return ""
    plausible = say_confidence(explanation.plausibility[i])
    if explanation.status[i] == "implausible" and explanation.plausibility[i] < 0.5:
        return "; but few real cases look like this" + (
            "" if named else f" (plausibility {plausible})"
        )
    if named or not plausibility:
        return ""
    return f"; plausibility {plausible}"


def _met(explanation: Explanation, i: int, required: str) -> str:
    """How an answer compares with the confidence asked for, which with a gate is times the
    plausibility.
    """
    if explanation.asked is None:
        return ""
    gated = not np.isnan(explanation.plausibility[i])
    reached = explanation.confidence[i]
    times = ""
    if gated:
        reached = reached * explanation.plausibility[i]
        # In as many digits as were asked for: 0.99 is not above 0.999.
        decimals = max(2, len(str(float(explanation.asked)).partition(".")[2]))
        plausible = say_confidence(explanation.plausibility[i], decimals)
        times = f" × plausibility {plausible} = {say_confidence(reached, decimals)}"
    # By the status, because a product in another precision may end on the other side.
    above = explanation.status[i] == "converged" or (not gated and reached >= explanation.asked)
    return f"{times}, {'above' if above else 'below'} the {required} asked for"
