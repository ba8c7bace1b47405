"""Optional packages of the extra ``report``, or a sentence that says how to get them."""

from __future__ import annotations

import importlib
from types import ModuleType

from counterfactual_training.errors import MissingExtraError


def need(module: str) -> ModuleType:
    """Import a module of matplotlib or jinja2."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise MissingExtraError(
            f'Figures and pages need {package}: pip install "counterfactual-training[report]".'
        ) from error
