"""Why a row missed its target, feature by feature and in words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from counterfactual_training.constraints import Constraints
from counterfactual_training.gates import Gated
from counterfactual_training.generators import evaluating
from counterfactual_training.generators.diagnosis import Obstacle, diagnose_points
from counterfactual_training.rules import WAYS
from counterfactual_training.tables.advice.points import in_blocks
from counterfactual_training.tables.columns.encode import Encoder

# Features, by position, and what forbids the change that would help; the most helpful one first.
# Text is a relation to other columns that leaves no room.
Obstacles = list[tuple[int, Obstacle | str]]
# Encoded columns, up to which a model without gradients is asked what each of them would do.
_WIDEST = 512
# Steps, in standard deviations, that show which way a number would help.
_STEPS = (0.25, 1.0, 2.0)


def find_obstacles(
    model: nn.Module,
    encoder: Encoder,
    constraints: Constraints,
    x: Tensor,
    x_cf: Tensor,
    y_target: Tensor,
    gradient_free: bool = False,
) -> tuple[np.ndarray, list[Obstacles]]:
    """Which of n missed rows are stuck ``(n,)``, and what is in the way of those that are.

    Args:
        model: the classifier whose probability missed the threshold, gated or not.
        x, x_cf: ``(n, d)`` factuals and the best effort.
        y_target: ``(n,)``.
        gradient_free: the model has no gradient; of very wide rows it is then not asked what would
            help.
    """
    if not len(x) or (gradient_free and x.shape[-1] > _WIDEST):
        return np.zeros(len(x), dtype=bool), [[] for _ in range(len(x))]
    doubted = None
    if isinstance(model, Gated):
        doubted = _numbers(encoder, x.device)
    slope = None
    if gradient_free:
        slope = _sampled_slope
    with evaluating(model):
        stuck, gain, kind = diagnose_points(
            model, x, x_cf, y_target, constraints, doubted, slope
        )
    if gradient_free:  # where no step helps, two of them together still may
        stuck = stuck & (kind > 0).any(-1)
    # The columns of a one-hot group share one answer: the first speaks for the feature.
    first = [encoder.slices_[column.feature.name].start for column in encoder.columns_]
    gain = gain[:, first].cpu()
    kind = kind[:, first].cpu()
    _hold_codes(kind, encoder, x)
    # Codes from RELATION on are positions in this list.
    texts: Sequence[str] = ()
    if constraints.relations is not None:
        texts = constraints.relations.all_texts
    return stuck.cpu().numpy(), _most_helpful_first(gain, kind, texts)


def _numbers(encoder: Encoder, device: torch.device) -> Tensor:
    """Mask ``(d,)`` of the columns of numbers: near the top of a density, their slopes promise more
    than any step gives.
    """
    widths = [column.width for column in encoder.columns_]
    numbers = [not column.feature.is_category for column in encoder.columns_]
    return torch.tensor(numbers, device=device).repeat_interleave(
        torch.tensor(widths, device=device)
    )


def _hold_codes(kind: Tensor, encoder: Encoder, x: Tensor) -> None:
    """Call cells with special codes fixed, in place: the limit of such a cell is its code."""
    for j, column in enumerate(encoder.columns_):
        if column.feature.special:
            start = encoder.slices_[column.feature.name].start
            stays = (x[:, start + 1 : start + column.width] > 0.5).any(-1).cpu()
            kind[stays & (kind[:, j] == int(Obstacle.LIMIT)), j] = int(Obstacle.FIXED)


def _most_helpful_first(gain: Tensor, kind: Tensor, texts: Sequence[str]) -> list[Obstacles]:
    """What is in the way of each row, from gains and codes ``(n, m)``; 0 stands for nothing."""
    orders = gain.argsort(dim=-1, descending=True).tolist()
    return [
        [(j, _kind(codes[j], texts)) for j in order if codes[j]]
        for order, codes in zip(orders, kind.tolist(), strict=True)
    ]


def _sampled_slope(model: nn.Module, x: Tensor, y_target: Tensor) -> Tensor:
    """Which way each column of x ``(n, d)`` would help, and how much log p(target) gains by the
    best of six steps.

    Stands for a gradient where a model has none: trees are flat nearly everywhere.
    """
    n, d = x.shape
    log_now = in_blocks(model, x).log_softmax(-1).gather(-1, y_target.cpu().unsqueeze(-1))
    slope = torch.zeros(n, d, dtype=log_now.dtype)
    eye = torch.eye(d, dtype=x.dtype, device=x.device)
    # Row by row, because each asks about 6 d points; only rows that missed come here.
    for i in range(n):
        for sign in (1.0, -1.0):
            points = torch.cat([x[i] + sign * step * eye for step in _STEPS])
            then = (
                in_blocks(model, points)
                .log_softmax(-1)[:, int(y_target[i])]
                .view(len(_STEPS), d)
            )
            gain = (then - log_now[i]).amax(0).clamp_min(0.0)
            slope[i] = torch.where(gain > slope[i].abs(), sign * gain, slope[i])
    return slope.to(x)


def _kind(code: int, texts: Sequence[str]) -> Obstacle | str:
    if code < Obstacle.RELATION:
        return Obstacle(code)
    return texts[code - Obstacle.RELATION]


def in_words(obstacles: Obstacles, names: Sequence[str], values: Sequence[str]) -> str:
    """``age and sex may not change; debt is at its limit of 0 dollars``.

    Args:
        names, values: of all features; values are where the row stands, units included.
    """
    # Shorter than a list of all columns.
    if len(obstacles) == len(names) and all(kind == Obstacle.FIXED for _, kind in obstacles):
        return "none of the columns may change"
    sentences = _columns_in_words(obstacles, names, values)
    sentences += _relations_in_words(obstacles, names, values)
    return "; ".join(sentences) or "the rules of the columns leave nothing that would help"


def _columns_in_words(
    obstacles: Obstacles, names: Sequence[str], values: Sequence[str]
) -> list[str]:
    """What the rules of single columns forbid, by kind, so that sentences do not repeat their
    verbs.
    """
    sentences = []
    for kind in Obstacle:
        group = [j for j, why in obstacles if why == kind]
        if kind == Obstacle.LIMIT:
            sentences += [f"{names[j]} is at its limit of {values[j]}" for j in group]
        elif group:
            sentences.append(f"{listed([names[j] for j in group])} {_WORDS[kind]}")
    return sentences


def _relations_in_words(
    obstacles: Obstacles, names: Sequence[str], values: Sequence[str]
) -> list[str]:
    """What relations hold, one after the other."""
    sentences = []
    for text in dict.fromkeys(why for _, why in obstacles if isinstance(why, str)):
        held = [f"{names[j]} at {values[j]}" for j, why in obstacles if why == text]
        sentences.append(f'"{text}" keeps {listed(held)}')
    return sentences


def in_short(kind: Obstacle | str) -> str:
    """What forbids a change of a column, without its value."""
    if isinstance(kind, str):
        return f'is held by "{kind}"'
    if kind == Obstacle.LIMIT:
        return "is at the end of its range"
    return _WORDS[kind]


_WORDS = {
    Obstacle.FIXED: WAYS["none"],
    Obstacle.ONLY_RISES: WAYS["increase"],
    Obstacle.ONLY_FALLS: WAYS["decrease"],
    Obstacle.CATEGORY: "may not become what would help",
}


def listed(parts: Sequence[str], most: int | None = None) -> str:
    """``a``, ``a and b``, ``a, b and c``; of more than ``most``, the first and how many more."""
    if most is None or len(parts) <= most:
        shown = list(parts)
    else:
        shown = [*parts[:most], _more(len(parts) - most)]
    if len(shown) > 1:
        return " and ".join([", ".join(shown[:-1]), shown[-1]])
    return "".join(shown)


def _more(number: int) -> str:
    return f"{number} more change{'s' * (number > 1)}"
