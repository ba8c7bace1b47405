"""Golden files: what the library answers today, so that a change of its shape can be seen to change
nothing else.

``python -m tools.golden`` compares; ``--write`` writes anew, after a person has read the
difference; ``make check`` compares, too. The files are in ``tests/golden``: tables of a quick
reproduction, predictions and advice of random tables by three methods, and answers over HTTP.
Numbers are compared to four digits: kernels differ between processors. Rows of tables are compared
by what names them, so that one row more is one difference.
"""

from __future__ import annotations

import argparse
import json
import math
import reprlib
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from starlette.testclient import TestClient

import counterfactual_training as ct
from counterfactual_serve.app import make_app
from counterfactual_serve.served import Model, Served
from tools.random_tables import draw, rules_of_fit

FOLDER = Path(__file__).parents[1] / "tests" / "golden"
# How many random tables each method is asked about, the default last: its tables have no gate and
# the density by turns.
_TABLES = {"conventional": 10, "ct": 2, "bag": 2}
_PEOPLE = 12
# The tables of the reproduction, and the columns that name their rows.
_ROWS_OF = {
    "main": ("data", "metric", "quantity"),
    "main_performance": ("data", "metric", "quantity"),
    "truth": ("data", "setting", "tau", "method", "metric"),
}
# Differences to show of each part.
_SHOWN = 20
_TOLERANCE = 1e-4


def reproduction() -> Any:
    """The main table of a quick reproduction, on two synthetic data sets."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["reproduce", "main", "--quick", "--data", "LS,Moon", "--out", folder]
        subprocess.run(
            [sys.executable, "-m", "counterfactual_training.cli", *command],
            check=True,
            capture_output=True,
        )
        return {
            name: rows_by_name(pd.read_csv(Path(folder) / f"{name}.csv"), columns)
            for name, columns in _ROWS_OF.items()
        }


def answers() -> Any:
    """Predictions, before and after a file, and advice of random tables with random rules."""
    return {method: _answers_of(method, tables) for method, tables in _TABLES.items()}


def _answers_of(method: str, tables: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    records = []
    for table in range(tables):
        frame, y = draw(rng)
        gate = ("density", "none")[table % 2]
        classifier = ct.CounterfactualClassifier(
            method,
            epochs=15,
            gate=gate,
            random_state=0,
            progress=False,
            **rules_of_fit(rng),
        ).fit(frame, y)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.safetensors"
            classifier.save(path)
            loaded = ct.CounterfactualClassifier.load(path)
        people = frame[loaded.predict(frame) == 0].head(_PEOPLE)
        explanation = loaded.explain(people, n_options=2)
        records.append(
            {
                "trained": classifier.predict_proba(frame.head(_PEOPLE)).tolist(),
                "loaded": loaded.predict_proba(frame.head(_PEOPLE)).tolist(),
                "status": list(explanation.status),
                "cost": explanation.cost.tolist(),
                "advice": explanation.frame.astype(object).to_dict("records"),
            }
        )
    return records


def http() -> Any:
    """What the server says of its model, of rows and of advice."""
    return {method: _documents(method) for method in _TABLES}


def _documents(method: str) -> dict[str, Any]:
    frame, y = draw(np.random.default_rng(1))
    classifier = ct.CounterfactualClassifier(
        method, epochs=15, random_state=0, progress=False
    ).fit(frame, y)
    served = Served(Model(classifier, "model.safetensors", "a" * 64))
    denied = frame[classifier.predict(frame) == 0].head(3).astype(object).to_dict("records")
    questions = {
        "predict": {"rows": denied},
        "explain": {"rows": denied, "options": 2},
        "explain under rules": {"rows": denied, "lock": ["income"], "max_changes": 2},
        "an unknown column": {"rows": [{"nothing": 1}]},
    }
    documents: dict[str, Any] = {}
    with TestClient(make_app(served, workers=1), base_url="http://127.0.0.1:8000") as client:
        for name in ("model", "schema"):
            documents[name] = client.get(f"/api/v1/{name}").json()
        for name, body in questions.items():
            if name != "an unknown column":
                path = name.split()[0]
            else:
                path = "predict"
            response = client.post(f"/api/v1/{path}", json=body)
            documents[name] = {"status": response.status_code, "body": response.json()}
    return documents


PARTS: dict[str, Callable[[], Any]] = {
    "reproduction": reproduction,
    "answers": answers,
    "http": http,
}
# What differs from run to run.
_PASSING = {
    "seconds",
    "id",
    "time",
    "created",
    "receipt",
    "digest",
    "signature",
    "version",
    "versions",
}


def rows_by_name(table: pd.DataFrame, names: Sequence[str]) -> dict[str, Any]:
    """The rows of a table by the values of the columns that name them."""
    rows: dict[str, Any] = {}
    for row in table.astype(object).to_dict("records"):
        name = ", ".join(str(row.pop(column)) for column in names)
        if name in rows:
            raise ValueError(f"Two rows are named {name!r}.")
        rows[name] = row
    return rows


def differences(before: Any, after: Any, where: str = "") -> Iterator[str]:
    """Where two values of JSON differ, and how, in short lines: one for each row of a table."""
    if isinstance(before, dict) and isinstance(after, dict):
        yield from _differences_of_dicts(before, after, where)
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for at, pair in enumerate(zip(before, after, strict=True)):
            yield from differences(*pair, f"{where}[{at}]")
    elif not _same(before, after):
        yield f"{where}: {_short(before, after)}"


def _differences_of_dicts(
    before: dict[str, Any], after: dict[str, Any], where: str
) -> Iterator[str]:
    plain = []
    for key in sorted({*before, *after} - _PASSING):
        parts = [part[key] for part in (before, after) if key in part]
        large = any(isinstance(part, dict | list) for part in parts)
        if len(parts) == 1:
            what = "is new"
            if key in before:
                what = "is gone"
            if large:
                yield f"{where}.{key}: {what}"
            else:
                plain.append(f"{key} {what}")
        elif large:
            yield from differences(*parts, f"{where}.{key}")
        elif not _same(*parts):
            plain.append(f"{key} {_short(*parts)}")
    if plain:
        yield f"{where}: {', '.join(plain)}"


def _short(before: Any, after: Any) -> str:
    if isinstance(before, float) and isinstance(after, float):
        return f"{before:.6g} → {after:.6g}"
    return f"{reprlib.repr(before)} → {reprlib.repr(after)}"


def _same(before: Any, after: Any) -> bool:
    numbers = (int, float)
    if isinstance(before, numbers) and isinstance(after, numbers):
        return (
            math.isclose(before, after, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)
            or before != before != after
        )
    return bool(before == after)


def _plain(value: Any) -> Any:
    """As JSON has it."""
    return json.loads(
        json.dumps(value, default=lambda one: one.item() if hasattr(one, "item") else str(one))
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "parts", nargs="*", choices=[*PARTS, []], help="which of them; all by default"
    )
    parser.add_argument("--write", action="store_true", help="write the files anew")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    count = 0
    for name in options.parts or PARTS:
        path = FOLDER / f"{name}.json"
        now = _plain(PARTS[name]())
        if options.write:
            FOLDER.mkdir(exist_ok=True)
            path.write_text(json.dumps(now, indent=1) + "\n")
            continue
        changed = list(differences(json.loads(path.read_text()), now))
        count += len(changed)
        shown = changed[:_SHOWN]
        if len(changed) > _SHOWN:
            shown.append(f"… and {len(changed) - _SHOWN} more")
        print(f"{name}: {len(changed)} differences", *shown, sep="\n  ")
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main())
