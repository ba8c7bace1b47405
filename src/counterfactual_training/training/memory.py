"""How much memory a fleet needs, and how much there is."""

from __future__ import annotations

import contextlib
from pathlib import Path

import torch
from torch import nn

from counterfactual_training.training.config import TrainConfig


def memory_per_member(model: nn.Module, num_features: int, num_rows: int, config: TrainConfig) -> int:
    """An upper estimate of the bytes that a member adds at its peak.

    Weights with the moments of Adam, gradient and best copy; the counterfactuals of an epoch (factual, mature, nascent,
    positive, and the search's own copies); the activations of one mini-batch, forward and backward; all training rows
    with their classes, where every member has them in an order of its own.
    """
    parameters = sum(p.numel() for p in model.parameters())
    widest = max((max(p.shape) for p in model.parameters() if p.dim() > 1), default=1)
    batches = max(1, num_rows // config.batch_size)
    batch = config.batch_size + 3 * (config.num_counterfactuals // batches + 1)
    values = 6 * parameters + 12 * config.num_counterfactuals * num_features + 8 * batch * (num_features + 2 * widest)
    if config.shuffle:
        values += num_rows * (num_features + 2)
    return 4 * values  # bytes of a float32


def free_memory(device: torch.device) -> int | None:
    """Free bytes; ``None`` if unknown."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    found = [_container()]
    with contextlib.suppress(OSError, LookupError, ValueError):  # of the machine
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        found.append(int(lines["MemAvailable"].split()[0]) * 1024)
    with contextlib.suppress(ImportError, OSError, ValueError):  # of this process, if `ulimit -v` limits it
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        found += [max(limit - pages * resource.getpagesize(), 0)] if limit != resource.RLIM_INFINITY else []
    return min((free for free in found if free is not None), default=None)


def _container(folder: Path = Path("/sys/fs/cgroup")) -> int | None:
    """What the limit of a container leaves; ``None`` without one, where the file says ``max`` or is missing."""
    try:
        left = int((folder / "memory.max").read_text()) - int((folder / "memory.current").read_text())
    except (OSError, ValueError):
        return None
    with contextlib.suppress(OSError, ValueError):  # the page cache counts as used, but is freed on demand
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        left += int(stat.get("inactive_file", 0))
    return max(left, 0)
