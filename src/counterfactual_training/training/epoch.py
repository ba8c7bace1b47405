"""One epoch of a run: its random streams, mini-batches, attempts to search, updates and records."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from itertools import zip_longest
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from counterfactual_training.errors import InputError, ModelError
from counterfactual_training.generators.model_checks import UnusableModelError
from counterfactual_training.training.network import Gradients
from counterfactual_training.training.objective import Batch, CounterfactualBatch
from counterfactual_training.training.round import Round
from counterfactual_training.training.run import Run
from counterfactual_training.training.sampling import Streams, each, epoch_rng, shares
from counterfactual_training.training.tally import Tally

# Mini-batches are prepared in groups of about so many values: enough to save overhead, few enough
# to save memory.
_GROUP_VALUES = 2**20


class Epoch:
    """One pass over the data.

    Counterfactuals are searched once per epoch and divided among the batches, or once per batch.
    During burn-in, and in conventional training, there are none.

    Attributes:
        rng: random streams, one per row of the stack.
        tally: sums for the records.
        searching: whether batches get counterfactuals, or what a method searches for.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.started = time.perf_counter()
        config = run.config
        self.rngs = _seed(run)
        self.rng: Streams = self.rngs if run.lead else self.rngs[0]
        run.learner.begin_epoch()
        self.tally = Tally(run)
        self.objective = run.objective_for(self.tally.explaining)
        self.searching = any(self.tally.explaining)
        self.by_method = run.method.find is not None
        self.per_batch = self.searching and (self.by_method or config.refresh == "batch")
        count = run.data.num_batches(config.batch_size)
        # How many counterfactuals each batch gets.
        self.sizes = shares(max(config.num_counterfactuals, count), count)
        self.done = 0  # batches
        self.over = False
        self.stock: Iterator[CounterfactualBatch] | None = None
        self.explanations: Any = None  # of the present batch
        self.group: list[Batch] = []

    def batches(self) -> Iterator[Batch]:
        """All rows in mini-batches; raises if a DataLoader miscounts."""
        run = self.run
        order = None
        # Drawn before the search.
        if run.config.shuffle and not run.data.divided:
            order = each(lambda rng: torch.randperm(run.data.num_rows, generator=rng), self.rng)
        batches = run.data.batches(run.config.batch_size, order, run.lead)
        for size, rows in zip_longest(self.sizes, batches):
            if size is None or rows is None:
                raise _miscounted(rows is None, len(self.sizes))
            self.done += 1
            yield Batch(*rows)
            if self.over:
                return

    def searches(self) -> Iterator[Attempt]:
        """Attempts to search, until one succeeds for all members that are left; none if no search
        is due.
        """
        self.explanations = None
        if self.searching and (self.per_batch or self.stock is None):
            sizes = [self.sizes[self.done - 1]] if self.per_batch else self.sizes
            attempt = self.attempt(sum(sizes))
            while attempt.failed and any(self.run.explaining()):
                attempt.failed = False
                yield attempt
            if any(self.run.explaining()):
                self._share(attempt.result, sizes)
            else:
                # All members that search have stopped; others may train conventionally.
                self.searching = False
                self.per_batch = False
                self.over = not self.run.running
        if self.searching and self.stock is not None:
            self.explanations = next(self.stock)

    def attempt(self, num: int) -> Attempt:
        """To search so many counterfactuals."""
        if self.run.lead:
            return FleetAttempt(self, num)
        return Attempt(self, num)

    def _share(self, result: Any, sizes: list[int]) -> None:
        """Count a search, and divide its result among batches."""
        if self.by_method:
            self.explanations = result
            search_stats = getattr(result, "search_stats", None)
        else:
            batch, search_stats = result
            self.stock = iter(batch.split(sizes))
        if search_stats is not None:
            self.tally.searched(search_stats)

    def gradients(self, batch: Batch) -> Iterator[Gradients]:
        """∇ of Eq. 2 for every update that can be made now: batches are prepared in groups."""
        run = self.run
        if self.over:
            return
        if self.explanations is not None:
            batch = batch._replace(explanations=self.explanations)
        self.group.append(batch)
        # With one search per batch, the search needs the weights after the update before it.
        full = self.per_batch or len(self.group) * batch.x.numel() > _GROUP_VALUES
        complete = full and len(self.group) % run.config.accumulate == 0
        if complete or self.done == len(self.sizes):
            group = self.group
            self.group = []
            yield from run.learner.gradients(self.objective, group, run.config.accumulate)
            self.tally.terms.append(run.learner.gradient.terms)

    def update(self, gradients: Gradients) -> None:
        """One optimizer step for every running member whose loss and gradient are finite."""
        run = self.run
        run.gradients = gradients
        for callback in run.listeners("before_step"):
            run.call(callback.before_step)
            self.tally.notice_stops()
        bad = run.learner.bad(run.gradients, self.tally.idle)
        run.learner.step(run.gradients, bad)
        self.tally.bad.append(bad)
        for callback in run.listeners("on_batch_end"):
            run.call(callback.on_batch_end)
            self.tally.notice_stops()

    def close(self) -> None:
        """Write the records, and stop members that diverged."""
        run = self.run
        run.epoch += 1
        run.keep_sound_weights(*self.tally.close(self.started))


