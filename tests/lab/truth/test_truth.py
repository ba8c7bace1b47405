"""The truth experiment: rows that never mix, results that are not made twice, tables that compare
with the reference.
"""

import io
import math

import pandas as pd
import pytest
import torch

import counterfactual_training as ct
from counterfactual_lab.reports.truth_report import truth_texts
from counterfactual_lab.truth import entrants, truth
from counterfactual_lab.truth.caps import METHODS, Caps
from counterfactual_lab.truth.entrants import SCALES, Compared
from counterfactual_lab.truth.truth import (
    Truth,
    fit_of,
    make_bench,
    run_truth,
)
from counterfactual_lab.truth.truth_results import truth_tables
from counterfactual_training.engine.launch import Engine
from counterfactual_training.errors import InputError
from counterfactual_training.evaluation.stepfree import Rescaled
from counterfactual_training.training.method import Method
from counterfactual_training.training.methods import conventional
from counterfactual_training.training.registry import METHODS as REGISTERED
from counterfactual_training.training.registry import register_method
from counterfactual_training.training.train_config import TrainConfig

pytestmark = pytest.mark.check

TINY = Caps(rows=300, individuals=40, judge_rows=150, epochs=2, batch_size=100)
HERE = Engine(workers=1)
SOME = ["conventional", "conventional rescaled", "ct_published"]
STEPS = ct.generic(lambda_cost=0.0, learning_rate=0.1, max_steps=60)


def at(root, **changes) -> Truth:
    return Truth(root, **{"generator": STEPS, "caps": TINY, **changes})


def run(root, methods=None, stream=None, **changes):
    what = {"data": ["LS", "Moon"], "seeds": 2, "methods": methods, "caps": TINY, **changes}
    place = at(root, **what)
    return run_truth(place, engine=HERE, stream=stream), truth_tables(place)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """Three methods on two data sets and seeds."""
    root = tmp_path_factory.mktemp("truth")
    torch.manual_seed(0)
    failures, tables = run(root, SOME)
    assert failures == {}
    return root, tables


def as_set(x):
    return {tuple(row) for row in x.tolist()}


@pytest.mark.parametrize("on_test", [False, True])
def test_rows_to_fit_to_explain_and_to_judge_never_mix(on_test):
    data, bench = ct.load_dataset("Moon"), make_bench("Moon", on_test, TINY)
    fit = fit_of(bench, "Moon", 1, TINY, False)
    judged = torch.cat([real.rows for real in bench.judge.classes])
    kinds = [
        as_set(fit.x),
        as_set(fit.x_validation),
        as_set(bench.individuals.x),
        as_set(judged),
    ]
    assert [len(kind) for kind in kinds] == [240, 60, 40, 150] and len(set.union(*kinds)) == 490
    assert fit.data.x_test.numel() == 0
    measured_on, other = (data.x_test, data.x_train) if on_test else (data.x_train, data.x_test)
    assert kinds[2] | kinds[3] <= as_set(measured_on) and not (kinds[2] | kinds[3]) & as_set(
        other
    )
    assert kinds[0] | kinds[1] <= as_set(data.x_train)


def test_individuals_are_those_of_every_seed_and_validation_rows_are_not(done):
    bench = make_bench("Moon", False, TINY)
    first, second = (fit_of(bench, "Moon", seed, TINY, False) for seed in (0, 1))
    assert not first.x.equal(second.x)
    root, _ = done
    place = at(root)
    rows = [
        place.store.load(place.run("Moon", seed, "conventional")).table() for seed in (0, 1)
    ]
    by_row = [
        part[(part["tau"] == ".5") & (part["setting"] == "free")].set_index("row")["target"]
        for part in rows
    ]
    shared = by_row[0].index.intersection(by_row[1].index)
    assert len(shared) > 5 and by_row[0][shared].equals(by_row[1][shared])


def test_every_cell_is_compared_with_its_reference_beside_the_floors(done):
    _, tables = done
    table = tables["truth"]
    assert set(table["method"]) == set(SOME) and set(table["tau"]) == {"50 × 0.1", ".5", ".95*"}
    assert set(table["setting"]) == {"free", "protected"} and list(
        dict.fromkeys(table["data"])
    ) == ["LS", "Moon"]
    assert len(table) == 2 * 2 * 3 * len(SOME) * 9 and (table["seeds"] == 2).all()
    nearest = table[(table["metric"] == "nn5") & (table["tau"] == ".5")]
    assert nearest["real"].notna().all() and (nearest["real"] < nearest["unmoved"]).all()
    assert table.loc[table["method"] == "conventional", "p_value"].isna().all()
    assert (table["p_holm"].dropna() >= table["p_holm_method"].dropna() - 1e-12).all()


