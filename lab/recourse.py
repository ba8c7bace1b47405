"""What each part of training for cheap recourse adds, on rows cut from the training rows: no
test row is read.

``python -m lab.recourse results``: ten minutes on one core.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
import torch
from torch import nn

import counterfactual_training as ct
from counterfactual_lab.runs.outcome import with_methods
from counterfactual_lab.truth.caps import Caps
from counterfactual_lab.truth.entrants import Fit, trained
from counterfactual_lab.truth.truth import fit_of, make_bench
from counterfactual_training.evaluation.performance import accuracy, predict_logits
from counterfactual_training.evaluation.stepfree import (
    STEP_FREE,
    stepfree_table,
    summarise_stepfree,
)
from counterfactual_training.persistence import atomic_write
from counterfactual_training.training.method import Method

DATA = ("LS", "CH", "GMSC", "Cred")
SEEDS = 4
CAPS = Caps(rows=3000, individuals=200, judge_rows=2000, epochs=30)
CONVENTIONAL = "conventional"
COMPLETE = "cheap_recourse"
VARIANTS: dict[str, Callable[[Fit, Method], Method]] = {
    COMPLETE: lambda fit, method: method,
    "without contrast": lambda fit, method: method.replace("lambda_contrast", 0.0),
    "without recourse term": lambda fit, method: method.replace("lambda_recourse", 0.0),
    "random instead of near x⁺": lambda fit, method: method.replace("positives", 1),
    "categories continuous": lambda fit, method: replace(
        method, constraints=fit.constraints.relaxed()
    ),
    "without budget": lambda fit, method: replace(method, budget=None),
}
METRICS = {
    "cost": "Cost, % against conventional training",
    "nn5": "5-NN, % against conventional training",
}


def measure(data: str, seed: int) -> tuple[pd.DataFrame, list[dict[str, object]]]:
    """Counterfactuals of every variant at τ = .5, protected features immutable; accuracy and
    seconds of each.
    """
    bench = make_bench(data, False, CAPS)
    fit = fit_of(bench, data, seed, CAPS, protected=True)
    models: dict[str, nn.Module] = {}
    about: list[dict[str, object]] = []
    for name in (CONVENTIONAL, *VARIANTS):
        started = time.process_time()
        if name == CONVENTIONAL:
            (model,) = trained([fit], CONVENTIONAL)
        else:
            (model,) = trained([fit], COMPLETE, VARIANTS[name])
        models[name] = model
        seconds = time.process_time() - started
        right = float(accuracy(predict_logits(model, bench.x_held), bench.y_held))
        about.append(
            {"data": data, "seed": seed, "method": name, "accuracy": right, "seconds": seconds}
        )
    train_rows = (fit.x, fit.y)
    table = stepfree_table(
        models, bench.individuals, bench.judge, train_rows, fit.constraints, STEP_FREE[:1]
    )
    return table.assign(data=data, seed=seed), about


def page(summary: pd.DataFrame, models: pd.DataFrame, about: str) -> str:
    text = [f"# What each part of training for cheap recourse adds\n\n{about}\n"]
    names = list(dict.fromkeys(summary["data"]))
    head = f"| | {' | '.join(names)} |\n|---{'|--:' * len(names)}|"
    for metric, title in METRICS.items():
        text.append(f"\n## {title}\n\n{head}")
        for name in VARIANTS:
            cells = [_change(summary, name, data, metric) for data in names]
            text.append(f"| {name} | {' | '.join(cells)} |")
    text.append(f"\n## Accuracy, %, and valid counterfactuals, %\n\n{head}")
    for name in (CONVENTIONAL, *VARIANTS):
        cells = []
        for data in names:
            right = models[(models["method"] == name) & (models["data"] == data)][
                "accuracy"
            ].mean()
            cells.append(
                f"{100 * right:.1f}, {100 * _row(summary, name, data, 'cost')['validity']:.0f}"
            )
        text.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(text) + "\n"


def _row(summary: pd.DataFrame, name: str, data: str, metric: str) -> pd.Series:
    chosen = (
        (summary["method"] == name) & (summary["data"] == data) & (summary["metric"] == metric)
    )
    return summary[chosen].iloc[0]


def _change(summary: pd.DataFrame, name: str, data: str, metric: str) -> str:
    row = _row(summary, name, data, metric)
    return f"{-row['change']:+.0f} ({-row['high']:+.0f} … {-row['low']:+.0f})"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="folder of recourse_ablation.csv and .md")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--data", nargs="+", default=list(DATA), choices=DATA)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    started = time.perf_counter()
    tables: list[pd.DataFrame] = []
    models: list[dict[str, object]] = []
    for data in arguments.data:
        for seed in range(arguments.seeds):
            table, about = measure(data, seed)
            tables.append(table)
            models += about
            print(data, seed, round(time.perf_counter() - started), flush=True)
        summary = with_methods(
            summarise_stepfree(
                pd.concat(tables, ignore_index=True),
                CONVENTIONAL,
                ("cost", "nn5", "boosting", "valid"),
            )
        )
        means = (
            pd.DataFrame(models)
            .groupby(["data", "method"], sort=False, as_index=False)
            .mean(numeric_only=True)
        )
        written = summary.merge(means.drop(columns="seed"), on=["data", "method"])
        text = ABOUT.format(
            seeds=arguments.seeds - 1,
            rows=f"{CAPS.rows:,}",
            epochs=CAPS.epochs,
            people=CAPS.individuals,
            minutes=(time.perf_counter() - started) / 60,
            versions=f"counterfactual-training {ct.__version__}, torch {torch.__version__}, "
            f"{datetime.now(UTC).isoformat(timespec='minutes')}",
        )
        atomic_write(
            arguments.out / "recourse_ablation.csv",
            written.to_csv(index=False, float_format="%.6g").encode(),
        )
        atomic_write(
            arguments.out / "recourse_ablation.md",
            page(summary, pd.DataFrame(models), text).encode(),
        )


ABOUT = """`python -m lab.recourse results`, seeds 0 to {seeds}, {versions}, {minutes:.0f}
minutes.

**Tuning rows**: all that is measured was cut from the training rows. {rows} rows and {epochs}
epochs at most, {people} people, the protected features immutable, τ = .5 free of step and scale.
Changes are paired with the same network trained conventionally, less is better, with intervals over
seeds and people. """


if __name__ == "__main__":
    main()
