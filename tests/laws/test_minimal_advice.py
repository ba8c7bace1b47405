"""No superfluous change: nothing in an answer can be undone, alone, with the target still
reached.
"""

import numpy as np
import pandas as pd
import pytest

import counterfactual_training as ct
from counterfactual_training.tables.advice.candidates import COLUMN
from covering import repeats

BAR = 0.5


def draw(seed, n=220):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "income": rng.gamma(3, 10, n).round(1),
            "debt": rng.gamma(2, 8, n).round(2),
            "loans": rng.integers(0, 7, n),
            "job": rng.choice(["clerk", "cook", "nurse", "pilot"], n),
            "owner": rng.random(n) > 0.5,
            "score": rng.normal(size=n).astype("float32"),
        }
    )
    good = (
        frame["income"] / 10
        - frame["debt"] / 6
        - frame["loans"] / 3
        + frame["owner"]
        + frame["score"]
    )
    good += frame["job"].map({"clerk": 0.0, "cook": -1.0, "nurse": 0.5, "pilot": 1.5})
    return frame, np.digitize(good, [0.0, 2.5])


def reached(classifier, frame, target):
    """What has to reach the bar: the target against its strongest rival, and the plausibility."""
    probability = classifier.predict_proba(frame)
    rows, place = np.arange(len(frame)), np.searchsorted(classifier.classes_, target)
    own = probability[rows, place]
    probability[rows, place] = -1
    chance = own / (own + probability.max(1))
    if classifier.gate_ is None:
        return chance
    finder = classifier._finder()
    return np.minimum(
        chance, finder.plausibility(classifier._encoded(frame)).numpy()[rows, place]
    )


@pytest.mark.parametrize("gate", ["none", *repeats("density")])
@pytest.mark.parametrize("seed", [0, *repeats(1)])
def test_no_change_can_be_undone_alone(seed, gate):
    frame, y = draw(seed)
    rules = {
        "mutability": {"debt": "decrease"},
        "random_state": seed,
        "epochs": 25,
        "gate": gate,
    }
    classifier = ct.CounterfactualClassifier(**rules).fit(frame, y)
    for options in (1, 2):
        told = classifier.explain(frame.head(80), n_options=options)
        done = np.flatnonzero(told.status == "converged")
        assert len(done) > 40
        after, before = told.frame.reset_index(drop=True), told.original.reset_index(drop=True)
        several = 0
        for name in frame:
            rows = done[told.changed[name].to_numpy()[done]]
            if not len(rows):
                continue
            undone = (
                after.iloc[rows]
                .assign(**{name: before[name].iloc[rows]})
                .astype(frame.dtypes.to_dict())
            )
            assert (reached(classifier, undone, told.target[rows]) < BAR + 1e-5).all()
            several += len(rows)
        assert several > len(done)  # some change more than one column


@pytest.mark.parametrize("seed", [0, *repeats(1)])
def test_no_single_column_would_do_at_a_lower_price(seed):
    """The price is the cost and a little for each column."""
    frame, y = draw(seed)
    classifier = ct.CounterfactualClassifier(random_state=seed, epochs=25, gate="none").fit(
        frame, y
    )
    told = classifier.explain(frame.head(60))
    many = np.flatnonzero((told.changed.to_numpy().sum(1) > 1) & (told.status == "converged"))
    assert len(many)
    price = told.cost[many] + COLUMN * told.changed.to_numpy().sum(1)[many]
    space = classifier.encoder_
    for name in frame:
        column = classifier.schema_[name]
        values = (
            np.unique(frame[name])
            if column.is_category
            else np.quantile(frame[name], np.linspace(0.01, 0.99, 30))
        )
        for value in values:
            alone = (
                told.original.iloc[many].assign(**{name: value}).astype(frame.dtypes.to_dict())
            )
            cost = np.abs(
                space.transform(alone) - space.transform(told.original.iloc[many])
            ).sum(1)
            # A value between those swept may barely suffice; a clear case must not be missed.
            clear = reached(classifier, alone, told.target[many]) >= 0.6
            assert (price[clear] <= cost[clear] + COLUMN + 1e-4).all()
