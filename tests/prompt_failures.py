"""Print every failure as it happens; pytest itself prints all of them at the end, when minutes may
have passed.
"""

from __future__ import annotations

import pytest


class PromptFailures:
    """A reporter beside pytest's own."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self.config.pluginmanager.getplugin("terminalreporter")
        if not report.failed or terminal is None:
            return
        terminal.ensure_newline()
        terminal.section(f"{report.nodeid} failed", sep="_", red=True)
        terminal.line(report.longreprtext)


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(
        config, "workerinput"
    ):  # processes that xdist starts report to the one that prints
        config.pluginmanager.register(PromptFailures(config))
