"""One model on several processes: each searches for, and differentiates Eq. 2 at, its own rows.

All processes draw alike, so each knows what the whole batch weighs, and no share has to be
corrected: Eq. 2 is a sum over rows. This file wraps what one process does: its run, its learner and
its checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from counterfactual_training.errors import InputError, ModelError
from counterfactual_training.generators import SearchResult
from counterfactual_training.generators.search import search_rows
from counterfactual_training.training.budget import AccuracyBudget
from counterfactual_training.training.callbacks import Callback
from counterfactual_training.training.checkpoint import Checkpoint
from counterfactual_training.training.fingerprint import fingerprint_of_inputs
from counterfactual_training.training.learner import ByLoss, ByTable, Learner
from counterfactual_training.training.method import Method
from counterfactual_training.training.network import Gradients, Network
from counterfactual_training.training.objective import (
    Batch,
    CounterfactualBatch,
    Objective,
    Totals,
)
from counterfactual_training.training.rows import TrainingRows
from counterfactual_training.training.run import Run, Saver, TrainResult
from counterfactual_training.training.sampling import shares

# What training reads of a search.
_SEARCH_FIELDS = ("x_cf", "x_adv", "converged", "num_steps", "status", "confidence")


class Ranks(NamedTuple):
    """The processes that train a ``DistributedDataParallel`` model, of which this is one."""

    rank: int
    size: int
    group: Any = None

    @classmethod
    def from_model(cls, model: DistributedDataParallel) -> Ranks:
        group = model.process_group
        return cls(dist.get_rank(group), dist.get_world_size(group), group)

    # ---- rows ------------------------------------------------------------------------------------

    def rows(self, num: int) -> tuple[slice, int]:
        """This process's part of ``num`` rows, and their number.

        Without a row of its own it takes the first one, which then weighs nothing: every process
        must take part in every update.
        """
        sizes = shares(num, self.size)
        start = sum(sizes[: self.rank])
        here = sizes[self.rank]
        return slice(start, start + here) if here else slice(0, 1), here

    def part(self, batch: Batch, divided: bool) -> Batch:
        """This process's part of a batch; a loader has divided its rows already."""
        if self.size == 1:
            return batch
        x, y, weight, counterfactuals, _ = batch
        rows = torch.as_tensor(_total(weight, y))
        here = len(y)
        if divided:
            rows = self.sum(rows.to(y.device, torch.float64))
        else:
            places, here = self.rows(len(y))
            weight = _weight(weight, y, places, here)
            x = x[places]
            y = y[places]
        none = torch.zeros_like(rows)
        totals = Totals(rows, none, none, here)
        if counterfactuals is not None:
            totals = totals._replace(
                contrast=torch.as_tensor(
                    _total(counterfactuals.weight, counterfactuals.y_target)
                ),
                adversarial=torch.as_tensor(
                    _total(counterfactuals.weight_adv, counterfactuals.y_target)
                ),
            )
            counterfactuals = self._counterfactuals(counterfactuals)
        return Batch(x, y, weight, counterfactuals, totals)

    def _counterfactuals(self, batch: CounterfactualBatch) -> CounterfactualBatch:
        part, here = self.rows(len(batch.y_target))
        target = batch.y_target
        return CounterfactualBatch(
            x_cf=batch.x_cf[part],
            x_pos=batch.x_pos[part],
            x_adv=batch.x_adv[part],
            y_target=target[part],
            y_adv=batch.y_adv[part],
            weight=_weight(batch.weight, target, part, here),
            weight_adv=_weight(batch.weight_adv, target, part, here),
        )

    def of_all_rows(self, result: SearchResult, num: int) -> SearchResult:
        """The results of all ``num`` rows, given those of this process's part."""
        part, here = self.rows(num)
        every: dict[str, Any] = {}
        for name in _SEARCH_FIELDS:
            value = getattr(result, name)
            rows = torch.zeros(num, *value.shape[1:], dtype=torch.float64, device=value.device)
            if here:
                rows[part] = value.double()
            # Each row is zero on all processes but one.
            every[name] = self.sum(rows).to(value.dtype)
        return replace(result, **every)

    # ---- values ----------------------------------------------------------------------------------

    def sum(self, values: Tensor) -> Tensor:
        """Over all processes."""
        values = values.clone()  # all_reduce writes into its argument
        dist.all_reduce(values, group=self.group)
        return values

    def first(self, value: Any) -> Any:
        """The value of the first process."""
        objects = [value]
        dist.broadcast_object_list(
            objects, src=dist.get_global_rank(self.group, 0), group=self.group
        )
        return objects[0]

    def every(self, value: Any) -> list[Any]:
        """The values of all processes."""
        objects = [value] * self.size
        dist.all_gather_object(objects, value, group=self.group)
        return objects

    def share_buffers(self, model: nn.Module) -> None:
        """Running statistics as the first process has them, as DDP does in training."""
        for buffer in model.buffers():
            dist.broadcast(buffer, src=dist.get_global_rank(self.group, 0), group=self.group)


