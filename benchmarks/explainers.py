"""Advice of ``explain`` beside that of DiCE and alibi: the same model, the same people in their own
units, no rules.

The classifier's default network, and scikit-learn's gradient boosting as a black box, are trained
once. The network's weights go to the other libraries as arrays, boosting as a pickle; each must
first give the same probabilities. All answers are judged here, as handed back.
"""

from __future__ import annotations

import json
import os
import pickle
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.model_selection import train_test_split
from sklearn.neighbors import NearestNeighbors
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OrdinalEncoder
from threadpoolctl import threadpool_limits

import counterfactual_training as ct
from benchmarks.environments import Environments, Peer
from benchmarks.foreign.api import layers_of
from benchmarks.report import Table, Value

FITTED = 6000
EXPLAINED = 30
OPTIONS = 3
LIMIT = 40.0  # seconds of the clock that a method may take for all people
NEIGHBOURS = 5
USUAL = 0.95
WANTED = {"GMSC": "no serious delinquency", "Adult": ">50K", "breast cancer": "benign"}
OURS = {"ours": "density", "ours, no gate": "none"}


class Method(NamedTuple):
    """A peer's way: its environment, script and arguments, and what it can be asked."""

    environment: str
    script: str
    arguments: tuple[str, ...] = ()
    people: int = EXPLAINED
    options: int = OPTIONS
    network_of_numbers: bool = False  # it takes nothing else


PEERS = {
    "DiCE, random": Method("dice", "dice_explain.py", ("random",)),
    "DiCE, random, our range": Method("dice", "dice_explain.py", ("random", "bulk")),
    "DiCE, genetic": Method("dice", "dice_explain.py", ("genetic",)),
    "DiCE, kdtree": Method("dice", "dice_explain.py", ("kdtree",)),
    "alibi, CounterfactualProto": Method("alibi", "alibi_proto.py", (), 5, 1, True),
}
COLUMNS = (
    "data",
    "model",
    "who",
    "people",
    "valid",
    "options",
    "changes",
    "cost, cheapest",
    "cost, all",
    "plausible, 5-NN",
    "plausible, gate",
    "ms, median",
    "ms, worst",
)
PAIRED = (
    "data",
    "model",
    "who",
    "people",
    "changes",
    "cost",
    "plausible, 5-NN",
    "cheaper than ours",
)
NOTE = f"""
*Network*: `CounterfactualClassifier` with its default network. *Boosting*: scikit-learn's
`HistGradientBoostingClassifier`, text as its categories; ours is `Explainer` around its
`predict_proba`. One of each per table, one seed, fitted to six tenths of the rows, at most
{FITTED:,}. Asked for:
{", ".join(f"{wanted!r} ({name})" for name, wanted in WANTED.items() if name != "breast cancer")},
{OPTIONS} options each, for people held out whom the model gives to the other class, and whose
categories it knows, one person at a time; no rules. Ours: `explain` with its defaults; *no gate*:
what the model alone asks for; *in one call*: all people together, per person. DiCE: its defaults,
which only ask for probabilities, whole columns as integers, seeded by person; *our range*:
`permitted_range` of 0.5–99.5 % of the training rows, to which ours keeps by itself. alibi: the
network in TensorFlow, which gives gradients, rows scaled as it takes them, k-d trees, θ = 10, c
from 1 as in its examples, one option; it knows no whole numbers. A method is stopped after
{LIMIT:.0f} s; *people* counts those finished. *Valid*: people with an answer that the model gives
to the wanted class as handed back; *options*: how many of them a person has. The last of ours may
be what the model alone asks for. *Changes*: columns of an option that differ by more than 10⁻⁶ of
the value or unit. *Cost*: the sum over columns of |change| in SD of the training values clipped to
1–99 %, and 1 for a new category; medians over people of their cheapest option, and over all
options. Ours minimises nearly that, but counts a new category twice, unless there are only two.
*Plausible, 5-NN*: options whose mean distance to the {NEIGHBOURS} nearest training rows of the
wanted class, in these units, is at most that of {USUAL:.0%} of real rows held out; this flatters
kdtree and genetic, which start from training rows. *Plausible, gate*: options that the density
gate, by which ours chooses, finds at least as plausible as not. *ms*: of processor time per person,
all options, one thread, without making the explainer and after one person to warm up; other work
ran on the machine. The aim is a median below 100 for ours with boosting. """
PAIRED_NOTE = """
The cheapest option of people for whom the other library and ours both have a valid one: theirs ·
ours. Last: for how many of them theirs costs less. """


