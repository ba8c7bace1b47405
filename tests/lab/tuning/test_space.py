"""Ranges: what may be tuned, and what is refused before anything runs."""

import random

import pytest
from toy_task import make_task

from counterfactual_lab.tuning import RANGES, Choices, Range, make_space
from counterfactual_lab.tuning.space import OF_METHODS, neighbours, tunable_numbers
from counterfactual_training.errors import FileError, InputError
from counterfactual_training.training.method import Method
from counterfactual_training.training.registry import METHODS, make_method, register_method


@pytest.fixture
def start():
    return make_task().start


def test_every_usual_range_is_tunable_and_holds_the_start(start):
    space = make_space(start)
    assert set(space) == set(RANGES) < set(tunable_numbers(start))
    for name, domain in space.items():
        assert domain.including(tunable_numbers(start)[name]) == domain


@pytest.mark.parametrize("name", OF_METHODS)
def test_methods_with_a_loss_of_their_own_have_ranges_of_their_numbers(name):
    """Each holds the default, and its ends are numbers that the method takes."""
    start = make_method(name)
    space = make_space(start)
    shared = {path for path in space if path in RANGES}
    assert set(space) == {*OF_METHODS[name], *shared} and "training.learning_rate" in shared
    for number, domain in OF_METHODS[name].items():
        assert domain.including(tunable_numbers(start)[number]) == domain
        for end in (domain.low, domain.high):
            assert start.replace(number, end).numbers == {**start.numbers, number: end}
    with pytest.raises(InputError, match=r"'objective\.lambda_div' cannot be tuned here"):
        make_space(start, {"lambda_div": (0.1, 1.0)})


def test_every_method_with_a_loss_has_ranges():
    own = {name for name in METHODS if make_method(name).loss is not None}
    assert own == set(OF_METHODS)


def test_steps_of_an_attack_follow_its_reach():
    """The default step size is a share of ε, so it moves with it."""
    assert make_method("pgd").replace("epsilon", 0.4).numbers["step_size"] is None
    assert make_space(make_method("pgd"), {"steps": (2, 12)})["steps"] == Range(
        2, 12, integer=True
    )


def test_a_registered_method_is_tuned_by_the_ranges_that_its_user_gives():
    def softly(strength: float = 1, rounds: int = 2) -> Method:
        return Method(loss=lambda model, batch, found: None)

    start = register_method(softly, {})()
    with pytest.raises(InputError, match=r"No ranges are known for the method 'softly'"):
        make_space(start)
    space = make_space(start, {"strength": (0.5, 2.0), "rounds": [1, 3]})
    assert space["strength"] == Range(0.5, 2.0) and space["rounds"] == Choices((2, 1, 3))


def test_conventional_training_has_nothing_to_tune():
    with pytest.raises(InputError, match="method='ct_published' trains with counterfactuals"):
        make_space(make_method("conventional"))


def test_ranges_grow_to_the_start(start):
    space = make_space(start.replace({"lambda_reg": 0.0001, "max_steps": 90}))
    ridge = space["objective.lambda_reg"]
    steps = space["generator.max_steps"]
    assert ridge.low == 0.0001 and ridge.log and steps.high == 90 and steps.integer


def test_a_range_that_grows_to_zero_is_no_longer_logarithmic():
    assert not Range(0.1, 1.0, log=True).including(0.0).log


def test_changes_by_pair_list_table_and_word(start):
    space = make_space(
        start,
        {
            "lambda_reg": (0.05, 0.2),
            "max_steps": [6, 10],
            "lambda_div": {"low": 0.1, "high": 1.0, "log": False},
            "epsilon": "published",
            "num_counterfactuals": {"choices": [10, 20]},
        },
    )
    assert space["objective.lambda_reg"] == Range(0.05, 0.2, log=True)
    assert space["generator.max_steps"] == Choices((6, 10))
    assert space["objective.lambda_div"] == Range(0.1, 1.0, log=False)
    assert "generator.epsilon" not in space
    assert space["training.num_counterfactuals"] == Choices((10, 20))


