"""A generator tells its numbers and takes them back."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch

from counterfactual_training import ecco, generic, revise
from counterfactual_training.errors import InputError
from counterfactual_training.generators import Distance, Generator
from counterfactual_training.models.vae import VAE

NUMBERS = {"decision_threshold": 0.6, "max_steps": 9, "learning_rate": 0.2, "epsilon": 0.4}


@dataclass(frozen=True)
class Sparsity:
    """A penalty of a user's own, its weight named."""

    number: ClassVar = "lambda_sparse"
    weight: float

    def __call__(self, state):
        return self.weight * state.delta.abs().sqrt().sum(-1)


def test_numbers_are_told_by_name_and_taken_back():
    changed = {**NUMBERS, "lambda_cost": 0.01, "lambda_energy": 3.0}
    generator = ecco().with_numbers(changed)
    assert generator.numbers() == changed
    assert [penalty.weight for penalty in generator.penalties] == [0.01, 3.0]
    assert set(ecco().numbers()) == set(changed) and ecco().numbers() != changed
    assert set(generic().numbers()) == set(changed) - {"lambda_energy"}


def test_a_penalty_of_ones_own_may_name_its_weight():
    plain = lambda state: state.delta.square().sum(-1)  # noqa: E731
    own = Generator("own", penalties=(plain, Sparsity(2.0), Distance(0.1)))
    assert own.numbers()["lambda_sparse"] == 2.0
    changed = own.with_numbers({"lambda_sparse": 5.0})
    assert changed.penalties[1] == Sparsity(5.0)
    # What did not change is the same object: fleets know penalties by identity.
    assert changed.penalties[0] is plain and changed.penalties[2] is own.penalties[2]


def test_of_two_penalties_of_one_name_the_first_counts():
    twice = Generator("twice", penalties=(Distance(0.1), Distance(0.2)))
    assert twice.numbers()["lambda_cost"] == 0.1
    assert [
        penalty.weight for penalty in twice.with_numbers({"lambda_cost": 0.5}).penalties
    ] == [0.5, 0.2]


def test_an_unknown_number_is_refused_with_the_nearest_one():
    with pytest.raises(
        InputError, match=r"generator 'generic': 'lambda_costs'. Did you mean 'lambda_cost'\?"
    ):
        generic().with_numbers({"lambda_costs": 1.0})
    with pytest.raises(InputError, match="'lambda_energy'"):
        generic().with_numbers({"lambda_energy": 1.0})


@pytest.mark.parametrize(
    "steps", [2.5, -1, True, "30", float("nan"), float("inf"), torch.tensor([3.0, 2.5])]
)
def test_steps_that_are_no_whole_number_are_refused(steps):
    with pytest.raises(InputError, match="max_steps must be a whole number"):
        ecco(max_steps=steps)


@pytest.mark.parametrize("steps", [30, 30.0, np.int64(30), np.float32(30)])
def test_whole_steps_of_any_type_are_an_int(steps):
    assert type(ecco(max_steps=steps).max_steps) is int


def test_one_number_of_steps_per_member_is_allowed():
    assert ecco(max_steps=torch.tensor([3, 5])).max_steps.tolist() == [3, 5]


def test_a_step_rule_is_one_of_two_and_moves_features():
    with pytest.raises(InputError, match=r"step_rule 'lines'\. Did you mean 'line'"):
        ecco(step_rule="lines")
    with pytest.raises(InputError, match="not in a LatentSpace"):
        revise(VAE(2), step_rule="line")
