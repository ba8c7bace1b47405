"""The examples run as they stand, offline, in a few seconds, and say what they should."""

import os
import re
import runpy
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from counterfactual_training.generators import GENERATORS

pytestmark = pytest.mark.check

EXAMPLES = Path(__file__).parent.parent / "examples"

SAID = {
    "adult.py": r"Skipped: adult\.data is neither here nor reachable",
    "any_model.py": r"Row \d+, option 2: with .* the decision would be 'granted'[\s\S]*"
    r"granted: True",
    "dataframe.py": r"Row \d+: with debt [\d.]+ lower .* the decision would be 'loan granted'",
    "digits.py": r"conventional: accuracy 0\.[6-9][\s\S]*CT: accuracy 0\.[4-9]\d+\n"
    r"  free: \d+% arrive",
    "distributed.py": r"1 process\(es\): loss 0\.\d+, accuracy 0\.9\d+, "
    r"\d+% of the counterfactuals mature",
    "mlflow_model.py": r"same probabilities after loading: True|Skipped: mlflow is not installed",
    "onnx_service.py": r"ct export people\.safetensors",
    "own_generator.py": r"prototype: \d+% arrive",
    "own_loop_cnn.py": r"after: accuracy 0\.[89]\d, \d+% of the last counterfactuals mature",
    "own_module.py": r"first feature untouched: True",
    "text.py": r"accuracy (1\.0|0\.9)[\s\S]*grain → \w+ \(converged\)[\s\S]*less: "
    r".*(silo|crop|grain|farmers)",
    "rules.py": r"Row \d+: with degree '(Bachelor|Master)' instead of .* "
    r"the decision would be 'granted'",
}

# Of those that take any: what makes them quick.
ARGUMENTS = {
    "digits.py": [
        "--rows",
        "500",
        "--epochs",
        "4",
        "--factuals",
        "4",
        "--steps",
        "10",
        "--patience",
        "60",
    ]
}


def test_every_example_is_tested():
    assert {path.name for path in EXAMPLES.glob("*.py")} == SAID.keys()


@pytest.fixture
def offline(monkeypatch, tmp_path):
    """No data at hand, no way to the network, an empty folder to work in; afterwards nothing is
    left registered.
    """
    monkeypatch.delenv("CT_DATA_HOME", raising=False)
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("CT_CACHE", str(tmp_path.parent / "no-cache"))
    monkeypatch.chdir(tmp_path)
    environment, generators = dict(os.environ), dict(GENERATORS)
    yield
    GENERATORS.clear()
    GENERATORS.update(generators)
    os.environ.clear()
    os.environ.update(environment)


@pytest.mark.parametrize("name", SAID)
def test_example_runs(name, tmp_path, offline, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", [name, *ARGUMENTS.get(name, ())])
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)
        try:
            runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        except SystemExit as end:
            assert not end.code
    out = capsys.readouterr().out
    assert re.search(SAID[name], out), out
    assert not list(tmp_path.iterdir()), "an example leaves files behind"


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_digits_say_which_file_is_missing(name, offline, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["digits.py", name])
    with pytest.raises(SystemExit, match="train-images-idx3-ubyte could not be obtained"):
        runpy.run_path(str(EXAMPLES / "digits.py"), run_name="__main__")


def test_a_file_of_orange_is_read(tmp_path, offline, capsys, monkeypatch):
    sample = runpy.run_path(str(EXAMPLES / "text.py"))
    header = "Category\tText\nd\tstring\nclass\t\n"
    paths = [tmp_path / "train.tab", tmp_path / "test.tab"]
    for seed, path in enumerate(paths):
        texts, labels = sample["made_up"](60, seed)
        path.write_text(
            header
            + "".join(f"{label}\t{text} \n" for text, label in zip(texts, labels, strict=True))
        )
    assert sample["read"](paths[0])[1] == sample["made_up"](60, 0)[1]
    monkeypatch.setattr(
        sys, "argv", ["text.py", *map(str, paths), "--components", "10", "--epochs", "2"]
    )
    sample["main"]()
    assert "60 documents, " in capsys.readouterr().out


@pytest.mark.skipif(
    not os.environ.get("CT_DATA_HOME"),
    reason="CT_DATA_HOME is not set: no real data files at hand",
)
def test_people_of_adult():
    done = subprocess.run(
        [sys.executable, EXAMPLES / "adult.py"],
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert (
        len(re.findall(r"^Row \d: with .* would be '>50K'", done.stdout, re.MULTILINE)) == 5
    ), done.stdout
    assert not re.search(r"education_num|'Never-worked'|'Without-pay'", done.stdout)


def test_an_own_loop_takes_fifteen_lines():
    text = (EXAMPLES / "own_loop_cnn.py").read_text()
    loop = text[text.index("for _ in range") : text.index('print(\n    f"after')]
    assert len(loop.splitlines()) <= 15


def test_an_own_generator_takes_ten_lines():
    text = (EXAMPLES / "own_generator.py").read_text()
    body = text[text.index("def prototype") : text.index("# From here on")]
    assert len([line for line in body.splitlines() if line.strip()]) <= 10
