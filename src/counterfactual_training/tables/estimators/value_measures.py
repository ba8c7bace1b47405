"""How good a regressor is, and its counterfactuals: measured on rows that it has not seen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch

from counterfactual_training.core.distances import L1Reference
from counterfactual_training.evaluation import recourse
from counterfactual_training.evaluation.judges import nearest_distance
from counterfactual_training.tables.advice.explanation import Explanation
from counterfactual_training.tables.advice.values import Interval
from counterfactual_training.tables.columns.encode import Encoder


def usual_intervals(y: np.ndarray) -> list[Interval]:
    """The lowest quarter of y ``(n,)``, the middle half and the highest quarter."""
    low, high = (float(edge) for edge in np.quantile(y, (0.25, 0.75)))
    intervals = [Interval(-np.inf, low), Interval(low, high), Interval(high, np.inf)]
    return [interval for interval in intervals if interval.low < interval.high]


def measure_intervals(
    regressor: Any,
    frame: pd.DataFrame,
    y: np.ndarray,
    intervals: Sequence[Interval],
    most: int,
    **rules: Any,
) -> pd.DataFrame:
    """One line per interval; :meth:`CounterfactualRegressor.evaluate` says what its columns are."""
    # Imported here, because it is slow.
    from sklearn.metrics import (
        r2_score,
        root_mean_squared_error,
    )

    predicted = regressor.predict(frame)
    fit = {"r2": r2_score(y, predicted), "rmse": root_mean_squared_error(y, predicted)}
    lines = []
    for interval in intervals:
        # Spread over the table, which may be sorted.
        outside = np.flatnonzero(~interval.holds(predicted))
        people = outside[np.linspace(0, len(outside) - 1, min(most, len(outside))).astype(int)]
        sides = tuple(
            None if np.isinf(edge) else edge for edge in (interval.low, interval.high)
        )
        line = {"target": interval.say(2), **fit, "rows": len(people)}
        if len(people):
            explanation = regressor.explain(frame.iloc[people], sides, **rules)
            line |= _of_answers(explanation, regressor.encoder_, frame[interval.holds(y)])
        lines.append(line)
    return pd.DataFrame(lines)


def _of_answers(
    explanation: Explanation, encoder: Encoder, real: pd.DataFrame
) -> dict[str, float]:
    """Measures of the rows asked about, and of their valid counterfactuals beside ``real`` rows."""
    valid = explanation.answered
    x, x_cf = (
        torch.as_tensor(encoder.transform(part[valid])).float()
        for part in (explanation.original, explanation.frame)
    )
    measures = {
        "validity": float(valid.mean()),
        "plausible": float((explanation.status == "converged").mean()),
        "cost": _median(recourse.cost(x_cf, x)),
        "sparsity": float((explanation.distance[valid] > 0).sum(1).mean())
        if valid.any()
        else np.nan,
    }
    if len(real) and valid.any():
        others = torch.as_tensor(encoder.transform(real)).float()
        measures["nn5"] = _median(nearest_distance(x_cf, others))
        measures["ip"] = _median(L1Reference.prepare(others).mean_distance(x_cf))
    return measures


def _median(values: torch.Tensor) -> float:
    if len(values):
        return float(values.double().quantile(0.5))
    return np.nan
