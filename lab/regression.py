"""The regressor on California housing: beside gradient boosting, and trained conventionally or by
counterfactuals.

``python -m lab.regression results``, with the data set in ``CT_DATA_HOME``: some minutes on
one core. With ``--practice``, rows held out of the training rows stand in for the test rows, so
that these are looked at only once.

Each seed draws 4,000 training rows and trains with the regressor's own settings. Boosting is
scikit-learn's HistGradientBoostingRegressor with its own settings. Then 60 test rows outside each
of three intervals (the outer quarters and the middle half of the training values) are explained.
Nothing was chosen by the test rows.
"""

from __future__ import annotations

import argparse
import io
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
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.metrics import r2_score, root_mean_squared_error

import counterfactual_training as ct
from counterfactual_training.datasets.download import fetch
from counterfactual_training.datasets.sources import FILES
from counterfactual_training.datasets.synthetic import DATA_SEED
from counterfactual_training.persistence import atomic_write

ROWS = 4000
SEEDS = 3
EXPLAINED = 60
METHODS = ("conventional", "bag", "ct", "ct_published")
# How counterfactuals are asked for: as users do, of the model alone, and of the model alone with
# all columns.
QUESTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "with the gate (default)": ("density", {}),
    "model alone": ("none", {}),
    "model alone, all columns": ("none", {"sparsify": False}),
}
COLUMNS = ["validity", "plausible", "cost", "sparsity", "nn5", "ip"]
_ABOUT = """\
Means over seeds, which draw the training rows as well as the weights, and over the three intervals;
± is the standard deviation over seeds. *validity*: counterfactuals predicted inside, as printed.
*plausible*: also passed by the gate, where there is one. *cost*: L1 in model space. *sparsity*:
columns changed. *nn5*, *ip*: L2 distance to the five nearest test rows whose value lies in the
interval, and mean L1 distance to all of them. Cost and distances are medians over rows. As in the
data set's schema, the age of houses and their place may not change."""


def values(data: ct.Dataset) -> np.ndarray:
    """Median house values in dollars, in the order of the data set: training rows, then test
    rows.
    """
    content = fetch(FILES["cal_housing.data"], allow_download=False).content
    raw = pd.read_csv(
        io.BytesIO(content), header=None, skiprows=int(content.startswith(b"longitude"))
    )
    prices = raw.iloc[:, -1].to_numpy(dtype=float)[
        np.random.default_rng(DATA_SEED).permutation(len(raw))
    ]
    classes = torch.cat([data.y_train, data.y_test]).numpy()
    # The classes were made of these values, so they show that the rows are in the same order.
    if not ((prices >= np.median(prices)) == classes).all():
        raise ValueError("the values are not in the order of the rows")
    return prices


def measure(seed: int, practice: bool) -> list[dict[str, Any]]:
    """A line per model and question."""
    data = ct.load_dataset("CH", variant="full", allow_download=False)
    y = values(data)
    frame = pd.concat([data.frame_train, data.frame_test], ignore_index=True)
    order = np.random.default_rng(seed).permutation(len(data.frame_train))
    rows = order[:ROWS]
    if practice:
        test = order[-4000:]
    else:
        test = np.arange(len(data.frame_train), len(frame))
    started = time.process_time()
    boosting = HistGradientBoostingRegressor(random_state=seed).fit(frame.iloc[rows], y[rows])
    seconds = time.process_time() - started
    predictions = boosting.predict(frame.iloc[test])
    fit = {
        "r2": r2_score(y[test], predictions),
        "rmse": root_mean_squared_error(y[test], predictions),
        "seconds": seconds,
    }
    lines = [{"model": "HistGradientBoosting", "seed": seed, "question": "", **fit}]
    for method in METHODS:
        models = {}
        # The same weights: training ignores the gate.
        for gate in {gate for gate, _ in QUESTIONS.values()}:
            started = time.process_time()
            models[gate] = ct.CounterfactualRegressor(
                method, gate=gate, schema=data.schema, random_state=seed, progress=False
            ).fit(frame.iloc[rows], y[rows])
            seconds = time.process_time() - started
        for question, (gate, rules) in QUESTIONS.items():
            model = models[gate]
            table = model.evaluate(frame.iloc[test], y[test], n_rows=EXPLAINED, **rules)
            means = table.drop(columns=["target", "rows"]).mean().to_dict()
            lines.append(
                {
                    "model": method,
                    "seed": seed,
                    "question": question,
                    **means,
                    "seconds": seconds,
                }
            )
            print(
                {k: v if isinstance(v, str) else round(v, 4) for k, v in lines[-1].items()},
                flush=True,
            )
    return lines


def page(table: pd.DataFrame, command: str, seconds: float) -> str:
    """Predictions, then counterfactuals."""
    versions = f"counterfactual-training {ct.__version__}, torch {torch.__version__}, "
    versions += f"scikit-learn {sklearn.__version__}, Python {platform.python_version()}, "
    text = [
        "# Regression: the value of Californian houses\n",
        f"`{command}`, seeds from 0, {versions}"
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {seconds / 60:.0f} minutes of processor time.\n",
        (__doc__ or "").split("\n\n")[-1].strip() + "\n",
        _ABOUT,
        "\n## Predictions\n\n| model | R² | RMSE (dollars) | seconds to train |\n|---|--:|--:|--:|",
    ]
    first = table[table["question"].isin(["", next(iter(QUESTIONS))])]
    for name, rows in first.groupby("model", sort=False):
        text.append(
            f"| {name} | {_cell(rows['r2'])} | {rows['rmse'].mean():,.0f} | "
            f"{rows['seconds'].mean():.1f} |"
        )
    text.append(
        "\n## Counterfactuals\n\n| question | method | "
        + " | ".join(COLUMNS)
        + " |\n|---|---|"
        + "--:|" * 6
    )
    questions = table[table["question"] != ""]
    for (question, name), rows in questions.groupby(["question", "model"], sort=False):
        text.append(
            f"| {question} | {name} | "
            + " | ".join(_cell(rows[column]) for column in COLUMNS)
            + " |"
        )
    return "\n".join(text) + "\n"


def _cell(numbers: pd.Series) -> str:
    return f"{numbers.mean():.3f}" + (f" ± {numbers.std():.3f}" if len(numbers) > 1 else "")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "out", type=Path, help="where to write regression.csv and regression.md"
    )
    parser.add_argument(
        "--practice", action="store_true", help="measure on rows held out of the training rows"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        table = pd.DataFrame(
            [line for seed in range(SEEDS) for line in measure(seed, arguments.practice)]
        )
    arguments.out.mkdir(parents=True, exist_ok=True)
    atomic_write(arguments.out / "regression.csv", table.to_csv(index=False).encode())
    words = [
        "python -m lab.regression results",
        *(["--practice"] if arguments.practice else []),
    ]
    atomic_write(
        arguments.out / "regression.md",
        page(table, " ".join(words), time.process_time()).encode(),
    )


if __name__ == "__main__":
    main()
