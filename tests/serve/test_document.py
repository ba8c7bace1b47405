"""The document of the API says exactly what is accepted: whatever fits it is answered, all else is
refused.
"""

import copy
import json

import pytest
from serving import make_people

from counterfactual_serve.people import People
from counterfactual_serve.questions import Limits, make_bodies, question_of, request_frame
from counterfactual_serve.reading import parse
from counterfactual_serve.served import Model, Served
from counterfactual_training.errors import InputError
from counterfactual_training.rules import WAYS, meaning, stated_in
from counterfactual_training.tables.estimators.classifier import CounterfactualClassifier

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")

# What stands in for parts of a valid request, one at a time. No list makes rules contradict each
# other or the model's: that is no matter of form.
ODD = [
    None,
    True,
    False,
    0,
    1,
    -1,
    0.5,
    3.0,
    1e15,
    1e301,
    10**400,
    "",
    "x",
    "x" * 201,
    "x" * 1001,
    [],
    {},
    [None],
    [[]],
    {"age": 1},
    "debt",
    ["debt"],
    ["income"],
    ["income", "income"],
    ["income", "debt"],
    "clerk",
    "granted",
    "against",
]
# Texts with a grammar of their own, and domains, whose ends depend on the kind of the column.
FREE = ("relations", "domain")


@pytest.fixture(scope="module")
def bodies(served):
    """What requests are checked by."""
    return make_bodies(served, Limits())


@pytest.fixture(scope="module")
def paths(client):
    return client.get("/api/openapi.json").json()["paths"]


@pytest.fixture(scope="module")
def requests(denied):
    """A valid body with every field, by path."""
    row = denied[0]
    rules = {
        "target": "granted",
        "confidence": 0.6,
        "vary": ["job"],
        "lock": ["owner"],
        "domain": {"income": [None, 90], "job": ["clerk"]},
        "step": {"income": 0.1},
        "max_change": {"debt": 50},
        "difficulty": {"income": 2},
        "max_changes": 2,
        "relations": ["debt <= 200"],
    }
    page = {
        "offset": 0,
        "limit": 3,
        "sort": "age",
        "descending": True,
        "decision": "denied",
        "search": "x",
    }
    filters = [
        {"column": "age", "between": [20, None]},
        {"column": "job", "in": ["clerk", None, 3]},
    ]
    return {
        "predict": {"rows": [row], "model": "main"},
        "explain": {"rows": [row], **rules, "options": 1, "model": "main"},
        "rows": {**page, "filters": filters},
        "map": {
            "row": row,
            "columns": ["age", "job"],
            "plans": [row],
            "model": "main",
            "size": 2,
        },
        "audit": {
            "groups": ["sex", "sex*job"],
            "people": 10,
            "model": "main",
            "target": "granted",
        },
        "verify": {"receipt": {}},
    }


def test_rules_are_described_as_everywhere(paths, client):
    told = {name: meaning(name) for name in stated_in("question")}
    body = paths["/api/v1/explain"]["post"]["requestBody"]["content"]["application/json"][
        "schema"
    ]["properties"]
    receipt = paths["/api/v1/receipt"]["post"]["requestBody"]["content"]["application/json"][
        "schema"
    ]["properties"]
    for properties in (body, receipt["question"]["properties"]):
        assert {
            name: of["description"] for name, of in properties.items() if "description" in of
        } == told
    schema = client.get("/api/v1/schema").json()
    assert schema["rules"] == told
    assert {column["may"] for column in schema["columns"]} <= set(WAYS.values())


def changed(document):
    """The document with one part left out, doubled or replaced by something odd; and where."""
    if not isinstance(document, (dict, list)):
        return
    for name in document if isinstance(document, dict) else range(len(document)):
        without = copy.copy(document)
        del without[name]
        yield [name], without
        for odd in ODD:
            other = copy.copy(document)
            other[name] = odd
            yield [name], other
        for place, inner in changed(document[name]):
            other = copy.copy(document)
            other[name] = inner
            yield [name, *place], other
    if isinstance(document, dict):
        yield ["unknown"], {**document, "unknown": 1}
    else:
        yield [], document * 2
        yield [], document * 1001


