"""The JSON API: what it answers, and how it refuses."""

import json
import math

import numpy as np
import pandas as pd
import pytest
from serving import BASE, app_of, ask
from starlette.testclient import TestClient

from counterfactual_serve.questions import Limits


def test_health_and_model_tell_what_is_served(client, bare):
    assert client.get("/health").json() == {"status": "ok", "api": 1, "model": "a" * 64}
    said = client.get("/api/v1/model").json()
    assert (
        said["model"]["classes"] == ["denied", "granted"]
        and said["model"]["wanted"] == "granted"
    )
    assert (
        said["model"]["gated"]
        and not said["against"]["gated"]
        and said["model"]["confidence"] is None
    )
    assert said["data"] == {
        "name": "people.csv",
        "rows": 200,
        "total": 250,
        "labelled": True,
        "truncated": True,
        "columns": ["age", "income", "debt", "job", "owner", "sex"],
    }
    assert (
        bare.get("/api/model").json()["data"] is None
        and bare.get("/api/model").json()["against"] is None
    )


def test_the_current_version_needs_no_number(client):
    assert client.get("/api/model").json() == client.get("/api/v1/model").json()
    assert client.get("/api/model").headers["x-api-version"] == "1"


def test_the_schema_tells_columns_in_the_users_terms(client):
    columns = {
        column["name"]: column for column in client.get("/api/v1/schema").json()["columns"]
    }
    assert list(columns) == ["age", "income", "debt", "job", "owner", "sex"]
    assert (
        columns["age"]["mutability"] == "none" and columns["debt"]["mutability"] == "decrease"
    )
    assert (
        columns["job"]["categories"] == ["clerk", "nurse", "pilot"]
        and columns["job"]["range"] is None
    )
    assert columns["owner"]["categories"] == [False, True]
    low, high = columns["income"]["range"]
    assert 0 < low < high and columns["income"]["unit"] == "thousand dollars"
    assert isinstance(columns["age"]["typical"], int) and columns["sex"]["typical"] in (
        "female",
        "male",
    )


def test_the_document_describes_every_request_that_is_checked(client):
    document = client.get("/api/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    explain = document["paths"]["/api/v1/explain"]["post"]["requestBody"]["content"][
        "application/json"
    ]["schema"]
    assert explain["additionalProperties"] is False and explain["required"] == ["rows"]
    assert {"rows", "target", "lock", "domain", "difficulty", "max_changes", "options"} <= set(
        explain["properties"]
    )


# ---- people --------------------------------------------------------------------------------------


def test_people_come_in_pages_with_decisions(client, served):
    first = ask(client, "rows", limit=10)
    assert first["total"] == 200 and [row["row"] for row in first["rows"]] == list(range(10))
    decided = served.model.classifier.predict(served.people.head(10))
    assert [row["decision"] for row in first["rows"]] == decided.tolist()
    assert all(
        0.5 <= row["confidence"] <= 1 and row["label"] in ("denied", "granted")
        for row in first["rows"]
    )
    assert first["rows"][0]["values"] == {
        **served.people.iloc[0].to_dict(),
        "owner": bool(served.people.iloc[0]["owner"]),
    }
    last = ask(client, "rows", offset=195, limit=50)
    assert [row["row"] for row in last["rows"]] == list(range(195, 200))


def test_people_are_filtered_and_sorted(client, served):
    frame = served.people
    chosen = ask(
        client,
        "rows",
        limit=500,
        filters=[{"column": "age", "between": [30, 40]}],
        sort="income",
    )
    expected = frame[frame["age"].between(30, 40)]["income"].sort_values().tolist()
    assert [row["values"]["income"] for row in chosen["rows"]] == expected
    pilots = ask(
        client,
        "rows",
        limit=500,
        filters=[{"column": "job", "in": ["pilot"]}, {"column": "owner", "in": [True]}],
    )
    assert pilots["total"] == int(((frame["job"] == "pilot") & frame["owner"]).sum())
    denied = ask(
        client, "rows", decision="denied", sort="confidence", descending=True, limit=500
    )["rows"]
    assert {row["decision"] for row in denied} == {"denied"}
    assert np.all(np.diff([row["confidence"] for row in denied]) <= 0)
    assert ask(client, "rows", search="PILOT")["total"] == int((frame["job"] == "pilot").sum())
    assert ask(client, "rows", search="[")["total"] == 0


def test_without_data_there_are_no_people(bare, denied):
    response = bare.post("/api/v1/rows", json={})
    assert response.status_code == 404 and response.json()["error"]["code"] == "no_data"
    assert bare.post("/api/v1/audit", json={"groups": ["sex"]}).status_code == 404
    assert ask(bare, "explain", rows=denied[:1])["answers"][0]["plans"][0]["percentile"] is None


