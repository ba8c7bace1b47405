"""The table of defaults in docs/reference/methods.md is what each door does."""

import inspect
import re
from pathlib import Path

import pytest

import counterfactual_training as ct
from counterfactual_training.cli import make_parser

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "methods.md"
ROW = re.compile(r"\| (`ct[ .].+) \| (`bag`|nothing: name one) \|")


def default_of(door: str) -> str:
    """The method that a name of this package, or a command, takes by default, as the page says."""
    if door.startswith("ct."):
        default = inspect.signature(getattr(ct, door[3:])).parameters["method"].default
        stated = default not in (inspect.Parameter.empty, None)
    else:
        words = [*door.split()[1:], "moons"]
        try:
            default = make_parser(words).parse_args(words).method
            stated = True
        except SystemExit:
            stated = False
    return f"`{default}`" if stated else "nothing: name one"


ROWS = [
    (door, method)
    for doors, method in ROW.findall(PAGE.read_text(encoding="utf-8").split("## Names")[0])
    for door in re.findall("`([^`]+)`", doors)
]


def test_every_door_is_in_the_table():
    assert len(ROWS) == 6


@pytest.mark.parametrize(("door", "method"), ROWS)
def test_the_default_is_as_told(door, method):
    assert default_of(door) == method
