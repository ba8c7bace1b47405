"""``ct reproduce``: the paper's experiments, published numbers beside ours."""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from counterfactual_training.cli import engine
from counterfactual_training.cli.output import emit, folder
from counterfactual_training.cli.paper import MATERIAL, remark, write_files
from counterfactual_training.cli.truth import complain, write_truth
from counterfactual_training.errors import CounterfactualTrainingError, InputError
from counterfactual_training.experiments.engine.launch import Engine
from counterfactual_training.experiments.grid.run import GridWork
from counterfactual_training.experiments.paper.reproduce import (
    ALL,
    EXPERIMENTS,
    FULL,
    Effort,
    Reproduction,
    experiment_grids,
    experiment_names,
    kind_of_grid,
    reproduce,
)
from counterfactual_training.experiments.truth.methods import UNCAPPED
from counterfactual_training.experiments.truth.results import truth_tables
from counterfactual_training.experiments.truth.truth import Scope, TruthFailure, run_truth
from counterfactual_training.reports.extra import need
from counterfactual_training.reports.paper_tables import text_tables
from counterfactual_training.reports.truth_tables import truth_texts


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    names = [f"  {name:<14} {experiment.title}" for name, experiment in EXPERIMENTS.items()]
    parser = commands.add_parser(
        "reproduce",
        parents=[common],
        help="run the paper's experiments and compare with the published numbers",
        description="Trains what an experiment of the paper needs, measures it by the published protocol and by a "
        "paired one, and writes tables (CSV, Markdown, LaTeX) and figures with the published numbers beside ours. "
        "Stop it whenever you like: finished models are kept, and the same command goes on from there.",
        epilog="\n".join(["experiments:", *names, f"  {ALL:<14} all of them"]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("experiment", choices=experiment_names(), metavar="EXPERIMENT", help="which one, see below")
    parser.add_argument("--data", metavar="A,B", help="only these data sets, e.g. LS,CH,MNIST (default: all it uses)")
    parser.add_argument("--seeds", type=int, metavar="N", help="training seeds (default: 5, and 3 for MNIST)")
    parser.add_argument("--quick", action="store_true", help="a taste in two minutes: synthetic data, short training")
    parser.add_argument("--out", default="reproduced", metavar="DIR", help="for tables and figures (%(default)s)")
    parser.add_argument("--runs", default="runs", metavar="DIR", help="for finished models (%(default)s)")
    engine.add(parser)
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="train with another setting than the published one, e.g. adversarial_label=predicted",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    need("matplotlib")  # better told now than after the training
    out = folder(arguments.out)
    chosen = _chosen(arguments)
    found = reproduce(
        arguments.experiment,
        arguments.runs,
        **chosen,
        command=arguments.command_line,
        stream=sys.stderr,
        engine=engine.chosen(arguments),
    )
    files = [path for one in found for path in write_files(one, out)]
    texts = [table.text() for one in found for table in text_tables(one.name, one.tables)]
    step_free, lost = _step_free(arguments, chosen) if arguments.experiment in ("main", ALL) else ({}, [])
    if step_free:
        head = f"Measured on the test rows. Made with: {arguments.command_line}"
        files += write_truth(step_free, out, head)
        texts += [table.text() for table in truth_texts(step_free)]
    texts += [remark(found[0].effort)] * arguments.quick
    document = _document(found, files)
    document["tables"] |= {name: table.to_dict("records") for name, table in step_free.items()}
    emit(arguments, document, "\n\n".join([*texts, f"{len(files)} files in {out}"]))
    failures = {failure.cell.label: failure.reason for one in found for failure in one.failures}
    if failures:
        label, reason = next(iter(failures.items()))
        raise CounterfactualTrainingError(
            f"{len(failures)} models are missing from these tables, the first being {label}: {reason} "
            "The same command tries them again."
        )
    complain(lost)


def _step_free(
    arguments: argparse.Namespace, chosen: dict[str, Any]
) -> tuple[dict[str, pd.DataFrame], list[TruthFailure]]:
    """The models of the main table, and the baseline rescaled, where neither step size nor scale counts."""
    grid = experiment_grids("main", **chosen)["main"]
    scope = Scope(
        Path(arguments.runs) / "truth",
        data=grid.data,
        seeds=chosen["seeds"] if chosen["seeds"] is not None or not grid.quick else len(grid.seeds),
        methods=["BL", "BL rescaled", "CT"],
        on_test=True,
        caps=replace(UNCAPPED, epochs=Effort.from_grid(grid).epochs),
        cells=GridWork.from_grids(grid, strict=False).cells,
        kind=json.dumps(kind_of_grid(grid), sort_keys=True),
    )
    # Small work: it stays on this machine, wherever the models were trained.
    here = Engine(workers=arguments.workers)
    lost = run_truth(scope, engine=here, stream=sys.stderr, store=arguments.runs)
    return truth_tables(scope), lost


def _chosen(arguments: argparse.Namespace) -> dict[str, Any]:
    data = [name for name in arguments.data.split(",") if name.strip()] if arguments.data else None
    changes = _changes(arguments.set)
    return {"data": data, "seeds": arguments.seeds, "quick": arguments.quick, "changes": changes}


def _document(found: Sequence[Reproduction], files: Sequence[str]) -> dict[str, Any]:
    tables = {name: table for one in found for name, table in one.tables.items() if name not in MATERIAL}
    return {
        "experiments": [one.name for one in found],
        "quick": any(one.effort != FULL for one in found),
        "tables": {name: table.to_dict("records") for name, table in tables.items()},
        "files": list(files),
        "failures": [{"cell": f.cell.label, "reason": f.reason} for one in found for f in one.failures],
    }


def _changes(pairs: Sequence[str]) -> dict[str, Any]:
    out = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise InputError(f"--set takes NAME=VALUE, got {pair!r}.")
        try:
            out[name] = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            out[name] = text
    return out
