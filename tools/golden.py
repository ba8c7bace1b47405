"""Golden files: what the library answers today, so that a change of its shape can be seen to change
nothing else.

``python -m tools.golden`` compares; ``--write`` writes anew, after a person has read the
difference. The files are in ``tests/golden``: tables of a quick reproduction, predictions and
advice of ten random tables, and answers over HTTP. Numbers are compared to four digits: kernels
differ between processors.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
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
_TABLES = 10
_PEOPLE = 12
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
            name: pd.read_csv(Path(folder) / f"{name}.csv").astype(object).to_dict("list")
            for name in ("main", "main_performance", "truth")
        }


def answers() -> Any:
    """Predictions, before and after a file, and advice of random tables with random rules."""
    rng = np.random.default_rng(0)
    records = []
    for table in range(_TABLES):
        frame, y = draw(rng)
        gate = ("density", "none")[table % 2]
        classifier = ct.CounterfactualClassifier(
            "conventional",
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
                "advice": explanation.frame.astype(object).to_dict("list"),
            }
        )
    return records


def http() -> Any:
    """What the server says of its model, of rows and of advice."""
    frame, y = draw(np.random.default_rng(1))
    classifier = ct.CounterfactualClassifier(
        "conventional", epochs=15, random_state=0, progress=False
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


def differences(before: Any, after: Any, where: str = "") -> Iterator[str]:
    """Where two values of JSON differ, and how."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted({*before, *after} - _PASSING):
            yield from differences(before.get(key), after.get(key), f"{where}.{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for at, pair in enumerate(zip(before, after, strict=True)):
            yield from differences(*pair, f"{where}[{at}]")
    elif not _same(before, after):
        yield f"{where}: {before!r} was golden, now {after!r}"


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
        print(f"{name}: {len(changed)} differences", *changed[:20], sep="\n  ")
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main())
