"""The paper's tables as text, published numbers beside ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pandas as pd

from counterfactual_lab.paper_data import CONVENTIONAL, CT
from counterfactual_lab.reports.style import METRIC_NAMES, NAMES, unique
from counterfactual_training.text_table import (
    NOTHING,
    TextTable,
    cells,
    interval,
    number,
    p_value,
)

Tables = Mapping[str, pd.DataFrame]
Row = Mapping[Any, Any]
INTERVALS = (
    "In brackets: 95 % intervals by hierarchical bootstrap over training seeds and evaluation."
)
_TITLES = {
    "implausibility": "Implausibility IP",
    "implausibility_mmd": "Implausibility IP* (MMD)",
    "cost": "Cost under mutability constraints",
}


def text_tables(name: str, tables: Tables) -> list[TextTable]:
    """The tables of one experiment that have rows."""
    if name == "mnist-figures" or tables[name].empty:
        return []
    builders = (_main, _mutability, _ablation, _robustness, _attribution, _synthetic, _figure1)
    build = {builder.__name__: builder for builder in builders}[f"_{name}"]
    return [table for table in build(tables) if table.rows]


def _main(tables: Tables) -> list[TextTable]:
    main = tables["main"]
    paired = tables["main_paired"]
    by_seed = tables["main_by_seed"]
    header = (
        "data",
        "published %",
        "ours %",
        "difference",
        "seeds with *",
        "paired %",
        "p (Holm)",
        "seeds",
    )
    out = []
    for metric in unique(main["metric"]):
        rows = []
        for data in unique(main["data"]):
            mine, second = (
                _cell(table, data, metric).get("reduction") for table in (main, paired)
            )
            if mine and second:
                seeds = by_seed[(by_seed["data"] == data) & (by_seed["metric"] == metric)]
                first = seeds.iloc[0]
                if first["published_significant"]:
                    star = "*"
                else:
                    star = ""
                published = (
                    f"{number(first['published'], 2)} ± "
                    f"{number(first['published_spread'], 2)}{star}"
                )
                stars = f"{int(seeds['significant'].sum())} of {len(seeds)}"
                test = (_interval(second, 1), p_value(second["p_holm"]))
                rows.append(
                    (
                        data,
                        published,
                        *_comparison(mine, 1)[1:],
                        stars,
                        *test,
                        str(int(mine["seeds"])),
                    )
                )
        out.append(
            TextTable(f"{_TITLES.get(metric, metric)}: reduction by CT", header, tuple(rows))
        )
    if out:
        alone = (_ONE_SEED,) if (main["seeds"] == 1).any() else ()
        out[-1] = replace(out[-1], notes=(*_MAIN_NOTES, *alone))
    return [*out, _means(main), *_performance(tables)]


def _means(main: pd.DataFrame) -> TextTable:
    """Absolute values behind the reductions; those of conventional training need no tuning, so they
    test the protocol.
    """
    rows = []
    for metric, data in ((m, d) for m in unique(main["metric"]) for d in unique(main["data"])):
        cell = _cell(main, data, metric)
        if cell:
            rows.append(
                (
                    data,
                    METRIC_NAMES.get(metric, metric),
                    *_relative(cell[CONVENTIONAL]),
                    *_relative(cell[CT]),
                )
            )
    header = (
        "data",
        "metric",
        "conventional published",
        "conventional ours",
        "off by %",
        "CT published",
        "CT ours",
        "off by %",
    )
    return TextTable(
        "Absolute means by the published protocol", header, tuple(rows), (INTERVALS,)
    )


def _relative(row: Row) -> tuple[str, str, str]:
    published = row["published"]
    # Printed with two digits: below a tenth, rounding alone is several per cent.
    if published >= 0.1:
        off = 100 * (row["ours"] / published - 1)
    else:
        off = float("nan")
    return number(published, 2), _interval(row), number(off, 1)


_ONE_SEED = (
    "Where there is one training seed only, intervals and p leave out training variance, often "
    "the larger part."
)
_MAIN_NOTES = (
    "Published: reduction ± SD over evaluation runs of one trained pair of models, * by the "
    "authors' test at 1 %.",
    "Ours: individuals and runs as published, all training seeds; the reduction is that of the "
    "means over all of them. "
    "The authors' mean of ratios, which small denominators of IP* make unstable, is in "
    "main_by_seed.csv, seed by seed.",
    "Seeds with *: for how many of them the authors' test gives an asterisk.",
    "Paired: all test rows for whom both models have a valid counterfactual at the same λ_egy "
    "and seed; "
    "p two-sided, corrected for all cells of the table.",
    INTERVALS,
)


def _mutability(tables: Tables) -> list[TextTable]:
    table = tables["mutability"]
    header = (
        "data",
        "cost −% published",
        "ours",
        "difference",
        "cost conventional published",
        "ours",
        "cost CT published",
        "ours",
        "validity conventional published",
        "ours",
        "validity CT published",
        "ours",
    )
    out = []
    for suffix, title in (("", "with protected features"), ("_free", "without constraints")):
        rows = []
        for data in unique(table["data"]):
            cost, validity = (
                _cell(table, data, f"{metric}{suffix}") for metric in ("cost", "validity")
            )
            if cost:
                cells = [
                    part[quantity]
                    for part in (cost, validity)
                    for quantity in (CONVENTIONAL, CT)
                ]
                values = (
                    number(cell[name], 2) for cell in cells for name in ("published", "ours")
                )
                rows.append((data, *_comparison(cost["reduction"], 1), *values))
        out.append(TextTable(f"Cost and validity {title}", header, tuple(rows), (INTERVALS,)))
    return out


def _ablation(tables: Tables) -> list[TextTable]:
    table = tables["ablation"]
    methods = unique(table["quantity"])
    columns = (
        f"{NAMES[m]} {what}" for m in methods for what in ("published", "ours", "difference")
    )
    header = ("data", *columns)
    note = (
        "The adversarial term alone, the divergence alone, and CT, which has both. Published "
        "values are read off a figure."
    )
    out = []
    for metric in unique(table["metric"]):
        cells = {data: _cell(table, data, metric) for data in unique(table["data"])}
        rows = [
            (data, *(text for m in methods for text in _comparison(cells[data].get(m), 1)))
            for data in cells
        ]
        name = METRIC_NAMES.get(metric, metric)
        title = f"Reduction of {name} in % by the terms of the objective"
        out.append(TextTable(title, header, tuple(rows), (note, INTERVALS)))
    return out


def _robustness(tables: Tables) -> list[TextTable]:
    table = tables["robustness"]
    notes = (
        "Attacks are not clamped to the domain, as published. Published values are read off a "
        "figure, ± 0.01.",
    )
    out = []
    for attack in unique(table["metric"]):
        part = table[table["metric"] == attack]
        # Columns: the budgets at which the published figure was read, and both ends.
        has_published = part.groupby("epsilon")["published"].count() > 0
        shown = sorted(
            {part["epsilon"].min(), part["epsilon"].max(), *has_published[has_published].index}
        )
        rows = []
        for (data, model), curve in part.groupby(["data", "quantity"], sort=False):
            at = curve.set_index("epsilon")
            texts = (
                text
                for epsilon in shown
                for text in _comparison(at.loc[epsilon].to_dict(), 2)[:2]
            )
            rows.append((str(data), NAMES[str(model)], *texts))
        header = (
            "data",
            "model",
            *(f"ε={e:.3g} {what}" for e in shown for what in ("published", "ours")),
        )
        out.append(
            TextTable(
                f"Accuracy under {attack.upper()}", header, tuple(rows), (*notes, INTERVALS)
            )
        )
    return [*out, *_performance(tables)]


def _attribution(tables: Tables) -> list[TextTable]:
    table = tables["attribution"]
    rows = []
    for data in unique(table["data"]):
        cell = _cell(table, data, "sensitivity")
        texts = (
            _interval(cell[q], 2, of)
            for q in (CONVENTIONAL, CT)
            for of in ("published", "ours")
        )
        rows.append((data, *texts, str(int(cell[CT]["seeds"]))))
    header = (
        "data",
        "conventional published",
        "conventional ours",
        "CT published",
        "CT ours",
        "seeds",
    )
    notes = (
        "Median and 95 % of the rounds; for two features the score has no upper bound (reference "
        "protocol).",
    )
    return [
        TextTable(
            "Sensitivity to protected features (integrated gradients)",
            header,
            tuple(rows),
            notes,
        )
    ]


def _synthetic(tables: Tables) -> list[TextTable]:
    table = tables["synthetic"]
    seeds = table.filter(like="seed ")  # data sets may have different numbers of them
    shown = table[["data", "published", "ours"]].assign(
        difference=table["ours"] - table["published"],
        each=[
            ", ".join(number(value, 1) for value in row if pd.notna(value))
            for row in seeds.to_numpy()
        ],
    )
    ends = table[
        ["conventional_ip", "ct_ip", "conventional_accuracy", "ct_accuracy", "share_mature"]
    ]
    header = (
        "data",
        "IP −% published",
        "ours, mean of seeds",
        "difference",
        "ours, each seed",
        "IP conventional",
        "IP CT",
        "accuracy conventional",
        "accuracy CT",
        "share mature",
    )
    notes = (
        "Reduction of implausibility by CT against the same model trained conventionally, "
        "published settings.",
    )
    rows = cells(shown.join(ends), 1, 1, 1, 2, 2, 3, 3, 2)
    return [TextTable("CT against conventional training", header, rows, notes)]


def _performance(tables: Tables) -> list[TextTable]:
    table = tables["performance"]
    rows = []
    for (data, model), part in table.groupby(["data", "quantity"], sort=False):
        by_metric = part.set_index("metric").to_dict("index")
        texts = [_interval(by_metric[m], 3) for m in ("accuracy", "f1", "calibration_error")]
        published = number(by_metric["accuracy"]["published"], 2)
        rows.append((str(data), NAMES.get(str(model), str(model)), published, *texts))
    header = (
        "data",
        "model",
        "accuracy published",
        "accuracy",
        "macro F1",
        "calibration error",
    )
    return [TextTable("Predictive performance", header, tuple(rows), (INTERVALS,))]


def _figure1(tables: Tables) -> list[TextTable]:
    rows = cells(
        tables["figure1"][["panel", "share_age", "implausibility", "cost", "validity"]], 2
    )
    notes = ("Share of age: |θ_age| / (|θ_age| + |θ_debt|) of the linear classifier.",)
    return [
        TextTable(
            "Figure 1 in numbers",
            ("panel", "share of age", "IP", "cost", "validity"),
            rows,
            notes,
        )
    ]


def _cell(table: pd.DataFrame, data: str, metric: str) -> Mapping[Any, Row]:
    """The rows of one data set and metric, by quantity."""
    part = table[(table["data"] == data) & (table["metric"] == metric)]
    return part.set_index("quantity").to_dict("index")


def _interval(row: Row, digits: int | None = None, of: str = "ours") -> str:
    if of == "ours":
        low = "low"
        high = "high"
    else:
        low = f"{of}_low"
        high = f"{of}_high"
    return interval(row[of], row[low], row[high], digits)


def _comparison(row: Row | None, digits: int | None = None) -> tuple[str, str, str]:
    if row is None:
        return NOTHING, NOTHING, NOTHING
    return (
        number(row["published"], digits),
        _interval(row, digits),
        number(row["ours"] - row["published"], digits),
    )
