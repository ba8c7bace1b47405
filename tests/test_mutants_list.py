"""The list of wrong versions fits the code: what it replaces is there, once."""

import subprocess
import sys
from dataclasses import replace

import pytest

from tools.mutants import Mutant, changes_nothing, chosen, problems, read_list

ROWS = "core/broadcast.py"


def entry(**changes) -> Mutant:
    plain = Mutant(
        "one",
        ROWS,
        "from torch import Tensor",
        "from torch import nn",
        "wrong",
        ("tests/core",),
    )
    return replace(plain, **changes)


def test_the_list_is_up_to_date():
    assert problems(read_list()) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"old": "no such line"},
            "one: its old text occurs 0 times in core/broadcast.py, not once: 'no such line'",
        ),
        ({"old": "e"}, "times in core/broadcast.py, not once"),
        ({"file": "core/nothing.py"}, "one: there is no file core/nothing.py"),
        ({"new": "from  torch import Tensor"}, "one: its new text is the old one"),
        ({"tests": ()}, "one: it names no tests"),
        (
            {"tests": ("tests/core/test_nothing.py::test_it",)},
            "one: there is no tests/core/test_nothing.py",
        ),
    ],
)
def test_an_entry_that_does_not_fit_is_named(changes, message):
    assert problems([entry()]) == []
    (found,) = problems([entry(**changes)])
    assert message in found


def test_names_are_not_given_twice():
    assert problems([entry(), entry()]) == ["one: two entries have this name"]


def test_a_comment_is_no_change():
    assert changes_nothing(entry(new="from torch import Tensor  # of torch"))
    assert not changes_nothing(entry())


def test_a_part_is_chosen_by_names_and_folders():
    listed = [entry(), entry(name="two"), entry(name="three", file="gates/density.py")]
    assert [mutant.name for mutant in chosen(listed, ["two", "gates"])] == ["two", "three"]
    assert chosen(listed, []) == listed
    with pytest.raises(SystemExit, match="called four"):
        chosen(listed, ["four"])


@pytest.mark.check
def test_a_wrong_version_is_noticed():
    """In a process of its own: forks of this one would have the package already."""
    command = [sys.executable, "-m", "tools.mutants", "line-no-margin", "--jobs", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 of   1, 100 %" in done.stdout
