"""What an answer has to reach: the target's probability, and the plausibility if there is a gate."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from counterfactual_training.estimator.points import in_blocks
from counterfactual_training.gates import Gate


class Bar:
    """A model and perhaps a gate, and what counts as reached.

    With ``decision``, the bar is the decision: the target must beat every other class, at a point that is at least as
    plausible as not. Otherwise its probability, times the plausibility, must reach the threshold of the generator.
    """

    model: nn.Module
    gate: Gate | None
    decision: bool

    def logits(self, x: Tensor) -> Tensor:
        """``(n, k)``, on the CPU."""
        return in_blocks(self.model, x)

    def plausibility(self, x: Tensor) -> Tensor:
        """``(n, k)``, on the CPU: how much each row looks like a real one of each class, given what cannot change; NaN
        without a gate."""
        if self.gate is None:
            return torch.full_like(self.logits(x), torch.nan)
        return in_blocks(self.gate, x).exp()

    def probability(self, x: Tensor, y_target: Tensor) -> Tensor:
        """Of the target ``(n,)`` at x; if the bar is the decision, against the strongest other class alone."""
        logits, target = self.logits(x), y_target.cpu().unsqueeze(-1)
        own = logits.gather(-1, target)
        others = logits.scatter(-1, target, -torch.inf)
        rival = others.amax(-1, keepdim=True) if self.decision else others.logsumexp(-1, keepdim=True)
        return (own - rival).sigmoid().squeeze(-1).to(x)

    def confidence(self, x: Tensor, y_target: Tensor) -> Tensor:
        """What must reach τ ``(n,)``: the probability, times the plausibility if there is a gate.

        If the bar is the decision, both must reach one half, each for itself.
        """
        found = self.probability(x, y_target)
        return found if self.gate is None else self._gated(found, self._passes(x, y_target))

    def reaches(self, x: Tensor, y_target: Tensor, floor: Tensor) -> Tensor:
        """Mask ``(n,)`` of the rows whose confidence is at least their floor ``(n,)``."""
        found = self.probability(x, y_target)
        fine = found >= floor
        rows = fine.nonzero().squeeze(-1)
        if self.gate is not None and len(rows):  # the gate is slow, and can only lower a probability
            fine[rows] = self._gated(found[rows], self._passes(x[rows], y_target[rows])) >= floor[rows]
        return fine

    def _gated(self, probability: Tensor, plausibility: Tensor) -> Tensor:
        return torch.minimum(probability, plausibility) if self.decision else probability * plausibility

    def _passes(self, x: Tensor, y_target: Tensor) -> Tensor:
        return self.plausibility(x).gather(-1, y_target.cpu().unsqueeze(-1)).squeeze(-1).to(x)
