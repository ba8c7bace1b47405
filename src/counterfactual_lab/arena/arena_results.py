"""The tables of a comparison, from all results so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from counterfactual_lab.arena.arena import ATTACK, BARS, INPUT_GRADIENTS, Arena
from counterfactual_lab.grids.settings import CONVENTIONAL
from counterfactual_lab.paper_data import in_paper_order
from counterfactual_lab.runs.outcome import Outcome, check_versions, with_methods
from counterfactual_lab.runs.run import Run
from counterfactual_lab.truth.equal_acceptance import BY, equal_acceptance
from counterfactual_training.evaluation.bootstrap import compare, holm
from counterfactual_training.evaluation.findings import check_seeds, warn
from counterfactual_training.evaluation.metrics import ACCEPTANCE
from counterfactual_training.evaluation.stepfree import (
    RETRAINED,
    STEP_FREE,
    summarise_stepfree,
)

TABLES = ("arena", "arena_ct_published", "arena_models", "arena_overview", "arena_acceptance")
OURS = "ct_published"
LEVEL = 0.05
_LEAST_EXCESS = 0.05
_FAMILY = ["setting", "tau", "metric"]
COMPARED = ("nn5", "ip", "ip_star", ACCEPTANCE, "cost", "changes", "valid", RETRAINED)
ROBUST = f"robust_accuracy@{ATTACK.epsilons[-1]:g}"
OF_MODEL = ("accuracy", "calibration_error", ROBUST)
# Of counterfactuals: the column of the overview, the metric, and what is shown of a cell.
OF_POINTS = {
    "nn5": ("nn5", "change"),
    "excess": ("nn5", "share"),
    "cost": ("cost", "change"),
    "accepted": (ACCEPTANCE, "value"),
    "valid": ("valid", "value"),
    "columns": ("changes", "value"),
    "retrained": (RETRAINED, "value"),
}


def arena_tables(arena: Arena) -> dict[str, pd.DataFrame]:
    """Of all that is done:

    - ``arena``: every cell (data, search, τ, method, metric) against conventional training, see
      :func:`summarise_stepfree`; ``generator`` is the search;
    - ``arena_ct_published``: distance to real rows and cost against the published method instead;
    - ``arena_models``: accuracy, calibration, accuracy under attack, seconds, and the difference to
      conventional;
    - ``arena_overview``: one row per method and search, medians over the data sets that all of
      them have;
    - ``arena_acceptance``: cost at equal acceptance, by other families and by refits, see
      :func:`equal_acceptance`.

    p-values are corrected within a family: one metric, search and τ, all data sets and methods.
    """
    store = arena.store
    jobs = arena.finished
    # Nothing to compare with before the conventional model is done.
    ready = {job[0].data for job in jobs if job[0].model == CONVENTIONAL}
    runs = [run for job in jobs for run in job if run.data in ready]
    if not runs:
        return {name: pd.DataFrame() for name in TABLES}
    outcomes = [store.load(run) for run in runs]
    floors = [
        store.load(arena.floors(data)) for data in dict.fromkeys(run.data for run in runs)
    ]
    check_versions([*outcomes, *floors])
    table = pd.concat([one.table() for one in (*outcomes, *floors)], ignore_index=True)
    accepted = in_paper_order(_named(equal_acceptance(table, CONVENTIONAL)))
    # Values of τ that only a frontier needs are left out from here on.
    between = [level.name for level in BARS if level not in STEP_FREE]
    table = table[~table["tau"].isin(between)]
    cells = summarise_stepfree(table, CONVENTIONAL, COMPARED, LEVEL, _FAMILY)
    cells = in_paper_order(_named(cells))
    # Where conventional counterfactuals are as near as real rows, there is no excess to reduce.
    cells["share"] = cells["share"].where(
        cells["reference_value"] - cells["real"] > _LEAST_EXCESS * cells["real"].abs()
    )
    warn(check_seeds(int(cells["seeds"].min())))
    models = in_paper_order(_models(outcomes))
    against = _against_published(table)
    tables = (cells, against, models, _overview(cells, models, accepted), accepted)
    return dict(zip(TABLES, tables, strict=True))


def _named(table: pd.DataFrame) -> pd.DataFrame:
    """With columns named as everywhere: rows of a store say ``model`` for a method, and
    ``setting`` for a generator.
    """
    return with_methods(table).rename(columns={"setting": "generator"})


def _against_published(table: pd.DataFrame) -> pd.DataFrame:
    """All methods beside the published one, on the data sets that it has."""
    have = set(table.loc[table["model"] == OURS, "data"])
    if not have:
        return pd.DataFrame()
    part = table[table["data"].isin(have)]
    cells = summarise_stepfree(part, OURS, ("nn5", "cost"), LEVEL, _FAMILY)
    return in_paper_order(_named(cells))


def _models(outcomes: Sequence[Outcome[Run]]) -> pd.DataFrame:
    """Means over seeds, and the difference to the conventional model; paired over seeds, Holm
    within each metric.
    """
    frame = pd.DataFrame(
        [
            {
                "data": one.run.data,
                "method": one.run.model,
                "note": " ".join(one.notes),
                "seed": one.run.seed,
                "seconds": one.seconds["train"],
                **one.numbers,
            }
            for one in outcomes
        ]
    )
    metrics = [
        name
        for name in frame
        if name not in ("data", "method", INPUT_GRADIENTS, "note", "seed", "seconds")
    ]
    rows = []
    for data, part in frame.groupby("data", sort=False):
        base = part[part["method"] == CONVENTIONAL].set_index("seed")
        for name, of_model in part.groupby("method", sort=False):
            of_model = of_model.set_index("seed").loc[base.index]
            slower = float(of_model["seconds"].mean() / base["seconds"].mean())
            about = {
                "data": data,
                "method": name,
                "seconds": float(of_model["seconds"].mean()),
                "slower": slower,
            }
            about |= {
                "input_gradients": of_model["input_gradients"].iloc[0],
                "note": of_model["note"].iloc[0],
            }
            for metric in metrics:
                a, b = (one[metric].to_numpy()[:, None] for one in (of_model, base))
                row = {
                    **about,
                    "metric": metric,
                    "value": float(a.mean()),
                    "conventional": float(b.mean()),
                }
                if name == CONVENTIONAL:
                    estimate = None
                else:
                    estimate = compare(a, b, np.random.default_rng(2025), "difference")
                nothing = float("nan")
                if estimate:
                    row["change"] = estimate.value
                else:
                    row["change"] = nothing
                if estimate:
                    row |= {"low": estimate.low, "high": estimate.high}
                else:
                    row |= {"low": nothing, "high": nothing}
                rows.append(
                    row
                    | {
                        "p_value": estimate.p_value if estimate else nothing,
                        "seeds": len(of_model),
                    }
                )
    out = pd.DataFrame(rows)
    # Seeds that all differ by the same, as two may by chance, do not show how much others would.
    out["p_value"] = out["p_value"].where(out["high"] - out["low"] > 1e-9)
    p = out.groupby("metric")["p_value"].transform(lambda values: holm(values.to_numpy()))
    directions = np.where(
        (out["change"] > 0) ^ (out["metric"] == "calibration_error"), "better", "worse"
    )
    return out.assign(p_holm=p, verdict=np.where(p < LEVEL, directions, ""))


def _overview(
    cells: pd.DataFrame, models: pd.DataFrame, accepted: pd.DataFrame
) -> pd.DataFrame:
    """Per search, τ and method: medians over data sets, and on how many it is better and worse
    than conventional.

    Methods that were not measured on all data sets show their own; ``data`` says how many.
    """
    rows = []
    of_models = models.pivot_table(
        index=["method", "data"], columns="metric", values="change", sort=False
    )
    for (generator, tau, name), part in cells.groupby(
        ["generator", "tau", "method"], sort=False
    ):
        row: dict[str, Any] = {
            "generator": generator,
            "tau": tau,
            "method": name,
            "data": part["data"].nunique(),
        }
        for metric in OF_MODEL:
            # The conventional model itself does not change.
            if name != CONVENTIONAL:
                changes = of_models[metric].xs(name, level="method")
            else:
                changes = pd.Series([0.0])
            row[metric] = float(changes.median())
            # Half of the paper's data sets are easy, so the median alone would hide what accuracy
            # costs.
            if metric == "accuracy":
                row |= {"accuracy_worst": float(changes.min())}
            else:
                row |= {}
        for column, (metric, field) in OF_POINTS.items():
            values = part.loc[part["metric"] == metric, field]
            if values.notna().any():
                row[column] = float(values.median())
            else:
                row[column] = float("nan")
        for metric in ("nn5", "cost"):
            verdicts = part.loc[part["metric"] == metric, "verdict"]
            row |= {
                f"{metric}_{word}": int((verdicts == word).sum())
                for word in ("better", "worse")
            }
        row |= {f"equal_{by}": _equal(accepted, str(generator), str(name), by) for by in BY}
        of_model = models[models["method"] == name].drop_duplicates("data")
        row |= {
            "slower": float(of_model["slower"].median()),
            "input_gradients": float(of_model["input_gradients"].max()),
        }
        rows.append(row)
    return pd.DataFrame(rows)


def _equal(accepted: pd.DataFrame, generator: str, name: str, by: str) -> float:
    """Cost at equal acceptance, the median over data sets."""
    if name == CONVENTIONAL:
        return 1.0
    if accepted.empty:
        return float("nan")
    same = (accepted["generator"] == generator) & (accepted["method"] == name)
    return float(accepted.loc[same & (accepted["by"] == BY[by]), "cost"].median())
