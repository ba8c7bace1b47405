"""From finished cells to tidy tables, published numbers beside ours.

Every table has the columns ``published``, ``ours``, ``low`` and ``high`` (95 % interval over training seeds and
evaluation, by hierarchical bootstrap) and ``seeds``, the number of training runs behind it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from counterfactual_training.evaluation.bootstrap import (
    Estimate,
    bootstrap_mean,
    compare,
    holm,
    percentile_interval,
    published_reduction,
)
from counterfactual_training.experiments.names import PAPER_ORDER
from counterfactual_training.experiments.paper.published import value
from counterfactual_training.experiments.paper.results import Array, Results

COLUMNS = ["data", "metric", "quantity", "published", "ours", "low", "high", "seeds"]
MODELS = ("vanilla", "full", "full protected", "divergence", "adversarial")
SHARES = ("validity", "accuracy", "f1", "calibration_error", "fgsm", "pgd")
LAMBDA_ENERGY = (0.1, 0.5, 1.0, 5.0, 10.0)


class Contrast(NamedTuple):
    """What the paper's main table compares in one column."""

    metric: str
    ct: str  # model
    constraints: str


# The cost column comes from other models than the rest: trained and searched with protected features.
MAIN = (
    Contrast("implausibility", "full", "free"),
    Contrast("implausibility_mmd", "full", "free"),
    Contrast("cost", "full protected", "protected"),
)


def main_table(results: Results, protocol: str = "published") -> pd.DataFrame:
    """``data, metric, quantity (baseline | ct | reduction), published, ours, low, high, seeds``.

    The reduction is ``100 (1 − mean CT / mean baseline)``, means over seeds and individuals (or evaluation runs).
    """
    rows = []
    for contrast in MAIN:
        for data in results.data("vanilla", contrast.ct):
            rows += _contrast_rows(results, data, contrast, protocol)
    return _ordered(rows)


def paired_table(results: Results) -> pd.DataFrame:
    """The main table by the paired protocol, with two-sided p-values, also corrected (Holm) for all its cells."""
    table = main_table(results, "paired")
    if table.empty:
        return table.assign(p_value=[], p_holm=[])
    tested = table["quantity"] == "reduction"
    table.loc[tested, "p_holm"] = holm(table.loc[tested, "p_value"].to_numpy())
    return table


def by_seed_table(results: Results) -> pd.DataFrame:
    """The paper's own inference, once per training seed: reduction ± SD over evaluation runs, asterisk at 1 %."""
    rows = []
    for contrast in MAIN:
        for data in results.data("vanilla", contrast.ct):
            seeds = results.seeds(data, "vanilla", contrast.ct)
            ct, baseline = _pair(results, data, contrast, "published", seeds)
            for place, seed in enumerate(seeds):
                found = published_reduction(ct[place], baseline[place])
                rows.append(
                    {
                        "data": data,
                        "metric": contrast.metric,
                        "seed": seed,
                        "published": value("main", data, contrast.metric, "reduction"),
                        "published_spread": value("main", data, contrast.metric, "reduction", column="spread"),
                        "published_significant": value("main", data, contrast.metric, "reduction", column="significant")
                        == 1,
                        "ours": found.reduction,
                        "spread": found.standard_deviation,
                        "significant": found.significant,
                    }
                )
    return _ordered(rows)


def mutability_table(results: Results) -> pd.DataFrame:
    """Cost and validity with protected features (τ = 0.5) and, for comparison, without (τ = 0.95)."""
    rows = []
    for constraints, ct in (("protected", "full protected"), ("free", "full")):
        suffix = "" if constraints == "protected" else "_free"
        for data in results.data("vanilla", ct):
            rows += _contrast_rows(results, data, Contrast("cost", ct, constraints), "published", suffix)
            seeds = results.seeds(data, "vanilla", ct)
            for quantity, model in (("baseline", "vanilla"), ("ct", ct)):
                shares = results.over_lambda(data, model, f"published/{constraints}/validity", seeds)
                published = value("validity", data, "validity", quantity, constraints)
                rows.append(_row(data, f"validity{suffix}", quantity, published, _mean(shares)))
    return _ordered(rows)


