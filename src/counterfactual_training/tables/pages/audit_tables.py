"""An audit in words and tables: for a terminal, as Markdown, as CSV."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from counterfactual_training.tables.audits import Audit
from counterfactual_training.tables.card_parts import escaped
from counterfactual_training.tables.pages.files import RunInfo
from counterfactual_training.text_table import NOTHING, TextTable, number

Line = Mapping[str, Any]
# A share of advice that would be printed as 0 %.
_SELDOM = 0.005
# Digits after the point, by unit of a measure; shares are printed in per cent.
_DIGITS = {"share": 1, "cost": 2, "cost per person": 3, "cost in total": 1, "index": 4}


def shown(value: float | None, unit: str) -> str:
    """A number as people read it; shares in per cent."""
    if value is None or math.isnan(value):
        return NOTHING
    return number(100 * value if unit == "share" else value, _DIGITS[unit]) + (
        " %" if unit == "share" else ""
    )


def with_interval(line: Line | None, unit: str, difference: bool = False) -> str:
    """``2.51 [2.41, 2.61]``; a difference of shares is in points."""
    if line is None or line["value"] is None:
        return NOTHING
    low, high = (shown(line[end], unit).removesuffix(" %") for end in ("low", "high"))
    value = shown(line["value"], unit)
    return f"{value.replace(' %', ' points') if difference else value} [{low}, {high}]"


def audit_text(audit: Audit) -> str:
    """For a terminal."""
    document = audit.to_dict()
    return "\n\n".join(
        [head(document), *(table.text() for table in audit_tables(document)), *_below(document)]
    )


def audit_markdown(audit: Audit, run: RunInfo, title: str = "") -> str:
    document = audit.to_dict()
    summary = [escaped(line) for line in head(document).splitlines()]
    parts = [f"# Audit{': ' + escaped(title) if title else ''}", _provenance(run), *summary]
    listed = (
        "\n".join(f"- {escaped(finding)}" for finding in document["clear_findings"])
        or "No difference between groups, or models, has an interval that excludes zero."
    )
    tables = [_escaped(table).markdown().rstrip() for table in audit_tables(document)]
    text = [
        *parts,
        "## Clear differences",
        listed,
        "## Groups",
        *tables,
        *map(escaped, _below(document)),
        "## Meaning",
        _glossary(document),
    ]
    return "\n\n".join(part for part in text if part) + "\n"


def _escaped(table: TextTable) -> TextTable:
    """The table with names and categories as text, not markup."""
    header, *rows = (
        tuple(escaped(cell) for cell in line) for line in (table.header, *table.rows)
    )
    return replace(table, title=escaped(table.title), header=header, rows=tuple(rows))


def _provenance(run: RunInfo) -> str:
    if run.command:
        command = f"`{run.command}`, "
    else:
        command = ""
    versions = ", ".join(f"{name} {version}" for name, version in run.versions.items())
    return f"{command}{run.date:%Y-%m-%d %H:%M %Z}, {run.seconds:.0f} s, {versions}."


def head(document: Line) -> str:
    level = f"{100 * document['level']:g} %"
    summary = [
        f"{document['rows']:,} people; the class they want is {document['target']!r}. {level} "
        "intervals by "
        f"{document['resamples']:,} resamples of people, seed {document['seed']}; they do not "
        "show what another training would change."
    ]
    for model in document["models"]:
        if model["accuracy"] is None:
            right = ""
        else:
            right = f"accuracy {100 * model['accuracy']:.1f} %, "
        if model["asked"] is None:
            requirement = "the decision"
        else:
            requirement = f"a confidence of {model['asked']:g}"
        summary.append(
            f"{model['name']}: {right}{model['denied']:,} denied, {model['explained']:,} of them "
            "explained, advice "
            f"asks for {requirement} and changes {_advised(model['advised'])}."
        )
    return "\n".join(summary)


def _advised(advised: Mapping[str, float], most: int = 4) -> str:
    parts = [
        f"{name} ({100 * share:.0f} %)"
        for name, share in list(advised.items())[:most]
        if share >= _SELDOM
    ]
    rest = len(advised) - len(parts)
    return (", ".join(parts) or "nothing") + (f" and, less often, {rest} more" if rest else "")


def _below(document: Line) -> list[str]:
    return [f"Note: {note}" for note in document["notes"]]


def _glossary(document: Line) -> str:
    measures = document["columns"][0]["measures"]
    lines = [f"- **{m['title']}**: {m['meaning']} {m['formula']}." for m in measures]
    lines += [f"- **{check['title']}**: {check['meaning']}" for check in document["later"]]
    if document["proxies"]:
        lines += [f"- **Guessed**: {document['proxies'][0]['meaning']}"]
    lines.append(
        "- **Worst group**: the one with the highest value; a gap alone would hide that all "
        "groups are badly off."
    )
    lines.append(
        "- **Gap**: the two groups that differ most; its interval allows for having picked them "
        "among all pairs. An "
        "interval that includes 0 shows no difference. Groups with few people are marked, and "
        "left out of both."
    )
    return "\n".join(lines)


class _Worded(TextTable):
    """A table whose first two columns hold words, also words such as "25 to 34"."""

    @property
    def text_columns(self) -> int:
        return 2


# ---- tables --------------------------------------------------------------------------------------


def audit_tables(document: Line) -> list[TextTable]:
    """A table per column, one of proxies, one of validity later."""
    tables = [_column_table(column, document["models"]) for column in document["columns"]]
    if document["proxies"]:
        tables += [_proxy_table(document)]
    if document["later"]:
        tables += [_later_table(document)]
    return tables


def _column_table(column: Line, models: Sequence[Line]) -> TextTable:
    names = [model["name"] for model in models]
    rows = [row for measure in column["measures"] for row in _measure_rows(measure)]
    compared = ("difference",) if len(models) > 1 else ()
    return _Worded(column["title"], ("measure", "group", "n", *names, *compared), tuple(rows))


def _measure_rows(measure: Line) -> list[tuple[str, ...]]:
    models = measure["models"]
    unit = measure["unit"]
    title = measure["title"]
    rows = [_group_row(measure, g) for g in range(len(models[0]["groups"]))]
    # Their cell in the column of differences stays empty.
    uncompared = [""] * (len(models) > 1)
    if any(model["worst"] for model in models):
        cells = [worst(model, unit) for model in models]
        rows.append((title, "worst group", "", *cells, *uncompared))
    gaps = [model["gap"] for model in models]
    ends = dict.fromkeys(
        f"{gap['highest']} − {gap['lowest']}" for gap in gaps if gap is not None
    )
    if ends:
        cells = [with_interval(gap, unit, True) for gap in gaps]
        rows.append((title, f"gap: {' / '.join(ends)}", "", *cells, *uncompared))
    return rows


def _group_row(measure: Line, g: int) -> tuple[str, ...]:
    """A measure of the g-th group, by each model; with two, their difference."""
    unit = measure["unit"]
    of_models = [model["groups"][g] for model in measure["models"]]
    group = of_models[0]["group"]
    if any(one["few"] for one in of_models):
        group += " (few)"
    counts = " / ".join(f"{n:,}" for n in dict.fromkeys(one["n"] for one in of_models))
    cells = [with_interval(one, unit) for one in of_models]
    if measure["differences"]:
        cells.append(with_interval(measure["differences"][g], unit, True))
    return (measure["title"], group, counts, *cells)


def worst(model: Line, unit: str) -> str:
    """``Female: 12.3 %``; a gap of 0 may be one of groups that are all badly off."""
    if model["worst"] is None:
        return NOTHING
    value = model["worst"]["value"]
    measured = [
        line for line in model["groups"] if line["value"] is not None and not line["few"]
    ]
    names = [line["group"] for line in measured if line["value"] == value]
    alike = len(names) == len(measured) > 1
    return f"{'all alike' if alike else ' and '.join(names)}: {shown(value, unit)}"


def _proxy_table(document: Line) -> TextTable:
    rows = []
    for proxy in document["proxies"]:
        guesses = [
            ("what may change", proxy["features"]),
            *((f"advice, {a['name']}", a) for a in proxy["advice"]),
        ]
        for source, guess in guesses:
            strongest = ", ".join(
                f"{one['feature']} {one['value']:.3f}" for one in guess["information"][:3]
            )
            if guess["reason"] is None:
                auc = with_interval(guess, "cost")
            else:
                auc = guess["reason"]
            rows.append((proxy["column"], source, auc, f"{guess['n']:,}", strongest or NOTHING))
    header = ("group", "guessed from", "AUC", "n", "information of the strongest columns")
    return _Worded("Can groups be guessed?", header, tuple(rows))


def _later_table(document: Line) -> TextTable:
    names = [model["name"] for model in document["models"]]
    rows = []
    for check in document["later"]:
        by_id = {model["id"]: model for model in check["models"]}
        cells = [with_interval(by_id.get(model["id"]), "share") for model in document["models"]]
        sizes = [f"{n:,}" for n in dict.fromkeys(model["n"] for model in check["models"])]
        draws = " / ".join(
            f"{n:,}" for n in dict.fromkeys(model["draws"] for model in check["models"])
        )
        rows.append((check["title"], *cells, " / ".join(sizes), draws))
    return TextTable(
        "Does today's advice hold later?",
        ("check", *names, "n", "models or draws"),
        tuple(rows),
    )


def long_table(audit: Audit) -> pd.DataFrame:
    """Every number of an audit in one table; ``detail`` is the group, the pair of a gap, or the
    feature.
    """
    parts = []
    for name, table in audit.tables().items():
        part = table.copy()
        if name == "gaps":
            part["group"] = part["highest"] + " − " + part["lowest"]
        elif name in ("proxies", "information"):
            if name == "proxies":
                part["measure"] = "auc"
            else:
                part["measure"] = "information"
            part["group"] = part["source"] + (
                "" if name == "proxies" else ": " + part.get("feature", "")
            )
        elif name == "later":
            part = part.rename(columns={"check": "measure", "draws": "group"})
        parts.append(part.assign(table=name))
    columns = [
        "table",
        "model",
        "column",
        "measure",
        "group",
        "n",
        "value",
        "low",
        "high",
        "few",
        "clear",
    ]
    return (
        pd.concat(parts, ignore_index=True)
        .reindex(columns=columns)
        .rename(columns={"group": "detail"})
    )
