"""Plans that last, over HTTP: who is asked, what is told, and what is refused."""

import copy

import pandas as pd
import pytest
from serving import BASE, app_of, ask, make_people
from starlette.testclient import TestClient

from counterfactual_serve.served import Model, Served
from counterfactual_training import defaults


@pytest.fixture(scope="module")
def asked(classifier):
    """A model with witnesses, and the application that serves it."""
    own = copy.deepcopy(classifier)
    own.add_witnesses(*make_people(), 4)
    served = Served(Model(own, "people.safetensors", "a" * 64, "granted"))
    with TestClient(app_of(served), base_url=BASE, raise_server_exceptions=False) as client:
        yield own, client


def test_every_plan_says_how_it_lasts_beside_what_is_just_enough(asked, denied):
    own, client = asked
    answers = ask(client, "explain", rows=denied[:4], options=2, lasting=0.8)["answers"]
    plain = ask(client, "explain", rows=denied[:4], lasting=0)["answers"]
    frame = own.explain(make_frame(own, denied[:4]), "granted", n_options=2, lasting=0.8)
    told = iter(zip(frame.lasting.holds, frame.lasting.probability, strict=True))
    for answer, before in zip(answers, plain, strict=True):
        for plan in answer["plans"]:
            lasting = plan["lasting"]
            holds, probability = next(told)
            assert lasting["holds"] == holds and lasting["witnesses"] == 2
            assert lasting["probability"] == pytest.approx(probability, abs=1e-3)
            assert f"It holds in {holds} of 2 refits" in plan["sentence"]
            enough = lasting["just_enough"]
            assert enough["values"] == before["plans"][0]["values"]
            assert enough["cost"] == before["plans"][0]["cost"]
            reported = before["plans"][0]["lasting"]
            assert reported["holds"] == enough["holds"] and "just_enough" not in reported


def test_a_question_that_says_nothing_asks_witnesses(asked, bare, denied):
    _, client = asked
    told, stated = (
        ask(client, "explain", rows=denied[:2], **share)["answers"]
        for share in ({}, {"lasting": defaults.LASTING})
    )
    assert told == stated and "just_enough" in told[0]["plans"][0]["lasting"]
    plain = ask(bare, "explain", rows=denied[:2])["answers"]
    assert plain == ask(bare, "explain", rows=denied[:2], lasting=0)["answers"]
    assert all("lasting" not in plan for answer in plain for plan in answer["plans"])


def make_frame(classifier, rows):
    return pd.DataFrame(rows)[list(classifier.schema_.names)]


def test_the_model_says_how_many_witnesses_it_has(asked, bare):
    told = asked[1].get("/api/v1/model").json()["model"]
    assert told["witnesses"] == 4 and told["lasting"] == defaults.LASTING
    assert "witnesses" not in bare.get("/api/v1/model").json()["model"]


def test_without_witnesses_it_is_refused(bare, denied):
    response = bare.post("/api/v1/explain", json={"rows": denied[:1], "lasting": 0.9})
    error = response.json()["error"]
    assert response.status_code == 400
    assert error["code"] == "no_witnesses" and error["field"] == "lasting"
    assert "ct train --witnesses 10" in error["message"]


@pytest.mark.parametrize("share", [-0.1, 1, 1.5, "all", True])
def test_a_share_is_less_than_all(asked, denied, share):
    response = asked[1].post("/api/v1/explain", json={"rows": denied[:1], "lasting": share})
    assert response.status_code == 400 and response.json()["error"]["field"] == "lasting"
