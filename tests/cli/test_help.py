"""``ct COMMAND --help`` and mistakes that the parser sees answer at once: they load none of the
heavy packages.
"""

import json
import subprocess
import sys

from counterfactual_lab.tuning import OBJECTIVES
from counterfactual_training import defaults
from counterfactual_training.cli.commands import COMMANDS
from counterfactual_training.evaluation.protocol import PAIRED, PROTOCOLS, PUBLISHED
from counterfactual_training.generators import GENERATORS

HEAVY = {"torch", "pandas", "numpy", "sklearn", "scipy", "optuna", "matplotlib", "ray"}
ACTIONS = [["data", action] for action in ("list", "info", "fetch")]
ACTIONS += [["grid", action] for action in ("run", "status", "report", "list")]
MISTAKES = (
    ["train", "moons", "--epoch-count", "3"],
    ["train", "moons", "--gate", "ajar"],
    ["tune", "moons", "--method", "ct_published", "--trials", "0"],
    ["reproduce", "everything"],
    ["grid", "run"],
)
# Runs commands and prints, as JSON, their exit codes, what they print and what is loaded after
# them.
SCRIPT = """
import contextlib, io, json, sys
from counterfactual_training.cli import main
results = []
for words in json.loads(sys.argv[1]):
    code = None
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.redirect_stderr(printed):
        try:
            main(words)
        except SystemExit as stop:
            code = stop.code
    loaded = sorted(name for name in sys.modules if "." not in name)
    results.append([code, printed.getvalue(), loaded])
print(json.dumps(results))
"""


def run_fresh(commands: list[list[str]]) -> list[tuple[int, str, set[str]]]:
    """Exit code, output and loaded packages after each of these commands, in one fresh process."""
    argv = [sys.executable, "-c", SCRIPT, json.dumps(commands)]
    run = subprocess.run(argv, check=True, capture_output=True, text=True)
    return [(code, text, set(loaded)) for code, text, loaded in json.loads(run.stdout)]


def test_help_loads_nothing_heavy():
    commands = [[], *([name] for name in COMMANDS), *ACTIONS]
    results = run_fresh([[*command, "--help"] for command in commands])
    for command, (code, text, loaded) in zip(commands, results, strict=True):
        assert f"usage: {' '.join(['ct', *command])} " in text
        assert code == 0
        assert not loaded & HEAVY, command


def test_a_mistake_that_the_parser_sees_loads_nothing_heavy():
    for words, (code, text, loaded) in zip(MISTAKES, run_fresh([*MISTAKES]), strict=True):
        assert code == 2, words
        assert "--help)" in text
        assert not loaded & HEAVY, words


def test_names_shown_are_those_of_the_rooms():
    """Some names stand in a module of their own, in the order of what they name."""
    assert {recipe.__name__: recipe for recipe in GENERATORS.values()} == GENERATORS
    assert tuple(GENERATORS) == defaults.GENERATORS
    assert {protocol.name: protocol for protocol in (PAIRED, PUBLISHED)} == PROTOCOLS
    metrics = {
        "ip": "implausibility",
        "cost": "cost",
        "accuracy": "accuracy",
        "robustness": "robust_accuracy",
    }
    assert {name: target.metric for name, target in OBJECTIVES.items()} == metrics
