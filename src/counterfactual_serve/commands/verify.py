"""``ct verify``: check a receipt that the page gave out."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from counterfactual_training.cli.output import emit
from counterfactual_training.errors import CounterfactualTrainingError, InputError

DESCRIPTION = """\
Check a receipt: that it was not altered, that it was issued for this model, and that the \
model still decides as it says, before and after the plan. With CT_RECEIPT_KEY, also that it \
was signed with this key."""
EPILOG = """\
examples:
  ct verify receipt.json --model people.safetensors
  ct verify receipt.json --model people.safetensors --json"""
# A receipt of a thousand columns is smaller.
_LARGEST = 5_000_000


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("receipt", metavar="RECEIPT", help="the JSON file")
    parser.add_argument(
        "--model", required=True, metavar="MODEL", help="the model that it was issued for"
    )


def run(arguments: argparse.Namespace) -> None:
    from counterfactual_serve.commands.serve import as_served
    from counterfactual_serve.receipt import verify_receipt
    from counterfactual_training.cli.saved_models import open_model

    receipt = _read(Path(arguments.receipt))
    key = os.environ.get("CT_RECEIPT_KEY")
    checks = verify_receipt(
        receipt, as_served(open_model(arguments.model)), key.encode() if key else None
    )
    valid = all(check.passed for check in checks)
    lines = [
        f"{'ok ' if check.passed else 'NO '} {check.name}: {check.message}" for check in checks
    ]
    emit(
        arguments,
        {"valid": valid, "checks": [vars(check) for check in checks]},
        "\n".join(lines),
    )
    if not valid:
        raise CounterfactualTrainingError(
            f"{arguments.receipt}: this receipt is not valid for {arguments.model}."
        )


def _read(path: Path) -> dict[str, object]:
    if path.is_file() and path.stat().st_size > _LARGEST:
        raise InputError(f"{path} is no receipt: it is larger than {_LARGEST:,} bytes.")
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, ValueError, RecursionError):
        raise InputError(f"{path} is no receipt: it holds no JSON.") from None
    # The API wraps it; the page saves it bare.
    if isinstance(document, dict):
        document = document.get("receipt", document)
    if not isinstance(document, dict):
        raise InputError(f"{path} is no receipt: it holds no JSON object.")
    return document
