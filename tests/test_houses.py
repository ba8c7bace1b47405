"""The library finds the other houses by name, when they are asked for, and says what is missing."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import counterfactual_training as ct
from counterfactual_training import cli
from counterfactual_training.cli.commands import COMMANDS
from counterfactual_training.errors import MissingExtraError
from counterfactual_training.houses import EXTRAS, find

SOURCE = Path(ct.__file__).parents[1]


@pytest.mark.parametrize(
    ("folder", "above"), [("tools", ("benchmarks", "lab")), ("benchmarks", ("lab",))]
)
def test_arrows_between_the_folders_beside_the_houses_point_one_way(folder, above):
    arrow = re.compile(rf"^\s*(?:from|import) (?:{'|'.join(above)})\b", re.MULTILINE)
    files = sorted((Path(__file__).parents[1] / folder).rglob("*.py"))
    assert files
    assert [path for path in files if arrow.search(path.read_text(encoding="utf-8"))] == []


def test_a_module_of_another_house_is_found():
    assert find("counterfactual_lab.paper_data").PAPER_ORDER


def test_a_house_that_is_not_there_names_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "counterfactual_lab", None)
    monkeypatch.delitem(sys.modules, "counterfactual_lab.panels", raising=False)
    with pytest.raises(MissingExtraError, match=r"counterfactual_lab is not .*training\[lab\]"):
        find("counterfactual_lab.panels")


def test_a_package_that_a_house_needs_names_its_extra(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("counterfactual_serve.page")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "starlette.requests", None)
    monkeypatch.setitem(sys.modules, "starlette", None)
    with pytest.raises(MissingExtraError, match=r"starlette is not .*training\[serve\]"):
        find("counterfactual_serve.page")


def test_a_wrong_name_is_no_missing_extra():
    with pytest.raises(ModuleNotFoundError) as caught:
        find("counterfactual_lab.no_such_module")
    assert not isinstance(caught.value, MissingExtraError)


@pytest.mark.parametrize("words", [["grid", "list"], ["grid", "--help"]])
def test_a_command_of_a_house_that_is_not_there(capsys, monkeypatch, words):
    for name in [name for name in sys.modules if name.startswith("counterfactual_lab")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "counterfactual_lab", None)
    assert cli.main(words) == 2
    assert 'pip install "counterfactual-training[lab]"' in capsys.readouterr().err


def test_tuning_says_that_it_needs_the_laboratory(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("counterfactual_lab")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "counterfactual_lab", None)
    with pytest.raises(MissingExtraError, match=r"training\[lab\]"):
        ct.CounterfactualClassifier().tune([[0.0], [1.0]], [0, 1])


def test_every_command_is_one_file_of_a_house():
    files = {command.module.replace(".", "/") + ".py" for command in COMMANDS.values()}
    assert all((SOURCE / file).is_file() for file in files)
    for house in EXTRAS:
        found = {path.stem for path in (SOURCE / house / "commands").glob("[a-z]*.py")}
        named = [name for name, command in COMMANDS.items() if command.module.startswith(house)]
        assert found == set(named)


def test_the_library_loads_no_other_house():
    """Not even when a model is trained, asked, measured and saved."""
    code = """
import sys, tempfile
import counterfactual_training as ct
people = ct.loan(200)
model = ct.CounterfactualClassifier(epochs=20, random_state=0, progress=False)
model.fit(people.frame, people.labels)
model.explain(people.frame.head(2))
ct.audit(model, people.frame.head(40), people.labels[:40], target="loan granted")
with tempfile.NamedTemporaryFile() as file:
    model.save(file.name)
print([name for name in sys.modules if name.startswith(("counterfactual_lab", "counterfactual_s"))])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
