"""Counterfactual training (Algorithm 1), of one model or of many at once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import zip_longest

import torch

from counterfactual_training.errors import InputError
from counterfactual_training.training.batches import explain, mini_batches
from counterfactual_training.training.checkpoint import Checkpoint
from counterfactual_training.training.distributed import shares
from counterfactual_training.training.host import borrowed, seed_epoch
from counterfactual_training.training.learner import Gradients
from counterfactual_training.training.objective import Batch
from counterfactual_training.training.run import Run
from counterfactual_training.training.sampling import Streams
from counterfactual_training.training.tally import Tally

# Mini-batches are prepared in groups of about so many values: enough to save overhead, few enough to save memory.
_GROUP_VALUES = 2**20


def fit(run: Run, saver: Checkpoint | None = None) -> None:
    """Train all members of a run, epoch after epoch; a checkpoint says where to begin."""
    if saver is not None:
        saver.resume(run)
    with borrowed(run):
        for callback in run.callbacks:
            callback.on_train_begin(run)
        if saver is not None:
            saver.resume_optimizer(run)  # now, because a new scheduler begins by setting the learning rate
        while run.epoch < run.epochs and run.running:
            advance(run)
            for callback in run.callbacks:
                callback.on_epoch_end(run)
            run.agree()  # several processes stop together
            run.compact()  # ended members leave the stack
            if saver is not None:
                saver.save(run)
        for callback in run.callbacks:
            callback.on_train_end(run)


def advance(run: Run) -> None:
    """One epoch: its updates, its records, and an end for members that diverged; nobody is told."""
    started = time.perf_counter()
    tally = _epoch(run)
    run.epoch += 1
    run.settle(*tally.close(started))


@torch.no_grad()
def _epoch(run: Run) -> Tally:
    """One pass over the data: search counterfactuals, and update on every mini-batch with its share of them."""
    rngs = seed_epoch(run)
    run.learner.begin_epoch()
    tally = Tally(run)
    objective = run.objective_for(tally.explaining)
    for batches in _explained(run, rngs if run.lead else rngs[0], tally):
        # Gradients are computed one by one, each after the update before it.
        for gradients in run.learner.gradients(objective, batches, run.config.accumulate):  # ∇ of Eq. 2
            _update(run, gradients, tally)
        tally.add(batches, run.learner.terms)
    return tally


def _explained(run: Run, rng: Streams, tally: Tally) -> Iterator[list[Batch]]:
    """Mini-batches with their counterfactuals (Algorithm 1, lines 2-6), in groups.

    Counterfactuals are searched once per epoch and handed out, or for every batch by itself. During burn-in, and in
    conventional training, there are none.
    """
    config, batches = run.config, mini_batches(run, rng)
    count = run.data.num_batches(config.batch_size)
    sizes = shares(max(config.num_counterfactuals, count), count)  # of counterfactuals, for each batch
    explaining = any(tally.explaining)
    per_batch = explaining and config.refresh == "batch"
    found = explain(run, sizes, rng, tally) if explaining and not per_batch else None
    group: list[Batch] = []
    for size, batch in zip_longest(sizes, batches):
        if size is None or batch is None:
            how = "fewer" if batch is None else "more"
            raise InputError(f"The DataLoader gives {how} batches than its len(), {count}; correct its sampler's.")
        if per_batch:
            found = explain(run, [size], rng, tally)
        if explaining and found is None:  # whoever searched has ended; others may train conventionally
            if not tally.anyone_left():
                return
            explaining = per_batch = False
        group.append(batch if found is None else batch.explained(*next(found)))
        full = per_batch or len(group) * batch.x.numel() > _GROUP_VALUES
        if full and len(group) % config.accumulate == 0:
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
    """Call the callbacks; notice gradients they replace, modes they change and members they stop."""
    for callback in run.listeners(event):
        run.gradients = list(run.gradients)
        run.learner.expose(run.gradients)
        getattr(callback, event)(run)
        run.gradients = run.learner.exposed(run.gradients)
        run.learner.train_mode()
        tally.notice_stops()
