"""One call measures a model, pairs individuals where promised, and says what would mislead."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import counterfactual_training as ct
from counterfactual_training.errors import InputError
from counterfactual_training.evaluation.checks import MeasurementWarning
from counterfactual_training.evaluation.evaluate import counterfactual_table
from counterfactual_training.evaluation.protocol import PAIRED, PUBLISHED

FEW = replace(PUBLISHED, num_runs=3, num_individuals=40)


@pytest.fixture(scope="module")
def trained():
    data = ct.load_dataset("moons")
    models = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        model = ct.mlp(2, 2)
        config = ct.TrainConfig(epochs=3, batch_size=100, learning_rate=0.02, seed=seed)
        ct.train(model, data.x_train[:1000], data.y_train[:1000], objective="vanilla", config=config)
        models.append(model)
    return data, models


def test_the_table_is_tidy_and_its_means_are_those_of_the_individuals(trained):
    data, (model, _) = trained
    table = ct.evaluate(model, data, FEW)
    assert list(table.columns) == ["metric", "lambda_energy", "run", "value", "num"]
    wanted = {"implausibility", "implausibility_mmd", "cost", "validity", "accuracy", "robust_accuracy", "share_mature"}
    assert wanted <= set(table["metric"])
    people = counterfactual_table(model, data, FEW)
    part = people[(people["run"] == 1) & (people["lambda_energy"] == 5.0)]
    row = table[(table["metric"] == "cost") & (table["run"] == 1) & (table["lambda_energy"] == 5.0)]
    assert float(row["value"].iloc[0]) == pytest.approx(part.loc[part["validity"] == 1, "cost"].mean())
    assert ct.summarise(table)["validity"] == pytest.approx(people["validity"].mean(), abs=1e-6)


def test_implausibility_is_the_mean_distance_to_all_test_rows_of_the_target(trained):
    data, (model, _) = trained
    one = replace(PAIRED, num_individuals=5, lambda_energy=(5.0,))
    people = counterfactual_table(model, data, one)
    generator = ct.ecco(0.0, 5.0, max_steps=50, decision_threshold=0.95)
    rows, targets = torch.tensor(people["row"].to_numpy()), torch.tensor(people["target"].to_numpy())
    found = ct.search(model, data.x_test[rows], targets, generator, data.constraints)
    for value, x_cf, target in zip(people["implausibility"], found.x_cf, targets, strict=True):
        if not np.isnan(value):
            direct = (data.x_test[data.y_test == target] - x_cf).abs().sum(-1).mean()
            assert value == pytest.approx(float(direct), rel=1e-4)


def test_the_paired_protocol_looks_at_the_same_people_whatever_the_model(trained):
    data, models = trained
    protocol = replace(PAIRED, num_individuals=50, lambda_energy=(1.0,))
    first, second = (counterfactual_table(model, data, protocol).set_index("row")["target"] for model in models)
    both = first.index.intersection(second.index)
    assert len(both) > 40 and (first[both] == second[both]).all()


def test_the_published_protocol_starts_from_rows_that_the_model_puts_into_the_other_class(trained):
    data, (model, _) = trained
    people = counterfactual_table(model, data, FEW)
    assert (people["factual"] != people["target"]).all()
    predicted = model(data.x_test).argmax(-1).numpy()
    assert (predicted[people["row"]] == people["factual"]).all()


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
