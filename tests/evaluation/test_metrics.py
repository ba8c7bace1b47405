"""The list of measures that all tables share."""

from counterfactual_training.evaluation.counterfactuals import OF_ALL, OF_VALID
from counterfactual_training.evaluation.metrics import (
    COUNTERFACTUAL,
    METRICS,
    OTHERS,
    RATIOS,
    direction_and_meaning,
)


def test_plausibility_and_cost_are_ratios_and_lower_is_better():
    assert RATIOS == ("implausibility", "implausibility_mmd", "cost")
    assert [name for name, metric in METRICS.items() if metric.better == "lower"] == list(
        RATIOS
    )
    assert (*RATIOS, "validity") == COUNTERFACTUAL


def test_titles_begin_with_a_capital_and_point_to_the_better():
    titles = [metric.title for metric in METRICS.values()]
    assert titles == ["Accuracy ↑", "IP ↓", "IP* ↓", "Cost ↓", "Validity ↑", "Robust acc. ↑"]
    assert all(metric.name == name and metric.meaning for name, metric in METRICS.items())


def test_every_name_of_a_table_has_a_direction_and_a_meaning_and_no_other_has():
    assert {*OF_ALL, *OF_VALID} <= {*METRICS, *OTHERS} and not set(METRICS) & set(OTHERS)
    for name in (
        *METRICS,
        *OTHERS,
        "robust_accuracy@0.1",
        "robust_accuracy_pgd",
        "robust_accuracy_random@0.2",
    ):
        better, meaning = direction_and_meaning(name)
        assert better in ("higher", "lower") and meaning
    assert direction_and_meaning("robust_accuracy_pgd@0.1")[1].startswith(
        "accuracy after PGD has moved"
    )
    assert direction_and_meaning("joy") == ("", "")
