"""The page *What the published gains are made of*: prose that holds whatever comes out, numbers from the tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from string import Template

import numpy as np
import pandas as pd

from counterfactual_training.reports.gains_aims import aims_table
from counterfactual_training.reports.text_table import NOTHING, TextTable, number

# Tables beyond those of the truth experiment that the page quotes.
MATERIAL = ("overshoot", "rescaled")
_STEPS, _HALF, _SURE = "50 × 0.1", ".5", ".95*"
_METHODS = {
    "BL": "conventional training",
    "BL rescaled": "the same model, its logits times one number; nothing trained",
    "CT": "counterfactual training with the published settings",
    "N5c": "counterfactual training for cheap recourse, under a budget of accuracy",
    "N5c + K": "N5c with gate K",
    "K": "BL with a gate that is a density of real rows",
    "G": "BL with a gate learned with counterfactuals as negatives",
    "K + G": "BL with both gates",
    "best": "BL with gate K (on tables) and a gate learned with counterfactuals as negatives",
    "default net": "the network that the classifier trains by default",
    "default": "default net with gate K, as the classifier is by default",
}
_TAUS = {_STEPS: "published steps", _HALF: "line, τ = .5", _SURE: "line, τ = .95\\*"}
_ARRIVED = 0.5 - 1e-4  # written with five digits
_COUNTED = {"nn5": "5-NN", "boosting": "boosting", "ip_star": "IP*", "cost": "cost"}


_DIGITS = """\
## 7. Digits

Of each digit the first one that all models get right, not picked by hand, and what the line search makes of it at
.95\\*; a stroke across marks a search that did not arrive. Judge yourself which rows show the wanted digit.

