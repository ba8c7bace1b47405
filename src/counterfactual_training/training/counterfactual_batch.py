"""One round of counterfactuals for training: draw, search, mature, protect (Algorithm 1, lines 2-6)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from counterfactual_training.constraints import Constraints
from counterfactual_training.core.precision import at_least_single
from counterfactual_training.search import Generator, SearchResult, Status, evaluating, search
from counterfactual_training.training.config import Immature, TrainConfig
from counterfactual_training.training.objective import CounterfactualBatch
from counterfactual_training.training.rows import Rows
from counterfactual_training.training.sampling import Streams, draw_rows, draw_targets, each


class Round(NamedTuple):
    """Counterfactuals, and how their search went: one number each, or one per member of a fleet."""

    explanations: CounterfactualBatch
    share_mature: Tensor
    mean_steps: Tensor


def explain_round(
    model: nn.Module,
    data: Rows,
    generator: Generator,
    constraints: Constraints,
    config: TrainConfig,
    num: int,
    rng: Streams,
    active: Tensor | None = None,
    mine: Tensor | None = None,
) -> Round:
    """Search ``num`` counterfactuals of training rows for the current model, or for every model of a fleet.

    Args:
        rng: of the draws and the search; one per member of a fleet.
        active: ``(members,)`` mask; the others' rows are done before they start, as if already of the target class.
        mine: which of the ``num`` to search here, where several processes share them; all draw alike.
    """
    rows = each(lambda own: draw_rows(data.num_rows, num, own), rng)
    x, y, weight = data.at(rows)
    with evaluating(model), torch.no_grad():
        logits = at_least_single(model(x))

    def targets(own: torch.Generator, logits: Tensor, y: Tensor, counts: Tensor) -> Tensor:
        return draw_targets(logits, y, config.target_rule, counts, own)

    y_target = each(targets, rng, logits, y, data.class_counts.expand(*y.shape[:-1], -1))
    y_adv = y if config.adversarial_label == "true" else logits.argmax(-1)
    if active is not None:
        y_target = torch.where(active.unsqueeze(-1), y_target, logits.argmax(-1))
    everyone = y_target
    if mine is not None:
        x, y_target, y_adv = x[mine], y_target[mine], y_adv[mine]
        weight = None if weight is None else weight[mine]
    found = search(model, x, y_target, generator, constraints, rng, diagnose=False, threads=torch.get_num_threads())
    mature, x_cf, lead = found.mature, found.x_cf, y_target.dim()

    def positives() -> Tensor:
        rows = data.positives(everyone, rng)
        return data.at(rows if mine is None else rows[mine])[0]

    x_pos = positives()
    for _ in range(config.positives - 1):
        other = positives()
        nearer = (other - x_cf).abs().flatten(lead).sum(-1) < (x_pos - x_cf).abs().flatten(lead).sum(-1)
        x_pos = torch.where(nearer.reshape(*nearer.shape, *[1] * (x.dim() - lead)), other, x_pos)
    if config.immature == "replace":
        x_cf = torch.where(mature.reshape(*mature.shape, *[1] * (x.dim() - lead)), x_cf, x_pos)
    x_pos = constraints.to(x).protect(x_pos.flatten(lead), x_cf.flatten(lead)).reshape(x.shape)  # §3.4
    explanations = CounterfactualBatch(
        x_cf, x_pos, found.x_adv, y_target, y_adv, _weight(found, config.immature), weight
    )
    return Round(explanations, mature.float().mean(-1), found.num_steps.float().mean(-1))


def _weight(found: SearchResult, immature: Immature) -> Tensor | None:
    """What each row counts in divergence and ridge; ``None`` counts all alike."""
    if immature == "replace":
        return None
    counts = found.mature if immature == "drop" else found.status != int(Status.ALREADY_THERE)
    return counts.to(found.x_cf.dtype)
