"""What tests of training share."""

import pytest

from counterfactual_training.training import checkpoint


@pytest.fixture
def saved_every_epoch(monkeypatch):
    """Checkpoints are written after every epoch; otherwise they take no more than a twentieth of
    the time.
    """
    monkeypatch.setattr(checkpoint, "_SPARING", 0)
