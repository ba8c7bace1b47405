"""Methods of regressions: y are numbers, the model has one output f, and a target is an interval.

Counterfactual Training carries over if an interval takes the place of a class: x⁺ are rows whose y
lies inside, x′ is mature if f(x′) does, and the energy is ``E(x) = (f(x) − m)² / 2s²``, with mean m
and standard deviation s of the y inside.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from counterfactual_training.core.broadcast import per_member
from counterfactual_training.core.energy import interval_energy, mean_rows
from counterfactual_training.core.losses import value_loss
from counterfactual_training.core.precision import at_least_single
from counterfactual_training.errors import InputError
from counterfactual_training.generators import Generator
from counterfactual_training.training.method import Method
from counterfactual_training.training.objective import Batch, LossTerms
from counterfactual_training.training.registry import VALUE_METHODS, register_method
from counterfactual_training.training.round import Memory, Round, take
from counterfactual_training.training.rows import DrawnRows, TrainingRows
from counterfactual_training.training.train_config import TrainConfig

# A search aims at m ± this many s: the descent of a squared hinge only approaches the edge of what
# it aims at.
_CORE = 0.5
# s is at least this share of the standard deviation of all y, for an interval may hold equal values
# only.
_LEAST_SPREAD = 0.05
# Counterfactuals per epoch.
_FEWEST = 100
_MOST = 5000
# What an epoch's search leaves in memory for the batches.
_HELD = ("x_cf", "x_pos", "x_adv", "y", "middle", "spread", "mature", "weight")


class Goals(NamedTuple):
    """The intervals asked for, one per row, each ``(..., m)``."""

    low: Tensor
    high: Tensor
    middle: Tensor
    spread: Tensor


class IntervalBatch(NamedTuple):
    """Counterfactuals for a batch, and the intervals they were searched for; all constants."""

    x_cf: Tensor  # (..., m, d)
    x_pos: Tensor  # (..., m, d) rows whose y lies in the interval, protected
    x_adv: Tensor  # (..., m, d) nascent counterfactuals
    y: Tensor  # (..., m) of the rows they started from
    middle: Tensor  # (..., m) of the intervals asked for
    spread: Tensor
    mature: Tensor  # (..., m) 1 where f(x′) lies in the interval
    weight: Tensor  # (..., m) of the rows they started from
    search_stats: Tensor | None = (
        None  # (2, ...) share mature and mean steps of a new search, for the history
    )


_of_values = partial(register_method, table=VALUE_METHODS)


@_of_values
def conventional() -> Method:
    """Conventional training: ``mean (f(x) − y)²``."""

    def loss(model: nn.Module, batch: Batch, _: Any) -> LossTerms:
        outputs = at_least_single(model(batch.x))
        return LossTerms.sum(outputs, class_loss=value_loss(outputs, batch.y, batch.weight))

    return Method(loss=loss, values=True)


@_of_values
def ct(epsilon: float = 0.1, steps: int = 2, lambda_adv: float = 0.5) -> Method:
    """Counterfactual Training of a bag, as ``ct`` of classes is: each member learns from the rows
    that it drew and from its own nascent counterfactuals,

    ``mean (f(x) − y)² + λ_adv mean (f(x_adv) − y)²``

    x_adv is where the search of :func:`ct_published` for another interval stands after so many
    steps, ε in all (in the 2-norm). Divergence and ridge, which :func:`ct_published` adds, are
    left out.
    """
    # Rounding must not put the last step beyond ε, or it would not be nascent.
    search = Generator(
        "nascent", learning_rate=epsilon / steps, max_steps=steps, epsilon=1.001 * epsilon
    )
    return replace(
        ct_published(lambda_div=0.0, lambda_reg=0.0, lambda_adv=lambda_adv),
        generator=search,
        training=TrainConfig(batch_size=100, learning_rate=3e-3),
        members=5,
        bootstrap=True,
    )


@_of_values
def ct_published(
    lambda_div: float = 0.005,
    lambda_reg: float = 0.001,
    lambda_adv: float = 0.25,
    share: float = 0.25,
    bins: int = 4,
) -> Method:
    """Counterfactual Training as published, with intervals in place of classes:

    ``mean (f(x) − y)² + λ_div mean(E(x⁺) − E(x′)) + λ_reg mean(E²(x⁺) + E²(x′)) + λ_adv mean
    (f(x_adv) − y)²``

    Once per epoch, a share of the rows (100 to 5,000) is searched; batches draw theirs from these.
    Each row asks for one of the intervals between quantiles of y, not for that of its own f(x). x′
    descends the squared hinge ``max(l − f, f − u, 0)²`` under the constraints; x′ that do not
    arrive count in neither divergence nor ridge. x⁺ takes from x′ what is protected (§3.4). x_adv
    is the last iterate with ‖Δ‖∞ ≤ ε.

    The weights are smaller than those of Eq. 2, because energies here are in units of s², which is
    much less than the variance of y. They and the number of intervals were chosen on rows held out
    of the training rows of CH.
    """

    def remember(data: TrainingRows, lead: torch.Size) -> Memory:
        # Members of a bag draw among rows that all share, and which say what the intervals are.
        data = _shared(data)
        if data.separate or data.x.dim() != 2:
            raise InputError(
                f"Intervals are searched for rows (n, d) that all share, got {tuple(data.x.shape)}."
            )
        num = min(_MOST, max(_FEWEST, round(share * data.num_rows)))
        features = data.x.new_zeros(num, data.num_features)
        values = data.y.new_zeros(num)
        held = {name: features if name.startswith("x_") else values for name in _HELD}
        held |= _intervals(data.y, bins) | {"epoch": torch.tensor(-1)}
        return {name: value.expand(lead + value.shape).clone() for name, value in held.items()}

    def find(now: Round) -> IntervalBatch:
        search_stats = None
        if bool((now.memory["epoch"] != now.epoch).any()):
            search_stats = search_epoch(now)
        num = now.memory["y"].shape[-1]
        places = now.choose(num, max(1, round(share * now.y.shape[-1])))
        return IntervalBatch(
            **{name: take(now.memory[name], places) for name in _HELD},
            search_stats=search_stats,
        )

    def loss(model: nn.Module, batch: Batch, explanations: IntervalBatch) -> LossTerms:
        dim = batch.y.dim() - 1
        parts = (batch.x, explanations.x_pos, explanations.x_cf, explanations.x_adv)
        # One forward pass, so that batch statistics see all rows.
        joined = at_least_single(model(torch.cat(parts, dim)))
        sizes = [part.shape[dim] for part in parts]
        outputs, real, counterfactual, nascent = joined.split(sizes, dim)
        low, high = (
            interval_energy(f, explanations.middle, explanations.spread)
            for f in (real, counterfactual)
        )
        return LossTerms.sum(
            outputs,
            class_loss=value_loss(outputs, batch.y, batch.weight),
            divergence=lambda_div * mean_rows(low - high, explanations.mature),
            ridge=lambda_reg * mean_rows(low.square() + high.square(), explanations.mature),
            adversarial=lambda_adv * value_loss(nascent, explanations.y, explanations.weight),
        )

    return Method(loss=loss, find=find, remember=remember, values=True, searches=True)


def search_epoch(now: Round) -> Tensor:
    """Search counterfactuals of training rows for the intervals in memory, and put them there.

    Returns the share of mature ones and the mean number of steps ``(2, ...)``.
    """
    memory = now.memory
    num = now.memory["y"].shape[-1]
    x, y, weight = now.data.at(now.choose(now.data.num_rows, num))
    current = (at_least_single(now.model(x)) > memory["edges"].unsqueeze(-2)).sum(-1)
    k = memory["count"].shape[-1]
    # A shift by 1..k−1 is uniform over the other intervals.
    chosen = (current + 1 + now.choose(k - 1, num)) % k
    goals = Goals(*(memory[f"interval_{name}"].gather(-1, chosen) for name in Goals._fields))
    x_cf, x_adv, steps = approach(now, x, goals)
    outputs = at_least_single(now.model(x_cf)).squeeze(-1)
    mature = (outputs >= goals.low) & (outputs <= goals.high)
    count = memory["count"].gather(-1, chosen)
    place = (now.uniform(num) * count).long().minimum(count - 1)  # a product may be rounded up
    rows = memory["order"].gather(-1, memory["start"].gather(-1, chosen) + place)
    x_pos = now.constraints.to(x).protect(_shared(now.data).at(rows)[0], x_cf)
    columns = (x_cf, x_pos, x_adv, y, goals.middle, goals.spread, mature.to(x))
    memory |= dict(
        zip(_HELD, (*columns, torch.ones_like(y) if weight is None else weight), strict=True)
    )
    memory["epoch"] = torch.full_like(memory["epoch"], now.epoch)
    return torch.stack([mature.float().mean(-1), steps.float().mean(-1)])


def _shared(data: TrainingRows) -> TrainingRows:
    """The rows that all members share, of which those of a bag drew theirs."""
    if isinstance(data, DrawnRows):
        return data.source
    return data


def approach(now: Round, x: Tensor, goals: Goals) -> tuple[Tensor, Tensor, Tensor]:
    """Descend the squared hinge from x ``(..., m, d)``: x′, x_adv and the number of steps ``(...,
    m)``.

    A step follows the hinge's gradient and is at most η long, and no longer than the way to the
    interval at the present slope: the gradient itself is long far from the interval and vanishes
    close to it.
    """
    generator = now.generator
    rules = now.constraints.to(x)
    bounds = rules.bounds(x)
    steps = torch.zeros_like(goals.low)
    low = goals.middle - _CORE * goals.spread
    high = goals.middle + _CORE * goals.spread
    most = torch.as_tensor(generator.max_steps, device=x.device)
    x_cf = x.clone()
    x_adv = x.clone()
    for step in range(int(most.max())):
        leaf = x_cf.detach().requires_grad_()
        with torch.enable_grad():
            outputs = at_least_single(now.model(leaf)).squeeze(-1)
            (slope,) = torch.autograd.grad(outputs.sum(), leaf)
        way = (low - outputs).relu() - (outputs - high).relu()  # what f lacks, with its sign
        going = (way != 0) & (per_member(most, 1) > step)
        if not bool(going.any()):
            break
        # What may not move does not count in the length.
        slope = rules.mask_step(slope * way.sign().unsqueeze(-1))
        norm = slope.norm(dim=-1).clamp_min(1e-12)
        length = torch.minimum(
            way.abs() / norm, torch.as_tensor(per_member(generator.learning_rate, 1)).to(norm)
        )
        moved = x_cf + slope * (length / norm * going).unsqueeze(-1)
        x_cf = torch.where(going.unsqueeze(-1), rules.project(moved, bounds, x_cf), x_cf)
        near = (x_cf - x).abs().amax(-1) <= per_member(generator.epsilon, 1)
        x_adv = torch.where(near.unsqueeze(-1), x_cf, x_adv)
        steps = steps + going
    return x_cf, x_adv, steps


def _intervals(y: Tensor, bins: int) -> Memory:
    """Intervals between quantiles of y ``(n,)``: k, none empty, with the rows inside."""
    levels = y.unique()
    if len(levels) < 2:
        raise InputError(
            "All y are equal: there is no other interval to search counterfactuals for."
        )
    at = torch.linspace(0, 1, bins + 1, dtype=torch.float64)[1:-1]
    # The y at these ranks, not torch's quantile(), which takes 16 million values at most.
    values, order = y.sort(stable=True)
    cuts = values[(at * len(y)).long().to(y.device)]
    # Half way between two neighbouring values of y, so that every row lies on one side.
    upper = torch.searchsorted(levels, cuts).clamp(1, len(levels) - 1).unique()
    edges = (levels[upper - 1] + levels[upper]) / 2
    number = (values.unsqueeze(-1) >= levels[upper]).sum(-1)
    count = torch.bincount(number, minlength=len(edges) + 1)
    least = _LEAST_SPREAD * y.std()
    inside = values.split(count.tolist())
    return {
        "edges": edges,
        "interval_low": torch.cat([edges.new_tensor([-torch.inf]), edges]),
        "interval_high": torch.cat([edges, edges.new_tensor([torch.inf])]),
        "interval_middle": torch.stack([part.mean() for part in inside]),
        "interval_spread": torch.stack(
            [part.std(correction=0).clamp_min(least) for part in inside]
        ),
        "order": order,
        "start": count.cumsum(0) - count,
        "count": count,
    }
