"""Counterfactuals without gradients, for models that only answer questions.

Three ways, tried together: columns changed one after the other, each as gains most for its cost; real rows of the
target class that the rules allow, the nearest first; and random points in growing balls around the row. Changes that
are not needed are taken back, and the cheapest answer stays.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from counterfactual_training.advice.black_box import Background
from counterfactual_training.advice.points import DIGITS, Factuals, floor_of, in_blocks
from counterfactual_training.advice.tries import MOST
from counterfactual_training.advice.walk import one_by_one
from counterfactual_training.search.real_rows import by_distance

if TYPE_CHECKING:
    from counterfactual_training.advice.find import Finder

# Real rows tried per row, the nearest first; and how many that arrive are shortened.
_TRIED, _KEPT = (30, 170), 3
# Real rows kept of each class.
_REAL = 1000
# Points per ball, and the radii of the balls in model space, where a number's standard deviation is 1.
_POINTS = 120
_RADII = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.5, 7.0)
# Steps, in standard deviations, that show which way a number would help.
_STEPS = (0.25, 1.0, 2.0)
# Cells changed at once to see which columns matter, and rows they are changed in.
_CELLS, _ROWS = 20_000_000, 64


def search_blind(
    finder: Finder, background: Background, factuals: Factuals, y: Tensor, threshold: float, sparsify: bool
) -> tuple[Tensor, Tensor]:
    """Points ``(n, d)`` as printed, and the number of balls drawn ``(n,)``.

    Args:
        y: ``(n,)`` target classes.
        threshold: the confidence to reach.
        sparsify: take back what is not needed; the cheapest answer is chosen afterwards.
    """
    # A little above the threshold, so that another batch cannot take the answer back below it.
    x, bar = factuals.x, threshold + DIGITS
    steps, everyone = torch.zeros_like(y), torch.arange(len(y), device=y.device)
    greedy = one_by_one(finder, factuals, y, bar)
    # Several points per row from here on: ``row`` says whose each is.
    row, point = _real(finder, background, factuals, y, bar)
    row, point = torch.cat([everyone, row]), torch.cat([greedy, point])
    confidence = finder.confidence(point, y[row])
    reached = torch.full_like(x[:, 0], -1.0).scatter_reduce_(0, row, confidence, "amax")
    # Balls are the most expensive way, so they are for rows that nothing else helps.
    missed = (reached < bar).nonzero().squeeze(-1)
    if len(missed):
        balls, steps[missed] = _balls(finder, factuals.take(missed), y[missed], bar)
        row, point = torch.cat([row, missed]), torch.cat([point, balls])
        confidence = torch.cat([confidence, finder.confidence(balls, y[missed])])
    if sparsify:
        best = _chosen(finder, x, row, point, confidence, bar)  # of those that miss, only this one is told
        kept = torch.cat([(confidence >= bar).nonzero().squeeze(-1), best[confidence[best] < bar]])
        row, point, confidence = row[kept], point[kept], confidence[kept]
        point = finder.shorten(point, factuals.take(row), y[row], floor_of(confidence, threshold))
    return point[_chosen(finder, x, row, point, confidence, bar)], steps


def _chosen(finder: Finder, x: Tensor, row: Tensor, point: Tensor, confidence: Tensor, bar: float) -> Tensor:
    """For each row of x ``(n, d)``, the number ``(n,)`` of its cheapest point that arrives, else of its best one."""
    # Arrived before missed: no cost is as large as 1e9. Double precision keeps the digits of the cost.
    rank = torch.where(confidence >= bar, finder.cost(point, x[row]).double() - 1e9, -confidence.double())
    chosen = torch.zeros(len(x), dtype=torch.long, device=row.device)
    for place in rank.argsort(descending=True, stable=True).tolist():  # the last assignment of a row wins
        chosen[row[place]] = place
    return chosen


# ---- two more ways ---------------------------------------------------------------------------------------------------


def _real(finder: Finder, background: Background, factuals: Factuals, y: Tensor, bar: float) -> tuple[Tensor, Tensor]:
    """Real rows of the target, moved inside the rules of each row: which row ``(a,)``, and the points ``(a, d)``.

    Up to three that arrive, the nearest first; if none does, the most confident one.
    """
    x, rules = factuals.x, finder.constraints.to(factuals.x)
    lower, upper = rules.interval(x, factuals.held)
    # The same weights as in the cost, so that "nearest" means "cheapest".
    weights = finder.difficulty.to(x)[finder.owner.to(x.device)]
    found_rows, found_points = [y[:0]], [x[:0]]
    for target in y.unique().tolist():
        others = background.x[background.y == target].to(x)
        own = (y == target).nonzero().squeeze(-1)
        # Bounds memory: every row meets every real row.
        for rows in own.split(max(1, 2_000_000 // max(1, others.numel()))) if len(others) else ():
            moved, _, order = by_distance(x[rows], others, lower[rows], upper[rows], weights)
            start = 0
            # A few first. The model is asked about more only for rows that none of them helps.
            for count in _TRIED:
                place = order[:, start : start + count]
                start += count
                if len(rows) == 0 or place.shape[1] == 0:
                    break
                points = moved.gather(1, place.unsqueeze(-1).expand(-1, -1, x.shape[-1]))
                repeated = rows.repeat_interleave(place.shape[1])
                flat = finder.printed(points.flatten(0, 1), factuals.take(repeated))
                confidence = finder.confidence(flat, y[repeated]).view(place.shape)
                arrives = confidence >= bar
                # Sorted by distance, so the first ones that arrive are the nearest.
                first = (arrives.cumsum(-1) <= _KEPT) & arrives
                first |= ~arrives.any(-1, keepdim=True) & (confidence == confidence.amax(-1, keepdim=True))
                at, which = first.nonzero().unbind(-1)
                found_rows.append(rows[at])
                found_points.append(flat.view(*place.shape, -1)[at, which])
                again = ~arrives.any(-1)
                rows, moved, order = rows[again], moved[again], order[again]
    return torch.cat(found_rows), torch.cat(found_points)


def _balls(finder: Finder, factuals: Factuals, y: Tensor, bar: float) -> tuple[Tensor, Tensor]:
    """Points ``(n, d)`` from the smallest ball that holds one that arrives, and how many balls were drawn ``(n,)``.

    All rows share the directions, so that a row's answer does not depend on the others.
    """
    x, rules = factuals.x, finder.constraints.to(factuals.x)
    lower, upper = rules.interval(x, factuals.held)
    best, confidence = x.clone(), finder.confidence(x, y)
    drawn = torch.zeros_like(y)
    rows = torch.arange(len(y), device=y.device)
    for number, radius in enumerate(_RADII):
        if len(rows) == 0:
            break
        # The same in every call, so answers are repeatable.
        directions = _directions(x.shape[-1], tuple(finder.owner.tolist()), number).to(x)
        points = (x[rows].unsqueeze(1) + radius * directions).clamp(lower[rows].unsqueeze(1), upper[rows].unsqueeze(1))
        repeated = rows.repeat_interleave(_POINTS)
        flat = finder.printed(points.flatten(0, 1), factuals.take(repeated))
        reached = finder.confidence(flat, y[repeated])
        cost = finder.cost(flat, x[repeated])
        rank = torch.where(reached >= bar, cost.double() - 1e9, -reached.double()).view(-1, _POINTS)
        place = rank.argmin(-1) + torch.arange(len(rows), device=rows.device) * _POINTS
        # A larger ball replaces a best effort only if it comes closer to the target.
        better = reached[place] > confidence[rows]
        best[rows[better]], confidence[rows[better]] = flat[place][better], reached[place][better]
        drawn[rows] += 1
        rows = rows[confidence[rows] < bar]
    return best, drawn


@lru_cache(maxsize=32)
def _directions(num_columns: int, owner: tuple[int, ...], number: int) -> Tensor:
    """``(120, d)`` moves within [−1, 1], from few features to all of them."""
    rng = torch.Generator().manual_seed(number)
    places = torch.tensor(owner)
    num_features = int(places.max()) + 1
    moves = 2 * torch.rand(_POINTS, num_columns, generator=rng, dtype=torch.float64) - 1
    # Ranks of random numbers are a random permutation; those below ``most`` are a random subset of features.
    rank = torch.rand(_POINTS, num_features, generator=rng, dtype=torch.float32).argsort(-1).argsort(-1)
    most = 2 + (torch.arange(_POINTS) * max(0, num_features - 1)) // _POINTS
    return moves * (rank < most.unsqueeze(-1))[:, places]


# ---- what matters ----------------------------------------------------------------------------------------------------


def make_background(finder: Finder, x: Tensor, y: Tensor, num_classes: int) -> Background:
    """At most a thousand of the rows x ``(n, d)`` of each class y ``(n,)``, always the same ones."""
    # A random sample, because rows may be sorted; seeded, so that explanations are repeatable.
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0)).to(x.device)
    kept = torch.cat([order[y[order] == label][:_REAL] for label in range(num_classes)])
    # Of few columns all are tried anyway.
    many = len(finder.encoder.columns_) > MOST
    found = _sensitivity(finder, x[kept], num_classes) if many else x.new_zeros(0, num_classes)
    return Background(x[kept], y[kept], found)


def _sensitivity(finder: Finder, x: Tensor, num_classes: int) -> Tensor:
    """``(m, k)`` how much the logarithm of each class's probability varies with each feature, in a sample of rows.

    Each feature takes the values of other rows, one feature at a time.
    """
    owner = finder.owner.to(x.device)
    num_features, d = int(owner.max()) + 1, x.shape[-1]
    num_rows = min(len(x), max(2, min(_ROWS, _CELLS // (num_features * d))))
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0)).to(x.device)
    # Rolled by one: each row is paired with another, never with itself.
    rows, others = x[order[:num_rows]], x[order.roll(1)[:num_rows]]
    now = in_blocks(finder.model, rows)
    found = []
    for features in torch.arange(num_features, device=x.device).split(max(1, _CELLS // 5 // (num_rows * d))):
        swapped = torch.where(owner == features.view(-1, 1, 1), others, rows)
        then = in_blocks(finder.model, swapped.flatten(0, 1)).view(len(features), num_rows, num_classes)
        found.append((then - now).abs().mean(1))
    return torch.cat(found)


def sampled_slope(model: torch.nn.Module, x: Tensor, y_target: Tensor) -> Tensor:
    """Which way each column of x ``(n, d)`` would help, and how much log p(target) gains by the best of six steps.

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
            then = in_blocks(model, points).log_softmax(-1)[:, int(y_target[i])].view(len(_STEPS), d)
            gain = (then - log_now[i]).amax(0).clamp_min(0.0)
            slope[i] = torch.where(gain > slope[i].abs(), sign * gain, slope[i])
    return slope.to(x)