def test_every_seed_stands_by_itself_beside_its_reference(done):
    _, tables = done
    by_seed, table = tables["truth_by_seed"], tables["truth"]
    assert set(by_seed["seed"]) == {0, 1} and set(by_seed["method"]) == {
        "conventional rescaled",
        "ct_published",
    }
    keys = {
        "data": "Moon",
        "setting": "free",
        "tau": ".5",
        "method": "ct_published",
        "metric": "nn5",
    }
    own, whole = (
        part[(part[list(keys)] == pd.Series(keys)).all(axis=1)] for part in (by_seed, table)
    )
    for column in ("value", "reference_value"):
        assert own[column].min() < float(whole[column].iloc[0]) < own[column].max()


def test_the_control_is_the_conventional_model_where_scale_does_not_count(done):
    _, tables = done
    table = tables["truth"]
    control = table[
        (table["method"] == "conventional rescaled") & (table["setting"] == "free")
    ].set_index(["tau", "metric", "data"])
    free_of_scale, fixed = control.loc[".5"], control.loc["50 × 0.1"]
    for metric in ("nn5", "cost"):
        assert free_of_scale.loc[metric]["change"].abs().max() < 1.0
    assert fixed.loc["cost"]["change"].abs().max() > 1.0


def test_the_control_chooses_among_its_factors_by_validation_rows(done):
    fit = fit_of(make_bench("LS", False, TINY), "LS", 0, TINY, True)
    model = fit.model("conventional rescaled")
    assert (
        isinstance(model, Rescaled)
        and model.scale in SCALES
        and model.model is fit.model("conventional")
    )
    assert not any(p.requires_grad for p in model.parameters())


def test_only_methods_that_know_protection_are_trained_for_it():
    fit = fit_of(make_bench("LS", False, TINY), "LS", 0, TINY, True)
    fit.model("ct_published"), fit.model("conventional")
    assert set(fit.trained_models) == {("ct_published", True), ("conventional", False)}
    assert not bool(fit.constraints.may_increase[0]) and bool(fit.constraints.may_increase[1])
    method = fit.method("ct_published")
    assert not bool(method.constraints.may_increase[0])
    assert (method.training.epochs, method.training.batch_size) == (2, 30)


def test_a_gate_is_fitted_anew_where_features_are_protected_and_decides_nothing():
    bench, known = make_bench("LS", False, TINY), {}
    free, protected = (
        fit_of(bench, "LS", 0, TINY, own, known).model("conventional + density")
        for own in (False, True)
    )
    assert set(known) == {
        ("conventional + density", False),
        ("conventional + density", True),
        ("conventional", False),
    }
    assert (
        free.model is protected.model is known[("conventional", False)]
        and float(free.scale) != 1.0
    )
    assert free.gate.immutable.tolist() == [
        False,
        False,
    ] and protected.gate.immutable.tolist() == [
        True,
        False,
    ]


def test_cheap_recourse_is_trained_by_the_rules_that_it_is_measured_by(monkeypatch):
    bench, known, seen = make_bench("LS", False, TINY), {}, []
    member_of = entrants.member_of
    monkeypatch.setattr(
        entrants,
        "member_of",
        lambda model, method, y: seen.append(method) or member_of(model, method, y),
    )
    fit = fit_of(bench, "LS", 0, TINY, True, known)
    gated = fit.model("cheap_recourse + density")
    assert (
        set(known) == {("cheap_recourse", True), ("cheap_recourse + density", True)}
        and gated.model is known[("cheap_recourse", True)]
    )
    (method,) = seen
    assert method.constraints.immutable.tolist() == [True, False] and method.budget == 0.0025
    training = method.training
    assert (training.epochs, training.batch_size, training.positives) == (2, 30, 4)
    assert method.constraints.domain is fit.free_constraints.domain


def test_the_default_is_its_network_and_a_gate_on_the_same_rows():
    fit = fit_of(make_bench("Moon", False, TINY), "Moon", 0, TINY, False)
    gated, network = fit.model("default network + density"), fit.model("default network")
    assert gated.model is network
    assert Compared.of("default network + density").reference == "default network"
    classifier = ct.CounterfactualClassifier(
        "conventional", epochs=1, random_state=0, progress=False
    ).fit(fit.x.numpy(), fit.y.numpy())
    assert [type(layer) for layer in network] == [type(layer) for layer in classifier.model_]
    assert [p.shape for p in network.parameters()] == [
        p.shape for p in classifier.model_.parameters()
    ]
    assert type(gated.gate) is type(classifier.gate_)


