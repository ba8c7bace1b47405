"""How predictions hold under attack, and how well confidences are calibrated, by method.

``python -m lab.curves results``, with the data sets in ``CT_DATA_HOME``: seven minutes on
one core. What is in ``results/curves.csv`` is not measured again. The paper's tables, real and
synthetic; MNIST is left out, to keep it short. Each seed draws the training rows
as well as the weights. Every method is trained as the classifier trains it; the gate, which no
prediction depends on, is left out.

Attacks change the encoding of a test row by at most ε in every coordinate, in robust units of
numbers (a change of 1 is about a standard deviation) and in the one-hot places of categories.
*FGSM* takes one step along the sign of the gradient of the loss, *PGD* 20 steps of ε/8 from a
random start. Both know the whole model, all members of a bag.
"""

from __future__ import annotations

import argparse
import io
import platform
import time
import warnings
from datetime import UTC, datetime
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from sklearn.model_selection import train_test_split
from torch.nn.functional import cross_entropy

import counterfactual_training as ct
from counterfactual_lab.reports.style import palette_png
from counterfactual_training.evaluation.attacks import robust_accuracy
from counterfactual_training.evaluation.performance import (
    accuracy,
    calibration_error,
    predict_logits,
)
from counterfactual_training.generators.perturbations import fgsm, pgd
from counterfactual_training.persistence import atomic_write

DATA = ("LS", "Circ", "Moon", "OL", "Adult", "CH", "Cred", "GMSC")
# The first is the twin that the others are compared with.
METHODS = ("conventional", "bag", "ct", "ct_published", "pgd")
SEEDS = 3
TRAINED = 1500
MEASURED = 4000
ATTACKED = 1500
EPSILONS = (0.0, 0.01, 0.03, 0.05, 0.1, 0.15, 0.2, 0.3)
STEPS = 20
# Of which the table has a column.
SHOWN = (0.05, 0.1, 0.2)
PREDICTED = ("accuracy", "log-loss", "calibration")
# Told apart by people who see colours differently, and in black and white.
LOOKS: dict[str, dict[str, Any]] = {
    "conventional": {"color": "#555555", "marker": "s", "linestyle": "--"},
    "bag": {"color": "#0072B2", "marker": "o"},
    "ct": {"color": "#D55E00", "marker": "^"},
    "ct_published": {"color": "#CC79A7", "marker": "D", "linestyle": ":"},
    "pgd": {"color": "#009E73", "marker": "v"},
}
TOLD = {
    "conventional": "conventional: one network",
    "bag": "bag: five of them (the default)",
    "ct": "ct: five, with counterfactuals",
    "ct_published": "ct_published: as in the paper",
    "pgd": "pgd: adversarial training",
}


def cut(data: ct.Dataset, seed: int) -> tuple[pd.DataFrame, np.ndarray]:
    """The training rows of a seed, and their classes."""
    x = data.frame_train
    y = data.y_train.numpy()
    if len(x) > TRAINED:
        x, _, y, _ = train_test_split(x, y, train_size=TRAINED, random_state=seed, stratify=y)
    return x, y


def measure(data: ct.Dataset, method: str, seed: int) -> list[dict[str, Any]]:
    """A line per attack and ε, with how well rows are predicted without any."""
    classifier = ct.CounterfactualClassifier(
        method,
        schema=data.schema,
        gate="none",
        random_state=seed,
        progress=False,
        unseen="unknown",
    ).fit(*cut(data, seed))
    x = classifier._encoded(data.frame_test.iloc[:MEASURED])
    y = data.y_test[:MEASURED].long()
    logits = predict_logits(classifier.model_, x)
    predicted = {
        "accuracy": float(accuracy(logits, y)),
        "log-loss": float(cross_entropy(logits, y)),
        "calibration": float(calibration_error(logits, y)),
    }
    lines = []
    for attack in ("FGSM", "PGD"):
        for epsilon in EPSILONS:
            held = robust_accuracy(
                classifier.model_,
                x[:ATTACKED],
                y[:ATTACKED],
                [epsilon],
                attack_of(attack, epsilon),
            )
            line = {"attack": attack, "epsilon": epsilon, "robust": float(held[0])}
            lines.append(line | predicted)
    return lines


def attack_of(name: str, epsilon: float) -> Any:
    if name == "FGSM":
        return partial(fgsm, clamp=False)
    rng = torch.Generator().manual_seed(0)
    return partial(pgd, steps=STEPS, step_size=epsilon / 8, rng=rng, clamp=False)


# ---- what is written -----------------------------------------------------------------------------


