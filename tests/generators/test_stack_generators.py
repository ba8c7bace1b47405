"""Generators of several models as one."""

import pytest
import torch

from counterfactual_training import ecco, fit_vae, generic, revise
from counterfactual_training.errors import InputError
from counterfactual_training.generators import Distance, Energy, Generator
from counterfactual_training.generators.stack_generators import (
    compatible,
    generator_structure,
    stack_generators,
)

LIKE = torch.zeros(1, dtype=torch.float64)


def test_numbers_that_differ_become_one_per_member_and_others_stay_plain():
    stacked = stack_generators(
        [ecco(lambda_energy=2.0, max_steps=5), ecco(max_steps=9, epsilon=0.1)], LIKE
    )
    assert stacked.max_steps.tolist() == [5, 9] and stacked.epsilon.tolist() == [0.3, 0.1]
    assert stacked.learning_rate == 0.1 and stacked.name == "ecco"
    distance, energy = stacked.penalties
    assert distance.weight == 0.001 and energy.weight.tolist() == [2.0, 5.0]
    assert energy.weight.dtype == LIKE.dtype


def test_a_penalty_that_a_member_lacks_has_weight_zero():
    stacked = stack_generators([generic(lambda_cost=0.5), ecco()], LIKE)
    by_type = {type(penalty): penalty for penalty in stacked.penalties}
    assert by_type[Energy].weight.tolist() == [0.0, 5.0] and by_type[
        Distance
    ].weight.tolist() == [0.5, 0.001]
    assert stacked.name == "mixed"


def own_penalty(state):
    return state.delta.square().sum(-1)


def test_what_differs_in_more_than_numbers_is_not_stacked():
    vae = fit_vae(torch.randn(20, 2), epochs=1)
    same = Generator("own", penalties=(own_penalty, Distance(0.1)))
    assert compatible(generator_structure(same), generator_structure(same.replace(max_steps=3)))
    assert (
        stack_generators([same, same.replace(learning_rate=0.2)], LIKE).penalties[0]
        is own_penalty
    )
    assert compatible(
        generator_structure(revise(vae)), generator_structure(revise(vae, lambda_cost=0.1))
    )
    for other in (
        revise(vae),
        ecco(decay="none"),
        ecco(strict_epsilon=True),
        ecco(step_rule="line"),
        same,
    ):
        assert not compatible(generator_structure(ecco()), generator_structure(other))
        with pytest.raises(InputError, match="one space"):
            stack_generators([ecco(), other], LIKE)
