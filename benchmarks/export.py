"""An exported model beside torch: size of the file, time of a prediction and of a gradient, and the
example service's advice beside ``explain``. ``python -m benchmarks.export`` prints it; ``python -m
benchmarks export`` records it."""

from __future__ import annotations

import json
import runpy
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pandas as pd
import torch
from torch import Tensor

import counterfactual_training as ct
from benchmarks.environments import Environments
from benchmarks.report import Table, Value
from benchmarks.timing import race
from counterfactual_training.errors import FileError
from counterfactual_training.tables.export import export_onnx

EXAMPLE = Path(__file__).parents[1] / "examples" / "onnx_service.py"
GATES = ("none", "density", "learned")
# People who are advised, rows to train on, and epochs: any sensible classifier will do.
PEOPLE = 100
TRAINED = 20_000
EPOCHS = 10
SPEED = (
    "model",
    "gate",
    "file, kB",
    "model file, kB",
    "1 row: predict",
    "1 row: gradient",
    "1,000 rows: predict",
    "1,000 rows: gradient",
)
ADVICE = (
    "model",
    "people",
    "`explain` answers",
    "service answers",
    "cost: median ratio",
    "mean ratio",
    "90 % below",
    "ms per person: `explain`",
    "service",
)
SPEED_NOTE = """
Time of onnxruntime over that of torch, one thread each, encoded rows; below 1, onnxruntime is
faster. *Predict*: the probabilities alone. *Gradient*: of the loss that a search descends, with
plausibility if there is a gate; torch by autograd. """
ADVICE_NOTE = """
The people of the test rows that the model refuses, each asked alone of the service and all together
of `explain`, with a density gate. *Answers*: that reach the target at a plausible point. Ratios are
of those whom both answer: the cost of the service's advice (L1 in model space) over that of
`explain`. """


def run(_: Environments, quick: bool) -> tuple[list[Table], list[str]]:
    torch.set_num_threads(1)
    speed: list[tuple[Value, ...]] = []
    advice: list[tuple[Value, ...]] = []
    skipped = []
    for name in ("loan", "adult"):
        try:
            data = ct.load_dataset(name)
        except FileError as error:
            skipped.append(f"{name}: {error}")
            continue
        for gate in GATES[:2] if quick else GATES:
            row, comparison = _measured(data, gate, 10 if quick else PEOPLE)
            speed.append(row)
            if comparison is not None:
                advice += [comparison]
    return [
        Table(SPEED, speed, "Size and speed", SPEED_NOTE),
        Table(ADVICE, advice, "Advice", ADVICE_NOTE),
    ], skipped


def _measured(
    data: Any, gate: str, people: int
) -> tuple[tuple[Value, ...], tuple[Value, ...] | None]:
    """A row of each table; advice is compared for the default gate only."""
    labels = np.array(data.class_names)[data.y_train.numpy()]
    classifier = ct.CounterfactualClassifier(
        schema=data.schema, gate=gate, epochs=EPOCHS, random_state=0
    )
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        classifier.fit(data.frame_train.iloc[:TRAINED], labels[:TRAINED])
        file = Path(folder) / "model.onnx"
        saved = Path(folder) / "model.safetensors"
        export_onnx(classifier, file)
        classifier.save(saved)
        sizes = (round(file.stat().st_size / 1024), round(saved.stat().st_size / 1024))
        row = (data.name, gate, *sizes, *_ratios(file, classifier, data.frame_test))
        if gate == "density":
            comparison = _advice(file, classifier, data, people)
        else:
            comparison = None
    return row, comparison


def _ratios(file: Path, classifier: Any, frame: pd.DataFrame) -> list[str]:
    """Time of onnxruntime over that of torch: predictions and gradients of one row, then of a
    thousand.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        str(file), options, providers=["CPUExecutionProvider"]
    )
    ratios = []
    for n in (1, 1000):
        rows = frame.iloc[np.arange(n) % len(frame)]
        x = classifier._encoded(rows)
        target = torch.arange(n) % 2
        for output, depth, by_torch in (
            ("probability", 0, _predict),
            ("gradient", 2, _gradient),
        ):
            feed = {"x": x.numpy(), "target": target.numpy(), "depth": np.array(depth)}
            libraries: dict[str, Callable[[], object]] = {
                "onnxruntime": partial(session.run, [output], feed),
                "torch": partial(by_torch, classifier, x, target),
            }
            seconds = race(libraries, rounds=200 if n == 1 else 30)
            ratios.append(f"{seconds['onnxruntime'] / seconds['torch']:.2f}")
    return ratios


def _predict(classifier: Any, x: Tensor, _: Tensor) -> Tensor:
    with torch.inference_mode():
        return classifier.model_(x).softmax(-1)


def _gradient(classifier: Any, x: Tensor, target: Tensor) -> Tensor:
    leaf = x.clone().requires_grad_()
    if classifier.gate_ is not None:
        searched = ct.Gated(classifier.model_, classifier.gate_)
    else:
        searched = classifier.model_
    loss = torch.nn.functional.cross_entropy(searched(leaf), target, reduction="sum")
    return torch.autograd.grad(loss, leaf)[0]


def _advice(file: Path, classifier: Any, data: Any, people: int) -> tuple[Value, ...]:
    service = runpy.run_path(str(EXAMPLE))["Service"](str(file))
    decided = classifier.predict(data.frame_test)
    wanted = data.class_names[-1]
    refused = data.frame_test[decided != wanted].head(people)
    started = time.perf_counter()
    library = classifier.explain(refused, wanted)
    ours = time.perf_counter() - started
    rows = json.loads(refused.to_json(orient="records", double_precision=15))
    started = time.perf_counter()
    answers = [service.advise(row, wanted) for row in rows]
    its = time.perf_counter() - started
    status = np.array([answer["status"] for answer in answers])
    both = (status == "found") & (library.status == "converged")
    ratio = np.array([answer["cost"] for answer in answers])[both] / library.cost[both]
    count = len(refused)
    by_library = int((library.status == "converged").sum())
    spread = (
        f"{np.median(ratio):.3f}",
        f"{ratio.mean():.3f}",
        f"{np.quantile(ratio, 0.9):.3f}",
    )
    times = (round(1000 * ours / count), round(1000 * its / count))
    return (data.name, count, by_library, int((status == "found").sum()), *spread, *times)


def main() -> None:
    tables, skipped = run(Environments(Path()), quick=False)
    for table in tables:
        print(f"{table.title}\n{' | '.join(table.columns)}")
        for row in table.rows:
            print(" | ".join(map(str, row)))
    print(*skipped, sep="\n")


if __name__ == "__main__":
    main()
