"""The classifier with every network it can name: rules hold, files hold it, restarts and gates
work.
"""

import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

import counterfactual_training as ct
from counterfactual_training.errors import FileError, InputError, ModelError
from counterfactual_training.models.embeddings import PiecewiseLinear
from counterfactual_training.models.quantiles import Quantiles
from counterfactual_training.persistence import load_file, save_file
from counterfactual_training.tables.estimators.fit import prepare
from counterfactual_training.tables.estimators.networks import MODELS
from counterfactual_training.training.fleet import Fleet
from covering import by_default, repeats

KIND = "counterfactual classifier"
RANKED = [name for name in MODELS if name != "counternet"]  # which refuses ranks
NEW = ("neurotree", "mlp-plr", "mlp-ple", "tabm")
# Nobody can change an age: said, so that no test is told.
pytestmark = pytest.mark.filterwarnings("ignore:.*nobody can change")
RULES = {"mutability": {"age": "none", "debt": "decrease"}, "domain": {"debt": (0, None)}}


def heavy(n=600):
    """Columns like GMSC's: a few values in most rows, and tails that reach thousands of times as
    far.
    """
    rng = np.random.default_rng(0)
    income = np.round(np.exp(rng.normal(8, 1.2, n)))
    ratio = np.where(
        rng.random(n) < 0.05, np.round(rng.pareto(0.6, n) * 1000), np.round(rng.random(n), 3)
    )
    late = rng.poisson(0.3, n)
    risk = 2 * late + 1.5 * np.tanh(ratio) - 0.8 * (np.log(income) - 8) + rng.normal(0, 0.3, n)
    return pd.DataFrame({"income": income, "ratio": ratio, "late": late}), np.where(
        risk > 1, "bad", "good"
    )


@pytest.mark.parametrize("model", by_default(NEW, "mlp-plr"))
def test_fit_explain_save_and_load(model, loans, make_quick, tmp_path):
    frame, y = loans
    classifier = make_quick(model=model, hidden=(16, 16), **RULES).fit(frame, y)
    assert classifier.score(frame, y) > 0.85
    denied = frame[classifier.predict(frame) == "denied"].head(8)
    found = classifier.explain(denied, target="granted")
    assert (found.frame["age"] == denied["age"]).all() and (
        found.frame["debt"] <= denied["debt"]
    ).all()
    assert (found.frame["debt"] >= 0).all() and (found.prediction == "granted").mean() > 0.5
    classifier.save(tmp_path / "c")
    again = ct.CounterfactualClassifier.load(tmp_path / "c")
    np.testing.assert_array_equal(again.predict_proba(frame), classifier.predict_proba(frame))
    assert again.explain(denied, target="granted").changes() == found.changes()


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "pgd"},
        *repeats({"n_restarts": 2}, {"method": "ct_published"}, {"gate": "none"}),
    ],
)
def test_restarts_and_methods(changes, loans, make_quick):
    frame, y = loans
    classifier = make_quick(model="mlp-ple", hidden=(8,), **{"epochs": 3} | changes).fit(
        frame, y
    )
    assert np.isfinite(classifier.predict_proba(frame)).all()
    assert set(classifier.explain(frame.head(2)).frame.columns) == set(frame.columns)


def test_training_goes_on_from_the_same_bins(loans, make_quick):
    frame, y = loans
    classifier = make_quick(model="mlp-ple", epochs=2).fit(frame, y)
    bins = next(
        layer for layer in classifier.model_ if isinstance(layer, PiecewiseLinear)
    ).lower.clone()
    classifier.partial_fit(frame.head(100), y[:100])
    assert classifier.model_[1].lower.equal(bins)


def test_neuro_trees_have_their_own_rate_unless_one_is_stated(loans):
    def rate(**params):
        classifier = ct.CounterfactualClassifier(**{"method": "conventional", **params})
        return prepare(
            classifier.get_params(deep=False), *loans, 0
        ).method.training.learning_rate

    assert (rate(model="neurotree"), rate(model="tabm"), rate(model=ct.mlp)) == (
        0.003,
        1e-3,
        1e-3,
    )
    assert rate(model="neurotree", learning_rate=0.05) == 0.05
    assert rate(model="neurotree", method="conventional(learning_rate=0.3)") == 0.3
    own = ct.Method(training=ct.TrainConfig(learning_rate=0.3))
    assert rate(model="neurotree", method=own) == 0.3


