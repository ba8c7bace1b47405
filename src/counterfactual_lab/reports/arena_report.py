"""The report of a comparison of methods: tables, pictures and one page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from counterfactual_lab.arena.arena import REFITS, Arena
from counterfactual_lab.arena.arena_results import OURS, ROBUST
from counterfactual_lab.grids.settings import CONVENTIONAL
from counterfactual_lab.reports import arena_figures as draw
from counterfactual_lab.reports.acceptance_tables import equal_table
from counterfactual_lab.reports.files import Image, Section, fill_template
from counterfactual_lab.truth.equal_acceptance import BY
from counterfactual_training.evaluation.metrics import ACCEPTANCE
from counterfactual_training.evaluation.stepfree import RETRAINED
from counterfactual_training.tables.pages.files import csv_text, json_text, write_files
from counterfactual_training.text import duration
from counterfactual_training.text_table import NOTHING, TextTable, number
from counterfactual_training.versions import versions

Tables = Mapping[str, pd.DataFrame]
TITLE = "Ways to train, compared"
_HALF = ".5"
_POINTS = (
    "nearer %: reduction of the mean distance to the five nearest real rows of the wanted class, "
    "against conventional "
    "training, on the individuals for whom both searches arrive; excess: the share of the "
    "distance beyond that of real "
    "rows which is gone; cheaper %: reduction of the L1 distance moved, negative is dearer; "
    "accepted: share of four judges of other families (boosting, logistic regression, support "
    "vectors, neighbours), fitted to rows that no model saw, that put the point into the class; "
    f"retrained: share of {REFITS} models that the same method trained on bootstrap samples which "
    "give it, too; cost × at equal acceptance: cost as a multiple of the conventional model's, "
    "where judges, or refits, accept both alike (see *At equal acceptance*)."
)
_MARKS = (
    "* better, † worse than conventional training (paired over seeds and individuals, Holm over "
    "the column, 5 %)."
)
_MODELS = (
    "Differences to conventional training: accuracy (median, and on the worst data set) and "
    "accuracy under attack "
    f"(PGD, ε = {ROBUST.partition('@')[2]}, "
    "within the constraints) in points, calibration error; time as a multiple; gradients: by the "
    "input, at most, per "
    "row and epoch."
)
_TAU = (
    "τ = .95*: probability .95, after logits were scaled so that the median correctly classified "
    "training row has it: "
    "well inside the class, where .5 is its edge. IP: mean L1 distance to all real rows of the "
    "class; IP*: the "
    "contribution to the squared MMD. Means of a column are over all for whom that method "
    "arrives together with "
    "conventional training, so they may differ in people from row to row."
)


def write_arena(tables: Tables, folder: str | Path, arena: Arena, command: str) -> list[str]:
    """Write the tables, pictures and page of a comparison, as ``ct compare`` does; returns the
    paths.
    """
    sections = arena_sections(tables)
    facts = _facts(arena, tables)
    files: dict[str, str | bytes] = {
        f"{name}.csv": csv_text(table) for name, table in tables.items()
    }
    listed = [f"- {key}: {value}" for key, value in facts.items()]
    if _warning(tables):
        warning = [f"**{_warning(tables)}**\n"]
    else:
        warning = []
    parts = [f"## {TITLE}\n", *warning, f"Made with: `{command}`\n", *listed, ""]
    for section in sections:
        parts.append(f"## {section.title}\n")
        parts += [
            f"![{image.caption}](figures/{image.name}.png)\n\n{image.caption}\n"
            for image in section.figures
        ]
        parts += [table.markdown().replace("*", "\\*") for table in section.tables]
    files["arena.md"] = "\n".join(parts)
    subtitle = (
        "The same rows, searches and judges for all; every search ends just past τ, whatever the "
        "step."
    )
    files["arena.html"] = fill_template(
        "sections.html",
        title=TITLE,
        subtitle=subtitle,
        warning=_warning(tables),
        sections=sections,
        settings=facts,
        commands=[command],
    )
    files["provenance/arena.json"] = json_text({**facts, "command": command})
    images = (image for section in sections for image in section.figures)
    return write_files(
        folder, files | {f"figures/{image.name}.png": image.png for image in images}
    )


def arena_sections(tables: Tables) -> list[Section]:
    """The page: overview first, then what wins where, then every data set."""
    cells = tables["arena"]
    overview = tables["arena_overview"]
    if cells.empty:
        return []
    return [
        Section("All data sets", tuple(overview_tables(overview)), tuple(_pictures(tables))),
        Section(
            "What wins where",
            (
                winners(cells, tables["arena_models"]),
                *against_published(tables["arena_ct_published"]),
            ),
        ),
        Section("At equal acceptance", tuple(acceptance_tables(tables["arena_acceptance"]))),
        *(
            Section(str(data), tuple(_data_tables(part, tables["arena_models"])))
            for data, part in _by(cells, "data")
        ),
    ]


def _by(frame: pd.DataFrame, *keys: str) -> Any:
    return frame.groupby(list(keys) if len(keys) > 1 else keys[0], sort=False)


def _pictures(tables: Tables) -> list[Image]:
    cells = tables["arena"]
    models = tables["arena_models"]
    taus = list(dict.fromkeys(cells["tau"]))
    names = {tau: "".join(c for c in tau if c.isdigit()) for tau in taus}
    out = []
    for tau in taus:
        caption = (
            f"Medians over data sets, τ = {tau}: up is more plausible, left is cheaper; the line "
            "joins the best. "
        )
        caption += "Hollow: fewer than nine in ten arrive."
        out.append(
            Image(
                f"overview_{names[tau]}",
                caption,
                draw.overview_figure(tables["arena_overview"], tau),
            )
        )
    for search in dict.fromkeys(cells["generator"]):
        caption = (
            f"What plausibility costs, by data set ({search}, τ = {taus[0]}); beyond −50 % marks "
            "stand at −50 %."
        )
        out.append(Image(f"price_{search}", caption, draw.price_figure(cells, search, taus[0])))
    search = str(cells["generator"].iloc[0])
    caption = (
        f"What advice costs, and whether it would work, by data set ({search}): from τ = "
        f"{taus[0]} to {taus[-1]}. Up is believed by more judges of other families, left is "
        "cheaper. Means are over the people whom a method and the conventional one answer."
    )
    out.append(Image("acceptance", caption, draw.acceptance_figure(cells, search)))
    caption = f"Accuracy and plausibility, by data set ({search}, τ = {taus[0]})."
    out.append(Image("accuracy", caption, draw.accuracy_figure(cells, models, search, taus[0])))
    out.append(
        Image(
            "robust", "Accuracy and accuracy under attack.", draw.robust_figure(models, ROBUST)
        )
    )
    return out


def overview_tables(overview: pd.DataFrame) -> list[TextTable]:
    """One table per search and τ: a row per method, medians over data sets."""
    header = (
        "method",
        "nearer %",
        "excess",
        "data better/worse",
        "cheaper %",
        "data better/worse",
        "accepted",
        "retrained",
        "cost × at equal acceptance",
        "by refits",
        "valid",
        "columns",
        "accuracy",
        "at worst",
        "calibration",
        "under attack",
        "time ×",
        "gradients",
    )
    out = []
    for (search, tau), part in _by(overview, "generator", "tau"):
        rows = []
        for _, row in part.iterrows():
            base = row["method"] == CONVENTIONAL
            counts = (
                NOTHING if base else f"{row[f'{m}_better']}/{row[f'{m}_worse']}"
                for m in ("nn5", "cost")
            )
            nearer, cheaper = counts
            rows.append(
                (
                    row["method"],
                    number(row["nn5"], 1),
                    number(row["excess"], 2),
                    nearer,
                    number(row["cost"], 0),
                    cheaper,
                    *(number(row[name], 2) for name in ("accepted", "retrained")),
                    *(number(row[f"equal_{by}"], 2) for by in BY),
                    number(row["valid"], 2),
                    number(row["columns"], 1),
                    number(100 * row["accuracy"], 1),
                    number(100 * row["accuracy_worst"], 1),
                    number(row["calibration_error"], 3),
                    number(100 * row[ROBUST], 1),
                    number(row["slower"], 1),
                    number(row["input_gradients"], 0),
                )
            )
        out.append(
            TextTable(
                f"Searched by {search}, τ = {tau}: medians over data sets", header, tuple(rows)
            )
        )
    notes = (
        _POINTS,
        _TAU,
        _MODELS,
        "data better/worse: on how many data sets (5 %, Holm over all of them and all methods).",
    )
    if out:
        return [*out[:-1], TextTable(out[-1].title, header, out[-1].rows, notes)]
    return []


def winners(cells: pd.DataFrame, models: pd.DataFrame) -> TextTable:
    """Per data set: the best method by each measure, at the first search and τ."""
    search = cells["generator"].iloc[0]
    tau = cells["tau"].iloc[0]
    part = cells[(cells["generator"] == search) & (cells["tau"] == tau)]
    rows = []
    for data, rows_of_data in _by(part, "data"):
        line = [data]
        for metric, lowest in (
            ("nn5", True),
            ("cost", True),
            (ACCEPTANCE, False),
            (RETRAINED, False),
        ):
            column = rows_of_data[
                (rows_of_data["metric"] == metric) & (rows_of_data["validity"] >= draw.ENOUGH)
            ]
            # Relative to the same individuals of the conventional model, whose own gain is 0.
            gain = (column["value"] - column["reference_value"]) * (-1 if lowest else 1)
            if gain.notna().any():
                best = column.loc[gain.idxmax()]
            else:
                best = None
            if best is not None and best["verdict"] == "better":
                mark = "*"
            else:
                mark = ""
            line.append(
                NOTHING
                if best is None
                else f"{best['method']} {number(best['value'], 2)}{mark}"
            )
        for metric in ("accuracy", ROBUST):
            column = models[(models["data"] == data) & (models["metric"] == metric)]
            best = column.loc[column["value"].idxmax()]
            if best["verdict"] == "better":
                mark = "*"
            else:
                mark = ""
            line.append(f"{best['method']} {number(best['value'], 3)}{mark}")
        rows.append(tuple(line))
    header = (
        "data",
        "nearest (5-NN)",
        "cheapest",
        "accepted",
        "retrained",
        "accuracy",
        "under attack",
    )
    notes = (
        f"Among methods by which {draw.ENOUGH:.0%} of the people get a valid counterfactual.",
        _MARKS,
    )
    return TextTable(
        f"The best of each column ({search}, τ = {tau})", header, tuple(rows), notes
    )


def against_published(table: pd.DataFrame) -> list[TextTable]:
    """Methods nearer to real rows, and cheaper, than the published one, and where."""
    if table.empty:
        return []
    rows = []
    for (search, tau, name), part in _by(table, "generator", "tau", "method"):
        if name == OURS:
            continue
        lists = []
        for metric in ("nn5", "cost"):
            of_metric = part[part["metric"] == metric]
            for verdict in ("better", "worse"):
                lists.append(
                    ", ".join(of_metric.loc[of_metric["verdict"] == verdict, "data"]) or NOTHING
                )
        rows.append((name, search, f"τ {tau}", *lists))
    header = (
        "method",
        "search",
        "up to",
        f"nearer than {OURS} on",
        "farther on",
        "cheaper on",
        "dearer on",
    )
    note = (
        "Paired over seeds and individuals, Holm over all data sets and methods of a search and "
        "τ, 5 %."
    )
    return [TextTable(f"Beside {OURS}", header, tuple(rows), (note,))]


def acceptance_tables(accepted: pd.DataFrame) -> list[TextTable]:
    """Cost at equal acceptance: one table per search and kind of judge."""
    return [
        equal_table(part, f"By {by}, searched by {search}")
        for (search, by), part in _by(accepted, "generator", "by")
    ]


def _data_tables(part: pd.DataFrame, models: pd.DataFrame) -> list[TextTable]:
    """One table per search and τ of a data set, and one of its models."""
    data = part["data"].iloc[0]
    header = (
        "method",
        "5-NN",
        "nearer %",
        "excess",
        "IP",
        "IP*",
        "accepted",
        "retrained",
        "cost",
        "columns",
        "valid",
    )
    out = []
    for (search, tau), cell in _by(part, "generator", "tau"):
        rows = []
        for name, of_model in _by(cell, "method"):
            by = of_model.set_index("metric").to_dict("index")
            mark = {
                metric: {"better": "*", "worse": "†"}.get(row["verdict"], "")
                for metric, row in by.items()
            }
            values = {
                metric: number(row["value"], 3 if metric == "ip_star" else 2)
                for metric, row in by.items()
            }
            shown = {metric: value + mark[metric] for metric, value in values.items()}
            nearest = by["nn5"]
            rows.append(
                (
                    name,
                    shown["nn5"],
                    number(nearest["change"], 1),
                    number(nearest["share"], 2),
                    shown["ip"],
                    shown["ip_star"],
                    shown[ACCEPTANCE],
                    shown[RETRAINED],
                    shown["cost"],
                    shown["changes"],
                    number(nearest["validity"], 2) + mark["valid"],
                )
            )
        first = cell[cell["metric"] == "nn5"].iloc[0]
        real, unmoved = (number(first[name], 2) for name in ("real", "unmoved"))
        floor = f"Real rows have a 5-NN of {real}, people as they are {unmoved}."
        out.append(
            TextTable(
                f"{data}, {search}, τ = {tau}", header, tuple(rows), (floor, _MARKS, _TAU)
            )
        )
    return [*out, _model_table(models[models["data"] == data])]


def _model_table(models: pd.DataFrame) -> TextTable:
    metrics = list(dict.fromkeys(models["metric"]))
    rows = []
    for name, of_model in _by(models, "method"):
        marks = of_model["verdict"].map({"better": "*", "worse": "†"}).fillna("")
        values = (
            number(value, 3) + mark
            for value, mark in zip(of_model["value"], marks, strict=True)
        )
        first = of_model.iloc[0]
        rows.append(
            (name, *values, number(first["seconds"], 1), number(first["input_gradients"], 0))
        )
    notes = {f"{row['method']}: {row['note']}" for _, row in models.iterrows() if row["note"]}
    header = (
        "method",
        *(name.replace("_", " ") for name in metrics),
        "seconds to train",
        "gradients",
    )
    marks = (
        "* better, † worse than conventional training (paired over seeds, Holm over the column, "
        "5 %)."
    )
    return TextTable(
        f"{models['data'].iloc[0]}: the models", header, tuple(rows), (marks, *sorted(notes))
    )


def _facts(arena: Arena, tables: Tables) -> dict[str, Any]:
    caps = arena.caps
    seeds = arena.seeds_of
    models = tables["arena_models"]
    by_count: dict[int, list[str]] = {}
    for data, its_seeds in seeds.items():
        by_count.setdefault(len(its_seeds), []).append(data)
    trained = 0
    if len(models):
        trained = int(models.drop_duplicates(["data", "method"])["seeds"].sum())
    return {
        "rows": f"{arena.kind_of_rows} rows, at most {caps.individuals} individuals, judges fitted "
        "to other rows",
        "training": f"at most {caps.rows or 'all'} rows, {caps.epochs} epochs, the paper's "
        "networks",
        "input gradients": f"at most {arena.gradients} per row and epoch, where a method has a "
        "number for it",
        "seeds": "; ".join(
            f"{count} ({', '.join(names)})" for count, names in by_count.items()
        ),
        **({"left out": _listed(arena)} if arena.excluded else {}),
        "models": f"{trained:,}",
        "trained": f"{_when(arena)}, {duration(_seconds(models))} of processor time",
        **versions(),
    }


def _when(arena: Arena) -> str:
    """The days on which results were made."""
    origins = [arena.store.load(job[0]).origin for job in arena.finished]
    days = sorted({str(one["date"])[:10] for one in origins})
    return " to ".join(dict.fromkeys([*days[:1], *days[-1:]]))


def _seconds(models: pd.DataFrame) -> float:
    if len(models):
        each = models.drop_duplicates(["data", "method"])
    else:
        each = models
    if len(models):
        return float((each["seconds"] * each["seeds"]).sum())
    return 0.0


def _listed(arena: Arena) -> str:
    return (
        ", ".join(f"{name} on {data}" for data, name in arena.excluded)
        + " (they need two classes, or no images)"
    )


def _warning(tables: Tables) -> str:
    if len(tables["arena"]):
        seeds = int(tables["arena"]["seeds"].min())
    else:
        seeds = 0
    if seeds == 1:
        return "Only one training seed: differences may be chance."
    return ""
