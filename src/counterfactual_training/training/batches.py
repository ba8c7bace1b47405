"""The rows of an epoch as mini-batches, and the counterfactuals that go with them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from counterfactual_training.errors import ModelError
from counterfactual_training.search import evaluating
from counterfactual_training.training.counterfactual_batch import Round, explain_round
from counterfactual_training.training.objective import Batch, CounterfactualBatch
from counterfactual_training.training.run import Run
from counterfactual_training.training.sampling import Streams, each
from counterfactual_training.training.tally import Tally

Explained = tuple[CounterfactualBatch, float, float]  # of a batch, and what this process has of the means they enter


def mini_batches(run: Run, rng: Streams) -> Iterator[Batch]:
    """The rows in parts, in a new order if they are shuffled, which is drawn at once."""
    order = None
    if run.config.shuffle and not run.data.divided:
        order = each(lambda own: torch.randperm(run.data.num_rows, generator=own), rng)
    return (_part(run, *rows) for rows in run.data.batches(run.config.batch_size, order, run.lead))


def _part(run: Run, x: Tensor, y: Tensor, weight: Tensor | None) -> Batch:
    """A batch; of several processes each gets its part, unless a loader has divided the rows already."""
    if run.ranks.size == 1:
        return Batch(x, y, weight)
    mine, share = (slice(None), 1.0) if run.data.divided else run.ranks.part(len(y))
    own = None if weight is None else weight[mine]
    return Batch(x[mine], y[mine], own, shares=(_shares(run, [own], [share])[0], 1.0, 1.0))


def explain(run: Run, sizes: list[int], rng: Streams, tally: Tally) -> Iterator[Explained] | None:
    """Counterfactuals for batches, so many for each, by one search; ``None`` where no member is left to search."""
    num, mine, parts = sum(sizes), None, [run.ranks.part(size) for size in sizes]
    if run.ranks.size > 1:  # every process searches its part of what belongs to each batch
        blocks = torch.arange(num).split(sizes)
        mine = torch.cat([block[own] for block, (own, _) in zip(blocks, parts, strict=True)])
        sizes = [own.stop - own.start for own, _ in parts]
    found = _searched(run, num, rng, tally, mine)
    if found is None:
        return None
    tally.searched(found)
    batches, even = found.explanations.split(sizes), [share for _, share in parts]
    contrast = _shares(run, [own.weight for own in batches], even)
    adversarial = _shares(run, [own.weight_adv for own in batches], even)
    return zip(batches, contrast, adversarial, strict=True)


def _shares(run: Run, weights: list[Tensor | None], even: list[float]) -> list[float]:
    """What this process has of each batch, relative to an even share; by weight, where rows have weights."""
    given = [w.sum() * (share > 0) for w, share in zip(weights, even, strict=True) if w is not None]
    return even if run.ranks.size == 1 or not given else run.ranks.relative(torch.stack(given))


def _searched(run: Run, num: int, rng: Streams, tally: Tally, mine: Tensor | None) -> Round | None:
    """Counterfactuals of all members; one whose model has become unusable is ended and the search repeated."""
    rngs = [rng] if isinstance(rng, torch.Generator) else rng
    states = [own.get_state() for own in rngs]
    run.ranks.share_buffers(run.model)
    while any(active := run.explaining()):
        mask = torch.tensor(active, device=run.device) if run.lead else None
        error, found = None, None
        try:
            found = explain_round(run.model, run.data, run.generator, run.constraints, run.config, num, rng, mask, mine)
        except ModelError as caught:
            error = caught
        if not run.ranks.any(error is not None, run.device):
            return found
        error = error or ModelError("The model has failed on another process.")
        broken = [slot for slot in _unusable(run) if active[slot]] if run.lead else [0]
        if not broken or (run.epoch == 0 and not tally.bad):  # it is not the training that has broken a model
            raise error
        for slot in broken:
            run.fail(slot, run.epoch + 1, run.ranks.first(str(error).rstrip(".")))
        tally.notice_stops()
        for own, state in zip(rngs, states, strict=True):
            own.set_state(state)
    return None


def _unusable(run: Run) -> list[int]:
    """Rows of the stack whose logits of training rows are not finite."""
    bad = torch.zeros(len(run.slots), dtype=torch.bool, device=run.device)
    with evaluating(run.model), torch.no_grad():
        for x, _, _ in run.data.batches(4096, None, run.lead):
            bad |= ~torch.isfinite(run.model(x)).flatten(1).all(-1)
    return bad.nonzero().flatten().tolist()
