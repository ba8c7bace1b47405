"""``ct serve``: a local page about a model, and its JSON API."""

from __future__ import annotations

import argparse
import os
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from counterfactual_training import defaults
from counterfactual_training.cli.options import (
    add_model,
    add_positive,
    add_target,
    at_least_one,
)
from counterfactual_training.cli.output import note
from counterfactual_training.cli.parsing import pick_label
from counterfactual_training.errors import InputError, need_extra

if TYPE_CHECKING:
    from counterfactual_serve.guard import Access
    from counterfactual_serve.served import Model, ServedRows
    from counterfactual_serve.server import Address
    from counterfactual_training.cli.saved_models import DatasetModel, TableModel

DESCRIPTION = """\
Open a page where people see, ask and compare: who is decided how, what would have to change, \
what if a value were another one, a map, groups, the model card. Everything stays on this \
machine, and works offline. The page uses a JSON API, described in docs/reference/http-api.md \
and at /api/openapi.json."""
EPILOG = """\
examples:
  ct serve people.safetensors --data people.csv
  ct serve people.safetensors --data people.csv --against conventional.safetensors --port 8080
  ct serve adult.safetensors --data adult --positive '>50K' --no-open
  CT_TOKEN=… ct serve people.safetensors --host 0.0.0.0 --allow-host advice.example.org

Rows are shown only if --data is given. On an address that others can reach, the API asks for a
token: CT_TOKEN, or one that is made up and printed. CT_RECEIPT_KEY signs receipts."""


