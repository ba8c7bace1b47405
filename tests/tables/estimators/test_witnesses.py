"""Witnesses of a classifier: on other rows, as one fleet, and gone when it learns anew."""

import copy
import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from torch.testing import assert_close

import counterfactual_training as ct
from counterfactual_training.errors import InputError
from counterfactual_training.models.ensemble import Ensemble
from counterfactual_training.tables.estimators import witnesses as module
from counterfactual_training.tables.estimators.fit import Epochs
from counterfactual_training.tables.estimators.witnesses import Refits, refit

PEOPLE = ct.loan(300)
RULES = {"mutability": {"age": "none"}, "random_state": 0, "progress": False}
GRANTED = "loan granted"


@pytest.fixture(scope="module")
def classifier():
    """A single network; tests that change it copy it."""
    fitted = ct.CounterfactualClassifier("conventional", epochs=20, **RULES)
    fitted.fit(PEOPLE.frame, PEOPLE.labels)
    return fitted.add_witnesses(PEOPLE.frame, PEOPLE.labels, 6)


@pytest.fixture(scope="module")
def bag():
    fitted = ct.CounterfactualClassifier("bag(members=2)", epochs=3, **RULES)
    return fitted.fit(PEOPLE.frame, PEOPLE.labels)


@pytest.fixture(scope="module")
def encoded(classifier):
    return torch.as_tensor(classifier.encoder_.transform(PEOPLE.frame)).float()


def drawn(monkeypatch):
    """The members of the fleets that are trained from now on."""
    seen = []

    class Fleet(ct.Fleet):
        def __init__(self, members):
            seen.append(list(members))
            super().__init__(members)

    monkeypatch.setattr(module, "Fleet", Fleet)
    return seen


def test_they_are_of_other_rows_and_repeatable(classifier, encoded):
    again = refit(classifier, PEOPLE.frame, PEOPLE.labels, 6)
    logits = classifier.witnesses_.logits(encoded)
    assert_close(again.logits(encoded), logits, rtol=0, atol=0)
    assert logits.shape == (6, 300, 2)
    for i in range(1, 6):
        assert (logits[i] != logits[0]).any()
    other = refit(classifier, PEOPLE.frame, PEOPLE.labels, 6, seed=1)
    assert (other.logits(encoded) != logits).any()


def test_predictions_stay(classifier):
    plain = ct.CounterfactualClassifier("conventional", epochs=20, **RULES)
    probability = plain.fit(PEOPLE.frame, PEOPLE.labels).predict_proba(PEOPLE.frame)
    np.testing.assert_array_equal(classifier.predict_proba(PEOPLE.frame), probability)


def test_one_fleet_of_bootstrap_samples_for_as_many_epochs(classifier, monkeypatch):
    fleets = drawn(monkeypatch)
    refit(classifier, PEOPLE.frame, PEOPLE.labels, 4)
    ((*members,),) = fleets
    losses = classifier.history_.to_frame()["validation_loss"]
    assert len(members) == 4
    for one in members:
        assert len(one.rows) == 300 and len(one.rows.unique()) < 250
        assert one.method.training.epochs == losses.idxmin() + 1
    assert len({tuple(one.rows.tolist()) for one in members}) == 4
    assert len({one.method.training.seed for one in members}) == 4


def test_members_of_a_bag_draw_from_what_their_witness_drew(bag, monkeypatch):
    fleets = drawn(monkeypatch)
    made = refit(bag, PEOPLE.frame, PEOPLE.labels, 4)
    ((*members,),) = fleets
    assert len(members) == 8 and all(type(model) is Ensemble for model in made.models)
    # Of rows drawn twice over, fewer are left: (1 − 1/e) of them each time.
    shares = [len(one.rows.unique()) / 300 for one in members]
    assert min(shares) > 0.3 and max(shares) < 0.56
    for first, second in zip(members[::2], members[1::2], strict=True):
        both = set(first.rows.tolist()) | set(second.rows.tolist())
        assert len(both) / 300 < 0.67, "both are of the same sample"


def test_members_of_a_bag_train_as_long_as_those_of_the_classifier(bag, monkeypatch):
    grown = copy.deepcopy(bag)
    grown.epochs_ = [Epochs(20, 2), Epochs(17, 7)]
    results = []

    class Fleet(ct.Fleet):
        def train(self, *rows, **options):
            results.extend(super().train(*rows, **options))
            return results

    monkeypatch.setattr(module, "Fleet", Fleet)
    refit(grown, PEOPLE.frame, PEOPLE.labels, 4)
    assert [len(one.history.records) for one in results] == [2, 7] * 4
    results.clear()
    # No callback where all train equally long.
    grown.epochs_ = [Epochs(20, 2), Epochs(17, 2)]
    refit(grown, PEOPLE.frame, PEOPLE.labels, 4)
    assert [one.history.stopped for one in results] == [None] * 8


