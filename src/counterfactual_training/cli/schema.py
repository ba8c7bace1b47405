"""``ct schema``: a first draft of what is to be said about the columns of a CSV file."""

from __future__ import annotations

import argparse
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pandas as pd
from pandas.api import types

from counterfactual_training.cli.csv_file import read_table
from counterfactual_training.cli.flags import in_flags
from counterfactual_training.cli.output import emit
from counterfactual_training.cli.table import add_columns, chosen_reading, need_target, usable
from counterfactual_training.errors import InputError
from counterfactual_training.tabular.feature import Feature
from counterfactual_training.tabular.infer import infer_feature
from counterfactual_training.tabular.schema_file import feature_to_dict

DESCRIPTION = """Read a CSV file and write a TOML file with a table for every column: its kind and its categories, \
and, as comments to be edited, the rules that advice may have to keep. Give the edited file to `ct train --schema`."""
EPILOG = """\
examples:
  ct schema people.csv --target granted > rules.toml
  ct schema people.csv --target granted --drop name,phone"""

# A value that occurs this often, alone on its side of zero, may be a code for "not known".
_CODE_ROWS = 3
_MOST_CODES = 2
# The range of advice that a classifier takes by itself.
_BULK = (0.005, 0.995)


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", metavar="FILE", help="a CSV file")
    add_columns(parser)


def run(arguments: argparse.Namespace) -> None:
    path = Path(arguments.data)
    frame = read_table(path, chosen_reading(arguments))
    if arguments.target is not None:
        need_target(path, frame, arguments.target)
    frame, left_out = usable(path, frame, arguments.target, arguments)
    described, tables = {}, []
    for name in frame.columns:
        if name == arguments.target:
            continue
        try:
            feature = infer_feature(frame[name], {})
        except InputError as error:
            tables.append(f"# [{_key(name)}]  is not used as it is: {in_flags(str(error))}")
            continue
        described[name] = feature_to_dict(feature)
        tables.append(_table(feature, frame[name]))
    if not described:
        raise InputError(f"No column of {path} can be used; --debug shows more.")
    emit(arguments, {"data": str(path), "left_out": left_out, "columns": described}, "\n\n".join([
        _head(path, arguments.target, left_out), *tables,
    ]))  # fmt: skip


def _head(path: Path, target: str | None, left_out: tuple[str, ...]) -> str:
    chosen = shlex.quote(target) if target is not None else "COLUMN"
    said = [
        f"# Rules for the columns of {path.name}, drafted by `ct schema`. A line that begins with # is not in force:",
        "# remove the # and change the value where it matters. Then:",
        f"#   ct train {shlex.quote(path.name)} --target {chosen} --schema rules.toml",
    ]
    return "\n".join([*said, *([f"# Left out: {', '.join(left_out)}."] if left_out else [])])


def _table(feature: Feature, column: pd.Series) -> str:
    """The table of one column, with comments."""
    blanks = int(column.isna().sum())
    about = [_range(column) if not feature.is_category else f"{len(feature.levels)} categories"]
    about += [f"{blanks} of {len(column)} cells are blank"] if blanks else []
    lines = [f"[{_key(feature.name)}]  # {', '.join(about)}", f"kind = {_toml(feature.kind)}"]
    if feature.categories is not None:
        lines.append(f"categories = {_toml(list(feature.categories))}")
    lines += [_hint("mutability", "none", "both (the default), none, increase or decrease")]
    if feature.is_category:
        if len(feature.levels) > 2:
            lines.append(_hint("allowed", list(feature.levels), "the only ones that advice may lead to"))
            lines.append('# For categories with an order: kind = "ordinal", and categories from low to high.')
        return "\n".join(lines)
    known = _without_codes(column)
    change = float(f"{known.std() or 1.0:.2g}")
    lines += [
        _hint(
            "domain",
            [_plain(float(known.quantile(share))) for share in _BULK],
            "where advice may lead; here, 99 % of rows",
        ),
        _hint("unit", "…", 'for sentences, such as "years"'),
        _hint("step", 1, "advice names multiples of this"),
        _hint(
            "max_change", max(1, round(change)) if feature.kind == "integer" else _plain(change), "the largest change"
        ),
    ]
    codes = _codes(column)
    if codes:
        shown = ",".join(str(code) for code in codes)
        lines.append(_hint("special", codes, "if that is a code such as 'no record': never advised"))
        lines.append(f"# Is {shown} a code for 'not known'? To fill such cells in, add --na={shown} --missing impute.")
    return "\n".join(lines)


def _hint(field: str, value: Any, meaning: str) -> str:
    return f"# {field} = {_toml(value)}  # {meaning}"


def _range(column: pd.Series) -> str:
    known = _without_codes(column)
    low, middle, high = (_plain(float(value)) for value in (known.min(), known.median(), known.max()))
    return f"from {low} to {high}, median {middle}"


def _without_codes(column: pd.Series) -> pd.Series:
    return column[~column.isin(_codes(column))].astype(float)


def _codes(column: pd.Series) -> list[float | int]:
    """The only negative values of a column, if they are few and repeated."""
    if not types.is_numeric_dtype(column.dtype) or types.is_bool_dtype(column.dtype):
        return []
    counts = column[column < 0].value_counts()
    if not 0 < len(counts) <= _MOST_CODES or counts.min() < _CODE_ROWS or not (column >= 0).any():
        return []
    return [_plain(float(value)) for value in sorted(counts.index)]


def _plain(value: float) -> float | int:
    """At most six digits; whole numbers as such."""
    return int(value) if value == int(value) else float(f"{value:.6g}")


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _toml(name)


def _toml(value: Any) -> str:
    """Text, numbers and lists are written as in JSON."""
    return json.dumps(value, ensure_ascii=False, default=str).replace("\x7f", "\\u007f")
