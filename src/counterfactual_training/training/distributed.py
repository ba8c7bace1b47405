"""One model on several processes: the parts of each, and their communication."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel


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

    def part(self, num: int) -> tuple[slice, float]:
        """This process's share of ``num`` rows, and its size relative to an even one.

        Without a row of its own it takes the first one, at a share of 0: every process must take
            part in every update.
        """
        sizes = shares(num, self.size)
        start = sum(sizes[: self.rank])
        if sizes[self.rank]:
            own = slice(start, start + sizes[self.rank])
        else:
            own = slice(0, 1)
        return own, sizes[self.rank] * self.size / num

    def relative(self, values: Tensor) -> list[float]:
        """Numbers of this process relative to the mean over all, elementwise; 1 where all are 0."""
        total = self.sum(values)
        return torch.where(total > 0, values * self.size / total.clamp_min(1e-12), 1.0).tolist()

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
