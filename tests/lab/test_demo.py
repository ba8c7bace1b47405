"""The demo shows what it says it shows."""

import numpy as np
import pytest
import torch

from counterfactual_lab.demo import (
    debt_per_year,
    demo_row,
    make_plans,
    run_demo,
    run_trials,
)
from counterfactual_training.datasets.catalog import loan_dataset
from counterfactual_training.evaluation.metrics import METRICS
from counterfactual_training.evaluation.protocol import EvaluationProtocol

pytestmark = pytest.mark.check


@pytest.fixture(scope="module")
def quick():
    messages: list[str] = []
    return run_demo(quick=True, notify=messages.append), messages


@pytest.fixture(scope="module")
def trials():
    """The loan example as the demo trains it."""
    return run_trials(make_plans()[0])


def test_a_quick_run_has_every_row_every_panel_and_tells_its_progress(quick):
    result, messages = quick
    assert len(result.table) == len(result.panels) == 8 and len(messages) == 6
    assert result.table[list(METRICS)].notna().all(axis=None)
    assert [panel.title[:3] for panel in result.panels] == ["(a)", "(b)", "(c)", "(d)"] * 2
    assert set(result.settings) == {"loan", "moons"}


def test_panels_are_in_the_units_of_people(quick):
    panel = quick[0].panels[0]
    assert panel.axes == ("age (years)", "debt (thousand dollars)")
    assert 15 < panel.points[:, 0].min() < panel.points[:, 0].max() < 90
    assert panel.probability.shape == (len(panel.grid_y), len(panel.grid_x))
    assert (
        panel.grid_x[0] < panel.points[:, 0].min()
        and panel.grid_y[-1] > panel.points[:, 1].max()
    )


def test_immutable_features_do_not_move_in_the_panels(quick):
    for panel in quick[0].panels:
        moved = (
            np.abs(panel.counterfactuals - panel.factuals).max(0)
            if len(panel.factuals)
            else np.zeros(2)
        )
        assert moved[1] > 0
        assert (moved[0] < 1e-4) == ("immutable" in panel.title)


def test_advice_never_asks_anybody_to_change_age(quick):
    advice = quick[0].advice
    assert advice["age"].is_monotonic_increasing
    for training in ("conventional", "counterfactual"):
        assert not advice[training].str.contains("with age").any()
        assert advice[training].str.contains("debt").all()


def test_counterfactual_training_makes_loan_counterfactuals_more_plausible(trials):
    protocol = EvaluationProtocol(num_individuals=200, epsilons=(0.3,))
    conventional, ours = (demo_row(trial, protocol) for trial in trials[:2])
    assert ours["implausibility"] < 0.9 * conventional["implausibility"]
    assert ours["implausibility_mmd"] < 0.8 * conventional["implausibility_mmd"]
    assert ours["accuracy"] == conventional["accuracy"] == 1.0


def test_protecting_age_tilts_the_boundary_and_spares_people(trials):
    """Panels (c) and (d) of Figure 1, Proposition 3.1."""
    data = trials[0].data
    conventional, ours = trials[2:]
    assert debt_per_year(data, ours.model) < 0.85 * debt_per_year(data, conventional.model)
    protocol = EvaluationProtocol(num_individuals=200, epsilons=(0.3,))
    assert demo_row(ours, protocol)["cost"] < 0.95 * demo_row(conventional, protocol)["cost"]


def test_the_demo_is_repeatable():
    (_, first, *_), (_, again, *_), (_, other, *_) = (
        run_trials(make_plans(quick=True, seed=s)[0]) for s in (5, 5, 6)
    )
    x = first.data.x_test
    assert torch.equal(first.model(x), again.model(x))
    assert not torch.equal(first.model(x), other.model(x))


def test_the_loan_data_is_linearly_separable_in_model_space():
    data = loan_dataset(200, 100)
    assert data.feature_names == ("age", "debt") and data.protected_names == ("age",)
    assert data.encoder.inverse_transform(data.x_test, like=data.frame_test).equals(
        data.frame_test
    )
    granted = data.x_train[data.y_train == 1].mean(0)
    assert torch.allclose(granted, torch.tensor([2.587, -0.452]), atol=0.15)
