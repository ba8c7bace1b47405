"""From finished runs to tidy tables, published numbers beside ours.

Every table has the columns ``published``, ``ours``, ``low`` and ``high`` (95 % interval over
training seeds and evaluation, by hierarchical bootstrap) and ``seeds``, the number of training runs
behind it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from counterfactual_lab.paper.paper_results import Array, Results, over_lambda
from counterfactual_lab.paper_data import (
    ADVERSARIAL,
    CONVENTIONAL,
    CT,
    DIVERGENCE,
    PROTECTED,
    in_paper_order,
    published_value,
)
from counterfactual_training.evaluation.bootstrap import (
    Estimate,
    bootstrap_mean,
    compare,
    holm,
    percentile_interval,
    published_reduction,
)

COLUMNS = ["data", "metric", "quantity", "published", "ours", "low", "high", "seeds"]
MODELS = (CONVENTIONAL, CT, PROTECTED, DIVERGENCE, ADVERSARIAL)
SHARES = ("validity", "accuracy", "f1", "calibration_error", "fgsm", "pgd")
LAMBDA_ENERGY = (0.1, 0.5, 1.0, 5.0, 10.0)


class Contrast(NamedTuple):
    """What the paper's main table compares in one column."""

    metric: str
    ct: str  # model
    constraints: str


# The cost column comes from other models than the rest: trained and searched with protected
# features.
MAIN = (
    Contrast("implausibility", CT, "free"),
    Contrast("implausibility_mmd", CT, "free"),
    Contrast("cost", PROTECTED, "protected"),
)


def main_table(results: Results, protocol: str = "published") -> pd.DataFrame:
    """``data, metric, quantity (conventional | ct | reduction), published, ours, low, high,
    seeds``.

    The reduction is ``100 (1 − mean CT / mean conventional)``, means over seeds and individuals (or
    evaluation runs).
    """
    pairs = [
        (contrast, *cells)
        for contrast in MAIN
        for cells in results.shared(CONVENTIONAL, contrast.ct)
    ]
    return _ordered([row for pair in pairs for row in _contrast_rows(results, *pair, protocol)])


def paired_table(results: Results) -> pd.DataFrame:
    """The main table by the paired protocol, with two-sided p-values, also corrected (Holm) for all
    its cells.
    """
    table = main_table(results, "paired")
    if table.empty:
        return table.assign(p_value=[], p_holm=[])
    tested = table["quantity"] == "reduction"
    table.loc[tested, "p_holm"] = holm(table.loc[tested, "p_value"].to_numpy())
    return table


def by_seed_table(results: Results) -> pd.DataFrame:
    """The paper's own inference, once per training seed: reduction ± SD over evaluation runs,
    asterisk at 1 %.
    """
    rows: list[dict[str, Any]] = []
    for contrast in MAIN:
        for data, seeds in results.shared(CONVENTIONAL, contrast.ct):
            printed = _printed(
                "main", data, contrast.metric, "reduction", "spread", "significant"
            )
            printed["published_significant"] = printed["published_significant"] == 1
            pairs = zip(seeds, *_pair(results, contrast, data, seeds, "published"), strict=True)
            for seed, ct, usual in pairs:
                published = published_reduction(ct, usual)
                ours = {
                    "ours": published.reduction,
                    "spread": published.standard_deviation,
                    "significant": published.significant,
                }
                rows.append(
                    {"data": data, "metric": contrast.metric, "seed": seed, **printed, **ours}
                )
    return _ordered(rows)


def mutability_table(results: Results) -> pd.DataFrame:
    """Cost and validity with protected features (τ = 0.5) and, for comparison, without (τ =
    0.95).
    """
    rows = []
    for constraints, ct in (("protected", PROTECTED), ("free", CT)):
        if constraints == "protected":
            suffix = ""
        else:
            suffix = "_free"
        for data, seeds in results.shared(CONVENTIONAL, ct):
            rows += _contrast_rows(
                results, Contrast("cost", ct, constraints), data, seeds, "published", suffix
            )
            for quantity, model in ((CONVENTIONAL, CONVENTIONAL), (CT, ct)):
                shares = over_lambda(
                    results.stack(data, model, f"published/{constraints}/validity", seeds)
                )
                published = published_value("validity", data, "validity", quantity, constraints)
                rows.append(_row(data, f"validity{suffix}", quantity, published, _mean(shares)))
    return _ordered(rows)


