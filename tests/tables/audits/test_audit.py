"""The whole audit: tables that agree with the model, one document for JSON, and bad input."""

import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import RandomForestClassifier

from counterfactual_training.errors import InputError
from counterfactual_training.tables.audits import AuditProtocol, Subject, audit
from counterfactual_training.tables.estimators.classifier import CounterfactualClassifier
from counterfactual_training.tables.estimators.explainer import Explainer


@pytest.fixture(scope="module")
def found(book):
    return audit(
        Subject(book.gated, "gated"),
        book.people,
        book.labels,
        ["sex", "owner", "age", "sex*owner"],
        "granted",
        against=Subject(book.plain, "plain"),
        protocol=AuditProtocol(resamples=200),
    )


def line(table, **where):
    (one,) = table[
        np.all([table[name] == value for name, value in where.items()], axis=0)
    ].to_dict("records")
    return one


def test_values_are_those_of_the_model(book, found):
    names = list(book.gated.schema_.names)
    denied = book.gated.predict(book.people[names]) != "granted"
    told = book.gated.explain(book.people[names][denied], "granted")
    women = (book.people["sex"] == "f").to_numpy()
    where = {"model": "model", "column": "sex", "group": "f"}
    assert line(found.groups, measure="denied", **where)["value"] == pytest.approx(
        denied[women].mean()
    )
    helped = told.answered.astype(bool) & ~np.isin(told.status, ("infeasible", "exhausted"))
    cost = told.cost[helped & women[denied]]
    burden = line(found.groups, measure="burden", **where)
    assert burden["value"] == pytest.approx(cost.mean()) and burden["n"] == len(cost)
    wrong = denied & (book.labels == "granted") & women
    total = told.cost[helped & wrong[denied]].sum()
    assert line(found.groups, measure="social_burden", **where)["value"] == pytest.approx(total)


def test_the_document_is_json_and_says_what_it_is(found):
    document = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert document["format"] == 1 and document["target"] == "granted"
    assert [model["name"] for model in document["models"]] == ["gated", "plain"]
    assert [column["column"] for column in document["columns"]] == [
        None,
        "sex",
        "owner",
        "age",
        "sex*owner",
    ]
    by_name = {column["column"]: column for column in document["columns"]}
    assert by_name["sex"]["in_model"] is False and by_name["owner"]["immutable"] is True
    for column in document["columns"]:
        for measure in column["measures"]:
            assert measure["meaning"].endswith(".") and measure["title"] and measure["formula"]
            for model in measure["models"]:
                assert (
                    len(model["groups"]) == len(column["groups"]) == len(measure["differences"])
                )
                assert all(
                    set(g) == {"group", "n", "value", "low", "high", "few"}
                    for g in model["groups"]
                )
    assert [proxy["column"] for proxy in document["proxies"]] == [
        "sex",
        "owner",
        "age",
    ]  # crossings are not guessed
    assert {check["id"] for check in document["later"]} == {"weights", "weights_all", "inputs"}
    assert all("{" not in check["meaning"] for check in document["later"])


def test_without_a_gate_plausibility_is_not_none_but_unknown(found):
    where = {"column": "sex", "group": "f", "measure": "implausible"}
    assert np.isnan(line(found.groups, model="against", **where)["value"])
    assert not np.isnan(line(found.groups, model="model", **where)["value"])
    assert np.isnan(line(found.differences, **where)["value"])


def test_estimates_lie_in_their_intervals(found):
    known = found.groups.dropna(subset="value")
    assert (known["low"] <= known["value"] + 1e-9).all() and (
        known["value"] <= known["high"] + 1e-9
    ).all()
    assert set(found.tables()) == {
        "groups",
        "gaps",
        "differences",
        "proxies",
        "information",
        "later",
    }


def test_few_people_are_shown_and_flagged(book):
    people = book.people.assign(rare=["x"] * 3 + ["y"] * (len(book.people) - 3))
    found = audit(
        book.gated,
        people,
        book.labels,
        ["rare"],
        "granted",
        protocol=AuditProtocol(resamples=50, proxies=False, delta=None),
    )
    rare = line(found.groups, model="model", column="rare", group="x", measure="denied")
    assert rare["few"] and rare["n"] == 3 and not np.isnan(rare["value"])
    assert found.gaps.empty  # one group is left
    assert any("fewer than 10 people" in note for note in found.notes)
    assert found.proxies.empty and found.later.empty