def ablation_table(results: Results) -> pd.DataFrame:
    """Reduction of IP and IP* by the adversarial term alone, the divergence alone, both; quantity is the objective."""
    rows = []
    for metric in ("implausibility", "implausibility_mmd"):
        for objective in ("adversarial", "divergence", "full"):
            for data in results.data("vanilla", objective):
                seeds = results.seeds(data, "vanilla", objective)
                pair = _pair(results, data, Contrast(metric, objective, "free"), "published", seeds)
                estimate = compare(*pair, _rng(), "reduction")
                rows.append(_row(data, metric, objective, value("ablation", data, metric, objective), estimate))
    return _ordered(rows)


def robustness_table(results: Results) -> pd.DataFrame:
    """Accuracy under attack: ``data, metric (fgsm | pgd), quantity (objective), epsilon, …``."""
    rows = []
    for objective in ("vanilla", "full", "adversarial", "divergence"):
        for data in results.data(objective):
            seeds = results.seeds(data, objective)
            for attack in ("fgsm", "pgd"):
                curves = results.stack(data, objective, f"attack/{attack}", seeds)
                epsilons = results.cells[data, objective][0].cell.measurement.protocol.epsilons
                for epsilon, column in zip(epsilons, curves.T, strict=True):
                    read_off = value("robustness", data, attack, objective, f"{round(epsilon, 4):g}")
                    row = _row(data, attack, objective, read_off, _mean(column[:, None]))
                    rows.append({**row, "epsilon": epsilon})
    return (
        _ordered(rows, ("data", "metric", "quantity", "epsilon"))
        if rows
        else pd.DataFrame(columns=[*COLUMNS, "epsilon"])
    )


def attribution_table(results: Results) -> pd.DataFrame:
    """Sensitivity to protected features: median and 95 % quantiles over rounds, those of all seeds together."""
    rows = []
    for data in results.data("vanilla", "full protected"):
        seeds = results.seeds(data, "vanilla", "full protected")
        for quantity, model in (("baseline", "vanilla"), ("ct", "full protected")):
            rounds = results.stack(data, model, "attribution", seeds).ravel()
            low, high = percentile_interval(rounds)
            row: dict[str, Any] = {
                "data": data, "metric": "sensitivity", "quantity": quantity,
                "published": value("attribution", data, "sensitivity", quantity),
                "published_low": value("attribution", data, "sensitivity", quantity, column="low"),
                "published_high": value("attribution", data, "sensitivity", quantity, column="high"),
                "ours": float(np.nanmedian(rounds)), "low": low, "high": high, "seeds": len(seeds),
            }  # fmt: skip
            rows.append(row)
    return _ordered(rows)


def performance_table(results: Results) -> pd.DataFrame:
    """Accuracy, macro F1 and calibration error of every model; quantity is the model."""
    rows = []
    printed = {"vanilla": "baseline", "full": "ct"}
    for data, model in results.present(MODELS):
        seeds = results.seeds(data, model)
        for metric in ("accuracy", "f1", "calibration_error"):
            known = value("accuracy", data, metric, printed.get(model, ""), source="draft")
            estimate = _mean(results.numbers(data, model, metric, seeds)[:, None])
            rows.append(_row(data, metric, model, known, estimate))
    return _ordered(rows)


