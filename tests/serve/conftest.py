"""Small models to serve, and clients that speak to the application without a network."""

from dataclasses import replace

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from browser import chromium, odd_model
from serving import BASE, app_of, make_people, running, train
from starlette.testclient import TestClient

from counterfactual_serve.guard import Access
from counterfactual_serve.served import Model, Served, ServedRows


@pytest.fixture(scope="session")
def classifier():
    return train()


@pytest.fixture(scope="session")
def rival():
    return train(seed=1, gate="none")


@pytest.fixture(scope="session")
def served(classifier, rival):
    frame, y = make_people(200, seed=1)
    model = Model(
        classifier, "people.safetensors", "a" * 64, "granted", (("training", "conventional"),)
    )
    against = Model(rival, "rival.safetensors", "b" * 64, "granted")
    return Served(model, against, ServedRows("people.csv", frame, y, None, 250))


@pytest.fixture(scope="session")
def client(served):
    """The application with rows and a second model."""
    with TestClient(app_of(served), base_url=BASE, raise_server_exceptions=False) as client:
        yield client


@pytest.fixture(scope="session")
def bare(classifier):
    """The application with one model and nothing else."""
    served = Served(Model(classifier, "people.safetensors", "a" * 64))
    with TestClient(app_of(served), base_url=BASE, raise_server_exceptions=False) as client:
        yield client


@pytest.fixture(scope="session")
def denied(served):
    """Rows of people who are denied, as the API takes them."""
    frame = served.people[served.decided[0] == 0]
    return [
        {str(k): v for k, v in row.items()}
        for row in frame.astype(object).head(30).to_dict("records")
    ]


# ---- a browser -----------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def browser():
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="session")
def server(served, browser):
    """A server with rows and two models."""
    everybody = replace(served.rows, total=len(served.rows.frame))
    with running(lambda: app_of(replace(served, rows=everybody))) as server:
        yield server


@pytest.fixture(scope="session")
def bare_server(classifier, browser):
    """A server without rows and without another model."""
    model = Model(classifier, "people.safetensors", "a" * 64)
    with running(lambda: app_of(Served(model))) as server:
        yield server


@pytest.fixture(scope="session")
def odd(browser):
    """A server that asks for a token, of a model with odd names."""
    served = odd_model()
    token = "a-token-for-tests-0123456789"  # noqa: S105
    with running(lambda: app_of(served, access=Access(token=token)), token) as server:
        yield server