def test_without_labels_and_groups(book):
    found = audit(
        book.gated,
        book.people,
        None,
        [],
        "granted",
        protocol=AuditProtocol(resamples=50, delta=None),
    )
    assert [measure.id for measure in found.measures] == [
        "denied",
        "no_recourse",
        "implausible",
        "burden",
    ]
    document = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert document["models"][0]["accuracy"] is None


def test_without_labels_two_models_by_group(book):
    found = audit(
        book.gated,
        book.people,
        None,
        ["sex"],
        "granted",
        against=book.plain,
        protocol=AuditProtocol(resamples=50, delta=None, proxies=False),
    )
    document = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    ids = [measure["id"] for measure in document["columns"][1]["measures"]]
    assert ids == ["denied", "no_recourse", "implausible", "burden", "burden_same"]


def test_a_model_beside_itself_does_not_surely_decide_alike(book):
    found = audit(
        book.gated,
        book.people,
        book.labels,
        ["sex"],
        "granted",
        against=book.gated,
        protocol=AuditProtocol(resamples=50, delta=None, proxies=False),
    )
    shares = [measure.id for measure in found.measures if measure.unit == "share"]
    differences = found.differences[found.differences["measure"].isin(shares)]
    assert (
        (differences["value"] == 0).all()
        and (differences["low"] < 0).all()
        and (differences["high"] > 0).all()
    )


def test_a_cap_is_told(book):
    found = audit(
        book.gated,
        book.people,
        book.labels,
        ["sex"],
        "granted",
        protocol=AuditProtocol(people=10, resamples=50, delta=None),
    )
    assert found.models[0]["explained"] <= 10 < found.models[0]["denied"]
    assert any("denied people were explained" in note for note in found.notes)


@pytest.mark.check
def test_the_same_seed_gives_the_same_audit(book):
    one, two = (
        audit(
            book.gated,
            book.people,
            book.labels,
            ["sex"],
            "granted",
            protocol=AuditProtocol(people=20, resamples=50, seed=4),
        )
        for _ in range(2)
    )
    assert one.to_dict() == two.to_dict()


def test_a_model_trained_elsewhere(book):
    frame, y = book.trained
    forest = RandomForestClassifier(20, max_depth=4, random_state=0)
    numbers = ["age", "debt"]
    explainer = Explainer(
        forest.fit(frame[numbers], y), frame[numbers], y, mutability={"age": "none"}
    )
    found = audit(
        explainer,
        book.people,
        book.labels,
        ["sex"],
        "granted",
        protocol=AuditProtocol(people=15, resamples=50),
    )
    assert found.later.empty  # a forest has no weights to disturb
    assert found.models[0]["advised"] == {"debt": 1.0}


def test_a_group_that_people_may_change_is_told(book):
    found = audit(
        book.gated,
        book.people,
        book.labels,
        ["branch"],
        "granted",
        protocol=AuditProtocol(people=20, resamples=50, delta=None),
    )
    assert any("lets people change branch" in note for note in found.notes)
    # Its own column does not count as something that gives it away.
    assert "branch" not in set(found.information["feature"])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"target": None}, "Say which class people want"),
        ({"target": "grated"}, "Did you mean 'granted'"),
        ({"groups": ["sexx"]}, "Did you mean 'sex'"),
        ({"labels": ["granted"]}, "one label per row"),
        ({"groups": [["sex"]]}, "list of names of columns"),
        ({"groups": "sex"}, "list of columns, such as"),
        (
            {"labels": ["granted"] * 79 + ["grante"]},
            "no class 'grante'. Did you mean 'granted'",
        ),
        ({"labels": ["granted"] * 79 + [float("nan")]}, "1 of 80 labels are missing"),
        ({"labels": [1] * 80}, "has no class 1"),
    ],
)
def test_bad_input(book, changes, said):
    usual = {
        "frame": book.people,
        "labels": book.labels,
        "groups": ["sex"],
        "target": "granted",
    }
    with pytest.raises(InputError, match=said):
        audit(book.gated, **(usual | changes))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"people": 0}, "people must be a whole number of at least 1"),
        ({"resamples": 0}, "resamples must be a whole number of at least 1"),
        ({"retrain": -1}, "retrain must be a whole number of at least 0"),
        ({"seed": -1}, "seed must be a whole number of at least 0"),
        ({"delta": float("nan")}, "delta must be a number above 0, got nan"),
        ({"delta": -1}, "delta must be a number above 0"),
        ({"level": 1}, "level must be a number between 0 and 1"),
    ],
)
def test_bad_protocols(settings, said):
    with pytest.raises(InputError, match=said):
        AuditProtocol(**settings)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (RandomForestClassifier(), "got RandomForestClassifier. Wrap it first: Explainer"),
        ("people.safetensors", "got str.$"),
        (CounterfactualClassifier(), "not fitted: call fit first"),
        (SimpleNamespace(explain=None, schema_=None), "decides between classes"),
    ],
)
def test_what_is_no_model(book, model, said):
    with pytest.raises(InputError, match=said):
        audit(model, book.people, book.labels, ["sex"], "granted")
    with pytest.raises(InputError, match=said):
        audit(book.gated, book.people, book.labels, ["sex"], "granted", against=Subject(model))


