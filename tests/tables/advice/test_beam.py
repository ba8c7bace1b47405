"""Laws of the advice engine, on random tables with all kinds of rules."""

import copy
import itertools
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

import counterfactual_training as ct
from counterfactual_training.tables.advice.beam import TRIED, Beam
from counterfactual_training.tables.advice.candidates import COLUMN
from counterfactual_training.tables.columns.plan_judge import PlanJudge
from covering import repeats

PEOPLE = 40


def draw(seed, n=400):
    """A table of numbers, counts, amounts and categories, of a random length and with random
    effects.
    """
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "income": (rng.gamma(3, 1000, n)).round(-1),
            "debt": rng.gamma(2, 800, n).round(2),
            "loans": rng.integers(0, 6, n),
            "term": rng.choice([36, 60], n),
            "share": rng.beta(2, 3, n),
            "job": rng.choice(["clerk", "cook", "nurse"], n),
            "owner": rng.random(n) > 0.5,
        }
    )
    effects = rng.normal(size=7) * [1, 1, 0.7, 0.7, 0.7, 1, 0.7]
    numbers = frame.assign(
        job=frame["job"].map({"clerk": -1.0, "cook": 0.0, "nurse": 1.0})
    ).astype(float)
    standard = (numbers - numbers.mean()) / numbers.std()
    score = (
        standard.to_numpy() @ effects
        + 0.4 * standard["income"] * standard["share"]
        + rng.normal(size=n) / 2
    )
    return frame, np.digitize(score, [0.3])


@pytest.fixture(
    scope="module",
    params=[("none", 0), ("density", 1), *repeats(("none", 2), ("density", 3))],
    ids=str,
)
def asked(request):
    """A classifier and people who are denied."""
    gate, seed = request.param
    frame, y = draw(seed)
    classifier = ct.CounterfactualClassifier(epochs=15, gate=gate, random_state=seed).fit(
        frame, y
    )
    return classifier, frame[classifier.predict(frame) == 0].head(PEOPLE)


def price(told):
    """What the engine minimises, of the first answer of each row; infinite where there is none."""
    several = told.several
    first = (
        ~told.summary.index.get_level_values(0).duplicated()
        if several
        else np.ones(len(told), dtype=bool)
    )
    cost = told.cost + COLUMN * (told.distance > 0).sum(1)
    return np.where(told.status == "converged", cost, np.inf)[first]


FREER = {
    "domain": (
        {"domain": {"income": (2000, 4000), "debt": (0, 2000)}},
        {"domain": {"income": (1000, 6000)}},
    ),
    "max_change": (
        {"max_change": {"income": 700, "debt": 300}},
        {"max_change": {"income": 1500}},
    ),
    "lock": ({"lock": ["income", "job"]}, {"lock": ["job"]}),
    "max_changes": ({"max_changes": 1}, {"max_changes": 2}),
    "vary": ({"vary": ["debt", "loans"]}, {"vary": ["debt", "loans", "income", "owner"]}),
}


@pytest.mark.parametrize("rule", FREER)
def test_a_freer_question_never_costs_more(asked, rule):
    """Exactly so where one or two columns suffice."""
    classifier, people = asked
    tight, free = ({"max_changes": 2} | rules for rules in FREER[rule])
    dear = price(classifier.explain(people, 1, **tight))
    cheap = price(classifier.explain(people, 1, **free))
    assert np.isfinite(cheap).any()
    assert (cheap <= dear + 1e-6).all()


def test_a_freer_question_costs_no_more_in_three_columns():
    """A beam found three columns for the tight question that it missed for the freer one."""
    frame, y = draw(11)
    classifier = ct.CounterfactualClassifier(epochs=15, gate="density", random_state=11).fit(
        frame, y
    )
    people = frame[classifier.predict(frame) == 0].head(PEOPLE)
    tight, free = (
        classifier.explain(people, 1, max_changes=3, **rules) for rules in FREER["lock"]
    )
    assert ((tight.distance > 0).sum(1) == 3).any()
    assert (price(free) <= price(tight) + 1e-6).all()


