"""Time and memory of fit, beside scikit-learn's network and gradient boosting.

    python -m benchmarks.fit results

Then what several networks cost beside one of them: fit, file, predictions and advice. Every fit
runs in a process of its own, on one thread; the same rows, text as text, go to all three.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import sklearn
import torch
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    OneHotEncoder,
    OrdinalEncoder,
    StandardScaler,
)

import counterfactual_training as ct
from benchmarks.growth import reset_peak, resident
from benchmarks.report import Record, Table, Value, circumstances
from counterfactual_training.defaults import EPOCHS, LEARNING_RATE
from counterfactual_training.tables.estimators.fit import PreparedFit
from counterfactual_training.tables.estimators.parameters import usual_batch_size

ROWS = (1_000, 10_000, 100_000, 1_000_000)
COLUMNS = (10, 100, 1_000)
MOST_CELLS = 100_000_000
LEVELS = 5
# Fits of a size until so many seconds are over, at most so many; the quickest counts.
ENOUGH_SECONDS = 10.0
MOST_FITS = 3
AIM = 2.0
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
SECONDS = (
    "rows",
    "columns",
    "ours, s",
    "preparation",
    "training",
    "gate",
    "epochs",
    "MLP, s",
    "its epochs",
    "ours / MLP",
    "an epoch",
    "boosting, s",
    "bag, s",
    "bag / ours",
    "ct, s",
    "ct / ours",
)
MEMORY = (
    *("rows", "columns", "table, MB", "ours, MB", "MLP, MB", "boosting, MB"),
    *("bag, MB", "ct, MB"),
)
# What several networks cost: by name, the method, and how many witnesses it has.
SEVERAL = {
    "one network": ("conventional", 0),
    "bag of 5": ("bag", 0),
    "bag of 10": ("bag(members=10)", 0),
    "bag of 5, 10 witnesses": ("bag", 10),
}
SEVERAL_COLUMNS = 10
# Fifty networks on more rows take an hour.
MOST_WITNESSED = 100_000
ASKED = 10
COSTS = (
    *("rows", "networks", "fit, s", "fits", "memory, MB", "file, kB"),
    *("predict one, ms", "predict 10,000, ms", "explain one, ms"),
)
DEFAULT = ct.CounterfactualClassifier()
HELD_OUT = f"{DEFAULT.validation_fraction:.0%} of the rows held out"
PATIENCE = f"stopped after {DEFAULT.n_iter_no_change} epochs without a better score on them"
NOTE = f"""
Rows of a made-up table: seven tenths of the columns are numbers, three tenths text of {LEVELS}
levels; two classes. *Ours*: `CounterfactualClassifier("conventional")`, one network, its seconds
also by part; *bag* is the default, five such networks, and *ct* five that also learn from their
own nascent counterfactuals, both in batches of at least 100 rows; *preparation* is everything from
checking the frame to encoded rows. *MLP*: scikit-learn's
`MLPClassifier` behind `StandardScaler` and `OneHotEncoder`, with what ours does by default:
hidden layers {DEFAULT.hidden}, Adam with rate {LEARNING_RATE:g}, the same batches (a hundredth
of the rows, from 30 to 1,000), single precision, no penalty, at most {EPOCHS} epochs,
{HELD_OUT}, {PATIENCE}. It has ReLU instead of swish, and its score is accuracy instead of loss,
so it stops elsewhere; *an epoch* compares training alone, divided by the epochs of each.
*Boosting*: scikit-learn's `HistGradientBoostingClassifier` by its defaults, text as its
categories. Seconds of processor time, one thread, each fit in a process of its own after a
small one to warm up; up to {MOST_FITS} fits within {ENOUGH_SECONDS:.0f} s, of which the
quickest counts. Other work ran on the machine. The aim is ours / MLP of at most {AIM:g}.
"""
MEMORY_NOTE = f"""
The most that was resident during the first fit, less what was before it, the table included;
*table* is the table itself, texts counted once. Tables of more than {MOST_CELLS:,} cells are left
out: their encoded rows alone take more than 2 GB. """


COSTS_NOTE = f"""
Of the same made-up tables, {SEVERAL_COLUMNS} columns, each in a process of its own, one thread,
processor time. Bags with witnesses are fitted to at most {MOST_WITNESSED:,} rows.
*Fit* includes the witnesses, which are as many further classifiers of the same kind; *fits* is that
over the fit of one network; *memory* is the most that was resident during the fit, less what was
before. *Predict* is of a frame of one row, and of 10,000; *explain* the median of {ASKED} people,
each asked about alone: with witnesses, for advice that lasts. Other work ran on the machine. """


def make_rows(rows: int, columns: int, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray]:
    """Seven tenths numbers (amounts, measures, counts, in turn), three tenths text; and two
    classes.

    Ten columns decide about the class, whatever the number of columns; a sixth of the labels is
    noise.
    """
    rng = np.random.default_rng(seed)
    cells: dict[str, Any] = {}
    score = np.zeros(rows)
    for j in range(columns):
        kind = (
            "amount",
            "measure",
            "count",
            "amount",
            "text",
            "measure",
            "count",
            "text",
            "amount",
            "text",
        )[j % 10]
        values = _column(kind, rows, rng)
        if j < 10:
            numbers = values.astype(np.float64)
            score += (numbers - numbers.mean()) / numbers.std() * (-1) ** j
        if kind == "text":
            cells[f"{kind}_{j}"] = np.array([f"level {k}" for k in range(LEVELS)])[values]
        else:
            cells[f"{kind}_{j}"] = values
    likely = score + 0.5 * np.abs(score) > np.median(score)
    noise = rng.random(rows) < 1 / 6
    return pd.DataFrame(cells), np.where(likely ^ noise, "yes", "no")


def _column(kind: str, rows: int, rng: np.random.Generator) -> np.ndarray:
    if kind == "amount":
        return rng.gamma(2.0, 2500.0, rows).round(2)
    if kind == "measure":
        return rng.normal(0.0, 1.0, rows)
    if kind == "count":
        return rng.poisson(4.0, rows)
    return rng.integers(0, LEVELS, rows)


def fit_several(method: str, x: pd.DataFrame, y: np.ndarray) -> dict[str, float]:
    """A method of several networks."""
    classifier = ct.CounterfactualClassifier(method, random_state=0, progress=False).fit(x, y)
    return {"epochs": len(classifier.history_.records)}


def fit_ours(x: pd.DataFrame, y: np.ndarray) -> dict[str, float]:
    """Seconds of training and gate, and epochs, of one network."""
    measured: dict[str, float] = {}
    steps = {"training": PreparedFit.train, "gate": PreparedFit.fit_gate}
    try:
        PreparedFit.train = _telling(steps["training"], "training", measured)  # type: ignore[method-assign]
        PreparedFit.fit_gate = _telling(steps["gate"], "gate", measured)  # type: ignore[method-assign]
        classifier = ct.CounterfactualClassifier(
            "conventional", random_state=0, progress=False
        ).fit(x, y)
    finally:
        PreparedFit.train = steps["training"]  # type: ignore[method-assign]
        PreparedFit.fit_gate = steps["gate"]  # type: ignore[method-assign]
    return {**measured, "epochs": len(classifier.history_.records)}


def _telling(
    step: Callable[..., Any], name: str, measured: dict[str, float]
) -> Callable[..., Any]:
    """The same method, which also tells its processor time."""

    def timed(self: PreparedFit, *arguments: Any) -> Any:
        started = time.process_time()
        result = step(self, *arguments)
        measured[name] = time.process_time() - started
        return result

    return timed


def fit_mlp(x: pd.DataFrame, y: np.ndarray) -> dict[str, float]:
    """scikit-learn's network of the same widths, which holds out and stops alike."""
    numbers = make_column_selector(dtype_include="number")
    text = make_column_selector(dtype_exclude="number")
    encoder = make_column_transformer(
        (make_pipeline(StandardScaler(), FunctionTransformer(_single)), numbers),
        (OneHotEncoder(sparse_output=False, dtype=np.float32), text),
    )
    network = MLPClassifier(
        DEFAULT.hidden,
        batch_size=usual_batch_size(len(x)),
        learning_rate_init=LEARNING_RATE,
        max_iter=EPOCHS,
        alpha=0.0,
        early_stopping=True,
        validation_fraction=DEFAULT.validation_fraction,
        n_iter_no_change=DEFAULT.n_iter_no_change,
        tol=0.0,
        random_state=0,
    )
    encoded = encoder.fit_transform(x)
    started = time.process_time()
    network.fit(encoded, y)
    return {"epochs": network.n_iter_, "training": time.process_time() - started}


