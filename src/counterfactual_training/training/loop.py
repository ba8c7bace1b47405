"""Counterfactual training (Algorithm 1), of one model or of many at once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import zip_longest

import torch

from counterfactual_training.errors import InputError
from counterfactual_training.threads import sensible_threads
from counterfactual_training.training.batches import explain, find_by_regime, mini_batches
from counterfactual_training.training.checkpoint import Checkpoint
from counterfactual_training.training.distributed import shares
from counterfactual_training.training.learner import Gradients
from counterfactual_training.training.objective import Batch
from counterfactual_training.training.run import Run
from counterfactual_training.training.sampling import Streams, epoch_rng
from counterfactual_training.training.tally import Tally

# Mini-batches are prepared in groups of about so many values: enough to save overhead, few enough
# to save memory.
_GROUP_VALUES = 2**20


def fit(run: Run, saver: Checkpoint | None = None) -> None:
    """Train all members of a run, epoch by epoch, from the checkpoint if there is one."""
    if saver is not None:
        saver.resume(run)
    with _torch_settings(run):
        for callback in run.callbacks:
            callback.on_train_begin(run)
        if saver is not None:
            # Only now: a new scheduler starts by setting the learning rate.
            saver.resume_optimizer(run)
        while run.epoch < run.epochs and run.running:
            advance(run)
            for callback in run.callbacks:
                callback.on_epoch_end(run)
            run.agree()  # several processes stop together
            run.compact()  # stopped members leave the stack
            if saver is not None:
                saver.save(run)
        for callback in run.callbacks:
            callback.on_train_end(run)


def advance(run: Run) -> None:
    """One epoch: updates, records, and the end of members that diverged; no callbacks."""
    started = time.perf_counter()
    tally = _epoch(run)
    run.epoch += 1
    run.settle(*tally.close(started))


@torch.no_grad()
def _epoch(run: Run) -> Tally:
    """One pass over the data: search counterfactuals, and update on every mini-batch."""
    rngs = _seed_epoch(run)
    run.learner.begin_epoch()
    tally = Tally(run)
    objective = run.objective_for(tally.explaining)
    for batches in _explained(run, rngs if run.lead else rngs[0], tally):
        # A generator, so that each gradient is computed after the update before it.
        # ∇ of Eq. 2
        for gradients in run.learner.gradients(objective, batches, run.config.accumulate):
            _update(run, gradients, tally)
        tally.add(batches, run.learner.gradient.terms)
    return tally


def _explained(run: Run, rng: Streams, tally: Tally) -> Iterator[list[Batch]]:
    """Mini-batches with their counterfactuals (Algorithm 1, lines 2-6), in groups.

    Counterfactuals are searched once per epoch and divided among the batches, or once per batch.
    During burn-in, and in conventional training, there are none.
    """
    config = run.config
    batches = mini_batches(run, rng)  # before the search, because it draws their order
    count = run.data.num_batches(config.batch_size)
    # How many counterfactuals each batch gets.
    sizes = shares(max(config.num_counterfactuals, count), count)
    explaining = any(tally.explaining)
    if explaining and run.regime is not None:
        find = run.regime.find
    else:
        find = None
    per_batch = explaining and (find is not None or config.refresh == "batch")
    if explaining and not per_batch:
        found = explain(run, sizes, rng, tally)
    else:
        found = None
    group: list[Batch] = []
    for size, batch in _paired(sizes, batches):
        if find is not None and explaining:
            found = find_by_regime(run, find, batch, rng, tally)
        elif per_batch:
            found = explain(run, [size], rng, tally)
        if explaining and found is None:
            # All members that search have stopped; others may train conventionally.
            if not run.running:
                return
            explaining = per_batch = False
        if found is not None:
            if find is None:
                batch = batch.explained(*next(found))
            else:
                batch = batch._replace(explanations=found)
        group.append(batch)
        # With one search per batch, the search needs the weights after the update before it.
        full = per_batch or len(group) * batch.x.numel() > _GROUP_VALUES
        if full and len(group) % config.accumulate == 0:
            yield group
            group = []
    if group:
        yield group


def _paired(sizes: list[int], batches: Iterator[Batch]) -> Iterator[tuple[int, Batch]]:
    """Each batch with its number of counterfactuals; raises if a DataLoader miscounts."""
    for size, batch in zip_longest(sizes, batches):
        if size is not None and batch is not None:
            yield size, batch
            continue
        if batch is None:
            how = "fewer"
        else:
            how = "more"
        raise InputError(
            f"The DataLoader gives {how} batches than its len(), {len(sizes)}; correct its "
            "sampler's."
        )


def _update(run: Run, gradients: Gradients, tally: Tally) -> None:
    """One optimizer step for every running member whose loss and gradient are finite."""
    run.gradients = gradients
    _call(run, "before_step", tally)
    bad = run.learner.bad(run.gradients, tally.idle)
    run.learner.step(run.gradients, bad)
    tally.bad.append(bad)
    _call(run, "on_batch_end", tally)


def _call(run: Run, event: str, tally: Tally) -> None:
    """Call the callbacks; honour the gradients, modes and stops they make."""
    for callback in run.listeners(event):
        shown = list(run.gradients)
        run.gradients = list(run.gradients)
        run.learner.expose(shown)
        getattr(callback, event)(run)
        given = zip(run.parameters, shown, run.gradients, strict=True)
        # Callbacks may put a new tensor into run.gradients or, as torch's own functions do, into
        # ``.grad``.
        run.gradients = [mine if own.grad is grad else own.grad for own, grad, mine in given]
        run.learner.train_mode()
        tally.notice_stops()


@contextmanager
def _torch_settings(run: Run) -> Iterator[None]:
    """Threads, random state and autocast cache as training needs them; restored at the end."""
    if run.device.type == "cuda":
        devices = [run.device]
    else:
        devices = []
    caching = torch.is_autocast_cache_enabled()
    with torch.random.fork_rng(devices=devices):
        example, _ = run.data.first(run.config.batch_size + run.config.num_counterfactuals)
        with sensible_threads(run.model, example, run.config.threads):
            # Autocast around a whole training would otherwise cast the weights once, and never see
            # an update.
            torch.clear_autocast_cache()
            torch.set_autocast_cache_enabled(False)
            try:
                yield
            finally:
                torch.set_autocast_cache_enabled(caching)


def _seed_epoch(run: Run) -> list[torch.Generator]:
    """The random generators of this epoch, one per row of the stack; also seeds torch."""
    rngs = [epoch_rng(run.settings[i].config.seed, run.epoch) for i in run.slots]
    # The first draw is torch's seed; a fleet shares one, but every member draws, so that its later
    # draws are equal.
    for rng in rngs:
        _draw(rng)
    # Members share a loader's batches, so these are seeded by the first setting, even when that
    # member has stopped.
    seed = _draw(epoch_rng(run.settings[0].config.seed, run.epoch))
    torch.default_generator.manual_seed(seed)  # for dropout, which only lone models have
    if run.device.type == "cuda":
        with torch.cuda.device(run.device):
            torch.cuda.manual_seed(seed)
    run.data.seed(seed)
    return rngs


def _draw(rng: torch.Generator) -> int:
    return int(torch.randint(2**62, (), generator=rng))