def test_answers_of_up_to_three_columns_are_those_of_the_levels(monkeypatch):
    """Larger sets that fall back to three columns have finer values, which a freer question may not
    come across.
    """
    frame, y = draw(1)
    classifier = ct.CounterfactualClassifier(epochs=15, random_state=1).fit(frame, y)
    people = frame[classifier.predict(frame) == 0].head(PEOPLE)
    helped = []
    beyond = []
    add_points, go_further = Beam._add_points, Beam._go_further

    def spy(beam, person, points, only_others=False):
        if beyond:
            few = beam.easing.changed(person, points).sum(1) <= TRIED
            helped.extend(beam._helped[person[few]].tolist())
        add_points(beam, person, points, only_others)

    def further(beam, demanding):
        beyond.append(True)
        go_further(beam, demanding)
        beyond.pop()

    monkeypatch.setattr(Beam, "_add_points", spy)
    monkeypatch.setattr(Beam, "_go_further", further)
    tight = {"debt": 300, "share": 0.1, "income": 300, "loans": 1}
    classifier.explain(people, 1, max_change=tight, lock=["job", "term"])
    assert helped
    assert not any(helped)


def test_the_first_of_several_options_is_the_answer_to_one(asked):
    classifier, people = asked
    one, three = classifier.explain(people, 1), classifier.explain(people, 1, n_options=3)
    pd.testing.assert_frame_equal(three.option(1), one.frame)
    assert len(three) > len(one)


def test_no_option_contains_another(asked):
    classifier, people = asked
    told = classifier.explain(people, 1, n_options=3)
    moved = told.distance > 0
    for _, rows in pd.Series(np.arange(len(told))).groupby(
        told.frame.index.get_level_values(0)
    ):
        plausible = [moved[i] for i in rows if told.status[i] == "converged"]
        for one, other in itertools.permutations(plausible, 2):
            assert (one & ~other).any()
    doubtful = told.status == "implausible"
    first = told.summary.groupby(level=0)["cost"].transform("first")
    beside = doubtful & (told.frame.index.get_level_values(1) > 1)
    assert (told.cost[beside] <= first[beside] + COLUMN * moved.shape[1]).all()


def test_answers_depend_on_nobody_else(asked):
    classifier, people = asked
    whole = classifier.explain(people, 1, n_options=2)
    shuffled = classifier.explain(people[::-1], 1, n_options=2)
    pd.testing.assert_frame_equal(whole.frame.sort_index(), shuffled.frame.sort_index())
    alone = [classifier.explain(people.iloc[[i]], 1, n_options=2).frame for i in range(5)]
    pd.testing.assert_frame_equal(pd.concat(alone), whole.frame[: sum(map(len, alone))])


def test_the_scale_of_the_logits_changes_nothing(asked):
    classifier, people = asked
    before = classifier.explain(people, 1).frame
    finder = classifier._finder()

    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = finder.model

        def forward(self, x):
            return 7.0 * self.model(x)

    scaled = replace(finder, model=Scaled())
    kept = classifier._finder
    classifier._finder = lambda: scaled
    try:
        after = classifier.explain(people, 1).frame
    finally:
        classifier._finder = kept
    same = (before == after).all(axis=1)
    assert same.mean() >= 0.95  # a number may stop one digit earlier


@pytest.mark.parametrize(
    "question",
    [
        {"vary": ["loans", "owner"], "max_changes": 1},
        {
            "max_change": {"debt": 100, "share": 0.05, "income": 100, "loans": 1},
            "lock": ["job", "owner", "term"],
        },
    ],
    ids=str,
)
def test_the_scale_of_the_logits_does_not_change_best_efforts(asked, question):
    """Nor anything else, if it is a power of two: then all digits stay."""
    classifier, people = asked
    before = classifier.explain(people, 1, **question)
    scaled = copy.deepcopy(classifier)
    with torch.no_grad():
        for network in getattr(scaled.model_, "members", [scaled.model_]):
            for weight in network[-1].parameters():
                weight *= 64
    assert not before.answered.all()
    pd.testing.assert_frame_equal(scaled.explain(people, 1, **question).frame, before.frame)