class Measure:
    """Costs and distances between rows of a table: numbers in their units, categories equal or
    not.
    """

    def __init__(self, x: pd.DataFrame, numbers: list[str]) -> None:
        self.numbers = numbers
        self.texts = [name for name in x.columns if name not in numbers]
        values = x[numbers]
        self.unit = (
            values.clip(values.quantile(0.01), values.quantile(0.99), axis=1).std().to_numpy()
        )
        self.levels = {name: sorted(x[name].unique()) for name in self.texts}

    def moved(self, before: pd.DataFrame, after: pd.DataFrame) -> np.ndarray:
        """``(n, m)`` what each column costs; 0 where it did not change."""
        old = before[self.numbers].to_numpy(np.float64)
        step = np.abs(after[self.numbers].to_numpy(np.float64) - old)
        step[step <= 1e-6 * np.maximum(np.abs(old), self.unit)] = 0.0
        texts = before[self.texts].to_numpy(object) != after[self.texts].to_numpy(object)
        return np.concatenate([step / self.unit, texts.astype(np.float64)], 1)

    def points(self, rows: pd.DataFrame) -> np.ndarray:
        """Rows in a space where two that differ in one category are at distance 1."""
        marks = [
            (rows[name].to_numpy(object)[:, None] == np.array(levels, dtype=object))
            / np.sqrt(2)
            for name, levels in self.levels.items()
        ]
        return np.concatenate([rows[self.numbers].to_numpy(np.float64) / self.unit, *marks], 1)


class Problem(NamedTuple):
    """A model, its explainers by library, and people whom it gives to the other class than the
    wanted one.

    The last person is there to warm up.
    """

    name: str
    model: str
    probabilities: Callable[[pd.DataFrame], np.ndarray]
    ours: dict[str, Any]
    wanted: str
    target: int
    people: pd.DataFrame
    measure: Measure
    near: NearestNeighbors  # training rows of the wanted class
    usual: float  # distance within which most real rows of the class have their neighbours
    folder: Path

    @property
    def num_people(self) -> int:
        return len(self.people) - 1

    def distance(self, rows: pd.DataFrame) -> np.ndarray:
        """``(n,)`` mean distance to the nearest training rows of the wanted class."""
        return self.near.kneighbors(self.measure.points(rows))[0].mean(1)


class Answered(NamedTuple):
    """Answers to the first people: a frame of options and the person of each; seconds of each
    person.
    """

    options: pd.DataFrame
    person: np.ndarray
    seconds: list[float]


class Judged(NamedTuple):
    """Valid options; everything ``(n,)`` over them but ``people``, the number of people asked."""

    people: int
    person: np.ndarray
    changes: np.ndarray
    cost: np.ndarray
    near: np.ndarray
    passes: np.ndarray

    def cheapest(self) -> dict[int, int]:
        """By person, the place of the cheapest option."""
        places: dict[int, int] = {}
        for place in np.argsort(self.cost, kind="stable").tolist():
            places.setdefault(int(self.person[place]), place)
        return places


def frames(quick: bool) -> tuple[dict[str, tuple[pd.DataFrame, np.ndarray]], list[str]]:
    """Rows and labels of every table, text as text; and what was skipped."""
    tables: dict[str, tuple[pd.DataFrame, np.ndarray]] = {}
    if not quick and os.environ.get("CT_DATA_HOME"):
        for name in ("GMSC", "Adult"):
            data = ct.load_dataset(name, allow_download=False)
            rows = data.frame_train
            texts = rows.select_dtypes("category").columns
            tables[name] = (
                rows.astype(dict.fromkeys(texts, str)),
                np.array(data.class_names)[data.y_train.numpy()],
            )
        return tables, []
    cancer = load_breast_cancer(as_frame=True)
    tables["breast cancer"] = (cancer.data, np.where(cancer.target == 1, "benign", "malignant"))
    return tables, [] if quick else [
        "GMSC, Adult: CT_DATA_HOME names no folder; breast cancer instead."
    ]


