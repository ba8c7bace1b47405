"""The examples run as they stand, offline, in a few seconds, and say what they should."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"

SAID = {
    "adult.py": r"Skipped: adult\.data is neither here nor reachable",
    "dataframe.py": r"Row \d+: with debt [\d.]+ lower .* the decision would be 'loan granted'",
    "distributed.py": r"1 process\(es\): loss 0\.\d+, accuracy 0\.9\d+, \d+% of the counterfactuals mature",
    "own_generator.py": r"prototype: \d+% arrive",
    "own_loop_cnn.py": r"after: accuracy 0\.[89]\d, \d+% of the last counterfactuals mature",
    "own_module.py": r"first feature untouched: True",
    "rules.py": r"Row \d+: with degree '(Bachelor|Master)' instead of .* the decision would be 'granted'",
}


def test_every_example_is_tested():
    assert {path.name for path in EXAMPLES.glob("*.py")} == SAID.keys()


@pytest.mark.parametrize("name", SAID)
def test_example_runs(name, tmp_path):
    environment = {k: v for k, v in os.environ.items() if k != "CT_DATA_HOME"}
    environment |= {"OMP_NUM_THREADS": "1", "http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
    environment |= {"PIP_NO_INDEX": "1", "CT_CACHE": str(tmp_path.parent / "no-cache")}
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning", EXAMPLES / name],
        check=False, capture_output=True, text=True, timeout=120, cwd=tmp_path, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert re.search(SAID[name], done.stdout), done.stdout
    assert not list(tmp_path.iterdir()), "an example leaves files behind"


@pytest.mark.skipif(not os.environ.get("CT_DATA_HOME"), reason="CT_DATA_HOME is not set: no real data files at hand")
def test_people_of_adult():
    done = subprocess.run(
        [sys.executable, EXAMPLES / "adult.py"],
        check=True, capture_output=True, text=True, timeout=120, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert len(re.findall(r"^Row \d: with .* would be '>50K'", done.stdout, re.MULTILINE)) == 5, done.stdout
    assert not re.search(r"education_num|'Never-worked'|'Without-pay'", done.stdout)


def test_an_own_loop_takes_fewer_than_forty_lines():
    assert len((EXAMPLES / "own_loop_cnn.py").read_text().splitlines()) < 40


def test_an_own_generator_takes_ten_lines():
    text = (EXAMPLES / "own_generator.py").read_text()
    body = text[text.index("def prototype") : text.index("# From here on")]
    assert len([line for line in body.splitlines() if line.strip()]) <= 10
