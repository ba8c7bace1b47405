"""Experiments so small that a test can afford them."""

from typing import Any

import pytest


@pytest.fixture
def tiny() -> dict[str, Any]:
    """Changes of the paper's grid files."""
    return {
        "training.epochs": 1,
        "evaluation.num_runs": 3,
        "evaluation.num_individuals": 10,
        "evaluation.paired": 40,
        "evaluation.epsilons": [0.0, 0.05, 0.1],
        "evaluation.attribution_rounds": 2,
    }
