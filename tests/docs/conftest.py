"""Pages run as a new user would run them: no data files at hand, an empty folder; afterwards all is
as before.
"""

import os

import pytest

from counterfactual_training.generators import GENERATORS


@pytest.fixture
def undisturbed(monkeypatch):
    monkeypatch.delenv("CT_DATA_HOME", raising=False)
    environment, generators = dict(os.environ), dict(GENERATORS)
    yield
    GENERATORS.clear()
    GENERATORS.update(generators)
    os.environ.clear()
    os.environ.update(environment)
