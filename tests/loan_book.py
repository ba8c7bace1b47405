"""A small loan book, and a classifier trained on it once."""

import numpy as np
import pandas as pd
import pytest
import torch

from counterfactual_training.gates import Gate
from counterfactual_training.generators import generic
from counterfactual_training.tables.advice import Finder, Question, explain_rows
from counterfactual_training.tables.columns.encode import Encoder
from counterfactual_training.tables.estimators.classifier import CounterfactualClassifier
from counterfactual_training.tables.estimators.inputs import resolve_schema

DEGREES = ["none", "BSc", "MSc"]
SCHEMA = {
    "debt": {"unit": "thousand dollars"},
    "degree": {"kind": "ordinal", "categories": DEGREES, "mutability": "increase"},
}


def draw_loans(n: int = 240, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray]:
    """Integer, decimal, ordinal, categorical and boolean columns; debt decides, the rest helps."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": rng.integers(18, 80, n),
            "debt": np.round(rng.gamma(2.0, 10.0, n), 1),
            "degree": rng.choice(DEGREES, n),
            "branch": rng.choice(["north", "south", "west"], n),
            "owner": rng.random(n) > 0.5,
        },
        index=np.arange(n) + 100,
    )
    score = (
        1.5
        - 0.12 * frame["debt"]
        + 0.02 * (frame["age"] - 50)
        + 0.5 * frame["degree"].map(DEGREES.index)
    )
    score += 0.8 * frame["owner"] + 0.5 * (frame["branch"] == "west")
    return frame, np.where(score > 0, "granted", "denied")


def quick(method="conventional", **params):
    """A classifier that trains in well under a second."""
    small = {"epochs": 15, "learning_rate": 0.02, "random_state": 0}
    return CounterfactualClassifier(method, **{**small, **params})


@pytest.fixture(scope="session")
def loans():
    return draw_loans()


@pytest.fixture(scope="session")
def fitted(loans, share):
    rules = {"mutability": {"age": "none", "debt": "decrease"}, "domain": {"debt": (0, None)}}
    return share("loans", lambda: quick(schema=SCHEMA, **rules).fit(*loans))


@pytest.fixture(scope="session")
def rejected(loans, fitted):
    frame, _ = loans
    return frame[fitted.predict(frame) == "denied"]


@pytest.fixture(scope="session")
def make_quick():
    return quick


@pytest.fixture(scope="session")
def schema():
    return SCHEMA


@pytest.fixture
def points():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 2))
    return x, (x[:, 0] + x[:, 1] > 0).astype(int)


class ByHand(torch.nn.Module):
    """Logits (0, bias + weights · z) on standardised columns."""

    def __init__(self, weights, bias=0.0):
        super().__init__()
        self.weights = torch.nn.Parameter(torch.tensor(weights))
        self.bias = bias

    def forward(self, x):
        margin = self.bias + x @ self.weights
        return torch.stack([torch.zeros_like(margin), margin], -1)


class Plausible(Gate):
    """A gate whose plausibility of every class is a function of x."""

    def __init__(self, of):
        super().__init__()
        self.of = of

    def forward(self, x):
        found = torch.as_tensor(self.of(x)).to(x).expand(x.shape[:-1])
        return found.clamp(1e-6, 1 - 1e-6).log().unsqueeze(-1).expand(*found.shape, 2)


@pytest.fixture(scope="session")
def make_finder():
    """A finder of a linear model with given weights, and of the columns of a frame."""

    def make(
        frame,
        weights,
        bias=0.0,
        schema=None,
        mutability=None,
        domain=None,
        unseen="error",
        num_std=0.0,
        relations=None,
    ):
        stated = resolve_schema(frame, schema, mutability, domain, relations=relations)
        encoder = Encoder(stated, unseen=unseen).fit(frame)
        return Finder(
            ByHand(weights, bias),
            encoder,
            encoder.constraints(num_std=num_std, keep_outside=True),
        )

    return make


@pytest.fixture(scope="session")
def by_hand(make_finder):
    """A frame of age, debt and four branches (in the order east, north, south, west), and a finder
    for it.
    """

    def make(weights, bias=0.0, **rules):
        frame = pd.DataFrame(
            {
                "age": np.linspace(20, 60, 41).astype(int),
                "debt": np.linspace(0, 40, 41) + 0.1,
                "branch": ["north", "south", "west", "east"] * 10 + ["north"],
            }
        )
        return frame, make_finder(frame, weights, bias, **rules)

    return make


@pytest.fixture(scope="session")
def sentence():
    """Explain rows with a finder."""

    def explain(finder, row, target="granted", generator=None, **options):
        question = Question(generator or generic(max_steps=200), **options)
        return explain_rows(finder, row, np.array(["denied", "granted"]), target, question)

    return explain