class Attempt(AbstractContextManager["Attempt"]):
    """A search; if the logits of the model are not finite, it stops.

    Attributes:
        num: counterfactuals to search.
        active: ``(members,)`` mask of those that train with the result; ``None`` if there is one
            model.
        result: of the search.
        failed: whether to try (again).
    """

    def __init__(self, epoch: Epoch, num: int) -> None:
        self.epoch = epoch
        self.num = num
        self.active: Tensor | None = None
        self.result: Any = None
        self.failed = True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        return isinstance(error, ModelError) and self.stop(error)

    def stop(self, error: ModelError) -> bool:
        """Stop the members that failed; whether training is the cause."""
        run = self.epoch.run
        broken = self.broken(error)
        # Before the first update, training is not the cause.
        if not broken or (run.epoch == 0 and not self.epoch.tally.bad):
            return False
        reason = "".join(map(str, error.clause))
        for slot in broken:
            run.fail(slot, run.epoch + 1, reason)
        self.epoch.tally.notice_stops()
        return True

    def broken(self, error: ModelError) -> list[int]:
        """Rows of the stack that failed."""
        return [0]


class FleetAttempt(Attempt):
    """A search for all members; those that fail are stopped, the others draw the same rows
    again.
    """

    def __init__(self, epoch: Epoch, num: int) -> None:
        super().__init__(epoch, num)
        self.states = [rng.get_state() for rng in epoch.rngs]
        self._choose_members()

    def _choose_members(self) -> None:
        """Search for the members that are left."""
        run = self.epoch.run
        explaining = run.explaining()
        self.active = torch.tensor(explaining, device=run.device)
        self.failed = True

    def stop(self, error: ModelError) -> bool:
        training = super().stop(error)
        for rng, state in zip(self.epoch.rngs, self.states, strict=True):
            rng.set_state(state)
        self._choose_members()
        return training

    def broken(self, error: ModelError) -> list[int]:
        run = self.epoch.run
        explaining = run.explaining()
        unusable = set(_unusable(run))
        # At the edge of overflow it depends on the order of a sum who returns infinity.
        if isinstance(error, UnusableModelError) and len(error.unusable) == len(explaining):
            unusable |= set(error.unusable.nonzero().flatten().tolist())
        return [slot for slot in sorted(unusable) if explaining[slot]]


def find_by_method(run: Run, batch: Batch, rng: Streams) -> Any:
    """What a method with a loss of its own trains on beside the batch."""
    if run.method.find is None:
        raise TypeError("only called for methods that find something")
    round_ = Round(
        run.model,
        batch.x,
        batch.y,
        run.constraints,
        run.generator,
        run.data,
        run.memory,
        run.epoch,
        rng,
    )
    with run.evaluating():
        explanations = run.method.find(round_)
    if explanations is None:  # which the loss would take for an epoch without counterfactuals
        raise InputError(
            "A method's find returned None; return what its loss needs, or () if that is nothing."
        )
    return explanations


def _miscounted(fewer: bool, num: int) -> InputError:
    how = "fewer" if fewer else "more"
    return InputError(
        f"The DataLoader gives {how} batches than its len(), {num}; correct its sampler's."
    )


def _unusable(run: Run) -> list[int]:
    """Rows of the stack with non-finite logits on the training rows."""
    bad = torch.zeros(len(run.slots), dtype=torch.bool, device=run.device)
    with run.evaluating():
        for x, _, _ in run.data.batches(4096, None, run.lead):
            bad |= ~torch.isfinite(run.model(x)).flatten(1).all(-1)
    return bad.nonzero().flatten().tolist()


def _seed(run: Run) -> list[torch.Generator]:
    """The random generators of an epoch, one per row of the stack; also seeds torch."""
    rngs = [epoch_rng(run.methods[i].training.seed, run.epoch) for i in run.slots]
    # The first draw is torch's seed; a fleet shares one, but every member draws, so that its later
    # draws are equal.
    for rng in rngs:
        _draw(rng)
    # Members share a loader's batches, so these are seeded by the first method, even when that
    # member has stopped.
    seed = _draw(epoch_rng(run.methods[0].training.seed, run.epoch))
    torch.default_generator.manual_seed(seed)  # for dropout, which only lone models have
    if run.device.type == "cuda":
        with torch.cuda.device(run.device):
            torch.cuda.manual_seed(seed)
    run.data.seed(seed)
    return rngs


def _draw(rng: torch.Generator) -> int:
    return int(torch.randint(2**62, (), generator=rng))
