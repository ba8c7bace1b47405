"""Cells so small that a test can afford them."""

import pytest

from counterfactual_training.experiments.cells import Effort


@pytest.fixture
def tiny() -> Effort:
    return Effort("tiny", 2, 3, 20, 40, 3, 2)
