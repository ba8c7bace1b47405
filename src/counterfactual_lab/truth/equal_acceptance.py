"""What advice costs where it is believed as often as that of another method; over seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from counterfactual_training.evaluation.acceptance import Frontier, cost_at_equal_acceptance
from counterfactual_training.evaluation.metrics import ACCEPTANCE
from counterfactual_training.evaluation.stepfree import FLOORS, RETRAINED

# Who believes the advice: the column, and its words.
BY = {ACCEPTANCE: "other families", RETRAINED: "refits"}
_LEVEL = 0.95
_NUMBERS = ("cost", "low", "high", "accepted", "reference_accepted", "people", "seeds")
COLUMNS = ("data", "setting", "method", "reference", "by", *_NUMBERS)


def equal_acceptance(
    table: pd.DataFrame, reference: str | Mapping[str, str] = "conventional"
) -> pd.DataFrame:
    """Cost of every method, as a multiple of its reference's, where both are believed alike.

    The bars are the τ of the table; a seed's frontier goes from bar to bar, over the people whom
    the method and its reference answer at each of them (:func:`cost_at_equal_acceptance`).

    Args:
        table: of :func:`stepfree_table`, with columns ``data`` and ``seed``, maybe ``setting``;
            τ that are searched alike and differ in nothing but how far they go.
        reference: the method that all are compared with, or one for each.

    Returns:
        One row per data set, setting, method and column of :data:`BY`: ``cost``, the geometric
        mean of the seeds' ratios, with its interval ``low … high`` by Student's t over seeds (NaN
        of one seed); ``accepted`` and ``reference_accepted``, the mean share of judges at the
        first bar; ``people``, on average, and ``seeds``, those in which both methods reach a
        common level.
    """
    if "setting" not in table:
        table = table.assign(setting="")
    believed = [name for name in BY if name in table]
    rows = []
    known = table[~table["model"].isin(FLOORS)]
    for (data, setting), cell in known.groupby(["data", "setting"], sort=False):
        by_model = {
            str(name): {str(seed): _wide(of_seed) for seed, of_seed in part.groupby("seed")}
            for name, part in cell.groupby("model", sort=False)
        }
        for name, own in by_model.items():
            other = reference if isinstance(reference, str) else reference.get(name, name)
            if other == name:
                continue
            for column in believed:
                pairs = [
                    _pair(own[seed], by_model[other][seed], column)
                    for seed in sorted(set(own) & set(by_model[other]))
                ]
                about = {"data": data, "setting": setting, "method": name, "reference": other}
                rows.append({**about, "by": BY[column], **_over_seeds(pairs)})
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _wide(part: pd.DataFrame) -> pd.DataFrame:
    """A method and seed: bars by people, a block of columns for each measure."""
    values = ["valid", "cost", *(name for name in BY if name in part)]
    return part.pivot(index="tau", columns="row", values=values).reindex(part["tau"].unique())


def _pair(one: pd.DataFrame, other: pd.DataFrame, column: str) -> dict[str, float]:
    """Two methods of one seed."""
    people = sorted(set(one["cost"].columns) | set(other["cost"].columns))
    mine = _frontier(one, column, people)
    its = _frontier(other, column, people)
    both = mine.answered.all(0) & its.answered.all(0)
    pair = {"ratio": cost_at_equal_acceptance(mine, its), "people": float(both.sum())}
    if both.any():
        pair |= {"own": float(mine.accepted[0, both].mean())}
        pair |= {"its": float(its.accepted[0, both].mean())}
    return pair


def _frontier(wide: pd.DataFrame, column: str, people: list[int]) -> Frontier:
    """People whom a method was not asked about, or found nothing for, are not answered."""
    both = wide.reindex(columns=pd.MultiIndex.from_product([("cost", column), people]))
    cost, accepted = (both[name].to_numpy(np.float64) for name in ("cost", column))
    answered = ~np.isnan(cost) & ~np.isnan(accepted)
    return Frontier(np.nan_to_num(cost), np.nan_to_num(accepted), answered)


def _over_seeds(pairs: list[dict[str, float]]) -> dict[str, float]:
    """The mean over seeds, of ratios on a logarithmic scale."""
    frame = pd.DataFrame(pairs, columns=["ratio", "people", "own", "its"])
    logs = np.log(frame["ratio"].dropna().to_numpy())
    out = {"cost": math.nan, "low": math.nan, "high": math.nan}
    if len(logs):
        middle = float(logs.mean())
        out["cost"] = math.exp(middle)
    if len(logs) > 1:
        wide = (
            stdtrit(len(logs) - 1, (1 + _LEVEL) / 2) * logs.std(ddof=1) / math.sqrt(len(logs))
        )
        out |= {"low": math.exp(middle - wide), "high": math.exp(middle + wide)}
    return {
        **out,
        "accepted": float(frame["own"].mean()),
        "reference_accepted": float(frame["its"].mean()),
        "people": float(frame["people"].mean()),
        "seeds": len(logs),
    }
