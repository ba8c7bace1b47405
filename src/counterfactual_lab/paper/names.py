"""The paper's experiments by name, with their titles; loads nothing heavy, because `ct reproduce
--help` lists them.
"""

from __future__ import annotations

import tomllib
from importlib.resources import files

ALL = "all"
FIGURE1 = "figure1"
MNIST_FIGURES = "mnist-figures"
_NAMES = (
    "main",
    "mutability",
    "ablation",
    "robustness",
    "attribution",
    "synthetic",
    FIGURE1,
    MNIST_FIGURES,
)
_FILES = files("counterfactual_lab.paper") / "files"


def _title(name: str) -> str:
    if name == FIGURE1:  # the only one that is no grid, and so has no file
        return "Figure 1: counterfactuals of linear classifiers"
    return str(tomllib.loads((_FILES / f"{name}.toml").read_text(encoding="utf-8"))["title"])


# Titles by name.
EXPERIMENTS = {name: _title(name) for name in _NAMES}