def test_gates_are_measured_like_any_model(tmp_path):
    failures, tables = run(tmp_path, ["conventional + density"], data=["LS"], seeds=1)
    table, accuracy = tables["truth"], tables["truth_performance"]
    nearest = table[
        (table["method"] == "conventional + density")
        & (table["metric"] == "nn5")
        & (table["tau"] == ".5")
    ]
    assert failures == {} and (nearest["change"] > 0).all()
    assert (
        accuracy.loc[
            (accuracy["method"] == "conventional + density")
            & (accuracy["metric"] == "accuracy"),
            "change",
        ]
        == 0
    ).all()


def test_what_is_done_is_not_done_again_and_a_new_method_is_added(done, monkeypatch):
    root, _ = done
    place = at(root)

    def written(method):
        return (root / "runs" / f"{place.run('LS', 0, method).id}.json").stat().st_mtime_ns

    before = written("ct_published")

    def flat() -> Method:
        return truth.replace(conventional(), training=TrainConfig(learning_rate=1e-6))

    monkeypatch.setitem(REGISTERED, "flat", register_method(flat, {}))
    stream = io.StringIO()
    failures, tables = run(root, ["flat"], stream, data=["LS"])
    assert failures == {} and "[2/2]" in stream.getvalue()
    assert set(tables["truth"]["method"]) == {"conventional", "flat"}
    assert written("ct_published") == before
    flat_run = place.store.content(place.run("LS", 0, "flat").id)["run"]
    assert flat_run["measurement"]["rows"] == "tuning"
    again = io.StringIO()
    assert run(root, ["flat"], again, data=["LS"])[0] == {} and again.getvalue() == ""


def test_methods_of_tables_leave_images_alone():
    kept = Truth("").methods_of("MNIST")
    assert {
        "conventional",
        "ct_published",
        "cheap_recourse",
        "conventional + learned",
        "conventional + best",
    } <= set(kept) and not {
        "conventional + density",
        "conventional + both",
        "default network + density",
    } & set(kept)
    assert Truth("").methods_of("CH") == list(METHODS)


def test_one_method_that_fails_does_not_lose_the_others(tmp_path, monkeypatch):
    def broken() -> Method:
        def loss(model, batch, found):
            raise InputError("no such network")

        return Method(loss=loss)

    monkeypatch.setitem(REGISTERED, "broken", register_method(broken, {}))
    failures, tables = run(tmp_path, ["broken"], data=["LS"], seeds=1)
    assert (
        list(failures) == ["LS broken seed 0"]
        and "no such network" in failures["LS broken seed 0"]
    )
    assert set(tables["truth"]["method"]) == {"conventional"}
    empty = truth_tables(at(tmp_path / "none"))
    assert all(table.empty for table in empty.values()) and truth_texts(empty) == []


def test_twins_come_along_and_unknown_methods_are_refused():
    assert Truth("", methods=["ct_published"]).names == ["conventional", "ct_published"]
    with pytest.raises(InputError, match="method"):
        assert Truth("", methods=["magic"]).names


def test_tuning_never_reads_a_test_row(monkeypatch):
    data = ct.load_dataset("LS")
    poisoned = truth.replace(data, x_test=torch.full_like(data.x_test, math.nan))
    monkeypatch.setattr(truth, "load_dataset", lambda name: poisoned)
    make_bench.cache_clear()
    bench = make_bench("LS", False, TINY)
    make_bench.cache_clear()
    assert bench.x_held.isfinite().all() and bench.individuals.x.isfinite().all()


def test_tables_for_people_say_who_is_better(done):
    _, tables = done
    texts = truth_texts(tables)
    titles = [text.title for text in texts]
    assert titles[0].startswith("What is left") and any("τ = .95*" in title for title in titles)
    for text in texts:
        assert (
            all(len(row) == len(text.header) for row in text.rows)
            and text.markdown()
            and text.latex()
        )
    gains = tables["truth_gains"].set_index(["data", "metric"])
    assert gains.loc[("LS", "implausibility"), "published"] == 26.26
    shown = next(
        text for text in texts if text.title.startswith("Counterfactuals at τ = .5, every")
    )
    assert [row[1] for row in shown.rows][:4] == [
        "(real rows)",
        "(unmoved)",
        "(nearest unlike)",
        "conventional",
    ]
    accuracy = tables["truth_performance"]
    control = accuracy[
        (accuracy["method"] == "conventional rescaled") & (accuracy["metric"] == "accuracy")
    ]
    assert (control["change"] == 0).all()


def test_counternet_itself_answers_without_a_search(tmp_path):
    """Where its own answers end does not depend on the search."""
    what = {"methods": ["counternet itself"], "data": ["LS"], "seeds": 1}
    rows = []
    for steps in (STEPS, STEPS.replace(max_steps=1)):
        assert run(tmp_path, generator=steps, **what)[0] == {}
        place = at(tmp_path, generator=steps, **what)
        rows.append(place.store.load(place.run("LS", 0, "counternet itself")).table())
    pd.testing.assert_frame_equal(*rows)
