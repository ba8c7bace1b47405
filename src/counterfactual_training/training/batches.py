"""The rows of an epoch as mini-batches, and the counterfactuals that go with them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from counterfactual_training.errors import ModelError
from counterfactual_training.search import evaluating
from counterfactual_training.training.explanations import Round, explain_round
from counterfactual_training.training.objective import Batch, Explanations
from counterfactual_training.training.run import Run
from counterfactual_training.training.sampling import Streams
from counterfactual_training.training.tally import Tally

# Of one batch: its counterfactuals, and what this process has of the means they enter.
Explained = tuple[Explanations, float, float]


def mini_batches(run: Run, rng: Streams) -> Iterator[Batch]:
    """The rows in parts, in a new order if they are shuffled, which is drawn at once."""
    order = None
    if run.config.shuffle and not run.data.divided:
        order = torch.stack([torch.randperm(run.data.num_rows, generator=own) for own in _every(rng)])
        order = order if run.lead else order[0]
    return _cut(run, order)


def _cut(run: Run, order: Tensor | None) -> Iterator[Batch]:
    """Batches in this order; of several processes each gets its part of every one."""
    for x, y, weight in run.data.batches(run.config.batch_size, order, run.lead):
        if run.ranks.size == 1:
            yield Batch(x, y, weight)
            continue
        if run.data.divided:
            share = 1.0 if weight is None else run.ranks.relative(weight.sum().reshape(1))[0]
            yield Batch(x, y, weight, shares=(share, 1.0, 1.0))
            continue
        mine, share = run.ranks.part(len(y))
        if weight is not None and share:
            share = float(weight[mine].sum() * run.ranks.size / weight.sum())
        yield Batch(x[mine], y[mine], None if weight is None else weight[mine], shares=(share, 1.0, 1.0))


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
    states = [own.get_state() for own in _every(rng)]
    run.ranks.share_buffers(run.model)
    while any(active := tally.active()):
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
            tally.break_off(slot, run.ranks.first(str(error).rstrip(".")))
        for own, state in zip(_every(rng), states, strict=True):
            own.set_state(state)
    return None


def _unusable(run: Run) -> list[int]:
    """Rows of the stack whose logits of training rows are not finite."""
    bad = torch.zeros(len(run.slots), dtype=torch.bool, device=run.device)
    with evaluating(run.model), torch.no_grad():
        for x, _, _ in run.data.batches(4096, None, run.lead):
            bad |= ~torch.isfinite(run.model(x)).flatten(1).all(-1)
    return bad.nonzero().flatten().tolist()


def _every(rng: Streams) -> list[torch.Generator]:
    return [rng] if isinstance(rng, torch.Generator) else list(rng)
