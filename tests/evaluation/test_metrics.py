"""The list of measures that all tables share."""

from counterfactual_training.evaluation.metrics import COUNTERFACTUAL, METRICS, RATIOS


def test_plausibility_and_cost_are_ratios_and_lower_is_better():
    assert RATIOS == ("implausibility", "implausibility_mmd", "cost")
    assert [name for name, metric in METRICS.items() if metric.better == "lower"] == list(RATIOS)
    assert (*RATIOS, "validity") == COUNTERFACTUAL


def test_titles_begin_with_a_capital_and_point_to_the_better():
    titles = [metric.title for metric in METRICS.values()]
    assert titles == ["Accuracy ↑", "IP ↓", "IP* ↓", "Cost ↓", "Validity ↑", "Robust acc. ↑"]
    assert all(metric.name == name and metric.meaning for name, metric in METRICS.items())
