"""A frame with a column of every kind, and its schema."""

from __future__ import annotations

import pandas as pd
import pytest

from counterfactual_training.tables.columns.schema import Schema

ORDER = ["none", "BSc", "MSc", "PhD"]


@pytest.fixture
def frame() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "age": [31, 47, 58, 22, 40],
            "income": [1200.5, 3400.0, 990.25, 0.0, 20.0],
            "degree": ["BSc", "none", "MSc", "PhD", "none"],
            "sex": ["f", "m", "m", "f", "m"],
            "owner": [True, False, True, True, False],
            "job": pd.Categorical(["a", "b", "c", "a", "b"]),
        },
        index=[10, 3, 7, 1, 2],
    )


@pytest.fixture
def schema(frame: pd.DataFrame) -> Schema:
    return Schema.infer(frame, {"degree": {"kind": "ordinal", "categories": ORDER}})
