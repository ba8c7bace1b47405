"""Does ``cheap_recourse`` keep its budget of accuracy on small tables?

``python -m lab.budget DIR results``, where DIR has the packages of ``lab.decision``: five minutes
on one core. 200 and 500 rows are fitted (half of the rows of a smaller table), by six seeds each,
and all others measure, 4,000 at most. Costs are of the advice that 100 of them get, L1 in
standardised numbers, over those whom both answer.
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from sklearn.model_selection import train_test_split

import counterfactual_training as ct
from counterfactual_training.persistence import atomic_write
from lab.decision import origin, tables

TABLES = ("CH", "Cred", "GMSC", "OJ, brand bought", "breast cancer")
ROWS = (200, 500)
MOST = 4000
PEOPLE = 100
SEEDS = 6
METHOD = "cheap_recourse"
BUDGET = 100 * ct.make_method(METHOD).budget


def measure(frame: pd.DataFrame, labels: np.ndarray, num: int, seed: int) -> dict[str, float]:
    """Accuracies in points, and the cost of advice against that of the conventional network."""
    mine, others, y, other_y = train_test_split(
        frame, labels, train_size=num, random_state=seed, stratify=labels
    )
    others = others[:MOST].reset_index(drop=True)
    other_y = other_y[:MOST]
    line: dict[str, float] = {}
    told = []
    for method in ("conventional", METHOD):
        classifier = ct.CounterfactualClassifier(
            method, random_state=seed, progress=False, gate="none", unseen="unknown"
        ).fit(mine, y)
        line[method] = 100 * float((classifier.predict(others) == other_y).mean())
        people = others[:PEOPLE]
        classes = classifier.classes_.tolist()
        target = [
            classes[(classes.index(label) + 1) % len(classes)] for label in other_y[:PEOPLE]
        ]
        told.append(classifier.explain(people, target=target))
    both = np.logical_and(*(np.asarray(one.status == "converged") for one in told))
    numbers = frame.select_dtypes("number")
    usual, cheap = (
        ((one.frame[numbers.columns] - people[numbers.columns]).abs() / numbers.std())
        .sum(axis=1)
        .to_numpy()[both]
        .mean()
        for one in told
    )
    return {**line, "change": line[METHOD] - line["conventional"], "cost": cheap / usual}


def page(done: pd.DataFrame) -> str:
    lines = [
        "# Does cheap_recourse keep its budget on small tables?\n",
        f"`python -m lab.budget DIR results`, {origin()}.\n",
        f"Seeds: {SEEDS}. Accuracy in points on rows that no network saw; the budget is {BUDGET:g} "
        "points. *Cost* of advice against the conventional network's, in numbers, over people whom "
        "both answer.\n",
        "| table | rows fitted | conventional | cheap_recourse | change, by seed | change | cost |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for (name, num), part in done.groupby(["table", "rows"], sort=False):
        seeds = " ".join(f"{value:+.1f}" for value in part["change"])
        means = part[["conventional", METHOD, "change", "cost"]].mean()
        lines.append(
            f"| {name} | {num} | {means['conventional']:.1f} | {means[METHOD]:.1f} | {seeds} | "
            f"{means['change']:+.2f} | {means['cost']:.2f} |"
        )
    lines.append("")
    for more, part in done.groupby(done["rows"] > ROWS[0]):
        error = part["change"].std() / len(part) ** 0.5
        lines.append(
            f"Of {ROWS[int(more)]} rows accuracy changes by {part['change'].mean():+.2f} points "
            f"in the mean (standard error {error:.2f}), costs are {part['cost'].mean():.2f} times "
            "as high."
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("folder", type=Path, help="where the packages with tables are")
    parser.add_argument("out", type=Path, help="where to write")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    loaders = tables(chosen.folder, development=True)
    lines = []
    for name in TABLES:
        frame, labels = loaders[name]()
        for num in ROWS:
            # Somebody has to be left to measure by.
            rows = min(num, len(labels) // 2)
            for seed in range(SEEDS):
                started = time.process_time()
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    measured = measure(frame, labels, rows, seed)
                lines.append({"table": name, "rows": rows, "seed": seed, **measured})
                spent = time.process_time() - started
                print(name, rows, seed, f"{measured['change']:+.2f}, {spent:.0f} s", flush=True)
    done = pd.DataFrame(lines)
    done.to_csv(chosen.out / "budget.csv", index=False, float_format="%.5g")
    atomic_write(chosen.out / "budget.md", page(done).encode())


if __name__ == "__main__":
    main()
