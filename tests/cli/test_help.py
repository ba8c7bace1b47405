"""``ct COMMAND --help`` and mistakes that the parser sees answer at once: they load none of the heavy packages."""

import subprocess
import sys

import pytest

from counterfactual_training import defaults
from counterfactual_training.cli import COMMANDS
from counterfactual_training.evaluation.protocol import PAIRED, PROTOCOLS, PUBLISHED
from counterfactual_training.search import GENERATORS
from counterfactual_training.tuning import OBJECTIVES

HEAVY = {"torch", "pandas", "numpy", "sklearn", "scipy", "optuna", "matplotlib", "ray"}
ACTIONS = [["data", action] for action in ("list", "info", "fetch")]
ACTIONS += [["grid", action] for action in ("run", "status", "report", "list")]
# Runs one command and prints its exit code and whatever was loaded.
SCRIPT = """
import sys
from counterfactual_training.cli import main
try:
    main(sys.argv[1:])
except SystemExit as stop:
    print("exit", stop.code)
print("loaded", *sorted(name for name in sys.modules if "." not in name))
"""


def ask(*words: str) -> tuple[str, set[str]]:
    """What a command prints, and the packages that it loads, in a fresh process."""
    run = subprocess.run([sys.executable, "-c", SCRIPT, *words], check=True, capture_output=True, text=True, timeout=60)
    said, _, loaded = run.stdout.rpartition("loaded ")
    return said + run.stderr, set(loaded.split())


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS), *ACTIONS], ids=" ".join)
def test_help_loads_nothing_heavy(command):
    said, loaded = ask(*command, "--help")
    assert f"usage: {' '.join(['ct', *command])} " in said and "exit 0" in said
    assert not loaded & HEAVY


@pytest.mark.parametrize(
    "words",
    [
        ["train", "moons", "--epoch-count", "3"],
        ["train", "moons", "--generator", "none"],
        ["tune", "moons", "--trials", "0"],
        ["reproduce", "everything"],
        ["grid", "run"],
    ],
    ids=" ".join,
)
def test_a_mistake_that_the_parser_sees_loads_nothing_heavy(words):
    said, loaded = ask(*words)
    assert "exit 2" in said and "--help)" in said
    assert not loaded & HEAVY


def test_names_shown_are_those_of_the_rooms():
    """Some names stand in a module of their own, in the order of what they name."""
    assert {recipe.__name__: recipe for recipe in GENERATORS.values()} == GENERATORS
    assert tuple(GENERATORS) == defaults.GENERATORS
    assert {protocol.name: protocol for protocol in (PAIRED, PUBLISHED)} == PROTOCOLS
    metrics = {"ip": "implausibility", "cost": "cost", "accuracy": "accuracy", "robustness": "robust_accuracy"}
    assert {name: target.metric for name, target in OBJECTIVES.items()} == metrics
