"""Rows are recognised by their content, however a file writes them."""

import copy
import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

from counterfactual_training import CounterfactualClassifier, loan
from counterfactual_training.tables.estimators.file import Origin, row_marks


def table(n: int = 60) -> tuple[pd.DataFrame, pd.Series]:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"age": np.arange(n), "income": rng.normal(size=n), "job": rng.choice(["a", "b"], n)}
    )
    return frame, pd.Series(rng.choice(["yes", "no"], n))


def test_marks_tell_rows_apart_and_follow_them():
    frame, y = table()
    marks = row_marks(frame, y)
    assert len(np.unique(marks)) == len(frame)
    order = np.random.default_rng(1).permutation(len(frame))
    assert (row_marks(frame.iloc[order], y.iloc[order]) == marks[order]).all()
    changed = frame.assign(income=frame["income"] + 1e-9)
    assert not (row_marks(changed, y) == marks).any()
    assert not (row_marks(frame, y.map({"yes": "no", "no": "yes"})) == marks).any()


def test_marks_do_not_depend_on_how_a_column_is_stored():
    numbers = pd.Series([1, 2, 0])
    stored = [
        numbers,
        numbers.astype(float),
        numbers.astype(str),
        numbers.astype(object),
        pd.Series([1.0, 2.0, -0.0]),
    ]
    marks = [row_marks(pd.DataFrame({"a": column}), pd.Series(["x"] * 3)) for column in stored]
    assert all((other == marks[0]).all() for other in marks)
    blank, text = pd.Series([None, "u"], dtype=object), pd.Series([np.nan, "u"], dtype="str")
    same = [
        row_marks(pd.DataFrame({"a": column}), pd.Series([True, False]))
        for column in (blank, text)
    ]
    assert (same[0] == same[1]).all()


def test_held_out_rows_are_found_again_among_identical_ones():
    marks = np.array([7, 7, 7, 8, 9])
    origin = Origin("y", trained=np.array([7, 7, 8]), held_out=np.array([7, 9]))
    assert origin.seen(marks).sum() == 3 and origin.held(marks).sum() == 2
    assert origin.seen(np.array([8, 5])).tolist() == [True, False]
    assert origin.held(np.array([8, 5])).tolist() == [
        False,
        False,
    ]  # never seen, but not held out either


@pytest.fixture(scope="module")
def sample():
    return loan(60)


@pytest.fixture
def classifier(sample):
    """A classifier that knows its rows."""
    simple = {
        "model": "linear",
        "gate": "none",
        "epochs": 1,
        "random_state": 0,
        "mutability": {},
    }
    classifier = CounterfactualClassifier(**simple).fit(sample.frame, sample.labels)
    assert classifier.origin_ is None
    marks = row_marks(sample.frame, sample.labels)
    classifier.origin_ = Origin(
        "decision", "loan granted", {"na": ["?"]}, marks[:40], marks[40:]
    )
    return classifier


def same(origin, other):
    facts = [
        (one.target, one.positive, one.reading, one.trained.tolist(), one.held_out.tolist())
        for one in (origin, other)
    ]
    return facts[0] == facts[1]


def test_a_file_remembers_its_rows_however_often_it_is_written(classifier, sample, tmp_path):
    classifier.save(tmp_path / "first")
    loaded = CounterfactualClassifier.load(tmp_path / "first")
    assert same(loaded.origin_, classifier.origin_)
    assert (loaded.predict(sample.frame) == classifier.predict(sample.frame)).all()
    loaded.save(tmp_path / "second")
    assert same(CounterfactualClassifier.load(tmp_path / "second").origin_, classifier.origin_)


def test_copies_and_new_rules_keep_it_and_another_training_drops_it(
    classifier, sample, tmp_path
):
    origin = classifier.origin_
    assert same(pickle.loads(pickle.dumps(classifier)).origin_, origin)  # noqa: S301 - our own
    assert same(copy.deepcopy(classifier).origin_, origin)
    classifier.set_params(mutability={"age": "none"}).save(tmp_path / "ruled")
    assert same(CounterfactualClassifier.load(tmp_path / "ruled").origin_, origin)
    assert not hasattr(clone(classifier), "origin_")
    classifier.partial_fit(sample.frame, sample.labels)
    assert classifier.origin_ is None
    classifier.origin_ = origin
    classifier.fit(sample.frame, sample.labels).save(tmp_path / "again")
    assert (
        classifier.origin_ is None
        and CounterfactualClassifier.load(tmp_path / "again").origin_ is None
    )


@pytest.mark.parametrize("n", [200_000])
def test_marks_of_many_rows_are_different(n):
    marks = row_marks(
        pd.DataFrame({"a": np.arange(n) % 451, "b": np.arange(n) // 451}),
        pd.Series(np.zeros(n)),
    )
    assert len(np.unique(marks)) == n
