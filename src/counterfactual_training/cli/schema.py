"""``ct schema``: a first draft of the rules for the columns of a CSV file."""

from __future__ import annotations

import argparse
import contextlib
import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from counterfactual_training.cli.flags import in_flags
from counterfactual_training.cli.output import emit
from counterfactual_training.cli.table_options import add_columns
from counterfactual_training.errors import InputError
from counterfactual_training.rules import meaning, with_trait

if TYPE_CHECKING:
    import pandas as pd

    from counterfactual_training.tables.columns.feature import Feature

DESCRIPTION = """\
Read a CSV file and write a TOML file with a table for every column: its kind and its \
categories, and, as comments to be edited, the rules that advice may have to keep. Give the \
edited file to `ct train --schema`."""
EPILOG = """\
examples:
  ct schema people.csv --target granted > rules.toml
  ct schema people.csv --target granted --drop name,phone"""

# A draft asks about one or two negative values that repeat; `fit` warns only of numbers far from
# all others.
_MOST_CODES = 2
_CODE_ROWS = 3
# A field, the value to suggest, and its meaning.
Hint = tuple[str, Any, str]


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", metavar="FILE", help="a CSV file")
    add_columns(parser)


def run(arguments: argparse.Namespace) -> None:
    from counterfactual_training.cli.table import need_target, read_with_options, usable
    from counterfactual_training.tables.columns.infer import infer_feature
    from counterfactual_training.tables.columns.schema_file import feature_to_dict, toml_key
    from counterfactual_training.tables.columns.unchangeable import cannot_change

    path = Path(arguments.data)
    frame, _ = read_with_options(arguments)
    if arguments.target is not None:
        need_target(path, frame, arguments.target)
    frame, dropped = usable(path, frame, arguments.target, arguments)
    features = []
    tables = []
    for name in frame.columns:
        if name == arguments.target:
            continue
        try:
            feature = infer_feature(
                frame[name], {"mutability": "none"} if cannot_change(name) else {}
            )
        except InputError as error:
            tables.append(f"# [{toml_key(name)}]  is not used as it is: {in_flags(error)}")
            continue
        features.append(feature)
        tables.append(_table(feature, frame[name]))
    if not features:
        raise InputError(f"No column of {path} can be used; --debug shows more.")
    text = "\n\n".join(
        [_head(path, arguments.target, dropped), *_relations(features, frame), *tables]
    )
    described = {feature.name: feature_to_dict(feature) for feature in features}
    emit(arguments, {"data": str(path), "left_out": dropped, "columns": described}, text)


def _head(path: Path, target: str | None, dropped: tuple[str, ...]) -> str:
    from counterfactual_training.tables.columns.schema_file import toml_key

    if target is not None:
        chosen = shlex.quote(target)
    else:
        chosen = "COLUMN"
    comments = [
        f"# Rules for the columns of {path.name}, drafted by `ct schema`. A line that begins "
        "with # is not in force:",
        "# remove the # and change the value where it matters. Then:",
        f"#   ct train {shlex.quote(path.name)} --target {chosen} --schema rules.toml",
    ]
    # As keys of TOML, because a line break in a name would end the comment.
    return "\n".join(
        [
            *comments,
            *([f"# Left out: {', '.join(map(toml_key, dropped))}."] if dropped else []),
        ]
    )


def _relations(features: Sequence[Feature], frame: pd.DataFrame) -> list[str]:
    """How to write a relation, with two columns of numbers; nothing if there are no two."""
    from counterfactual_training.constraints.expression import Expression
    from counterfactual_training.tables.columns.relation_text import Comparison, read_relation
    from counterfactual_training.tables.columns.schema_file import relations_key, toml

    names = [feature.name for feature in features]
    numbers = sorted(
        (f for f in features if not f.is_category), key=lambda f: f.mutability == "none"
    )
    if len(numbers) < 2:
        return []
    low, high = sorted((f.name for f in numbers[:2]), key=lambda name: frame[name].median())
    for quote in ("", "'", "`", '"'):  # names such as "1990" need quotes
        text = f"{quote}{low}{quote} <= {quote}{high}{quote}"
        with contextlib.suppress(InputError):
            if read_relation(text, names) == Comparison(
                Expression.column(low), "<=", Expression.column(high)
            ):
                key = relations_key(names)
                return [
                    f"# {key} = [{toml(text)}]  # an example of what advice can keep; more after "
                    "commas"
                ]
    return []