def _single(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float32)


def fit_boosting(x: pd.DataFrame, y: np.ndarray) -> dict[str, float]:
    """scikit-learn's gradient boosting by its defaults, text as its categories."""
    text = make_column_selector(dtype_exclude="number")
    encoder = make_column_transformer((OrdinalEncoder(), text), remainder="passthrough")
    count = len(text(x))
    boosting = HistGradientBoostingClassifier(
        categorical_features=list(range(count)), random_state=0
    )
    make_pipeline(encoder, boosting).fit(x, y)
    return {"epochs": boosting.n_iter_}


def several(name: str, rows: int) -> dict[str, float]:
    """Seconds and bytes of one fit of our networks, bytes of their file, and latencies."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    method, witnesses = SEVERAL[name]
    fit_networks(method, witnesses, *make_rows(300, SEVERAL_COLUMNS, seed=1))
    x, y = make_rows(rows, SEVERAL_COLUMNS)
    before = reset_peak()
    started = time.process_time()
    classifier = fit_networks(method, witnesses, x, y)
    told = {
        "seconds": time.process_time() - started,
        "bytes": max(1, resident("VmHWM") - before),
    }
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        classifier.save(path)
        told["file"] = path.stat().st_size
    people, _ = make_rows(10_000, SEVERAL_COLUMNS, seed=2)
    classifier.explain(people.head(1))  # what first use works out
    told["one"] = _latency([partial(classifier.predict, people.iloc[[i]]) for i in range(50)])
    told["many"] = _latency([partial(classifier.predict, people)] * 5)
    asked = [people.iloc[[i]] for i in range(ASKED)]
    told["explain"] = _latency([partial(classifier.explain, row) for row in asked])
    return told


def fit_networks(
    method: str, witnesses: int, x: pd.DataFrame, y: np.ndarray
) -> ct.CounterfactualClassifier:
    classifier = ct.CounterfactualClassifier(method, random_state=0, progress=False).fit(x, y)
    if witnesses:
        classifier.add_witnesses(x, y, witnesses)
    return classifier


def _latency(calls: Sequence[Callable[[], Any]]) -> float:
    """The median of processor seconds."""
    times = []
    for call in calls:
        started = time.process_time()
        call()
        times.append(time.process_time() - started)
    return float(np.median(times))


FITS: dict[str, Callable[[pd.DataFrame, np.ndarray], dict[str, float]]] = {
    "ours": fit_ours,
    "mlp": fit_mlp,
    "boosting": fit_boosting,
    "bag": partial(fit_several, "bag"),
    "ct": partial(fit_several, "ct"),
}


def measure(who: str, rows: int, columns: int) -> dict[str, float]:
    """Processor seconds of the quickest fit, and the bytes that the first took beyond its rows."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    fit = FITS[who]
    fit(*make_rows(300, 10, seed=1))  # what first use loads
    x, y = make_rows(rows, columns)
    before = reset_peak()
    fits: list[dict[str, float]] = []
    taken = 0
    while not fits or (
        len(fits) < MOST_FITS and sum(one["seconds"] for one in fits) < ENOUGH_SECONDS
    ):
        started = time.process_time()
        parts = fit(x, y)
        fits.append({"seconds": time.process_time() - started, **parts})
        taken = taken or max(1, resident("VmHWM") - before)
    best = min(fits, key=lambda one: one["seconds"])
    return {**best, "bytes": taken, "held": float(x.memory_usage().sum())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", metavar="DIR", type=Path, help="writes fit.md there, or bag.md")
    parser.add_argument(
        "--most-rows", type=int, default=ROWS[-1], help="leave out longer tables"
    )
    parser.add_argument(
        "--several", action="store_true", help="only what several networks cost"
    )
    parser.add_argument(
        "--child", nargs=3, metavar=("WHO", "ROWS", "COLUMNS"), help=argparse.SUPPRESS
    )
    arguments = parser.parse_args()
    if arguments.child:
        who, rows, columns = arguments.child
        if who in SEVERAL:
            told = several(who, int(rows))
        else:
            told = measure(who, int(rows), int(columns))
        print(json.dumps(told))
        return
    sizes = [
        (n, d)
        for n in ROWS
        for d in COLUMNS
        if n <= arguments.most_rows and n * d <= MOST_CELLS and not arguments.several
    ]
    started = time.perf_counter()
    measured = {size: {who: _in_child(who, *size) for who in FITS} for size in sizes}
    costs = {
        (n, name): _in_child(name, n, SEVERAL_COLUMNS)
        for n in ROWS
        for name, (_, witnesses) in SEVERAL.items()
        if n <= min(arguments.most_rows, MOST_WITNESSED if witnesses else ROWS[-1])
    }
    if arguments.several:
        name = "bag"
        title = "What several networks cost"
        tables = [replace(_costs(costs), title="")]
        command = "python -m benchmarks.fit results --several"
    else:
        name = "fit"
        title = "Fit beside scikit-learn"
        tables = [*_tables(measured), _costs(costs)]
        command = "python -m benchmarks.fit results"
    if arguments.most_rows < ROWS[-1]:
        command += f" --most-rows {arguments.most_rows}"
    record = Record(
        name,
        title,
        command,
        tables,
        **circumstances(),
    )
    seconds = round(time.perf_counter() - started, 1)
    versions = {
        **record.versions,
        "scikit-learn": sklearn.__version__,
        "pandas": pd.__version__,
    }
    record = replace(record, seconds=seconds, versions=versions)
    arguments.out.mkdir(parents=True, exist_ok=True)
    # A page of its own: its title is of the first level.
    text = record.markdown().removeprefix("#")
    (arguments.out / f"{record.part}.md").write_text(f"{text}\n", encoding="utf-8")
    print(text)


def _in_child(who: str, rows: int, columns: int) -> dict[str, float]:
    command = [
        sys.executable,
        "-m",
        "benchmarks.fit",
        "-",
        "--child",
        who,
        str(rows),
        str(columns),
    ]
    done = subprocess.run(  # noqa: S603
        command, capture_output=True, text=True, check=False, env={**os.environ, **ONE_THREAD}
    )
    if done.returncode != 0:
        raise RuntimeError(
            f"{who} with {rows} × {columns}: {(done.stderr.strip() or 'killed').splitlines()[-1]}"
        )
    answer = json.loads(done.stdout.splitlines()[-1])
    print(f"{who} {rows:,} × {columns:,}: {answer['seconds']:.2f} s", flush=True)
    return answer


def _tables(measured: dict[tuple[int, int], dict[str, dict[str, float]]]) -> list[Table]:
    seconds: list[tuple[Value, ...]] = []
    memory: list[tuple[Value, ...]] = []
    missed = []
    for (rows, columns), by_library in measured.items():
        ours = by_library["ours"]
        mlp = by_library["mlp"]
        boosting = by_library["boosting"]
        ratio = ours["seconds"] / mlp["seconds"]
        per_epoch = ours["training"] / ours["epochs"] / (mlp["training"] / mlp["epochs"])
        preparation = ours["seconds"] - ours["training"] - ours["gate"]
        parts = (preparation, ours["training"], ours["gate"], int(ours["epochs"]))
        beside = (
            mlp["seconds"],
            int(mlp["epochs"]),
            f"{ratio:.2f}",
            f"{per_epoch:.2f}",
            boosting["seconds"],
        )
        several: list[Value] = []
        for who in ("bag", "ct"):
            total = by_library[who]["seconds"]
            several += [total, f"{total / ours['seconds']:.2f}"]
        seconds.append((rows, columns, ours["seconds"], *parts, *beside, *several))
        sizes = (ours["held"], *(by_library[who]["bytes"] for who in FITS))
        memory.append((rows, columns, *(size / 1e6 for size in sizes)))
        if ratio > AIM:
            missed += [f"{rows:,} × {columns:,} ({ratio:.2f})"]
    if missed:
        reached = f"Missed: {', '.join(missed)}."
    else:
        reached = "Reached everywhere."
    return [
        Table(SECONDS, seconds, note=f"{NOTE} {reached}"),
        Table(MEMORY, memory, "Memory", MEMORY_NOTE),
    ]


def _costs(costs: dict[tuple[int, str], dict[str, float]]) -> Table:
    lines: list[tuple[Value, ...]] = []
    for (rows, name), told in costs.items():
        alone = costs[rows, next(iter(SEVERAL))]["seconds"]
        line = (rows, name, told["seconds"], f"{told['seconds'] / alone:.2f}")
        sizes = (told["bytes"] / 1e6, told["file"] / 1e3)
        times = (1000 * told[part] for part in ("one", "many", "explain"))
        lines.append((*line, *sizes, *times))
    return Table(COSTS, lines, "What several networks cost", COSTS_NOTE)


if __name__ == "__main__":
    main()