![Digits and their counterfactuals: a conventional, a CT and a gated model]({}/figures/digits.png)
"""


def gains_page(tables: Mapping[str, pd.DataFrame], folder: str, head: str) -> str:
    """The template ``gains.md``, filled.

    Args:
        tables: those of ``truth_tables``, and ``overshoot`` and ``rescaled`` of ``picture_tables``.
        folder: where tables and ``figures/`` are, seen from the page.
        head: which rows were measured, and by which command.
    """
    truth, performance, gains = tables["truth"], tables["truth_performance"], tables["truth_gains"]
    names = list(dict.fromkeys(truth["data"]))
    template = (files("counterfactual_training.reports") / "templates" / "gains.md").read_text(encoding="utf-8")
    page = Template(template).substitute(
        head=head,
        folder=folder,
        num=len(names),
        names=", ".join(names),
        seeds=" or ".join(str(n) for n in sorted({int(n) for n in truth["seeds"]})),
        in_short=_in_short(truth, performance),
        overshoot=_overshoot(tables["overshoot"]),
        left_ip=_left_over(gains, "implausibility", "IP, every feature free"),
        left_cost=_left_over(gains, "cost", "Cost, protected features immutable"),
        rescaled=_rescaled(tables["rescaled"]),
        floors=_floors(truth),
        glossary="\n".join(
            f"- **{name}**: {_METHODS[name]}" for name in dict.fromkeys(truth["model"]) if name in _METHODS
        ),
        methods=_methods(truth, performance),
        prices=_prices(truth),
        diversity=_by_data(truth, "diversity", "free", (_HALF,), 2),
        validity=_by_data(truth, "validity", "protected", (_HALF, _SURE), 0, 100),
        aims=aims_table(tables),
    )
    return page.rstrip("\n") + "\n" + ("\n" + _DIGITS.format(folder) if "MNIST" in names else "")


def _in_short(truth: pd.DataFrame, performance: pd.DataFrame) -> str:
    """What came out in sentences, then by data set; of the models that there are."""
    there, lines = set(truth["model"]), []
    by_steps = _verdicts(truth, "CT", "ip", _STEPS)["better"]
    if "CT" in there:
        lines.append(f"By the published steps CT lowers IP on {_of(by_steps, truth, 'CT')}.")
    if "BL rescaled" in there:
        control = _of(_verdicts(truth, "BL rescaled", "ip", _STEPS)["better"], truth, "BL rescaled")
        lines.append(f"The conventional model with rescaled logits, nothing trained, lowers it on {control}.")
    if "CT" in there:
        ip, cost = (_verdicts(truth, "CT", metric, _HALF) for metric in ("ip", "cost"))
        further = f"people have to go further than with conventional training on {_of(cost['worse'], truth, 'CT')}"
        lines.append(
            f"Where the search ends just past τ = .5, CT lowers IP on {_of(ip['better'], truth, 'CT')}, and {further}."
        )
    for model in (name for name in ("K", "G", "K + G", "best") if name in there):
        half, sure = (_of(_verdicts(truth, model, "nn5", tau)["better"], truth, model) for tau in (_HALF, _SURE))
        called = "The best rule" if model == "best" else f"Gate {model}"
        lines.append(f"{called} brings people nearer to real rows (5-NN) on {half} at τ = .5, on {sure} at .95\\*.")
    if "N5c" in there:
        shorter = _of(_verdicts(truth, "N5c", "cost", _HALF, "protected")["better"], truth, "N5c")
        lines.append(f"Training for cheap recourse (N5c) shortens ways at τ = .5 under protection on {shorter}.")
    drops = performance[(performance["model"] == "CT") & (performance["metric"] == "accuracy")]
    if drops["change"].notna().any():
        worst = drops.sort_values("change").iloc[0]
        change = number(100 * worst["change"], 1)
        lines.append(
            f"CT changes accuracy by {change} points where it does worst ({worst['data']}); gates change none."
        )
    return "\n".join(f"- {line}" for line in lines) + "\n\n" + _compared(truth)


def _compared(truth: pd.DataFrame) -> str:
    rows = []
    line = [(metric, tau) for tau in (_HALF, _SURE) for metric in ("ip", "nn5", "cost")]
    wanted = [("CT", "ip", _STEPS), ("BL rescaled", "ip", _STEPS), *(("CT", *one) for one in line)]
    for model, metric, tau in (one for one in wanted if one[0] in set(truth["model"])):
        told = _verdicts(truth, model, metric, tau)
        names = (", ".join(told[verdict]) or NOTHING for verdict in ("better", "worse"))
        change = number(-_cell(truth, model, metric, tau)["change"].median(), 0)
        rows.append((model, {"ip": "IP", **_COUNTED}[metric], _TAUS[tau], *names, change))
    header = ("compared with BL", "measure", "search", "better on", "worse on", "median change %")
    return _plain(header, rows)


def _verdicts(truth: pd.DataFrame, model: str, metric: str, tau: str, setting: str = "free") -> dict[str, list[str]]:
    """Data sets on which a model is better and worse than its twin."""
    cell = _cell(truth, model, metric, tau, setting)
    return {verdict: list(cell.loc[cell["verdict"] == verdict, "data"]) for verdict in ("better", "worse")}


def _of(names: Sequence[str], truth: pd.DataFrame, model: str) -> str:
    """``3 of 9 data sets (LS, CH, GMSC)``, of those that the model was measured on."""
    measured = truth.loc[truth["model"] == model, "data"].nunique()
    return f"{len(names) or 'none'} of {measured} data sets{_list(names)}"


def _cell(truth: pd.DataFrame, model: str, metric: str, tau: str, setting: str = "free") -> pd.DataFrame:
    chosen = (truth["model"] == model) & (truth["metric"] == metric) & (truth["tau"] == tau)
    return truth[chosen & (truth["setting"] == setting)]


def _list(names: Sequence[str]) -> str:
    return f" ({', '.join(names)})" if names else ""


def _escaped(text: str) -> str:
    return text.replace("*", "\\*")


def _overshoot(table: pd.DataFrame) -> str:
    """Medians of the distance of those who arrive, by data set and model."""
    rows = []
    ends = table[(table["step"] < 0) & (table["probability"] > _ARRIVED)] if len(table) else table
    for (data, model), part in ends.groupby(["data", "model"], sort=False) if len(ends) else ():
        medians = part.groupby("search", sort=False)["distance"].median()
        rows.append((str(data), str(model), *(number(medians.iloc[place], 2) for place in (0, 1))))
    return _plain(("data", "model", "median way by fixed steps", "by line search"), rows)


def _rescaled(table: pd.DataFrame) -> str:
    """IP and cost of three points of the picture."""
    rows = []
    for data, part in table.groupby("data", sort=False) if len(table) else ():
        for model, factor in (("BL", 1.0), ("BL", 0.25), ("CT", 1.0)):
            own = part[(part["model"] == model) & np.isclose(part["factor"], factor)]
            cells = [number(float(value), 2) for metric in ("ip", "cost") for value in own[metric]]
            rows.append((str(data), f"{model} × {factor:g}" if factor != 1 else model, *cells))
    return _plain(("data", "model", "IP, steps", "IP, line search", "cost, steps", "cost, line search"), rows)


def _plain(header: Sequence[str], rows: Sequence[tuple[str, ...]]) -> str:
    """A table of Markdown without a title."""
    return TextTable("", tuple(header), tuple(rows)).markdown().rstrip("\n") if rows else ""


def _left_over(gains: pd.DataFrame, metric: str, title: str) -> str:
    part = gains[gains["metric"] == metric]
    columns = {
        "published": "published",
        f"CT, {_STEPS}": "CT, steps",
        f"BL rescaled, {_STEPS}": "BL rescaled, steps",
        f"CT, {_HALF}": "CT, line .5",
        f"CT, {_SURE}": "CT, line .95\\*",
    }
    rows = tuple(
        (str(row["data"]), *(number(row.get(name, float("nan")), 1) for name in columns)) for _, row in part.iterrows()
    )
    return TextTable(title, ("data", *columns.values()), rows).markdown()


def _floors(truth: pd.DataFrame) -> str:
    rows = []
    for data in dict.fromkeys(truth["data"]):
        part = _cell(truth, "CT", "nn5", _HALF), _cell(truth, "CT", "nn5", _STEPS)
        half, steps = (one[one["data"] == data] for one in part)
        if len(half) and len(steps):
            values = (half["real"], half["nearest_unlike"], half["unmoved"], steps["baseline"], steps["value"],
                      half["baseline"], half["value"])  # fmt: skip
            rows.append((str(data), *(number(float(value.iloc[0]), 3) for value in values)))
    header = ("data", "real rows", "nearest unlike", "unmoved", "BL, steps", "CT, steps", "BL, line .5", "CT, line .5")
    return TextTable("5-NN distance", header, tuple(rows)).markdown()


def _methods(truth: pd.DataFrame, performance: pd.DataFrame) -> str:
    """Better / worse than the twin, by method."""
    rows = []
    accuracy = performance[performance["metric"] == "accuracy"]
    for model in dict.fromkeys(truth.loc[truth["model"] != truth["twin"], "model"]):
        cells = []
        for metric in _COUNTED:
            for tau in (_HALF, _SURE):
                cells.append(_score(_verdicts(truth, model, metric, tau)))
        worst = 100 * accuracy.loc[accuracy["model"] == model, "change"].min()
        cells += [_score(_verdicts(truth, model, "cost", _HALF, "protected")), number(worst, 2)]
        rows.append((str(model), *cells))
    titles = [f"{title} {_escaped(tau)}" for title in _COUNTED.values() for tau in (_HALF, _SURE)]
    header = (
        "method",
        *(title.replace("IP* ", "IP\\* ") for title in titles),
        "cost, protected .5",
        "worst accuracy, pp",
    )
    return TextTable("Better / worse than the conventional twin", header, tuple(rows)).markdown()


def _score(verdicts: Mapping[str, Sequence[str]]) -> str:
    return f"{len(verdicts['better'])} / {len(verdicts['worse'])}"


def _by_data(
    truth: pd.DataFrame, column: str, setting: str, taus: Sequence[str], digits: int, factor: float = 1.0
) -> str:
    """A line per data set, a column per method and τ. The rescaled baseline ends where the baseline does."""
    models = [name for name in dict.fromkeys(truth["model"]) if name != "BL rescaled"]
    pairs = [(model, tau) for tau in taus for model in models]
    rows = []
    for data in dict.fromkeys(truth["data"]):
        cells = []
        for model, tau in pairs:
            own = _cell(truth, model, "nn5", tau, setting)
            own = own.loc[own["data"] == data, column]
            cells.append(number(factor * float(own.iloc[0]), digits) if len(own) else NOTHING)
        rows.append((str(data), *cells))
    titles = (model + (f" {_escaped(tau)}" if len(taus) > 1 else "") for model, tau in pairs)
    return _plain(("data", *titles), rows)


def _prices(truth: pd.DataFrame) -> str:
    """Medians over data sets of the change in distance and in cost."""
    rows = []
    for model in dict.fromkeys(truth.loc[truth["model"] != truth["twin"], "model"]):
        cells = []
        for tau in (_HALF, _SURE):
            for metric in ("nn5", "cost"):
                change = -_cell(truth, model, metric, tau)["change"].median()
                cells.append(number(change, 0) if pd.notna(change) else NOTHING)
            cells.append(number(100 * _cell(truth, model, "nn5", tau)["validity"].median(), 0))
        rows.append((str(model), *cells))
    header = (
        "method",
        *(f"{what} {_escaped(tau)}" for tau in (_HALF, _SURE) for what in ("5-NN %", "cost %", "valid %")),
    )
    return TextTable("Median change over data sets; below zero is nearer, or cheaper", header, tuple(rows)).markdown()