def _table(feature: Feature, column: pd.Series) -> str:
    """The table of one column: what is stated about it, and as comments what may be."""
    from counterfactual_training.tables.columns.schema_file import (
        feature_to_dict,
        toml,
        toml_key,
    )

    hints: list[Hint] = []
    aside = []
    if feature.mutability == "both":
        hints.append(("mutability", "none", meaning("mutability")))
    if feature.is_category:
        about = f"{len(feature.levels)} categories"
        if len(feature.levels) > 2:
            hints.append(("allowed", list(feature.levels), meaning("allowed")))
            aside = [
                '# For categories with an order: kind = "ordinal", and categories from low to high.'
            ]
    else:
        codes = _codes(column)
        numbers = column[~column.isin(codes)].dropna().astype(float)
        about = (
            f"from {_plain(numbers.min())} to {_plain(numbers.max())}, median "
            f"{_plain(numbers.median())}"
        )
        hints += _number_hints(numbers)
        if codes:
            hints.append(("special", codes, meaning("special")))
            shown = ",".join(map(str, codes))
            aside = [
                f"# Is {shown} a code for 'not known'? To fill such cells in, add --na={shown} "
                "--missing impute."
            ]
    blanks = int(column.isna().sum())
    if blanks:
        about += f", {blanks} of {len(column)} cells are blank"
    lines = [f"[{toml_key(feature.name)}]  # {about}"]
    for field, value in feature_to_dict(feature).items():
        if field == "mutability":
            why = "  # nobody can change this, judging by the name; if that is wrong: both"
        else:
            why = ""
        lines.append(f"{field} = {toml(value)}{why}")
    return "\n".join(
        [
            *lines,
            *(f"# {field} = {toml(value)}  # {meaning}" for field, value, meaning in hints),
            *aside,
        ]
    )


def _number_hints(numbers: pd.Series) -> list[Hint]:
    """What may be stated about a column of numbers, given those that are no codes."""
    from counterfactual_training.tables.columns.column import BULK
    from counterfactual_training.tables.columns.rounding import seen_decimals

    low, high = (float(numbers.quantile(share)) for share in BULK)
    decimals = seen_decimals(numbers.to_numpy(), numbers.dtype)
    deviation = float(numbers.std())
    domain = [_plain(low), _plain(high)]
    if decimals is not None:  # outward, to numbers that the column could hold
        ends = (
            math.floor(round(low * 10**decimals, 6)),
            math.ceil(round(high * 10**decimals, 6)),
        )
        domain = [end if decimals == 0 else end / 10**decimals for end in ends]
    hints: list[Hint] = [
        ("domain", domain, f"{meaning('domain')}; here, 99 % of rows"),
        ("unit", "…", 'for sentences, such as "years"'),
    ]
    if not deviation > 0:  # one value, or a single row
        return hints
    # A power of ten between a hundredth and a tenth of the deviation, but none that the column
    # itself does not resolve.
    power = math.floor(math.log10(deviation)) - 1
    step = _plain(float(f"1e{power if decimals is None else max(power, -decimals)}"))
    most = _plain(float(f"{deviation:.2g}"))
    if decimals == 0:
        most = max(1, round(most))
    reaches = [(rule, most, meaning(rule)) for rule in with_trait("number", "reach")]
    return [*hints, ("step", step, meaning("step")), *reaches]


def _codes(column: pd.Series) -> list[float | int]:
    """The only negative values of a column of numbers, if they are few and repeated."""
    counts = column[column < 0].value_counts()
    if (
        not 0 < len(counts) <= _MOST_CODES
        or counts.min() < _CODE_ROWS
        or not (column >= 0).any()
    ):
        return []
    return [_plain(value) for value in sorted(counts.index)]


def _plain(value: float) -> float | int:
    """At most six digits; whole numbers as such."""
    if value == int(value):
        return int(value)
    return float(f"{value:.6g}")
