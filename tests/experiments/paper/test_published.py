"""The published numbers: typed once, checked against what the paper itself prints about them."""

import math

import pytest

from counterfactual_training.errors import InputError
from counterfactual_training.experiments.paper.published import KEYS, _numbers, published, value
from counterfactual_training.experiments.paper_data import PAPER_ORDER


def test_every_printed_average_is_the_mean_of_its_nine_data_sets():
    """The paper's rows "Avg.", to the digit they are printed with."""
    keys = ["table", "metric", "quantity", "detail", "source"]
    means = published(source=None).groupby(keys)["value"]
    averages = _numbers()[_numbers()["data"] == "Avg."]
    assert len(averages) == 11
    for row in averages.to_dict("records"):
        values = means.get_group(tuple(row[key] for key in keys))
        assert len(values) == 9
        assert values.mean() == pytest.approx(row["value"], abs=0.0101), row


def test_reductions_agree_with_the_absolute_means_they_were_made_of():
    """Where both are printed with enough digits; the paper averages ratios, so not to the last digit."""
    for name in PAPER_ORDER:
        for metric, tolerance in (("implausibility", 0.8), ("cost", 1.5)):
            ct, baseline = (value("means", name, metric, quantity) for quantity in ("ct", "baseline"))
            reduction = value("main", name, metric, "reduction")
            assert 100 * (1 - ct / baseline) == pytest.approx(reduction, abs=tolerance), (name, metric)


def test_the_numbers_are_complete_and_unique():
    numbers = published(source=None)
    assert not numbers.duplicated(KEYS).any()
    assert not numbers["value"].isna().any()
    assert set(numbers["data"]) == set(PAPER_ORDER)
    assert len(published("main")) == 27 and len(published("means")) == 81 and len(published("robustness")) == 160
    assert published("main")["spread"].notna().all() and published("main")["significant"].sum() == 21


@pytest.mark.parametrize(
    ("wanted", "number"),
    [
        (("main", "GMSC", "implausibility", "reduction"), 10.65),
        (("main", "GMSC", "implausibility", "reduction", "", "preprint"), 23.44),
        (("means", "MNIST", "implausibility", "baseline"), 278.84),
        (("validity", "OL", "validity", "ct", "protected"), 0.34),
        (("attribution", "LS", "sensitivity", "baseline"), 30.69),
        (("ablation", "Moon", "implausibility", "adversarial"), -7.4),
        (("robustness", "Adult", "fgsm", "vanilla", "0.1"), 0.01),
        (("robustness", "Adult", "pgd", "full", "0.1"), 0.70),
        (("by_lambda", "CH", "implausibility", "reduction", "5", "draft"), 11.84),
    ],
)
def test_single_numbers(wanted, number):
    assert value(*wanted) == number


def test_what_was_not_published_is_nan_and_unknown_tables_are_named():
    assert math.isnan(value("main", "LS", "validity", "reduction"))
    assert value("attribution", "LS", "sensitivity", "baseline", column="high") == 629.20
    with pytest.raises(InputError, match="Did you mean 'ablation'"):
        published("ablations")
