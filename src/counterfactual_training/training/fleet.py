"""Many models as one tensor program: Algorithm 1 on ``(members, n, d)``.

With small models nearly all time is overhead per operation. Members do not interact, so search, objective and backward
run on all of them at once, and each trains as it would alone.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from counterfactual_training.constraints import Constraints
from counterfactual_training.constraints.stacking import structure as constraint_structure
from counterfactual_training.errors import InputError, ModelError
from counterfactual_training.models.stack import check_stackable
from counterfactual_training.search import evaluating
from counterfactual_training.search.checks import check_inputs, first_logits
from counterfactual_training.search.stacking import compatible
from counterfactual_training.search.stacking import structure as generator_structure
from counterfactual_training.threads import sensible_threads
from counterfactual_training.training.explanations import Round, TrainingData, explain_round, shares
from counterfactual_training.training.fleet_checkpoint import FleetCheckpoint
from counterfactual_training.training.fleet_run import FleetRun, LoneRun, Member
from counterfactual_training.training.loop import TrainResult, train
from counterfactual_training.training.memory import free_memory, is_out_of_memory, memory_per_member
from counterfactual_training.training.objective import LossTerms
from counterfactual_training.training.sampling import epoch_rng

OnEpoch = Callable[[FleetRun], None]

# What the members of a fleet have in common, because it decides the shape of the work.
SHARED = (
    "epochs", "batch_size", "num_counterfactuals", "refresh", "shuffle", "target_rule", "adversarial_label", "immature",
    "threads",
)  # fmt: skip


class Fleet:
    """Models that share architecture, data, batch size and epochs, trained together.

    Generator, constraints, objective, burn-in, learning rate and seed may differ per member; each ends up as
    :func:`train` would have left it alone. A member whose numbers leave for infinity stops; the others do not notice.

    Members whose generators differ in more than numbers (REVISE beside ECCo) train one group after the other. Models
    that cannot be stacked (running statistics, dropout) are trained one by one, with a warning that says why. A fleet
    too large for the memory is split.
    """

    def __init__(self, members: Sequence[Member]) -> None:
        if not members:
            raise InputError("A fleet needs at least one member.")
        first = members[0].config
        for i, member in enumerate(members):
            for name in SHARED:
                mine, its = getattr(first, name), getattr(member.config, name)
                if mine != its:
                    raise InputError(
                        f"Members of a fleet must share {name}: member 0 has {mine!r}, member {i} {its!r}. "
                        "Train them as two fleets."
                    )
        self.members = list(members)

    def train(
        self,
        x: Tensor,
        y: Tensor,
        *,
        validation: tuple[Tensor, Tensor] | None = None,
        checkpoint: str | Path | None = None,
        on_epoch: OnEpoch | None = None,
        progress: bool | None = None,
    ) -> list[TrainResult]:
        """Train all members, in place; their results in the order of the members.

        Args:
            x: ``(n, *features)`` training rows of all members, or ``(members, n, *features)``, own rows for each.
            y: ``(n,)`` or ``(members, n)`` class indices.
            validation: rows and classes, in either form, whose accuracy is logged every epoch.
            checkpoint: file to save to while training, and to resume from if it exists.
            on_epoch: called after every epoch of a group of members; may end members (:meth:`FleetRun.stop`).
            progress: show a bar; by default on a terminal.
        """
        reason = _unstackable(self.members)
        results: dict[int, TrainResult] = {}
        if reason is not None:
            if len(self.members) > 1:
                warnings.warn(f"The fleet is trained one by one: {reason}", stacklevel=2)
            for i in range(len(self.members)):
                results[i] = self._alone(i, x, y, validation, checkpoint, on_epoch, progress)
            return [results[i] for i in range(len(self.members))]
        data, held = _checked(self.members, x, y, validation)
        members = [_with_constraints(member, data, i) for i, member in enumerate(self.members)]
        for group in _groups(members):
            for part in _fitting(group, members, data):
                self._group(part, members, data, held, checkpoint, on_epoch, progress, results)
        return [results[i] for i in range(len(members))]

    def _group(
        self,
        group: list[int],
        members: list[Member],
        data: TrainingData,
        validation: tuple[Tensor, Tensor] | None,
        checkpoint: str | Path | None,
        on_epoch: OnEpoch | None,
        progress: bool | None,
        results: dict[int, TrainResult],
    ) -> None:
        """Train one group; in halves, where the memory does not suffice."""
        try:
            run = train_group(group, members, data, validation, checkpoint, on_epoch, progress)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error) or len(group) == 1:
                raise
            half = len(group) // 2
            warnings.warn(f"No memory for {len(group)} members at once: training {half} at a time.", stacklevel=3)
            for part in (group[:half], group[half:]):
                self._group(part, members, data, validation, checkpoint, on_epoch, progress, results)
            return
        for i, place in enumerate(group):
            model = members[place].model
            model.load_state_dict(run.model(i).state_dict())
            results[place] = TrainResult(model.eval(), run.histories[i])

    def _alone(
        self,
        i: int,
        x: Tensor,
        y: Tensor,
        validation: tuple[Tensor, Tensor] | None,
        checkpoint: str | Path | None,
        on_epoch: OnEpoch | None,
        progress: bool | None,
    ) -> TrainResult:
        member = self.members[i]
        own = y.dim() > 1
        if validation is not None and validation[1].dim() > 1:
            validation = (validation[0][i], validation[1][i])
        path = None if checkpoint is None else Path(checkpoint).with_suffix(f".{i}{Path(checkpoint).suffix}")
        return train(
            member.model,
            x[i] if own else x,
            y[i] if own else y,
            member.generator,
            member.constraints,
            member.objective,
            member.config,
            validation=validation,
            callbacks=[] if on_epoch is None else [LoneRun(i, on_epoch)],
            checkpoint=path,
            progress=progress,
        )


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


def _unstackable(members: Sequence[Member]) -> str | None:
    try:
        check_stackable([member.model for member in members])
    except ModelError as error:
        if "share parameters" in str(error) or "same architecture" in str(error):
            raise
        return str(error)
    return None


def _checked(
    members: Sequence[Member], x: Tensor, y: Tensor, validation: tuple[Tensor, Tensor] | None
) -> tuple[TrainingData, tuple[Tensor, Tensor] | None]:
    """Training and validation rows that fit the models, or an error that says what does not."""
    model = members[0].model
    check_inputs(model, x, y)
    if y.dim() > 2 or y.numel() == 0 or (y.dim() == 2 and len(y) != len(members)):
        raise InputError(
            f"A fleet of {len(members)} needs y (n,) or ({len(members)}, n) with rows, got shape {tuple(y.shape)}."
        )
    num_classes = int(y.max()) + 1
    for own in y.reshape(-1, y.shape[-1]):
        found = own.unique().tolist()
        if num_classes < 2 or found != list(range(num_classes)):
            raise InputError(f"y must hold every class index 0..k−1 and at least two classes; found {found[:20]}.")
    for i, member in enumerate(members):
        rows, classes = (x[i], y[i]) if y.dim() > 1 else (x, y)
        with evaluating(member.model), torch.no_grad():
            first_logits(member.model, rows[:64], classes[:64], num_classes=num_classes)
    if validation is not None:
        x_val, y_val = validation[0].to(x.device), validation[1].to(y.device)
        check_inputs(model, x_val, y_val)
        if y_val.dim() > 2 or (y_val.dim() == 2 and len(y_val) != len(members)):
            raise InputError(f"Validation rows are given for {len(y_val)} members of a fleet of {len(members)}.")
        for i, member in enumerate(members):
            rows, classes = (x_val[i], y_val[i]) if y_val.dim() > 1 else (x_val, y_val)
            with evaluating(member.model), torch.no_grad():
                first_logits(member.model, rows[:64], classes[:64], num_classes=num_classes)
        if y_val.numel() and not 0 <= int(y_val.min()) <= int(y_val.max()) < num_classes:
            raise InputError(f"Validation classes must lie in 0..{num_classes - 1}, got {y_val.unique().tolist()}.")
        validation = (x_val, y_val)
    return TrainingData.of(x, y.long(), num_classes), validation


def _with_constraints(member: Member, data: TrainingData, i: int) -> Member:
    rows = data.x[i] if data.y.dim() > 1 else data.x
    constraints = member.constraints if member.constraints is not None else Constraints.infer(rows)
    constraints = constraints.to(rows)
    constraints.check_factuals(rows.flatten(1))
    return replace(member, constraints=constraints)


def _groups(members: Sequence[Member]) -> list[list[int]]:
    """Members whose generators and constraints differ in numbers only, together."""
    groups: list[tuple[Any, str, list[int]]] = []
    for i, member in enumerate(members):
        kind = generator_structure(member.generator)
        rules = "" if member.constraints is None else constraint_structure(member.constraints)
        for place, (other, others_rules, group) in enumerate(groups):
            if rules == others_rules and compatible(kind, other):
                group.append(i)
                richer = kind if len(kind[3]) > len(other[3]) else other
                groups[place] = (richer, rules, group)
                break
        else:
            groups.append((kind, rules, [i]))
    return [group for _, _, group in groups]


def _fitting(group: list[int], members: Sequence[Member], data: TrainingData) -> list[list[int]]:
    """The group in parts that the free memory holds."""
    member = members[group[0]]
    each = memory_per_member(member.model, data.x.shape[data.y.dim() :].numel(), data.num_rows, member.config)
    free = free_memory(data.x.device)
    most = len(group) if free is None else max(1, int(0.6 * free / each))
    if most >= len(group):
        return [group]
    count = -(-len(group) // most)
    size = -(-len(group) // count)
    warnings.warn(f"No memory for {len(group)} members at once: training {size} at a time.", stacklevel=4)
    return [group[start : start + size] for start in range(0, len(group), size)]
