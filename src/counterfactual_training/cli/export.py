"""``ct export``: saved models for programs without torch."""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

from counterfactual_training.cli.options import add_common
from counterfactual_training.cli.output import emit, not_over, writable
from counterfactual_training.errors import need_extra

DESCRIPTION = """Write a saved model as an ONNX file: logits, probabilities, plausibility and the gradient that a \
search for advice follows, and in its metadata how rows are encoded and where advice may lead. A service predicts and \
advises with it by onnxruntime and numpy alone; examples/onnx_service.py shows how."""
EPILOG = """\
examples:
  ct export onnx people.safetensors --out people.onnx
  ct export onnx loan.safetensors --json

A density gate stores encoded training rows: they are in the ONNX file, as they are in the model file."""


def add(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    onnx = add_common(actions.add_parser("onnx", help="one ONNX file, for services without torch"))
    onnx.set_defaults(run=write_onnx)
    onnx.add_argument("model", metavar="MODEL", help="a file saved by `ct train` or CounterfactualClassifier.save")
    onnx.add_argument("--out", metavar="FILE", help="the ONNX file (default: beside the model, ending in .onnx)")


def write_onnx(arguments: argparse.Namespace) -> None:
    # First of all: a missing package or a folder without rights is told before anything is loaded.
    need_extra("onnx", "onnx")
    out = writable(str(Path(arguments.model).with_suffix(".onnx")) if arguments.out is None else arguments.out)
    not_over(out, arguments.model)
    from counterfactual_training.cli.saved_models import open_model
    from counterfactual_training.export import export_onnx

    opened = open_model(arguments.model)
    file = Path(arguments.model)
    source = {"name": file.name, "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
    described = export_onnx(opened.classifier, out, wanted=opened.positive, source=source)
    size, columns = Path(out).stat().st_size, described["columns"]
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
        f"{out}: {len(columns)} columns in {document['inputs']} inputs, {len(described['classes'])} classes, "
        f"{size / 1024:,.0f} kB. examples/onnx_service.py predicts and advises with it.",
    )
