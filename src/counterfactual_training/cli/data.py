"""``ct data``: the paper's data sets, what is in them, and how to get their files."""

from __future__ import annotations

import argparse
from typing import Any

from counterfactual_training.cli.options import VARIANTS, add_common
from counterfactual_training.cli.output import emit, note
from counterfactual_training.defaults import VARIANT
from counterfactual_training.text import align

DESCRIPTION = "The paper's nine data sets, the loan example and Fashion-MNIST."
EPILOG = """\
examples:
  ct data list                      all data sets, and which are on this machine
  ct data info adult                sizes, classes and their shares, columns and their rules
  ct data fetch mnist               get the files, checked by sha256

Files are looked up in the folder CT_DATA_HOME, then in the cache; otherwise they are downloaded."""


def add(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    for name, run, purpose in (
        ("list", show_list, "all data sets, and which are on this machine"),
        ("info", show_info, "sizes, classes, shares and columns of a data set"),
        ("fetch", fetch_files, "get the files of a data set"),
    ):
        action = add_common(actions.add_parser(name, help=purpose))
        action.set_defaults(run=run)
        if name != "list":
            action.add_argument(
                "name", metavar="NAME", help="a name or short name from `ct data list`"
            )
            action.add_argument("--variant", default=VARIANT, metavar="VARIANT", help=VARIANTS)


def show_list(arguments: argparse.Namespace) -> None:
    from counterfactual_training.datasets.catalog import list_datasets
    from counterfactual_training.text_table import ruled

    entries = list_datasets()
    lines = [["name", "short", "on this machine", "what it is"]]
    for entry in entries:
        # Variants have files of their own: some may be here, others not.
        if entry["ready"] == entry["variants"]:
            ready = "yes"
        else:
            ready = ", ".join(entry["ready"]) or "no"
        lines.append([entry["name"], entry["short_name"], ready, entry["title"]])
    emit(arguments, {"datasets": entries}, ruled(lines))


def show_info(arguments: argparse.Namespace) -> None:
    from counterfactual_training.datasets.catalog import dataset_info

    info = dataset_info(arguments.name, arguments.variant)
    emit(arguments, info, _info_text(info))


def _info_text(info: dict[str, Any]) -> str:
    from counterfactual_training.tables.columns.schema import Schema

    counts = []
    for index, name in ((str(entry["index"]), entry["name"]) for entry in info["classes"]):
        count = info["train_classes"][name] + info["test_classes"][name]
        if name == index:
            shown = name
        else:
            shown = f"{index} = {name}"
        counts.append(f"{shown}: {count:,} ({info['shares'][name]:.1%})")
    # Of images, these are hundreds of pixels.
    protected = info["protected"]
    lines = [
        ["data set", f"{info['name']} ({info['short_name']}), {info['title']}"],
        ["variant", f"{info['variant']}, of {', '.join(info['variants'])}"],
        [
            "rows",
            f"{info['rows']:,}: {info['train_rows']:,} to train, {info['test_rows']:,} to test",
        ],
        ["features", f"{info['features']:,}, in {info['columns']:,} columns once encoded"],
        ["classes", "; ".join(counts)],
        [
            "protected",
            ", ".join(protected)
            if len(protected) < 6
            else f"{protected[0]} … {protected[-1]} ({len(protected)} features)",
        ],
        [
            "paper's settings",
            f"batches of {info['batch_size']}, τ = {info['decision_threshold']}, λ_reg = "
            f"{info['lambda_reg']}, "
            f"{info['num_counterfactuals']:,} counterfactuals per epoch",
        ],
    ]
    lines += [["file", f"{file['path']}: {file['terms']}"] for file in info["files"]]
    return "\n".join(align(lines)) + f"\n\n{Schema.from_dict(info['schema'])}"


def fetch_files(arguments: argparse.Namespace) -> None:
    from counterfactual_training.datasets.catalog import fetch_dataset

    name = arguments.name
    variant = arguments.variant
    files = fetch_dataset(name, variant)
    for file in files:
        note(f"{file['file']} from {file['origin']}")
    lines = [f"{file['path']}" for file in files] or [
        f"{name} is generated and needs no files."
    ]
    emit(arguments, {"name": name, "variant": variant, "files": files}, "\n".join(lines))
