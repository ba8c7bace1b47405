"""Sentences about columns of many digits: what they say is what was checked."""

import re

import numpy as np
import pandas as pd
import pytest

import counterfactual_training as ct
from covering import repeats

NUMBER = r"(-?[\d,]*\.?\d+)"
NAMES = ["alpha", "beta", "gamma"]


def measured(rows: int = 300, dtype: str = "float64") -> tuple[pd.DataFrame, pd.Series]:
    """Columns that no two digits suffice for: over four powers of ten, and within a thousandth."""
    rng = np.random.default_rng(0)
    columns = [rng.normal(size=rows), rng.lognormal(8, 2, rows), rng.uniform(-1e-3, 1e-3, rows)]
    frame = pd.DataFrame(dict(zip(NAMES, columns, strict=True)))
    score = 2 * frame["alpha"] + np.log(frame["beta"]) + 2000 * frame["gamma"]
    return frame.astype(dtype), score.rename("score")


def as_read(rows: pd.DataFrame, sentences: list[str]) -> tuple[pd.DataFrame, list[str]]:
    """The rows with the changes that sentences name, and the numbers in them."""
    read, numbers = rows.copy(), []
    for i, sentence in enumerate(sentences):
        for name in NAMES:
            if found := re.search(rf"{name} {NUMBER} (?:higher|lower) \(from {NUMBER} to {NUMBER}\)", sentence):
                numbers.append(found[3].replace(",", ""))
                read.iloc[i, read.columns.get_loc(name)] = np.dtype(rows.dtypes[name]).type(numbers[-1])
    return read, numbers


@pytest.fixture(scope="module")
def regressor() -> ct.CounterfactualRegressor:
    return ct.CounterfactualRegressor(epochs=40, random_state=0, mutability={}).fit(*measured())


@pytest.mark.parametrize("target", [(8.0, 8.02), *repeats((None, 7.0), (8.0, 8.2))])
def test_a_regressor_predicts_what_a_sentence_says(regressor, target):
    rows = measured()[0].head(60)
    told = regressor.explain(rows, target=target)
    read, numbers = as_read(rows, told.changes())
    assert len(numbers) > 30 and told.answered.mean() > 0.9
    pd.testing.assert_frame_equal(read, told.frame, check_exact=True)
    low, high = (side if edge is None else edge for edge, side in zip(target, (-np.inf, np.inf), strict=True))
    after = regressor.predict(read)[told.answered]
    assert ((after >= low) & (after <= high)).all()
    # Few digits, unless the interval needs more.
    assert np.median([len(number.strip("-").replace(".", "").lstrip("0")) for number in numbers]) <= 4


@pytest.mark.parametrize("dtype", ["float32", *repeats("float64")])
@pytest.mark.parametrize("options", [{"n_options": 2}, *repeats({}, {"confidence": 0.8})])
def test_a_classifier_decides_as_a_sentence_says(dtype, options):
    frame, score = measured(dtype=dtype)
    model = ct.CounterfactualClassifier(epochs=15, learning_rate=0.02, random_state=0, mutability={})
    model.fit(frame, np.where(score > 8, "high", "low"))
    told = model.explain(frame.head(40), **options)
    read, numbers = as_read(told.original, told.changes())
    pd.testing.assert_frame_equal(read, told.frame, check_exact=True)
    np.testing.assert_array_equal(model.predict(read), told.prediction)
    # In single precision, a number of few digits may come back from the model as 0.46699998.
    assert np.median([len(number.strip("-").replace(".", "").lstrip("0")) for number in numbers]) <= 5
    if "n_options" in options:
        assert told.summary.groupby(level=0)["cost"].apply(lambda cost: cost.is_monotonic_increasing).all()


def test_rounding_stays_within_the_rules(regressor):
    rows = measured()[0].head(60)
    # Bounds of more digits than a sentence would name.
    domain, most = {"beta": (1234.5678, 4321.8765)}, {"alpha": 1.23456789}
    told = regressor.explain(rows, target=(8.0, 8.2), domain=domain, max_change=most)
    # Whoever is outside may stay there.
    beta = told.frame["beta"][told.changed["beta"] & rows["beta"].between(*domain["beta"])]
    assert len(beta) and beta.between(*domain["beta"]).all()
    assert ((told.frame["alpha"] - rows["alpha"]).abs() <= most["alpha"] * (1 + 1e-9)).all()
    assert told.changed["alpha"].any()
