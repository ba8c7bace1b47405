"""Run the shell commands of a documentation page, or check those that a test cannot run."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
_SHELL = re.compile(r"[|&;<`$]|>(?! ?[\w./-]+$)")
_PATIENCE = 120.0  # seconds for a server to start and stop
_SERVES = re.compile(r"^ct serve\b")


def run_line(line: str) -> None:
    """Run one command in the current folder; what it prints goes to ``sys.stdout``.

    ``ct`` runs in this process, which has imported torch. ``ct serve`` is started, awaited and
    interrupted. What installs the package, and ``make``, are checked instead: the environment of
    the tests stays as it is.
    """
    words = shlex.split(line, comments=True)
    if words[0] in ("pip", "make"):
        check(line)
    elif _SERVES.match(line):
        _serve(words)
    elif words[0] == "ct" and not _SHELL.search(shlex.join(words).replace("'>'", ">")):
        _ct(words)
    else:
        # Whole programs stand in the repository, which is not where pages run.
        _shell(re.sub(r"\bexamples/(?=\w+\.py)", f"{ROOT}/examples/", line))


def check(line: str) -> None:
    """Check a command without running it: its options exist, its extras exist, CI runs its make
    target.
    """
    words = shlex.split(line, comments=True)
    if words[0] == "ct":
        help_text = _help(words)
        if missing := [
            word
            for word in words
            if word.startswith("--") and not _is_in_help(word.split("=")[0], help_text)
        ]:
            raise ValueError(f"{line!r}: {words[1]} has no option {missing[0]}")
    elif words[0] == "pip":
        extras_defined = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))[
            "project"
        ]["optional-dependencies"]
        extras_named = {
            name for extras in re.findall(r"\[([\w,-]+)\]", line) for name in extras.split(",")
        }
        if unknown := extras_named - extras_defined.keys():
            raise ValueError(f"{line!r}: pyproject.toml has no extra {sorted(unknown)[0]!r}")
    elif words[0] == "make":
        subprocess.run(
            ["make", "--dry-run", "-C", str(ROOT), *words[1:]], check=True, capture_output=True
        )


def _is_in_help(option: str, help_text: str) -> bool:
    return bool(re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", help_text))


def _ct(words: list[str]) -> None:
    from counterfactual_training.cli import main

    if ">" in words:
        file = Path(words[words.index(">") + 1])
    else:
        file = None
    if file:
        args = words[1 : words.index(">")]
    else:
        args = words[1:]
    out = io.StringIO()
    with contextlib.redirect_stdout(out if file else sys.stdout):
        try:
            code = main(args)
        except SystemExit as end:
            code = end.code
    if code:
        raise RuntimeError(f"{shlex.join(words)} ended with {code!r}")
    if file:
        file.write_text(out.getvalue(), encoding="utf-8")


def _help(words: list[str]) -> str:
    """The help of the command that a line calls."""
    from counterfactual_training.cli import main

    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        main([*words[1:], "--help"])
    return out.getvalue()


def _environment() -> dict[str, str]:
    """Our own ``ct`` and ``python`` first."""
    return {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }


def _shell(line: str) -> None:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", line],
        check=False,
        env=_environment(),
        capture_output=True,
        text=True,
        timeout=300,
    )
    print(done.stdout, end="")
    if done.returncode:
        raise RuntimeError(f"{line!r} ended with {done.returncode}: {done.stderr[-2000:]}")


def _serve(words: list[str]) -> None:
    """Start the page on a free port, wait until it says where it is, and stop it as a person
    would.
    """
    command = [*words, "--port", "0", "--no-open"]  # the last --port counts
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(
            command, env=_environment(), stdout=subprocess.PIPE, stderr=log, text=True
        ) as run,
    ):
        too_late = threading.Timer(_PATIENCE, run.kill)
        too_late.start()
        assert run.stdout is not None  # noqa: S101
        address_line = next((line for line in run.stdout if "http://" in line), "")
        run.send_signal(signal.SIGINT)
        run.wait()
        too_late.cancel()
        log.seek(0)
        if not address_line:
            raise RuntimeError(f"{shlex.join(words)} did not open a page: {log.read()[-2000:]}")
