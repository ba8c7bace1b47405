"""Each default once: as run, and as printed. A setting tells its numbers by the names that users
know.
"""

import json

import numpy as np
import pytest
import torch

from counterfactual_training import (
    Objective,
    Setting,
    TrainConfig,
    ecco,
    generic,
    make_objective,
    preset,
)
from counterfactual_training.errors import InputError
from counterfactual_training.generators import Energy
from counterfactual_training.training.setting import (
    AS_PRINTED,
    AS_RUN,
    CHEAP_RECOURSE,
    in_parts,
)

NUMBERS = {
    "decision_threshold": 0.6,
    "max_steps": 9,
    "search_learning_rate": 0.2,
    "epsilon": 0.4,
    "lambda_cost": 0.01,
    "lambda_energy": 3.0,
    "lambda_div": 0.3,
    "lambda_reg": 0.2,
    "lambda_adv": 0.1,
    "learning_rate": 0.005,
    "burn_in": 0.25,
    "num_counterfactuals": 12,
}


def test_numbers_arrive_where_they_belong():
    start = Setting(config=TrainConfig(epochs=7))
    changed = start.with_numbers(NUMBERS)
    assert changed.numbers() == NUMBERS != start.numbers()
    assert list(changed.numbers()) == list(NUMBERS)
    assert changed.generator.learning_rate == 0.2 and changed.config.learning_rate == 0.005
    assert [penalty.weight for penalty in changed.generator.penalties] == [0.01, 3.0]
    assert (
        changed.objective.lambda_div,
        changed.objective.lambda_reg,
        changed.objective.lambda_adv,
    ) == (0.3, 0.2, 0.1)
    assert (
        changed.config.burn_in,
        changed.config.num_counterfactuals,
        changed.config.epochs,
    ) == (0.25, 12, 7)


def test_whole_numbers_are_int_and_all_others_float():
    numbers = Setting(
        ecco(lambda_cost=1, lambda_energy=2), objective=Objective(lambda_div=1)
    ).numbers()
    whole = {name for name, number in numbers.items() if type(number) is int}
    assert whole == {"max_steps", "num_counterfactuals"}
    assert {type(number) for number in numbers.values()} == {int, float}
    assert type(Setting().with_numbers({"max_steps": 9.0}).generator.max_steps) is int


def test_what_has_no_effect_is_not_told():
    setting = Setting(generic(), objective=make_objective("adversarial"))
    assert set(NUMBERS) - set(setting.numbers()) == {
        "lambda_energy",
        "lambda_div",
        "lambda_reg",
    }
    per_member = Setting(
        ecco(epsilon=torch.tensor([0.1, 0.2])), objective=Objective(lambda_reg=torch.ones(2))
    )
    assert set(NUMBERS) - set(per_member.numbers()) == {"epsilon", "lambda_reg"}


