"""Which versions made a result."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

import torch

PACKAGE = "counterfactual-training"
_PACKAGES = (PACKAGE, "torch", "numpy", "pandas")


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that decide numbers."""
    out = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            out[name] = version(name)
        except PackageNotFoundError:
            out[name] = "unknown"
    out["torch"] = torch.__version__
    return out
