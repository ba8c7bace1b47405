"""Names of the paper's data sets."""

import pytest

from counterfactual_training.errors import InputError
from counterfactual_training.experiments.paper_data import PAPER_ORDER, kind_of, short_name


def test_data_sets_go_by_the_papers_names_and_a_typo_gets_a_suggestion():
    names = ("moons", "circ", "california_housing", "mnist")
    assert [short_name(name) for name in names] == ["Moon", "Circ", "CH", "MNIST"]
    with pytest.raises(InputError, match="Did you mean 'Adult'"):
        short_name("Adlt")
    with pytest.raises(InputError, match="Unknown data set 'loan'"):  # in the catalogue, but not in the paper
        short_name("loan")
    assert [kind_of(name) for name in ("LS", "CH", "MNIST")] == ["synthetic", "tabular", "images"]
    assert len(PAPER_ORDER) == 9
