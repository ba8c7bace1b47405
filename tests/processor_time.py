"""Processor seconds of every test: unlike the time on a clock, a busy machine does not change them.

``pytest --processor-time 20`` prints the twenty dearest. Setting up counts: the first test that
asks for a shared model pays for it. Processes that a test starts count where it waits for their
end.
"""

from __future__ import annotations

import os
from collections import defaultdict

import pytest

_NAME = "processor seconds"
_spent: dict[str, float] = defaultdict(float)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--processor-time", type=int, default=0, metavar="N", help="print the N dearest tests"
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item):
    start = _seconds()
    item.user_properties.append((_NAME, start))
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    report = yield
    start = dict(item.user_properties)[_NAME]
    report.user_properties = [(_NAME, _seconds() - start)]
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    spent = dict(report.user_properties).get(_NAME, 0.0)
    _spent[report.nodeid] = max(_spent[report.nodeid], spent)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    number = config.getoption("--processor-time")
    if not number:
        return
    dearest = sorted(_spent.items(), key=lambda pair: -pair[1])
    total = sum(_spent.values())
    shown = sum(seconds for _, seconds in dearest[:number])
    terminalreporter.section(
        f"{total:.0f} processor seconds in {len(_spent)} tests, {shown:.0f} in the dearest {number}"
    )
    for name, seconds in dearest[:number]:
        terminalreporter.line(f"{seconds:8.2f} s  {name}")


def _seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
