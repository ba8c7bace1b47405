"""The page *What the published gains are made of*: prose in ``templates/gains.md``, every number
from the tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import pandas as pd

from counterfactual_lab.paper_data import CONVENTIONAL, CT
from counterfactual_lab.reports.acceptance_tables import equal_table
from counterfactual_lab.reports.files import fill_template
from counterfactual_lab.reports.style import unique
from counterfactual_training.evaluation.bootstrap import holm
from counterfactual_training.evaluation.metrics import ACCEPTANCE
from counterfactual_training.text_table import NOTHING, TextTable, cells, number

# Tables of the figures that the page quotes beside those of the truth experiment.
PICTURED = ("overshoot", "rescaled")
# Rows and columns of the truth tables that the page quotes; see :func:`quoted`.
QUOTED = ("quoted", "quoted_by_seed")
_KEYS = ["data", "setting", "tau", "method", "reference", "metric"]
_NUMBERS = [
    "value",
    "reference_value",
    "real",
    "unmoved",
    "nearest_unlike",
    "change",
    "low",
    "high",
]
_NUMBERS += ["p_value", "diversity", "validity", "seeds", "verdict"]
_STEPS = "50 × 0.1"
_HALF = ".5"
_SURE = ".95*"
_TAUS = {_STEPS: "published steps", _HALF: "line, τ = .5", _SURE: "line, τ = .95\\*"}
# Probabilities are written with five digits, so that one just past τ = .5 may read .5.
_ARRIVED = 0.5 - 1e-4
_COUNTED = {"nn5": "5-NN", ACCEPTANCE: "accepted", "ip_star": "IP*", "cost": "cost"}
# Aims: shares of the data sets on which a measure should be better, on none worse: eight, seven and
# six of nine.
_AIMS = {
    "nn5": ("5-NN", 8 / 9),
    "boosting": ("boosting agrees", 7 / 9),
    "ip_star": ("IP\\*", 6 / 9),
}
_CHEAPER = 6 / 9
_BEST = "conventional + best"
_CHEAP = "cheap_recourse"
_RESCALED = "conventional rescaled"
_EVERY_SEED = "LS"
_QUOTED_FREE = ("nn5", "ip", "ip_star", ACCEPTANCE, "boosting", "cost", "valid")
_QUOTED_STEPS = ("nn5", "ip")
_QUOTED_PROTECTED = ("nn5", "cost", "valid")
_LEVEL = 0.05
_ACCURACY = 0.005
_VALID = 0.95


def gains_page(tables: Mapping[str, pd.DataFrame], folder: str, head: str) -> str:
    """The page as Markdown.

    Args:
        tables: those of :func:`truth_tables`, or what :func:`quoted` leaves of ``truth`` and
            ``truth_by_seed``; and ``overshoot`` and ``rescaled`` of :func:`picture_tables`. Where
            no judges were asked, ``truth_acceptance`` may be missing.
        folder: where tables and ``figures/`` are, seen from the page.
        head: which rows were measured, and by which command.
    """
    truth = tables["truth"]
    performance = tables["truth_performance"]
    gains = tables["truth_gains"]
    return fill_template(
        "gains.md",
        head=head,
        folder=folder,
        steps=_STEPS,
        data=unique(truth["data"]),
        models=unique(truth["method"]),
        seeds=" or ".join(str(n) for n in sorted({int(n) for n in truth["seeds"]})),
        on=partial(_on, truth),
        accuracy_loss=_accuracy_loss(performance),
        compared=_compared(truth),
        # Made of tables only: where images alone were measured, there are none.
        overshoot=_overshoot(tables["overshoot"]) if len(tables["overshoot"]) else "",
        left_ip=_remaining_gain(gains, "implausibility", "IP, every feature free"),
        left_cost=_remaining_gain(gains, "cost", "Cost, protected features immutable"),
        rescaled=_rescaled(tables["rescaled"]) if len(tables["rescaled"]) else "",
        floors=_floors(truth),
        methods=_methods(truth, performance),
        accepted=_accepted(truth),
        equal=_equal(tables.get("truth_acceptance", pd.DataFrame())),
        prices=_prices(truth),
        diversity=_by_data(truth, "diversity", "free", (_HALF,), 2),
        validity=_by_data(truth, "validity", "protected", (_HALF, _SURE), 0, 100),
        aims=_aims(truth, performance, tables["truth_by_seed"])
        if _BEST in set(truth["method"])
        else "",
    )


def quoted(tables: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """What the page needs of the two large tables: ``quoted`` of ``truth`` and ``quoted_by_seed``
    of ``truth_by_seed``. The page made of them is the same.
    """
    truth = tables["truth"]
    steps = truth["tau"] == _STEPS
    free = (truth["setting"] == "free") & truth["metric"].isin(_QUOTED_FREE)
    free &= ~steps | truth["metric"].isin(_QUOTED_STEPS)
    protected = (truth["setting"] == "protected") & truth["metric"].isin(_QUOTED_PROTECTED)
    by_seed = tables["truth_by_seed"]
    if len(by_seed):
        same = (by_seed["data"] == _EVERY_SEED) & (by_seed["method"] == _BEST)
        same &= (by_seed["setting"] == "free") & (by_seed["metric"] == "nn5")
        by_seed = by_seed[same & (by_seed["tau"] != _STEPS)]
    columns = [name for name in (*_KEYS, *_NUMBERS) if name in truth]
    return {
        "quoted": truth.loc[free | (protected & ~steps), columns],
        "quoted_by_seed": by_seed,
    }


def _table(header: Iterable[str], rows: Sequence[tuple[str, ...]], title: str = "") -> str:
    """As Markdown; nothing where there is neither a title nor a row."""
    if not (rows or title):
        return ""
    escaped = tuple(name.replace("*", "\\*") for name in header)
    return TextTable(title, escaped, tuple(rows)).markdown().rstrip("\n")


def _select(
    truth: pd.DataFrame, model: str, metric: str, tau: str, setting: str = "free"
) -> pd.DataFrame:
    """The rows of a truth table for one model, metric, τ and setting: one per data set."""
    chosen = (truth["method"] == model) & (truth["metric"] == metric) & (truth["tau"] == tau)
    return truth[chosen & (truth["setting"] == setting)]


def _verdicts(cell: pd.DataFrame) -> tuple[list[str], list[str]]:
    """The data sets on which a model is better and worse than its reference."""
    better, worse = (
        list(cell.loc[cell["verdict"] == verdict, "data"]) for verdict in ("better", "worse")
    )
    return better, worse


def _methods_of(truth: pd.DataFrame) -> list[str]:
    """All models but the conventional ones."""
    return unique(truth.loc[truth["method"] != truth["reference"], "method"])


def _on(
    truth: pd.DataFrame,
    model: str,
    metric: str,
    tau: str,
    setting: str = "free",
    verdict: str = "better",
) -> str:
    """``3 of 9 data sets (LS, CH, GMSC)``: where a model beats its reference, of those it was
    measured on.
    """
    names = _verdicts(_select(truth, model, metric, tau, setting))[verdict == "worse"]
    measured = truth.loc[truth["method"] == model, "data"].nunique()
    return f"{len(names) or 'none'} of {measured} data sets" + (
        f" ({', '.join(names)})" if names else ""
    )


def _accuracy_loss(performance: pd.DataFrame) -> tuple[str, str] | None:
    """Where CT changes accuracy for the worse most: the data set and the points."""
    drops = performance[
        (performance["method"] == CT) & (performance["metric"] == "accuracy")
    ].dropna(subset="change")
    if drops.empty:
        return None
    worst = drops.sort_values("change").iloc[0]
    return str(worst["data"]), number(100 * worst["change"], 1)


def _compared(truth: pd.DataFrame) -> str:
    wanted = [(CT, "ip", _STEPS), (_RESCALED, "ip", _STEPS)]
    wanted += [(CT, metric, tau) for tau in (_HALF, _SURE) for metric in ("ip", "nn5", "cost")]
    rows = []
    for model, metric, tau in (one for one in wanted if one[0] in set(truth["method"])):
        cell = _select(truth, model, metric, tau)
        names = (", ".join(verdict) or NOTHING for verdict in _verdicts(cell))
        rows.append(
            (
                model,
                _COUNTED.get(metric, "IP"),
                _TAUS[tau],
                *names,
                number(-cell["change"].median(), 0),
            )
        )
    return _table(
        (
            "compared with conventional training",
            "measure",
            "search",
            "better on",
            "worse on",
            "median change %",
        ),
        rows,
    )


def _overshoot(table: pd.DataFrame) -> str:
    """Medians of the distance of those who arrive, by data set and model."""
    ends = table[(table["step"] < 0) & (table["probability"] > _ARRIVED)]
    medians = (
        ends.groupby(["data", "method", "search"], sort=False)["distance"]
        .median()
        .unstack(sort=False)
    )
    return _table(
        ("data", "method", "median way by fixed steps", "by line search"),
        cells(medians.reset_index(), 2),
    )


def _rescaled(table: pd.DataFrame) -> str:
    """IP and cost of three points of the figure."""
    factors = [f" × {factor:g}" if factor != 1 else "" for factor in table["factor"]]
    named = table.assign(method=table["method"] + factors)
    wide = named.pivot(index=["data", "method"], columns="search", values=["ip", "cost"])
    shown = wide.loc[
        [
            (data, model)
            for data in unique(table["data"])
            for model in (CONVENTIONAL, f"{CONVENTIONAL} × 0.25", CT)
        ]
    ]
    header = (
        "data",
        "method",
        "IP, steps",
        "IP, line search",
        "cost, steps",
        "cost, line search",
    )
    return _table(header, cells(shown.reset_index(), 2))


def _remaining_gain(gains: pd.DataFrame, metric: str, title: str) -> str:
    columns = [
        "data",
        "published",
        f"{CT}, {_STEPS}",
        f"{_RESCALED}, {_STEPS}",
        f"{CT}, {_HALF}",
        f"{CT}, {_SURE}",
    ]
    part = gains[gains["metric"] == metric].reindex(columns=columns)  # methods may be missing
    header = (
        "data",
        "published",
        "ct_published, steps",
        "conventional rescaled, steps",
        "ct_published, line .5",
        "ct_published, line .95*",
    )
    return _table(header, cells(part, 1), title)


def _floors(truth: pd.DataFrame) -> str:
    half, steps = (_select(truth, CT, "nn5", tau).set_index("data") for tau in (_HALF, _STEPS))
    both = ["reference_value", "value"]
    shown = pd.concat(
        [half[["real", "nearest_unlike", "unmoved"]], steps[both], half[both]],
        axis=1,
        join="inner",
    )
    header = (
        "data",
        "real rows",
        "nearest unlike",
        "unmoved",
        "conventional, steps",
        "ct_published, steps",
        "conventional, line .5",
        "ct_published, line .5",
    )
    return _table(header, cells(shown.reset_index(), 3), "5-NN distance")


def _methods(truth: pd.DataFrame, performance: pd.DataFrame) -> str:
    """Better / worse than the reference, by method."""
    accuracy = performance[performance["metric"] == "accuracy"]
    counted = [metric for metric in _COUNTED if metric in set(truth["metric"])]
    compared = [(metric, tau, "free") for metric in counted for tau in (_HALF, _SURE)]
    rows = []
    for model in _methods_of(truth):
        verdicts = [
            _verdicts(_select(truth, model, *one))
            for one in (*compared, ("cost", _HALF, "protected"))
        ]
        worst = 100 * accuracy.loc[accuracy["method"] == model, "change"].min()
        rows.append(
            (
                model,
                *(f"{len(better)} / {len(worse)}" for better, worse in verdicts),
                number(worst, 2),
            )
        )
    titles = [f"{_COUNTED[metric]} {tau}" for metric, tau, _ in compared]
    header = ("method", *titles, "cost, protected .5", "worst accuracy, pp")
    return _table(header, rows, "Better / worse than the conventional reference")


def _by_data(
    truth: pd.DataFrame,
    column: str,
    setting: str,
    taus: Sequence[str],
    digits: int,
    factor: int = 1,
) -> str:
    """A row per data set, a column per method and τ; without the rescaled model, which ends
    where the conventional one does.
    """
    columns = {}
    for model, tau in ((m, t) for t in taus for m in unique(truth["method"]) if m != _RESCALED):
        values = _select(truth, model, "nn5", tau, setting).set_index("data")[column]
        columns[f"{model} {tau}" if len(taus) > 1 else model] = factor * values
    frame = pd.DataFrame(columns, index=unique(truth["data"]))
    return _table(("data", *columns), cells(frame.reset_index(), digits))


def _accepted(truth: pd.DataFrame) -> str:
    """Share of judges that accept, by data set and method, at both τ; nothing without judges."""
    if ACCEPTANCE not in set(truth["metric"]):
        return ""
    columns = {}
    for model, tau in ((m, t) for m in unique(truth["method"]) for t in (_HALF, _SURE)):
        if model != _RESCALED:
            cell = _select(truth, model, ACCEPTANCE, tau).set_index("data")
            columns[model, tau] = 100 * cell["value"]
    real = 100 * _select(truth, CONVENTIONAL, ACCEPTANCE, _HALF).set_index("data")["real"]
    data = unique(truth["data"])
    rows = [("real rows", "", *(number(real.get(one, float("nan")), 0) for one in data))]
    for (model, tau), values in columns.items():
        shown = (number(values.get(one, float("nan")), 0) for one in data)
        rows.append((model, _TAUS[tau].removeprefix("line, τ = "), *shown))
    return _table(("method", "τ", *data), rows, "Accepted by judges of other families, in %")


def _equal(accepted: pd.DataFrame) -> str:
    """Cost at equal acceptance, every feature free; nothing without judges."""
    free = accepted
    if len(accepted):
        free = accepted[(accepted["setting"] == "free") & (accepted["method"] != _RESCALED)]
    if free.empty:
        return ""
    table = equal_table(free, "Cost at equal acceptance")
    return table.markdown().replace("*", "\\*").rstrip("\n")


def _prices(truth: pd.DataFrame) -> str:
    """Medians over data sets of the change in distance and in cost."""
    rows = []
    for model in _methods_of(truth):
        cells = []
        for tau in (_HALF, _SURE):
            nearest, cost = (_select(truth, model, metric, tau) for metric in ("nn5", "cost"))
            medians = (
                -nearest["change"].median(),
                -cost["change"].median(),
                100 * nearest["validity"].median(),
            )
            cells += [number(value, 0) for value in medians]
        rows.append((model, *cells))
    titles = (
        f"{what} {tau}" for tau in (_HALF, _SURE) for what in ("5-NN %", "cost %", "valid %")
    )
    return _table(
        ("method", *titles),
        rows,
        "Median change over data sets; below zero is nearer, or cheaper",
    )


def _aims(truth: pd.DataFrame, performance: pd.DataFrame, by_seed: pd.DataFrame) -> str:
    """Aims, results, and whether each aim is reached."""
    taus = {_HALF: ".5", _SURE: ".95\\*"}
    wanted = [
        (f"{_BEST}: {title}, τ = {taus[tau]}", _select(truth, _BEST, metric, tau), share)
        for metric, (title, share) in _AIMS.items()
        for tau in taus
    ]
    cheap = [
        (
            f"{_CHEAP}: cost under protection, τ = {taus[tau]}",
            _select(truth, _CHEAP, "cost", tau, "protected"),
            _CHEAPER,
        )
        for tau in taus
    ]
    p_values = pd.concat([cell["p_value"] for _, cell, _ in (*wanted, *cheap)])
    p_aims = pd.Series(holm(p_values.to_numpy()), index=p_values.index)
    rows = [_counted(*aim, p_aims) for aim in wanted]
    rows += _lowest_validity(truth, taus)
    change = performance[performance["method"] == _BEST].groupby("metric")["change"]
    drop = change.min()["accuracy"]
    rise = change.max()["calibration_error"]
    rows.append(
        (
            f"{_BEST}: worst change of accuracy",
            "within 0.5 pp",
            f"{number(100 * drop, 2)} pp",
            drop >= -_ACCURACY,
        )
    )
    rows.append(
        (
            f"{_BEST}: worst change of calibration error",
            "no rise",
            number(rise, 3),
            rise <= 0,
        )
    )
    rows += _nearer_seeds(by_seed, taus)
    rows += [_counted(*aim, p_aims) for aim in cheap if _CHEAP in set(truth["method"])]
    return _table(
        ("aim", "wanted", "came out", "met"),
        [(*words, "yes" if met else "no") for *words, met in rows],
    )


_Aim = tuple[str, str, str, bool]


def _lowest_validity(truth: pd.DataFrame, taus: Mapping[str, str]) -> list[_Aim]:
    """The data set with the lowest validity, by setting and τ."""
    rows = []
    for setting, tau in ((s, t) for s in ("free", "protected") for t in taus):
        lowest = _select(truth, _BEST, "valid", tau, setting).sort_values("value").iloc[0]
        worst, reference = (
            number(100 * lowest[name], 1) for name in ("value", "reference_value")
        )
        title = f"lowest validity, {setting}, τ = {taus[tau]}"
        out = f"{worst} % ({lowest['data']}; reference {reference} %)"
        rows.append((f"{_BEST}: {title}", "≥ 95 %", out, lowest["value"] >= _VALID))
    return rows


def _nearer_seeds(by_seed: pd.DataFrame, taus: Mapping[str, str]) -> list[_Aim]:
    """Whether every training seed of one data set gains."""
    every = by_seed[by_seed["data"] == _EVERY_SEED]
    rows: list[_Aim] = []
    if every.empty:
        return rows
    for tau, shown in taus.items():
        rows_at_tau = _select(every, _BEST, "nn5", tau)
        nearer = int((rows_at_tau["value"] < rows_at_tau["reference_value"]).sum())
        title = f"training seeds of {_EVERY_SEED} that are nearer, τ = {shown}"
        rows.append(
            (
                f"{_BEST}: {title}",
                "all",
                f"{nearer} of {len(rows_at_tau)}",
                nearer == len(rows_at_tau),
            )
        )
    return rows


def _counted(
    title: str, cell: pd.DataFrame, share: float, p_aims: pd.Series
) -> tuple[str, str, str, bool]:
    """One aim: the number of data sets on which it is better, by Holm over all cells, by Holm over
    the cells of these aims, and by sign.
    """
    better, worse = _verdicts(cell)
    more = "boosting" in set(cell["metric"])  # the only measure here of which more is better
    if more:
        rises = cell["value"] > cell["reference_value"]
    else:
        rises = cell["value"] < cell["reference_value"]
    among = int((rises & (p_aims[cell.index] < _LEVEL)).sum())
    needed = round(share * len(cell))
    if worse:
        losses = f"{len(worse)} ({', '.join(worse)})"
    else:
        losses = "0"
    out = f"{len(better)}, {among}, {int(rises.sum())}; worse {losses}"
    return (
        title,
        f"≥ {needed} of {len(cell)}, none worse",
        out,
        len(better) >= needed and not worse,
    )