def test_an_unknown_name_is_refused_with_the_nearest(loans):
    assert set(NEW) < set(MODELS)
    with pytest.raises(InputError, match="Did you mean 'neurotree'"):
        ct.CounterfactualClassifier(model="neurotrees").fit(*loans)


@pytest.mark.parametrize(
    ("model", "altered"),
    [
        ("neurotree", {"depth": 60}),
        ("neurotree", {"num_trees": 10**18}),
        ("mlp-plr", {"columns": [99]}),
        ("mlp-ple", {"columns": ["debt"]}),
        ("mlp-ple", {"num_bins": 10**18}),
        ("tabm", {"num_members": 10**18}),
        ("tabm", {"kind": "__import__"}),
        ("tabm", {"kind": "ensemble", "size": 10**9, "member": {}}),
    ],
)
def test_altered_files_are_refused(model, altered, loans, make_quick, tmp_path):
    make_quick(model=model, hidden=(4,), epochs=1, gate="none").fit(*loans).save(tmp_path / "c")
    tensors, content = load_file(tmp_path / "c", KIND)
    content["network"] |= altered
    save_file(tmp_path / "c", KIND, tensors, content)
    with pytest.raises(FileError):
        ct.CounterfactualClassifier.load(tmp_path / "c")


# ---- ensembles -----------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["mlp", "mlp-ple"])
def test_an_ensemble_averages_the_logits_of_models_trained_alone(
    model, loans, make_quick, tmp_path
):
    frame, y = loans
    params = {"model": model, "hidden": (8,), "gate": "none", "epochs": 5}
    classifier = make_quick("ensemble(members=3)", **params).fit(frame, y)
    seed = classifier._seed()
    alone = []
    for i in range(3):
        prepared = prepare(classifier.get_params(deep=False), frame, y, seed)
        one = replace(
            prepared,
            model=prepared.make_model(seed + i),
            method=prepared.method.replace("members", 1).seeded(seed + i),
        )
        one.train(False)
        alone.append(one.model.eval()(classifier._encoded(frame)))
    logits = (alone[0] + alone[1] + alone[2]) / 3
    torch.testing.assert_close(
        classifier.model_(classifier._encoded(frame)), logits, atol=1e-4, rtol=1e-3
    )
    classifier.save(tmp_path / "c")
    again = ct.CounterfactualClassifier.load(tmp_path / "c")
    np.testing.assert_array_equal(again.predict_proba(frame), classifier.predict_proba(frame))
    assert again.explain(frame.head(3)).changes() == classifier.explain(frame.head(3)).changes()


def test_an_ensemble_of_a_users_own_network_is_loaded_with_its_function(
    loans, make_quick, tmp_path
):
    frame, y = loans
    classifier = make_quick("ensemble(members=2)", model=ct.linear, gate="none", epochs=1).fit(
        frame, y
    )
    classifier.save(tmp_path / "c")
    again = ct.CounterfactualClassifier.load(tmp_path / "c", model=ct.linear)
    np.testing.assert_array_equal(again.predict_proba(frame), classifier.predict_proba(frame))


def test_a_bag_has_members_of_other_rows_and_is_saved(loans, make_quick, tmp_path):
    frame, y = loans
    bag = make_quick("bag(members=2)", gate="none", epochs=2, random_state=0).fit(frame, y)
    ensemble = make_quick("ensemble(members=2)", gate="none", epochs=2, random_state=0).fit(
        frame, y
    )
    assert len(bag.model_.members) == 2
    assert (bag.predict_proba(frame) != ensemble.predict_proba(frame)).any()
    assert "bag(members=2)" in bag.trained_
    bag.save(tmp_path / "bag.safetensors")
    again = ct.CounterfactualClassifier.load(tmp_path / "bag.safetensors")
    assert again.method_.bootstrap
    np.testing.assert_array_equal(again.predict_proba(frame), bag.predict_proba(frame))


