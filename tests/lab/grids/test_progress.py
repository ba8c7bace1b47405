"""What a person sees while work goes on."""

import io
import threading
from types import SimpleNamespace

import pytest

from counterfactual_lab.grids import progress
from counterfactual_lab.grids.progress import Running, RunProgress
from counterfactual_training.text import duration


@pytest.fixture
def clock(monkeypatch) -> SimpleNamespace:
    """A clock that goes only when it is told to."""
    stopped = SimpleNamespace(now=0.0)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: stopped.now))
    return stopped


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_plain_lines_where_nobody_watches(clock):
    stream = io.StringIO()
    with RunProgress(10, 2, 8.0, stream) as board:
        clock.now = 60
        board.finished("Moon, 4 × ecco", 4, 4.0, 61.0, "best on Moon: IP 1.31")
        board.failed("Moon, 4 × revise", 4.0, "no memory")
    lines = stream.getvalue().splitlines()
    assert lines[0] == "2 of 10 runs were done before"
    assert lines[1] == "[6/10] Moon, 4 × ecco: 61 s · about 60 s left · best on Moon: IP 1.31"
    assert lines[2] == "[6/10] Moon, 4 × revise failed: no memory"
    assert "\r" not in stream.getvalue()


def test_a_terminal_sees_one_line_that_renews_itself(clock):
    stream = Terminal()
    drawn = threading.Event()

    def watch() -> list[Running]:
        drawn.set()
        return [Running("Moon, 5 × ecco", 5, 0.4, 5.0)]

    with RunProgress(10, 0, 10.0, stream, watch) as board:
        assert drawn.wait(300)
        clock.now = 20
        assert (
            "0/10 models · 5 training · about 80 s left · Moon, 5 × ecco 40 %" in board.line()
        )
        board.finished("Moon, 5 × ecco", 5, 5.0, 20.0)
    text = stream.getvalue()
    assert "\r\033[K" in text and "[5/10] Moon, 5 × ecco: 20 s" in text
    assert text.endswith("20 s · about 20 s left\n") or text.endswith(
        "\r\033[K"
    )  # nothing half-drawn stays


def test_no_guess_before_there_is_anything_to_guess_from():
    board = RunProgress(10, 0, 100.0, io.StringIO())
    assert "left" not in board.line()
    board.finished("x", 1, 1.0, 1.0)
    assert "left" not in board.line()


def test_what_failed_takes_no_more_time():
    stream = io.StringIO()
    board = RunProgress(4, 0, 8.0, stream)
    board.started -= 60
    board.failed("Moon, 2 × revise", 4.0, "no memory")
    board.finished("Moon, 1 × ecco", 1, 2.0, 60.0)
    assert "about 60 s left" in stream.getvalue()


def test_durations():
    assert [duration(s) for s in (3, 150, 3900, 400_000)] == [
        "3 s",
        "2 min",
        "1 h 05 min",
        "5 days",
    ]
