"""``ct export``: saved models for programs without torch."""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

from counterfactual_training.cli.output import emit, not_over, writable
from counterfactual_training.errors import need_extra

DESCRIPTION = """\
Write a saved model as an ONNX file: logits, probabilities, plausibility and the gradient \
that a search for advice follows, and in its metadata how rows are encoded and where advice \
may lead. A service predicts and advises with it by onnxruntime and numpy alone; \
examples/onnx_service.py shows how."""
EPILOG = """\
examples:
  ct export people.safetensors
  ct export loan.safetensors models/loan.onnx --json

A density gate stores encoded training rows: they are in the ONNX file, as they are in the model
file."""


def add(parser: argparse.ArgumentParser) -> None:
    model = "a file saved by `ct train` or CounterfactualClassifier.save"
    parser.add_argument("model", metavar="MODEL", help=model)
    out = "the ONNX file (default: beside the model, ending in .onnx)"
    parser.add_argument("out", metavar="OUT", nargs="?", help=out)


def run(arguments: argparse.Namespace) -> None:
    # First, so that a missing package or a folder without rights is reported before any loading.
    need_extra("onnx", "onnx")
    out = arguments.out
    if out is None:
        out = str(Path(arguments.model).with_suffix(".onnx"))
    writable(out, "OUT")
    not_over(out, arguments.model, option="OUT")
    from counterfactual_training.cli.saved_models import open_model
    from counterfactual_training.tables.export import export_onnx

    opened = open_model(arguments.model)
    file = Path(arguments.model)
    source = {"name": file.name, "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
    described = export_onnx(opened.classifier, out, wanted=opened.positive, source=source)
    size = Path(out).stat().st_size
    columns = described["columns"]
    document = {
        "model": arguments.model,
        "out": out,
        "bytes": size,
        "sha256": source["sha256"],
        "classes": described["classes"],
        "gate": described["gate"],
        "inputs": sum(column["width"] for column in columns),
    }
    emit(
        arguments,
        document,
        f"{out}: {len(columns)} columns in {document['inputs']} inputs, "
        f"{len(described['classes'])} classes, "
        f"{size / 1024:,.0f} kB. examples/onnx_service.py predicts and advises with it.",
    )
