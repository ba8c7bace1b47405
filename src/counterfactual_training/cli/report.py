"""``ct report``: one page about a saved model, or of everything that was reproduced."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from counterfactual_training.cli.options import add_positive, add_target, not_negative
from counterfactual_training.cli.output import emit, not_over, note, writable
from counterfactual_training.cli.parsing import pick_label
from counterfactual_training.errors import InputError, need_extra
from counterfactual_training.houses import find

DESCRIPTION = """\
Write one self-contained page. Of a model that `ct train` made from a CSV file: how good it \
is on rows held out of training, which columns matter, example people with their options, who \
gets no answer and why. Of folders that `ct reproduce` filled: figures, sortable tables, \
settings, and the commands to run it again."""
EPILOG = """\
examples:
  ct report people.safetensors --data people.csv --out people.html
  ct report runs --out report.html"""


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        nargs="+",
        metavar="MODEL|RUNS",
        help="a model file, or folders of finished models",
    )
    parser.add_argument("--out", default="report.html", metavar="FILE", help="the page")
    model = parser.add_argument_group("models")
    model.add_argument(
        "--data", metavar="FILE", help="the CSV file; rows that were trained on are left out"
    )
    add_positive(model)
    add_target(model)
    model.add_argument(
        "--all-rows",
        action="store_true",
        help="measure on all rows, those of the training among them",
    )
    model.add_argument("--seed", type=not_negative, default=0, help="of random draws")
    runs = parser.add_argument_group("folders")
    where = "where `ct reproduce figure1` wrote Figure 1, which is not made of finished models"
    runs.add_argument("--tables", default="reproduced", metavar="DIR", help=where)


def run(arguments: argparse.Namespace) -> None:
    first = Path(arguments.what[0])
    # A model file that does not exist is meant as one, too: the error is about it, then.
    if first.is_file() or first.suffix == ".safetensors":
        return _about_a_model(arguments)
    if arguments.data is not None:
        raise InputError(f"--data goes with a model file, and {arguments.what[0]!r} is none.")
    need_extra("matplotlib", "lab")
    written = find("counterfactual_lab.reports.paper_report").write_report(
        arguments.what, arguments.out, arguments.tables
    )
    emit(arguments, {"page": arguments.out, **written}, f"Open {arguments.out} to read.")


def _about_a_model(arguments: argparse.Namespace) -> None:
    started = time.perf_counter()
    not_over(writable(arguments.out), *arguments.what, arguments.data)
    from counterfactual_training.cli.saved_models import TableModel, open_model
    from counterfactual_training.tables.pages.files import RunInfo
    from counterfactual_training.tables.pages.model_page import write_model_page
    from counterfactual_training.tables.pages.portrait import make_portrait

    if len(arguments.what) > 1:
        raise InputError(f"A page is about one model; {len(arguments.what)} files were named.")
    opened = open_model(arguments.what[0])
    if not isinstance(opened, TableModel):
        raise InputError(
            f"{arguments.what[0]!r} is a model of the data set {opened.name!r}; a page is "
            "written about models that "
            "`ct train` made from a CSV file. `ct evaluate` measures this one."
        )
    source = opened.labelled(arguments.data, arguments.target, arguments.all_rows)
    classifier = opened.classifier
    origin = opened.origin
    target = pick_label(arguments.positive, classifier.classes_, opened.positive)
    if target is None:
        note(
            "no --positive, here or of `ct train`, named the class that people want: everybody "
            "is led to another"
        )
    portrait = make_portrait(
        classifier, source.frame, source.labels, target, source.trained_on, arguments.seed
    )
    # A model that Python saved does not know what its class is called.
    column = arguments.target or (origin.target if origin is not None else "the class")
    run_info = RunInfo(arguments.command_line, time.perf_counter() - started)
    write_model_page(
        portrait,
        arguments.out,
        facts=opened.facts(),
        columns=classifier.schema_.table().to_numpy().tolist(),
        measured=source.description,
        name=column,
        relations=classifier.schema_.relations,
        run=run_info,
    )
    document = {
        "page": arguments.out,
        "rows": source.description,
        "test_rows": portrait.rows,
        "accuracy": portrait.accuracy,
        "majority": portrait.majority,
        "people": portrait.advice.people,
        "answered": portrait.advice.answered,
        "status": portrait.advice.status,
        "importance": portrait.importance.to_dict("records"),
        "compared_with": portrait.rival,
    }
    text = (
        f"accuracy {portrait.accuracy:.3f} (the most frequent class: {portrait.majority:.3f}) on "
        f"{source.description}"
    )
    emit(arguments, document, f"{text[0].upper()}{text[1:]}.\nOpen {arguments.out} to read.")
