"""What is measured of a run, and which draws depend on its seed."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from counterfactual_lab.grids.file import load_grid
from counterfactual_lab.grids.measure import GridData, measure
from counterfactual_lab.networks import untrained
from counterfactual_training.datasets.catalog import load_dataset


@pytest.fixture
def measured(tiny):
    """A model of LS measured as a run of seed 0, 1 and 0 again, without and with protected
    features.
    """
    whole = load_dataset("LS", "as_run")
    data = replace(whole, x_test=whole.x_test[:80], y_test=whole.y_test[:80])
    points = list(
        load_grid("main", changes=tiny).changed(["LS"], 2).points({"LS": data.settings})
    )
    runs = {(point.run.model, point.run.seed): point.run for point in points}
    model, source = untrained(data, 0), GridData(data)

    def of(name, seed):
        return measure([model], [runs[name, seed]], source)[0]

    return of


def test_published_draws_follow_the_seed_of_the_run(measured):
    first, other, again = (
        measured("ct_published", seed)[0]["published/free/cost"] for seed in (0, 1, 0)
    )
    assert first.shape == (5, 3) and np.isfinite(first).any()
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(np.nan_to_num(first), np.nan_to_num(other))


def test_paired_rows_are_the_same_for_every_run(measured):
    first, other = (
        measured("ct_published", seed)[0]["paired/free/implausibility"] for seed in (0, 1)
    )
    assert first.shape == (5, 80) and 0 < np.isfinite(first).sum(1).max() <= 40
    np.testing.assert_array_equal(first, other)


@pytest.mark.check
def test_constraints_of_the_searches_are_those_of_training_and_both_for_a_conventional_model(
    measured,
):
    conventional, ct, protected = (
        set(measured(name, 0)[0])
        for name in ("conventional", "ct_published", "ct_published protected")
    )
    assert {
        "published/free/cost",
        "published/protected/cost",
        "attack/pgd",
        "attribution",
    } <= conventional
    assert (
        "published/protected/cost" not in ct and "attack/fgsm" in ct and "attribution" not in ct
    )
    assert (
        "published/free/cost" not in protected
        and "attack/fgsm" not in protected
        and "attribution" in protected
    )
    arrays, numbers = measured("conventional", 0)
    assert arrays["attack/pgd"].shape == (3,) and arrays["attribution"].shape == (2,)
    assert 0 <= numbers["accuracy"] <= 1 and numbers["missing/free"] == 0


def test_members_of_a_fleet_share_their_rows_and_lone_runs_draw_their_own():
    source = GridData(load_dataset("moons"))

    def kept(seed, alone):
        return source.rows(SimpleNamespace(seed=seed, alone=alone))["train"][0]

    assert torch.equal(kept(1, alone=False), kept(2, alone=False))
    assert not torch.equal(kept(1, alone=True), kept(2, alone=True))
