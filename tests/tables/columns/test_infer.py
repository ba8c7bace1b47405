"""Dates and times are refused with the line that turns them into numbers, and the line works."""

import datetime

import pandas as pd
import pytest

from counterfactual_training.errors import InputError
from counterfactual_training.tables.columns.schema import Schema

DAYS = pd.Series(pd.date_range("2020-01-01", periods=60))
COLUMNS = {
    "datetime": DAYS,
    "with a zone": DAYS.dt.tz_localize("Europe/Berlin"),
    "date objects": DAYS.dt.date,
    "text": DAYS.astype(str),
    "period": DAYS.dt.to_period("D"),
    "timedelta": DAYS - DAYS[0],
    "timedelta objects": pd.Series(
        [datetime.timedelta(days=i) for i in range(60)], dtype=object
    ),
    "day first": pd.Series(pd.date_range("2020-01-01", periods=60).strftime("%d.%m.%Y")),
    "month first": pd.Series(pd.date_range("2020-01-01", periods=60).strftime("%m/%d/%Y")),
    "categories": pd.Series(
        pd.date_range("2020-01-01", periods=60).strftime("%Y-%m-%d")
    ).astype("category"),
    "time objects": pd.Series([datetime.time(3, i) for i in range(60)]),
}


def test_a_few_dates_are_dates_too_and_names_with_points_are_not():
    dates = pd.DataFrame({"when": ["05.01.2020", "06.01.2020"] * 20})
    with pytest.raises(InputError, match="holds dates as text"):
        Schema.infer(dates)
    assert Schema.infer(dates, {"when": {"kind": "categorical"}})["when"].kind == "categorical"
    assert (
        Schema.infer(pd.DataFrame({"grade": ["1.2", "1.3/2", "05.01"] * 20}))["grade"].kind
        == "categorical"
    )


@pytest.mark.parametrize("values", COLUMNS.values(), ids=COLUMNS)
def test_dates_are_refused_with_the_line_to_write(values):
    frame = pd.DataFrame({"a": range(60), "when": values})
    with pytest.raises(
        InputError, match=r"'when' .*no model takes.*turn it into numbers: `frame\["
    ) as refused:
        Schema.infer(frame)
    line = str(refused.value).split("`")[1]
    exec(line, {"frame": frame, "pd": pd})  # noqa: S102 - the advice itself is tested
    assert Schema.infer(frame)["when"].kind in ("integer", "numeric")
    assert frame["when"].is_monotonic_increasing and frame["when"].nunique() == 60
