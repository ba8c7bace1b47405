"""Explanations and predictions as the plain values that the API sends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from counterfactual_serve.served import Model
from counterfactual_training.tables.advice import Explanation
from counterfactual_training.tables.advice.testimony import Lasting
from counterfactual_training.tables.advice.why import in_short
from counterfactual_training.tables.advice.words import RowNote, plain_value

# Decimals of a plausibility: sums over a thousand kernels in single precision have no more.
_SUMS = 4


def answers_of(explanation: Explanation, num_rows: int) -> list[dict[str, Any]]:
    """An answer per row: its plans, and what stands in the way where there are none.

    The rows of the explanation are numbered from 0, and may have several options each.
    """
    answers: list[dict[str, Any]] = [
        {"row": i, "plans": [], "notes": []} for i in range(num_rows)
    ]
    records = explanation.records()
    changed = explanation.changed.to_numpy()
    for i, record in enumerate(records):
        answer = answers[int(record["row"])]
        answer |= {
            "decision": plain_value(explanation.decision[i]),
            "target": plain_value(explanation.target[i]),
        }
        answer["plans"].append(_plan(explanation, i, record, changed[i]))
    for note in explanation.notes:
        if isinstance(note, RowNote):
            # Without its number, which a row has only in its batch.
            answers[int(note.row)]["notes"].append(f"This row {note.text}")
    return answers


def _plan(
    explanation: Explanation, i: int, record: dict[str, Any], changed: np.ndarray
) -> dict[str, Any]:
    features = explanation.encoder.schema_.features
    original = explanation.original
    frame = explanation.frame
    changes = []
    # The largest change first, as in the sentence; what only follows other columns has no distance.
    for j in sorted(
        np.flatnonzero(changed).tolist(), key=lambda j: -explanation.distance[i, j]
    ):
        before = plain_value(original.iat[i, j])
        after = plain_value(frame.iat[i, j])
        counted = not features[j].is_category and before is not None and after is not None
        changes.append(
            {
                "column": features[j].name,
                "from": before,
                "to": after,
                "change": float(after) - float(before) if counted else None,
                "unit": features[j].unit,
                "cost": round(float(explanation.distance[i, j]), 4),
                "follows": bool(explanation.distance[i, j] == 0),
            }
        )
    return {
        "option": int(record.get("option", 1)),
        "status": str(explanation.status[i]),
        "answered": bool(explanation.answered[i]),
        # The plausibility stands beside it, and so does what it means among real rows.
        "sentence": explanation.sentence(i, plausibility=False),
        "cost": round(float(explanation.cost[i]), 4),
        "changed": int((explanation.distance[i] > 0).sum()),
        "prediction": plain_value(explanation.prediction[i]),
        "confidence": rounded(explanation.confidence[i]),
        "plausibility": plain_value(rounded(explanation.plausibility[i], _SUMS)),
        **_lasting(explanation, i),
        "values": row_values(frame, i),
        "changes": changes,
        "binding": [
            {"column": features[hurdle.feature].name, "reason": in_short(hurdle)}
            for hurdle in explanation.obstacles[i]
        ],
    }


def _lasting(explanation: Explanation, i: int) -> dict[str, Any]:
    """What witnesses say of a plan, and of what would be just enough; nothing without witnesses."""
    lasting = explanation.lasting
    if lasting is None:
        return {}
    answer: dict[str, Any] = {
        **_holding(lasting, i),
        "witnesses": lasting.num_witnesses,
        "reached": bool(lasting.reached[i]),
    }
    enough = lasting.just_enough
    if enough is not None and enough.lasting is not None and lasting.row is not None:
        j = int(lasting.row[i])
        answer["just_enough"] = {
            **_holding(enough.lasting, j),
            "cost": round(float(enough.cost[j]), 4),
            "values": row_values(enough.frame, j),
        }
    return {"lasting": answer}


def _holding(lasting: Lasting, i: int) -> dict[str, Any]:
    return {
        "holds": int(lasting.holds[i]),
        "probability": rounded(lasting.probability[i], _SUMS),
    }


def rounded(probability: Any, decimals: int = 6) -> float:
    """A probability without the digits that depend on what else was in its batch."""
    return round(float(probability), decimals)


def row_values(frame: pd.DataFrame, i: int) -> dict[str, Any]:
    """A row as plain values by column."""
    return {str(name): plain_value(frame.iat[i, j]) for j, name in enumerate(frame.columns)}


def predictions_of(model: Model, frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Decision, probabilities and plausibility of each row."""
    classifier = model.classifier
    classes = model.classes
    probability = classifier.predict_proba(frame)
    gated = classifier.gate_ is not None
    if gated:
        plausibility = classifier.plausibility(frame, given_fixed=True)
    else:
        plausibility = np.zeros((len(frame), 0))
    return [
        {
            "decision": classes[int(line.argmax())],
            "confidence": rounded(line.max()),
            "probabilities": _by_class(classes, line),
            "plausibility": _by_class(classes, line_plausibility, _SUMS) if gated else None,
        }
        for line, line_plausibility in zip(probability, plausibility, strict=True)
    ]


def _by_class(classes: list[Any], numbers: np.ndarray, decimals: int = 6) -> dict[str, float]:
    return {
        str(label): rounded(number, decimals)
        for label, number in zip(classes, numbers, strict=True)
    }
