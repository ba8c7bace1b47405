"""A user's table as a data set."""

import numpy as np
import pandas as pd
import pytest

from counterfactual_training.datasets.frames import frame_dataset
from counterfactual_training.errors import InputError
from counterfactual_training.tables.columns.schema import Schema


@pytest.fixture
def people():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"age": rng.integers(18, 80, 60), "job": rng.choice(["a", "b", "c"], 60)}
    )
    return frame, np.where(frame["age"] > 50, "yes", "no")


def test_rows_are_encoded_by_the_training_rows_and_rules_become_constraints(people):
    frame, labels = people
    schema = Schema.infer(frame, mutability={"age": "increase"})
    data = frame_dataset(
        "people",
        frame[:40],
        labels[:40],
        frame[40:].reset_index(drop=True),
        labels[40:],
        schema,
    )
    assert (
        data.class_names == ("no", "yes")
        and data.x_train.shape == (40, 4)
        and data.x_test.shape == (20, 4)
    )
    assert float(data.x_train[:, 0].mean()) == pytest.approx(0, abs=1e-5)
    assert (data.y_train.numpy() == (labels[:40] == "yes")).all()
    column = list(data.feature_names).index("age")
    assert bool(data.constraints.may_increase[column]) and not bool(
        data.constraints.may_decrease[column]
    )
    low, high = (
        float(bound[column])
        for bound in (data.constraints.domain.lower, data.constraints.domain.upper)
    )
    assert (low, high) == pytest.approx(
        (float(data.x_train[:, column].min()), float(data.x_train[:, column].max()))
    )
    pd.testing.assert_frame_equal(
        data.encoder.inverse_transform(data.x_test.numpy()), data.frame_test, check_dtype=False
    )


def test_a_single_class_and_classes_that_only_tests_have_are_refused(people):
    frame, labels = people
    with pytest.raises(InputError, match="two classes"):
        frame_dataset("people", frame[:40], ["no"] * 40, frame[40:], ["no"] * 20)
    with pytest.raises(InputError, match="maybe"):
        frame_dataset("people", frame[:40], labels[:40], frame[40:], ["maybe"] * 20)
