"""Draws of Algorithm 1, lines 2-3: factuals, targets, and real samples of the target class."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

TargetRule = Literal["not_predicted", "not_true", "uniform", "prior"]
Streams = torch.Generator | Sequence[torch.Generator]  # one rng, or one per member of a fleet


def epoch_rng(seed: int, epoch: int) -> torch.Generator:
    """The random generator of one epoch, whatever came before: a resumed run draws the same."""
    # Multipliers with well-mixed bits, from splitmix64, so that neighbouring seeds and epochs get
    # unrelated streams.
    mixed = (seed * 0x9E3779B97F4A7C15 + epoch * 0xBF58476D1CE4E5B9 + 0x2545F491) % 2**63
    return torch.Generator().manual_seed(mixed)


def each(draw: Callable[..., Tensor], rng: Streams, *rows: Tensor) -> Tensor:
    """``draw(rng, *rows)``; with one rng per member of a fleet, stacked draws."""
    if isinstance(rng, torch.Generator):
        return draw(rng, *rows)
    return torch.stack(
        [draw(stream, *(value[i] for value in rows)) for i, stream in enumerate(rng)]
    )


def draw_rows(num_rows: int, num: int, rng: torch.Generator) -> Tensor:
    """Uniformly without replacement; all rows, and then again, if more are asked for."""
    rounds = -(-num // num_rows)
    return torch.cat([torch.randperm(num_rows, generator=rng) for _ in range(rounds)])[:num]


def draw_targets(
    rule: TargetRule, rng: torch.Generator, logits: Tensor, y: Tensor, class_counts: Tensor
) -> Tensor:
    """A target class per row ``(n,)`` by the given rule; logits ``(n, k)`` of the factuals, y their
    true labels.
    """
    n, k = logits.shape
    if rule == "uniform":
        return torch.randint(k, (n,), generator=rng).to(y.device)
    if rule == "prior":
        return torch.multinomial(
            class_counts.double().cpu(), n, replacement=True, generator=rng
        ).to(y.device)
    if rule == "not_predicted":
        avoided = logits.argmax(-1)
    else:
        avoided = y
    # A shift by 1..k−1 is uniform over the other classes, and takes the same draws whatever is
    # avoided.
    shift = torch.randint(1, k, (n,), generator=rng).to(y.device)
    return (avoided + shift) % k


def draw_positives(
    rows_by_class: list[Tensor], y_target: Tensor, rng: torch.Generator
) -> Tensor:
    """For each target ``(n,)`` the index of a random training row truly of that class."""
    sizes = torch.tensor([len(rows) for rows in rows_by_class])
    starts = sizes.cumsum(0) - sizes
    targets = y_target.cpu()
    # One draw per row, whatever its class, and in double precision: single has gaps beyond 2²⁴
    # rows.
    place = (
        torch.rand(len(targets), generator=rng, dtype=torch.float64) * sizes[targets]
    ).long()
    return torch.cat(rows_by_class)[(starts[targets] + place).to(rows_by_class[0].device)]


def shares(total: int, parts: int) -> list[int]:
    """``total`` rows as nearly equal parts; the first ones get the surplus."""
    return [total // parts + (i < total % parts) for i in range(parts)]