# ---- predictions ---------------------------------------------------------------------------------


def test_predictions_are_those_of_the_classifier(client, served, denied):
    found = ask(client, "predict", rows=denied)["predictions"]
    frame = pd.DataFrame(denied)
    expected = served.model.classifier.predict_proba(frame)
    np.testing.assert_allclose(
        [[p["probabilities"][c] for c in ("denied", "granted")] for p in found],
        expected,
        atol=1e-6,
    )
    seen = served.model.classifier.plausibility(frame, given_fixed=True)
    np.testing.assert_allclose(
        [[p["plausibility"][c] for c in ("denied", "granted")] for p in found], seen, atol=1e-4
    )
    other = ask(client, "predict", rows=denied, model="against")["predictions"]
    assert other[0]["plausibility"] is None and other != found


def test_an_unknown_category_is_told_and_counts_as_none(client, denied):
    found = ask(client, "predict", rows=[{**denied[0], "job": "wizard"}, denied[1]])[
        "predictions"
    ]
    assert found[1]["notes"] == []
    assert found[0]["notes"] == [
        "job 'wizard' did not occur in training: it counts as none of the known categories."
    ]


# ---- plans ---------------------------------------------------------------------------------------


def test_plans_are_those_of_explain(client, served, denied):
    rows = denied[:2]
    found = ask(client, "explain", rows=rows, options=2, vary=["income", "debt"])
    assert found["complete"] and found["model"] == "a" * 64 and len(found["answers"]) == 2
    told = served.model.classifier.explain(
        pd.DataFrame(rows), "granted", n_options=2, vary=["income", "debt"]
    )
    expected = [told.frame.loc[i].astype(object).to_dict("records") for i in range(2)]
    assert [
        [plan["values"] for plan in answer["plans"]] for answer in found["answers"]
    ] == expected
    costs = [plan["cost"] for answer in found["answers"] for plan in answer["plans"]]
    np.testing.assert_allclose(costs, told.cost, atol=1e-4)
    for answer in found["answers"]:
        assert answer["decision"] == "denied" and answer["target"] == "granted"
        for plan in answer["plans"]:
            assert plan["sentence"].startswith("With ") and plan["changed"] == len(
                plan["changes"]
            )
            assert 0 <= plan["percentile"] <= 100


def test_who_needs_no_change_is_told_so_in_place(client, served, denied):
    granted = served.people[served.decided[0] == 1].astype(object).head(2).to_dict("records")
    rows = [granted[0], denied[0], granted[1]]
    found = ask(client, "explain", rows=rows)
    told = served.model.classifier.explain(pd.DataFrame(rows), "granted")
    assert [answer["row"] for answer in found["answers"]] == [0, 1, 2]
    assert [answer["decision"] for answer in found["answers"]] == [
        "granted",
        "denied",
        "granted",
    ]
    plans = [plan for answer in found["answers"] for plan in answer["plans"]]
    assert [plan["status"] for plan in plans] == told.status.tolist()
    assert plans[0]["sentence"].startswith("The decision already is 'granted'")
    assert plans[0]["values"] == granted[0] and plans[-1]["values"] == granted[1]


def test_changes_say_from_where_to_where(client, denied):
    plan = ask(client, "explain", rows=denied[:1])["answers"][0]["plans"][0]
    for change in plan["changes"]:
        assert (
            change["from"] == denied[0][change["column"]]
            and change["to"] == plan["values"][change["column"]]
        )
        if change["change"] is not None:
            assert math.isclose(change["change"], change["to"] - change["from"], abs_tol=1e-9)
    unchanged = set(denied[0]) - {change["column"] for change in plan["changes"]}
    assert all(plan["values"][name] == denied[0][name] for name in unchanged)


def test_rules_of_a_question_are_kept(client, denied):
    rules = {
        "lock": ["job", "sex"],
        "domain": {"income": [None, 60], "owner": [True]},
        "max_changes": 1,
        "difficulty": {"debt": 3},
    }
    for answer in ask(client, "explain", rows=denied[:4], **rules)["answers"]:
        for plan in answer["plans"]:
            moved = {change["column"] for change in plan["changes"]}
            assert len(moved) <= 1 and not moved & {"job", "age", "sex"}
            assert plan["values"]["income"] <= 60 or "income" not in moved


def test_what_binds_is_told_where_nothing_helps(client, denied):
    everything = ["income", "debt", "job", "owner"]
    plan = ask(client, "explain", rows=denied[:1], lock=everything)["answers"][0]["plans"][0]
    assert plan["status"] == "infeasible" and not plan["answered"]
    assert {entry["column"] for entry in plan["binding"]} & set(everything)
    assert "none of the columns may change" in plan["sentence"]


