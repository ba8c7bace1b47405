"""What a program without this package needs beside the graph, as JSON: encoding, rules and classes.

Everything is in the user's units: numbers as they are, categories by their position. The graph
takes encoded rows, and every column says how it is encoded, so no rule has to be stated twice.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pandas as pd
import torch

import counterfactual_training
from counterfactual_training.constraints import Constraints
from counterfactual_training.errors import InputError, check_name
from counterfactual_training.rules import with_trait
from counterfactual_training.tables.columns.column import Column
from counterfactual_training.tables.columns.constrain import may_become
from counterfactual_training.tables.columns.dtypes import to_plain
from counterfactual_training.tables.columns.limits import held_ends
from counterfactual_training.tables.estimators.classifier import CounterfactualClassifier

#: Key of the JSON in the metadata of an ONNX file, and the version of its form.
KEY = "counterfactual_training"
FORMAT = 1
# Scaling learned bounds to model space and back leaves noise behind these digits.
_DIGITS = 12


def describe_classifier(
    classifier: CounterfactualClassifier, wanted: Any = None
) -> dict[str, Any]:
    """Classes, columns with their encoding and rules, and what identifies the model.

    ``wanted`` is the class that people want, if that is known.
    """
    encoder = classifier.encoder_
    gate = classifier.gate_
    if wanted is not None:
        check_name("class", wanted, classifier.classes_.tolist())
    return {
        "format": FORMAT,
        "made_by": f"counterfactual-training {counterfactual_training.__version__}, torch "
        f"{torch.__version__}",
        "weights_sha256": weights_sha256(classifier),
        "classes": [_label(label) for label in classifier.classes_.tolist()],
        "wanted": None if wanted is None else _label(wanted),
        "gate": None if gate is None else [str(part["kind"]) for part in gate.describe()],
        # Advice flips the decision where a row is at least as plausible as not.
        "plausible": 0.5,
        "unseen": "error" if encoder.unseen == "error" else "unknown",
        "missing": encoder.missing,
        "relations": list(encoder.schema_.relations),
        "columns": describe_columns(encoder.columns_, classifier.constraints_),
    }


def describe_columns(columns: list[Column], constraints: Constraints) -> list[dict[str, Any]]:
    """Each column: where it stands among the d inputs of the graph, how it is encoded, where advice
    may lead.

    ``constraints`` are the rules in model space, by which ``explain`` searches.
    """
    described = []
    start = 0
    for column in columns:
        described.append(_column(column, start, constraints))
        start += column.width
    return described


def weights_sha256(classifier: CounterfactualClassifier) -> str:
    """A checksum of the weights of network and gate: equal for the same model, whatever it was
    exported to.
    """
    parts = {"model": classifier.model_, "gate": classifier.gate_}
    digest = hashlib.sha256()
    for part, module in parts.items():
        for name, tensor in sorted(module.state_dict().items()) if module is not None else ():
            values = tensor.detach().cpu().contiguous()
            digest.update(
                f"{part}.{name} {values.dtype} {tuple(values.shape)}".encode()
                + values.numpy().tobytes()
            )
    return digest.hexdigest()


def _column(column: Column, start: int, constraints: Constraints) -> dict[str, Any]:
    feature = column.feature
    move = constraints.directions[start]
    shared: dict[str, Any] = {
        "name": feature.name,
        "kind": feature.kind,
        "unit": feature.unit,
        "start": start,
        "width": column.width,
        "center": column.center,
        "scale": column.scale,
        "fill": column.fill,
        "difficulty": feature.difficulty,
    }
    # Positions are encoded like numbers, but may only become what the table says.
    if feature.is_category:
        may = [np.flatnonzero(line).tolist() for line in may_become(column)]
        return shared | {
            "categories": [_label(level) for level in feature.levels],
            "mean": column.mean,
            "may": may,
        }
    low, high = _limits(column, start, constraints)
    return shared | {
        "special": list(feature.special),
        "decimals": column.decimals,
        "move": move,
        "low": _open(low),
        "high": _open(high),
        **{rule: getattr(feature, rule) for rule in with_trait("number", "reach")},
        "values": None if column.advised is None else list(column.advised),
        "grid": None if feature.kind == "pixel" else column.advised_grid,
    }


def _limits(column: Column, start: int, constraints: Constraints) -> tuple[float, float]:
    """Where a number may go, in the user's units: the stated domain to its last digit, else what
    was learned.
    """
    box = (constraints.domain.lower, constraints.domain.upper)
    learned = [float(bound[start]) * column.scale + column.center for bound in box]
    ends = zip(held_ends(column.feature, column.dtype), learned, strict=True)
    low, high = (
        end if np.isfinite(end) else float(f"{seen:.{_DIGITS}g}") for end, seen in ends
    )
    return low, high


def _open(end: float) -> float | None:
    if np.isfinite(end):
        return end
    return None


def _label(value: Any) -> Any:
    """A class or category as JSON has it; an interval, as ``pd.cut`` makes them, by its text."""
    if isinstance(value, pd.Interval):
        return str(value)
    try:
        return to_plain(value)
    except InputError as error:
        raise InputError(f"The model cannot be exported: {error}") from None