def by_lambda_table(results: Results) -> pd.DataFrame:
    """Reduction of IP for every λ_energy of the test-time generator and every evaluation run, for box plots."""
    parts = []
    for data in results.data("vanilla", "full"):
        seeds = results.seeds(data, "vanilla", "full")
        ct, baseline = (
            results.stack(data, model, "published/free/implausibility", seeds) for model in ("full", "vanilla")
        )
        with np.errstate(invalid="ignore", divide="ignore"):
            reduction = 100 * (1 - ct / baseline)  # (S, λ, runs)
        index = pd.MultiIndex.from_product(
            [seeds, LAMBDA_ENERGY, range(reduction.shape[2])], names=["seed", "lambda_energy", "run"]
        )
        parts.append(pd.DataFrame({"data": data, "ours": reduction.ravel()}, index=index).reset_index())
    if not parts:
        return pd.DataFrame(columns=["seed", "lambda_energy", "run", "data", "ours", "published"])
    table = pd.concat(parts, ignore_index=True)
    known = {
        (data, strength): value("by_lambda", data, "implausibility", "reduction", f"{strength:g}", source="draft")
        for data in table["data"].unique()
        for strength in LAMBDA_ENERGY
    }
    keys = zip(table["data"], table["lambda_energy"], strict=True)
    return table.assign(published=[known[key] for key in keys])


def maturity_table(results: Results) -> pd.DataFrame:
    """Share of mature counterfactuals per epoch: mean, lowest and highest seed."""
    parts = []
    for data, model in results.present(MODELS[1:]):
        found = results.cells[data, model]
        shares = pd.concat([pd.Series(r.history["share_mature"], r.history["epoch"]) for r in found], axis=1)
        frame = pd.DataFrame({"ours": shares.mean(axis=1), "low": shares.min(axis=1), "high": shares.max(axis=1)})
        parts.append(frame.rename_axis("epoch").assign(data=data, model=model, seeds=len(found)).reset_index())
    columns = ["data", "model", "epoch", "ours", "low", "high", "seeds"]
    return pd.concat(parts, ignore_index=True)[columns] if parts else pd.DataFrame(columns=columns)


def synthetic_table(results: Results) -> pd.DataFrame:
    """CT against the baseline at a glance, one row per data set; one column per seed for the reduction of IP."""
    rows = []
    for data in results.data("vanilla", "full"):
        seeds = results.seeds(data, "vanilla", "full")
        ct, baseline = _pair(results, data, MAIN[0], "published", seeds)
        reductions = 100 * (1 - np.nanmean(ct, axis=1) / np.nanmean(baseline, axis=1))
        mature = [pd.Series(result.history["share_mature"]).mean() for result in results.of_model(data, "full", seeds)]
        rows.append(
            {
                "data": data,
                "published": value("main", data, "implausibility", "reduction"),
                "ours": float(reductions.mean()),
                **{f"seed {seed}": float(r) for seed, r in zip(seeds, reductions, strict=True)},
                "baseline_ip": float(np.nanmean(baseline)),
                "ct_ip": float(np.nanmean(ct)),
                "baseline_accuracy": float(results.numbers(data, "vanilla", "accuracy", seeds).mean()),
                "ct_accuracy": float(results.numbers(data, "full", "accuracy", seeds).mean()),
                "share_mature": float(np.mean(mature)),
            }
        )
    return pd.DataFrame(rows)


def differences(table: pd.DataFrame, by_seed: pd.DataFrame) -> pd.DataFrame:
    """Cells of the main table where ours and the published number differ beyond both uncertainties.

    The published uncertainty of a reduction is twice its ±; absolute means were printed without one, so there only our
    interval counts, and the rounding to two digits.
    """
    spread = by_seed.groupby(["data", "metric"])["published_spread"].first()
    keys = pd.MultiIndex.from_frame(table[["data", "metric"]])
    margin = np.where(table["quantity"] == "reduction", 2 * spread.reindex(keys).to_numpy(), 0.005)
    apart = (table["published"] - margin > table["high"]) | (table["published"] + margin < table["low"])
    return table[apart].reset_index(drop=True)


# How far a published value may be off for the way it was printed: rounded, or read off a figure.
READING_ERRORS = {"mutability": 0.005, "ablation": 1.0, "robustness": 0.01}