def make_problems(
    name: str, frame: pd.DataFrame, y: np.ndarray, folder: Path, people: int
) -> list[Problem]:
    """The network and boosting on one table."""
    # Other libraries take names of columns apart.
    frame = frame.set_axis([f"x{j}" for j in range(frame.shape[1])], axis=1).reset_index(
        drop=True
    )
    split = train_test_split(frame, y.astype(object), test_size=0.4, random_state=0, stratify=y)
    x = split[0][:FITTED]
    rest = split[1]
    labels = split[2][:FITTED]
    others = split[3]
    numbers = list(x.select_dtypes("number").columns)
    texts = [column for column in x.columns if column not in numbers]
    # Of a level that training never saw, nobody can say how it is to be encoded.
    if texts:
        has_known_levels = np.all([rest[column].isin(x[column]) for column in texts], 0)
    else:
        has_known_levels = np.ones(len(rest), dtype=bool)
    rest = rest[has_known_levels]
    others = others[has_known_levels]
    wanted = WANTED[name]
    measure = Measure(x, numbers)
    near = NearestNeighbors(n_neighbors=NEIGHBOURS).fit(measure.points(x[labels == wanted]))
    real = near.kneighbors(measure.points(rest[others == wanted]))[0].mean(1)
    usual = float(np.quantile(real, USUAL))
    models = {"network": _network(x, labels), "boosting": _boosting(x, labels, texts)}
    problems = []
    for kind, (model, ours) in models.items():
        subfolder = folder / f"{name}-{kind}"
        subfolder.mkdir()
        classes = list(model.classes_)
        denied = rest[model.predict(rest) != wanted][: people + 1].reset_index(drop=True)
        problem = Problem(
            name,
            kind,
            model.predict_proba,
            ours,
            wanted,
            classes.index(wanted),
            denied,
            measure,
            near,
            usual,
            subfolder,
        )
        _write(problem, model, x, np.array([classes.index(label) for label in labels]), numbers)
        problems.append(problem)
    return problems


def _network(x: pd.DataFrame, labels: np.ndarray) -> tuple[Any, dict[str, Any]]:
    """Classifiers of one network, by explainer."""
    ours = {
        who: ct.CounterfactualClassifier(
            "conventional", gate=gate, mutability={}, random_state=0, progress=False
        ).fit(x, labels)
        for who, gate in OURS.items()
    }
    first, second = (list(classifier.model_.parameters()) for classifier in ours.values())
    if any(not torch.equal(a, b) for a, b in zip(first, second, strict=True)):
        raise RuntimeError("The gate changed the network: the comparison would be about two.")
    return ours["ours"], ours


def _boosting(
    x: pd.DataFrame, labels: np.ndarray, texts: list[str]
) -> tuple[Any, dict[str, Any]]:
    """Gradient boosting, and explainers of it by library."""
    categories = list(range(len(texts)))
    boosting = HistGradientBoostingClassifier(
        categorical_features=categories or None, random_state=0
    )
    unknown = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
    encoder = make_column_transformer((unknown, texts), remainder="passthrough")
    model = (make_pipeline(encoder, boosting) if texts else boosting).fit(x, labels)
    ours = {
        who: ct.Explainer(model, x, labels, gate=gate, mutability={})
        for who, gate in OURS.items()
    }
    return model, ours


