"""The columns of the four tables, in the order of the paper: units, kinds, and the changes that make sense.

Mutability here is advice for recourse: for example, age cannot change. The columns that the paper's experiments hold
fixed are another matter: see ``protected`` in :mod:`~counterfactual_training.datasets.tables`.

Every column with categories is ``categorical``, even with two or ordered ones: the paper one-hot encodes them all.
"""

from __future__ import annotations

from typing import Any

from counterfactual_training.constraints import Direction
from counterfactual_training.tabular.feature import Feature

EDUCATION_LEVELS = (
    "Preschool", "1st-4th", "5th-6th", "7th-8th", "9th", "10th", "11th", "12th", "HS-grad", "Some-college", "Assoc-voc",
    "Assoc-acdm", "Bachelors", "Masters", "Prof-school", "Doctorate",
)  # fmt: skip


def _number(name: str, unit: str, low: float | None = None, **rules: Any) -> Feature:
    return Feature(name, "numeric", unit, domain=(low, None), **rules)


def _whole(name: str, unit: str | None, low: int | None = 0, high: int | None = None, **rules: Any) -> Feature:
    return Feature(name, "integer", unit, domain=(low, high), **rules)


def _category(name: str, mutability: Direction = "both", categories: tuple[str, ...] | None = None) -> Feature:
    return Feature(name, "categorical", mutability=mutability, categories=categories)


ADULT = (
    _whole("age", "years", 0, 120, mutability="none"),
    _category("workclass"),
    _whole("fnlwgt", "people represented", mutability="none"),
    _category("education", "increase", EDUCATION_LEVELS),
    # The rank of education again. Changed alone, it would contradict education, so education carries the change.
    _whole("education_num", None, 1, 16, mutability="none"),
    _category("marital_status", "none"),
    _category("occupation"),
    _category("relationship", "none"),
    _category("race", "none"),
    _category("sex", "none"),
    _whole("capital_gain", "dollars"),
    _whole("capital_loss", "dollars"),
    _whole("hours_per_week", "hours", 1, 99),
    _category("country", "none"),
)

CALIFORNIA_HOUSING = (
    _number("MedInc", "10,000 dollars", 0),
    _whole("HouseAge", "years", mutability="none"),
    _number("AveRooms", "rooms per household", 0),
    _number("AveBedrms", "bedrooms per household", 0),
    _whole("Population", "people"),
    _number("AveOccup", "people per household", 0),
    _number("Latitude", "degrees north", mutability="none"),
    _number("Longitude", "degrees east", mutability="none"),
)

CREDIT_DEFAULT = (
    _whole("limit_bal", "NT dollars"),
    _category("sex", "none"),
    _category("education"),
    _category("marriage", "none"),
    _whole("age", "years", 0, 120, mutability="none"),
    *(_whole(f"pay_{month}", "months late", -2, 9) for month in (0, 2, 3, 4, 5, 6)),
    *(_whole(f"bill_amt{month}", "NT dollars", None) for month in range(1, 7)),
    *(_whole(f"pay_amt{month}", "NT dollars") for month in range(1, 7)),
)

GMSC = (
    _number("RevolvingUtilizationOfUnsecuredLines", "share of limits", 0),
    _whole("age", "years", 0, 120, mutability="none"),
    _whole("NumberOfTime30-59DaysPastDueNotWorse", "times in two years"),
    _number("DebtRatio", "share of income", 0),
    _whole("MonthlyIncome", "dollars"),
    _whole("NumberOfOpenCreditLinesAndLoans", "lines"),
    _whole("NumberOfTimes90DaysLate", "times in two years"),
    _whole("NumberRealEstateLoansOrLines", "loans"),
    _whole("NumberOfTime60-89DaysPastDueNotWorse", "times in two years"),
    _whole("NumberOfDependents", "people", mutability="none"),
)
