"""The command ``ct``. Each command is one file, here or in ``commands/`` of another house: its
``DESCRIPTION``, what follows its help (``EPILOG``), its options (``add``), and what it does
(``run``). Only the file of the command that was typed is imported, and only its ``run`` imports
torch, pandas and the like: they take seconds, and help and mistyped options need none of them."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import textwrap
import traceback
import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

import counterfactual_training
from counterfactual_training.cli.commands import COMMANDS
from counterfactual_training.cli.flags import in_flags
from counterfactual_training.cli.options import add_common
from counterfactual_training.cli.output import note, notes_once
from counterfactual_training.errors import CounterfactualTrainingError, MissingExtraError
from counterfactual_training.houses import find
from counterfactual_training.registered import register_file

_DESCRIPTION = """\
Counterfactual training: classifiers whose counterfactual explanations are plausible and
actionable."""

_EXAMPLES = """\
examples:
  ct demo --out demo                                    see a table, two figures, one page
  ct train loan --immutable age --out loan.safetensors    train on a data set of `ct data list`
  ct explain loan.safetensors --rows 0,1,2              what would have to change for test rows
  ct evaluate loan.safetensors                          plausibility, cost, accuracy, robustness

a table of your own:
  ct schema people.csv --target granted > rules.toml    a draft of what may change, to be edited
  ct train people.csv --target granted --positive yes --schema rules.toml --out people.safetensors
  ct explain people.safetensors --data people.csv --rows 0,4 --options 3
  ct report people.safetensors --data people.csv --out people.html
  ct serve people.safetensors --data people.csv         a page to see, ask and compare

Every command has --help, and --json, which prints one JSON document and nothing else."""


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Keeps line breaks and tells the default of every option that has one."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        has_default = (
            type(action.default) in (str, int, float) and action.default != argparse.SUPPRESS
        )
        if has_default and action.option_strings:
            return f"{action.help} (default: %(default)s)"
        return action.help


class Parser(argparse.ArgumentParser):
    """A parser whose error messages take one line."""

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=HelpFormatter, **options)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def make_parser(words: Sequence[str] = ()) -> argparse.ArgumentParser:
    """The parser, with the options of the command that the words of the command line name."""
    parser = Parser(prog="ct", description=_DESCRIPTION, epilog=_EXAMPLES)
    parser.add_argument(
        "--version", action="version", version=f"ct {counterfactual_training.__version__}"
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    # No option before the command takes a value, so the first other word is the command.
    chosen = next((word for word in words if not word.startswith("-")), None)
    for name, (module, purpose) in COMMANDS.items():
        if name == chosen:
            command = find(module)
            description = textwrap.fill(command.DESCRIPTION, 100)
            epilog = getattr(command, "EPILOG", None)
            added = commands.add_parser(
                name, help=purpose, description=description, epilog=epilog
            )
            if hasattr(command, "run"):  # others have actions, each with its own options
                add_common(added).set_defaults(run=command.run)
            command.add(added)
        else:
            commands.add_parser(name, help=purpose)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command. Exit codes: 0 success, 2 expected error, 1 unexpected, 130 Ctrl-C."""
    words = sys.argv[1:] if argv is None else argv
    try:
        parser = make_parser(words)
    except MissingExtraError as error:
        note(_reason(error))
        return 2
    arguments = parser.parse_args(words)
    arguments.command_line = shlex.join(["ct", *words])
    try:
        with warnings.catch_warnings(), notes_once():
            warnings.showwarning = _one_line
            for file in getattr(arguments, "register", None) or ():
                register_file(file)
            arguments.run(arguments)
            # Here, because a pipe that was closed would otherwise show only when Python ends.
            sys.stdout.flush()
        return 0
    except KeyboardInterrupt:
        note("interrupted")
        return 130
    except BrokenPipeError:
        # The reader closed the pipe, as `head` does; without this, Python reports it again at exit.
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
        note(
            f"unexpected {type(error).__name__}: {_reason(error)} (--debug shows where; please "
            "report this)"
        )
        return 1


def _reason(error: BaseException) -> str:
    """The message of an error; those of other packages on one line."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, CounterfactualTrainingError):
        return in_flags(error).strip()
    return " ".join(str(error).split())


def _one_line(message: Warning | str, *_: Any, **__: Any) -> None:
    note(f"note: {' '.join(in_flags(message).split())}")
