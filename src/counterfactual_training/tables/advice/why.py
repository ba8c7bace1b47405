"""Why a row missed its target, feature by feature and in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from counterfactual_training.gates import Gated
from counterfactual_training.generators import evaluating
from counterfactual_training.generators.diagnosis import Obstacle, diagnose_points
from counterfactual_training.rules import WAYS
from counterfactual_training.tables.advice.hurdles import Hurdle, Sources, limit
from counterfactual_training.tables.advice.points import Factuals, in_blocks
from counterfactual_training.tables.advice.words import say_number
from counterfactual_training.tables.columns.encode import Encoder

if TYPE_CHECKING:
    from counterfactual_training.tables.advice.find import Finder

# Of one row, the most harmful first.
Obstacles = list[Hurdle]
# Rows that ran out of ways, though some would still help, are told of so many columns in the way,
# each of which would help at least this share of the most helpful one, and so much in log p.
_MOST = 3
_SHARE = 0.25
_LEAST = 0.05
# A number that may not change is in the way if log p would gain so much within its usual range.
_HARMFUL = 0.5
# Encoded columns, up to which a model without gradients is asked what each of them would do.
_WIDEST = 512
# Steps, in standard deviations, that show which way a number would help.
_STEPS = (0.25, 1.0, 2.0)


def find_obstacles(
    finder: Finder, people: Factuals, x_cf: Tensor, y_target: Tensor, sources: Sources
) -> tuple[np.ndarray, list[Obstacles]]:
    """Which of n missed rows are stuck ``(n,)``, and what is in the way of each.

    Args:
        finder: whose model, gated or not, missed the threshold.
        people: the n rows.
        x_cf: ``(n, d)`` the best efforts.
        y_target: ``(n,)``.
        sources: which rules are those of the question.
    """
    x = people.x
    encoder = finder.encoder
    model = finder.searched
    constraints = finder.constraints
    # Background rows exist only for models without gradients. Of very wide rows these are not asked
    # what would help.
    gradient_free = finder.background is not None
    if not len(x) or (gradient_free and x.shape[-1] > _WIDEST):
        return np.zeros(len(x), dtype=bool), [[] for _ in range(len(x))]
    doubted = None
    if isinstance(model, Gated):
        doubted = _numbers(encoder, x.device)
    slope = None
    if gradient_free:
        slope = _sampled_slope
    with evaluating(model):
        found = diagnose_points(model, x, x_cf, y_target, constraints, doubted, slope)
    stuck = found.stuck
    if gradient_free:  # where no step helps, two of them together still may
        stuck = stuck & (found.obstacle > 0).any(-1)
    # The columns of a one-hot group share one answer: the first speaks for the feature.
    first = [encoder.slices_[column.feature.name].start for column in encoder.columns_]
    gain = found.gain[:, first].cpu()
    kind = found.hindered[:, first].cpu()
    # Nothing else is told of who is not stuck.
    worth = gain >= torch.clamp_min(_SHARE * gain.amax(-1, keepdim=True), _LEAST)
    kind = torch.where(stuck.cpu().unsqueeze(-1) | worth, kind, int(Obstacle.NONE))
    _hold_codes(kind, encoder, x)
    own = people.numbers[people.place]
    scale = np.array([column.scale for column in encoder.columns_])
    center = np.array([column.center for column in encoder.columns_])
    at = x_cf[:, first].double().cpu().numpy() * scale + center
    told = _hurdles(finder, sources, gain, kind, own, at)
    # Columns of a relation may move together, so that it only holds who is stuck.
    told = [
        hurdles
        if is_stuck
        else [why for why in hurdles if not isinstance(why.kind, str)][:_MOST]
        for hurdles, is_stuck in zip(told, stuck.tolist(), strict=True)
    ]
    for i, hurdle in _outlying(finder, sources, own, x_cf, y_target):
        if not bool(stuck[i]):
            others = [other for other in told[i] if other.feature != hurdle.feature]
            told[i] = [hurdle, *others][:_MOST]
    return stuck.cpu().numpy(), told


def _hurdles(
    finder: Finder,
    sources: Sources,
    gain: Tensor,
    kind: Tensor,
    own: np.ndarray,
    at: np.ndarray,
) -> list[Obstacles]:
    """What holds the columns of each row, the most harmful first.

    Args:
        gain: ``(n, m)`` what changing a feature would bring.
        kind: ``(n, m)`` what forbids it; 0 for nothing.
        own, at: ``(n, m)`` numbers of the row and of its best effort.
    """
    # Codes from RELATION on are positions in this list.
    texts: Sequence[str] = ()
    if finder.constraints.relations is not None:
        texts = finder.constraints.relations.all_texts
    orders = gain.argsort(dim=-1, descending=True).tolist()
    return [
        [
            _hurdle(finder, sources, j, codes[j], texts, float(own[i, j]), float(at[i, j]))
            for j in order
            if codes[j]
        ]
        for i, (order, codes) in enumerate(zip(orders, kind.tolist(), strict=True))
    ]


def _outlying(
    finder: Finder, sources: Sources, own: np.ndarray, x_cf: Tensor, y_target: Tensor
) -> list[tuple[int, Hurdle]]:
    """Rows and numbers that may not change and lie outside the usual range, if the model would be
    convinced more easily at its end; the most harmful one last.

    Far outside, a slope says little of what would help.
    """
    found = []
    for j, column in enumerate(finder.encoder.columns_):
        name = column.feature.name
        if column.feature.is_category or column.bulk is None or not finder.judge.fixed(name):
            continue
        usual = own[:, j].clip(*column.bulk)
        rows = np.flatnonzero((np.abs(own[:, j] - usual) > column.scale) & ~np.isnan(own[:, j]))
        rows = rows[~column.feature.coded(own[rows, j]).any(1)]
        if len(rows) == 0:
            continue
        here = torch.as_tensor(rows, device=x_cf.device)
        points = x_cf[here].clone()
        points[:, finder.encoder.slices_[name].start] = torch.as_tensor(
            (usual[rows] - column.center) / column.scale
        ).to(points)
        goal = y_target[here].cpu().unsqueeze(-1)
        now, then = (
            finder.logits(at).log_softmax(-1).gather(-1, goal).squeeze(-1)
            for at in (x_cf[here], points)
        )
        low, high = (say_number(end, 4, column.grouped) for end in column.bulk)
        reason = f"{sources.fixed(name)}, and nearly all rows have {low} to {high}"
        hurdle = Hurdle(j, Obstacle.FIXED, reason, sources.rule(name))
        gains = (then - now).tolist()
        found += [
            (gain, i, hurdle)
            for gain, i in zip(gains, rows.tolist(), strict=True)
            if gain > _HARMFUL
        ]
    return [(i, hurdle) for _, i, hurdle in sorted(found, key=lambda entry: entry[0])]


def _hurdle(
    finder: Finder,
    sources: Sources,
    j: int,
    code: int,
    texts: Sequence[str],
    own: float,
    at: float,
) -> Hurdle:
    """A code of a column, in words; it stood at ``own`` and now is ``at``."""
    name = finder.encoder.columns_[j].feature.name
    if code >= Obstacle.RELATION:
        text = texts[code - Obstacle.RELATION]
        return Hurdle(j, text, f'is held by "{text}"')
    kind = Obstacle(code)
    if kind == Obstacle.FIXED:
        return Hurdle(j, kind, sources.fixed(name), sources.rule(name))
    if kind == Obstacle.CATEGORY:
        reason = sources.category(name)
    elif kind == Obstacle.LIMIT:
        reason = limit(finder, j, own, at)
    else:
        reason = _WAYS[kind]
    return Hurdle(j, kind, reason)


_WAYS = {Obstacle.ONLY_RISES: WAYS["increase"], Obstacle.ONLY_FALLS: WAYS["decrease"]}


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


def in_short(hurdle: Hurdle) -> str:
    """What forbids a change of a column, without its value."""
    return hurdle.reason or "is at the end of its range"
