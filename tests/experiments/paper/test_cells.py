"""Cells: names, published settings, what is measured."""

from dataclasses import replace

import pytest

from counterfactual_training.datasets.catalog import load_dataset
from counterfactual_training.errors import InputError
from counterfactual_training.experiments.paper.cells import (
    FULL,
    PAPER_ORDER,
    QUICK,
    SYNTHETIC,
    Cell,
    Effort,
    make_cells,
    seeds_of,
    short_name,
)


def test_equal_cells_share_an_id_and_any_difference_gives_another():
    cell = Cell("LS", "full")
    others = [
        replace(cell, data="OL"),
        replace(cell, objective="vanilla"),
        replace(cell, protected=True),
        replace(cell, seed=1),
        replace(cell, effort=QUICK),
        replace(cell, changes=(("burn_in", 0.5),)),
    ]
    assert Cell("linearly_separable", "full").id == cell.id
    assert len({cell.id, *(other.id for other in others)}) == 1 + len(others)
    assert all(letter.isalnum() or letter == "-" for letter in cell.id)


def test_data_sets_go_by_the_papers_names_and_a_typo_gets_a_suggestion():
    assert [short_name(name) for name in ("moons", "circ", "california_housing", "mnist")] == [
        "Moon", "Circ", "CH", "MNIST",
    ]  # fmt: skip
    with pytest.raises(InputError, match="Did you mean 'Adult'"):
        Cell("Adlt", "full")
    with pytest.raises(InputError, match="objective"):
        Cell("LS", "ful")


def test_training_uses_the_published_settings():
    """Reference: batch, τ, n_CE and λ_reg per data set; the rest common."""
    published = {"LS": (30, 0.5, 1000, 0.01), "Circ": (30, 0.5, 1000, 0.5), "Moon": (30, 0.9, 1000, 0.25),
                 "OL": (30, 0.5, 1000, 0.25)}  # fmt: skip
    for name in SYNTHETIC:
        data = load_dataset(name, "as_run")
        setting = Cell(name, "full", seed=3).setting(data)
        found = (setting.config.batch_size, setting.generator.decision_threshold, setting.config.num_counterfactuals,
                 setting.objective.lambda_reg)  # fmt: skip
        assert found == published[name]
        assert (setting.config.epochs, setting.config.learning_rate, setting.config.shuffle) == (100, 1e-3, False)
        assert (setting.objective.lambda_div, setting.objective.lambda_adv) == (0.5, 0.25)
        assert (setting.generator.max_steps, setting.generator.learning_rate) == (30, 0.1)
        assert setting.config.seed == 3
        assert not setting.constraints.immutable.any()


def test_only_protected_cells_train_with_protected_features():
    data = load_dataset("LS", "as_run")
    assert Cell("LS", "full", protected=True).setting(data).constraints.immutable.tolist() == [True, False]
    assert Cell("LS", "full", protected=True).settings_measured == ("protected",)
    assert Cell("LS", "vanilla").settings_measured == ("free", "protected")
    assert Cell("LS", "adversarial").settings_measured == ("free",)


def test_the_published_number_of_individuals_depends_on_the_kind_of_data():
    assert [FULL.individuals(name) for name in ("LS", "CH", "MNIST")] == [250, 100, 25]
    assert Effort(num_individuals=7).individuals("CH") == 7


def test_five_seeds_and_three_of_mnist_unless_told_otherwise():
    assert [len(seeds_of(name, None)) for name in ("LS", "MNIST")] == [5, 3]
    assert list(seeds_of("MNIST", 2)) == [0, 1]
    with pytest.raises(InputError, match="seeds"):
        seeds_of("LS", 0)


def test_cells_come_in_the_papers_order_and_changed_settings_are_checked():
    cells = make_cells(["MNIST", "LS"], ["vanilla", "full protected"], 1, changes={"burn_in": 0.5})
    assert [(c.data, c.model) for c in cells] == [
        ("LS", "vanilla"), ("LS", "full protected"), ("MNIST", "vanilla"), ("MNIST", "full protected"),
    ]  # fmt: skip
    assert cells[0].setting(load_dataset("LS", "as_run")).config.burn_in == 0.5
    with pytest.raises(InputError, match="Did you mean 'burn_in'"):
        make_cells(["LS"], ["full"], changes={"burnin": 0.5})
    with pytest.raises(InputError, match="No data set"):
        make_cells([], ["full"])


def test_every_data_set_has_an_expected_cost():
    assert all(Cell(name, "full").expected_cost > Cell(name, "vanilla").expected_cost > 0 for name in PAPER_ORDER)
