"""The step-free protocol: results do not depend on the step size or the scale of the logits.

The published protocol takes 50 steps of fixed length, so a steep model overshoots the boundary and
a flat one does not: part of its plausibility is the scale of the logits. Here the search stops just
past τ, and logits are first brought to one scale. All models explain the same individuals and are
measured by judges that know no model. A model is any ``nn.Module`` with k outputs, or a gated one
with k + 1 (see :func:`decider`).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from counterfactual_training.constraints import Constraints
from counterfactual_training.core.losses import log_odds
from counterfactual_training.core.precision import at_least_single
from counterfactual_training.errors import InputError, check_name
from counterfactual_training.evaluation.bootstrap import Statistic, compare, holm
from counterfactual_training.evaluation.judges import (
    JUDGED,
    Judge,
    nearest_of_target,
    real_rows,
)
from counterfactual_training.evaluation.metrics import ACCEPTANCE
from counterfactual_training.evaluation.performance import decider, predict_logits
from counterfactual_training.evaluation.plugins import (
    Measured,
    MetricFunction,
    as_find,
    values_of,
)
from counterfactual_training.evaluation.recourse import cost, sparsity
from counterfactual_training.generators import Generator, generic, make_generator, search

CONFIDENCE = 0.95
# Acceptance by refits: a column of those who measure it.
RETRAINED = "retrained"
# The search stops just past τ; rounding may put a second forward pass just before it.
_TOLERANCE = 1e-5
# Real rows drawn per individual: with heavy tails, the mean over single rows would be too noisy.
_REAL_ROWS = 5
FLOORS = ("real rows", "unmoved", "nearest unlike")
COLUMNS = ("model", "tau", "row", "target", "valid", *JUDGED, "cost", "changes")


@dataclass(frozen=True)
class Level:
    """How far a search goes."""

    name: str  # in the column ``tau``
    decision_threshold: float  # τ
    rescale: bool = True  # bring every model's logits to one scale first
    generator: Generator | None = None  # by default the recipe ``line``; its τ is replaced
    reach: bool = (
        True  # valid means that τ is reached; else, as published, that the decision has changed
    )


STEP_FREE = (Level(".5", 0.5), Level(".95*", CONFIDENCE))
# The published steps at τ = .5, so that beside ".5" only the step differs.
FIXED_STEPS = Level(
    "50 × 0.1",
    0.5,
    False,
    generic(lambda_cost=0.0, learning_rate=0.1, max_steps=50),
    reach=False,
)


class Individuals(NamedTuple):
    """The individuals to explain, the same for all models."""

    row: Tensor  # (n,) their numbers, for pairing
    x: Tensor  # (n, *features)
    y_target: Tensor  # (n,)


def first_individuals(
    x: Tensor, y: Tensor, num_classes: int, num: int | None = None, seed: int = 0
) -> Individuals:
    """The first ``num`` of the rows x ``(n, *features)``, each with a random class other than its
    own.
    """
    rng = torch.Generator().manual_seed(seed)
    if num is None:
        size = len(y)
    else:
        size = min(num, len(y))
    shift = torch.randint(1, num_classes, (size,), generator=rng)
    return Individuals(torch.arange(size), x[:size], (y[:size] + shift) % num_classes)


class Rescaled(nn.Module):
    """A classifier with its logits times ``scale``: the same decisions with another confidence.

    The control of every comparison: its gains need no training.
    """

    def __init__(self, model: nn.Module, scale: float) -> None:
        super().__init__()
        if not (scale > 0 and math.isfinite(scale)):
            raise InputError(f"scale must be positive and finite, got {scale}.")
        self.model = model
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.model(x)


def scale_of(model: nn.Module, x: Tensor, y: Tensor, confidence: float = CONFIDENCE) -> float:
    """The factor s of the logits at which the median correctly classified row has confidence c:

        median_i m_i(s) = logit(c),    m_i(s) = s f_y(x_i) − log Σ_{k≠y} exp(s f_k(x_i))

    For two classes s = logit(c)/median m_i(1); for more, m is not linear in s and s is found by
    bisection, so that in either case ``scale_of`` of c·f is that of f divided by c. 1 where no row
    is classified correctly.
    """
    # In double precision, because factors of up to 10⁶ are tried.
    logits = predict_logits(model, x).double()
    right = logits.argmax(-1) == y
    logits = logits[right]
    labels = y[right]
    if not len(labels):
        return 1.0
    goal = math.log(confidence / (1 - confidence))
    low = 1e-6
    high = 1e6
    # Bisection works because the log-odds of a correctly classified row increase with the factor.
    for _ in range(60):
        middle = math.sqrt(low * high)  # geometric: the factor may be any power of ten
        if float(log_odds(middle * logits, labels).median()) < goal:
            low = middle
        else:
            high = middle
    return math.sqrt(low * high)


def at_one_scale(model: nn.Module, x: Tensor, y: Tensor, num_classes: int) -> nn.Module:
    """The model at :func:`scale_of` the rows; a gated one keeps its gate and takes the scale of its
    classifier.
    """
    inner = decider(model, x, num_classes)
    scale = scale_of(inner, x, y)
    # A plain model is wrapped; a gated one has a scale of its own, which its gate does not see.
    if inner is model:
        return Rescaled(model, scale)
    # A copy, because the caller's model keeps its scale for the levels that do not rescale.
    other: Any = copy.deepcopy(model)
    if isinstance(other.scale, Tensor):
        other.scale.data.fill_(scale)
    else:
        other.scale = scale
    return other


def stepfree_table(
    models: Mapping[str, nn.Module],
    individuals: Individuals,
    judge: Judge,
    train_rows: tuple[Tensor, Tensor],
    constraints: Constraints | None = None,
    levels: Sequence[Level] = STEP_FREE,
    find: Callable[..., Any] = search,
    metrics: Mapping[str, MetricFunction] | None = None,
) -> pd.DataFrame:
    """One row per model, τ and individual that the model does not already classify as the target.

    Args:
        models: by name; each returns k logits, or k + 1 if it is gated.
        individuals: see :func:`first_individuals`.
        judge: fitted to rows that no model saw, with one entry per class.
        train_rows: rows and classes that the models were fitted to; they decide the scale.
        find: searches, called as :func:`search` is; or any explainer, see :func:`as_find`.
        metrics: columns of your own, each a function of :class:`Measured`, which holds the valid
            ones and, as its data, ``train_rows``.

    Returns:
        :data:`COLUMNS`, then your own. ``valid`` is 0 or 1; what is measured of a counterfactual
        is NaN where it is invalid.
    """
    parts = []
    find = as_find(find)
    for name, model in models.items():
        inner = decider(model, individuals.x, len(judge.classes))
        # By the classifier: a gate changes no decision, so it decides for nobody whether advice is
        # needed.
        undecided = predict_logits(inner, individuals.x).argmax(-1) != individuals.y_target
        who = Individuals(*(part[undecided] for part in individuals))
        level_model = {False: model, True: at_one_scale(model, *train_rows, len(judge.classes))}
        for level in levels:
            recipe = level.generator or make_generator("line")
            recipe = recipe.replace(decision_threshold=level.decision_threshold)
            one = level_model[level.rescale]
            if len(who.row):
                x_cf = find(one, who.x, who.y_target, recipe, constraints, diagnose=False).x_cf
            else:
                x_cf = who.x
            # Validity is judged at the scale of the search, because τ is a probability.
            valid = _valid(one, inner, x_cf, who.y_target, level)
            table = _rows(name, level.name, who, x_cf, valid, judge, constraints)
            if metrics:
                x, points, y_target = (
                    part[valid.to(part.device)] for part in (who.x, x_cf, who.y_target)
                )
                logits = predict_logits(inner, points)
                rules = constraints or Constraints.build(x_cf[:1].numel())
                got = Measured(
                    one, x, points, y_target, logits, valid[valid], rules, *train_rows
                )
                values = {
                    column: values_of(column, metric, got).numpy()
                    for column, metric in metrics.items()
                }
                table = table.join(pd.DataFrame(values, index=table.index[valid.numpy()]))
            parts.append(table)
    if parts:
        return pd.concat(parts, ignore_index=True)
    return pd.DataFrame(columns=list(COLUMNS))


def floor_table(
    individuals: Individuals, judge: Judge, real: tuple[Tensor, Tensor]
) -> pd.DataFrame:
    """The judge on points that no model made, as :func:`stepfree_table` with an empty ``tau``.

    These are random rows of the target class, the unchanged factuals, and the nearest rows of the
    target class, from ``real`` rows and classes that the judge was not fitted to, such as the
    training rows.
    """
    # The same individuals several times, each time with another real row.
    often = Individuals(*(torch.cat([part] * _REAL_ROWS) for part in individuals))
    points = (
        (often, real_rows(*real, often.y_target)),
        (individuals, individuals.x),
        (individuals, nearest_of_target(*real, individuals.x, individuals.y_target)),
    )
    named = zip(FLOORS, points, strict=True)
    parts = [
        _rows(name, "", *at, torch.ones(len(at[1]), dtype=torch.bool), judge, None)
        for name, at in named
    ]
    return pd.concat(parts, ignore_index=True)


def _valid(
    model: nn.Module, inner: nn.Module, x_cf: Tensor, y_target: Tensor, level: Level
) -> Tensor:
    if not len(y_target):
        return torch.zeros(0, dtype=torch.bool)
    if not level.reach:
        return (predict_logits(inner, x_cf).argmax(-1) == y_target).cpu()
    # In log p, where the tolerance means the same relative error for every τ.
    log_p = (
        predict_logits(model, x_cf)
        .log_softmax(-1)
        .gather(-1, y_target.unsqueeze(-1))
        .squeeze(-1)
    )
    return (log_p >= math.log(level.decision_threshold) - _TOLERANCE).cpu()


def _rows(
    name: str,
    tau: str,
    who: Individuals,
    x_cf: Tensor,
    valid: Tensor,
    judge: Judge,
    constraints: Constraints | None,
) -> pd.DataFrame:
    points, factuals = (at_least_single(part).flatten(1) for part in (x_cf, who.x))
    # IP* and spread belong to the set of points, so invalid ones must not be among them.
    measured = judge(points[valid], who.y_target[valid])
    measured["cost"] = cost(points[valid], factuals[valid]).cpu().double().numpy()
    measured["changes"] = (
        sparsity(points[valid], factuals[valid], constraints).cpu().double().numpy()
    )
    columns = {
        "model": name,
        "tau": tau,
        "row": who.row.cpu().numpy(),
        "target": who.y_target.cpu().numpy(),
    }
    table = pd.DataFrame({**columns, "valid": valid.double().numpy()})
    # Rows without a valid counterfactual become NaN.
    of_valid = pd.DataFrame(measured, index=valid.nonzero().flatten().numpy())
    return table.join(of_valid)[list(COLUMNS)]


# How two models are compared, and whether less is better. Percentages make no sense for shares and
# values near zero.
COMPARED: dict[str, tuple[Statistic, bool]] = {
    "nn5": ("reduction", True),
    "ip": ("reduction", True),
    "ip_star": ("difference", True),
    "lof": ("difference", False),
    ACCEPTANCE: ("difference", False),
    "boosting": ("difference", False),
    "cost": ("reduction", True),
    "changes": ("difference", True),
    "valid": ("difference", False),
    RETRAINED: ("difference", False),  # only where it was measured
}
# Metrics in which real rows are the best possible.
WITH_FLOOR = ("nn5", "ip", "ip_star", "lof", ACCEPTANCE, "boosting")
# Relative differences below this may come from the tolerance of the search.
_SEARCH_TOLERANCE = 1e-3
_KEYS = ("data", "setting", "tau")


def _reference(name: str, reference: str | Mapping[str, str]) -> str:
    """The model that this one is compared with; itself if it has none: then there is no test."""
    if isinstance(reference, str):
        return reference
    return reference.get(name, name)


def summarise_stepfree(
    table: pd.DataFrame,
    reference: str | Mapping[str, str] = "conventional",
    metrics: Sequence[str] | None = None,
    level: float = 0.05,
    families: Sequence[str] = (),
) -> pd.DataFrame:
    """Every model against its reference, on the individuals for whom both have a valid
    counterfactual.

    Args:
        table: of :func:`stepfree_table`, with those of :func:`floor_table` beneath. Columns
            ``data``, ``setting`` and ``seed`` are optional; cells are data × setting × τ × model ×
            metric, paired over seeds and individuals.
        reference: the model that all are compared with, or one for each model.
        level: of the verdict, after Holm.
        families: columns whose values separate families of tests, such as ``metric``; by default
            all cells are one.

    Returns:
        One row per cell: ``value`` and ``reference_value`` (means over the pairs), ``real``,
        ``unmoved``, ``nearest_unlike`` (floors), ``share`` of the removable excess (reference −
        value)/(reference − real), ``change`` with its interval ``low … high`` (reduction in %, or
        difference, as ``statistic`` says), ``p_value``, ``p_holm`` over the family,
        ``p_holm_model`` over the cells of that model, ``verdict`` (better, worse, or nothing) by
        ``p_holm``, ``diversity`` (1 as real rows; of all its valid counterfactuals), ``validity``,
        ``num`` pairs and ``seeds``. A reference has its values only.
    """
    if metrics is None:
        metrics = [name for name in COMPARED if name in table]
    for metric in metrics:
        check_name("metric", metric, COMPARED)
    table = table.assign(
        **{key: "" for key in _KEYS if key not in table}, seed=table.get("seed", 0)
    )
    is_floor = table["model"].isin(FLOORS)
    floors = table[is_floor]
    records = []
    for keys, cell in table[~is_floor].groupby(list(_KEYS), sort=False):
        # Floors depend on the data alone: neither on the setting nor on τ.
        floors_of_data = floors[floors["data"] == keys[0]]
        by_model = {str(name): part for name, part in cell.groupby("model", sort=False)}
        for name, part in by_model.items():
            other = _reference(name, reference)
            if other not in by_model:
                raise InputError(
                    f"{name!r} is compared with {other!r}, which is not in the table for {keys}."
                )
            who = {**dict(zip(_KEYS, keys, strict=True)), "model": name, "reference": other}
            for metric in metrics:
                comparison = _compared(
                    metric, part, by_model[other], floors_of_data, alone=other == name
                )
                records.append({**who, **comparison})
    out = pd.DataFrame(records)
    if out.empty:
        return out
    return _judged(out, level, families)


def _judged(out: pd.DataFrame, level: float, families: Sequence[str]) -> pd.DataFrame:
    """With corrected p-values and verdicts."""
    # Over all cells, because a reader looks for the best one among them.
    if families:
        family = out.groupby(list(families)).ngroup()
    else:
        family = pd.Series(0, out.index)
    out["p_holm"] = out.groupby(family)["p_value"].transform(lambda p: holm(p.to_numpy()))
    out["p_holm_model"] = out.groupby("model")["p_value"].transform(
        lambda p: holm(p.to_numpy())
    )
    sign = out["metric"].map({name: -1 if less else 1 for name, (_, less) in COMPARED.items()})
    gain = sign * (out["value"] - out["reference_value"])
    # Statistically sure, and larger than what the tolerance of the search could make up.
    least = _SEARCH_TOLERANCE * out["reference_value"].abs()
    clear = (out["p_holm"] < level) & (np.abs(gain) > least)
    out["verdict"] = np.where(clear, np.where(gain > 0, "better", "worse"), "")
    return out


def _compared(
    metric: str, part: pd.DataFrame, other: pd.DataFrame, floors: pd.DataFrame, alone: bool
) -> dict[str, Any]:
    """One model and its reference in one cell."""
    statistic, _ = COMPARED[metric]
    seeds = sorted(set(part["seed"]) & set(other["seed"]))
    # All rows of either model; those that one of them lacks become NaN and leave both.
    rows = sorted(set(part["row"]) | set(other["row"]))
    a, b = (
        frame.pivot(index="seed", columns="row", values=metric)
        .reindex(index=seeds, columns=rows)
        .to_numpy(np.float64)
        for frame in (part, other)
    )
    paired = ~(np.isnan(a) | np.isnan(b))
    a = np.where(paired, a, np.nan)
    b = np.where(paired, b, np.nan)
    value, base = (
        float(values[paired].mean()) if paired.any() else math.nan for values in (a, b)
    )
    real = {
        str(name): float(floor[metric].mean())
        for name, floor in floors.groupby("model")
        if metric != "valid"
    }
    # Fixed seed: the same table gives the same interval.
    if alone or not paired.any():
        estimate = None
    else:
        estimate = compare(a, b, np.random.default_rng(2025), statistic)
    # What could be removed at all: real rows are not at distance 0 from each other.
    if metric in WITH_FLOOR:
        excess = base - real.get("real rows", math.nan)
    else:
        excess = math.nan
    fields = {"change": "value", "low": "low", "high": "high", "p_value": "p_value"}
    return {
        "metric": metric,
        "value": value,
        "reference_value": base,
        **{
            name.replace(" rows", "").replace(" ", "_"): real.get(name, math.nan)
            for name in FLOORS
        },
        "share": (base - value) / excess if not alone and excess else math.nan,
        "statistic": statistic,
        **{name: getattr(estimate, field, math.nan) for name, field in fields.items()},
        "diversity": float(part["spread"].mean()),
        "validity": float(part["valid"].mean()),
        "num": int(paired.sum()),
        "seeds": len(seeds),
    }
