"""The command ``ct``. Each command is a file of this folder with ``add``, which describes it, and what it runs."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

import counterfactual_training
from counterfactual_training.cli import data, demo, evaluate, explain, grid, report, reproduce, train, truth, tune
from counterfactual_training.cli.output import note
from counterfactual_training.errors import CounterfactualTrainingError

COMMANDS = (demo, train, explain, evaluate, data, tune, reproduce, truth, grid, report)

_DESCRIPTION = """\
Counterfactual training: classifiers that can say what would have to change, plausibly and within people's reach."""

_EXAMPLES = """\
examples:
  ct demo --out demo                                    see what it does: a table, two figures, one page
  ct train loan --protect age --out loan.safetensors    train on one of the data sets of `ct data list`
  ct explain loan.safetensors --rows 0,1,2              what would have to change for the first test rows
  ct evaluate loan.safetensors                          plausibility, cost, accuracy, robustness
  ct train people.csv --target-column granted --mutability age=none --out people.safetensors
  ct explain people.safetensors --data people.csv --rows 0,4 --target yes

Every command has --help, and --json, which prints one JSON document and nothing else."""


class Parser(argparse.ArgumentParser):
    """A parser whose complaints take one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def make_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="ct", description=_DESCRIPTION, epilog=_EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"ct {counterfactual_training.__version__}")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--json", action="store_true", help="print one JSON document, and nothing else, on stdout")
    common.add_argument("--debug", action="store_true", help="show where an error comes from")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add(commands, common)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; the exit code is 0, 2 after an error that was explained, 1 after another, 130 after Ctrl-C."""
    arguments = make_parser().parse_args(argv)
    arguments.command_line = shlex.join(["ct", *(sys.argv[1:] if argv is None else argv)])
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _one_line
            arguments.run(arguments)
            sys.stdout.flush()
        return 0
    except KeyboardInterrupt:
        note("interrupted")
        return 130
    except BrokenPipeError:
        # The reader of our output has seen enough; a second complaint at exit would be noise.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (CounterfactualTrainingError, OSError) as error:
        if arguments.debug:
            traceback.print_exc()
        note(_reason(error))
        return 2
    except Exception as error:
        if arguments.debug:
            raise
        note(f"unexpected {type(error).__name__}: {_reason(error)} (--debug shows where; please report it)")
        return 1


def _reason(error: BaseException) -> str:
    """What our own errors say, line by line; of others, one line."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, CounterfactualTrainingError):
        return str(error).strip()
    return " ".join(str(error).split())


def _one_line(message: Warning | str, *_: Any, **__: Any) -> None:
    note(f"note: {' '.join(str(message).split())}")
