"""The numbers of a model with their meanings, as text."""

from __future__ import annotations

import math

import pandas as pd

from counterfactual_training.evaluation.metrics import METRICS, Metric, direction_and_meaning
from counterfactual_training.text_table import NOTHING, ruled


def metrics_text(numbers: pd.Series) -> str:
    """The numbers of one model with their meanings, for a terminal; metrics without a description
    come last.
    """
    lines = [["metric", "value", "better", "meaning"]]
    lines += [
        [name, value_text(m, float(numbers[name])), m.better, m.meaning]
        for name, m in METRICS.items()
    ]
    for name, value in numbers.items():
        if name not in METRICS:
            better, meaning = direction_and_meaning(str(name))
            lines.append(
                [str(name), NOTHING if math.isnan(value) else f"{value:.3f}", better, meaning]
            )
    return ruled(lines)


def value_text(metric: Metric, value: float) -> str:
    if math.isnan(value):
        return NOTHING
    return f"{value:.{metric.digits}f}"
