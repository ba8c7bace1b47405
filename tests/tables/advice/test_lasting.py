"""Advice that witnesses accept: who steers, who reports, and what is promised."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import t

import counterfactual_training as ct
from counterfactual_training import defaults
from counterfactual_training.errors import InputError
from counterfactual_training.tables.advice import explains
from counterfactual_training.tables.advice.answer import explain_rows
from counterfactual_training.tables.advice.lasting import BARS, _Guide
from counterfactual_training.tables.advice.testimony import OtherModels, chance

PEOPLE = ct.loan(300)
RULES = {"mutability": {"age": "none"}, "gate": "none", "random_state": 0, "progress": False}
GRANTED = "loan granted"


@pytest.fixture(scope="module")
def fitted():
    return ct.CounterfactualClassifier("conventional", **RULES).fit(PEOPLE.frame, PEOPLE.labels)


@pytest.fixture
def classifier(fitted):
    """Tests give it witnesses of their own."""
    fitted.witnesses_ = None
    return fitted


@pytest.fixture(scope="module")
def denied(fitted):
    rows = PEOPLE.frame[fitted.predict(PEOPLE.frame) == "loan withheld"]
    return rows[fitted.explain(rows, GRANTED).status == "converged"].head(8)


class Below:
    """Grants whoever owes less than a limit, by so much more surely the less they owe."""

    classes_ = np.array([GRANTED, "loan withheld"])

    def __init__(self, limit, column="debt"):
        self.limit = limit
        self.column = column

    def predict_proba(self, rows):
        odds = (self.limit - rows[self.column].to_numpy()) / 2
        granted = 1 / (1 + np.exp(-odds))
        return np.stack([granted, 1 - granted], 1)


def panel(models):
    return OtherModels(models, Below.classes_, arrays=False)


def test_more_is_asked_for_until_those_that_steer_agree(classifier, denied):
    # What is just enough for the classifier is not for them, and those that report never accept.
    needs = classifier.explain(denied, GRANTED).frame["debt"].median()
    steer = [Below(needs - shift) for shift in (0.1, 0.3, 0.5)]
    never = [Below(-100.0), Below(-101.0), Below(-102.0)]
    classifier.witnesses_ = panel([*steer, *never])
    advice = classifier.explain(denied, GRANTED, lasting=0.9)
    told = advice.lasting
    assert (told.differs & told.reached).any() and not told.differs.all()
    assert (
        chance(panel(steer).log_odds(advice.frame, advice.target))[told.reached] >= 0.9
    ).all()
    assert (advice.cost >= told.just_enough.cost - 1e-9).all()
    assert (told.holds == 0).all() and told.num_witnesses == 3
    assert (told.probability < 0.1).all()


def test_where_witnesses_accept_what_is_just_enough_nothing_more_is_asked(classifier, denied):
    plain = classifier.explain(denied, GRANTED)
    most = plain.frame["debt"].max()
    classifier.witnesses_ = panel([Below(most + 20 + more) for more in (0, 1, 3, 0, 1, 3)])
    advice = classifier.explain(denied, GRANTED, lasting=0.9)
    assert advice.lasting.reached.all() and not advice.lasting.differs.any()
    pd.testing.assert_frame_equal(advice.frame, plain.frame)
    pd.testing.assert_frame_equal(advice.changed, plain.changed)
    sentence = plain.changes()[0] + " It holds in 3 of 3 other models that had no part in it"
    assert advice.changes()[0].startswith(sentence) and "Just enough" not in advice.changes()[0]


def test_where_nothing_satisfies_them_the_best_is_said_to_fall_short(classifier, denied):
    never = panel([Below(limit) for limit in (-100.0, -101.0, -102.0, -103.0)])
    classifier.witnesses_ = never
    advice = classifier.explain(denied, GRANTED, lasting=0.9)
    assert not advice.lasting.reached.any()
    assert len(advice) == len(denied) == len(advice.changes())
    assert list(advice.frame.index) == list(denied.index) == list(advice.summary.index)
    # They agreed most to the last bar that is within reach.
    steer = never.halves()[0]
    best = np.full(len(denied), -1.0)
    for bar in (None, *BARS):
        asked = classifier.explain(denied, GRANTED, confidence=bar, lasting=0)
        agreed = chance(steer.log_odds(asked.frame, asked.target))
        best = np.where(asked.converged, np.maximum(best, agreed), best)
    agreed = chance(steer.log_odds(advice.frame, advice.target))
    np.testing.assert_allclose(agreed, best, rtol=1e-9)


def test_few_searches_find_about_the_least_that_suffices(classifier, denied, monkeypatch):
    needs = classifier.explain(denied, GRANTED).frame["debt"].median()
    steer = [Below(needs - shift) for shift in (0.1, 0.3, 0.5)]
    classifier.witnesses_ = panel([*steer, *steer])
    asked = []

    def counted(finder, some, *rest):
        asked.append(len(some))
        return explain_rows(finder, some, *rest)

    monkeypatch.setattr(explains, "explain_rows", counted)
    advice = classifier.explain(denied, GRANTED, lasting=0.9)
    assert sum(asked) <= 3.5 * len(denied), "and eight bars there are"
    least = np.full(len(denied), np.inf)
    for bar in BARS:
        scanned = classifier.explain(denied, GRANTED, confidence=bar, lasting=0)
        agreed = chance(panel(steer).log_odds(scanned.frame, scanned.target))
        suffices = scanned.converged & (agreed >= 0.9)
        least = np.where(suffices, np.minimum(least, scanned.cost), least)
    np.testing.assert_array_equal(advice.lasting.reached, np.isfinite(least))
    reached = advice.lasting.reached
    assert reached.any()
    assert advice.cost[reached].mean() <= 1.1 * least[reached].mean()


def test_what_witnesses_gave_tells_what_to_ask_next():
    guide = _Guide(0.0)
    # 0.5, and 1.6 short: with a slope of 1 and a little less, 0.8 is the next bar.
    guide.too_little(None, 0.5, -1.6)
    assert guide.next_bar() == 0.9
    guide.enough(0.9, 0.9, 2.0, True)
    # From -1.6 to 2 on the way from 0 to 2.2 in log-odds: 0 is at about 0.98, which is 0.73.
    assert guide.next_bar() == 0.7
    guide.too_little(0.7, 0.7, -0.1)
    assert guide.next_bar() == 0.8
    guide.too_much(0.8)
    assert guide.next_bar() == 0


def test_out_of_reach_less_is_asked_for():
    guide = _Guide(0.5)
    guide.too_little(None, 0.55, -9.0)
    assert guide.next_bar() == BARS[-1]
    guide.too_much(BARS[-1])
    middle = guide.next_bar()
    assert 0.6 < middle < 0.95
    guide.too_much(middle)
    assert 0.55 < guide.next_bar() < middle


def test_both_answers_are_named_with_their_costs(classifier, denied):
    needs = classifier.explain(denied, GRANTED).frame["debt"].median()
    classifier.witnesses_ = panel([Below(needs - shift) for shift in (0.1, 0.3, 0.5, 0.2)])
    advice = classifier.explain(denied, GRANTED, lasting=0.9)
    i = int(np.flatnonzero(advice.lasting.differs)[0])
    enough = advice.lasting.just_enough
    sentence = advice.sentence(i)
    assert f"at cost {enough.cost[i]:.2f} instead of {advice.cost[i]:.2f}" in sentence
    assert enough.sentence(i)[1:] in sentence and " × " not in sentence
    line = advice.summary.iloc[i]
    assert line["just_enough_cost"] == enough.cost[i] < line["cost"]
    assert line["just_enough_holds"] <= line["holds"]
    assert line["just_enough_probability"] < line["probability"]
    table = str(advice)
    assert "holds in" in table and f"{line['holds']} of 2" in table
    record = advice.records()[i]
    assert record["holds"] == line["holds"] and record["sentence"].endswith(sentence[1:])


def test_witnesses_are_asked_unless_the_question_does_without(classifier, denied):
    plain = classifier.explain(denied, GRANTED)
    assert plain.lasting is None
    assert classifier.explain(denied, GRANTED, lasting=0).lasting is None
    needs = plain.frame["debt"].median()
    classifier.witnesses_ = panel([Below(needs - shift) for shift in (0.1, 0.3, 0.5, 0.2)])
    usual = classifier.explain(denied, GRANTED)
    stated = classifier.explain(denied, GRANTED, lasting=defaults.LASTING)
    assert usual.lasting.share == defaults.LASTING and usual.lasting.differs.any()
    assert usual.changes() == stated.changes()
    pd.testing.assert_frame_equal(usual.summary, stated.summary)
    enough = classifier.explain(denied, GRANTED, lasting=0)
    pd.testing.assert_frame_equal(enough.frame, plain.frame)
    # The same ones report, of the same answers.
    beside = usual.lasting.just_enough.lasting
    np.testing.assert_array_equal(enough.lasting.holds, beside.holds)
    np.testing.assert_allclose(enough.lasting.probability, beside.probability)
    assert enough.lasting.share == 0 and enough.lasting.just_enough is None
    assert enough.lasting.reached.all() and not beside.reached.all()
    assert enough.changes()[0].startswith(plain.changes()[0] + " It holds in")
    assert "Just enough" not in " ".join(enough.changes())
    assert list(enough.summary.columns)[-3:] == ["holds", "probability", "reached"]
    assert "holds in" in str(enough) and "just enough" not in str(enough)


def test_a_generator_is_asked_for_advice_that_lasts_too(classifier, denied):
    needs = classifier.explain(denied, GRANTED).frame["debt"].median()
    classifier.witnesses_ = panel([Below(needs - shift) for shift in (0.1, 0.3, 0.5, 0.2)])
    for generator in ("generic", ct.line(decision_threshold=0.6)):
        advice = classifier.explain(denied, GRANTED, generator=generator)
        told = advice.lasting
        assert (told.differs & told.reached).any()
        assert told.reached.sum() > told.just_enough.lasting.reached.sum()


def test_one_more_witness_is_predicted_by_students_t():
    rows = pd.DataFrame({"debt": [4.0, 8.0]})
    limits = np.array([5.0, 7.0, 12.0])
    granted = np.full(2, GRANTED)
    told = panel([Below(limit) for limit in limits]).log_odds(rows, granted)
    odds = (limits[:, None] - rows["debt"].to_numpy()) / 2
    np.testing.assert_allclose(told, odds, rtol=1e-6)
    expected = t.cdf(odds.mean(0) / (odds.std(0, ddof=1) * np.sqrt(4 / 3)), 2)
    np.testing.assert_allclose(chance(told), expected, rtol=1e-6)
    alike = panel([Below(5.0)] * 3).log_odds(rows, granted)
    np.testing.assert_array_equal(chance(alike), [1.0, 0.0])


def test_rules_and_targets_of_each_row_go_with_it(classifier, denied):
    rows = denied.head(4)
    needs = classifier.explain(rows, GRANTED).frame["debt"].min()
    classifier.witnesses_ = panel([Below(needs - shift) for shift in (0.1, 0.3, 0.5, 0.2)])
    limits = [{"debt": 100}, {"debt": 100}, {"debt": 0.5}, {"debt": 100}]
    advice = classifier.explain(rows, [GRANTED] * 4, max_change=limits, lasting=0.9)
    change = (advice.frame["debt"] - rows["debt"]).abs()
    assert change.iloc[2] <= 0.5 and (change.drop(change.index[2]) > 0.5).all()
    assert not advice.lasting.reached[2] and advice.lasting.reached.any()


def test_who_has_the_decision_changes_nothing_and_is_told_whether_it_lasts(classifier):
    granted = PEOPLE.frame[classifier.predict(PEOPLE.frame) == GRANTED].head(2)
    classifier.witnesses_ = panel([Below(-100.0 - i) for i in range(4)])
    advice = classifier.explain(granted, GRANTED, lasting=0.9)
    assert (advice.status == "already_there").all() and not advice.lasting.reached.any()
    pd.testing.assert_frame_equal(advice.frame, granted)
    assert "It holds in 0 of 2" in advice.changes()[0]


def test_a_confidence_is_the_least_that_is_asked_for(classifier, denied):
    most = classifier.explain(denied, GRANTED).frame["debt"].max()
    classifier.witnesses_ = panel([Below(most + 20 + more) for more in (0, 1, 3, 2)])
    advice = classifier.explain(denied, GRANTED, confidence=0.75, lasting=0.9)
    plain = classifier.explain(denied, GRANTED, confidence=0.75, lasting=0)
    pd.testing.assert_frame_equal(advice.frame, plain.frame)
    assert advice.asked == 0.75


# ---- several options -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two_ways():
    """Income up or debt down."""
    rng = np.random.default_rng(0)
    rows = pd.DataFrame({"income": rng.uniform(0, 10, 300), "debt": rng.uniform(0, 10, 300)})
    labels = np.where(rows["income"] - rows["debt"] > 0, GRANTED, "loan withheld")
    fitted = ct.CounterfactualClassifier(
        "conventional", gate="none", random_state=0, progress=False
    ).fit(rows, labels)
    return fitted, rows[fitted.predict(rows) == "loan withheld"].head(5)


class Balance(Below):
    """Grants whoever earns so much more than they owe."""

    def predict_proba(self, rows):
        odds = 2 * (rows["income"] - rows["debt"] - self.limit).to_numpy()
        granted = 1 / (1 + np.exp(-odds))
        return np.stack([granted, 1 - granted], 1)


def test_every_option_lasts_and_says_so(two_ways):
    fitted, rows = two_ways
    fitted.witnesses_ = panel(
        [Balance(limit) for limit in (0.02, 0.04, 0.06, 0.02, 0.04, 0.06)]
    )
    advice = fitted.explain(rows, GRANTED, n_options=3, lasting=0.9)
    plain = fitted.explain(rows, GRANTED, n_options=3, lasting=0)
    assert advice.several and list(advice.frame.index.names) == list(plain.frame.index.names)
    told = advice.lasting
    several = advice.frame.groupby(level=0).size()
    assert (several > 1).any() and several.max() <= 3
    lasts = told.reached
    assert lasts.mean() > 0.5
    balance = advice.frame["income"] - advice.frame["debt"]
    assert (balance[lasts] > 0.04).all(), "which the model alone does not ask for"
    for _, own in advice.summary.groupby(level=0):
        assert own["cost"].is_monotonic_increasing
        assert own["just_enough_cost"].nunique() == 1
    for _, own in advice.changed.groupby(level=0):
        sets = {tuple(line) for line in own.to_numpy()}
        assert len(sets) == len(own)
    # Only beside the first option stands what would be just enough.
    first = advice.frame.index.get_level_values(-1) == 1
    assert told.differs[first].any() and not told.differs[~first].any()
    assert all("It holds in" in sentence for sentence in advice.changes())
    enough = told.just_enough
    pd.testing.assert_frame_equal(enough.frame, plain.option(1))
    counts = [note for note in advice.notes if "options" in note]
    assert len(counts) == (several < 3).sum()


def test_options_of_people_who_are_not_numbered_from_zero(two_ways):
    fitted, rows = two_ways
    fitted.witnesses_ = panel([Balance(limit) for limit in (0.02, 0.04, 0.06, 0.04)])
    named = rows.set_axis(list("edcba"))
    advice = fitted.explain(named, GRANTED, n_options=2, lasting=0.9)
    assert list(advice.frame.index.get_level_values(0).unique()) == list("edcba")
    np.testing.assert_array_equal(
        advice.frame, fitted.explain(rows, GRANTED, n_options=2, lasting=0.9).frame
    )


def test_plausible_options_come_first(denied):
    gated = ct.CounterfactualClassifier("conventional", **RULES | {"gate": "density"})
    gated.fit(PEOPLE.frame, PEOPLE.labels)
    gated.witnesses_ = panel([Below(60.0 + more) for more in (0, 1, 3, 2)])
    advice = gated.explain(denied, GRANTED, n_options=3, lasting=0.9)
    plausible = advice.status == "converged"
    assert plausible.any()
    assert (advice.lasting.reached <= plausible).all(), (
        "what no real row looks like is not advised"
    )


# ---- any model, and who cannot be asked ----------------------------------------------------------


def test_it_works_around_any_model(denied):
    others = [Below(limit) for limit in (18.0, 19.0, 20.0, 21.0, 18.5, 20.5)]
    explainer = ct.Explainer(
        Below(20.0),
        PEOPLE.frame,
        PEOPLE.labels,
        mutability={"age": "none"},
        witnesses=others,
    )
    advice = explainer.explain(denied.head(2), GRANTED, lasting=0.9)
    enough = advice.lasting.just_enough.lasting
    assert (advice.lasting.probability > enough.probability).all()
    assert "other models that had no part in it" in advice.changes()[0]


def test_torch_modules_testify_about_a_torch_module(fitted, denied):
    networks = [
        ct.CounterfactualClassifier(
            "conventional", **RULES | {"random_state": seed, "epochs": 5}
        )
        .fit(PEOPLE.frame, PEOPLE.labels)
        .model_
        for seed in range(4)
    ]
    explainer = ct.Explainer(
        fitted.model_,
        PEOPLE.frame,
        PEOPLE.labels,
        encoder=fitted.encoder_,
        witnesses=networks,
    )
    rows = denied.head(2)
    told = explainer.explain(rows, GRANTED, lasting=0.6).lasting
    assert told.num_witnesses == 2 and told.kind == "other models"


def test_witnesses_may_list_their_classes_in_another_order(denied):
    class Reversed(Below):
        classes_ = Below.classes_[::-1]

        def predict_proba(self, rows):
            return super().predict_proba(rows)[:, ::-1]

    granted = np.full(len(denied), GRANTED)
    np.testing.assert_array_equal(
        panel([Reversed(20.0)]).log_odds(denied, granted),
        panel([Below(20.0)]).log_odds(denied, granted),
    )


def test_nobody_is_told_nothing(classifier):
    classifier.witnesses_ = panel([Below(float(limit)) for limit in range(4)])
    for num_options in (1, 2):
        advice = classifier.explain(
            PEOPLE.frame.head(0), GRANTED, lasting=0.9, n_options=num_options
        )
        assert len(advice) == 0 and advice.changes() == [] and len(advice.summary) == 0


def test_frames_of_other_libraries_come_back(classifier, denied):
    polars = pytest.importorskip("polars")
    classifier.witnesses_ = panel([Below(float(20 - i)) for i in range(4)])
    advice = classifier.explain(polars.from_pandas(denied), GRANTED, lasting=0.9)
    assert isinstance(advice.frame, polars.DataFrame) and "holds" in advice.summary.columns
    assert advice.lasting.num_witnesses == 2


@pytest.mark.parametrize("share", [1, 1.0, -0.1, 90, "all", True, False])
def test_a_share_is_less_than_all(classifier, denied, share):
    classifier.witnesses_ = panel([Below(float(limit)) for limit in range(4)])
    with pytest.raises(
        InputError, match="lasting must be a share of witnesses from 0 to below 1"
    ):
        classifier.explain(denied, GRANTED, lasting=share)


def test_without_witnesses_it_says_what_to_do(classifier, denied):
    with pytest.raises(
        InputError, match=r"has none: fit some first, with add_witnesses\(X, y\)"
    ):
        classifier.explain(denied, GRANTED, lasting=0.9)
    explainer = ct.Explainer(Below(20.0), PEOPLE.frame, PEOPLE.labels)
    with pytest.raises(InputError, match="Explainer has none: pass some when it is made"):
        explainer.explain(denied, GRANTED, lasting=0.9)


@pytest.mark.parametrize(
    ("witnesses", "message"),
    [
        ([Below(1.0)] * 3, "At least 4 witnesses are needed.*got 3"),
        ([Below] * 4, "A witness is a fitted classifier with predict_proba, got Below"),
        (Below(1.0), "witnesses must be a list of fitted models"),
    ],
)
def test_bad_witnesses(witnesses, message):
    with pytest.raises(InputError, match=message):
        ct.Explainer(Below(20.0), PEOPLE.frame, PEOPLE.labels, witnesses=witnesses)


def test_a_witness_of_other_classes_is_refused():
    class Other(Below):
        classes_ = np.array(["yes", "no"])

    with pytest.raises(InputError, match="A witness knows the classes yes, no, and the model"):
        ct.Explainer(
            Below(20.0), PEOPLE.frame, PEOPLE.labels, witnesses=[Other(1.0), *[Below(1.0)] * 4]
        )
