"""Metrics with their meanings."""

import pandas as pd
import torch

from counterfactual_training.evaluation.evaluate import evaluate, summarise
from counterfactual_training.evaluation.metrics import METRICS, direction_and_meaning
from counterfactual_training.evaluation.metrics_text import metrics_text
from counterfactual_training.evaluation.protocol import protocol_named
from counterfactual_training.models.classifiers import linear


def test_every_metric_of_one_model_is_explained_and_others_come_last():
    numbers = pd.Series({"share_mature": 0.25} | dict.fromkeys(METRICS, 0.5))
    header, _, *lines = metrics_text(numbers).splitlines()
    assert header.split() == ["metric", "value", "better", "meaning"]
    assert all(
        m.name in line and m.meaning in line
        for m, line in zip(METRICS.values(), lines, strict=False)
    )
    assert (
        lines[-1].split()[:3] == ["share_mature", "0.250", "higher"]
        and len(lines) == len(METRICS) + 1
    )


def test_whatever_is_measured_has_a_meaning():
    torch.manual_seed(0)
    x, y = torch.randn(40, 2), torch.arange(40) % 2
    table = evaluate(linear(2, 2), (x, y), protocol_named("paired", num_individuals=5))
    names = summarise(table).index
    assert {"unfaithfulness", "robust_accuracy_random@0.1", "f1"} <= set(names)
    for name in names:
        assert all(direction_and_meaning(name)), name