def test_what_an_ensemble_is_not(loans, make_quick):
    with pytest.raises(
        InputError, match=r"n_restarts=2 keeps one .* 'ensemble of conventional' keeps all 3"
    ):
        make_quick("ensemble(members=3)", n_restarts=2).fit(*loans)
    with pytest.raises(InputError, match="members must be a whole number"):
        make_quick("ensemble(members=0)").fit(*loans)


@pytest.mark.parametrize("method", ["bag(members=2)", "ensemble(members=2)"])
def test_an_ensemble_goes_on_with_its_members(method, loans, make_quick):
    frame, y = loans
    once = make_quick(method, warm_start=True, epochs=2, gate="none", random_state=0)
    once.fit(frame, y)
    before = [member[1].weight.detach().clone() for member in once.model_.members]
    first = once.model_.members
    once.fit(frame, y)
    assert len(once.model_.members) == 2 and once.model_.members is not first
    assert len(once.history_.records) == 4
    # From where they were: two epochs at this rate move no weight far.
    for member, weight in zip(once.model_.members, before, strict=True):
        moved = (member[1].weight - weight).abs()
        assert 0 < float(moved.median()) < 0.1
    with pytest.raises(InputError, match=r"goes on with the 2 members .* is about 3"):
        once.set_params(method="bag(members=3)").fit(frame, y)


def test_a_bag_learns_from_further_rows_with_the_memory_of_its_optimizers(loans, make_quick):
    frame, y = loans
    bag = make_quick("bag(members=2)", gate="none", random_state=0)
    bag.partial_fit(frame[:150], y[:150])
    memory = [float(state["state"][0]["step"]) for state in bag._optimizer]
    bag.partial_fit(frame[150:], y[150:])
    assert len(bag.model_.members) == 2 and len(bag.history_.records) == 2
    steps = [float(state["state"][0]["step"]) for state in bag._optimizer]
    assert all(after > before for before, after in zip(memory, steps, strict=True))
    # Each member has drawn rows of its own.
    first, second = (member[1].weight for member in bag.model_.members)
    assert (first != second).any()