def ablation_table(results: Results) -> pd.DataFrame:
    """Reduction of IP and IP* by the adversarial term alone, the divergence alone, both; quantity
    is the method.
    """
    rows = []
    for metric in ("implausibility", "implausibility_mmd"):
        for method in (ADVERSARIAL, DIVERGENCE, CT):
            for data, seeds in results.shared(CONVENTIONAL, method):
                ct, usual = _pair(
                    results, Contrast(metric, method, "free"), data, seeds, "published"
                )
                estimate = compare(ct, usual, _rng(), "reduction")
                rows.append(
                    _row(
                        data,
                        metric,
                        method,
                        published_value("ablation", data, metric, method),
                        estimate,
                    )
                )
    return _ordered(rows)


def robustness_table(results: Results) -> pd.DataFrame:
    """Accuracy under attack: ``data, metric (fgsm | pgd), quantity (method), epsilon, …``."""
    rows = []
    for method in (CONVENTIONAL, CT, ADVERSARIAL, DIVERGENCE):
        for data, seeds in results.shared(method):
            for attack in ("fgsm", "pgd"):
                curves = results.stack(data, method, f"attack/{attack}", seeds)
                epsilons = results.runs[data, method][0].run.measurement.protocol.epsilons
                for epsilon, column in zip(epsilons, curves.T, strict=True):
                    read_off = published_value(
                        "robustness", data, attack, method, f"{round(epsilon, 4):g}"
                    )
                    row = _row(data, attack, method, read_off, _mean(column[:, None]))
                    rows.append({**row, "epsilon": epsilon})
    return _ordered(rows, ("data", "metric", "quantity", "epsilon"))


def attribution_table(results: Results) -> pd.DataFrame:
    """Sensitivity to protected features: median and 95 % quantiles over rounds, those of all seeds
    together.
    """
    rows = []
    for data, seeds in results.shared(CONVENTIONAL, PROTECTED):
        for quantity, model in ((CONVENTIONAL, CONVENTIONAL), (CT, PROTECTED)):
            rounds = results.stack(data, model, "attribution", seeds).ravel()
            low, high = percentile_interval(rounds)
            ours = {
                "ours": float(np.nanmedian(rounds)),
                "low": low,
                "high": high,
                "seeds": len(seeds),
            }
            printed = _printed("attribution", data, "sensitivity", quantity, "low", "high")
            rows.append(
                {"data": data, "metric": "sensitivity", "quantity": quantity, **printed, **ours}
            )
    return _ordered(rows)


def performance_table(results: Results) -> pd.DataFrame:
    """Accuracy, macro F1 and calibration error of every model; quantity is the model."""
    rows = []
    for model in MODELS:
        for data, seeds in results.shared(model):
            for metric in ("accuracy", "f1", "calibration_error"):
                published = published_value("accuracy", data, metric, model, source="draft")
                estimate = _mean(results.numbers(data, model, metric, seeds)[:, None])
                rows.append(_row(data, metric, model, published, estimate))
    return _ordered(rows)


