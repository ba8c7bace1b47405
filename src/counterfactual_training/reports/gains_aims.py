"""What was aimed at and what came out, from the truth tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pandas as pd

from counterfactual_training.evaluation.bootstrap import holm
from counterfactual_training.reports.text_table import TextTable, number

_BEST, _CHEAP = "best", "N5c"
_TAUS = {".5": ".5", ".95*": ".95\\*"}
# Shares of the data sets on which a measure should be better, on none worse: eight, seven and six of nine.
_BETTER = {"nn5": ("5-NN", 8 / 9), "boosting": ("boosting agrees", 7 / 9), "ip_star": ("IP\\*", 6 / 9)}
_CHEAPER = 6 / 9
_LEVEL = 0.05
_ACCURACY, _VALID = 0.005, 0.95
_EVERY_SEED = "LS"

Row = tuple[str, str, str, str]


def aims_table(tables: Mapping[str, pd.DataFrame]) -> str:
    """Markdown; empty where the method that the aims are about was not measured."""
    truth, performance, by_seed = (tables[name] for name in ("truth", "truth_performance", "truth_by_seed"))
    if _BEST not in set(truth["model"]):
        return ""
    found = {(metric, tau): select(truth, _BEST, metric, tau) for metric in _BETTER for tau in _TAUS}
    found |= {("cost", tau): select(truth, _CHEAP, "cost", tau, "protected") for tau in _TAUS}
    p_values = pd.concat([cell["p_value"] for cell in found.values()])
    p_aims = pd.Series(holm(p_values.to_numpy()), index=p_values.index)
    rows = []
    for metric, (title, share) in _BETTER.items():
        rows += [_counted(f"best: {title}, τ = {_TAUS[t]}", found[metric, t], p_aims, share) for t in _TAUS]
    rows += _validity(truth)
    rows += _performance(performance)
    if _EVERY_SEED in set(by_seed["data"]):
        rows += [_seeds(by_seed, tau) for tau in _TAUS]
    if _CHEAP in set(truth["model"]):
        title = "N5c: cost under protection, τ ="
        rows += [_counted(f"{title} {_TAUS[t]}", found["cost", t], p_aims, _CHEAPER) for t in _TAUS]
    return TextTable("", ("aim", "wanted", "came out", "met"), tuple(rows)).markdown().rstrip("\n")


def select(truth: pd.DataFrame, model: str, metric: str, tau: str, setting: str = "free") -> pd.DataFrame:
    """The rows of a truth table for one model, metric, τ and setting: one per data set."""
    chosen = (truth["model"] == model) & (truth["metric"] == metric) & (truth["tau"] == tau)
    return truth[chosen & (truth["setting"] == setting)]


def _counted(title: str, cell: pd.DataFrame, p_aims: pd.Series, share: float) -> Row:
    """One aim: better on how many data sets by Holm over all cells, over the cells of these aims, and by sign."""
    better, worse = (list(cell.loc[cell["verdict"] == verdict, "data"]) for verdict in ("better", "worse"))
    more = len(cell) > 0 and cell["metric"].iloc[0] == "boosting"  # the only measure here of which more is better
    rises = cell["value"] > cell["baseline"] if more else cell["value"] < cell["baseline"]
    among = int((rises & (p_aims[cell.index] < _LEVEL)).sum())
    needed = round(share * len(cell))
    losses = f"{len(worse)} ({', '.join(worse)})" if worse else "0"
    out = f"{len(better)}, {among}, {int(rises.sum())}; worse {losses}"
    return title, f"≥ {needed} of {len(cell)}, none worse", out, _met(len(better) >= needed and not worse)


def _validity(truth: pd.DataFrame) -> Iterator[Row]:
    for setting in ("free", "protected"):
        for tau, shown in _TAUS.items():
            lowest = select(truth, _BEST, "valid", tau, setting).sort_values("value").iloc[0]
            worst, twin = (number(100 * lowest[name], 1) for name in ("value", "baseline"))
            out = f"{worst} % ({lowest['data']}; twin {twin} %)"
            yield f"best: lowest validity, {setting}, τ = {shown}", "≥ 95 %", out, _met(lowest["value"] >= _VALID)


def _performance(performance: pd.DataFrame) -> Iterator[Row]:
    own = performance[performance["model"] == _BEST]
    drop = own.loc[own["metric"] == "accuracy", "change"].min()
    yield "best: worst change of accuracy", "within 0.5 pp", f"{number(100 * drop, 2)} pp", _met(drop >= -_ACCURACY)
    rise = own.loc[own["metric"] == "calibration_error", "change"].max()
    yield "best: worst change of calibration error", "no rise", number(rise, 3), _met(rise <= 0)


def _seeds(by_seed: pd.DataFrame, tau: str) -> Row:
    own = select(by_seed, _BEST, "nn5", tau)
    own = own[own["data"] == _EVERY_SEED]
    nearer = int((own["value"] < own["baseline"]).sum())
    title = f"best: training seeds of {_EVERY_SEED} that are nearer, τ = {_TAUS[tau]}"
    return title, "all", f"{nearer} of {len(own)}", _met(nearer == len(own))


def _met(met: bool) -> str:
    return "yes" if met else "no"