class DistributedRun(Run):
    """The run of a model that several processes train."""

    def __init__(
        self,
        model: DistributedDataParallel,
        method: Method,
        data: TrainingRows,
        validation: TrainingRows | None,
        optimizer: Optimizer | None,
        callbacks: Sequence[Callback],
    ) -> None:
        self.wrapped_model = model
        self.ranks = Ranks.from_model(model)
        super().__init__(
            [model.module], [method], data, validation, optimizer=optimizer, callbacks=callbacks
        )
        self.speaks = self.ranks.rank == 0
        if self.ranks.size > 1:
            self.search = self.search_parts
        self._check()

    def _check(self) -> None:
        """Raise unless all processes have the same rows and method, which works on parts."""
        if self.ranks.size == 1:
            return
        if self.method.loss is not None:
            raise InputError(
                f"The method {self.method.name!r} looks at whole batches: train on one process."
            )
        if isinstance(self.optimizer, torch.optim.LBFGS):
            raise InputError(
                "LBFGS asks for the loss of one batch again and again: train on one process."
            )
        if any(isinstance(callback, AccuracyBudget) for callback in self.callbacks):
            raise InputError(
                "A budget of accuracy needs a reference run on all rows: train on one process, or "
                "set no budget."
            )
        if len(set(self.ranks.every(fingerprint_of_inputs(self)))) > 1:
            raise InputError(
                "The processes were given different rows or methods. Give all of them the whole "
                "training set and one method; each takes its part by itself (or a DataLoader "
                "with a DistributedSampler of the whole set)."
            )

    def make_learner(self, model: nn.Module, optimizer: Optimizer | None) -> Learner:
        """One that trains the part of this process."""
        return DistributedLearner(self, optimizer)

    def evaluating(self) -> AbstractContextManager[None]:
        """Eval mode, with the running statistics of the first process."""
        self.ranks.share_buffers(self.model)
        return super().evaluating()

    def search_parts(
        self, model: nn.Module, x: Tensor, y_target: Tensor, *how: Any
    ) -> SearchResult:
        """Every process searches for its part of the rows; all get the results of all."""
        part, _ = self.ranks.rows(len(x))
        *_, rng = how
        reason = None
        try:
            result = search_rows(model, x[part], y_target[part], *how)
        except ModelError as error:
            reason = str(error)
        reasons = [text for text in self.ranks.every(reason) if text is not None]
        if reasons:
            raise ModelError(reasons[0])
        if isinstance(rng, torch.Generator):
            # Each has drawn for its own rows; from here on, all draw alike again.
            rng.set_state(self.ranks.first(rng.get_state()))
        return self.ranks.of_all_rows(result, len(x))

    def record(self, columns: dict[str, list[Any]], training: set[int]) -> None:
        """As the first process has them, so that callbacks decide alike on every process."""
        super().record(self.ranks.first(columns), training)

    def validate(self) -> tuple[Tensor, int]:
        """A loader has divided the validation rows."""
        sums, rows = super().validate()
        if self.validation is None or not self.validation.divided:
            return sums, rows
        every = self.ranks.sum(torch.tensor(rows, device=self.device))
        return self.ranks.sum(sums), int(every)

    def end_epoch(self, saver: Saver | None, compact: bool) -> None:
        """Stop on all processes if one has stopped."""
        super().end_epoch(None, compact)
        reasons = self.ranks.every(self.history.stopped)
        self.history.stopped = next((why for why in reasons if why is not None), None)
        if saver is not None:
            saver.save(self)

    def results(self) -> list[TrainResult]:
        """The model with its wrapper."""
        return [TrainResult(self.wrapped_model.eval(), self.history)]


