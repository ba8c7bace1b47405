"""The loan book, and people whose numbers are known."""

from types import SimpleNamespace

import numpy as np
import pytest

from counterfactual_training.tables.audits import Subject
from counterfactual_training.tables.audits.people import ModelAdvice
from loan_book import fitted, loans, make_quick, schema

__all__ = ["fitted", "loans", "make_quick", "schema"]


def make_told(
    denied, deserving, cost, stuck=None, unlikely=None, weight=None, columns=4, name="a model"
) -> ModelAdvice:
    """Decisions and advice as they are stated; everybody denied is explained."""
    denied, deserving = np.array(denied, dtype=bool), np.array(deserving, dtype=bool)
    stuck = np.zeros(len(denied), dtype=bool) if stuck is None else np.array(stuck, dtype=bool)
    unlikely = (
        np.zeros(len(denied), dtype=bool)
        if unlikely is None
        else np.array(unlikely, dtype=bool)
    )
    weight = denied.astype(float) if weight is None else np.array(weight, dtype=float)
    helped = (weight > 0) & ~stuck
    names = SimpleNamespace(names=tuple(f"x{j}" for j in range(columns)))
    subject = Subject(SimpleNamespace(schema_=names, classes_=np.array(["no", "yes"])), name)
    decision, chosen = np.where(denied, "no", "yes"), np.flatnonzero(weight)
    paid = np.where(helped, np.array(cost, dtype=float), 0.0)
    return ModelAdvice(
        subject,
        decision,
        denied,
        deserving,
        weight,
        chosen,
        None,
        paid,
        helped,
        stuck,
        unlikely,
    )


@pytest.fixture(scope="session")
def told():
    return make_told


@pytest.fixture(scope="session")
def book(loans, make_quick, schema, share):
    """A gated classifier, a conventional one, the rows they were trained on, and rows with a column
    more.
    """
    frame, y = loans
    rng = np.random.default_rng(1)
    rules = {
        "mutability": {"age": "none", "owner": "none", "debt": "decrease"},
        "domain": {"debt": (0, None)},
    }
    trained, rest = (frame.iloc[:160], y[:160]), frame.iloc[160:]
    gated = share("audited", lambda: make_quick(schema=schema, **rules).fit(*trained))
    plain = share(
        "audited-plain", lambda: make_quick(schema=schema, gate="none", **rules).fit(*trained)
    )
    people = rest.assign(sex=np.where(rng.random(len(rest)) < 0.5, "f", "m"))
    return SimpleNamespace(
        gated=gated, plain=plain, trained=trained, people=people, labels=y[160:]
    )
