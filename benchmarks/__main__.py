"""Run benchmarks and write what came out, with machine and date.

Every part runs in a process of its own and leaves a record; the page is made of all records there
are, so that a part can be run again alone. A part that needs an environment that is not there says
so and leaves that comparison out.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from benchmarks import (
    art,
    conformal,
    environments,
    evaluation,
    explainers,
    export,
    fleet,
    gates,
    growth,
    line,
    lone,
    methods,
    peers,
)
from benchmarks.report import Record, Table, circumstances, ratios, write_page
from benchmarks.search import against_matrix_products, leaving
from benchmarks.training import per_row_gradient


@dataclass(frozen=True)
class Part:
    """A benchmark that is run and recorded on its own.

    Attributes:
        run: given the environments of the peers and whether this is only a try, the tables and what
            was skipped.
        needs: environments of the peers.
    """

    title: str
    run: Callable[[environments.Environments, bool], tuple[list[Table], list[str]]]
    needs: tuple[str, ...] = ()


def _search(_: environments.Environments, quick: bool) -> tuple[list[Table], list[str]]:
    if quick:
        return [ratios([against_matrix_products(100)])], []
    return [ratios([against_matrix_products(784), against_matrix_products(100), leaving()])], []


def _training(_: environments.Environments, quick: bool) -> tuple[list[Table], list[str]]:
    return [ratios([per_row_gradient(size) for size in ((1000,) if quick else (1000, 30))])], []


PARTS = {
    "search": Part("Search", _search),
    "line": Part("Search free of step size", line.run),
    "training": Part("Training, per gradient of a row", _training),
    "evaluation": Part("Evaluation beside training, and the memory of IP*", evaluation.run),
    "peers": Part(
        "Counterfactuals per second beside other libraries",
        peers.run,
        ("relax", "dice", "alibi"),
    ),
    "explainers": Part("Advice beside DiCE and alibi", explainers.run, ("dice", "alibi")),
    "lone": Part("One model, before and after", lone.run),
    "fleet": Part("Fleets, before and after", fleet.run, ("jax",)),
    "methods": Part("Methods", methods.run),
    "art": Part("Adversarial training beside ART's", art.run, ("art",)),
    "conformal": Part("Conformal sets beside MAPIE's", conformal.run, ("mapie",)),
    "growth": Part("Growth of time and memory", growth.run),
    "gates": Part("Gates", gates.run),
    "export": Part("An exported model beside torch", export.run),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all by default"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("results/benchmarks.md"), help="the page"
    )
    parser.add_argument(
        "--records", type=Path, help="folder of the records; by default named like the page"
    )
    parser.add_argument(
        "--environments",
        type=Path,
        default=Path(".bench"),
        help="folder of the peers' environments",
    )
    parser.add_argument(
        "--before",
        default=environments.BEFORE,
        help="the commit that today's code is compared with",
    )
    parser.add_argument(
        "--install",
        action="store_true",
        help="make environments that these parts miss, then stop",
    )
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes, to see that it runs; writes no page"
    )
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    unknown = sorted(set(options.parts) - set(PARTS))
    if unknown:
        parser.error(f"no part called {', '.join(unknown)}; there are {', '.join(PARTS)}")
    places = environments.Environments(options.environments, options.before)
    if options.install:
        needs = [name for part in options.parts or PARTS for name in PARTS[part].needs]
        environments.install(places, needs)
    elif options.child:
        _record(options.parts[0], places, options.quick).save(options.child)
    else:
        records = options.records or options.out.with_suffix("")
        if options.quick:
            records = options.environments / "quick"
        failed = [
            part for part in options.parts or PARTS if not _in_child(part, records, options)
        ]
        if not options.quick:
            write_page(records, options.out, list(PARTS))
        if failed:
            sys.exit(f"Failed: {', '.join(failed)}; see above.")


def _in_child(part: str, records: Path, options: argparse.Namespace) -> bool:
    """Run one part in a fresh process; whether it left a record."""
    arguments = [
        "-m",
        "benchmarks",
        part,
        "--child",
        str(records),
        "--environments",
        str(options.environments),
    ]
    arguments += ["--before", options.before]
    print(f"… {part}", flush=True)
    command = [sys.executable, *arguments, *(["--quick"] if options.quick else [])]
    done = subprocess.run(command, check=False)  # noqa: S603
    if done.returncode == 0:
        print(Record.load(records / f"{part}.json").markdown(), end="\n\n", flush=True)
    return done.returncode == 0


def _record(name: str, places: environments.Environments, quick: bool) -> Record:
    torch.set_num_threads(1)
    started = time.perf_counter()
    tables, skipped = PARTS[name].run(places, quick)
    record = Record(
        name,
        PARTS[name].title,
        f"python -m benchmarks {name}",
        tables,
        skipped,
        **circumstances(),
    )
    versions = {**record.versions, **places.versions}
    return replace(record, seconds=round(time.perf_counter() - started, 1), versions=versions)


if __name__ == "__main__":
    main()
