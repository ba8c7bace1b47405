"""What ``import counterfactual_training as ct`` offers, and what it does not load."""

import ast
import inspect
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import counterfactual_training as ct

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").glob("*.py")),
]
PACKAGES = {path.parent.name for path in Path(ct.__file__).parent.glob("*/__init__.py")}


def names_used(text: str) -> set[str]:
    """What a page takes from the package: ``ct.search`` and ``from counterfactual_training import
    search``.
    """
    imported = re.findall(
        r"from counterfactual_training import (?:\(([^)]*)\)|([\w, ]+))", text
    )
    names = {name for pair in imported for part in pair for name in re.findall(r"\w+", part)}
    return names | set(re.findall(r"(?<![\w./])ct\.([A-Za-z]\w*)", text))


def test_pages_use_many_names():
    """Otherwise the next test checks nothing."""
    assert len({name for page in PAGES for name in names_used(page.read_text())}) > 20


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_name_a_page_uses_is_public(page):
    assert names_used(page.read_text()) <= {*ct.__all__, *PACKAGES, "__version__"}


def test_all_is_sorted():
    """Constants, classes, functions, each in the order of the alphabet, as ruff sorts them; no name
    twice.
    """
    assert len(set(ct.__all__)) == len(ct.__all__)
    kinds = [0 if name.isupper() else 1 if name[0].isupper() else 2 for name in ct.__all__]
    assert list(zip(kinds, ct.__all__, strict=True)) == sorted(
        zip(kinds, ct.__all__, strict=True)
    )


@pytest.mark.parametrize("name", [name for name in ct.__all__ if name != "__version__"])
def test_every_public_name_is_there_and_documented(name):
    value = getattr(ct, name)
    if inspect.isclass(value):  # a dataclass without a docstring gets its signature as one
        assert value.__doc__ and not value.__doc__.startswith(f"{name}(")
    elif inspect.isroutine(value):
        assert inspect.getdoc(value)


def test_a_star_import_brings_what_is_promised():
    scope: dict[str, object] = {}
    exec("from counterfactual_training import *", scope)  # noqa: S102
    assert set(ct.__all__) <= scope.keys()


def test_the_version_is_the_installed_one():
    assert ct.__version__ == version("counterfactual-training")
    assert re.fullmatch(r"\d+\.\d+\.\d+", ct.__version__)


def test_results_never_promise_none():
    result = ct.SearchResult
    for name in ("x_cf", "x_adv", "converged", "num_steps", "status", "confidence", "binding"):
        assert "None" not in str(result.__annotations__[name])


_FIRST_IMPORT = """
import sys, torch
def host():
    return torch.get_num_threads(), torch.get_rng_state().tolist(), torch.get_default_dtype()
torch.set_num_threads(2)
before = host()
import counterfactual_training as ct
heavy = ["optuna", "matplotlib", "ray", "flask", "fastapi", "jinja2", "torchvision", "IPython"]
heavy.append("torch._dynamo")
print([m for m in heavy if m in sys.modules], host() == before)
from counterfactual_training.generators import line
import counterfactual_training.generators.penalties
from counterfactual_training import search
print(callable(ct.search), search is ct.search, ct.line is line, "search" in dir(ct))
x = torch.randn(20, 2)
y = (x[:, 0] > 0).long()
ct.train(ct.mlp(2, 2, (4,)), x, y, "ct_published(epochs=1)", progress=False)
print("torch._dynamo" in sys.modules)
import tempfile
classifier = ct.CounterfactualClassifier(epochs=1, progress=False).fit(x.numpy(), y.numpy())
with tempfile.NamedTemporaryFile() as file:
    classifier.save(file.name)
    print(ct.CounterfactualClassifier.load(file.name).gate_ is not None, "sympy" in sys.modules)
"""


def told_by(code: str) -> subprocess.CompletedProcess[str]:
    """What a process of its own says."""
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300
    )


@pytest.fixture(scope="module")
def first_import() -> list[str]:
    return told_by(_FIRST_IMPORT).stdout.splitlines()


def test_importing_is_light_and_changes_nothing_of_the_host(first_import):
    assert first_import[0] == "[] True"


def test_a_function_keeps_its_name_when_the_folder_of_the_same_name_is_imported(first_import):
    assert first_import[1].split() == ["True"] * 4


def test_training_does_not_load_torchs_compiler(first_import):
    assert first_import[2] == "False"


def test_loading_a_model_with_its_gate_does_not_load_sympy(first_import):
    assert first_import[3] == "True False"


def test_the_package_alone_and_the_help_of_the_command_load_nothing_heavy():
    code = """
import sys
import counterfactual_training
from counterfactual_training.cli import main
try:
    main(["--help"])
except SystemExit:
    pass
heavy = ("torch", "sklearn", "pandas", "numpy", "scipy")
print([m for m in heavy if m in sys.modules], file=sys.stderr)
"""
    done = told_by(code)
    assert done.stderr.strip() == "[]" and "evaluate" in done.stdout


def test_type_checkers_and_users_see_the_same_names():
    tree = ast.parse(Path(ct.__file__).read_text())
    block = next(
        node
        for node in tree.body
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
    )
    stated = {
        alias.name: str(node.module).removeprefix("counterfactual_training.")
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert stated == ct._HOME and set(stated) == set(ct.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'serch'"):
        ct.serch  # noqa: B018
