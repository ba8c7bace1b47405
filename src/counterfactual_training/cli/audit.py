"""``ct audit``: burden of recourse by group, proxies of groups, and whether advice lasts."""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from counterfactual_training import defaults
from counterfactual_training.cli.options import (
    add_model,
    add_positive,
    add_target,
    at_least_one,
    not_negative,
)
from counterfactual_training.cli.output import emit, folder, not_over, note, writable
from counterfactual_training.cli.parsing import columns, is_file_name, pick_label
from counterfactual_training.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from counterfactual_training.cli.saved_models import DatasetModel, TableModel
    from counterfactual_training.tables.audits import Subject

DESCRIPTION = """\
Measure by group what a model's advice asks of people who are denied: how far they have to \
go, who has no way at all, whether the columns that may change or the advice itself give the \
group away, and whether advice of today holds under noise or after retraining. With \
--against, two models on the same people."""
EPILOG = """\
examples:
  ct audit people.safetensors --data people.csv --group sex,race
  ct audit people.safetensors --data people.csv --group 'age,sex*race' \
--against other.safetensors --out audit.html
  ct audit adult.safetensors --group sex,race --positive '>50K' --retrain 2

Without --group, the columns that the model holds fixed. Numbers are cut into bands; sex*race
crosses two columns. A group may be any column of the CSV file, also one that the model does not
use."""


