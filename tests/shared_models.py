"""Fitted models that many tests look at: fitted once per run, whichever process asks first, and
loaded by all.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from filelock import FileLock

import counterfactual_training as ct

Fit = Callable[[], "ct.CounterfactualClassifier"]
Share = Callable[[str, Fit], "ct.CounterfactualClassifier"]


@pytest.fixture(scope="session")
def share(tmp_path_factory) -> Share:
    """``share(name, fit)``: the classifier of that name, from a file that ``fit`` fills if it is
    not there yet.
    """
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # which the processes share

    def load(name: str, fit: Fit) -> ct.CounterfactualClassifier:
        path = folder / f"{name}.safetensors"
        with FileLock(path.with_suffix(".lock")):
            if not path.exists():
                fit().save(path)
        return ct.CounterfactualClassifier.load(path)

    return load