def accepted(people: People, bodies, name: str, body) -> bool:
    """Whether the server would answer, as far as the request decides that."""
    try:
        fields = bodies[name].read(parse(json.dumps(body).encode()))
        model = people.served.named(fields.get("model") or "main")
        if name in ("predict", "explain"):
            request_frame(fields["rows"], model.classifier)
        if name == "explain":
            question_of(fields, model)
        if name == "map":
            request_frame([fields["row"], *fields["plans"]], model.classifier)
        if name == "rows":
            people.page(fields)
    except InputError:
        return False
    return True


@pytest.mark.parametrize("name", ["predict", "explain", "rows", "map", "audit", "verify"])
def test_what_fits_the_document_is_accepted_and_nothing_else(
    served, bodies, paths, requests, name
):
    content = paths[f"/api/v1/{name}"]["post"]["requestBody"]["content"]["application/json"]
    fits = jsonschema.Draft202012Validator(content["schema"]).is_valid
    people = People(served)
    assert fits(requests[name]) and accepted(people, bodies, name, requests[name])
    outcomes = set()
    for place, body in changed(requests[name]):
        # Rows are the same everywhere, so it is enough to look into those of one path.
        if name == "predict" or len(place) < 3 or place[0] not in ("rows", "row", "plans"):
            fit = fits(body)
            outcomes.add(fit)
            assert fit == accepted(people, bodies, name, body) or (fit and place[0] in FREE), (
                place,
                body,
            )
    assert outcomes == {True, False}


def test_the_server_reads_requests_by_that_document(client, requests):
    """The same objects check requests, so a few of them are enough."""
    for name in ("predict", "rows", "map"):
        assert client.post(f"/api/v1/{name}", json=requests[name]).status_code == 200
        assert (
            client.post(f"/api/v1/{name}", json={**requests[name], "unknown": 1}).status_code
            == 400
        )


def test_every_column_is_required_and_vary_names_one(paths):
    explain = paths["/api/v1/explain"]["post"]["requestBody"]["content"]["application/json"][
        "schema"
    ]
    row = explain["properties"]["rows"]["items"]
    assert (
        row["required"] == ["age", "income", "debt", "job", "owner", "sex"]
        and not row["additionalProperties"]
    )
    assert row["properties"]["age"]["type"] == "integer"
    assert row["properties"]["owner"]["anyOf"][0]["enum"] == [False, True]
    assert explain["properties"]["vary"]["anyOf"][0]["minItems"] == 1


def test_a_column_takes_what_either_model_takes():
    frame, y = make_people(80)
    settings = {
        "epochs": 1,
        "gate": "none",
        "model": "linear",
        "progress": False,
        "mutability": {},
    }
    strict = CounterfactualClassifier(unseen="error", **settings).fit(frame, y)
    lenient = CounterfactualClassifier(missing="impute", **settings).fit(
        frame.assign(age=frame["age"] + 0.5), y
    )
    models = [Model(strict, "strict", "a" * 64), Model(lenient, "lenient", "b" * 64)]
    row = make_bodies(Served(*models), Limits())["map"].kinds["row"]
    known = {name: frame[name].tolist()[0] for name in frame}
    fits = jsonschema.Draft202012Validator(row.schema()).is_valid
    for other in (
        {},
        {"age": 30.5},
        {"age": None},
        {"job": "wizard"},
        {"job": None},
        {"income": 10**9},
    ):
        assert fits({**known, **other}) and row.read({**known, **other}, "row") == {
            **known,
            **other,
        }
    assert not fits({**known, "job": 3}) and not fits({**known, "age": "x"})
    alone = make_bodies(Served(models[0]), Limits())["map"].kinds["row"].schema()["properties"]
    assert (
        alone["job"] == {"enum": ["clerk", "nurse", "pilot"]}
        and alone["age"]["type"] == "integer"
    )