def test_an_ablated_term_can_be_switched_on_again():
    setting = Setting(objective=make_objective("vanilla")).with_numbers({"lambda_div": 0.5})
    assert setting.objective.needs_divergence


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"lambda_regg": 0.1}, "Did you mean 'lambda_reg'"),
        ({"lambda_energies": 0.1}, "Did you mean 'lambda_energy'"),
        ({"max_steps": 2.5}, "max_steps is a whole number, got 2.5"),
        ({"burn_in": 2.0}, "share of the epochs"),
        ({"lambda_reg": -1.0}, "lambda_reg must be"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(numbers, message):
    with pytest.raises(InputError, match=message):
        Setting().with_numbers(numbers)


def test_a_number_that_the_generator_lacks_is_refused():
    with pytest.raises(InputError, match="'lambda_energy'"):
        Setting(generic()).with_numbers({"lambda_energy": 1.0})


def test_numbers_by_the_part_they_belong_to():
    parts = in_parts(NUMBERS)
    assert (
        parts["generator"]["learning_rate"] == 0.2 and parts["generator"]["lambda_cost"] == 0.01
    )
    assert parts["objective"] == {"lambda_div": 0.3, "lambda_reg": 0.2, "lambda_adv": 0.1}
    assert parts["config"] == {
        "learning_rate": 0.005,
        "burn_in": 0.25,
        "num_counterfactuals": 12,
    }


def test_a_description_is_plain_values():
    told = AS_PRINTED.describe()
    assert json.loads(json.dumps(told)) == told
    assert told["generator"]["name"] == "ecco" and told["generator"]["learning_rate"] == 0.25
    assert told["objective"]["lambda_div"] == 0.5 and told["training"]["refresh"] == "batch"


def test_the_baseline_and_another_seed_leave_the_rest():
    assert not AS_PRINTED.conventional().objective.needs_counterfactuals
    assert (
        Setting(objective=Objective(lambda_class=2.0)).conventional().objective.lambda_class
        == 2.0
    )
    assert AS_PRINTED.conventional().config == AS_PRINTED.config
    assert CHEAP_RECOURSE.conventional().budget is None and CHEAP_RECOURSE.budget is not None
    seeded = AS_PRINTED.seeded(3)
    assert (
        seeded.config.seed == 3 and seeded.config.refresh == "batch" and AS_RUN.config.seed == 0
    )
    assert seeded.num_std == 3.0


def test_as_run():
    config = AS_RUN.config
    assert (config.epochs, config.batch_size, config.learning_rate) == (100, 30, 1e-3)
    assert (config.num_counterfactuals, config.burn_in, config.shuffle, config.refresh) == (
        1000,
        0.0,
        False,
        "epoch",
    )
    assert (config.target_rule, config.adversarial_label, config.immature) == (
        "not_predicted",
        "true",
        "replace",
    )
    assert (AS_RUN.generator.learning_rate, AS_RUN.generator.strict_epsilon) == (0.1, False)
    assert AS_RUN.num_std == 2.0
    energy = next(p for p in AS_RUN.generator.penalties if isinstance(p, Energy))
    assert (energy.weight, energy.decay, energy.ridge) == (5.0, "polynomial", 1e-3)


def test_as_printed():
    config = AS_PRINTED.config
    assert (config.shuffle, config.target_rule, config.immature) == (True, "uniform", "keep")
    assert (AS_PRINTED.generator.learning_rate, AS_PRINTED.generator.strict_epsilon) == (
        0.25,
        True,
    )
    assert AS_PRINTED.num_std == 3.0
    energy = next(p for p in AS_PRINTED.generator.penalties if isinstance(p, Energy))
    assert (energy.decay, energy.ridge) == ("none", 0.0)


@pytest.mark.parametrize("positives", [0, 1.5, True])
def test_positives_are_counted(positives):
    with pytest.raises(InputError, match="positives must be a whole number of at least 1"):
        TrainConfig(positives=positives)


def test_presets_by_name():
    assert preset("as_run") is AS_RUN and preset("as_printed") is AS_PRINTED
    with pytest.raises(InputError, match=r"preset 'as_ran'. Did you mean 'as_run'\?"):
        preset("as_ran")


def test_the_default_is_as_run():
    assert TrainConfig() == AS_RUN.config


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"epochs": -1}, "epochs must be a whole number of at least 0, got -1"),
        ({"batch_size": 0}, "batch_size must be a whole number of at least 1"),
        ({"epochs": 2.5}, "whole number"),
        ({"num_counterfactuals": 0}, "num_counterfactuals"),
        ({"max_bad_updates": 0}, "max_bad_updates"),
        ({"seed": 1.5}, "seed must be a whole number, got 1.5"),
        ({"seed": True}, "seed must be a whole number, got True"),
        ({"seed": None}, "seed must be a whole number, got None"),
        ({"threads": 0}, "threads must be a whole number of at least 1, got 0"),
        ({"threads": 2.5}, "threads must be a whole number of at least 1, got 2.5"),
        ({"threads": True}, "threads must be a whole number"),
        ({"burn_in": 1.5}, r"share of the epochs in \[0, 1\], got 1.5"),
        ({"burn_in": float("nan")}, "share of the epochs"),
        ({"refresh": "epochs"}, "Did you mean 'epoch'"),
        ({"target_rule": "not_predict"}, "Did you mean 'not_predicted'"),
        ({"adversarial_label": "tru"}, "Did you mean 'true'"),
        ({"immature": "kept"}, "Did you mean 'keep'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(setting, message):
    with pytest.raises(InputError, match=message):
        TrainConfig(**setting)


def test_numbers_of_numpy_are_as_good():
    config = TrainConfig(seed=np.int64(-3), threads=np.int32(2))
    assert (config.seed, config.threads) == (-3, 2) and type(config.seed) is type(
        config.threads
    ) is int
    assert TrainConfig(threads=None).threads is None


@pytest.mark.parametrize(
    ("burn_in", "epochs", "expected"),
    [(0.0, 10, 0), (0.25, 10, 2), (0.3, 10, 3), (1.0, 10, 10)],
)
def test_burn_in_is_a_share(burn_in, epochs, expected):
    assert TrainConfig(burn_in=burn_in, epochs=epochs).burn_in_epochs == expected


def test_from_a_config_file():
    assert TrainConfig.from_dict({"epochs": 3, "refresh": "batch"}) == TrainConfig(
        epochs=3, refresh="batch"
    )
    with pytest.raises(InputError, match=r"setting 'epoch'. Did you mean 'epochs'\?"):
        TrainConfig.from_dict({"epoch": 3})
