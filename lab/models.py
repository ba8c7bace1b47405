"""The classifier's networks beside gradient boosting, on the paper's real data sets.

``python -m lab.models results``, with the data sets in ``CT_DATA_HOME``: about ten minutes
on one core. With ``--practice``, rows held out of the training rows stand in for the test rows, so
that these are looked at only once.

Each seed draws at most 6,000 training rows (MNIST: 3,000, one seed) and trains every network with
the classifier's own settings, without a gate, which no prediction depends on. Boosting is
scikit-learn's HistGradientBoosting with its own settings. Nothing was chosen by the test rows. Then
100 test rows are explained for the next most probable class.
"""

from __future__ import annotations

import argparse
import platform
import time
import warnings
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import sklearn
import torch
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import train_test_split

import counterfactual_training as ct
from counterfactual_training.persistence import atomic_write

# Of each data set, the training rows of one seed, and the seeds.
DATA = {
    "Adult": (6000, 2),
    "CH": (6000, 2),
    "Cred": (6000, 2),
    "GMSC": (6000, 2),
    "MNIST": (3000, 1),
}
EXPLAINED = 100
BOOSTING = "HistGradientBoosting"
NETWORKS: dict[str, dict[str, Any]] = {
    "linear": {"model": "linear"},
    "mlp (default)": {},
    "mlp, scaling=quantile": {"scaling": "quantile"},
    "mlp, ensemble": {"method": "ensemble"},
    "mlp-plr": {"model": "mlp-plr"},
    "mlp-ple": {"model": "mlp-ple"},
    "tabm": {"model": "tabm"},
    "neurotree": {"model": "neurotree"},
}
COLUMNS = ["accuracy", "AUC", "log-loss", "seconds", "answered", "inside", "cost"]
_ABOUT = """\
Means over seeds, which draw the training rows as well as the weights; ± is the standard deviation
over seeds. *seconds*: processor time to train, on one thread. *answered*: of the rows explained
with the first seed, those whose answer as printed gets the class asked for. *inside*: of the
numbers that answers change, those within the stated domain or, where none is stated, the range of
the training rows. *cost*: how far answers are, L1 in robust units, one-hot categories included
(mean over those answered)."""

Split = tuple[pd.DataFrame, np.ndarray, pd.DataFrame, np.ndarray]


def split(data: ct.Dataset, most: int, seed: int, practice: bool) -> Split:
    """Rows to train on and rows to measure on, with their classes."""
    x = data.frame_train
    y = data.y_train.numpy()
    test = data.frame_test
    y_test = data.y_test.numpy()
    if practice:
        x, test, y, y_test = train_test_split(
            x, y, test_size=0.2, random_state=100 + seed, stratify=y
        )
    if most < len(x):
        x, _, y, _ = train_test_split(x, y, train_size=most, random_state=seed, stratify=y)
    return x, y, test, y_test


def boosting(rows: Split, seed: int) -> tuple[np.ndarray, float]:
    """Probabilities ``(n, k)`` of the test rows, and the seconds of the training."""
    x, y, test, _ = rows
    texts = [name for name in x if not pd.api.types.is_numeric_dtype(x[name])]
    kinds = {name: pd.CategoricalDtype(sorted(x[name].astype(str).unique())) for name in texts}
    as_text = dict.fromkeys(texts, str)
    started = time.process_time()
    model = HistGradientBoostingClassifier(categorical_features="from_dtype", random_state=seed)
    model.fit(x.astype(as_text).astype(kinds), y)
    seconds = time.process_time() - started
    return model.predict_proba(test.astype(as_text).astype(kinds)), seconds


def network(
    rows: Split, params: dict[str, Any], schema: ct.Schema, seed: int
) -> tuple[ct.CounterfactualClassifier, float]:
    """A fitted classifier, and the seconds of its training."""
    started = time.process_time()
    classifier = ct.CounterfactualClassifier(
        **{"method": "conventional", **params},
        schema=schema,
        gate="none",
        random_state=seed,
        progress=False,
        unseen="unknown",
    )
    return classifier.fit(rows[0], rows[1]), time.process_time() - started


def scores(probabilities: np.ndarray, y: np.ndarray, seconds: float) -> dict[str, float]:
    """How well probabilities ``(n, k)`` tell classes ``(n,)``."""
    two = probabilities.shape[1] == 2
    if two:
        judged = probabilities[:, 1]
    else:
        judged = probabilities / probabilities.sum(1, keepdims=True)
    labels = np.arange(probabilities.shape[1])
    return {
        "accuracy": float((probabilities.argmax(1) == y).mean()),
        "AUC": float(
            roc_auc_score(y, judged)
            if two
            else roc_auc_score(y, judged, multi_class="ovr", labels=labels)
        ),
        "log-loss": float(log_loss(y, probabilities, labels=labels)),
        "seconds": seconds,
    }


