"""Dates and times are refused with the line that turns them into numbers, and the line works."""

import datetime

import pandas as pd
import pytest

from counterfactual_training.errors import InputError
from counterfactual_training.tabular.schema import Schema

DAYS = pd.Series(pd.date_range("2020-01-01", periods=60))
COLUMNS = {
    "datetime": DAYS,
    "with a zone": DAYS.dt.tz_localize("Europe/Berlin"),
    "date objects": DAYS.dt.date,
    "text": DAYS.astype(str),
    "period": DAYS.dt.to_period("D"),
    "timedelta": DAYS - DAYS[0],
    "timedelta objects": pd.Series([datetime.timedelta(days=i) for i in range(60)], dtype=object),
    "time objects": pd.Series([datetime.time(3, i) for i in range(60)]),
}


@pytest.mark.parametrize("values", COLUMNS.values(), ids=COLUMNS)
def test_dates_are_refused_with_the_line_to_write(values):
    frame = pd.DataFrame({"a": range(60), "when": values})
    with pytest.raises(InputError, match=r"'when' .*no model takes.*turn it into numbers: `frame\[") as refused:
        Schema.infer(frame)
    line = str(refused.value).split("`")[1]
    exec(line, {"frame": frame, "pd": pd})  # noqa: S102 - the advice itself is tested
    assert Schema.infer(frame)["when"].kind in ("integer", "numeric")
    assert frame["when"].is_monotonic_increasing and frame["when"].nunique() == 60