def add(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    groups = (
        "columns of groups, such as sex,race; a name with a comma needs a --group of its own"
    )
    parser.add_argument("--group", action="append", metavar="COLUMNS", help=groups)
    add_positive(parser)
    parser.add_argument(
        "--against", metavar="MODEL", help="another model of the same columns, to compare with"
    )
    people = "the most to explain, per model"
    parser.add_argument(
        "--people", type=at_least_one, default=defaults.AUDIT_PEOPLE, metavar="N", help=people
    )
    parser.add_argument(
        "--confidence",
        type=float,
        metavar="P",
        help="that advice asks for (default: as the model does)",
    )
    again = (
        "train the model again N times by other seeds, and N times without a fifth of the rows"
    )
    parser.add_argument("--retrain", type=not_negative, default=0, metavar="N", help=again)
    noise = "noise on the weights, relative to the typical weight of a layer"
    parser.add_argument(
        "--delta", type=float, default=defaults.WEIGHT_NOISE, metavar="SHARE", help=noise
    )
    parser.add_argument(
        "--no-proxies", action="store_true", help="do not measure whether groups can be guessed"
    )
    add_target(parser)
    parser.add_argument(
        "--all-rows", action="store_true", help="use all rows, those of the training among them"
    )
    out = "a folder, or a page such as audit.html: writes it as HTML, Markdown and CSV"
    parser.add_argument("--out", metavar="DIR|FILE", help=out)
    parser.add_argument(
        "--seed", type=not_negative, default=defaults.SEED, help="of random draws"
    )


def run(arguments: argparse.Namespace) -> None:
    started = time.perf_counter()
    _check_out(arguments.out, arguments.model, arguments.against, arguments.data)
    if not 0 <= arguments.delta < math.inf:
        raise InputError(
            f"--delta must be a number of at least 0, got {arguments.delta:g}; 0 adds no noise."
        )
    from counterfactual_training.cli.saved_models import open_model
    from counterfactual_training.tables.audits import AuditProtocol, audit, usual_groups

    opened = open_model(arguments.model)
    if arguments.against is None:
        rival = None
    else:
        rival = open_model(arguments.against)
    people = people_of(opened, arguments.data, arguments.target, arguments.all_rows)
    if rival is not None:
        people = _both(people, opened, rival, arguments)
    if arguments.retrain:
        _check_retrain(opened, people, arguments)
    subject = _subject(opened, arguments.model, people, arguments.retrain)
    target = pick_label(arguments.positive, opened.classifier.classes_, opened.positive)
    if target is None:
        classes = ", ".join(map(repr, map(str, opened.classifier.classes_)))
        raise InputError(f"Say which class people want: --positive CLASS, one of {classes}.")
    groups = _groups(arguments.group, list(map(str, people.frame.columns)))
    protocol = AuditProtocol(
        retrain=arguments.retrain,
        people=arguments.people,
        delta=arguments.delta or None,
        confidence=arguments.confidence,
        proxies=not arguments.no_proxies,
        seed=arguments.seed,
    )
    result = audit(
        subject,
        people.frame,
        people.labels,
        groups or usual_groups(people.frame, subject.schema),
        target,
        against=None
        if rival is None
        else _subject(rival, arguments.against, people, arguments.retrain),
        protocol=protocol,
    )
    _report(arguments, result, people.description, time.perf_counter() - started)


@dataclass(frozen=True, eq=False)
class _People:
    """Whom to audit: all columns there are, and their classes if these are known.

    Attributes:
        description: which rows these are, in words.
        trained_on: rows and classes of the training, if the file holds them.
    """

    frame: pd.DataFrame
    labels: Any
    description: str
    trained_on: tuple[Any, Any] | None = None


def people_of(
    opened: DatasetModel | TableModel, data: str | None, column: str | None, all_rows: bool
) -> _People:
    """The rows that a model is measured on; shared with `ct card`."""
    from counterfactual_training.cli.saved_models import DatasetModel, wanted

    if isinstance(opened, DatasetModel):
        if data is not None and is_file_name(data):
            frame = opened.table(data)
            wanted(frame, opened.classifier.schema_.names, data)
            return _People(
                frame, None, f"{len(frame):,} rows of {data}, whose classes are not known"
            )
        frame = opened.rows(data).reset_index(drop=True)
        description = f"{len(frame):,} test rows of {opened.name}"
        return _People(frame, opened.test_labels.tolist(), description, opened.trained_on)
    file = opened._file(data)
    table = opened.table(file)
    if column is None and (opened.origin is None or opened.origin.target not in table.columns):
        note(f"{file} does not hold the class: measures of wrong decisions are left out")
        wanted(table, opened.classifier.schema_.names, file)
        return _People(table, None, f"{len(table):,} rows of {file}")
    source = opened.labelled(data, column, all_rows)
    # Groups may be columns that the model does not use.
    frame = table.loc[source.frame.index]
    # Where the file of the model remembers no rows, none are found, and that is all of them.
    if source.trained_on is not None and len(source.trained_on[0]):
        trained_on = source.trained_on
    else:
        trained_on = None
    return _People(frame, source.labels.to_numpy(), source.description, trained_on)


def _both(
    people: _People,
    opened: DatasetModel | TableModel,
    rival: DatasetModel | TableModel,
    arguments: Any,
) -> _People:
    """The rows that neither model was trained on."""
    if type(opened) is not type(rival) or (opened.name != rival.name):
        raise InputError(
            f"{arguments.against!r} is a model of {rival.name!r}, {arguments.model!r} one of "
            f"{opened.name!r}."
        )
    mine, others = (set(model.classifier.schema_.names) for model in (opened, rival))
    if mine != others:
        shown = ", ".join(map(repr, sorted(mine ^ others)[:5]))
        raise InputError(
            f"{arguments.against!r} is a model of other columns than {arguments.model!r}: "
            f"{len(mine ^ others)} belong "
            f"to one of them only ({shown}). Name a model of the same columns."
        )
    if people.labels is None:
        return people
    other = people_of(rival, arguments.data, arguments.target, arguments.all_rows)
    shared = people.frame.index.isin(other.frame.index)
    if not shared.any():
        raise InputError(
            "Every row was trained on by one of the two models. Train both with the same --seed."
        )
    if shared.all():
        return people
    description = (
        f"{int(shared.sum()):,} rows that neither model was trained on "
        f"(of {people.description})"
    )
    labels = [
        label for label, is_shared in zip(people.labels, shared, strict=True) if is_shared
    ]
    return _People(people.frame[shared], labels, description, people.trained_on)


def _subject(
    opened: DatasetModel | TableModel, path: str, people: _People, retrain: int
) -> Subject:
    from counterfactual_training.tables.audits import Subject, retrainer

    again = None
    if retrain and people.trained_on is not None:
        again = retrainer(opened.classifier, *people.trained_on)
    return Subject(opened.classifier, Path(path).stem, again)


def _check_retrain(opened: DatasetModel | TableModel, people: _People, arguments: Any) -> None:
    """Raise if the rows of the training are not at hand; models of named data sets find theirs."""
    if people.trained_on is not None:
        return
    if opened.origin is None or not len(opened.origin.trained):
        reason = (
            f"{arguments.model!r} does not remember which rows it was trained on. Leave "
            "--retrain out"
        )
    elif arguments.all_rows:
        reason = "--all-rows does not tell them from the others. Leave one of the two out"
    else:
        reason = (
            f"{arguments.data!r} does not hold all rows that {arguments.model!r} was trained on. "
            "Name the file of the "
            "training with --data, or leave --retrain out"
        )
    raise InputError(f"--retrain needs the rows of the training, but {reason}.")


def _groups(items: list[str] | None, valid: list[str]) -> list[str]:
    """Names as written after --group; ``sex*race`` stays together."""
    names: list[str] = []
    for item in items or ():
        for part in [item] if item in valid else item.split(","):
            name = part.strip()
            if "*" in name and name not in valid:
                columns(name.split("*"), valid, "--group")
                names.append(name)
            elif name:
                names += columns([name], valid, "--group")
    return list(dict.fromkeys(names))


def _check_out(out: str | None, *inputs: str | None) -> None:
    if out is None:
        return
    if Path(out).suffix not in ("", ".html"):
        raise InputError(
            f"--out takes a folder or a page whose name ends in .html, got {out!r}."
        )
    # Before minutes of work, not after.
    if Path(out).suffix:
        page = Path(writable(out))
    else:
        page = folder(out) / "audit.html"
    # The same numbers go to a CSV file beside the page, which could be the data.
    for suffix in (".html", ".md", ".csv"):
        not_over(page.with_suffix(suffix), *inputs)


def _report(
    arguments: argparse.Namespace, result: Any, description: str, seconds: float
) -> None:
    from counterfactual_training.tables.pages.audit_page import write_audit
    from counterfactual_training.tables.pages.audit_tables import audit_text
    from counterfactual_training.tables.pages.files import RunInfo

    written = []
    if arguments.out is not None:
        names = " beside ".join(model["name"] for model in result.models)
        written = write_audit(
            result, arguments.out, RunInfo(arguments.command_line, seconds), names
        )
    document = {
        **result.to_dict(),
        "measured": description,
        "seconds": seconds,
        "files": written,
    }
    text = f"{audit_text(result)}\n\nMeasured on {description}, in {seconds:.0f} s."
    findings = "\n".join(f"- {finding}" for finding in result.findings) or "- none"
    text += f"\n\nDifferences whose interval excludes zero:\n{findings}"
    if written:
        text += f"\n\nWritten: {', '.join(written)}."
    emit(arguments, document, text)
