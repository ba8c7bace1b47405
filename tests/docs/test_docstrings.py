"""Every public name has an example in its docstring, and the examples of all docstrings of public
names run.
"""

import doctest
import inspect

import matplotlib as mpl
import pytest

import counterfactual_training as ct
from tools.names import PAGE_OF, docstring, undocumented

pytestmark = pytest.mark.check

FINDER = doctest.DocTestFinder(exclude_empty=True)


def examples_of(name: str) -> list[doctest.DocTest]:
    value = getattr(ct, name)
    if inspect.isclass(value) or inspect.isroutine(value):
        return FINDER.find(value, name, globs={})
    return [doctest.DocTestParser().get_doctest(docstring(name), {}, name, None, None)]


def test_every_public_name_has_a_place_in_the_reference():
    assert PAGE_OF.keys() == set(ct.__all__) and not undocumented()


def test_a_name_without_a_docstring_or_a_place_is_told(monkeypatch):
    monkeypatch.setattr(ct, "__all__", [*ct.__all__, "newcomer"])
    monkeypatch.setattr(ct.line, "__doc__", None)
    assert undocumented() == ["line", "newcomer"]


@pytest.mark.parametrize("name", ct.__all__)
@pytest.mark.filterwarnings("ignore")
def test_examples_run(name, undisturbed, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    mpl.use("Agg")
    found = examples_of(name)
    own = next((test for test in found if test.name == name), None)
    assert own and own.examples, f"{name} has no example in its docstring"
    for test in found:
        report: list[str] = []
        runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
        runner.run(test, out=report.append, clear_globs=True)
        assert not runner.summarize(verbose=False).failed, "".join(report)


@pytest.mark.parametrize(
    "name", [name for name in ct.__all__ if inspect.isclass(getattr(ct, name))]
)
def test_every_public_member_is_documented(name):
    owner = getattr(ct, name)
    ours = [c for c in owner.__mro__ if c.__module__.startswith("counterfactual_training")]
    for of in ours:
        for member, value in vars(of).items():
            function = (
                value.fget if isinstance(value, property) else getattr(value, "__func__", value)
            )
            if not member.startswith("_") and inspect.isroutine(function):
                assert inspect.getdoc(getattr(owner, member)), (
                    f"{name}.{member} has no docstring"
                )
