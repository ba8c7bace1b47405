"""Many models measured together: each as if it were alone."""

from dataclasses import replace

import pandas as pd
import pytest
import torch
from torch import nn

import counterfactual_training as ct
from counterfactual_training.core.kernels import mmd
from counterfactual_training.errors import InputError
from counterfactual_training.evaluation import counterfactuals
from counterfactual_training.evaluation.counterfactuals import (
    aggregate,
    counterfactual_table,
    counterfactual_tables,
    stacked,
)
from counterfactual_training.evaluation.findings import MeasurementWarning
from counterfactual_training.evaluation.protocol import PAIRED, PUBLISHED

PROTOCOLS = {
    "published": replace(PUBLISHED, num_runs=3, num_individuals=40, lambda_energy=(0.5, 5.0)),
    "paired": replace(PAIRED, num_individuals=60, lambda_energy=(0.5, 5.0), langevin_steps=10),
}


def constant(favourite: int) -> nn.Sequential:
    """A classifier that all but ignores its input."""
    model = ct.mlp(2, 2)
    with torch.no_grad():
        model[-1].weight.mul_(1e-4)
        model[-1].bias.copy_(50.0 * (torch.arange(2) == favourite))
    return model


@pytest.fixture(scope="module")
def data():
    return ct.load_dataset("moons")


@pytest.fixture(scope="module")
def models(data):
    found = []
    for seed in range(4):
        torch.manual_seed(seed)
        model = ct.mlp(2, 2)
        method = ct.methods.conventional(
            epochs=1 + seed, batch_size=100, learning_rate=0.02, seed=seed
        )
        ct.train(model, data.x_train[:600], data.y_train[:600], method)
        found.append(model)
    # The last member puts everybody into class 0: half of its individuals are missing, no
    # counterfactual is valid.
    return [*found, constant(0)]


def same(found: pd.DataFrame, expected: pd.DataFrame) -> None:
    pd.testing.assert_frame_equal(found, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_member_is_measured_as_if_alone(models, data, name, monkeypatch):
    alone = [counterfactual_table(model, data, PROTOCOLS[name]) for model in models]
    monkeypatch.setattr(
        counterfactuals, "counterfactual_table", None
    )  # nothing is done one by one
    for found, expected in zip(
        counterfactual_tables(models, data, PROTOCOLS[name]), alone, strict=True
    ):
        same(found, expected)


def test_a_fleet_too_large_for_memory_is_split(models, data, monkeypatch):
    whole = counterfactual_tables(models, data, PROTOCOLS["published"])
    monkeypatch.setattr(
        counterfactuals, "_FLEET_VALUES", 2 * 3 * 40 * 2
    )  # two members at a time
    for found, expected in zip(
        counterfactual_tables(models, data, PROTOCOLS["published"]), whole, strict=True
    ):
        same(found, expected)


def test_constraints_may_differ_by_member(models, data):
    held = data.protect(data.constraints)
    rules = [data.constraints, held, data.constraints, held, held]
    tables = counterfactual_tables(models, data, PROTOCOLS["published"], rules)
    for found, model, rule in zip(tables, models, rules, strict=True):
        same(found, counterfactual_table(model, data, PROTOCOLS["published"], rule))
    assert tables[0]["redundancy"].max() < 0.5 <= tables[1]["redundancy"].min()
    with pytest.raises(InputError, match="2 constraints for 5 models"):
        counterfactual_tables(models, data, PROTOCOLS["published"], rules[:2])
    with pytest.raises(InputError, match="no model"):
        counterfactual_tables([], data)


def test_models_that_cannot_be_stacked_are_measured_one_by_one(models, data):
    odd = [
        models[0],
        nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2)),
    ]  # same weights, other function
    wide = [models[0], ct.mlp(2, 2, (8,))]
    normed = [
        nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)) for _ in range(2)
    ]
    for group in (odd, wide, normed):
        assert stacked(group, data.x_test) is None
        for found, model in zip(
            counterfactual_tables(group, data, PROTOCOLS["paired"]), group, strict=True
        ):
            same(found, counterfactual_table(model, data, PROTOCOLS["paired"]))
    assert stacked(models, data.x_test) is not None


def test_no_valid_counterfactual_gives_nan_and_a_count_of_zero(models, data):
    table = ct.evaluate(models, data, replace(PROTOCOLS["published"], attribution_rounds=0))
    assert list(table.columns) == ["member", "metric", "lambda_energy", "run", "value", "num"]
    hopeless = table[(table["member"] == len(models) - 1)].set_index("metric")
    assert (hopeless.loc["validity", "value"] == 0).all() and (
        hopeless.loc["validity", "num"] > 0
    ).all()
    for metric in (
        "implausibility",
        "implausibility_mmd",
        "cost",
        "sparsity",
        "energy_differential",
    ):
        assert (
            hopeless.loc[metric, "value"].isna().all()
            and (hopeless.loc[metric, "num"] == 0).all()
        )
    assert table[(table["member"] == 0) & (table["metric"] == "cost")]["num"].min() > 0