def add(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument(
        "--against", metavar="MODEL", help="another model of the same columns, to compare with"
    )
    add_positive(parser)
    add_target(parser)
    parser.add_argument("--host", default=defaults.HOST, help="the address to listen on")
    parser.add_argument(
        "--port",
        type=int,
        default=defaults.PORT,
        help="the port to listen on; 0 takes any that is free",
    )
    allow = (
        "a name that the server is known by, such as that of a proxy in front of it; may be "
        "given again"
    )
    parser.add_argument("--allow-host", action="append", default=[], metavar="NAME", help=allow)
    parser.add_argument(
        "--root-path", metavar="PATH", help="under which a proxy mounts the page"
    )
    parser.add_argument("--no-open", action="store_true", help="do not open a browser")
    limits = parser.add_argument_group("limits")
    workers = "processes that search (default: one per processor, at most 4)"
    limits.add_argument("--workers", type=at_least_one, metavar="N", help=workers)
    counts = {
        "people": (defaults.MAX_PEOPLE, "rows of --data to show"),
        "rows": (defaults.MAX_ROWS, "rows of one request"),
        "body": (defaults.MAX_BODY, "bytes of one request"),
        "waiting": (
            defaults.MAX_WAITING,
            "rows in the queue; beyond them, clients are told to come back",
        ),
    }
    for name, (default, what) in counts.items():
        limits.add_argument(
            f"--max-{name}", type=at_least_one, default=default, metavar="N", help=what
        )
    slow = "until a search is answered with what was found"
    limits.add_argument(
        "--max-seconds", type=float, default=defaults.MAX_SECONDS, metavar="S", help=slow
    )
    limits.add_argument(
        "--log-level",
        choices=["info", "warning", "error"],
        default="info",
        help="of the JSON lines on stderr",
    )


def run(arguments: argparse.Namespace) -> None:
    for package in ("starlette", "uvicorn"):
        need_extra(package, "serve")
    from counterfactual_serve.server import Address

    if arguments.max_waiting < arguments.max_rows:
        raise InputError(
            "--max-waiting must be at least --max-rows, or a large request could never be answered."
        )
    if not 0 < arguments.max_seconds <= 3600:
        raise InputError(
            f"--max-seconds must be above 0 and at most 3600, got {arguments.max_seconds:g}."
        )
    address = Address(
        arguments.host,
        arguments.port,
        tuple(arguments.allow_host),
        os.environ.get("CT_TOKEN") or None,
    )
    access = address.access()
    # Before anything is loaded, so that a port in use is reported at once.
    with address.listen() as listener:
        _serve(arguments, address, access, listener)


def _serve(
    arguments: argparse.Namespace, address: Address, access: Access, listener: socket.socket
) -> None:
    from counterfactual_serve.questions import Limits
    from counterfactual_serve.served import Served
    from counterfactual_serve.server import open_browser, run_server, url_of
    from counterfactual_training.cli.saved_models import open_model

    opened = open_model(arguments.model)
    model = as_served(opened, arguments.positive)
    if arguments.against is None:
        other = None
    else:
        other = as_served(open_model(arguments.against), arguments.positive)
    rows = _rows(opened, arguments.data, arguments.target, arguments.max_people)
    served = Served(model, other, rows)
    if rows is not None:
        # Cells that the model cannot read are reported now, not after the page is open.
        _ = served.decided
    port = listener.getsockname()[1]
    url = url_of(address, port, access.token)
    document = {"url": url, "model": model.name, "rows": 0 if rows is None else len(rows.frame)}
    _say(arguments, url, document, access.token is not None)
    if not arguments.no_open:
        # A little later, when the server answers.
        threading.Timer(1.0, _look, [open_browser, url]).start()
    limits = Limits(
        rows=arguments.max_rows,
        body=arguments.max_body,
        seconds=arguments.max_seconds,
        queue=arguments.max_waiting,
        people=arguments.max_people,
    )
    key = os.environ.get("CT_RECEIPT_KEY")
    run_server(
        served,
        listener,
        access=access,
        limits=limits,
        workers=arguments.workers or min(4, os.cpu_count() or 1),
        key=key.encode() if key else None,
        root_path=arguments.root_path or "",
        log_level=arguments.log_level,
    )


def _look(open_browser: Callable[[str], bool], url: str) -> None:
    if not open_browser(url):
        note(f"no browser found: open {url} yourself")


def _say(
    arguments: argparse.Namespace, url: str, document: dict[str, Any], token: bool
) -> None:
    """Say where the page is: at once, because the command goes on until it is stopped."""
    from counterfactual_serve.guard import is_loopback
    from counterfactual_training.cli.output import emit

    if token:
        asks = " It asks for the token behind '#'."
    else:
        asks = ""
    if token and not arguments.allow_host and not is_loopback(arguments.host):
        asks += " Other machines reach it only by names that --allow-host gives it."
    emit(arguments, document, f"Open {url} to look; Ctrl-C ends it.{asks}")
    sys.stdout.flush()


def as_served(opened: DatasetModel | TableModel, target: str | None = None) -> Model:
    """A model as the server takes it: with its name and the sum of its file, without its folder."""
    import hashlib

    from counterfactual_serve.served import Model

    path = Path(opened.path)
    classifier = opened.classifier
    wanted = pick_label(target, classifier.classes_, opened.positive)
    facts = tuple(fact for fact in opened.facts() if fact[0] != "file")
    return Model(
        classifier, path.name, hashlib.sha256(path.read_bytes()).hexdigest(), wanted, facts
    )


def _rows(
    opened: DatasetModel | TableModel, data: str | None, target: str | None, most: int
) -> ServedRows | None:
    """The rows of ``--data``, the first ones if there are too many."""
    from counterfactual_serve.served import ServedRows

    if data is None:
        return None
    frame, labels, trained_on = opened.every_row(data, target)
    if len(frame) > most:
        note(
            f"{Path(data).name} has {len(frame):,} rows; the first {most:,} are shown: "
            "--max-people shows more"
        )
    first = slice(0, most)
    return ServedRows(
        Path(data).name,
        frame.iloc[first].reset_index(drop=True),
        None if labels is None else labels.iloc[first].reset_index(drop=True),
        None if trained_on is None else trained_on[first],
        len(frame),
    )
