"""The terms of Eq. 2, by the library's table and as a textbook writes them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus

from counterfactual_training import LossTerms, Objective
from counterfactual_training.core.energy import energy, mean_rows
from counterfactual_training.core.eq2 import CONTRAST_GOAL, Eq2, Role, Rows, table
from counterfactual_training.core.losses import class_loss, log_odds

# ---- by the table --------------------------------------------------------------------------------


def pair_terms(
    logits_pos: Tensor, logits_cf: Tensor, y_target: Tensor, weight: Tensor | None = None
) -> dict[str, Tensor]:
    """Divergence, ridge and contrast of x⁺ and x′."""
    parts = [
        Rows(role, logits, y_target, weight)
        for role, logits in ((Role.POSITIVE, logits_pos), (Role.COUNTERFACTUAL, logits_cf))
    ]
    eq2 = Eq2(table(1.0, 1.0, 1.0, 1.0, 1.0, 1.0), [parts], logits_pos.shape[-1])
    means = eq2.means(torch.cat([logits_pos, logits_cf], -2))
    real, found = means[Role.POSITIVE], means[Role.COUNTERFACTUAL]
    return {
        "divergence": (real.energy - found.energy)[0],
        "ridge": (real.square + found.square)[0],
        "contrast": (found.contrast - real.contrast)[0],
    }


# ---- by the textbook -----------------------------------------------------------------------------


def divergence(logits_pos, logits_cf, y_target, weight=None):
    """Eq. 3, averaged over rows: ``mean_i E(x⁺_i, y⁺_i) − E(x′_i, y⁺_i)``."""
    return mean_rows(energy(logits_pos, y_target) - energy(logits_cf, y_target), weight)


def ridge(logits_pos, logits_cf, y_target, weight=None):
    """``mean_i E(x⁺_i, y⁺_i)² + E(x′_i, y⁺_i)²``."""
    squares = energy(logits_pos, y_target).square() + energy(logits_cf, y_target).square()
    return mean_rows(squares, weight)


def contrast(logits_pos, logits_cf, y_target, weight=None):
    """``mean_i softplus(m₀ − m(x⁺_i)) + softplus(m(x′_i) − m₀)``."""
    real, found = (log_odds(logits, y_target) for logits in (logits_pos, logits_cf))
    values = softplus(CONTRAST_GOAL - real) + softplus(found - CONTRAST_GOAL)
    return mean_rows(values, weight)


def textbook(objective, model, x, y, found=None, weight=None) -> LossTerms:
    """Eq. 2 term by term, of one forward pass."""
    parts = [x]
    if found is not None and objective.needs_divergence:
        parts += [found.x_pos, found.x_cf]
    nascent = objective.needs_adversarial + objective.needs_recourse
    if found is not None:
        parts += [found.x_adv] * nascent
    rows = y.dim() - 1
    joined = model(torch.cat(parts, rows)) if len(parts) > 1 else model(x)
    if joined.dtype in (torch.bfloat16, torch.float16):
        joined = joined.float()
    logits, *others = joined.split([part.shape[rows] for part in parts], rows)
    fit = class_loss(logits, y, weight)
    terms = dict.fromkeys(("divergence", "ridge", "adversarial"), torch.zeros_like(fit))
    total = objective.lambda_class * fit
    if found is not None and objective.needs_divergence:
        pair = (others.pop(0), others.pop(0), found.y_target, found.weight)
        terms["divergence"] = divergence(*pair)
        terms["ridge"] = ridge(*pair)
        total = total + objective.lambda_div * terms["divergence"]
        total = total + objective.lambda_reg * terms["ridge"]
    late = None
    if found is not None and objective.needs_adversarial:
        terms["adversarial"] = class_loss(others.pop(0), found.y_adv, found.weight_adv)
    total = total + objective.lambda_adv * terms["adversarial"]
    if found is not None and objective.needs_divergence and _any(objective.lambda_contrast):
        late = contrast(*pair)
        total = total + objective.lambda_contrast * late
    if found is not None and objective.needs_recourse:
        recourse = class_loss(others.pop(0), found.y_target, found.weight_adv)
        total = total + objective.lambda_recourse * recourse
    return LossTerms(total, fit, logits=logits, **terms)


class Textbook(Objective):
    """Eq. 2 by autograd."""

    def __call__(self, model, x, y, explanations=None, weight=None):
        return textbook(self, model, x, y, explanations, weight)


def _any(number) -> bool:
    return bool(torch.as_tensor(number).any())
