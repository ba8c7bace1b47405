"""Algorithm 1 for many members at once: the loop of :mod:`loop` on ``(members, n, d)``."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from counterfactual_training.errors import ModelError
from counterfactual_training.search import evaluating
from counterfactual_training.threads import sensible_threads
from counterfactual_training.training.explanations import Round, TrainingData, explain_round, shares
from counterfactual_training.training.fleet_checkpoint import FleetCheckpoint
from counterfactual_training.training.fleet_run import FleetRun, Member
from counterfactual_training.training.objective import LossTerms
from counterfactual_training.training.sampling import epoch_rng

OnEpoch = Callable[[FleetRun], None]


def train_group(
    group: list[int],
    members: Sequence[Member],
    data: TrainingData,
    validation: tuple[Tensor, Tensor] | None,
    checkpoint: str | Path | None = None,
    on_epoch: OnEpoch | None = None,
    progress: bool | None = None,
) -> FleetRun:
    """Algorithm 1 for members of one structure; their models stay as they were, the run holds the trained weights."""
    own = data.y.dim() > 1
    if own:
        rows = [data.rows_by_class[i] for i in group]
        data = TrainingData(data.x[group], data.y[group], rows, data.class_counts[group])
    if validation is not None and validation[1].dim() > 1:
        validation = (validation[0][group], validation[1][group])
    run = FleetRun(group, [members[i] for i in group], data)
    saver = None if checkpoint is None else FleetCheckpoint(checkpoint, run)
    if saver is not None:
        saver.resume(run)
    if validation is not None and validation[1].dim() > 1:
        validation = (validation[0][run.slots], validation[1][run.slots])
    batch = (run.data.x[0] if own else run.data.x)[: run.config.batch_size]
    show = None if progress is None else not progress
    bar = tqdm(
        total=run.epochs, initial=run.epoch, desc=f"fleet of {len(group)}", unit="epoch", disable=show, leave=False
    )
    with bar, sensible_threads(run.stacked, batch, run.config.threads):
        while run.epoch < run.epochs and run.running:
            started, before = time.perf_counter(), run.running
            records = _epoch(run)
            run.epoch += 1
            accuracy = _accuracy(run, validation)
            run.end_epoch()
            seconds = (time.perf_counter() - started) / len(before)
            for slot, i in enumerate(run.slots):
                if i in set(before):
                    numbers = {name: values[slot] for name, values in records.items()}
                    numbers |= {"seconds": seconds, "validation_accuracy": accuracy[slot]}
                    run.histories[i].records.append({"epoch": run.epoch, **numbers})
            if on_epoch is not None:
                on_epoch(run)
            validation = _compacted(run, validation)
            if saver is not None:
                saver.save(run)
            bar.update(1)
    return run


def _epoch(run: FleetRun) -> dict[str, list[float]]:
    """One pass of every member: search counterfactuals, hand them out over the mini-batches, update on each."""
    config, data, model = run.config, run.data, run.stacked
    run.broken.clear()
    rngs = [epoch_rng(run.config_of(i).seed, run.epoch) for i in run.slots]
    for rng in rngs:
        torch.randint(2**62, (), generator=rng)  # what a lone run seeds its dropout with
    x, y = _all_rows(run, rngs)
    rows = y.dim() - 1
    batches = list(zip(x.split(config.batch_size, rows), y.split(config.batch_size, rows), strict=True))
    num = max(config.num_counterfactuals, len(batches))
    parts = shares(num, len(batches))
    explaining = run.explaining()
    searching = bool(explaining.any())
    objective = run.objective_now(explaining)
    rounds: list[Round] = []
    tally = FleetTally(run, explaining)
    if searching and config.refresh == "epoch":
        rounds = [_round(run, data, num, rngs, explaining)]
        tally.explained(rounds[-1], run.trying())
    model.train()
    for index, (x_batch, y_batch) in enumerate(batches):
        explanations = None
        if searching and config.refresh == "batch":
            rounds.append(_round(run, data, parts[index].stop - parts[index].start, rngs, explaining))
            explanations = rounds[-1].explanations
            tally.explained(rounds[-1], run.trying())
        elif searching:
            explanations = rounds[0].explanations.rows(parts[index])
        terms = objective(model, x_batch, y_batch, explanations)  # Eq. 2 of every member
        trying = run.trying()
        tally.add(terms, y_batch, trying, _update(run, terms))
    return tally.means()


def _update(run: FleetRun, terms: LossTerms) -> Tensor:
    """One step of every member that still trains and whose loss is finite: ``(rows,)`` mask of those."""
    weights = run.stacked.weights
    stepping = run.admit(torch.isfinite(terms.total.detach()))
    weights.grad = None
    terms.total.sum().backward()
    if weights.grad is None:
        raise ModelError("The model's output does not depend on its parameters.")
    run.optimizer.step(weights, weights.grad, None if bool(stepping.all()) else stepping.nonzero().squeeze(-1))
    return stepping


def _round(run: FleetRun, data: TrainingData, num: int, rngs: list[torch.Generator], explaining: Tensor) -> Round:
    """Counterfactuals of all members; one whose model has become unusable is ended and the round repeated."""
    states = [rng.get_state() for rng in rngs]
    while True:
        active = explaining & run.alive
        try:
            return explain_round(run.stacked, data, run.generator, run.constraints, run.config, num, rngs, active)
        except ModelError as error:
            x, _ = _expanded(run)
            with evaluating(run.stacked), torch.no_grad():
                broken = run.alive & ~torch.isfinite(run.stacked(x)).flatten(1).all(-1)
            untouched = run.epoch == 0 and not bool(run.optimizer.updates.any())
            if untouched or not bool(broken.any()):  # it is not the training that has broken a model
                raise
            for slot in broken.nonzero().flatten().tolist():
                run.broken[slot] = run.stacked.weights.detach()[slot].clone()
                run.break_off(slot, str(error).rstrip("."))
            for rng, state in zip(rngs, states, strict=True):
                rng.set_state(state)


class FleetTally:
    """Sums over an epoch's updates, per member; only at the end are they brought to the host."""

    names = ("loss", "class_loss", "divergence", "ridge", "adversarial")

    def __init__(self, run: FleetRun, explaining: Tensor) -> None:
        self.explaining = explaining
        self.contrast, self.adversarial = run.used(explaining)
        zeros = run.stacked.weights.detach().new_zeros
        self.sums = zeros(len(self.names), len(explaining))
        self.hits, self.rows, self.updates = zeros(len(explaining)), zeros(len(explaining)), zeros(len(explaining))
        self.skipped, self.rounds = zeros(len(explaining)), zeros(len(explaining))
        self.search = zeros(2, len(explaining))

    def explained(self, found: Round, trying: Tensor) -> None:
        """Count a search of those that train with counterfactuals and still try."""
        counts = self.explaining & trying
        self.search += torch.where(counts, torch.stack([found.share_mature, found.mean_steps]), 0.0)
        self.rounds += counts

    def add(self, terms: LossTerms, y: Tensor, trying: Tensor, stepped: Tensor) -> None:
        """Count an update of those that made it, a skipped one of the others that tried."""
        divergence, ridge = terms.divergence * self.contrast, terms.ridge * self.contrast
        adversarial = terms.adversarial * self.adversarial
        values = torch.stack([terms.total, terms.class_loss, divergence, ridge, adversarial]).detach()
        self.sums += torch.where(stepped, values, 0.0)
        self.hits += (terms.logits.detach().argmax(-1) == y).sum(-1) * stepped
        self.rows += y.shape[-1] * stepped
        self.updates += stepped
        self.skipped += trying & ~stepped

    def means(self) -> dict[str, list[Any]]:
        """The columns of :class:`History`, one value per row of the stack; 0/0 is the NaN of what did not happen."""
        out = {name: (value / self.updates).tolist() for name, value in zip(self.names, self.sums, strict=True)}
        out["accuracy"] = (self.hits / self.rows).tolist()
        out["skipped"] = self.skipped.long().tolist()
        out["share_mature"], out["mean_steps"] = (self.search / self.rounds).tolist()
        return out