def test_a_gate_is_tuned_where_asked_for(start):
    assert "gate" not in make_space(start, gate="density")
    assert make_space(start, {"gate": ["density", "both"]}, "none")["gate"] == Choices(
        ("none", "density", "both")
    )
    assert make_space(start, {"gate": {"choices": ["none", "density"]}})["gate"] == Choices(
        ("none", "density")
    )
    with pytest.raises(InputError, match="Did you mean 'density'"):
        make_space(start, {"gate": ["densty"]})
    with pytest.raises(InputError, match="not a list of choices"):
        make_space(start, {"gate": "density"})


def test_a_file_says_the_same_as_a_dict(start, tmp_path):
    path = tmp_path / "ranges.toml"
    path.write_text(
        'epsilon = "published"\ngenerator.max_steps = [6, 10]\n'
        "[objective.lambda_reg]\nlow = 0.05\nhigh = 0.2\n"
    )
    changes = {"epsilon": "published", "max_steps": [6, 10], "lambda_reg": (0.05, 0.2)}
    assert make_space(start, path) == make_space(start, changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lambda_regg": (0, 1)}, "Did you mean 'lambda_reg'"),
        ({"lambda_reg": {"lo": 0, "high": 1}}, "Did you mean 'low'"),
        ({"lambda_reg": {"low": 0.1}}, "needs low and high"),
        ({"lambda_reg": {"choices": [0.1], "low": 0.1}}, "either choices"),
        ({"lambda_reg": (1.0, 0.5)}, "to a larger one"),
        ({"lambda_reg": (0.1, float("inf"))}, "finite"),
        ({"lambda_reg": {"low": 0.0, "high": 1.0, "log": True}}, "above 0"),
        ({"max_steps": [2.5]}, "whole number"),
        ({"max_steps": (2.5, 7)}, "whole"),
        ({"lambda_reg": "wide"}, "not a range"),
        ({"lambda_reg": ["a"]}, "expected a number"),
        ({"lambda_reg": [0.1, 0.1]}, "different values"),
    ],
)
def test_bad_ranges_are_refused(start, changes, message):
    with pytest.raises(InputError, match=message):
        make_space(start, changes)


def test_nothing_left_to_tune_is_said(start):
    with pytest.raises(InputError, match="nothing to tune"):
        make_space(start, dict.fromkeys(RANGES, "published"))


def test_what_a_method_does_not_have_or_leaves_out_is_not_tuned():
    plain = make_method("ct_published(generator=generic, lambda_div=0, lambda_reg=0)")
    space = make_space(plain)
    assert not {
        "generator.lambda_energy",
        "objective.lambda_div",
        "objective.lambda_reg",
    } & set(space)
    with pytest.raises(InputError, match="lambda_energy"):
        make_space(plain, {"lambda_energy": (0.1, 1.0)})


@pytest.mark.parametrize("content", ["lambda_reg = [", b"\xff\xfe\x00"])
def test_a_file_that_is_no_toml_is_refused(start, tmp_path, content):
    path = tmp_path / "ranges.toml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(FileError, match="not a TOML"):
        make_space(start, path)


def test_a_missing_file_is_said(start, tmp_path):
    with pytest.raises(FileError, match="cannot be read"):
        make_space(start, str(tmp_path / "none.toml"))


def test_neighbours_stay_in_range_and_near_the_start(start):
    space, values = make_space(start), tunable_numbers(start)
    found = neighbours(space, values, 20, seed=0)
    assert (
        found == neighbours(space, values, 20, seed=0) != neighbours(space, values, 20, seed=1)
    )
    for near in found:
        assert all(space[name].including(value) == space[name] for name, value in near.items())
        assert 1 <= sum(near[name] != values[name] for name in space) <= 4
        assert isinstance(near["generator.max_steps"], int)


def test_the_end_of_a_logarithmic_range_is_not_exceeded_by_rounding():
    rng = random.Random(0)  # noqa: S311 - not security-sensitive
    drawn = [Range(0.1, 10.0, log=True).near(10.0, rng) for _ in range(20)]
    assert max(drawn) == 10.0  # exp(log 10) is a little more