def picture(table: pd.DataFrame) -> bytes:
    """The mean of the tables under both attacks, and PGD for each table."""
    figure, panels = plt.subplots(2, 5, figsize=(15, 6.6), layout="constrained", sharex=True)
    names = list(table["data"].unique())
    by_attack = table.groupby(["attack", "method", "epsilon"], sort=False)["robust"].mean()
    for axes, attack in zip(panels[:, 0], ("PGD", "FGSM"), strict=True):
        curves(axes, by_attack[attack], f"Mean of {len(names)} tables, {attack}")
        axes.set_facecolor("#F4F4F0")
        axes.set_ylabel("accuracy under attack")
    strong = table[table["attack"] == "PGD"]
    by_data = strong.groupby(["data", "method", "epsilon"], sort=False)["robust"].mean()
    for axes, name in zip(panels[:, 1:].flat, names, strict=False):
        curves(axes, by_data[name], f"{name}, PGD")
        axes.set_ylim(0, 103)
    for axes in panels[:, 1:].flat[len(names) :]:
        axes.set_axis_off()
    for axes in panels[1]:
        axes.set_xlabel("ε, robust units")
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), fontsize=10)
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=100)
    plt.close(figure)
    return palette_png(drawn.getvalue())


def curves(axes: Axes, held: pd.Series, title: str) -> None:
    """A line per method."""
    for method in METHODS:
        own = held[method]
        axes.plot(own.index, 100 * own, label=TOLD[method], markersize=4, **LOOKS[method])
    axes.set_title(title, fontsize=10)
    axes.yaxis.set_major_formatter("{x:.0f} %")
    axes.grid(alpha=0.3)


def page(table: pd.DataFrame) -> str:
    seconds = table.groupby(["data", "method", "seed"])["seconds"].first().sum()
    seeds = table["seed"].nunique()
    versions = f"counterfactual-training {ct.__version__}, torch {torch.__version__}"
    text = [
        "# Under attack, and calibrated\n",
        f"`python -m lab.curves results`, seeds 0 to {seeds - 1}, {versions}, Python "
        f"{platform.python_version()}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {seconds / 60:.0f} "
        "minutes of processor time on one thread.\n",
        "\n\n".join((__doc__ or "").split("\n\n")[2:]).strip() + "\n",
        f"At most {TRAINED:,} training rows and {MEASURED:,} test rows, of which {ATTACKED:,} are "
        f"attacked; means of {seeds} seeds. *Calibration* is the expected calibration error of 15 "
        "bins. Accuracies, calibration errors and differences are in percent and points; what "
        "follows ± is the standard deviation over tables of the difference to *conventional*.\n",
        "![Accuracy under attack, by method and ε](curves.png)\n",
        "## Mean of the tables\n",
        *lines(table),
        "\n## By table\n",
    ]
    for name, part in table.groupby("data", sort=False):
        text += [f"\n### {name}\n", *lines(part)]
    return "\n".join(text) + "\n"


def lines(table: pd.DataFrame) -> list[str]:
    """A line per method; of several tables, with the difference to the first."""
    columns = {
        f"{attack} {epsilon:g}": (attack, epsilon)
        for attack in ("FGSM", "PGD")
        for epsilon in SHOWN
    }
    header = ["accuracy, %", "log-loss", "calibration, %", *columns]
    written = [f"| method | {' | '.join(header)} |", f"|---|{'--:|' * len(header)}"]
    means = by_table(table, columns)
    twin = means.loc[METHODS[0]]
    for method in METHODS:
        own = means.loc[method]
        cells = []
        for name in own:
            digits = 3 if name == "log-loss" else 1
            cell = f"{own[name].mean():.{digits}f}"
            difference = own[name] - twin[name]
            if len(own) > 1 and method != METHODS[0]:
                cell += f" ({difference.mean():+.{digits}f} ± {difference.std():.{digits}f})"
            cells.append(cell)
        written.append(f"| {method} | {' | '.join(cells)} |")
    return written


def by_table(table: pd.DataFrame, columns: dict[str, tuple[str, float]]) -> pd.DataFrame:
    """Means over seeds, a line per method and table."""
    keys = ["method", "data"]
    means = table.groupby(keys)[list(PREDICTED)].mean()
    means[["accuracy", "calibration"]] *= 100
    for name, (attack, epsilon) in columns.items():
        mine = (table["attack"] == attack) & (table["epsilon"] == epsilon)
        means[name] = 100 * table[mine].groupby(keys)["robust"].mean()
    return means


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("out", type=Path, help="where to write")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    chosen.out.mkdir(parents=True, exist_ok=True)
    file = chosen.out / "curves.csv"
    table = pd.DataFrame(columns=["data", "method", "seed"])
    if file.exists():
        table = pd.read_csv(file)
    done = set(table[["data", "method", "seed"]].itertuples(index=False, name=None))
    for seed, name, method in product(range(SEEDS), DATA, METHODS):
        if (name, method, seed) in done:
            continue
        started = time.process_time()
        with warnings.catch_warnings():
            # Constant columns of a sample, and rows without a counterfactual.
            warnings.simplefilter("ignore", UserWarning)
            measured = measure(ct.load_dataset(name, allow_download=False), method, seed)
        seconds = time.process_time() - started
        own = {"data": name, "method": method, "seed": seed, "seconds": seconds}
        table = pd.concat([table, pd.DataFrame([own | line for line in measured])])
        atomic_write(file, table.to_csv(index=False, float_format="%.5g").encode())
        print(name, seed, method, f"{seconds:.1f} s", flush=True)
    atomic_write(chosen.out / "curves.png", picture(table))
    atomic_write(chosen.out / "curves.md", page(table).encode())


if __name__ == "__main__":
    main()
