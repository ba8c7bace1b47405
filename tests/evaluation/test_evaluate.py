"""One call measures a model, pairs individuals where promised, and says what would mislead."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import counterfactual_training as ct
from counterfactual_training.errors import InputError
from counterfactual_training.evaluation.acceptance import FAMILIES
from counterfactual_training.evaluation.counterfactuals import counterfactual_table
from counterfactual_training.evaluation.evaluate import attack_curves
from counterfactual_training.evaluation.findings import MeasurementWarning
from counterfactual_training.evaluation.protocol import PAIRED, PUBLISHED
from counterfactual_training.gates import fit_gate

FEW = replace(PUBLISHED, num_runs=3, num_individuals=40)


@pytest.fixture(scope="module")
def trained():
    data = ct.load_dataset("moons")
    models = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        model = ct.mlp(2, 2)
        method = ct.methods.conventional(
            epochs=3, batch_size=100, learning_rate=0.02, seed=seed
        )
        ct.train(model, data.x_train[:1000], data.y_train[:1000], method)
        models.append(model)
    return data, models


def test_the_table_is_tidy_and_its_means_are_those_of_the_individuals(trained):
    data, (model, _) = trained
    table = ct.evaluate(model, data, FEW)
    assert list(table.columns) == ["metric", "lambda_energy", "run", "value", "num"]
    assert not table.duplicated(["metric", "lambda_energy", "run"]).any()
    people = counterfactual_table(model, data, FEW)
    part = people[(people["run"] == 1) & (people["lambda_energy"] == 5.0)]
    row = table[
        (table["metric"] == "cost") & (table["run"] == 1) & (table["lambda_energy"] == 5.0)
    ]
    assert float(row["value"].iloc[0]) == pytest.approx(
        part.loc[part["validity"] == 1, "cost"].mean()
    )
    assert ct.summarise(table)["validity"] == pytest.approx(people["validity"].mean(), abs=1e-6)


def test_attacks_that_are_not_clamped_know_no_constraints(trained):
    """As published: neither domain nor mutability keeps an attack from a feature."""
    data, (model, _) = trained
    x, y = data.x_test[:300], data.y_test[:300]
    fixed = ct.Constraints.infer(x, mutability={0: "none", 1: "none"})
    clamped = replace(PAIRED, epsilons=(0.3,))
    free = replace(clamped, clamp_attacks=False)
    held, curves = (
        attack_curves(model, x, y, clamped, fixed),
        attack_curves(model, x, y, free, fixed),
    )
    for attack, curve in attack_curves(model, x, y, free, None).items():
        assert torch.equal(curves[attack], curve)
        assert attack == "random" or float(curve) < float(held[attack])


def test_every_metric_is_there_and_can_be_left_out(trained):
    data, (model, _) = trained
    protocol = replace(
        PAIRED,
        num_individuals=100,
        lambda_energy=(1.0,),
        langevin_steps=20,
        attribution_rounds=2,
    )
    numbers = ct.summarise(ct.evaluate(model, data, protocol))
    costly = {
        "unfaithfulness",
        "robust_accuracy@0.1",
        "robust_accuracy_pgd@0.03",
        "robust_accuracy_pgd@0.1",
        "robust_accuracy_random@0.03",
        "robust_accuracy_random@0.1",
        "sensitivity",
    }
    cheap = {
        "implausibility",
        "implausibility_mmd",
        "energy_differential",
        "cost",
        "redundancy",
        "sparsity",
        "validity",
        "validity_strict",
        "share_mature",
        "num_steps",
        "accuracy",
        "f1",
        "calibration_error",
        "robust_accuracy",
        "acceptance",
        *(f"acceptance@{name}" for name in FAMILIES),
        "jury_accuracy",
    }
    assert set(numbers.index) == cheap | costly
    assert numbers.notna().all()
    assert (
        numbers["robust_accuracy_pgd@0.1"]
        <= numbers["robust_accuracy_random@0.1"]
        <= numbers["accuracy"] + 0.01
    )
    few = replace(
        protocol, langevin_steps=0, attribution_rounds=0, attacks=("fgsm",), epsilons=(0.03,)
    )
    assert set(ct.evaluate(model, data, few)["metric"]) == cheap
    assert "sensitivity" not in set(
        ct.evaluate(model, (data.x_test, data.y_test), protocol)["metric"]
    )


def test_validity_is_by_the_largest_probability_and_strict_validity_by_the_threshold(trained):
    """Both recomputed from the model's answer at the counterfactuals; three steps leave rows on
    every side.
    """
    data, (model, _) = trained
    few = replace(
        PAIRED,
        num_individuals=60,
        lambda_energy=(0.5,),
        max_steps=3,
        decision_threshold=0.9,
        learning_rate=0.05,
    )
    table = counterfactual_table(model, data, few)
    rows, targets = (
        torch.tensor(table["row"].to_numpy()),
        torch.tensor(table["target"].to_numpy()),
    )
    generator = ct.ecco(
        few.lambda_cost,
        0.5,
        max_steps=3,
        decision_threshold=0.9,
        learning_rate=few.learning_rate,
    )
    found = ct.search(model, data.x_test[rows], targets, generator, data.constraints)
    probability = model(found.x_cf).softmax(-1).detach()
    valid = (probability.argmax(-1) == targets).numpy()
    strict = (probability[torch.arange(len(rows)), targets] >= 0.9).numpy()
    assert (table["validity"] == valid).all() and (table["validity_strict"] == strict).all()
    assert (table["share_mature"] == strict).all()
    assert 0 < strict.sum() < valid.sum() < len(valid)


def test_implausibility_is_the_mean_distance_to_all_test_rows_of_the_target(trained):
    data, (model, _) = trained
    one = replace(PAIRED, num_individuals=5, lambda_energy=(5.0,))
    people = counterfactual_table(model, data, one)
    generator = ct.ecco(0.0, 5.0, max_steps=50, decision_threshold=0.95)
    rows, targets = (
        torch.tensor(people["row"].to_numpy()),
        torch.tensor(people["target"].to_numpy()),
    )
    found = ct.search(model, data.x_test[rows], targets, generator, data.constraints)
    for value, x_cf, target in zip(people["implausibility"], found.x_cf, targets, strict=True):
        if not np.isnan(value):
            direct = (data.x_test[data.y_test == target] - x_cf).abs().sum(-1).mean()
            assert value == pytest.approx(float(direct), rel=1e-4)


def test_the_paired_protocol_looks_at_the_same_people_whatever_the_model(trained):
    data, models = trained
    protocol = replace(PAIRED, num_individuals=50, lambda_energy=(1.0,))
    first, second = (
        counterfactual_table(model, data, protocol).set_index("row")["target"]
        for model in models
    )
    both = first.index.intersection(second.index)
    assert len(both) > 40 and (first[both] == second[both]).all()


def test_the_published_protocol_starts_from_rows_that_the_model_puts_into_the_other_class(
    trained,
):
    data, (model, _) = trained
    people = counterfactual_table(model, data, FEW)
    assert (people["factual"] != people["target"]).all()
    predicted = model(data.x_test).argmax(-1).numpy()
    assert (predicted[people["row"]] == people["factual"]).all()


@pytest.mark.check
def test_what_would_mislead_is_said(trained):
    data, (model, _) = trained

    class Logs(torch.nn.Module):
        def forward(self, x):
            return model(x).log_softmax(-1)

    with pytest.warns(MeasurementWarning, match="log-probabilities"):
        ct.evaluate(Logs(), data, replace(FEW, num_runs=1))
    with pytest.warns(MeasurementWarning, match="valid"):
        ct.evaluate(model, data, replace(PAIRED, num_individuals=4, lambda_energy=(1.0,)))
    with pytest.raises(InputError, match="Dataset or a pair"):
        ct.evaluate(model, [1, 2, 3])


def test_fewer_individuals_than_asked_for_are_counted(trained):
    data, (model, _) = trained
    protocol = replace(PAIRED, num_individuals=5000, num_runs=2, lambda_energy=(1.0,))
    few = (data.x_test[:300], data.y_test[:300])
    with pytest.warns(MeasurementWarning, match="Only 600 of the 10000 individuals asked for"):
        ct.evaluate(model, few, protocol)

    class Always(torch.nn.Module):  # one class is never predicted: nobody to draw from it
        def forward(self, x):
            return torch.stack([x[:, 0] * 0 + 5 + 0.1 * x[:, 1], x[:, 0]], -1)

    with pytest.warns(MeasurementWarning, match="fewer_individuals"):
        ct.evaluate(Always(), data, FEW)


@pytest.mark.check
def test_small_groups_and_masked_gradients_are_said(trained):
    data, (model, _) = trained
    with pytest.warns(MeasurementWarning, match="small_groups"):
        ct.evaluate(model, data, replace(FEW, num_individuals=10))

    class Masked(torch.nn.Module):
        def forward(self, x):
            return model((x / 0.2).round() * 0.2 + 1e-6 * x)

    with pytest.warns(MeasurementWarning, match="gradients are masked"):
        ct.evaluate(Masked(), data, replace(FEW, epsilons=(0.3,)))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"attacks": ("pdg",)}, "Did you mean 'pgd'"),
        ({"langevin_steps": -1}, "negative"),
        ({"lambda_energy": ()}, "at least one"),
    ],
)
def test_a_protocol_that_cannot_be_is_refused(changes, reason):
    with pytest.raises(InputError, match=reason):
        replace(PAIRED, **changes)


PRECISE = replace(
    PAIRED, num_individuals=60, lambda_energy=(1.0,), langevin_steps=5, attribution_rounds=1
)


def test_autocast_around_an_evaluation_changes_the_last_digits_only(trained):
    data, (model, _) = trained
    expected = ct.summarise(ct.evaluate(model, data, PRECISE))
    with torch.autocast("cpu", torch.bfloat16):
        table = ct.evaluate(model, data, PRECISE)
        several = ct.evaluate([model, model], data, PRECISE)
    numbers = ct.summarise(table)
    assert numbers.notna().all() and numbers["accuracy"] == pytest.approx(
        expected["accuracy"], abs=0.02
    )
    assert numbers["implausibility"] == pytest.approx(expected["implausibility"], rel=0.1)
    assert set(several["metric"]) == set(table["metric"])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_models_in_half_precision_are_measured_in_single(trained, dtype):
    data, (model, _) = trained
    expected = ct.summarise(ct.evaluate(model, (data.x_test, data.y_test), PRECISE))
    small = ct.mlp(2, 2).to(dtype)
    small.load_state_dict(model.state_dict())
    numbers = ct.summarise(ct.evaluate(small, (data.x_test.to(dtype), data.y_test), PRECISE))
    assert set(numbers.index) == set(expected.index) and numbers.notna().all()
    wrong = (small(data.x_test.to(dtype)).argmax(-1) != data.y_test).sum()
    assert numbers["accuracy"] == pytest.approx(1 - int(wrong) / len(data.y_test), abs=1e-6)
    assert numbers["implausibility"] == pytest.approx(expected["implausibility"], rel=0.1)


@pytest.mark.check
def test_of_a_gated_model_the_classifier_is_measured_and_its_counterfactuals_are_gated(trained):
    data, (model, other) = trained
    gated = fit_gate(model, data.x_train[:1000], data.y_train[:1000])
    few = replace(PAIRED, num_individuals=60, lambda_energy=(1.0,), langevin_steps=3)
    table = ct.evaluate([model, gated, other], data, few)
    plain, mine, last = (
        part.set_index("metric")["value"] for _, part in table.groupby("member")
    )
    same = [
        name
        for name in plain.index
        if name.startswith(("accuracy", "f1", "calibration", "robust"))
    ]
    assert len(same) >= 5 and mine[same].equals(plain[same])
    assert mine["implausibility"] < plain["implausibility"] and mine["validity"] > 0.95
    alone = ct.evaluate(gated, data, few).set_index("metric")["value"]
    assert alone.equals(mine)
    assert last["cost"] == pytest.approx(
        ct.summarise(ct.evaluate(other, data, few))["cost"], rel=1e-3
    )
    people = counterfactual_table(gated, data, few)
    assert people["row"].tolist() == counterfactual_table(model, data, few)["row"].tolist()
    assert people["factual"].max() == 1 and (people["factual"] != people["target"]).all()
