"""Names of the paper's data sets, and the published numbers: typed once, checked against what the
paper prints.
"""

import math

import pytest

from counterfactual_lab.paper_data import (
    KEYS,
    PAPER_ORDER,
    kind_of,
    published_numbers,
    published_value,
    short_name,
)
from counterfactual_training.errors import InputError


def test_data_sets_go_by_the_papers_names_and_a_typo_gets_a_suggestion():
    names = ("moons", "circ", "california_housing", "mnist")
    assert [short_name(name) for name in names] == ["Moon", "Circ", "CH", "MNIST"]
    with pytest.raises(InputError, match="Did you mean 'Adult'"):
        short_name("Adlt")
    with pytest.raises(
        InputError, match="Unknown data set 'loan'"
    ):  # in the catalogue, but not in the paper
        short_name("loan")
    assert [kind_of(name) for name in ("LS", "CH", "MNIST")] == [
        "synthetic",
        "tabular",
        "images",
    ]
    assert len(PAPER_ORDER) == 9


def test_every_printed_average_is_the_mean_of_its_nine_data_sets():
    """The paper's rows "Avg.", to the digit they are printed with."""
    keys = ["table", "metric", "quantity", "detail", "source"]
    numbers = published_numbers()
    means, averages = (
        numbers[numbers["data"] != "Avg."].groupby(keys)["value"],
        numbers[numbers["data"] == "Avg."],
    )
    assert len(averages) == 11
    for row in averages.to_dict("records"):
        values = means.get_group(tuple(row[key] for key in keys))
        assert len(values) == 9
        assert values.mean() == pytest.approx(row["value"], abs=0.0101), row


def test_reductions_agree_with_the_absolute_means_they_were_made_of():
    """Where both are printed with enough digits; the paper averages ratios, so not to the last
    digit.
    """
    for name in PAPER_ORDER:
        for metric, tolerance in (("implausibility", 0.8), ("cost", 1.5)):
            ct, baseline = (
                published_value("means", name, metric, quantity)
                for quantity in ("ct_published", "baseline")
            )
            reduction = published_value("main", name, metric, "reduction")
            assert 100 * (1 - ct / baseline) == pytest.approx(reduction, abs=tolerance), (
                name,
                metric,
            )


def test_the_numbers_are_complete_and_unique():
    numbers = published_numbers()[published_numbers()["data"] != "Avg."]
    assert not numbers.duplicated(KEYS).any()
    assert not numbers["value"].isna().any()
    assert set(numbers["data"]) == set(PAPER_ORDER)
    satml = dict(iter(numbers[numbers["source"] == "satml"].groupby("table")))
    assert [len(satml[table]) for table in ("main", "means", "robustness")] == [27, 81, 160]
    assert satml["main"]["spread"].notna().all() and satml["main"]["significant"].sum() == 21


@pytest.mark.parametrize(
    ("wanted", "number"),
    [
        (("main", "GMSC", "implausibility", "reduction"), 10.65),
        (("main", "GMSC", "implausibility", "reduction", "", "preprint"), 23.44),
        (("means", "MNIST", "implausibility", "baseline"), 278.84),
        (("validity", "OL", "validity", "ct_published", "protected"), 0.34),
        (("attribution", "LS", "sensitivity", "baseline"), 30.69),
        (("ablation", "Moon", "implausibility", "adversarial"), -7.4),
        (("robustness", "Adult", "fgsm", "vanilla", "0.1"), 0.01),
        (("robustness", "Adult", "pgd", "full", "0.1"), 0.70),
        (("by_lambda", "CH", "implausibility", "reduction", "5", "draft"), 11.84),
    ],
)
def test_single_numbers(wanted, number):
    assert published_value(*wanted) == number


def test_what_was_not_published_is_nan():
    assert math.isnan(published_value("main", "LS", "validity", "reduction"))
    assert (
        published_value("attribution", "LS", "sensitivity", "baseline", column="high") == 629.20
    )