def test_where_nothing_is_found_the_rules_of_the_question_are_named(client, denied):
    held = {
        "lock": ["income", "job", "owner"],
        "domain": {"debt": [0, 200]},
        "max_change": {"debt": 0.2},
    }
    plans = [
        answer["plans"][0]
        for answer in ask(client, "explain", rows=denied[:3], **held)["answers"]
    ]
    missed = [plan for plan in plans if not plan["answered"]]
    assert missed and all(plan["binding"] for plan in missed)


def test_the_model_to_compare_with_answers_too(client, denied, rival):
    found = ask(client, "explain", rows=denied[:3], model="against")
    told = rival.explain(pd.DataFrame(denied[:3]), "granted")
    assert found["model"] == "b" * 64
    assert [a["plans"][0]["values"] for a in found["answers"]] == told.frame.astype(
        object
    ).to_dict("records")


def test_a_search_that_takes_too_long_is_answered_with_what_was_found(served, denied):
    app = app_of(served, limits=Limits(seconds=1e-3))
    with TestClient(app, base_url=BASE) as hurried:
        found = ask(hurried, "explain", rows=denied[:20], options=10)
    assert not found["complete"] and len(found["answers"]) == 20
    for answer in found["answers"]:
        assert answer["plans"] and answer["decision"] == "denied"


# ---- map -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "columns", [["income", "debt"], ["job", "age"], ["owner", "job"], None]
)
def test_a_map_shows_what_the_model_decides(client, served, denied, columns):
    plan = {**denied[0], "income": 70.0, "job": "pilot"}
    found = ask(client, "map", row=denied[0], columns=columns, plans=[plan], size=12)
    grid = found["grid"]
    assert (
        np.array(grid["decision"]).shape
        == (len(grid["y"]), len(grid["x"]))
        == np.array(grid["confidence"]).shape
    )
    assert len(found["people"]) == 200 and found["person"]["decision"] == 0
    assert [found["person"]["x"], found["person"]["y"]] == pytest.approx(found["paths"][0][0])
    for axis, name in zip(found["axes"], columns or (), strict=False):
        assert axis["column"] == name and axis["min"] < axis["max"] and axis["ticks"]
    if columns == ["income", "debt"]:
        # The cell nearest to a place decides as the classifier does there.
        cell = {**denied[0], "income": grid["x"][3], "debt": grid["y"][5]}
        decided = served.model.classifier.predict(pd.DataFrame([cell]))[0]
        assert served.model.classes[grid["decision"][5][3]] == decided


def test_maps_need_two_columns_or_rows(client, bare, denied):
    assert (
        client.post(
            "/api/v1/map", json={"row": denied[0], "columns": ["age", "age"]}
        ).status_code
        == 400
    )
    response = client.post(
        "/api/v1/map", json={"row": denied[0], "plans": [{}], "columns": ["age", "debt"]}
    )
    assert response.json()["error"]["field"] == "plans[0].age"
    response = bare.post("/api/v1/map", json={"row": denied[0]})
    assert response.status_code == 404 and "--data" in response.json()["error"]["message"]
    assert ask(bare, "map", row=denied[0], columns=["income", "debt"])["people"] == []


# ---- audit and card ------------------------------------------------------------------------------


@pytest.mark.check
def test_audits_compare_groups_under_both_models(client):
    found = ask(client, "audit", groups=["sex", "sex*job"], people=20)
    assert [model["name"] for model in found["models"]] == [
        "people.safetensors",
        "rival.safetensors",
    ]
    columns = [column["column"] for column in found["columns"]]
    assert "sex" in columns and len(columns) == 3
    assert json.loads(json.dumps(found, allow_nan=False)) == found


@pytest.mark.check
def test_the_card_tells_what_the_model_is(client, bare):
    card = client.get("/api/v1/card").json()
    assert {"what", "measures", "limits"} <= {section["id"] for section in card["sections"]}
    assert client.get("/api/v1/card").json() == card
    assert bare.get("/api/v1/card").status_code == 200


# ---- refusals ------------------------------------------------------------------------------------

