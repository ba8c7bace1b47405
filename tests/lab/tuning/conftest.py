"""The toy task, and other processes that work on it."""

import subprocess
import sys
from pathlib import Path

import pytest

from loan_book import loans

__all__ = ["loans"]
pytest.importorskip("optuna", reason="tuning needs the extra 'lab'")


@pytest.fixture
def toy():
    import toy_task

    return toy_task


@pytest.fixture
def start_worker():
    """Start a process that waits for a line on stdin before it works; all are gone at the end of
    the test.
    """
    started = []

    def start(storage, study="toy", num_trials=8, batch=3, hang_after=-1):
        command = [
            sys.executable,
            str(Path(__file__).with_name("toy_task.py")),
            str(storage),
            study,
        ]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen(
            [*command, str(num_trials), str(batch), str(hang_after)], text=True, **pipes
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()