def by_lambda_table(results: Results) -> pd.DataFrame:
    """Reduction of IP for every λ_energy of the test-time generator and every evaluation run, for
    box plots.
    """
    names = ["seed", "lambda_energy", "run"]
    parts = []
    for data, seeds in results.shared(CONVENTIONAL, CT):
        ct, usual = (
            results.stack(data, m, "published/free/implausibility", seeds)
            for m in (CT, CONVENTIONAL)
        )
        with np.errstate(invalid="ignore", divide="ignore"):
            reduction = 100 * (1 - ct / usual)  # (S, λ, runs)
        where = ("by_lambda", data, "implausibility", "reduction")
        published_means = np.array(
            [
                published_value(*where, f"{strength:g}", source="draft")
                for strength in LAMBDA_ENERGY
            ]
        )
        index = pd.MultiIndex.from_product(
            [seeds, LAMBDA_ENERGY, range(reduction.shape[2])], names=names
        )
        published = np.broadcast_to(published_means[:, None], reduction.shape).ravel()
        columns = {"data": data, "ours": reduction.ravel(), "published": published}
        parts.append(pd.DataFrame(columns, index).reset_index())
    if parts:
        return pd.concat(parts, ignore_index=True)
    return pd.DataFrame(columns=[*names, "data", "ours", "published"])


def maturity_table(results: Results) -> pd.DataFrame:
    """Share of mature counterfactuals per epoch: mean, lowest and highest seed."""
    parts = []
    for data, model in [
        (data, name) for name in MODELS[1:] for data, _ in results.shared(name)
    ]:
        outcomes = results.runs[data, model]
        shares = pd.concat(
            [pd.Series(r.history["share_mature"], r.history["epoch"]) for r in outcomes], axis=1
        )
        frame = pd.DataFrame(
            {"ours": shares.mean(axis=1), "low": shares.min(axis=1), "high": shares.max(axis=1)}
        )
        parts.append(
            frame.rename_axis("epoch")
            .assign(data=data, model=model, seeds=len(outcomes))
            .reset_index()
        )
    columns = ["data", "model", "epoch", "ours", "low", "high", "seeds"]
    if parts:
        return pd.concat(parts, ignore_index=True)[columns]
    return pd.DataFrame(columns=columns)


def synthetic_table(results: Results) -> pd.DataFrame:
    """CT against conventional training at a glance, one row per data set; one column per seed for
    the reduction of IP.
    """
    rows = []
    for data, seeds in results.shared(CONVENTIONAL, CT):
        ct, usual = _pair(results, MAIN[0], data, seeds, "published")
        reductions = 100 * (1 - np.nanmean(ct, axis=1) / np.nanmean(usual, axis=1))
        mature = [
            pd.Series(result.history["share_mature"]).mean()
            for result in results.outcomes(data, CT, seeds)
        ]
        rows.append(
            {
                "data": data,
                "published": published_value("main", data, "implausibility", "reduction"),
                "ours": float(reductions.mean()),
                **{f"seed {seed}": float(r) for seed, r in zip(seeds, reductions, strict=True)},
                "conventional_ip": float(np.nanmean(usual)),
                "ct_ip": float(np.nanmean(ct)),
                "conventional_accuracy": float(
                    results.numbers(data, CONVENTIONAL, "accuracy", seeds).mean()
                ),
                "ct_accuracy": float(results.numbers(data, CT, "accuracy", seeds).mean()),
                "share_mature": float(np.mean(mature)),
            }
        )
    return pd.DataFrame(rows)


# How far a published value may be off because it was rounded, or read off a figure.
READING_ERRORS = {"main": 0.005, "mutability": 0.005, "ablation": 1.0, "robustness": 0.01}


def differences(
    name: str, table: pd.DataFrame, by_seed: pd.DataFrame | None = None
) -> pd.DataFrame:
    """Cells where ours and the published number differ beyond both uncertainties.

    The published uncertainty is the printed interval, twice the ± of a reduction (in ``by_seed``),
    or otherwise only the error of reading the number.
    """
    margin: Any = READING_ERRORS.get(name, 0.0)
    if by_seed is not None:
        spread = by_seed.groupby(["data", "metric"])["published_spread"].first()
        keys = pd.MultiIndex.from_frame(table[["data", "metric"]])
        margin = np.where(
            table["quantity"] == "reduction", 2 * spread.reindex(keys).to_numpy(), margin
        )
    low = table.get("published_low", table["published"] - margin)
    high = table.get("published_high", table["published"] + margin)
    apart = (low > table["high"]) | (high < table["low"])
    return table[apart].reset_index(drop=True)


