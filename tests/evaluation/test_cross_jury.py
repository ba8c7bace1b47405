"""Acceptance by judges that never saw the person they judge, and by witnesses."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import counterfactual_training as ct
from counterfactual_training.errors import InputError
from counterfactual_training.evaluation.acceptance import FAMILIES
from counterfactual_training.evaluation.counterfactuals import counterfactual_table
from counterfactual_training.evaluation.cross_jury import CrossJury, Panel
from counterfactual_training.evaluation.findings import MeasurementWarning
from counterfactual_training.evaluation.protocol import PAIRED

RNG = np.random.default_rng(0)
X = torch.from_numpy(RNG.normal(size=(300, 2))).float()
Y = (X[:, 0] > 0).long()
PROTOCOL = replace(
    PAIRED,
    num_individuals=60,
    lambda_energy=(0.1, 1.0),
    langevin_steps=0,
    attacks=("fgsm",),
    attribution_rounds=0,
)


class Always:
    """A classifier of one opinion, whatever it is fitted to."""

    def __init__(self, label):
        self.label = label

    def fit(self, x, y):
        return self

    def predict(self, x):
        return np.full(len(x), self.label)


class Remembers:
    """Accepts what is asked of it unless it was fitted to the very point."""

    def fit(self, x, y):
        self.known = {tuple(row): label for row, label in zip(x.tolist(), y, strict=True)}
        return self

    def predict(self, x):
        return np.array([self.known.get(tuple(row), -1) for row in x.tolist()])


OPPOSED = {"first": lambda seed: Always(0), "second": lambda seed: Always(1)}


def right_of(border: float = 0.0) -> nn.Module:
    """Class 1 right of a border of the first column."""
    model = nn.Linear(2, 2)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[-4.0, 0.0], [4.0, 0.0]]))
        model.bias.copy_(torch.tensor([4.0, -4.0]) * border)
    return model


def test_nobody_is_judged_by_models_that_were_fitted_to_them():
    jury = CrossJury.fit(X, Y, {"memory": lambda seed: Remembers()})
    assert not jury.accepts(torch.arange(300), X, Y).any()
    # It would know the rows of the other half.
    others = torch.from_numpy(np.flatnonzero(jury.half == 0))
    assert jury.accepts(
        torch.full((len(others),), int(np.argmax(jury.half))), X[others], Y[others]
    ).all()


def test_each_half_has_its_share_of_every_class():
    y = torch.tensor([0] * 101 + [1] * 60 + [2] * 33)
    jury = CrossJury.fit(torch.randn(194, 2), y, OPPOSED)
    for k in range(3):
        of_class = jury.half[(y == k).numpy()]
        assert abs(of_class.sum() - len(of_class) / 2) <= 0.5


def test_acceptance_is_the_mean_over_families_of_valid_counterfactuals():
    families = OPPOSED | {"also second": lambda seed: Always(1)}
    with pytest.warns(
        MeasurementWarning, match="constant_judge: Models of first, second, also"
    ):
        table = ct.evaluate(right_of(), (X, Y), PROTOCOL, families=families)
    people = counterfactual_table(right_of(), (X, Y), PROTOCOL)
    valid = people[people["validity"] == 1]
    to_second = (valid["target"] == 1).mean()
    found = ct.summarise(table)
    assert 0 < to_second < 1
    assert found["acceptance@first"] == pytest.approx(1 - to_second)
    assert found["acceptance@second"] == pytest.approx(to_second)
    of_families = [found[f"acceptance@{name}"] for name in families]
    assert found["acceptance"] == pytest.approx(np.mean(of_families))
    counted = table[table["metric"] == "acceptance"]
    assert counted["num"].sum() == len(valid)


def test_a_judge_that_knows_the_rule_accepts_what_it_should():
    quick = {name: make for name, make in FAMILIES.items() if name != "boosting"}
    told = ct.summarise(ct.evaluate(right_of(), (X, Y), PROTOCOL, families=quick))
    assert told["acceptance"] > 0.95 and told["jury_accuracy"] > 0.95
    # Beyond a wrong border lie points that the true one puts into the other class.
    wrong = ct.summarise(ct.evaluate(right_of(1.0), (X, Y), PROTOCOL, families=quick))
    assert wrong["validity"] == 1 and wrong["acceptance"] < 0.8
    assert wrong["jury_accuracy"] == told["jury_accuracy"]


def test_models_are_judged_about_the_same_people_as_if_alone():
    models = [right_of(), right_of(0.5)]
    together = ct.summarise(ct.evaluate(models, (X, Y), PROTOCOL)).unstack("member")
    for member, model in enumerate(models):
        alone = ct.summarise(ct.evaluate(model, (X, Y), PROTOCOL))
        for name in alone.index[alone.index.str.startswith("acceptance")]:
            assert together.loc[name, member] == pytest.approx(alone[name])
    assert together.loc["acceptance@boosting", 0] != together.loc["acceptance@boosting", 1]


def test_witnesses_are_asked_beside_the_jury():
    witnesses = [right_of(), right_of(9.0), right_of(9.0)]
    found = ct.summarise(
        ct.evaluate(right_of(), (X, Y), PROTOCOL, families={}, witnesses=witnesses)
    )
    people = counterfactual_table(right_of(), (X, Y), PROTOCOL)
    valid = people[people["validity"] == 1]
    # The last two put everybody into the first class.
    expected = (1 + 2 * (valid["target"] == 0)).mean() / 3
    assert found["acceptance@witnesses"] == pytest.approx(expected)
    assert "acceptance" not in found and "jury_accuracy" not in found


def test_explainers_are_judged_too():
    def nowhere(model, x, y_target, constraints):
        return x

    explainers = {"line": ct.line(), "nowhere": nowhere}
    table = ct.evaluate(right_of(), (X, Y), PROTOCOL, explainers=explainers)
    found = table[table["metric"] == "acceptance"].set_index("explainer")
    assert found.loc["line", "value"] > 0.5
    assert found.loc["nowhere", "num"] == 0 and np.isnan(found.loc["nowhere", "value"])


def test_a_jury_gives_no_verdict_on_a_class_it_never_saw():
    y = torch.cat([Y[:299], torch.tensor([2])])
    jury = CrossJury.fit(X, y, OPPOSED)
    told = jury.accepts(torch.arange(300), X, torch.full((300,), 2))
    seen = int(jury.half[299])
    assert np.isnan(told[jury.half == seen]).all()
    assert not told[jury.half != seen].any()
    verdict = Panel(jury).columns(torch.tensor([299]), X[:1], y[299:])["acceptance"]
    assert verdict.isnan().all()


@pytest.mark.parametrize("rows", [slice(0, 50), Y == 1])
def test_too_few_rows_have_no_jury(rows):
    assert CrossJury.fit(X[rows], Y[rows], OPPOSED) is None


def test_what_families_and_witnesses_are():
    with pytest.raises(InputError, match="families is a dict of names and functions, got list"):
        ct.evaluate(right_of(), (X, Y), PROTOCOL, families=["boosting"])
    with pytest.raises(InputError, match="witnesses is a list of torch modules, got str"):
        ct.evaluate(right_of(), (X, Y), PROTOCOL, witnesses=["me"])
