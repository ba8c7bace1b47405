"""``ct grid``: run hundreds of settings, see their progress, report the results."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from counterfactual_lab.commands import complain, need_figures
from counterfactual_training.cli.options import (
    add_common,
    add_engine,
    add_register,
    chosen_engine,
    names,
)
from counterfactual_training.cli.output import emit, folder, note
from counterfactual_training.errors import InputError
from counterfactual_training.text import align, duration

if TYPE_CHECKING:
    from counterfactual_lab.grids.grid import Grid
    from counterfactual_lab.runs.store import Store
    from counterfactual_training.engine.launch import Engine

# More settings than this need a confirmation.
MANY_SETTINGS = 5000

DESCRIPTION = """\
A grid is a TOML file of settings; a list makes an axis, and every combination is a model. \
Models of one shape train together as a fleet. Finished models are never trained again: stop \
at any time, edit the file, and run it again."""


def add(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    common = add_common(argparse.ArgumentParser(add_help=False))
    chosen = argparse.ArgumentParser(add_help=False)
    chosen.add_argument(
        "--data", metavar="A,B", help="only these data sets, e.g. Moon,OL (default: the grid's)"
    )
    chosen.add_argument(
        "--seeds",
        type=int,
        metavar="N",
        help="repeat everything with N seeds (default: the grid's)",
    )
    chosen.add_argument(
        "--quick", action="store_true", help="a tenth of the epochs and a rough evaluation"
    )
    chosen.add_argument("--runs", default="grid-runs", metavar="DIR", help="finished models")
    add_register(chosen)
    out = argparse.ArgumentParser(add_help=False)
    out.add_argument("--out", default="grids", metavar="DIR", help="tables, figures and page")

    run = actions.add_parser(
        "run",
        parents=[common, chosen, out],
        help="train and measure what is missing, and report",
    )
    run.add_argument(
        "grid",
        metavar="GRID",
        help="a file, or the name of one of the paper's grids (ct grid list)",
    )
    add_engine(run)
    run.add_argument(
        "--yes",
        action="store_true",
        help=f"run it even if it has more than {MANY_SETTINGS:,} settings",
    )
    run.add_argument(
        "--dry-run", action="store_true", help="only print how many settings and how long"
    )
    run.set_defaults(run=_run)

    status = actions.add_parser("status", parents=[common, chosen], help="progress of grids")
    status.set_defaults(run=_status)
    report = actions.add_parser(
        "report", parents=[common, chosen, out], help="tables, figures and a page; no training"
    )
    report.set_defaults(run=_report)
    for action in (status, report):
        action.add_argument(
            "grid", nargs="?", metavar="GRID", help="default: all that were run in the folder"
        )

    actions.add_parser("list", parents=[common], help="the paper's grids").set_defaults(
        run=_list
    )


def _run(arguments: argparse.Namespace) -> None:
    from counterfactual_lab.grids.notes import noted
    from counterfactual_lab.grids.results import GridResults
    from counterfactual_lab.grids.run import (
        GridWork,
        expected_seconds,
        run_grid,
    )
    from counterfactual_lab.reports.grid_report import grid_text, write_grid
    from counterfactual_lab.runs.store import Store

    engine = chosen_engine(arguments)
    store = Store(arguments.runs)
    [(grid, _)] = _grids(arguments, store)
    # Preparing so many runs takes minutes itself, so ask, or answer, before that.
    if grid.num_points > MANY_SETTINGS:
        if arguments.dry_run:
            return _announce(
                arguments, grid, {"seconds": expected_seconds(grid, engine.workers)}
            )
        _ask(grid, engine, arguments.yes)
    prepared = GridWork.from_grids(grid)
    done = store.done()
    plan = {
        "models": len(prepared.runs),
        "done": sum(run.id in done for run in prepared.runs),
        "seconds": prepared.expected_seconds(done, engine.workers),
    }
    if arguments.dry_run:
        return _announce(arguments, grid, plan)
    need_figures()
    note(_sentence(grid, plan))
    result = run_grid(prepared, arguments.runs, engine, arguments.command_line, sys.stderr)
    results = GridResults.load(grid, prepared.points, store)
    if results.missing == results.points:
        complain(
            result.failures,
            "No setting is finished together with its conventional model, so there is nothing to "
            "report",
        )
    files = write_grid(results, folder(arguments.out), noted(store, grid))
    document = {
        "grid": grid.name,
        "models": result.runs,
        "done_before": result.before,
        "seconds": result.seconds,
        "failures": result.failures,
        "files": files,
        "marginal": results.marginal.to_dict("records"),
    }
    tail = f"{len(files)} files in {arguments.out}, after {duration(result.seconds)}"
    emit(arguments, document, f"{grid_text(results)}\n\n{tail}")
    complain(result.failures)


def _status(arguments: argparse.Namespace) -> None:
    from counterfactual_lab.grids.run import GridWork
    from counterfactual_lab.runs.store import Store

    store = Store(arguments.runs)
    done = store.done()
    rows = []
    for grid, record in _grids(arguments, store):
        prepared = GridWork.from_grids(grid)
        for data in grid.data:
            runs = [run for run in prepared.runs if run.data == data]
            finished = sum(run.id in done for run in runs)
            rows.append(
                {"grid": grid.name, "data": data, "done": finished, "models": len(runs)}
                | record
            )
    lines = [
        [str(row["grid"]), str(row["data"]), f"{row['done']:>6} of {row['models']} models"]
        for row in rows
    ]
    emit(arguments, {"grids": rows}, "\n".join(align(lines)))


def _report(arguments: argparse.Namespace) -> None:
    need_figures()
    from counterfactual_lab.grids.results import GridResults
    from counterfactual_lab.grids.run import GridWork
    from counterfactual_lab.reports.grid_report import grid_text, write_grid
    from counterfactual_lab.runs.store import Store

    store = Store(arguments.runs)
    texts = []
    files = []
    for grid, record in _grids(arguments, store):
        results = GridResults.load(grid, GridWork.from_grids(grid).points, store)
        if results.missing == results.points:
            raise InputError(
                f"Nothing of {grid.name!r} is finished in {arguments.runs!r}. Start with: ct "
                "grid run"
            )
        files += write_grid(results, folder(arguments.out), record)
        texts.append(grid_text(results))
    emit(
        arguments,
        {"files": files},
        "\n\n".join([*texts, f"{len(files)} files in {arguments.out}"]),
    )


def _list(arguments: argparse.Namespace) -> None:
    from counterfactual_lab.grids.file import shipped_grids

    grids = shipped_grids()
    document = {}
    lines = []
    for name, grid in grids.items():
        document[name] = {
            "title": grid.title,
            "settings": grid.num_settings,
            "data": grid.data,
            "axes": grid.axes,
        }
        lines.append(
            [name, f"{grid.num_settings:>4} settings × {len(grid.data)} data sets", grid.title]
        )
    emit(arguments, {"grids": document}, "\n".join(align(lines)))


def _grids(
    arguments: argparse.Namespace, store: Store
) -> Sequence[tuple[Grid, dict[str, Any]]]:
    """The grid asked for, or all that were run in the folder, each with how it was run."""
    from counterfactual_lab.grids.file import load_grid
    from counterfactual_lab.grids.grid import Grid
    from counterfactual_lab.grids.notes import noted

    data = names(arguments.data)
    seeds = arguments.seeds
    if arguments.grid is not None:
        grid = load_grid(arguments.grid, arguments.quick).changed(data, seeds)
        return [(grid, noted(store, grid))]
    grids = [
        Grid.from_content(record["grid"])
        for record in store.notes().values()
        if "grid" in record
    ]
    if not grids:
        raise InputError(
            f"No grid was run in {arguments.runs!r} yet. Start with: ct grid run generators --quick"
        )
    return [(grid.changed(data, seeds), noted(store, grid)) for grid in grids]


def _announce(arguments: argparse.Namespace, grid: Grid, plan: dict[str, Any]) -> None:
    emit(
        arguments,
        {"grid": grid.name, "settings": grid.num_points, **plan},
        _sentence(grid, plan),
    )


def _sentence(grid: Grid, plan: dict[str, Any]) -> str:
    if len(grid.seeds) > 1:
        seeds = f" × {len(grid.seeds)} seeds"
    else:
        seeds = ""
    text = (
        f"{grid.name}: {grid.num_settings:,} settings × {', '.join(grid.data)}{seeds} = "
        f"{grid.num_points:,}"
    )
    if "models" in plan:
        text += f"; {plan['models']:,} different models, {plan['done']:,} of them done"
    if plan["seconds"]:
        return f"{text}; about {duration(plan['seconds'])} to go"
    return f"{text}; nothing to do"


def _ask(grid: Grid, engine: Engine, yes: bool) -> None:
    """Refuse a grid of very many settings unless the user confirms it."""
    if yes:
        return
    from counterfactual_lab.grids.run import expected_seconds

    sizes = " × ".join(
        f"{len(values)} {name}" for name, values in grid.values if len(values) > 1
    )
    size = (
        f"{grid.name!r} has {grid.num_points:,} settings ({sizes} × {len(grid.data)} data sets × "
        f"{len(grid.seeds)} "
        f"seeds), about {duration(expected_seconds(grid, engine.workers))} with {engine.workers} "
        "workers"
    )
    if not sys.stdin.isatty() or not sys.stderr.isatty():
        raise InputError(f"{size}. To run it anyway, add --yes.")
    sys.stderr.write(f"{size}. Run it? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise InputError("Not run.")
