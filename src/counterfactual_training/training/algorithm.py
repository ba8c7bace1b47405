"""Counterfactual training (Algorithm 1 of Altmeyer et al. 2025), of one model or of many at once.

Shapes are ``(..., n, *features)``: a fleet has one leading dimension, and one random stream per
member. All about speed, devices, processes, callbacks, checkpoints and members that stop is behind
:class:`Run` and :class:`Epoch`.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from counterfactual_training.core.precision import at_least_single
from counterfactual_training.generators import SearchResult, Status
from counterfactual_training.training.checkpoint import Checkpoint
from counterfactual_training.training.epoch import Epoch, find_by_method
from counterfactual_training.training.objective import CounterfactualBatch
from counterfactual_training.training.run import Run
from counterfactual_training.training.sampling import Streams, draw_rows, draw_targets, each


def fit(run: Run, saver: Checkpoint | None = None, until: int | None = None) -> None:
    """Train all members of a run: all epochs, or ``until`` so many are done."""
    with run.session(saver):
        while run.has_epochs_left(until):  # line 1
            one_epoch(run)
            run.end_epoch(saver, compact=until is None)


@torch.no_grad()
def one_epoch(run: Run) -> None:
    """Lines 2-8, for all rows once."""
    epoch = Epoch(run)
    for batch in epoch.batches():  # line 2: sample x, y
        for attempt in epoch.searches():  # once, or again if a member fails
            with attempt:  # lines 3-6: function counterfactuals, below
                if run.method.find is None:
                    attempt.result = counterfactuals(
                        run, attempt.num, epoch.rng, attempt.active
                    )
                else:
                    attempt.result = find_by_method(run, batch, epoch.rng)
        for gradients in epoch.gradients(batch):  # line 7: ∇ of Eq. 2, core/eq2.py
            epoch.update(gradients)  # line 8: training/learner.py, step
    epoch.close()


def counterfactuals(
    run: Run, num: int, rng: Streams, active: Tensor | None = None
) -> tuple[CounterfactualBatch, Tensor]:
    """Search ``num`` counterfactuals of training rows, at the current weights (lines 3-6).

    Also returns, for the history, the share of mature ones and their mean steps ``(2, *lead)``.

    Args:
        rng: of the draws and the search; one per member of a fleet.
        active: ``(members,)`` mask of the members to search for.
    """
    # The order of draws (rows, targets, search, positives) is part of the result, for lone, fleet
    # and resumed runs.
    data = run.data
    config = run.config
    # line 3, training/sampling.py: x′₀ and y⁺
    x, y, weight = data.at(each(partial(draw_rows, data.num_rows, num), rng))
    with run.evaluating():
        logits = at_least_single(run.model(x))
    counts = data.class_counts.expand(*y.shape[:-1], -1)
    y_target = each(partial(draw_targets, config.target_rule), rng, logits, y, counts)
    if active is not None:  # a row that asks for its own class is done before the search starts
        y_target = torch.where(active.unsqueeze(-1), y_target, logits.argmax(-1))
    # line 5: generators/search.py, descend; lines 4 and 6: fixed_steps.py, judge and _keep_nascent
    result = run.search(run.model, x, y_target, run.generator, run.constraints, rng)
    x_cf = result.x_cf
    x_pos = nearest_positives(run, x_cf, y_target, rng)  # line 3: x⁺
    # Before x⁺ is protected: both are then equal, and their divergence is zero.
    if config.immature == "replace":
        x_cf = torch.where(_like(result.mature, x), x_cf, x_pos)
    # §3.4: no gradient pulls at immutable features.
    rows = y.dim()
    rules = run.constraints.to(x)
    x_pos = rules.protect(x_pos.flatten(rows), x_cf.flatten(rows)).reshape(x.shape)
    y_adv = y if config.adversarial_label == "true" else logits.argmax(-1)
    weight_cf = counted(result, config.immature)
    search_stats = [result.mature.float().mean(-1), result.num_steps.float().mean(-1)]
    batch = CounterfactualBatch(
        x_cf, x_pos, result.x_adv, y_target, y_adv, weight_cf, weight_adv=weight
    )
    return batch, torch.stack(search_stats)


def nearest_positives(run: Run, x_cf: Tensor, y_target: Tensor, rng: Streams) -> Tensor:
    """x⁺ like x′: real rows of the target classes; of several drawn, the nearest in L1."""
    data = run.data
    rows = y_target.dim()
    x_pos = data.at(data.positives(y_target, rng))[0]
    for _ in range(run.config.positives - 1):
        other = data.at(data.positives(y_target, rng))[0]
        distance = (other - x_cf).abs().flatten(rows).sum(-1)
        nearer = distance < (x_pos - x_cf).abs().flatten(rows).sum(-1)
        x_pos = torch.where(_like(nearer, x_cf), other, x_pos)
    return x_pos


def counted(result: SearchResult, immature: str) -> Tensor | None:
    """What each row counts in divergence and ridge; ``None`` counts all alike."""
    if immature == "replace":
        return None
    # Exhausting all steps is maturity for "keep", but rows that were of the target class before
    # have no x′ at all.
    counts = result.mature
    if immature == "keep":
        counts = result.status != int(Status.ALREADY_THERE)
    return counts.to(result.x_cf.dtype)


def _like(mask: Tensor, x: Tensor) -> Tensor:
    """A mask of rows ``(..., m)`` with dimensions for the features of x."""
    return mask.reshape(*mask.shape, *[1] * (x.dim() - mask.dim()))
