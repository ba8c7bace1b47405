"""What ``import counterfactual_training as ct`` offers, and what it does not load."""

import inspect
import re
import subprocess
import sys
from importlib.metadata import version

import pytest

import counterfactual_training as ct

GATES = ["Gated", "Gate", "GateConfig", "fit_gate", "search_gated"]
LOW_LEVEL = [
    "search",
    "SearchResult",
    "Objective",
    "CounterfactualBatch",
    "train",
    "TrainConfig",
    "Constraints",
    "Generator",
]
METHODS = [
    "generic",
    "ecco",
    "revise",
    "line",
    "fit_vae",
    "linear",
    "mlp",
    "cnn",
    "make_generator",
    "register_generator",
]


@pytest.mark.parametrize(
    "name", [*LOW_LEVEL, *METHODS, *GATES, "CounterfactualClassifier", "preset", "make_objective", "Status"]
)
def test_promised_names_are_there(name):
    assert name in ct.__all__ and hasattr(ct, name)


def test_all_is_sorted_true_and_documented():
    assert len(set(ct.__all__)) == len(ct.__all__)
    for name in ct.__all__:
        value = getattr(ct, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert inspect.getdoc(value), f"{name} has no docstring"


def test_the_version_is_the_installed_one():
    assert ct.__version__ == version("counterfactual-training")
    assert re.fullmatch(r"\d+\.\d+\.\d+", ct.__version__)


def test_results_never_promise_none():
    result = ct.SearchResult
    for name in ("x_cf", "x_adv", "converged", "num_steps", "status", "confidence", "binding"):
        assert "None" not in str(result.__annotations__[name])


def test_importing_is_light_and_changes_nothing_of_the_host():
    heavy = ["optuna", "matplotlib", "ray", "flask", "fastapi", "jinja2", "torchvision", "torch._dynamo", "IPython"]
    code = f"""
import sys, torch
def host():
    return torch.get_num_threads(), torch.get_rng_state().tolist(), torch.get_default_dtype()
torch.set_num_threads(2)
before = host()
import counterfactual_training
print([m for m in {heavy!r} if m in sys.modules], host() == before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "[] True"
