"""What was aimed at, and what came out: every line from the tables, hits and misses alike."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from counterfactual_training.evaluation.bootstrap import holm
from counterfactual_training.reports.text_table import TextTable, number

BEST, CHEAP = "best", "N5c"
_TAUS = {".5": ".5", ".95*": ".95\\*"}
# Shares of the data sets on which a measure should be better, on none worse: eight, seven and six of nine.
_BETTER = {"nn5": ("5-NN", 8 / 9), "boosting": ("boosting agrees", 7 / 9), "ip_star": ("IP\\*", 6 / 9)}
_CHEAPER = 6 / 9
_LEVEL = 0.05
_ACCURACY, _VALID = 0.005, 0.95
_EVERY_SEED = "LS"


def aims_table(tables: Mapping[str, pd.DataFrame]) -> str:
    """Markdown; empty where the method that the aims are about was not measured."""
    truth, performance, by_seed = (tables[name] for name in ("truth", "truth_performance", "truth_by_seed"))
    if BEST not in set(truth["model"]):
        return ""
    rows = []
    aimed = [(BEST, metric, tau, "free") for metric in _BETTER for tau in _TAUS]
    aimed += [(CHEAP, "cost", tau, "protected") for tau in _TAUS]
    cells = {aim: _cell(truth, *aim) for aim in aimed}
    p_aims = pd.concat([cell["p_value"] for cell in cells.values()])
    p_aims = pd.Series(holm(p_aims.to_numpy()), index=p_aims.index)
    for metric, (title, share) in _BETTER.items():
        for tau, shown in _TAUS.items():
            cell = cells[BEST, metric, tau, "free"]
            rows.append(_counted(f"best: {title}, τ = {shown}", cell, p_aims, share))
    own = truth[(truth["model"] == BEST) & (truth["metric"] == "valid")]
    for setting in ("free", "protected"):
        for tau, shown in _TAUS.items():
            lowest = own[(own["tau"] == tau) & (own["setting"] == setting)].sort_values("value").iloc[0]
            worst, twin = (number(100 * lowest[name], 1) for name in ("value", "baseline"))
            found = f"{worst} % ({lowest['data']}; twin {twin} %)"
            rows.append(
                (f"best: lowest validity, {setting}, τ = {shown}", "≥ 95 %", found, _met(lowest["value"] >= _VALID))
            )
    for metric, title, wanted in (
        ("accuracy", "accuracy", "within 0.5 pp"),
        ("calibration_error", "calibration error", "no rise"),
    ):
        change = performance[(performance["model"] == BEST) & (performance["metric"] == metric)]["change"]
        worst = change.min() if metric == "accuracy" else change.max()
        met = worst >= -_ACCURACY if metric == "accuracy" else worst <= 0
        shown = number(100 * worst, 2) + " pp" if metric == "accuracy" else number(worst, 3)
        rows.append((f"best: worst change of {title}", wanted, shown, _met(met)))
    rows += [_seeds(by_seed, tau) for tau in _TAUS if _EVERY_SEED in set(by_seed["data"])]
    for tau, shown in _TAUS.items() if CHEAP in set(truth["model"]) else ():
        cell = cells[CHEAP, "cost", tau, "protected"]
        rows.append(_counted(f"N5c: cost under protection, τ = {shown}", cell, p_aims, _CHEAPER))
    header = ("aim", "wanted", "came out", "met")
    return TextTable("", header, tuple(rows)).markdown().rstrip("\n")


def _cell(truth: pd.DataFrame, model: str, metric: str, tau: str, setting: str) -> pd.DataFrame:
    cell = truth[(truth["model"] == model) & (truth["metric"] == metric)]
    return cell[(cell["tau"] == tau) & (cell["setting"] == setting)]


def _counted(title: str, cell: pd.DataFrame, p_aims: pd.Series, share: float) -> tuple[str, ...]:
    """One aim: better on how many data sets by Holm over all cells, over the cells of these aims, and by sign."""
    better, worse = (list(cell.loc[cell["verdict"] == verdict, "data"]) for verdict in ("better", "worse"))
    more = cell["metric"].iloc[0] == "boosting" if len(cell) else False
    rises = cell["value"] > cell["baseline"] if more else cell["value"] < cell["baseline"]
    among = int((rises & (p_aims[cell.index] < _LEVEL)).sum())
    needed = round(share * len(cell))
    out = f"{len(better)}, {among}, {int(rises.sum())}; worse {len(worse)}" + (
        f" ({', '.join(worse)})" if worse else ""
    )
    return title, f"≥ {needed} of {len(cell)}, none worse", out, _met(len(better) >= needed and not worse)


def _seeds(by_seed: pd.DataFrame, tau: str) -> tuple[str, ...]:
    own = by_seed[(by_seed["data"] == _EVERY_SEED) & (by_seed["model"] == BEST) & (by_seed["metric"] == "nn5")]
    own = own[(own["tau"] == tau) & (own["setting"] == "free")]
    nearer = int((own["value"] < own["baseline"]).sum())
    title = f"best: training seeds of {_EVERY_SEED} that are nearer, τ = {_TAUS[tau]}"
    return title, "all", f"{nearer} of {len(own)}", _met(nearer == len(own))


def _met(met: bool) -> str:
    return "yes" if met else "no"
