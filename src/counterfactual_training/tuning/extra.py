"""Optuna, imported when it is first needed."""

from __future__ import annotations

from types import ModuleType

from counterfactual_training.errors import need_extra


def optuna() -> ModuleType:
    return need_extra("optuna", "tune")
