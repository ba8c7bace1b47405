"""Explainers and metrics of users: measured as ours, checked, never repaired."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

import counterfactual_training as ct
from counterfactual_training.errors import InputError
from counterfactual_training.evaluation.counterfactuals import counterfactual_table
from counterfactual_training.evaluation.findings import MeasurementWarning
from counterfactual_training.evaluation.judges import Judge
from counterfactual_training.evaluation.protocol import PAIRED
from counterfactual_training.evaluation.stepfree import first_individuals, stepfree_table

pytestmark = pytest.mark.filterwarnings(
    "ignore::counterfactual_training.evaluation.findings.MeasurementWarning"
)
QUICK = replace(
    PAIRED,
    num_individuals=60,
    num_runs=2,
    lambda_energy=(0.1, 1.0),
    langevin_steps=0,
    attacks=("fgsm",),
)


@pytest.fixture(scope="module")
def known():
    """A line at x₀ = 0 as model, so that every number is known, and 200 rows around it."""
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(200, 2, generator=rng)
    model = ct.linear(2, 2)
    with torch.no_grad():
        layer = next(
            module for module in model.modules() if isinstance(module, torch.nn.Linear)
        )
        layer.weight.copy_(torch.tensor([[-3.0, 0.0], [3.0, 0.0]]))
        layer.bias.zero_()
    return model, (x, (x[:, 0] > 0).long())


def mirrored(model, x, y_target, constraints):
    return x * torch.tensor([-1.0, 1.0])


def values(table, **where):
    for key, value in where.items():
        table = table[table[key] == value]
    return table.set_index("metric")["value"]


def test_a_function_is_measured_beside_our_search(known):
    model, data = known
    explainers = {"search": ct.search, "mirrored": mirrored, "line": ct.line()}
    table = ct.evaluate(model, data, QUICK, ct.Constraints.build(2), explainers=explainers)
    assert not table.duplicated(["explainer", "metric", "lambda_energy", "run"]).any()
    ours = table[table["explainer"] == "search"].drop(columns="explainer")
    alone = ct.evaluate(model, data, QUICK, ct.Constraints.build(2))
    merged = alone.merge(ours, on=["metric", "lambda_energy", "run"], suffixes=("", "_too"))
    assert len(merged) == alone["lambda_energy"].notna().sum()
    np.testing.assert_allclose(merged["value"], merged["value_too"], rtol=1e-6)
    once = values(table, explainer="mirrored", run=0)
    assert once["validity"] == 1.0 and once["sparsity"] == 1.0 and once["violations"] == 0.0
    assert once["redundancy"] == 0.5
    assert np.isnan(once["num_steps"]) and np.isnan(once["share_mature"])
    # A recipe of ours tells its steps, and stops just past the protocol's τ rather than its own.
    line = values(table, explainer="line", run=0)
    assert line["num_steps"] > 0 and line["share_mature"] == line["validity_strict"] == 1.0
    assert line["cost"] < once["cost"]
    settled = ct.evaluate(
        model,
        data,
        QUICK,
        ct.Constraints.build(2),
        explainers={
            "mine": partial(
                ct.search, generator=ct.line(decision_threshold=QUICK.decision_threshold)
            )
        },
    )
    assert values(settled, explainer="mine", run=0)["cost"] == pytest.approx(line["cost"])
    # What belongs to the model alone has no explainer.
    assert set(table.loc[table["metric"] == "accuracy", "explainer"]) == {""}
    means = ct.summarise(table)
    assert means["mirrored", "validity"] == 1.0 and means["", "accuracy"] == 1.0


def test_an_explainer_is_asked_for_rows_not_there_yet_and_cannot_write_into_the_data(known):
    model, (x, y) = known
    before, asked = x.clone(), []

    def rude(model, rows, y_target, constraints):
        asked.append(bool((model(rows).argmax(-1) != y_target).all()) and not model.training)
        rows[:] = 0.0
        y_target[:] = 0
        return rows.numpy()  # arrays are welcome

    wrong = (
        x,
        torch.where(torch.arange(len(y)) < 50, 1 - y, y),
    )  # fifty whose target is what the model says
    table = counterfactual_table(model.train(), wrong, PAIRED, find=rude)
    assert asked == [True] and torch.equal(x, before)
    assert len(table) == 150 and model.training
    assert table["lambda_energy"].isna().all() and "violations" in table


def test_broken_rules_are_counted_not_repaired(known):
    model, data = known
    rules = ct.Constraints.build(2, mutability={0: "increase"})
    table = ct.evaluate(
        model, data, QUICK, rules, explainers={"mirrored": mirrored, "search": ct.search}
    )
    people = counterfactual_table(model, data, QUICK, rules, find=mirrored)
    down = (people["target"] == 0).mean()  # whoever has to get to class 0 goes down
    assert 0.2 < down < 0.8 and people["violations"].mean() == down
    assert ct.summarise(table)["mirrored", "violations"] == pytest.approx(down)
    assert ct.summarise(table)["search", "violations"] == 0.0
    assert ct.summarise(table)["mirrored", "validity"] == 1.0


@pytest.mark.parametrize(
    ("explainer", "message"),
    [
        (
            lambda m, x, y, c: x[:-1],
            r"'mine' must return one counterfactual per row, \(\d+, 2\)",
        ),
        (lambda m, x, y, c: x / 0, "'mine' returned NaN or infinite values for .* unchanged"),
        (lambda m, x, y, c: None, "'mine' must return a tensor or array"),
        ("search", "'mine' must be a function"),
    ],
)
def test_bad_explainers_are_named(known, explainer, message):
    with pytest.raises(InputError, match=message):
        ct.evaluate(*known, QUICK, explainers={"mine": explainer})


def test_explainers_need_names(known):
    with pytest.raises(InputError, match="at least one name"):
        ct.evaluate(*known, QUICK, explainers={})


def test_a_metric_stands_in_the_table_under_its_name(known):
    model, data = known
    seen = []

    def moved(measured):
        seen.append(measured)
        return (measured.x_cf - measured.x).abs().sum(-1).where(measured.valid, torch.nan)

    table = ct.evaluate(
        model, data, QUICK, metrics={"moved": moved, "people": lambda m: len(m.x)}
    )
    wide = table.pivot_table(index=["lambda_energy", "run"], columns="metric", values="value")
    np.testing.assert_allclose(wide["moved"], wide["cost"], rtol=1e-6)
    assert len(seen) == 4 and len(wide) == 4  # once per run and λ_energy
    assert set(wide["people"]) == {60.0}
    assert seen[0].model is model and seen[0].x_data is data[0] and seen[0].y_data is data[1]
    assert torch.equal(seen[0].logits.argmax(-1) == seen[0].y_target, seen[0].valid)
    assert "explainer" not in table and "violations" not in set(table["metric"])


def test_several_models_at_once(known):
    """Members of a fleet differ in who is asked; each metric sees its own model, rows and rules."""
    model, data = known
    other = ct.linear(2, 2)
    other.load_state_dict(
        {name: -value for name, value in model.state_dict().items()}
    )  # always wrong: nobody to move
    third = ct.linear(2, 2)
    third.load_state_dict({name: 0.5 * value for name, value in model.state_dict().items()})
    metrics = {
        "people": lambda m: len(m.x),
        "logit": lambda m: (m.model(m.x_cf) - m.logits).abs().amax(-1),
    }
    table = ct.evaluate([model, third], data, QUICK, metrics=metrics)
    assert set(table.loc[table["metric"] == "people", "value"]) == {60.0}
    assert table.loc[table["metric"] == "logit", "value"].abs().max() < 1e-5
    alone = ct.summarise(ct.evaluate(third, data, QUICK, metrics=metrics))
    assert ct.summarise(table)[1, "cost"] == pytest.approx(alone["cost"], rel=1e-4)
    foreign = ct.evaluate(
        [model, other, third], data, QUICK, explainers={"mirrored": mirrored}, metrics=metrics
    )
    assert ct.summarise(foreign)[2, "mirrored", "validity"] == 1.0
    assert set(foreign.loc[foreign["metric"] == "people", "member"]) == {0, 2}


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        (
            {"mine": lambda m: m.x_cf},
            r"'mine' must return one number, or one per individual, \(60,\), got shape",
        ),
        ({"mine": lambda m: m.y_target / 0}, "'mine' is NaN or infinite for 60 of 60"),
        ({"mine": lambda m: float("nan")}, "'mine' is NaN or infinite"),
        ({"mine": lambda m: "good"}, "'mine' must return numbers"),
        ({"mine": 3}, "'mine' must be a function"),
        ({"cost": lambda m: 1.0}, "a name that no other has, got 'cost'"),
        *[
            ({name: lambda m: 1.0}, f"a name that no other has, got {name!r}")
            for name in (
                "metric",
                "lambda_energy",
                "run",
                "value",
                "num",
                "member",
                "explainer",
            )
        ],
        ({"robust_accuracy@0.1": lambda m: 1.0}, "a name that no other has"),
    ],
)
def test_bad_metrics_are_named(known, metrics, message):
    with pytest.raises(InputError, match=message):
        ct.evaluate(*known, QUICK, explainers={"mirrored": mirrored}, metrics=metrics)


@pytest.mark.filterwarnings(
    "default::counterfactual_training.evaluation.findings.MeasurementWarning"
)
def test_a_warning_counts_models_however_many_explainers_there_are(known):
    few = replace(QUICK, num_individuals=5, num_runs=1, lambda_energy=(1.0,))
    with pytest.warns(MeasurementWarning, match=r"few_valid: member 0: .*\(2 of 2 models\.\)"):
        ct.evaluate(
            [known[0]] * 2, known[1], few, explainers={"mirrored": mirrored, "again": mirrored}
        )


def test_the_step_free_table_takes_explainers(known):
    model, (x, y) = known
    judge = Judge.fit(x, y, 2)
    table = stepfree_table(
        {"m": model}, first_individuals(x, y, 2, 50), judge, (x, y), find=mirrored
    )
    # Reaching .5 is being past the line; .95 of the rescaled model asks for more than the nearest
    # rows have.
    shares = table.groupby("tau")["valid"].mean()
    assert shares[".5"] == 1.0 and 0 < shares[".95*"] < 1


def test_lists_of_functions_and_dicts_of_models_are_refused(known):
    model, data = known
    with pytest.raises(
        InputError, match="explainers is a dict of names and functions, got list"
    ):
        ct.evaluate(model, data, QUICK, explainers=[mirrored])
    with pytest.raises(InputError, match="metrics is a dict"):
        ct.evaluate(model, data, QUICK, metrics=len)
    with pytest.raises(InputError, match="a list of them, got dict"):
        ct.evaluate({"mine": model}, data, QUICK)