def test_a_member_that_diverges_is_left_out(loans, make_quick, monkeypatch):
    frame, y = loans
    trained = Fleet.train

    def second_fails(fleet, *rows, **options):
        results = trained(fleet, *rows, **options)
        results[1].history.diverged = True
        return results

    monkeypatch.setattr(Fleet, "train", second_fails)
    with pytest.warns(UserWarning, match="Of 3 members 1 diverged and are left out"):
        bag = make_quick("bag(members=3)", gate="none", epochs=1).fit(frame, y)
    assert len(bag.model_.members) == 2
    assert np.isfinite(bag.predict_proba(frame)).all()


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("method", ["bag", "ct"])
@pytest.mark.parametrize("seed", [0, 1])
def test_members_that_overflow_are_left_out(make_quick, method, seed):
    """At this rate some members' logits overflow, in a search or after the last update."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(200, 2)), columns=["a", "b"])
    params = {"learning_rate": 1e12, "epochs": 100, "random_state": seed}
    bag = make_quick(method, **params).fit(frame, frame["a"] + frame["b"] > 0)
    assert 1 <= len(bag.model_.members) < 5
    assert np.isfinite(bag.predict_proba(frame)).all()


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("method", ["conventional", "bag"])
def test_a_classifier_that_returns_no_numbers_is_none(loans, make_quick, method):
    with pytest.raises(ModelError, match="State a smaller learning_rate"):
        make_quick(method, gate="none", epochs=1, learning_rate=1e30).fit(*loans)


def test_training_goes_on_with_the_members_that_are_left(loans, make_quick):
    bag = make_quick("bag", gate="none", epochs=1).fit(*loans)
    del bag.model_.members[3]
    assert len(bag.partial_fit(*loans).model_.members) == 4


def test_several_networks_do_not_become_one_nor_one_several(loans, make_quick):
    bag = make_quick("bag(members=2)", gate="none", epochs=1, warm_start=True).fit(*loans)
    bag.set_params(method="conventional")
    for again in (bag.fit, bag.partial_fit):
        with pytest.raises(
            InputError, match=r"goes on with 2 networks, and .* has one: fit anew"
        ):
            again(*loans)
    one = make_quick("conventional", gate="none", epochs=1, warm_start=True).fit(*loans)
    with pytest.raises(InputError, match=r"goes on with one network, and .* has 5: fit anew"):
        one.set_params(method="bag").fit(*loans)


def test_a_network_of_ones_own_may_be_an_ensemble(loans, make_quick):
    def make(features, classes):
        return ct.Ensemble([ct.mlp(features, classes, (4,)) for _ in range(3)])

    bag = make_quick("bag(members=2)", model=make, gate="none", epochs=1).fit(*loans)
    assert [len(member.members) for member in bag.model_.members] == [3, 3]
    assert "2 times Ensemble" in bag.trained_


@pytest.mark.parametrize("method", ["bag", "ct"])
@pytest.mark.parametrize("rows", [1, 2, 5])
def test_a_class_with_few_rows(method, rows, make_quick, recwarn):
    rng = np.random.default_rng(0)
    y = np.array(["no"] * 80 + ["yes"] * rows)
    x = pd.DataFrame(rng.normal(size=(len(y), 2)), columns=["a", "b"])
    options = {"epochs": 2, "random_state": 0, "warm_start": True, "mutability": {}}
    bag = make_quick(method, **options).fit(x, y)
    told = [
        str(one.message) for one in recwarn if "one network on all rows" in str(one.message)
    ]
    # One row of five, and the second of two, are held out to stop by.
    alone = rows < 5
    assert bag.method_.members == (1 if alone else 5) and len(told) == alone
    assert all("instead of 5: 'yes' has one row to train on" in text for text in told)
    assert isinstance(bag.model_, ct.Ensemble) != alone
    assert ("but as one network on all rows" in bag.trained_) == alone
    # It stays what it is.
    assert bag.fit(x, y).partial_fit(x, y).method_.members == (1 if alone else 5)


@pytest.mark.parametrize("method", ["conventional", "bag(members=2)", "ct(members=2)"])
def test_a_network_that_cannot_be_copied_is_trained(method, loans, make_quick):
    class Uncopied(torch.nn.Linear):
        def __deepcopy__(self, memo):
            raise TypeError("holds a lock")

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The fleet is trained one by one: Uncopied")
        own = make_quick(method, model=Uncopied, epochs=3, gate="none").fit(*loans)
    assert own.predict(loans[0]).shape == (len(loans[0]),)
    with pytest.raises(ModelError, match=r"cannot be copied \(holds a lock\): fit anew"):
        own.partial_fit(*loans)


def test_members_whose_rows_count_nothing(loans, make_quick):
    frame, y = loans
    weight = np.zeros(len(y))
    weight[[np.flatnonzero(y == label)[0] for label in np.unique(y)]] = 1.0
    bag = make_quick("bag", gate="none", early_stopping=False, epochs=2, random_state=0)
    shares = bag.fit(frame, y, sample_weight=weight).predict_proba(frame)
    assert len(bag.model_.members) == 5 and np.isfinite(shares).all()


def test_a_bag_of_which_nothing_may_change(loans, make_quick):
    frame, y = loans
    fixed = dict.fromkeys(frame.columns, "none")
    bag = make_quick("ct(members=2)", mutability=fixed, epochs=2).fit(frame, y)
    refused = frame[bag.predict(frame) != np.unique(y)[0]].head(2)
    told = bag.explain(refused, target=np.unique(y)[0])
    assert set(told.summary["status"]) == {"infeasible"}


def test_one_member_has_all_rows(loans, make_quick):
    one = make_quick("ct(members=1)", gate="none", epochs=1).fit(*loans)
    assert not one.method_.bootstrap and not isinstance(one.model_, ct.Ensemble)


def test_weights_of_rows_reach_the_members_of_a_bag(loans, make_quick):
    frame, y = loans
    weight = np.where(np.asarray(y) == np.asarray(y)[0], 1.0, 1e-6)
    bag = make_quick("bag(members=2)", gate="none", early_stopping=False, random_state=0)
    bag.fit(frame, y, sample_weight=weight)
    assert (bag.predict(frame) == np.asarray(y)[0]).mean() > 0.95


# ---- ranks as inputs -----------------------------------------------------------------------------


@pytest.mark.parametrize("model", by_default(RANKED, "linear"))
def test_quantile_scaling_keeps_rules_relations_and_steps_in_the_users_units(
    model, make_quick, tmp_path
):
    frame, y = heavy()
    frame["debt"] = np.round(frame["income"] * 0.5)
    schema = {"income": {"step": 50}, "ratio": {"max_change": 0.25}}
    rules = {
        "mutability": {"late": "decrease"},
        "schema": schema,
        "relations": ["debt <= income"],
    }
    classifier = make_quick(
        model=model, scaling="quantile", gate="none", epochs=20, **rules
    ).fit(frame, y)
    people = frame[classifier.predict(frame) == "bad"].head(20)
    told = classifier.explain(people, target="good").frame
    assert (told["late"] <= people["late"]).all() and (told["debt"] <= told["income"]).all()
    assert ((told["ratio"] - people["ratio"]).abs() <= 0.25 + 1e-9).all()
    assert ((told["income"] % 50 == 0) | (told["income"] == people["income"])).all()
    z = classifier.encoder_.transform(frame)
    assert classifier.encoder_.inverse_transform(z).equals(frame)
    classifier.save(tmp_path / "c")
    again = ct.CounterfactualClassifier.load(tmp_path / "c")
    np.testing.assert_array_equal(again.predict_proba(frame), classifier.predict_proba(frame))


def test_bends_lie_in_the_scores_that_the_layer_sees(make_quick):
    classifier = make_quick(scaling="quantile", epochs=1)
    model = prepare(classifier.get_params(deep=False), *heavy(), 0).model
    assert isinstance(model[0], Quantiles)
    bent = model[1].weight.count_nonzero(1) == 1
    at = (model[1].bias / model[1].weight.sum(1))[bent]
    assert int(bent.sum()) == 16 and float(at.detach().abs().max()) < 4


# ---- heavy tails ---------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["mlp-ple", *repeats("neurotree")])
@pytest.mark.parametrize("gate", ["none", *repeats("density")])
def test_advice_stays_within_the_bulk_of_heavy_tails(model, gate, make_quick):
    frame, y = heavy()
    classifier = make_quick(model=model, gate=gate, epochs=30).fit(frame, y)
    assert classifier.score(frame, y) > 0.8
    people = frame[classifier.predict(frame) == "bad"].head(40)
    found = classifier.explain(people, target="good")
    assert (found.prediction == "good").mean() > 0.9
    for name in frame:
        low, high = frame[name].quantile(0.005, "lower"), frame[name].quantile(0.995, "higher")
        moved = found.changed[name].to_numpy()
        assert found.frame[name][moved].between(low, high).all()


def test_fixed_steps_in_training_stay_in_their_box(make_quick):
    """A narrow bin has a slope that throws a plain step far out; only the box of the training
    bounds it.
    """
    frame, y = heavy()
    classifier = make_quick(model="mlp-ple", method="ct_published", epochs=3).fit(frame, y)
    assert np.isfinite(classifier.history_.to_frame()["loss"]).all()
    prepared = prepare(classifier.get_params(deep=False), frame, y, 0)
    x, method = prepared.x, prepared.method
    assert method.generator.step_rule == "fixed"
    low, high = x.min(0).values, x.max(0).values
    for rate in (method.generator.learning_rate, 10.0):
        generator = method.generator.replace(learning_rate=rate)
        found = ct.search(
            classifier.model_,
            x,
            1 - prepared.y,
            generator=generator,
            constraints=method.constraints,
        )
        assert bool(((found.x_cf >= low - 1e-4) & (found.x_cf <= high + 1e-4)).all())
