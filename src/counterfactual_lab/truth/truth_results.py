"""The tables of the truth experiment, from the results there are."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from counterfactual_lab.paper_data import in_paper_order, published_value
from counterfactual_lab.runs.outcome import Outcome, check_versions, with_methods
from counterfactual_lab.runs.run import Run
from counterfactual_lab.truth.entrants import Compared
from counterfactual_lab.truth.equal_acceptance import equal_acceptance
from counterfactual_lab.truth.truth import Truth
from counterfactual_training.evaluation.bootstrap import compare, holm
from counterfactual_training.evaluation.findings import check_seeds, warn
from counterfactual_training.evaluation.judges import JUDGED
from counterfactual_training.evaluation.stepfree import STEP_FREE, summarise_stepfree

TABLES = ("truth", "truth_by_seed", "truth_performance", "truth_gains", "truth_acceptance")


def truth_tables(truth: Truth) -> dict[str, pd.DataFrame]:
    """Of all that is done: ``truth`` (every cell against its reference), ``truth_by_seed`` (the
    same for each training seed, means alone), ``truth_performance`` (accuracy and calibration),
    ``truth_gains`` (the published reductions beside what is left of them) and ``truth_acceptance``
    (cost at equal acceptance, see :func:`equal_acceptance`).
    """
    names = truth.names
    store = truth.store
    finished = store.done()
    done = {
        (run.data, run.seed, run.model): run
        for job in truth.jobs
        for run in job
        if run.id in finished
    }
    # Runs without a finished reference cannot be compared yet.
    runs = [
        run
        for (data, seed, name), run in done.items()
        if (data, seed, Compared.of(name).reference) in done
    ]
    if not runs:
        return {name: pd.DataFrame() for name in TABLES}
    outcomes = [store.load(run) for run in runs]
    floors = [
        store.load(truth.floors(data)) for data in dict.fromkeys(run.data for run in runs)
    ]
    check_versions([*outcomes, *floors])
    table = pd.concat([one.table() for one in (*outcomes, *floors)], ignore_index=True)
    references = {name: Compared.of(name).reference for name in names}
    cells = in_paper_order(with_methods(summarise_stepfree(table, references)))
    warn(check_seeds(int(cells["seeds"].min())))
    tables = (
        cells,
        in_paper_order(_by_seed(table, references)),
        in_paper_order(_performance(outcomes)),
        _gains(cells),
        in_paper_order(equal_acceptance(_stepfree(table), references)),
    )
    return dict(zip(TABLES, tables, strict=True))


def _stepfree(table: pd.DataFrame) -> pd.DataFrame:
    """Without the published steps, which do not end just past τ."""
    return table[table["tau"].isin([level.name for level in STEP_FREE])]


def _by_seed(table: pd.DataFrame, references: Mapping[str, str]) -> pd.DataFrame:
    """Means of every method and its reference over the individuals for whom both arrive, for each
    training seed.
    """
    table = table[table["model"].isin(references)]
    keys = ["data", "setting", "tau", "seed"]
    pairs = table.assign(reference=table["model"].map(references)).merge(
        table,
        left_on=[*keys, "row", "reference"],
        right_on=[*keys, "row", "model"],
        suffixes=("", "_reference"),
    )
    pairs = pairs[
        (pairs["valid"] == 1)
        & (pairs["valid_reference"] == 1)
        & (pairs["model"] != pairs["reference"])
    ]
    means = pairs.groupby([*keys, "model", "reference"], sort=False, as_index=False).mean(
        numeric_only=True
    )
    parts = [
        means[[*keys, "model", "reference"]].assign(
            metric=name, value=means[name], reference_value=means[f"{name}_reference"]
        )
        for name in (*JUDGED, "cost")
    ]
    return with_methods(pd.concat(parts, ignore_index=True))


def _performance(outcomes: Sequence[Outcome[Run]]) -> pd.DataFrame:
    """Means over seeds, and the difference to the reference; Holm over all cells."""
    frame = pd.DataFrame(
        [
            {
                "data": one.run.data,
                "method": one.run.model,
                "seed": one.run.seed,
                "setting": key.split("/")[0],
                "metric": key.split("/")[1],
                "value": number,
                "seconds": one.seconds["train"],
            }
            for one in outcomes
            for key, number in one.numbers.items()
        ]
    )
    rows = []
    for (data, setting, metric), cell in frame.groupby(
        ["data", "setting", "metric"], sort=False
    ):
        by_model = {
            str(name): part.set_index("seed")
            for name, part in cell.groupby("method", sort=False)
        }
        for name, part in by_model.items():
            reference = by_model[Compared.of(name).reference]
            seeds = part.index.intersection(reference.index)
            a, b = (one.loc[seeds, "value"].to_numpy()[:, None] for one in (part, reference))
            row = {
                "data": data,
                "setting": setting,
                "method": name,
                "metric": metric,
                "value": float(a.mean()),
            }
            row |= {"change": float("nan"), "p_value": float("nan")}
            if Compared.of(name).reference != name:
                estimate = compare(a, b, np.random.default_rng(2025), "difference")
                row |= {"change": estimate.value, "p_value": estimate.p_value}
            rows.append(row | {"seconds": float(part["seconds"].mean()), "seeds": len(seeds)})
    out = pd.DataFrame(rows)
    return out.assign(p_holm=holm(out["p_value"].to_numpy()))


# Of the paper's main table: its metric, ours, and the setting it was measured in.
_GAINS = (
    ("implausibility", "ip", "free"),
    ("implausibility_mmd", "ip_star", "free"),
    ("cost", "cost", "protected"),
)


def _gains(truth: pd.DataFrame) -> pd.DataFrame:
    """Reductions in %: as published, and of each method by fixed steps and free of step and
    scale.
    """
    # Of nothing there is no per cent.
    compared = truth[(truth["method"] != truth["reference"]) & (truth["reference_value"] > 0)]
    compared = compared.assign(
        method=compared["method"] + ", " + compared["tau"],
        reduction=100 * (1 - compared["value"] / compared["reference_value"]),
    )
    rows = []
    for data, (theirs, ours, setting) in itertools.product(
        dict.fromkeys(truth["data"]), _GAINS
    ):
        cells = compared[
            (compared["data"] == data)
            & (compared["metric"] == ours)
            & (compared["setting"] == setting)
        ]
        row = {
            "data": data,
            "metric": theirs,
            "published": published_value("main", data, theirs, "reduction"),
        }
        rows.append(row | dict(zip(cells["method"], cells["reduction"], strict=True)))
    return pd.DataFrame(rows)
