"""``ct data``: the paper's data sets, what is in them, and how to get their files."""

from __future__ import annotations

import argparse
from typing import Any

from counterfactual_training.cli.options import add_command
from counterfactual_training.cli.output import emit, note
from counterfactual_training.datasets.catalog import dataset_info, fetch_dataset, list_datasets
from counterfactual_training.datasets.dataset import Variant
from counterfactual_training.reports.text_table import ruled
from counterfactual_training.tabular.schema import Schema
from counterfactual_training.text import align

_VARIANTS = "default (the paper's rows), as_run (with the quirks of the published run), or full (all rows)"
_EXAMPLES = """\
examples:
  ct data list                      all data sets, and which are on this machine
  ct data info adult                sizes, classes and their shares, columns and their rules
  ct data fetch mnist               get the files, checked by sha256

Files are looked up in the folder CT_DATA_HOME, then in the cache; otherwise they are downloaded."""


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    parser = add_command(
        commands,
        "data",
        "the paper's data sets: list, info, fetch",
        "The paper's nine data sets and the loan example.",
        epilog=_EXAMPLES,
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    listing = actions.add_parser("list", parents=[common], help="all data sets, and which are on this machine")
    listing.set_defaults(run=show_list)
    info = actions.add_parser("info", parents=[common], help="sizes, classes, shares and columns of a data set")
    info.set_defaults(run=show_info)
    fetch = actions.add_parser("fetch", parents=[common], help="get the files of a data set")
    fetch.set_defaults(run=fetch_files)
    for action in (info, fetch):
        action.add_argument("name", metavar="NAME", help="a name or short name from `ct data list`")
        action.add_argument("--variant", default="default", metavar="VARIANT", help=_VARIANTS)


def show_list(arguments: argparse.Namespace) -> None:
    entries = list_datasets()
    lines = [["name", "short", "on this machine", "what it is"]]
    for entry in entries:
        ready = "yes" if entry["ready"] == entry["variants"] else ", ".join(entry["ready"]) or "no"
        lines.append([entry["name"], entry["short_name"], ready, entry["title"]])
    emit(arguments, {"datasets": entries}, ruled(lines))


def show_info(arguments: argparse.Namespace) -> None:
    info = dataset_info(arguments.name, _variant(arguments))
    emit(arguments, info, _info_text(info))


def _info_text(info: dict[str, Any]) -> str:
    train, test = info["train_classes"], info["test_classes"]
    indexed = {
        c["name"]: c["name"] if c["name"] == str(c["index"]) else f"{c['index']} = {c['name']}" for c in info["classes"]
    }
    counts = [f"{indexed[name]}: {train[name] + test[name]:,} ({share:.1%})" for name, share in info["shares"].items()]
    held = info["protected"]
    lines = [
        ["data set", f"{info['name']} ({info['short_name']}), {info['title']}"],
        ["variant", f"{info['variant']}, of {', '.join(info['variants'])}"],
        ["rows", f"{info['rows']:,}: {info['train_rows']:,} to train, {info['test_rows']:,} to test"],
        ["features", f"{info['features']:,}, in {info['columns']:,} columns once encoded"],
        ["classes", "; ".join(counts)],
        ["protected", ", ".join(held) if len(held) < 6 else f"{held[0]} … {held[-1]} ({len(held)} features)"],
        [
            "paper's settings",
            f"batches of {info['batch_size']}, τ = {info['decision_threshold']}, λ_reg = {info['lambda_reg']}, "
            f"{info['num_counterfactuals']:,} counterfactuals per epoch",
        ],
    ]
    lines += [["file", f"{file['path']}: {file['terms']}"] for file in info["files"]]
    return "\n".join(align(lines)) + f"\n\n{Schema.from_dict(info['schema'])}"


def fetch_files(arguments: argparse.Namespace) -> None:
    name, variant = arguments.name, _variant(arguments)
    files = fetch_dataset(name, variant)
    for file in files:
        note(f"{file['file']} from {file['origin']}")
    lines = [f"{file['path']}" for file in files] or [f"{name} is generated and needs no files."]
    emit(arguments, {"name": name, "variant": variant, "files": files}, "\n".join(lines))


def _variant(arguments: argparse.Namespace) -> Variant:
    """Not checked here: the catalogue rejects unknown variants."""
    variant: Variant = arguments.variant
    return variant
