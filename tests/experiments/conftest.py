"""Cells so small that a test can afford them."""

import pytest

from counterfactual_training.experiments.paper.cells import Effort


@pytest.fixture
def tiny() -> Effort:
    return Effort("tiny", 1, 3, 10, 40, 3, 2)
