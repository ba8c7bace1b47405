"""The other two houses, found by name: this library imports neither of them.

``counterfactual_lab`` compares methods and tunes them, ``counterfactual_serve`` is the page and its
API. Both import the library. Where a command or a method of the library hands over to one of them,
it does so here, when it runs.
"""

from __future__ import annotations

import importlib
from types import ModuleType

from counterfactual_training.errors import need_extra

# What installs the packages that each house needs.
EXTRAS = {"counterfactual_lab": "lab", "counterfactual_serve": "serve"}


def find(module: str) -> ModuleType:
    """A module of any house.

    Raises:
        MissingExtraError: the house is not installed, or a package that it needs.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        extra = EXTRAS.get(module.partition(".")[0])
        if extra is not None:
            need_extra(str(error.name).partition(".")[0], extra)
        # The package is there, or no extra brings it: the name of the module is wrong.
        raise
