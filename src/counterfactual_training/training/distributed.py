"""One model on several processes: each searches for, and differentiates Eq. 2 at, its own rows.

All processes draw alike, so each knows what the whole batch weighs, and no share has to be
corrected: Eq. 2 is a sum over rows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from counterfactual_training.constraints import Constraints
from counterfactual_training.generators import Generator, SearchResult, search
from counterfactual_training.training.objective import (
    Batch,
    CounterfactualBatch,
    Objective,
    Totals,
)
from counterfactual_training.training.sampling import Streams

# What training reads of a search.
_FOUND = ("x_cf", "x_adv", "converged", "num_steps", "status", "confidence")


def shares(total: int, parts: int) -> list[int]:
    """``total`` rows as nearly equal parts; the first ones get the surplus."""
    return [total // parts + (i < total % parts) for i in range(parts)]


def unwrapped(model: nn.Module) -> nn.Module:
    """A model without its ``DistributedDataParallel`` wrapper."""
    if isinstance(model, DistributedDataParallel):
        return model.module
    return model


class Ranks(NamedTuple):
    """The processes that train a ``DistributedDataParallel`` model; alone there is one."""

    rank: int = 0
    size: int = 1
    group: Any = None

    @classmethod
    def from_model(cls, model: nn.Module) -> Ranks:
        if not isinstance(model, DistributedDataParallel):
            return cls()
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
        x, y, weight, found, _ = batch
        rows = torch.as_tensor(_total(weight, y))
        here = len(y)
        if divided:
            rows = self.sum(rows.to(y.device, torch.float64))
        else:
            own, here = self.rows(len(y))
            weight = _weight(weight, y, own, here)
            x = x[own]
            y = y[own]
        none = torch.zeros_like(rows)
        totals = Totals(rows, none, none, here)
        if found is not None:
            totals = totals._replace(
                contrast=torch.as_tensor(_total(found.weight, found.y_target)),
                adversarial=torch.as_tensor(_total(found.weight_adv, found.y_target)),
            )
            found = self._counterfactuals(found)
        return Batch(x, y, weight, found, totals)

    def _counterfactuals(self, found: CounterfactualBatch) -> CounterfactualBatch:
        own, here = self.rows(len(found.y_target))
        target = found.y_target
        return CounterfactualBatch(
            x_cf=found.x_cf[own],
            x_pos=found.x_pos[own],
            x_adv=found.x_adv[own],
            y_target=target[own],
            y_adv=found.y_adv[own],
            weight=_weight(found.weight, target, own, here),
            weight_adv=_weight(found.weight_adv, target, own, here),
        )

    def search(
        self,
        model: nn.Module,
        x: Tensor,
        y_target: Tensor,
        generator: Generator,
        constraints: Constraints,
        rng: Streams,
        **options: Any,
    ) -> SearchResult:
        """Every process searches for its part of the rows; all get the results of all."""
        own, here = self.rows(len(x))
        found = search(model, x[own], y_target[own], generator, constraints, rng, **options)
        if isinstance(rng, torch.Generator):
            # Each has drawn for its own rows; from here on, all draw alike again.
            rng.set_state(self.first(rng.get_state()))
        whole: dict[str, Any] = {}
        for name in _FOUND:
            value = getattr(found, name)
            rows = torch.zeros(
                len(x), *value.shape[1:], dtype=torch.float64, device=value.device
            )
            if here:
                rows[own] = value.double()
            # Each row is zero on all processes but one.
            whole[name] = self.sum(rows).to(value.dtype)
        return replace(found, **whole)

    # ---- values ----------------------------------------------------------------------------------

    def sum(self, values: Tensor) -> Tensor:
        """Over all processes."""
        if self.size > 1:
            values = values.clone()  # all_reduce writes into its argument
            dist.all_reduce(values, group=self.group)
        return values

    def any(self, flag: bool, device: torch.device) -> bool:
        """Whether the flag is set on any process."""
        if self.size == 1:
            return flag
        return bool(self.sum(torch.tensor(float(flag), device=device)))

    def first(self, value: Any) -> Any:
        """The value of the first process."""
        if self.size == 1:
            return value
        held = [value]
        dist.broadcast_object_list(
            held, src=dist.get_global_rank(self.group, 0), group=self.group
        )
        return held[0]

    def every(self, value: Any) -> list[Any]:
        """The values of all processes."""
        held = [value] * self.size
        if self.size > 1:
            dist.all_gather_object(held, value, group=self.group)
        return held

    def share_buffers(self, model: nn.Module) -> None:
        """Running statistics as the first process has them, as DDP does in training."""
        if self.size > 1:
            for buffer in model.buffers():
                dist.broadcast(
                    buffer, src=dist.get_global_rank(self.group, 0), group=self.group
                )


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
        **{name: getattr(objective, name) * own * size for name, own in factors.items()},
    )


def shares_of_terms(batch: Batch) -> list[float]:
    """What total, class loss, divergence, ridge, adversarial loss and hits of a part count, so that
    their sums over processes are those of the whole.
    """
    rows, contrast, adversarial = _parts(batch)
    counts = batch.totals is not None and batch.totals.here > 0
    return [1 / dist.get_world_size(), rows, contrast, contrast, adversarial, float(counts)]


def _parts(batch: Batch) -> list[float]:
    """The weight of rows, x′ and x_adv here relative to that of the whole batch."""
    _, y, weight, found, totals = batch
    if totals is None:
        return [1.0, 1.0, 1.0]
    parts = [_total(weight, y) / max(float(totals.rows), 1e-12), 0.0, 0.0]
    if found is not None:
        target = found.y_target
        parts[1] = _total(found.weight, target) / max(float(totals.contrast), 1e-12)
        parts[2] = _total(found.weight_adv, target) / max(float(totals.adversarial), 1e-12)
    return parts


def _total(weight: Tensor | None, label: Tensor) -> float:
    if weight is None:
        return float(label.shape[-1])
    return float(weight.sum())


def _weight(weight: Tensor | None, label: Tensor, own: slice, here: int) -> Tensor | None:
    """Of the rows of a part; 0 for the one that stands for none."""
    if here:
        return None if weight is None else weight[own]
    return torch.zeros(1, device=label.device)
