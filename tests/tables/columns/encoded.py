"""What the tests of encoders share."""

from __future__ import annotations

import warnings
from typing import Any

import pandas as pd
from pandas.testing import assert_frame_equal

from counterfactual_training.tables.columns.encode import Encoder
from counterfactual_training.tables.columns.schema import Schema


def same(a: pd.DataFrame, b: pd.DataFrame) -> None:
    assert_frame_equal(a, b, check_exact=True, check_column_type="exact")


def fitted(frame: pd.DataFrame, schema: Schema | None = None, **settings: Any) -> Encoder:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # generated columns are often constant
        return Encoder(schema, **settings).fit(frame)
