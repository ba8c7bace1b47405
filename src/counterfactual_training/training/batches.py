"""The mini-batches of an epoch and their counterfactuals: draw, search, mature, protect (Algorithm
1, lines 2-6).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from counterfactual_training.core.precision import at_least_single
from counterfactual_training.errors import InputError, ModelError
from counterfactual_training.generators import SearchResult, Status, evaluating, search
from counterfactual_training.training.objective import Batch, CounterfactualBatch
from counterfactual_training.training.regime import Find, Round
from counterfactual_training.training.run import Run
from counterfactual_training.training.sampling import Streams, draw_rows, draw_targets, each
from counterfactual_training.training.setting import Immature
from counterfactual_training.training.tally import Tally

# The counterfactuals of a batch, and this process's shares of the means that x′ and x_adv enter.
Explained = tuple[CounterfactualBatch, float, float]
# The counterfactuals of one search; share of mature ones and mean number of steps ``(2, *lead)``.
Found = tuple[CounterfactualBatch, Tensor]


def mini_batches(run: Run, rng: Streams) -> Iterator[Batch]:
    """All rows in batches; if shuffled, the order is drawn at the call."""
    order = None
    if run.config.shuffle and not run.data.divided:
        order = each(lambda own: torch.randperm(run.data.num_rows, generator=own), rng)
    return (
        _part(run, *rows) for rows in run.data.batches(run.config.batch_size, order, run.lead)
    )


def _part(run: Run, x: Tensor, y: Tensor, weight: Tensor | None) -> Batch:
    """This process's part of a batch; a loader has divided the rows already."""
    if run.ranks.size == 1:
        return Batch(x, y, weight)
    if run.data.divided:
        mine = slice(None)
        share = 1.0
    else:
        mine, share = run.ranks.part(len(y))
    if weight is None:
        own = None
    else:
        own = weight[mine]
    return Batch(x[mine], y[mine], own, shares=(_shares(run, [own], [share])[0], 1.0, 1.0))


def explain(
    run: Run, sizes: list[int], rng: Streams, tally: Tally
) -> Iterator[Explained] | None:
    """Counterfactuals for batches of these sizes, by one search; ``None`` if for nobody."""
    num = sum(sizes)
    mine = None
    parts = [run.ranks.part(size) for size in sizes]
    if run.ranks.size > 1:  # every process searches its part of what belongs to each batch
        blocks = torch.arange(num).split(sizes)
        mine = torch.cat([block[own] for block, (own, _) in zip(blocks, parts, strict=True)])
        sizes = [own.stop - own.start for own, _ in parts]
    found = _guarded(run, rng, tally, lambda active: explain_round(run, num, rng, active, mine))
    if found is None:
        return None
    explanations, told = found
    tally.searched(told, explanations.y_target.shape[-1])
    batches = explanations.split(sizes)
    even = [share for _, share in parts]
    contrast = _shares(run, [own.weight for own in batches], even)
    adversarial = _shares(run, [own.weight_adv for own in batches], even)
    return zip(batches, contrast, adversarial, strict=True)


def find_by_regime(run: Run, find: Find, batch: Batch, rng: Streams, tally: Tally) -> Any:
    """What a regime trains on beside the batch; ``None`` if no member is left."""
    now = (
        batch.x,
        batch.y,
        run.constraints,
        run.generator,
        run.data,
        run.memory,
        run.epoch,
        rng,
    )

    def found(_: Tensor | None) -> Any:
        with evaluating(run.model):
            told = find(Round(run.model, *now))
        if told is None:  # which the loss would take for an epoch without counterfactuals
            raise InputError(
                "A regime's find returned None; return what its loss needs, or () if that is "
                "nothing."
            )
        return told

    result = _guarded(run, rng, tally, found)
    told = getattr(result, "told", None)  # of regimes that search, and say how it went
    if told is not None:
        tally.searched(told, batch.y.shape[-1])
    return result


def _shares(run: Run, weights: list[Tensor | None], even: list[float]) -> list[float]:
    """This process's part of each batch relative to an even share, by weight of rows."""
    given = [
        w.sum() * (share > 0) for w, share in zip(weights, even, strict=True) if w is not None
    ]
    if run.ranks.size == 1 or not given:
        return even
    return run.ranks.relative(torch.stack(given))