_BAD = [
    ({}, "rows", "missing"),
    ({"rows": None}, "rows", "list"),
    ({"rows": "x"}, "rows", "must be a list"),
    ({"rows": [{}]}, "rows[0].age", "rows[0].age is missing"),
    ({"rows": [{"aeg": 1}]}, "rows[0].aeg", "Did you mean 'age'"),
    ({"row": []}, "row", "Did you mean 'rows'"),
    ({"options": 0}, "options", "whole number from 1 to 10"),
    ({"options": 2.5}, "options", "whole number"),
    ({"options": True}, "options", "whole number"),
    ({"target": "refused"}, "target", "Valid: 'denied', 'granted'"),
    ({"confidence": 2}, "confidence", "from 1e-06 to 1"),
    ({"lock": "age"}, "lock", "must be a list"),
    ({"lock": ["aeg"]}, "lock[0]", "Did you mean 'age'"),
    ({"domain": {"job": ["wizard"]}}, "domain.job", "Valid: 'clerk'"),
    ({"domain": {"income": [1]}}, "domain.income", "two ends"),
    ({"domain": {"income": [50, 20]}}, "domain.income", "The domain of 'income' is empty"),
    ({"domain": {"job": ["w" * 300]}}, "domain.job", "…"),
    ({"difficulty": {"income": -1}}, "difficulty.income", "must be a number"),
    ({"vary": ["age"]}, "vary", "may not change"),
    ({"vary": []}, "vary", "1 to 6 entries"),
    ({"vary": ["job"], "lock": ["job"]}, "lock", "both in vary and in lock"),
    ({"model": "theirs"}, "model", "Valid: 'main', 'against'"),
    ({"relations": ["income >>> 3"]}, None, ""),
]


@pytest.mark.parametrize(("change", "field", "said"), _BAD)
def test_what_does_not_fit_is_refused_with_its_place(client, denied, change, field, said):
    body = {**({} if "row" in change or change == {} else {"rows": denied[:1]}), **change}
    response = client.post("/api/v1/explain", json=body)
    error = response.json()["error"]
    assert response.status_code == 400 and said in error["message"] and error["field"] == field


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        ({"age": "old"}, "whole number"),
        ({"age": 3.5}, "whole number"),
        ({"age": None}, "null"),
        ({"income": "NaN"}, "must be a number"),
        ({"income": [1]}, "must be a number"),
        ({"owner": 1}, "Valid: False, True"),
        ({"income": 1e280}, ""),
        ({"age": 10**400}, "must be a whole number"),
        ({"job": 3}, "Valid"),
    ],
)
def test_cells_that_cannot_be_are_refused(client, denied, cell, said):
    response = client.post(
        "/api/v1/predict", content=json.dumps({"rows": [{**denied[0], **cell}]}), headers=_JSON
    )
    assert response.status_code == 400 and said in response.json()["error"]["message"]


_JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[]", "JSON object"),
        (b"\xff", "not UTF-8"),
        (b'{"rows": NaN}', "NaN"),
        (b'{"rows": 1, "rows": 2}', "same key twice"),
        (b'{"rows":' + b"[" * 100_000, "nested"),
        (b'{"rows": ' + b"9" * 5000 + b"}", ""),
        (b'{"target": "\\ud800", "rows": []}', ""),
    ],
)
def test_bodies_that_are_no_json_objects_are_refused(client, body, said):
    response = client.post("/api/v1/explain", content=body, headers=_JSON)
    assert response.status_code == 400 and said in response.json()["error"]["message"]


def test_large_bodies_are_refused_before_they_are_read(client):
    response = client.post("/api/v1/predict", content=b" " * 1_000_001, headers=_JSON)
    assert response.status_code == 413 and response.json()["error"]["code"] == "too_large"
    parts = (b" " * 100_000 for _ in range(20))  # without a length, in parts
    assert client.post("/api/v1/predict", content=parts, headers=_JSON).status_code == 413


def test_other_paths_and_methods_are_refused_in_json(client):
    assert (
        client.get("/nowhere").status_code == 404
        and client.get("/nowhere").json()["error"]["code"] == "not_found"
    )
    assert client.get("/static/../app.py").status_code == 404


def test_other_methods_are_told_which_one_to_use(client):
    paths = client.get("/api/openapi.json").json()["paths"]
    takes = {
        path: "POST" if "post" in methods else "GET, HEAD" for path, methods in paths.items()
    }
    takes |= dict.fromkeys(
        ["/", "/metrics", "/static/page.js", "/api/openapi.json"], "GET, HEAD"
    ) | {"/api/explain": "POST"}
    for path, allowed in takes.items():
        for method in {"GET", "POST", "OPTIONS"} - set(allowed.split(", ")):
            # Whether or not it brings a body along.
            for headers in ({}, _JSON):
                response = client.request(method, path, headers=headers)
                assert (response.status_code, response.headers["allow"]) == (405, allowed), (
                    method,
                    path,
                )
                assert response.json()["error"]["code"] == "method"


def test_a_question_about_nobody_has_no_answers(client):
    answer = ask(client, "explain", rows=[], options=2)
    assert answer["answers"] == [] and answer["complete"]