def test_the_table_of_many_models_holds_the_tables_of_each(models, data):
    protocol = replace(PROTOCOLS["paired"], attribution_rounds=2)
    together = ct.evaluate(models[:2], data, protocol)
    summary = ct.summarise(together)
    for member, model in enumerate(models[:2]):
        alone = ct.evaluate(model, data, protocol)
        mine = together[together["member"] == member].drop(columns="member")
        keys = ["metric", "lambda_energy", "run"]
        merged = mine.merge(alone, on=keys)
        assert len(merged) == len(alone) == len(mine)
        assert merged["value_x"].to_numpy() == pytest.approx(
            merged["value_y"].to_numpy(), rel=1e-3, abs=1e-4
        )
        assert (merged["num_x"] == merged["num_y"]).all()
        assert summary[member].to_numpy() == pytest.approx(
            ct.summarise(alone).to_numpy(), rel=1e-3, abs=1e-4
        )


@pytest.mark.check
def test_what_would_mislead_is_said_once_for_all_members(models, data):
    with pytest.warns(MeasurementWarning, match=r"few_valid: member 4: .*1 of 5 models"):
        ct.evaluate(models, data, PROTOCOLS["published"])


def test_means_are_those_of_a_plain_loop(models, data):
    table = counterfactual_table(models[0], data, PROTOCOLS["published"])
    means = aggregate(table).set_index(["metric", "lambda_energy", "run"])
    for (strength, run), part in table.groupby(["lambda_energy", "run"]):
        valid = part[part["validity"] == 1]
        assert means.loc[("cost", strength, run), "value"] == pytest.approx(
            valid["cost"].mean()
        )
        assert means.loc[("cost", strength, run), "num"] == len(valid)
        assert means.loc[("validity", strength, run), "num"] == len(part)


def test_images_are_measured_in_their_shape():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3))
    x, y = torch.randn(30, 1, 4, 4), torch.arange(30) % 3
    protocol = replace(PROTOCOLS["paired"], num_individuals=None)
    together = counterfactual_tables([model, model], (x, y), protocol)
    same(together[1], counterfactual_table(model, (x, y), protocol))


def test_as_published_invalid_counterfactuals_count_in_the_mmd(models, data):
    """The value of a group is that of all its counterfactuals; as printed it is that of the valid
    ones.
    """
    few = replace(
        PUBLISHED,
        num_runs=1,
        num_individuals=60,
        lambda_energy=(0.5,),
        max_steps=3,
        mmd_size=None,
    )
    model = models[0]
    table = counterfactual_table(model, data, few)
    assert 0 < table["validity"].mean() < 1
    rows, targets = (
        torch.tensor(table["row"].to_numpy()),
        torch.tensor(table["target"].to_numpy()),
    )
    generator = ct.ecco(
        few.lambda_cost,
        0.5,
        max_steps=3,
        decision_threshold=few.decision_threshold,
        learning_rate=few.learning_rate,
    )
    x_cf = ct.search(model, data.x_test[rows], targets, generator, data.constraints).x_cf
    for protocol, valid_only in ((few, False), (replace(few, mmd_valid_only=True), True)):
        table = counterfactual_table(model, data, protocol)
        for target, group in table.groupby("target"):
            among = (group[group["validity"] == 1] if valid_only else group).index.to_list()
            expected = mmd(
                x_cf[among], data.x_test[data.y_test == target], few.length_scale
            ).clamp_min(0.0)
            values = group["implausibility_mmd"].dropna()
            assert len(values) and values.to_numpy() == pytest.approx(float(expected), abs=1e-5)


@pytest.mark.parametrize("models", [1, 2], ids=["one model", "a fleet"])
def test_labels_that_do_not_fit_the_rows_are_refused(models):
    x, y = torch.randn(8, 3), torch.arange(8) % 2
    for bad in (y[:-1], y + 1, y.float()):
        with pytest.raises(InputError, match=r"label|Classes|indices"):
            counterfactual_tables([nn.Linear(3, 2) for _ in range(models)], (x, bad))


def test_only_what_converged_is_mature(data, models):
    def implausible(model, x, y_target, generator, constraints, diagnose=True):
        found = ct.search(model, x, y_target, generator, constraints, diagnose=diagnose)
        return replace(found, status=torch.full_like(found.status, int(ct.Status.IMPLAUSIBLE)))

    few = replace(
        PROTOCOLS["paired"], num_individuals=10, lambda_energy=(0.5,), langevin_steps=0
    )
    table = counterfactual_table(models[3], data, few, find=implausible)
    assert len(table) and (table["share_mature"] == 0).all()
