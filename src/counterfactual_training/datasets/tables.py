"""Adult, California housing, Credit default and Give Me Some Credit, as the paper prepared them.

The first 80 % of the rows are for training, the rest for testing. Numbers are z-scored with the
mean and sample SD of the training rows. Categories are one-hot encoded without dropping a level;
the levels are those of all rows.

The mutability of a column is advice for recourse: for example, age cannot change. What the paper's
    experiments hold
fixed is another matter: see ``protected``. Every column with categories is ``categorical``, even
    with two or ordered
ones: the paper one-hot encodes them all.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

from counterfactual_training.constraints import Constraints, Direction
from counterfactual_training.datasets.dataset import Dataset, PaperSettings, Read, Variant
from counterfactual_training.datasets.synthetic import DATA_SEED
from counterfactual_training.tables.columns.feature import Feature

# Categories that recourse never recommends.
NO_ADVICE = ("?", "Never-worked", "Without-pay")
TRAIN_SHARE = 0.8
DOMAIN_NUM_STD = 2.0


class TableRows(NamedTuple):
    """A table as read: named and typed columns, one class per row, the training rows first."""

    frame: pd.DataFrame
    y: np.ndarray
    num_train: int


@dataclass(frozen=True)
class Table:
    """One of the four tables."""

    name: str
    short_name: str
    title: str
    features: tuple[Feature, ...]
    class_names: tuple[str, str]
    files: tuple[str, ...]  #: names of the data files with the paper's rows
    full_files: tuple[str, ...]  #: those with all rows
    #  reads the rows; the second argument asks for all of them
    read: Callable[[Read, bool], TableRows]
    decision_threshold: float = 0.5
    lambda_reg: float = 0.25
    protected: str = "age"  #: column that the paper's mutability experiments hold fixed


def load_table(table: Table, variant: Variant, read: Read) -> Dataset:
    """The table as a data set; ``read`` returns the content of a data file."""
    # Here, because most data sets need no encoder.
    from counterfactual_training.tables.columns.encode import Encoder
    from counterfactual_training.tables.columns.schema import Schema

    rows = table.read(read, variant == "full")
    frame, features = _with_levels(rows.frame, table.features)
    train = frame.iloc[: rows.num_train]
    test = frame.iloc[rows.num_train :].reset_index(drop=True)
    encoder = Encoder(Schema(features)).fit(train)
    x_train, x_test = (
        torch.from_numpy(encoder.transform(part).astype(np.float32)) for part in (train, test)
    )
    y = torch.from_numpy(rows.y.astype(np.int64))
    names = tuple(encoder.get_feature_names_out())
    layout = {
        name: tuple(range(part.start, part.stop)) for name, part in encoder.slices_.items()
    }
    groups = {feature.name: layout[feature.name] for feature in features if feature.is_category}
    if variant == "as_run" and "education_num" in layout:
        # The authors grouped columns by "name contains", so this standardised number became one
        # more level.
        groups["education"] += layout["education_num"]
    constraints = Constraints.infer(
        x_train,
        num_std=DOMAIN_NUM_STD,
        groups=list(groups.values()),
        names=names,
        category_projection="step" if variant == "as_run" else "end",
    )
    return Dataset(
        name=table.name,
        title=table.title,
        variant=variant,
        x_train=x_train,
        y_train=y[: rows.num_train],
        x_test=x_test,
        y_test=y[rows.num_train :],
        class_names=table.class_names,
        feature_names=names,
        features=features,
        encoder=encoder,
        constraints=constraints,
        # The authors searched over continuous dummies in training and over projected ones at
        # evaluation.
        training_constraints=constraints.relaxed() if variant == "as_run" else constraints,
        protected=layout[table.protected],
        settings=PaperSettings(1000, table.decision_threshold, table.lambda_reg, 5000, 1000),
        _frames=(train, test),
    )


def _with_levels(
    frame: pd.DataFrame, features: Sequence[Feature]
) -> tuple[pd.DataFrame, tuple[Feature, ...]]:
    """The frame with categorical dtypes, and the features with the levels of all rows; stated
    orders are kept.
    """
    completed = []
    columns = {}
    for feature in features:
        series = frame[feature.name]
        if feature.is_category:
            # Sorted: the order of columns must not depend on the order of rows.
            levels = feature.categories or tuple(sorted(series.unique().tolist()))
            targets = tuple(level for level in levels if level not in NO_ADVICE)
            if len(targets) < len(levels) and feature.mutability != "none":
                allowed = targets
            else:
                allowed = None
            feature = replace(feature, categories=levels, allowed=allowed)
            ordered = feature.mutability in ("increase", "decrease")
            series = series.astype(pd.CategoricalDtype(list(levels), ordered=ordered))
        completed.append(feature)
        columns[feature.name] = series
    return pd.DataFrame(columns), tuple(completed)


def _cut(frame: pd.DataFrame, y: pd.Series) -> TableRows:
    return TableRows(frame, y.to_numpy(), round(TRAIN_SHARE * len(y)))


def _shuffled(frame: pd.DataFrame, y: pd.Series) -> TableRows:
    """Rows in a fixed random order: the raw files have no test rows, and California housing is
    sorted by place.
    """
    order = np.random.default_rng(DATA_SEED).permutation(len(y))
    return _cut(frame.iloc[order].reset_index(drop=True), y.iloc[order])


# ---- the columns, in the order of the paper ------------------------------------------------------

EDUCATION_LEVELS = (
    "Preschool",
    "1st-4th",
    "5th-6th",
    "7th-8th",
    "9th",
    "10th",
    "11th",
    "12th",
    "HS-grad",
    "Some-college",
    "Assoc-voc",
    "Assoc-acdm",
    "Bachelors",
    "Masters",
    "Prof-school",
    "Doctorate",
)


def _number(name: str, unit: str, low: float | None = None, **rules: Any) -> Feature:
    return Feature(name, "numeric", unit, domain=(low, None), **rules)


def _integer(
    name: str, unit: str | None, low: int | None = 0, high: int | None = None, **rules: Any
) -> Feature:
    return Feature(name, "integer", unit, domain=(low, high), **rules)


def _category(
    name: str, mutability: Direction = "both", categories: tuple[str, ...] | None = None
) -> Feature:
    return Feature(name, "categorical", mutability=mutability, categories=categories)


ADULT = (
    _integer("age", "years", 0, 120, mutability="none"),
    _category("workclass"),
    _integer("fnlwgt", "people represented", mutability="none"),
    _category("education", "increase", EDUCATION_LEVELS),
    # The rank of education again. Changed alone, it would contradict education, so education
    # carries the change.
    _integer("education_num", None, 1, 16, mutability="none"),
    _category("marital_status", "none"),
    _category("occupation"),
    _category("relationship", "none"),
    _category("race", "none"),
    _category("sex", "none"),
    _integer("capital_gain", "dollars"),
    _integer("capital_loss", "dollars"),
    _integer("hours_per_week", "hours", 1, 99),
    _category("country", "none"),
)

CALIFORNIA_HOUSING = (
    _number("MedInc", "10,000 dollars", 0),
    _integer("HouseAge", "years", mutability="none"),
    _number("AveRooms", "rooms per household", 0),
    _number("AveBedrms", "bedrooms per household", 0),
    _integer("Population", "people"),
    _number("AveOccup", "people per household", 0),
    _number("Latitude", "degrees north", mutability="none"),
    _number("Longitude", "degrees east", mutability="none"),
)

CREDIT_DEFAULT = (
    _integer("limit_bal", "NT dollars"),
    _category("sex", "none"),
    _category("education"),
    _category("marriage", "none"),
    _integer("age", "years", 0, 120, mutability="none"),
    *(_integer(f"pay_{month}", "months late", -2, 9) for month in (0, 2, 3, 4, 5, 6)),
    *(_integer(f"bill_amt{month}", "NT dollars", None) for month in range(1, 7)),
    *(_integer(f"pay_amt{month}", "NT dollars") for month in range(1, 7)),
)

GMSC = (
    _number("RevolvingUtilizationOfUnsecuredLines", "share of limits", 0),
    _integer("age", "years", 0, 120, mutability="none"),
    _integer("NumberOfTime30-59DaysPastDueNotWorse", "times in two years"),
    _number("DebtRatio", "share of income", 0),
    _integer("MonthlyIncome", "dollars"),
    _integer("NumberOfOpenCreditLinesAndLoans", "lines"),
    _integer("NumberOfTimes90DaysLate", "times in two years"),
    _integer("NumberRealEstateLoansOrLines", "loans"),
    _integer("NumberOfTime60-89DaysPastDueNotWorse", "times in two years"),
    _integer("NumberOfDependents", "people", mutability="none"),
)


# ---- the four files ------------------------------------------------------------------------------


def _csv(content: bytes, **options: Any) -> pd.DataFrame:
    return pd.read_csv(io.BytesIO(content), **options)


def _read_adult(read: Read, full: bool) -> TableRows:
    names = [feature.name for feature in ADULT]
    # The test file starts with a comment line and ends its labels with a dot.
    options = {
        "header": None,
        "names": [*names, "income"],
        "skipinitialspace": True,
        "comment": "|",
    }
    parts = [
        _csv(read(name), keep_default_na=False, **options)
        for name in ("adult.data", "adult.test")[: 1 + full]
    ]
    frame = pd.concat(parts, ignore_index=True)
    y = frame.pop("income").str.rstrip(".") == ">50K"
    if full:
        return TableRows(frame, y.to_numpy(), len(parts[0]))
    return _cut(frame, y)


def _read_california(read: Read, full: bool) -> TableRows:
    if not full:
        frame = _csv(read("cal_housing.csv")).astype(
            {"HouseAge": int, "Population": int, "target": int}
        )
        return _cut(frame, frame.pop("target"))
    content = read("cal_housing.data")
    raw = [
        "Longitude",
        "Latitude",
        "HouseAge",
        "rooms",
        "bedrooms",
        "Population",
        "households",
        "MedInc",
        "value",
    ]
    frame = _csv(
        content, header=None, names=raw, skiprows=int(content.startswith(b"longitude"))
    )
    for name, total in (
        ("AveRooms", "rooms"),
        ("AveBedrms", "bedrooms"),
        ("AveOccup", "Population"),
    ):
        frame[name] = frame[total] / frame["households"]
    y = (frame["value"] >= frame["value"].median()).astype(int)
    frame = frame.astype({"HouseAge": int, "Population": int})
    return _shuffled(frame[[feature.name for feature in CALIFORNIA_HOUSING]], y)


def _read_credit(read: Read, full: bool) -> TableRows:
    names = [feature.name for feature in CREDIT_DEFAULT]
    if not full:
        frame = _csv(read("credit_default.csv")).astype(int)
        y = frame.pop("target")
        return _cut(frame.set_axis(names, axis=1), y)
    # Two editions with the same positions: ID, 23 features, whether the client defaulted.
    frame = _csv(read("UCI_Credit_Card.csv")).astype(int)
    return _shuffled(frame.iloc[:, 1:24].set_axis(names, axis=1), 1 - frame.iloc[:, 24])


def _read_gmsc(read: Read, full: bool) -> TableRows:
    names = [feature.name for feature in GMSC]
    if not full:
        frame = _csv(read("gmsc.csv"))
        return _cut(frame[names], frame["target"])
    raw = _csv(read("cs-training.csv"), index_col=0)
    frame, y, num_train = _shuffled(raw[names], 1 - raw["SeriousDlqin2yrs"])
    # Income is missing in 20 % of the rows, dependents in 3 %. Both are whole numbers, so the
    # median is rounded.
    frame = frame.fillna(frame.iloc[:num_train].median().round())
    integer_types = {feature.name: int for feature in GMSC if feature.kind == "integer"}
    return TableRows(frame.astype(integer_types), y, num_train)


TABLES = (
    Table(
        "adult",
        "Adult",
        "Adult census income 1994",
        ADULT,
        class_names=("<=50K", ">50K"),
        files=("adult.data",),
        full_files=("adult.data", "adult.test"),
        read=_read_adult,
        decision_threshold=0.75,
    ),
    Table(
        "california_housing",
        "CH",
        "California housing, block groups of the 1990 census",
        CALIFORNIA_HOUSING,
        class_names=("below the median value", "median value or above"),
        files=("cal_housing.csv",),
        full_files=("cal_housing.data",),
        read=_read_california,
        protected="HouseAge",
    ),
    Table(
        "credit_default",
        "Cred",
        "Default of credit card clients, Taiwan 2005",
        CREDIT_DEFAULT,
        class_names=("default", "no default"),
        files=("credit_default.csv",),
        full_files=("UCI_Credit_Card.csv",),
        read=_read_credit,
    ),
    Table(
        "gmsc",
        "GMSC",
        "Give Me Some Credit, Kaggle 2011",
        GMSC,
        class_names=("serious delinquency", "no serious delinquency"),
        files=("gmsc.csv",),
        full_files=("cs-training.csv",),
        read=_read_gmsc,
        lambda_reg=0.5,
    ),
)