def cancelling(model, size):
    """The same network, whose logits are small sums of large terms, which are rounded."""
    *before, first, activation, last = copy.deepcopy(model)
    wide = torch.nn.Linear(first.in_features, 2 * first.out_features)
    sums = torch.nn.Linear(2 * last.in_features, last.out_features)
    with torch.no_grad():
        wide.weight.copy_(first.weight.repeat(2, 1))
        wide.bias.copy_(first.bias.repeat(2))
        sums.weight.copy_(torch.cat([last.weight / 2 + size, last.weight / 2 - size], 1))
        sums.bias.copy_(last.bias)
    return torch.nn.Sequential(*before, wide, activation, sums).eval()


def test_answers_hold_in_any_batch_of_a_network_that_rounds(asked):
    classifier, people = asked
    rounding = copy.deepcopy(classifier)
    finder = classifier._finder()
    network = next(iter(getattr(finder.model, "members", [finder.model])))
    model = cancelling(network, 300.0)
    rounding.model_ = model
    rounding._finder = lambda: replace(finder, model=model)
    answers = rounding.explain(people, 1)
    found = answers.frame[answers.status == "converged"]
    assert len(found) > PEOPLE / 2
    assert (rounding.predict(found) == 1).all()
    alone = [rounding.predict(found.iloc[[i]])[0] for i in range(len(found))]
    assert np.all(np.array(alone) == 1)


def test_every_rule_is_kept_and_every_claim_holds(asked):
    classifier, people = asked
    rules = {
        "step": {"income": 250},
        "max_change": {"debt": 900, "share": 0.2},
        "domain": {"income": (500, 7000), "job": ["cook", "nurse"]},
        "difficulty": {"income": 3.0, "owner": 0.5},
        "max_changes": 3,
        "relations": ["debt <= income"],
    }
    told = classifier.explain(people, 1, n_options=3, **rules)
    assert not [note for note in told.notes if "withheld" in note]
    finder = classifier._finder()
    judge = PlanJudge(told.encoder, finder.constraints, 3)
    assert judge(told.original.reset_index(drop=True), told.frame.reset_index(drop=True)) == []
    answered = told.answered
    assert (classifier.predict(told.frame[answered].reset_index(drop=True)) == 1).all()
    assert set(told.frame["term"]) <= {36, 60}


def test_difficult_columns_are_avoided(asked):
    classifier, people = asked
    usual = classifier.explain(people, 1)
    often = usual.changed.sum().idxmax()
    hard = classifier.explain(people, 1, difficulty={often: 50.0})
    assert hard.changed[often].sum() < usual.changed[often].sum()


def test_who_cannot_be_helped_gets_the_closest(asked):
    """A limit that hardly anybody can work with: the best effort is at least as close as where the
    row stands.
    """
    classifier, people = asked
    told = classifier.explain(people, 1, vary=["share"], max_change={"share": 0.02})
    missed = ~told.answered
    assert missed.any()
    before = classifier.predict_proba(people)[:, 1]
    assert (told.confidence[missed] >= before[missed] - 1e-6).all()
    if classifier.gate_ is None:
        assert (told.confidence[missed] > before[missed]).mean() > 0.9


def test_numbers_have_no_digits_that_nobody_wrote():
    """Points are float32, which cannot hold 2.018; people read 2.018, not 2.0180001."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(300, 3)), columns=list("abc"))
    classifier = ct.CounterfactualClassifier(epochs=5, gate="none", random_state=0).fit(
        frame, frame.sum(axis=1) > 0
    )
    told = classifier.explain(frame[:40])
    changed = told.frame.to_numpy()[told.changed.to_numpy()]
    assert len(changed) > 30 and all(
        len(repr(float(number)).lstrip("-")) <= 6 for number in changed
    )
    np.testing.assert_array_equal(classifier.predict(told.frame), told.prediction)