class DistributedLearner(Learner):
    """Gradients of parts of batches, which ``DistributedDataParallel`` adds up."""

    def __init__(self, run: DistributedRun, optimizer: Optimizer | None) -> None:
        self.wrapped_model = run.wrapped_model
        self.ranks = run.ranks
        self.divided = run.data.divided
        self.here: list[float] = []  # rows of this process in each batch of the epoch
        objective = run.method.minimised
        rates = [run.config.learning_rate]
        super().__init__(
            run.wrapped_model.module, objective, run.data.num_classes, rates, optimizer
        )

    def way(self) -> ByTable | ByLoss:
        if self.closed:
            network = DistributedNetwork(self.wrapped_model, self.parameters, self.ranks.size)
            return ByTable(network, self.num_classes)
        return ByPartOfLoss(self.wrapped_model, self.parameters)

    def begin_epoch(self) -> None:
        super().begin_epoch()
        self.here = []

    def gradients(
        self, objective: Objective, batches: Sequence[Batch], accumulate: int = 1
    ) -> Iterator[Gradients]:
        """∇ of Eq. 2 for every update, given whole batches, or parts that a loader has made."""
        if self.ranks.size > 1:
            batches = [self.ranks.part(batch, self.divided) for batch in batches]
            self.here += [float(batch.totals.here) for batch in batches if batch.totals]
        return super().gradients(objective, batches, accumulate)

    def total_terms(self, terms: Tensor) -> Tensor:
        """Sums over the parts of all processes, which are the means over whole batches."""
        if self.ranks.size == 1:
            return terms
        here = terms.new_tensor(self.here).unsqueeze(-1)
        # A row that stands for none is no hit, and no row.
        sums = torch.cat([terms[:, :5], terms[:, 5:6] * (here > 0), here], 1)
        return self.ranks.sum(sums)

    def bad(self, gradients: Gradients, idle: Tensor | None = None) -> Tensor:
        """Only gradients are the same on all processes."""
        self.gradient.witnesses = []
        return super().bad(gradients, idle)


class DistributedNetwork(Network):
    """A network whose gradients are sums over all processes."""

    def __init__(
        self, model: DistributedDataParallel, parameters: Sequence[Tensor], processes: int
    ) -> None:
        super().__init__(model, parameters)
        self.processes = processes

    def gradients(self, grad: Tensor) -> Gradients:
        # DistributedDataParallel takes the mean over processes, Eq. 2 is a sum over all rows.
        return super().gradients(grad * self.processes)


class ByPartOfLoss(ByLoss):
    """Gradients of a loss of the user's own, at a part of every batch."""

    def backward(self, objective: Objective, batch: Batch) -> Tensor:
        if batch.totals is None:
            return super().backward(objective, batch)
        recorded = super().backward(of_part(objective, batch), batch)
        return recorded * recorded.new_tensor(shares_of_terms(batch))


class DistributedCheckpoint(Checkpoint):
    """A file that the first process reads and writes: the others may not share its disk."""

    def __init__(self, path: str | Path, run: DistributedRun) -> None:
        super().__init__(path, run)
        self.ranks = run.ranks
        self.fingerprint = self.ranks.first(self.fingerprint)

    def saved_content(self) -> Any:
        content = None
        if self.ranks.rank == 0:
            content = super().saved_content()
        return self.ranks.first(content)

    def save(self, run: Run) -> None:
        if self.ranks.rank == 0:
            super().save(run)


def of_part(objective: Objective, batch: Batch) -> Objective:
    """A loss of the user's own for a part of a batch: its mean over processes, which DDP takes, is
    that of the whole.
    """
    rows, contrast, adversarial = _parts(batch)
    size = dist.get_world_size()
    factors = {
        "lambda_class": rows,
        "lambda_div": contrast,
        "lambda_reg": contrast,
        "lambda_contrast": contrast,
        "lambda_adv": adversarial,
        "lambda_recourse": adversarial,
    }
    return replace(
        objective,
        **{name: getattr(objective, name) * factor * size for name, factor in factors.items()},
    )


def shares_of_terms(batch: Batch) -> list[float]:
    """What total, class loss, divergence, ridge, adversarial loss, hits and rows of a part count,
    so that their sums over processes are those of the whole.
    """
    rows, contrast, adversarial = _parts(batch)
    counts = batch.totals is not None and batch.totals.here > 0
    return [
        1 / dist.get_world_size(),
        rows,
        contrast,
        contrast,
        adversarial,
        float(counts),
        1.0,
    ]


def _parts(batch: Batch) -> list[float]:
    """The weight of rows, x′ and x_adv here relative to that of the whole batch."""
    _, y, weight, counterfactuals, totals = batch
    if totals is None:
        return [1.0, 1.0, 1.0]
    parts = [_total(weight, y) / max(float(totals.rows), 1e-12), 0.0, 0.0]
    if counterfactuals is not None:
        target = counterfactuals.y_target
        parts[1] = _total(counterfactuals.weight, target) / max(float(totals.contrast), 1e-12)
        parts[2] = _total(counterfactuals.weight_adv, target) / max(
            float(totals.adversarial), 1e-12
        )
    return parts


def _total(weight: Tensor | None, label: Tensor) -> float:
    if weight is None:
        return float(label.shape[-1])
    return float(weight.sum())


def _weight(weight: Tensor | None, label: Tensor, part: slice, here: int) -> Tensor | None:
    """The weights of the rows of a part; 0 for the row that stands for none."""
    if here:
        return None if weight is None else weight[part]
    return torch.zeros(1, device=label.device)