# ---- pieces --------------------------------------------------------------------------------------


def _contrast_rows(
    results: Results,
    contrast: Contrast,
    data: str,
    seeds: list[int],
    protocol: str,
    suffix: str = "",
) -> list[dict[str, Any]]:
    """Conventional, CT and reduction of one cell of the main table."""
    ct, usual = _pair(results, contrast, data, seeds, protocol)
    measured = {
        CONVENTIONAL: _mean(usual),
        CT: _mean(ct),
        "reduction": compare(ct, usual, _rng(), "reduction"),
    }
    # The paper has no means without protected features, only the reduction.
    if suffix:
        table = {"reduction": "unconstrained"}
    else:
        table = {CONVENTIONAL: "means", CT: "means", "reduction": "main"}
    published = {
        quantity: published_value(table.get(quantity, ""), data, contrast.metric, quantity)
        for quantity in measured
    }
    rows = [
        _row(data, f"{contrast.metric}{suffix}", q, published[q], estimate)
        for q, estimate in measured.items()
    ]
    if protocol == "paired":
        # For whom both have a valid counterfactual, per seed.
        individuals = (~np.isnan(ct)).sum(1).mean()
        rows = [
            {**row, "p_value": float("nan"), "individuals": round(float(individuals))}
            for row in rows
        ]
        rows[-1]["p_value"] = measured["reduction"].p_value
    return rows


def _printed(
    table: str, data: str, metric: str, quantity: str, *columns: str
) -> dict[str, Any]:
    """A published number, and what else the paper says of it."""
    rest = {
        f"published_{column}": published_value(table, data, metric, quantity, column=column)
        for column in columns
    }
    return {"published": published_value(table, data, metric, quantity), **rest}


def _pair(
    results: Results, contrast: Contrast, data: str, seeds: list[int], protocol: str
) -> list[Array]:
    """Values ``(S, n)`` of CT and of conventional training; n evaluation runs, or individuals in
    the paired protocol.
    """
    name = f"{protocol}/{contrast.constraints}/{contrast.metric}"
    both = [results.stack(data, model, name, seeds) for model in (contrast.ct, CONVENTIONAL)]
    if protocol != "paired":
        return [over_lambda(one) for one in both]
    # Individuals count where both have a value at that λ_energy and seed.
    missing = np.isnan(both[0]) | np.isnan(both[1])
    both = [over_lambda(np.where(missing, np.nan, one)) for one in both]
    drawn = np.flatnonzero(~np.isnan(both[0]).all(0))
    drawn = drawn if len(drawn) else np.array([0])  # the mean of no values is NaN, not an error
    return [one[:, drawn] for one in both]


def _mean(values: Array) -> Estimate:
    return bootstrap_mean(values, _rng())


def _row(
    data: str, metric: str, quantity: str, published: float, estimate: Estimate
) -> dict[str, Any]:
    # One number alone has no interval; NaN says so, unlike an interval of width 0.
    alone = estimate.num_seeds == 1 and estimate.num_individuals == 1
    if alone:
        low = float("nan")
        high = float("nan")
    else:
        low = estimate.low
        high = estimate.high
    # A symmetric interval of few seeds may exceed the range of what it estimates.
    if metric.startswith(SHARES):
        low = max(low, 0.0)
        high = min(high, 1.0)
    values = (data, metric, quantity, published, estimate.value, low, high, estimate.num_seeds)
    return dict(zip(COLUMNS, values, strict=True))


def _ordered(rows: list[dict[str, Any]], first: tuple[str, ...] = ()) -> pd.DataFrame:
    """Rows by data set in the paper's order, else as they come; columns of that name first."""
    if not rows:
        return pd.DataFrame(columns=[*first, *(name for name in COLUMNS if name not in first)])
    table = in_paper_order(pd.DataFrame(rows))
    return table[[*first, *(name for name in table.columns if name not in first)]]


def _rng() -> np.random.Generator:
    """Always the same: a table made twice from the same runs is the same table."""
    return np.random.default_rng(2025)
