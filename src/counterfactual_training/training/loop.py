"""Counterfactual training (Algorithm 1), of one model or of many at once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

from counterfactual_training.threads import sensible_threads
from counterfactual_training.training.batches import explain, mini_batches
from counterfactual_training.training.checkpoint import Checkpoint
from counterfactual_training.training.distributed import shares
from counterfactual_training.training.learner import Gradients
from counterfactual_training.training.objective import Batch
from counterfactual_training.training.run import Run
from counterfactual_training.training.sampling import Streams, epoch_rng
from counterfactual_training.training.tally import Tally

# Values of mini-batches that are made before the first of their updates; few, so that memory stays small.
_GROUP_VALUES = 2**20


def fit(run: Run, saver: Checkpoint | None = None) -> None:
    """Train all members of a run, epoch after epoch, from where its checkpoint left it."""
    if saver is not None:
        saver.resume(run)
    example, _ = run.data.first(run.config.batch_size + run.config.num_counterfactuals)
    with sensible_threads(run.model, example, run.config.threads), _own_randomness(run.device), _fresh_casts():
        for callback in run.callbacks:
            callback.on_train_begin(run)
        if saver is not None:
            saver.resume_optimizer(run)
        while run.epoch < run.epochs and run.running:
            started = time.perf_counter()
            tally = _epoch(run)
            run.epoch += 1
            run.settle(*tally.close(started))
            for callback in run.callbacks:
                callback.on_epoch_end(run)
            run.agree()
            run.compact()
            if saver is not None:
                saver.save(run)
        for callback in run.callbacks:
            callback.on_train_end(run)


@torch.no_grad()
def _epoch(run: Run) -> Tally:
    """One pass over the data: explain training rows, then update on every mini-batch."""
    rngs = [epoch_rng(seed, run.epoch) for seed in run.seeds]
    seeds = {i: int(torch.randint(2**62, (), generator=rng)) for i, rng in zip(run.slots, rngs, strict=True)}
    # For dropout and its like, which only lone models have; and for loaders, whose batches all members share.
    seed = seeds.get(0) or int(torch.randint(2**62, (), generator=epoch_rng(run.settings[0].config.seed, run.epoch)))
    _seed_global(seed, run.device)
    run.data.seed(seed)
    run.learner.train_mode()
    tally = Tally(run)
    objective = run.objective_for(tally.explaining)
    for batches in _explained(run, rngs if run.lead else rngs[0], tally):
        for gradients in run.learner.gradients(objective, batches, run.config.accumulate):  # ∇ of Eq. 2
            _update(run, gradients, tally)
        tally.add(batches, run.learner.terms)
    return tally


def _explained(run: Run, rng: Streams, tally: Tally) -> Iterator[list[Batch]]:
    """Mini-batches with their counterfactuals (lines 2-6), searched once per epoch or anew for every batch."""
    config, batches = run.config, mini_batches(run, rng)
    count = run.data.num_batches(config.batch_size)
    sizes = shares(max(config.num_counterfactuals, count), count)
    once, anew = (any(tally.explaining) and config.refresh == when for when in ("epoch", "batch"))
    found = explain(run, sizes, rng, tally) if once else None
    group: list[Batch] = []
    for size, batch in zip(sizes, batches, strict=True):
        if anew:
            found = explain(run, [size], rng, tally)
        if found is None and (once or anew):
            return  # nobody is left
        group.append(batch if found is None else batch.explained(*next(found)))
        if len(group) % config.accumulate == 0 and (anew or len(group) * batch.x.numel() > _GROUP_VALUES):
            yield group
            group = []
    if group:
        yield group


def _update(run: Run, gradients: Gradients, tally: Tally) -> None:
    """One step of the optimizer for every member that still trains and whose gradient is finite."""
    run.gradients = gradients
    _tell(run, "before_step", tally)
    bad = run.learner.bad(run.gradients, tally.idle)
    run.learner.step(run.gradients, bad)
    tally.bad.append(bad)
    _tell(run, "on_batch_end", tally)


def _tell(run: Run, event: str, tally: Tally) -> None:
    """Call whoever listens; heed gradients they have replaced, modes they have changed, members they have ended."""
    for callback in run.listeners(event):
        run.gradients = list(run.gradients)
        run.learner.expose(run.gradients)
        getattr(callback, event)(run)
        run.gradients = run.learner.exposed(run.gradients)
        run.learner.train_mode()
        tally.heed()


def _seed_global(seed: int, device: torch.device) -> None:
    """Seed the generators that modules draw from: the CPU's, and that of the device trained on."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)


@contextmanager
def _fresh_casts() -> Iterator[None]:
    """Autocast keeps what it has cast until it ends; within a training around which it stands, weights change."""
    kept = torch.is_autocast_cache_enabled()
    torch.clear_autocast_cache()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(kept)


def _own_randomness(device: torch.device) -> AbstractContextManager[None]:
    """Torch's global random state inside is ours; the host's is put back."""
    return torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])