def other_differences(name: str, table: pd.DataFrame) -> pd.DataFrame:
    """As :func:`differences`, for the tables whose published values have no ± of their own, or an interval."""
    low = table.get("published_low", table["published"] - READING_ERRORS.get(name, 0.0))
    high = table.get("published_high", table["published"] + READING_ERRORS.get(name, 0.0))
    apart = (low > table["high"]) | (high < table["low"])
    return table[apart].reset_index(drop=True)


# ---- pieces ---------------------------------------------------------------------------------------------------------


def _contrast_rows(
    results: Results, data: str, contrast: Contrast, protocol: str, suffix: str = ""
) -> list[dict[str, Any]]:
    """Baseline, CT and reduction of one cell of the main table."""
    seeds = results.seeds(data, "vanilla", contrast.ct)
    ct, baseline = _pair(results, data, contrast, protocol, seeds)
    metric = f"{contrast.metric}{suffix}"
    reduction = compare(ct, baseline, _rng(), "reduction")
    table = "unconstrained" if suffix else "main"
    known = {q: float("nan") if suffix else value("means", data, contrast.metric, q) for q in ("baseline", "ct")}
    rows = [
        _row(data, metric, "baseline", known["baseline"], _mean(baseline)),
        _row(data, metric, "ct", known["ct"], _mean(ct)),
        _row(data, metric, "reduction", value(table, data, contrast.metric, "reduction"), reduction),
    ]
    if protocol == "paired":
        individuals = (~np.isnan(ct)).sum(1).mean()  # for whom both have a valid counterfactual, per seed
        rows = [{**row, "p_value": float("nan"), "individuals": round(float(individuals))} for row in rows]
        rows[-1]["p_value"] = reduction.p_value
    return rows


def _pair(results: Results, data: str, contrast: Contrast, protocol: str, seeds: list[int]) -> tuple[Array, Array]:
    """Values ``(S, n)`` of CT and of the baseline; n evaluation runs, or individuals in the paired protocol."""
    name = f"{protocol}/{contrast.constraints}/{contrast.metric}"
    if protocol != "paired":
        ct, baseline = (results.over_lambda(data, model, name, seeds) for model in (contrast.ct, "vanilla"))
        return ct, baseline
    ct, baseline = results.both_over_lambda(data, (contrast.ct, "vanilla"), name, seeds)
    drawn = np.flatnonzero(~np.isnan(ct).all(0))
    drawn = drawn if len(drawn) else np.array([0])  # the mean over nobody is NaN, not an error
    return ct[:, drawn], baseline[:, drawn]


def _mean(values: Array) -> Estimate:
    return bootstrap_mean(values, _rng())


def _row(data: str, metric: str, quantity: str, published: float, estimate: Estimate) -> dict[str, Any]:
    # One number alone has no interval; saying so is better than an interval of no width.
    alone = estimate.num_seeds == 1 and estimate.num_individuals == 1
    low, high = (float("nan"), float("nan")) if alone else (estimate.low, estimate.high)
    if metric.startswith(SHARES):  # a symmetric interval of few seeds may leave the range of what it estimates
        low, high = max(low, 0.0), min(high, 1.0)
    return {
        "data": data,
        "metric": metric,
        "quantity": quantity,
        "published": published,
        "ours": estimate.value,
        "low": low,
        "high": high,
        "seeds": estimate.num_seeds,
    }


def _ordered(rows: list[dict[str, Any]], first: tuple[str, ...] = ()) -> pd.DataFrame:
    """Rows by data set in the paper's order, else as they come; columns of that name first."""
    if not rows:
        return pd.DataFrame(columns=[*first, *(name for name in COLUMNS if name not in first)])
    in_order = sorted(rows, key=lambda row: PAPER_ORDER.index(row["data"]))
    table = pd.DataFrame(in_order)
    return table[[*first, *(name for name in table.columns if name not in first)]]


def _rng() -> np.random.Generator:
    """Always the same: a table made twice from the same cells is the same table."""
    return np.random.default_rng(2025)