def _guarded(run: Run, rng: Streams, tally: Tally, find: Callable[[Tensor | None], Any]) -> Any:
    """What is found for all members; found again once unusable ones are stopped.

    ``find`` gets a mask ``(members,)`` of those that train with what it finds; ``None`` if there is
    one model.
    """
    rngs = [rng] if isinstance(rng, torch.Generator) else rng
    states = [own.get_state() for own in rngs]
    run.ranks.share_buffers(run.model)
    while any(active := run.explaining()):
        if run.lead:
            mask = torch.tensor(active, device=run.device)
        else:
            mask = None
        error = None
        found = None
        try:
            found = find(mask)
        except ModelError as caught:
            error = caught
        if not run.ranks.any(error is not None, run.device):
            return found
        error = error or ModelError("The model has failed on another process.")
        if run.lead:
            broken = [slot for slot in _unusable(run) if active[slot]]
        else:
            broken = [0]
        # Before the first update, training is not the cause.
        if not broken or (run.epoch == 0 and not tally.bad):
            raise error
        for slot in broken:
            run.fail(slot, run.epoch + 1, run.ranks.first(str(error).rstrip(".")))
        tally.notice_stops()
        # The others draw as if nothing had happened.
        for own, state in zip(rngs, states, strict=True):
            own.set_state(state)
    return None


def _unusable(run: Run) -> list[int]:
    """Rows of the stack with non-finite logits on the training rows."""
    bad = torch.zeros(len(run.slots), dtype=torch.bool, device=run.device)
    with evaluating(run.model), torch.no_grad():
        for x, _, _ in run.data.batches(4096, None, run.lead):
            bad |= ~torch.isfinite(run.model(x)).flatten(1).all(-1)
    return bad.nonzero().flatten().tolist()


def explain_round(
    run: Run, num: int, rng: Streams, active: Tensor | None = None, mine: Tensor | None = None
) -> Found:
    """Search ``num`` counterfactuals of training rows for the current model or fleet.

    Args:
        rng: of the draws and the search; one per member of a fleet.
        active: ``(members,)`` mask of the members to search for.
        mine: which of the ``num`` to search here, where several processes share them; all draw
            alike.
    """
    # The order of draws (rows, targets, search, positives) is part of the result, for lone, fleet
    # and resumed runs.
    data = run.data
    config = run.config
    x, y, weight = data.at(each(lambda own: draw_rows(data.num_rows, num, own), rng))
    with evaluating(run.model), torch.no_grad():
        logits = at_least_single(run.model(x))
    counts = data.class_counts.expand(*y.shape[:-1], -1)
    y_target = each(partial(draw_targets, config.target_rule), rng, logits, y, counts)
    if config.adversarial_label == "true":
        y_adv = y
    else:
        y_adv = logits.argmax(-1)
    if active is not None:  # a row that asks for its own class is done before the search starts
        y_target = torch.where(active.unsqueeze(-1), y_target, logits.argmax(-1))
    everyone = y_target
    if mine is not None:
        x = x[mine]
        y_target = y_target[mine]
        y_adv = y_adv[mine]
        if weight is None:
            weight = None
        else:
            weight = weight[mine]
    threads = torch.get_num_threads()  # already chosen for the whole training
    found = search(
        run.model,
        x,
        y_target,
        run.generator,
        run.constraints,
        rng,
        diagnose=False,
        threads=threads,
    )

    def positives() -> Tensor:
        # All processes draw for all rows, so that their generators stay in step.
        rows = data.positives(everyone, rng)
        return data.at(rows if mine is None else rows[mine])[0]

    mature = found.mature
    x_cf = found.x_cf
    lead = y_target.dim()
    x_pos = positives()
    for _ in range(config.positives - 1):
        other = positives()
        nearer = (other - x_cf).abs().flatten(lead).sum(-1) < (x_pos - x_cf).abs().flatten(
            lead
        ).sum(-1)
        x_pos = torch.where(_broadcast(nearer, x), other, x_pos)
    # Before x⁺ is protected: both are then equal, and their divergence is zero.
    if config.immature == "replace":
        x_cf = torch.where(_broadcast(mature, x), x_cf, x_pos)
    # §3.4
    x_pos = (
        run.constraints.to(x).protect(x_pos.flatten(lead), x_cf.flatten(lead)).reshape(x.shape)
    )
    counted = _weight(found, config.immature)
    explanations = CounterfactualBatch(
        x_cf, x_pos, found.x_adv, y_target, y_adv, counted, weight
    )
    return explanations, torch.stack(
        [mature.float().mean(-1), found.num_steps.float().mean(-1)]
    )


def _broadcast(mask: Tensor, x: Tensor) -> Tensor:
    """A mask of rows ``(..., m)`` with dimensions for the features of x."""
    return mask.reshape(*mask.shape, *[1] * (x.dim() - mask.dim()))


def _weight(found: SearchResult, immature: Immature) -> Tensor | None:
    """What each row counts in divergence and ridge; ``None`` counts all alike."""
    if immature == "replace":
        return None
    # Exhausting all steps is maturity for "keep", but rows that were of the target class before
    # have no x′ at all.
    if immature == "drop":
        counts = found.mature
    else:
        counts = found.status != int(Status.ALREADY_THERE)
    return counts.to(found.x_cf.dtype)
