"""Files that somebody altered, with a checksum that fits: refused when they are loaded, or good
enough to use.
"""

import copy
import random
import warnings

import numpy as np
import pandas as pd
import pytest

from counterfactual_training.errors import CounterfactualTrainingError, FileError
from counterfactual_training.persistence import load_file
from counterfactual_training.tables.estimators import file, value_file
from counterfactual_training.tables.estimators.classifier import CounterfactualClassifier
from counterfactual_training.tables.estimators.file import Origin
from counterfactual_training.tables.estimators.regressor import CounterfactualRegressor

DELETE = object()
REPLACEMENTS = (
    DELETE,
    None,
    "text",
    float("nan"),
    [],
    ["a", 1],
    {},
    1e300,
    -1,
    0,
    True,
    [float("inf"), -1.0],
)
SETTINGS = {
    "model": "linear",
    "epochs": 1,
    "random_state": 0,
    "progress": False,
    "missing": "impute",
}
SCHEMA = {
    "late": {"special": [-9], "domain": (0, 90), "mutability": "decrease"},
    "grade": {"kind": "ordinal", "categories": ["C", "B", "A"], "max_change": 1},
    "job": {"forbidden": [("cook", "clerk")], "unit": "jobs"},
    "limit": {"step": 0.5},
}


def people(n=60):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "late": np.where(rng.random(n) < 0.2, -9, rng.integers(0, 60, n)),
            "limit": rng.normal(5, 2, n).round(1),
            "few": rng.choice([0.5, 1.5, 4.0], n),
            "grade": rng.choice(["C", "B", "A"], n),
            "job": pd.Categorical(
                rng.choice(["clerk", "cook"], n), categories=["clerk", "cook", "nurse"]
            ),
            "owner": rng.random(n) > 0.5,
        }
    )
    frame.loc[:3, "limit"] = np.nan
    return frame, np.where(frame["limit"].fillna(5) + frame["owner"] > 5.5, "yes", "no")


def save_both(tmp_path_factory):
    folder = tmp_path_factory.mktemp("forged")
    frame, y = people()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        classifier = CounterfactualClassifier(**SETTINGS, schema=SCHEMA, gate="density").fit(
            frame, y
        )
        classifier.origin_ = Origin("granted", "yes", {}, np.arange(3), np.arange(2))
        numbers = frame["limit"].fillna(5) + 0.1 * np.arange(len(frame))
        regressor = CounterfactualRegressor(**SETTINGS, schema=SCHEMA, gate="none").fit(
            frame, numbers
        )
    classifier.save(folder / "classifier")
    regressor.save(folder / "regressor")
    return folder


@pytest.fixture(scope="module")
def contents(tmp_path_factory):
    """By kind of model: its class, the module that reads it, its target, and the tensors and JSON
    of its file.
    """
    folder = save_both(tmp_path_factory)
    told = {
        "classifier": (CounterfactualClassifier, file, "yes"),
        "regressor": (CounterfactualRegressor, value_file, (None, 6.0)),
    }
    return {
        kind: (*parts, load_file(folder / kind, f"counterfactual {kind}"))
        for kind, parts in told.items()
    }


def places(content, path=()):
    """The way to every entry of nested dicts and lists, however deep."""
    if isinstance(content, dict):
        entries = list(content.items())
    elif isinstance(content, list):
        entries = list(enumerate(content[:3]))
    else:
        entries = []
    found = []
    for key, value in entries:
        found += [(*path, key), *places(value, (*path, key))]
    return found


def forge(content, path, value):
    forged = copy.deepcopy(content)
    place = forged
    for key in path[:-1]:
        place = place[key]
    if value is DELETE:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return forged


def outcome(kind, contents, path, value, monkeypatch, asks):
    """What becomes of a forged file: ``"refused"``, ``"used"``, or the raw error; with ``asks``,
    also of advice.
    """
    cls, module, target, (tensors, content) = contents[kind]
    forged = forge(content, path, value)
    monkeypatch.setattr(module, "load_file", lambda *given: (dict(tensors), forged))
    rows = people()[0].iloc[[0, 40]]
    try:
        model = cls.load("forged")
    except FileError:
        return "refused"
    except Exception as error:  # whatever it is, it is ours to prevent
        return f"load: {path} = {value!r}: {type(error).__name__}: {error}"
    try:
        model.predict(rows)
        if asks:
            model.explain(rows, target, max_steps=2, lock=["late"])
    except CounterfactualTrainingError:
        return "used"
    except Exception as error:
        return f"use: {path} = {value!r}: {type(error).__name__}: {error}"
    return "used"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("number", "asks"), [(40, False), pytest.param(150, True, marks=pytest.mark.check)]
)
@pytest.mark.parametrize("kind", ["classifier", "regressor"])
def test_forged_files_are_refused_or_do_no_harm(contents, kind, number, asks, monkeypatch):
    content = contents[kind][3][1]
    # The columns of the encoder have most fields, and none of them is checked by anybody else.
    inner = [path for path in places(content) if path[:2] == ("encoder", "columns")]
    rng = random.Random(0)  # noqa: S311 - not security-sensitive
    paths = [*rng.choices(inner, k=number), *rng.choices(places(content), k=number // 2)]
    forgeries = [(path, rng.choice(REPLACEMENTS)) for path in paths]
    outcomes = [outcome(kind, contents, *forgery, monkeypatch, asks) for forgery in forgeries]
    assert [text for text in outcomes if text not in ("refused", "used")] == []
    assert outcomes.count("refused") > len(outcomes) / 3


@pytest.mark.parametrize("kind", ["classifier", "regressor"])
@pytest.mark.parametrize("value", ["text", None, [], {}])
def test_what_blanks_are_filled_with_must_be_usable(contents, kind, value, monkeypatch):
    """These passed for sound files, and ended in raw errors when rows were predicted."""
    fills = [path for path in places(contents[kind][3][1]) if path[-1] == "fill"]
    assert len(fills) > 3
    for path in fills:
        assert outcome(kind, contents, path, value, monkeypatch, asks=False) == "refused"
