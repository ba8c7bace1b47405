"""Small models to serve, and clients that speak to the application without a network."""

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from serving import BASE, make_people, train
from starlette.testclient import TestClient

from counterfactual_training.serve.app import make_app
from counterfactual_training.serve.served import Model, Rows, Served


@pytest.fixture(scope="session")
def classifier():
    return train()


@pytest.fixture(scope="session")
def rival():
    return train(seed=1, gate="none")


@pytest.fixture(scope="session")
def served(classifier, rival):
    frame, y = make_people(200, seed=1)
    model = Model(classifier, "people.safetensors", "a" * 64, "granted", (("training", "conventional"),))
    against = Model(rival, "rival.safetensors", "b" * 64, "granted")
    return Served(model, against, Rows("people.csv", frame, y, None, 250))


@pytest.fixture(scope="session")
def client(served):
    """The application with rows and a second model."""
    with TestClient(make_app(served, workers=1), base_url=BASE, raise_server_exceptions=False) as client:
        yield client


@pytest.fixture(scope="session")
def bare(classifier):
    """The application with one model and nothing else."""
    served = Served(Model(classifier, "people.safetensors", "a" * 64))
    with TestClient(make_app(served, workers=1), base_url=BASE, raise_server_exceptions=False) as client:
        yield client


@pytest.fixture(scope="session")
def denied(served):
    """Rows of people who are denied, as the API takes them."""
    frame = served.people[served.decided[0] == 0]
    return [{str(k): v for k, v in row.items()} for row in frame.astype(object).head(30).to_dict("records")]