def test_together_they_say_what_each_says_alone(classifier, bag, encoded):
    for witnesses in (
        classifier.witnesses_,
        refit(bag, PEOPLE.frame, PEOPLE.labels, 4),
    ):
        assert witnesses._joined is not None
        with torch.no_grad():
            alone = torch.stack([model(encoded) for model in witnesses.models])
        assert_close(witnesses.logits(encoded), alone, rtol=1e-4, atol=1e-5)


def test_ensembles_that_lost_members_are_means_of_those_left(classifier, encoded):
    one, two, three, four = (copy.deepcopy(m) for m in classifier.witnesses_.models[:4])
    mixed = Refits(
        [Ensemble([one, two]), three, Ensemble([four]), one],
        classifier.encoder_,
        classifier.classes_,
    )
    with torch.no_grad():
        alone = torch.stack([model(encoded) for model in mixed.models])
    assert_close(mixed.logits(encoded), alone, rtol=1e-4, atol=1e-5)


def test_networks_that_cannot_be_joined_are_asked_one_by_one(encoded, classifier):
    fitted = ct.CounterfactualClassifier(
        "conventional", model="tabm", hidden=(8,), epochs=1, **RULES
    ).fit(PEOPLE.frame, PEOPLE.labels)
    witnesses = refit(fitted, PEOPLE.frame, PEOPLE.labels, 4)
    assert witnesses._joined is None
    assert witnesses.logits(encoded).shape == (4, 300, 2)


def test_halves_share_no_witness(classifier, encoded):
    steer, report = classifier.witnesses_.halves()
    logits = classifier.witnesses_.logits(encoded)
    assert len(steer) == len(report) == 3
    together = torch.cat([steer.logits(encoded), report.logits(encoded)])
    assert_close(together, logits, rtol=1e-4, atol=1e-5)


def test_weights_go_with_the_rows(classifier, encoded):
    weight = np.where(PEOPLE.labels == GRANTED, 1.0, 1e-6)
    plain = classifier.witnesses_.logits(encoded).softmax(-1)
    heavy = refit(classifier, PEOPLE.frame, PEOPLE.labels, 4, weight).logits(encoded)
    granted = classifier.classes_.tolist().index(GRANTED)
    assert plain[..., granted].mean() < 0.7 < heavy.softmax(-1)[..., granted].mean()


def test_every_sample_has_every_class(monkeypatch):
    rare = PEOPLE.labels.astype(object).copy()
    rare[0] = "undecided"
    fitted = ct.CounterfactualClassifier("conventional", epochs=2, gate="none", **RULES)
    fitted.fit(PEOPLE.frame, rare)
    fleets = drawn(monkeypatch)
    fitted.add_witnesses(PEOPLE.frame, rare, 6)
    ((*members,),) = fleets
    assert all(0 in one.rows for one in members)
    told = fitted.explain(PEOPLE.frame.head(2), GRANTED, lasting=0.5).lasting
    assert told.num_witnesses == 3


def test_a_budget_keeps_its_rows_from_all(monkeypatch):
    fitted = ct.CounterfactualClassifier("cheap_recourse", epochs=2, **RULES)
    fitted.fit(PEOPLE.frame, PEOPLE.labels)
    fleets = drawn(monkeypatch)
    refit(fitted, PEOPLE.frame, PEOPLE.labels, 4)
    ((*members,),) = fleets
    # Of two classes, 15 % of the rows each.
    assert all(len(one.rows) == 256 and one.rows.max() < 256 for one in members)


def test_one_that_diverges_is_left_out(classifier, monkeypatch):
    class Fleet(ct.Fleet):
        def train(self, *rows, **options):
            results = super().train(*rows, **options)
            results[1].history.diverged = True
            return results

    monkeypatch.setattr(module, "Fleet", Fleet)
    with pytest.warns(UserWarning, match="Of 5 witnesses 1 diverged and are left out"):
        assert len(refit(classifier, PEOPLE.frame, PEOPLE.labels, 5)) == 4
    with (
        pytest.warns(UserWarning, match="diverged"),
        pytest.raises(InputError, match="At least 4 witnesses are needed"),
    ):
        refit(classifier, PEOPLE.frame, PEOPLE.labels, 4)


# ---- files, copies, and other training -----------------------------------------------------------