def _expanded(run: FleetRun) -> tuple[Tensor, Tensor]:
    """Training rows of every row of the stack, shared or not: ``(rows, n, *features)``."""
    data, lead = run.data, len(run.slots)
    if data.y.dim() > 1:
        return data.x, data.y
    return data.x.expand(lead, *data.x.shape), data.y.expand(lead, *data.y.shape)


def _all_rows(run: FleetRun, rngs: list[torch.Generator]) -> tuple[Tensor, Tensor]:
    if not run.config.shuffle:
        return _expanded(run)
    order = torch.stack([torch.randperm(run.data.num_rows, generator=rng) for rng in rngs])
    return run.data.at(order.to(run.data.x.device))


def _accuracy(run: FleetRun, validation: tuple[Tensor, Tensor] | None) -> list[float]:
    lead = len(run.slots)
    if validation is None or validation[1].shape[-1] == 0:
        return [float("nan")] * lead
    x, y = validation
    if y.dim() == 1:
        x, y = x.expand(lead, *x.shape), y.expand(lead, *y.shape)
    with evaluating(run.stacked), torch.no_grad():
        for slot, weights in run.broken.items():  # as a lone run, before it goes back to its last sound epoch
            run.stacked.weights[slot] = weights
        predicted = torch.cat([run.stacked(part).argmax(-1) for part in x.split(4096, 1)], -1)
        for slot in run.broken:
            run.stacked.weights[slot] = 0
    return (predicted == y).float().mean(-1).tolist()


def _compacted(run: FleetRun, validation: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor] | None:
    """Let the run drop ended members, and their validation rows with them."""
    before = list(run.slots)
    run.compact()
    if validation is None or validation[1].dim() == 1 or before == run.slots:
        return validation
    keep = [slot for slot, i in enumerate(before) if i in set(run.slots)]
    return validation[0][keep], validation[1][keep]