def test_no_rows_to_train_on_again(book):
    frame, y = book.trained
    with pytest.raises(InputError, match="trained_on is empty"):
        audit(
            book.gated,
            book.people,
            book.labels,
            [],
            "granted",
            trained_on=(frame[:0], y[:0]),
            protocol=AuditProtocol(retrain=1),
        )


def test_rows_that_do_not_fit(book):
    with pytest.raises(InputError, match="needs the column 'debt'"):
        audit(book.gated, book.people.drop(columns="debt"), book.labels, [], "granted")
    with pytest.raises(InputError, match="no rows"):
        audit(book.gated, book.people[:0], [], [], "granted")
    with pytest.raises(InputError, match="needs a data frame"):
        audit(book.gated, book.people.to_numpy(), book.labels, [], "granted")


def test_nobody_denied(book):
    names = list(book.gated.schema_.names)
    lucky = book.people[book.gated.predict(book.people[names]) == "granted"]
    with pytest.raises(InputError, match="Nobody among these"):
        audit(book.gated, lucky, None, [], "granted")


def test_a_rival_of_other_classes_or_columns(book, make_quick):
    frame, y = book.trained
    renamed = make_quick(epochs=1, gate="none", mutability={}).fit(
        frame, np.where(y == "granted", "yes", "no")
    )
    with pytest.raises(InputError, match="has classes"):
        audit(book.gated, book.people, book.labels, [], "granted", against=renamed)
    narrower = make_quick(epochs=1, gate="none", mutability={}).fit(
        frame.drop(columns="branch"), y
    )
    with pytest.raises(InputError, match="same columns"):
        audit(book.gated, book.people, book.labels, [], "granted", against=narrower)
    wider = make_quick(epochs=1, gate="none", mutability={}).fit(
        frame.assign(height=frame["age"]), y
    )
    with pytest.raises(InputError, match="same columns; in one of them only: \\['height'"):
        audit(book.gated, book.people, book.labels, [], "granted", against=wider)


@pytest.mark.check
def test_polars_frames_are_taken(book):
    polars = pytest.importorskip("polars")
    rows = polars.DataFrame({name: column.tolist() for name, column in book.people.items()})
    told = audit(
        book.gated,
        rows,
        book.labels,
        ["sex"],
        "granted",
        protocol=AuditProtocol(people=15, resamples=50, delta=None, proxies=False),
    )
    same = audit(
        book.gated,
        book.people,
        book.labels,
        ["sex"],
        "granted",
        protocol=AuditProtocol(people=15, resamples=50, delta=None, proxies=False),
    )
    pd.testing.assert_frame_equal(told.groups, same.groups)


def test_two_models_are_measured_by_the_scale_of_the_first(book, make_quick, schema):
    frame, y = book.trained
    rules = {
        "mutability": {"age": "none", "owner": "none", "debt": "decrease"},
        "domain": {"debt": (0, None)},
    }
    # Trained on people whose debts vary more, so that the same change costs less by its own scale.
    wide = make_quick(schema=schema, gate="none", scaling="standard", **rules)
    wide.fit(frame.assign(debt=frame["debt"] * 4), y)
    people = book.people.assign(debt=book.people["debt"] * 4)
    protocol = AuditProtocol(resamples=50, proxies=False, delta=None)
    both = audit(
        book.gated, people, book.labels, [], "granted", against=wide, protocol=protocol
    )
    alone = audit(wide, people, book.labels, [], "granted", protocol=protocol)
    known = people[list(wide.schema_.names)]
    told = wide.explain(known[wide.predict(known) != "granted"], "granted")
    helped = told.answered & ~np.isin(told.status, ("infeasible", "exhausted"))
    by_first = told.measured_by(book.gated.encoder_).cost[helped].mean()
    burden = {
        name: found.groups[
            (found.groups["measure"] == "burden") & (found.groups["model"] == model)
        ]["value"].iloc[0]
        for name, found, model in (("both", both, "against"), ("alone", alone, "model"))
    }
    assert (
        burden["both"] == pytest.approx(by_first, rel=1e-6)
        and burden["alone"] < 0.9 * burden["both"]
    )