@pytest.mark.parametrize("which", ["classifier", "bag"])
def test_a_loaded_file_answers_the_same(which, request, tmp_path):
    fitted = copy.deepcopy(request.getfixturevalue(which))
    fitted.add_witnesses(PEOPLE.frame, PEOPLE.labels, 4)
    path = tmp_path / "loan.safetensors"
    fitted.save(path)
    loaded = ct.CounterfactualClassifier.load(path)
    assert len(loaded.witnesses_) == 4
    rows = PEOPLE.frame.head(6)
    one = fitted.explain(rows, GRANTED, lasting=0.9, n_options=2)
    other = loaded.explain(rows, GRANTED, lasting=0.9, n_options=2)
    assert one.changes() == other.changes()
    pd.testing.assert_frame_equal(one.summary, other.summary)
    again = tmp_path / "again.safetensors"
    loaded.save(again)
    assert path.read_bytes() == again.read_bytes()


def test_networks_of_ones_own_come_back(tmp_path):
    def small(num_features, num_classes):
        return torch.nn.Sequential(torch.nn.Linear(num_features, num_classes))

    fitted = ct.CounterfactualClassifier("bag(members=2)", model=small, epochs=2, **RULES)
    fitted.fit(PEOPLE.frame, PEOPLE.labels).add_witnesses(PEOPLE.frame, PEOPLE.labels, 4)
    path = tmp_path / "own.safetensors"
    fitted.save(path)
    loaded = ct.CounterfactualClassifier.load(path, model=small)
    rows = PEOPLE.frame.head(3)
    one, other = (model.explain(rows, GRANTED, lasting=0.9) for model in (fitted, loaded))
    assert one.changes() == other.changes()


def test_a_file_without_witnesses_has_none(bag, tmp_path):
    bag.save(tmp_path / "plain.safetensors")
    assert ct.CounterfactualClassifier.load(tmp_path / "plain.safetensors").witnesses_ is None


def test_copies_keep_them(classifier):
    rows = PEOPLE.frame.head(3)
    changes = classifier.explain(rows, GRANTED, lasting=0.9).changes()
    for other in (copy.deepcopy(classifier), pickle.loads(pickle.dumps(classifier))):  # noqa: S301
        assert other.explain(rows, GRANTED, lasting=0.9).changes() == changes


def test_other_rules_leave_them(classifier):
    changed = copy.deepcopy(classifier).set_params(mutability={"debt": "none"})
    advice = changed.explain(PEOPLE.frame.head(2), GRANTED, lasting=0.9)
    assert len(changed.witnesses_) == 6
    assert not advice.changed["debt"].any()


@pytest.mark.parametrize("way", ["fit", "warm_start", "partial_fit"])
def test_more_training_drops_them_and_says_so(classifier, way):
    trained = copy.deepcopy(classifier).set_params(epochs=1, warm_start=way == "warm_start")
    learn = trained.partial_fit if way == "partial_fit" else trained.fit
    with pytest.warns(
        UserWarning, match=r"The 6 witnesses .* dropped: call add_witnesses again"
    ):
        learn(PEOPLE.frame, PEOPLE.labels)
    assert trained.witnesses_ is None
    with pytest.raises(InputError, match="add_witnesses"):
        trained.explain(PEOPLE.frame.head(1), lasting=0.9)


# ---- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num", "message"),
    [(3, "At least 4 witnesses are needed.*got 3"), (2.5, "num must be a whole number")],
)
def test_too_few(classifier, num, message):
    with pytest.raises(InputError, match=message):
        refit(classifier, PEOPLE.frame, PEOPLE.labels, num)


def test_rows_of_all_classes(classifier):
    rare = PEOPLE.labels.astype(object).copy()
    rare[:5] = "undecided"
    fitted = ct.CounterfactualClassifier("conventional", epochs=1, gate="none", **RULES)
    fitted.fit(PEOPLE.frame, rare)
    with pytest.raises(InputError, match="No row is of class 'undecided'"):
        fitted.add_witnesses(PEOPLE.frame, PEOPLE.labels)
    with pytest.raises(InputError, match="undecided"):
        classifier.add_witnesses(PEOPLE.frame, rare)


def test_a_model_trained_elsewhere_has_other_witnesses(classifier):
    adopted = ct.CounterfactualClassifier.from_trained(
        ct.mlp(2, 2), classifier.encoder_, classifier.classes_
    )
    with pytest.raises(InputError, match="trained elsewhere"):
        adopted.add_witnesses(PEOPLE.frame, PEOPLE.labels)
