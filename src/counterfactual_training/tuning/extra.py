"""The only import of Optuna, which is an optional dependency."""

from __future__ import annotations

import importlib
from types import ModuleType

from counterfactual_training.errors import MissingExtraError


def optuna() -> ModuleType:
    try:
        return importlib.import_module("optuna")
    except ImportError as error:
        raise MissingExtraError('Tuning needs Optuna: pip install "counterfactual-training[tune]".') from error
