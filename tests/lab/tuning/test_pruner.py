"""Trials that are given up while they train."""

from types import SimpleNamespace

import pytest

from counterfactual_lab.tuning.batch import Pruner
from counterfactual_lab.tuning.goal import Goal, TrialLimits
from counterfactual_training.training import methods
from counterfactual_training.training.run import History

EPOCH = 4  # of 9; trials are looked at from the third on


def given_up(pace, accuracy):
    """Whether a trial with this accuracy is given up after :data:`EPOCH`."""
    study = SimpleNamespace(alive=lambda: None)
    task = SimpleNamespace(measure=SimpleNamespace(quick=lambda models: []))
    tried = [(methods.ct_published(epochs=9), "none")]
    limits = TrialLimits(accuracy=0.0, validity=0.0, patience=0.1)
    pruner = Pruner(task, study, [0], tried, Goal(("ip", "cost")), limits, pace)
    history = History([{"validation_accuracy": accuracy}] * EPOCH)
    return 0 in pruner(SimpleNamespace(epoch=EPOCH, histories=[history]), {0: [0]})


@pytest.mark.parametrize(
    ("before", "after"), [(0.0, 1.0), (1.0, 0.0)], ids=["rising", "falling"]
)
def test_a_trial_is_held_to_the_pace_of_the_same_epoch(before, after):
    pace = [before] * (EPOCH - 1) + [0.6] + [after] * (9 - EPOCH)
    assert not given_up(pace, 0.55)  # within what patience forgives
    assert given_up(pace, 0.45)
