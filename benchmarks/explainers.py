"""Advice of ``explain`` beside that of DiCE and alibi: the same network, the same rows in their own units, no rules.

The classifier's default network is trained once; its weights and scaling go to the other libraries as arrays, and each
must first give the same probabilities. All answers are judged here, as handed back.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from sklearn.neighbors import NearestNeighbors

import counterfactual_training as ct
from benchmarks.environments import Environments, Peer
from benchmarks.foreign.api import layers_of
from benchmarks.report import Table, Value

FITTED, EXPLAINED = 6000, 200
LIMIT = 150.0  # seconds of the clock that a method may take
NEIGHBOURS = 5
WANTED = {"GMSC": "no serious delinquency", "breast cancer": "benign"}
OURS = {"ours, no gate": "none", "ours, density gate": "density"}
PEERS = {  # environment, script, its arguments, rows at most
    "DiCE, random": ("dice", "dice_explain.py", ("random",), 30),
    "DiCE, random, our range": ("dice", "dice_explain.py", ("random", "bulk"), 30),
    "DiCE, genetic": ("dice", "dice_explain.py", ("genetic",), 30),
    "DiCE, kdtree": ("dice", "dice_explain.py", ("kdtree",), 30),
    "DiCE, gradient": ("dice", "dice_explain.py", ("gradient",), 10),
    "alibi, CounterfactualProto": ("alibi", "alibi_proto.py", (), 10),
}
COLUMNS = (
    "data", "who", "rows", "valid", "changes", "L1, median", "L1, mean", "in range", "5-NN, median", "seconds per row",
)  # fmt: skip
PAIRED = ("data", "who", "rows", "changes", "L1, median", "5-NN, median", "cheaper than ours, no gate")
NOTE = f"""
One network per table (`CounterfactualClassifier`'s default, one seed), fitted to six tenths of the rows, at most
{FITTED:,}. Asked for: {", ".join(f"{wanted!r} ({name})" for name, wanted in WANTED.items())}, for rows held out that
it gives to the other class, at most {EXPLAINED}; the other libraries take one row at a time and get the first ones. No
rules; one answer each. Ours: `explain` with its defaults, all rows in one call, and *one by one*. DiCE: defaults,
whole columns as integers, seeded by row; *our range*: `permitted_range` as below, to which ours keeps by itself;
gradient: the network in torch; the others only ask it. alibi: the network in TensorFlow, rows scaled as it takes them,
k-d trees, θ = 10, c from 1 as in its examples, otherwise defaults; it knows no whole numbers. A method is stopped
after {LIMIT:.0f} s; *rows* counts those finished. *Valid*: the network, in torch, gives the row as handed back to the
wanted class; all that follows is over the valid. *Changes*: columns that differ by more than 10⁻⁶ of the value or
unit. *L1*: each column in SD of its training values clipped to 1–99 %, which are also the units that ours and alibi
are given to minimise. *In range*: all changed columns end within 0.5–99.5 % of the training rows. *5-NN*: mean
Euclidean distance to the five nearest training rows of the wanted class, same units. *Seconds*: of processor time, one
thread, without making the explainer; one measurement, other work ran on the machine.
"""
PAIRED_NOTE = """
The people for whom the other library and both of ours have a valid answer: theirs · ours, no gate · ours, density gate.
Last: for how many of them theirs costs less than ours without a gate.
"""


class Problem(NamedTuple):
    """Classifiers of one network, by contestant, and people whom it gives to the other class than the wanted one."""

    name: str
    ours: dict[str, ct.CounterfactualClassifier]
    wanted: str
    people: pd.DataFrame
    real: pd.DataFrame  # held-out rows of the wanted class
    unit: np.ndarray  # (d,) of a cost
    low: np.ndarray  # (d,) 0.5 and 99.5 % of the training rows
    high: np.ndarray
    near: NearestNeighbors  # training rows of the wanted class
    file: Path

    def probabilities(self, rows: np.ndarray) -> np.ndarray:
        """``(n, k)`` of rows in their own units, by the network in torch."""
        classifier = next(iter(self.ours.values()))
        columns = classifier.encoder_.columns_
        z = (rows - [c.center for c in columns]) / [c.scale for c in columns]
        with torch.no_grad():
            return classifier.model_(torch.tensor(z, dtype=torch.float32)).softmax(-1).numpy()

    def plausible(self, rows: np.ndarray) -> np.ndarray:
        """``(n,)`` mean distance to the nearest training rows of the wanted class."""
        return self.near.kneighbors(rows / self.unit)[0].mean(1)


class Judged(NamedTuple):
    """Answers to the first n people; what is counted of an answer that is not valid means nothing."""

    valid: np.ndarray  # (n,)
    changes: np.ndarray
    cost: np.ndarray
    inside: np.ndarray
    distance: np.ndarray


def frames(quick: bool) -> tuple[dict[str, tuple[pd.DataFrame, np.ndarray]], list[str]]:
    """Rows and labels of every table, and what was skipped."""
    found, skipped = {}, []
    if not quick and os.environ.get("CT_DATA_HOME"):
        data = ct.load_dataset("GMSC", allow_download=False)
        found["GMSC"] = (data.frame_train, np.array(data.class_names, dtype=object)[data.y_train.numpy()])
    elif not quick:
        skipped.append("GMSC: CT_DATA_HOME names no folder.")
    cancer = load_breast_cancer(as_frame=True)
    found["breast cancer"] = (cancer.data, np.where(cancer.target == 1, "benign", "malignant").astype(object))
    return found, skipped


def make_problem(name: str, frame: pd.DataFrame, y: np.ndarray, folder: Path) -> Problem:
    x, rest, labels, others = train_test_split(frame, y, test_size=0.4, random_state=0, stratify=y)
    x, labels, wanted = x[:FITTED], labels[:FITTED], WANTED[name]
    ours = {
        who: ct.CounterfactualClassifier(gate=gate, random_state=0, progress=False).fit(x, labels)
        for who, gate in OURS.items()
    }
    first, *more = ours.values()
    for other in more:
        if any(
            not torch.equal(a, b) for a, b in zip(first.model_.parameters(), other.model_.parameters(), strict=True)
        ):
            raise RuntimeError("The gate changed the network: the comparison would be about two.")
    columns = first.encoder_.columns_
    if any(column.width != 1 for column in columns):
        raise RuntimeError("A column takes more than one input; the other libraries get plain numbers.")
    people = rest[first.predict(rest) != wanted][:EXPLAINED]
    unit = x.clip(x.quantile(0.01), x.quantile(0.99), axis=1).std().to_numpy()
    low = x.quantile(0.005, interpolation="lower").to_numpy(np.float64)
    high = x.quantile(0.995, interpolation="higher").to_numpy(np.float64)
    near = NearestNeighbors(n_neighbors=NEIGHBOURS).fit(x[labels == wanted].to_numpy() / unit)
    target = first.classes_.tolist().index(wanted)
    arrays: dict[str, Any] = {
        "x": people.to_numpy(np.float64),
        "x_train": x.to_numpy(np.float64),
        "y_train": np.array([first.classes_.tolist().index(label) for label in labels]),
        "whole": np.array([pd.api.types.is_integer_dtype(dtype) for dtype in x.dtypes]),
        "center": np.array([column.center for column in columns]),
        "scale": np.array([column.scale for column in columns]),
        "bulk": np.stack([low, high]),
        "target": target,
    }
    weights = {key: values[0] for key, values in layers_of([first.model_]).items()}
    file = folder / "problem.npz"
    np.savez(file, layers=len(weights) // 2, **arrays, **weights)
    problem = Problem(name, ours, wanted, people, rest[others == wanted], unit, low, high, near, file)
    if not np.allclose(problem.probabilities(arrays["x"]), first.predict_proba(people), atol=1e-5):
        raise RuntimeError("The network in arrays is not the classifier's.")
    return problem


def judge(problem: Problem, answers: np.ndarray) -> Judged:
    """Answers ``(n, d)`` in the rows' own units, NaN where there is none."""
    before = problem.people.to_numpy(np.float64)[: len(answers)]
    found = np.isfinite(answers).all(1)
    after = np.where(found[:, None], answers, before)
    target = problem.ours["ours, no gate"].classes_.tolist().index(problem.wanted)
    valid = found & (problem.probabilities(after).argmax(1) == target)
    moved = np.abs(after - before)
    slack = 1e-6 * np.maximum(np.abs(before), problem.unit)
    changed = moved > slack
    inside = ((problem.low - slack <= after) & (after <= problem.high + slack) | ~changed).all(1)
    return Judged(valid, changed.sum(1), (moved / problem.unit).sum(1), inside, problem.plausible(after))


def run(places: Environments, quick: bool) -> tuple[list[Table], list[str]]:
    """All tables and methods."""
    lines: list[tuple[Value, ...]] = []
    pairs: list[tuple[Value, ...]] = []
    tables, skipped = frames(quick)
    told: list[str] = []
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for name, (frame, y) in tables.items():
            problem = make_problem(name, frame, y, Path(folder))
            own = {}
            for who in problem.ours:
                answers, seconds = _ours(problem, who)
                own[who] = judge(problem, answers)
                lines.append(_line(problem, who, own[who], seconds))
                few, seconds = _one_by_one(problem, who, 2 if quick else 30)
                lines.append(_line(problem, f"{who}, one by one", judge(problem, few), seconds))
            for who, (environment, *_) in PEERS.items():
                if places.python(environment) is None:
                    skipped.append(f"{who}: {places.missing(environment)}")
                    continue
                answers, seconds, words = _theirs(places, problem, who, quick)
                told += [f"{name}, {who}: {word}" for word in words]
                if len(answers):
                    judged = judge(problem, answers)
                    lines.append(_line(problem, who, judged, seconds))
                    pairs.append(_pair(problem, who, judged, own))
            lines.append(_real(problem))
    note = f"{NOTE} {' '.join(told)}"
    return [Table(COLUMNS, lines, note=note), Table(PAIRED, pairs, "On the same people", PAIRED_NOTE)], skipped


def _ours(problem: Problem, who: str) -> tuple[np.ndarray, float]:
    """Answers to all people at once, and seconds per row."""
    classifier = problem.ours[who]
    classifier.explain(problem.people[:2], problem.wanted)  # warm up
    started = time.process_time()
    told = classifier.explain(problem.people, problem.wanted)
    seconds = time.process_time() - started
    return told.frame.to_numpy(np.float64), seconds / len(problem.people)


def _one_by_one(problem: Problem, who: str, rows: int) -> tuple[np.ndarray, float]:
    """As the other libraries: a call for each of the first people."""
    people = [problem.people[i : i + 1] for i in range(min(rows, len(problem.people)))]
    started = time.process_time()
    told = [problem.ours[who].explain(person, problem.wanted).frame for person in people]
    seconds = time.process_time() - started
    return pd.concat(told).to_numpy(np.float64), seconds / len(people)


def _theirs(places: Environments, problem: Problem, who: str, quick: bool) -> tuple[np.ndarray, float, list[str]]:
    """A peer's answers to as many of the first people as it gets to in time, seconds per row, and what went wrong."""
    environment, script, arguments, most = PEERS[who]
    most = min(2 if quick else most, len(problem.people))
    answers, seconds, errors, told = [], [], [], []
    empty = [np.nan] * problem.people.shape[1]
    with Peer.foreign(places, environment, script, str(problem.file), *arguments, one_thread=True) as peer:
        theirs = np.array(peer.ask(rows=50)["probabilities"])
        if not np.allclose(theirs, problem.probabilities(problem.people.to_numpy(np.float64)[:50]), atol=1e-4):
            raise RuntimeError(f"{who} asks another network.")
        started = time.perf_counter()
        end = threading.Timer(LIMIT, peer.process.terminate)
        end.start()
        try:
            for row in range(most):
                answer = peer.ask(row=row)
                answers.append(empty if answer["found"] is None else answer["found"])
                seconds.append(answer["seconds"])
                errors += [answer["error"]] if answer["error"] else []
        except RuntimeError:
            if time.perf_counter() - started < LIMIT:
                raise
            told.append(f"stopped in row {len(answers) + 1}.")
        finally:
            end.cancel()
    if errors:
        told.append(f"an error in {len(errors)} rows, the first {errors[0]!r}.")
    return np.array(answers), float(np.mean(seconds)) if seconds else float("nan"), told


def _line(problem: Problem, who: str, judged: Judged, seconds: float) -> tuple[Value, ...]:
    ok = judged.valid
    head = (problem.name, who, len(ok), f"{ok.mean():.1%}")
    if not ok.any():
        return (*head, "", "", "", "", "", seconds)
    cost, inside = judged.cost[ok], f"{judged.inside[ok].mean():.0%}"
    means = (float(judged.changes[ok].mean()), float(np.median(cost)), float(cost.mean()))
    return (*head, *means, inside, float(np.median(judged.distance[ok])), seconds)


def _pair(problem: Problem, who: str, theirs: Judged, own: dict[str, Judged]) -> tuple[Value, ...]:
    """A peer and ours over the people for whom all have a valid answer."""
    n = len(theirs.valid)
    all_of_them = [theirs, *own.values()]
    ok = np.all([judged.valid[:n] for judged in all_of_them], 0)
    if not ok.any():
        return (problem.name, who, 0, "", "", "", "")
    changes = [judged.changes[:n][ok].mean() for judged in all_of_them]
    cost, distance = (
        [float(np.median(getattr(judged, what)[:n][ok])) for judged in all_of_them] for what in ("cost", "distance")
    )
    cheaper = int((theirs.cost < 0.999 * next(iter(own.values())).cost[:n])[ok].sum())
    written = [" · ".join(f"{value:.3g}" for value in values) for values in (changes, cost, distance)]
    return (problem.name, who, int(ok.sum()), *written, cheaper)


def _real(problem: Problem) -> tuple[Value, ...]:
    """How near real rows of the class are to others."""
    distance = problem.plausible(problem.real.to_numpy(np.float64))
    return (problem.name, "real rows held out", len(distance), "", "", "", "", "", float(np.median(distance)), "")