def advice(classifier: ct.CounterfactualClassifier, rows: Split) -> dict[str, float]:
    """What explanations look like."""
    people = rows[2].head(EXPLAINED)
    explanation = classifier.explain(people)
    searched = explanation.status != "already_there"
    answered = searched & (explanation.prediction == explanation.target)
    encoder = ct.Encoder(classifier.schema_, unseen="unknown", scale="robust").fit(rows[0])
    cost = np.abs(
        encoder.transform(explanation.frame) - encoder.transform(explanation.original)
    ).sum(1)
    within = []
    for name in (name for name in people if pd.api.types.is_numeric_dtype(people[name])):
        moved = explanation.changed[name].to_numpy()
        stated = classifier.schema_[name].domain or (None, None)
        seen = rows[0][name].min(), rows[0][name].max()
        low, high = (
            bound if stated_end is None else stated_end
            for stated_end, bound in zip(stated, seen, strict=True)
        )
        within += explanation.frame[name][moved].between(low, high).tolist()
    return {
        "answered": float(answered[searched].mean()),
        "inside": float(np.mean(within)) if within else np.nan,
        "cost": float(cost[answered].mean()) if answered.any() else np.nan,
    }


def measure(name: str, practice: bool) -> list[dict[str, Any]]:
    """A line per model and seed."""
    data = ct.load_dataset(name, allow_download=False)
    most, seeds = DATA[name]
    lines = []
    for seed in range(seeds):
        rows = split(data, most, seed, practice)
        probabilities, seconds = boosting(rows, seed)
        by_model = {BOOSTING: scores(probabilities, rows[3], seconds)}
        for model, params in NETWORKS.items():
            classifier, seconds = network(rows, params, data.schema, seed)
            by_model[model] = scores(classifier.predict_proba(rows[2]), rows[3], seconds)
            if seed == 0 and name != "MNIST":
                by_model[model] |= advice(classifier, rows)
            print(
                name,
                seed,
                model,
                {key: round(value, 4) for key, value in by_model[model].items()},
                flush=True,
            )
        lines += [
            {"data": name, "model": model, "seed": seed, **values}
            for model, values in by_model.items()
        ]
    return lines


def page(table: pd.DataFrame, command: str, seconds: float) -> str:
    """One table per data set."""
    versions = f"counterfactual-training {ct.__version__}, torch {torch.__version__}, "
    versions += f"scikit-learn {sklearn.__version__}, Python {platform.python_version()}, "
    text = [
        "# Networks beside gradient boosting\n",
        f"`{command}`, seeds from 0, {versions}"
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {seconds / 60:.0f} minutes of processor time.\n",
        (__doc__ or "").split("\n\n")[-1].strip() + "\n",
        _ABOUT,
    ]
    for name, part in table.groupby("data", sort=False):
        most, seeds = DATA[str(name)]
        text.append(
            f"\n## {name}\n\nAt most {most:,} training rows, {seeds} "
            f"seed{'s' if seeds > 1 else ''}.\n"
        )
        text.append("| model | " + " | ".join(COLUMNS) + " |\n|---|" + "--:|" * len(COLUMNS))
        for model, rows in part.groupby("model", sort=False):
            text.append(
                f"| {model} | "
                + " | ".join(_cell(rows[column], column) for column in COLUMNS)
                + " |"
            )
    return "\n".join(text) + "\n"


def _cell(values: pd.Series, column: str) -> str:
    values = values.dropna()
    if values.empty:
        return "–"
    mean = values.mean()
    if column in ("answered", "inside"):
        return f"{mean:.0%}"
    if column in ("seconds", "cost"):
        return f"{mean:.1f}"
    return f"{mean:.3f}" + (f" ± {values.std():.3f}" if len(values) > 1 else "")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="where to write models.csv and models.md")
    parser.add_argument("--data", help="only these data sets, separated by commas")
    parser.add_argument(
        "--practice", action="store_true", help="measure on rows held out of the training rows"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.data is None:
        wanted = list(DATA)
    else:
        wanted = arguments.data.split(",")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        table = pd.DataFrame(
            [line for name in wanted for line in measure(name, arguments.practice)]
        )
    arguments.out.mkdir(parents=True, exist_ok=True)
    atomic_write(arguments.out / "models.csv", table.to_csv(index=False).encode())
    words = [
        "python -m lab.models results",
        *(["--practice"] if arguments.practice else []),
    ]
    if arguments.data is None:
        words += []
    else:
        words += [f"--data {arguments.data}"]
    atomic_write(
        arguments.out / "models.md", page(table, " ".join(words), time.process_time()).encode()
    )


if __name__ == "__main__":
    main()