def _write(
    problem: Problem, model: Any, x: pd.DataFrame, y: np.ndarray, numbers: list[str]
) -> None:
    """What the other libraries read: rows, what is known of the columns, and the model."""
    folder = problem.folder
    problem.people.to_csv(folder / "people.csv", index=False)
    x.assign(y=y).to_csv(folder / "train.csv", index=False)
    encoder = problem.ours["ours"].encoder_
    columns = {}
    for column in encoder.columns_:
        name = column.feature.name
        values = x[name]
        about: dict[str, Any] = {"levels": [], "width": column.width}
        if name in numbers:
            bulk = (
                values.quantile(0.005, interpolation="lower"),
                values.quantile(0.995, interpolation="higher"),
            )
            about |= {
                "center": column.center,
                "scale": column.scale,
                "bulk": [float(end) for end in bulk],
            }
        else:
            about["levels"] = list(column.feature.levels)
        columns[name] = about
    description = {"columns": columns, "target": problem.target, "options": OPTIONS}
    (folder / "problem.json").write_text(json.dumps(description), encoding="utf-8")
    if problem.model == "boosting":
        (folder / "model.pickle").write_bytes(pickle.dumps(model))
        return
    weights = {key: values[0] for key, values in layers_of([model.model_]).items()}
    arrays: dict[str, Any] = {"layers": len(weights) // 2, "target": problem.target, **weights}
    if len(numbers) == x.shape[1]:
        arrays |= {"x": problem.people.to_numpy(np.float64), "x_train": x.to_numpy(np.float64)}
        arrays |= {
            key: np.array([about[key] for about in columns.values()])
            for key in ("center", "scale")
        }
    np.savez(folder / "network.npz", **arrays)


def run(places: Environments, quick: bool) -> tuple[list[Table], list[str]]:
    """All tables, models and methods."""
    lines: list[tuple[Value, ...]] = []
    pairs: list[tuple[Value, ...]] = []
    remarks: list[str] = []
    tables, skipped = frames(quick)
    missing = {
        who: method
        for who, method in PEERS.items()
        if places.python(method.environment) is None
    }
    skipped += [
        f"{who}: {places.missing(method.environment)}" for who, method in missing.items()
    ]
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore")
        for table, (frame, y) in tables.items():
            for problem in make_problems(
                table, frame, y, Path(name), 2 if quick else EXPLAINED
            ):
                ours = judge(problem, _ours(problem, "ours"), lines, "ours")
                judge(problem, _in_one_call(problem), lines, "ours, in one call")
                judge(problem, _ours(problem, "ours, no gate"), lines, "ours, no gate")
                for who, method in PEERS.items():
                    numbers_only = problem.model == "network" and not problem.measure.texts
                    if who in missing or (method.network_of_numbers and not numbers_only):
                        continue
                    answered, words = _theirs(places, problem, method)
                    remarks += [f"{table}, {problem.model}, {who}: {word}" for word in words]
                    if answered.seconds:
                        theirs = judge(problem, answered, lines, who)
                        pairs.append(_pair(problem, who, theirs, ours))
    note = f"{NOTE} {' '.join(remarks)}"
    return [
        Table(COLUMNS, lines, note=note),
        Table(PAIRED, pairs, "On the same people", PAIRED_NOTE),
    ], skipped


def judge(
    problem: Problem, answered: Answered, lines: list[tuple[Value, ...]], who: str
) -> Judged:
    """Judge answers as they were handed back, and add their line to the table."""
    options = answered.options
    person = answered.person
    valid = np.zeros(len(options), dtype=bool)
    if len(options):
        valid = problem.probabilities(options).argmax(1) == problem.target
    options = options[valid]
    person = person[valid]
    moved = problem.measure.moved(problem.people.iloc[person], options)
    near = passes = np.zeros(len(options), dtype=bool)
    if len(options):
        near = problem.distance(options) <= problem.usual
        passes = problem.ours["ours"].plausibility(options)[:, problem.target] >= 0.5
    judged = Judged(
        len(answered.seconds), person, (moved > 0).sum(1), moved.sum(1), near, passes
    )
    lines.append(_line(problem, who, judged, answered.seconds))
    return judged


def _ours(problem: Problem, who: str) -> Answered:
    """One person at a time, as the other libraries do."""
    explainer = problem.ours[who]
    explainer.explain(problem.people[-1:], problem.wanted, n_options=OPTIONS)
    frames: list[pd.DataFrame] = []
    seconds: list[float] = []
    for i in range(problem.num_people):
        person = problem.people[i : i + 1]
        started = time.process_time()
        explanation = explainer.explain(person, problem.wanted, n_options=OPTIONS)
        seconds.append(time.process_time() - started)
        frames.append(explanation.frame[explanation.answered])
    person = np.repeat(np.arange(len(frames)), [len(options) for options in frames])
    return Answered(pd.concat(frames, ignore_index=True), person, seconds)


def _in_one_call(problem: Problem) -> Answered:
    people = problem.people[: problem.num_people]
    started = time.process_time()
    explanation = problem.ours["ours"].explain(people, problem.wanted, n_options=OPTIONS)
    seconds = (time.process_time() - started) / len(people)
    person = np.asarray(explanation.frame.index.get_level_values(0))[explanation.answered]
    return Answered(
        explanation.frame[explanation.answered].reset_index(drop=True),
        person,
        [seconds] * len(people),
    )


def _theirs(
    places: Environments, problem: Problem, method: Method
) -> tuple[Answered, list[str]]:
    """A peer's answers to as many of the first people as it gets to in time, and what went
    wrong.
    """
    cells: list[list[Any]] = []
    person: list[int] = []
    seconds: list[float] = []
    errors: list[str] = []
    remarks: list[str] = []
    most = min(method.people, problem.num_people)
    arguments = (str(problem.folder), *method.arguments)
    with Peer.foreign(
        places, method.environment, method.script, *arguments, one_thread=True
    ) as peer:
        theirs = np.array(peer.ask(rows=problem.num_people)["probabilities"])
        if not np.allclose(
            theirs, problem.probabilities(problem.people[: problem.num_people]), atol=1e-4
        ):
            raise RuntimeError(f"{method.script} asks another model.")
        started = time.perf_counter()
        end = threading.Timer(LIMIT, peer.process.terminate)
        end.start()
        try:
            peer.ask(row=problem.num_people)
            for row in range(most):
                answer = peer.ask(row=row)
                cells += answer["found"]
                person += [row] * len(answer["found"])
                seconds.append(answer["seconds"])
                if answer["error"]:
                    errors += [answer["error"]]
        except RuntimeError:
            if time.perf_counter() - started < LIMIT:
                raise
            remarks.append(f"stopped at person {len(seconds) + 1}.")
        finally:
            end.cancel()
    if errors:
        remarks.append(f"an error for {len(errors)} people, the first {errors[0]!r}.")
    options = pd.DataFrame(cells, columns=problem.people.columns)
    return Answered(options, np.array(person, dtype=np.int64), seconds), remarks


def _line(
    problem: Problem, who: str, judged: Judged, seconds: list[float]
) -> tuple[Value, ...]:
    head = (problem.name, problem.model, who, judged.people)
    times = (1000 * float(np.median(seconds)), 1000 * max(seconds))
    best = judged.cheapest()
    if not best:
        return (*head, "0%", *[""] * 6, *times)
    each = f"{len(judged.cost) / len(best):.1f}"
    costs = (float(np.median(judged.cost[list(best.values())])), float(np.median(judged.cost)))
    shares = (f"{judged.near.mean():.0%}", f"{judged.passes.mean():.0%}")
    return (
        *head,
        f"{len(best) / judged.people:.0%}",
        each,
        float(judged.changes.mean()),
        *costs,
        *shares,
        *times,
    )


def _pair(problem: Problem, who: str, theirs: Judged, ours: Judged) -> tuple[Value, ...]:
    """The cheapest options of a peer and of ours, for people who have both."""
    their_best = theirs.cheapest()
    our_best = ours.cheapest()
    both = sorted(their_best.keys() & our_best.keys())
    if not both:
        return (problem.name, problem.model, who, 0, "", "", "", "")
    places = [(theirs, [their_best[i] for i in both]), (ours, [our_best[i] for i in both])]
    changes = " · ".join(f"{judged.changes[at].mean():.3g}" for judged, at in places)
    costs = " · ".join(f"{np.median(judged.cost[at]):.3g}" for judged, at in places)
    near = " · ".join(f"{judged.near[at].mean():.0%}" for judged, at in places)
    cheaper = sum(theirs.cost[their_best[i]] < 0.999 * ours.cost[our_best[i]] for i in both)
    return (problem.name, problem.model, who, len(both), changes, costs, near, int(cheaper))
