"""Each default once: as run, and as printed where the paper differs."""

import numpy as np
import pytest

from counterfactual_training import TrainConfig, preset
from counterfactual_training.errors import InputError
from counterfactual_training.search import Energy
from counterfactual_training.training import AS_PRINTED, AS_RUN


def test_as_run():
    config = AS_RUN.config
    assert (config.epochs, config.batch_size, config.learning_rate) == (100, 30, 1e-3)
    assert (config.num_counterfactuals, config.burn_in, config.shuffle, config.refresh) == (1000, 0.0, False, "epoch")
    assert (config.target_rule, config.adversarial_label, config.immature) == ("not_predicted", "true", "replace")
    assert (AS_RUN.generator.learning_rate, AS_RUN.generator.strict_epsilon) == (0.1, False)
    assert AS_RUN.num_std == 2.0
    energy = next(p for p in AS_RUN.generator.penalties if isinstance(p, Energy))
    assert (energy.weight, energy.decay, energy.ridge) == (5.0, "polynomial", 1e-3)


def test_as_printed():
    config = AS_PRINTED.config
    assert (config.shuffle, config.target_rule, config.immature) == (True, "uniform", "keep")
    assert (AS_PRINTED.generator.learning_rate, AS_PRINTED.generator.strict_epsilon) == (0.25, True)
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
    assert (config.seed, config.threads) == (-3, 2) and type(config.seed) is type(config.threads) is int
    assert TrainConfig(threads=None).threads is None


@pytest.mark.parametrize(("burn_in", "epochs", "expected"), [(0.0, 10, 0), (0.25, 10, 2), (0.3, 10, 3), (1.0, 10, 10)])
def test_burn_in_is_a_share(burn_in, epochs, expected):
    assert TrainConfig(burn_in=burn_in, epochs=epochs).burn_in_epochs == expected


def test_from_a_config_file():
    assert TrainConfig.from_dict({"epochs": 3, "refresh": "batch"}) == TrainConfig(epochs=3, refresh="batch")
    with pytest.raises(InputError, match=r"setting 'epoch'. Did you mean 'epochs'\?"):
        TrainConfig.from_dict({"epoch": 3})
