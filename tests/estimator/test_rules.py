"""Whatever generator searches, what ``explain`` says keeps every rule, in the user's units."""

import numpy as np
import pandas as pd
import pytest
import torch

from counterfactual_training.errors import InputError
from counterfactual_training.search import GENERATORS
from covering import repeats

DEGREES = ["none", "BSc", "MSc", "PhD"]
JOBS = ["clerk", "nurse", "cook", "pilot", "spy"]
HOMES = ["owned", "rented", "shared"]


def draw_people(n=80, seed=0):
    """Every column decides, so that a search wants to move every one of them."""
    rng = np.random.default_rng(seed)
    people = pd.DataFrame(
        {
            "debt": rng.gamma(2.0, 10.0, n).round(2),
            "loans": rng.integers(0, 9, n),
            "rate": rng.choice([0.0, 2.5, 5.0], n),
            "degree": rng.choice(DEGREES[:3], n),
            "job": rng.choice(JOBS[:4], n),
            "home": rng.choice(HOMES, n),
            "grade": rng.choice([1, 2, 3, 4, 5], n),
            "owner": rng.random(n) > 0.5,
            "sex": rng.choice(["f", "m"], n),
        }
    )
    score = 1 - 0.05 * people["debt"] - 0.2 * people["loans"] - 0.2 * people["rate"] + 0.2 * people["grade"]
    score += 0.5 * people["degree"].map(DEGREES.index) + 0.5 * people["job"].isin(["pilot", "cook"])
    score += 0.4 * (people["home"] == "shared") + 0.6 * people["owner"] + 0.6 * (people["sex"] == "f")
    return people, np.where(score > 1.5, "granted", "denied")


def draw_rules(seed):
    """A rule, and another one each time, for every column."""
    rng = np.random.default_rng(seed)
    way = ["both", "increase", "decrease", "none"]
    pairs = [(a, b) for a in JOBS for b in JOBS if a != b]
    ranks = [(a, b) for a in range(1, 6) for b in range(1, 6) if a != b]
    return {
        "debt": {"domain": (0, 120), "mutability": str(rng.choice(way))},
        "loans": {"domain": (0, None), "mutability": str(rng.choice(way))},
        "rate": {"allowed": [0.0, 1.25, 5.0]},
        "degree": {"kind": "ordinal", "categories": DEGREES, "mutability": "increase"},
        "job": {"categories": JOBS, "forbidden": [pairs[i] for i in rng.choice(len(pairs), 6, replace=False)]},
        "home": {"allowed": ["owned", "rented"], "categories": HOMES, "mutability": str(rng.choice(way[:3]))},
        "grade": {
            "kind": "ordinal",
            "categories": [1, 2, 3, 4, 5],
            "forbidden": [ranks[i] for i in rng.choice(len(ranks), 8, replace=False)],
        },
        "owner": {"mutability": str(rng.choice(way))},
        "sex": {"mutability": "none"},
    }


def broken_rules(rules, people, before, after):
    """Every change that a rule forbids, read from the rules as the user wrote them."""
    broken = []
    for name, rule in rules.items():
        low, high = rule.get("domain", (None, None))
        order = rule["categories"].index if "categories" in rule else float
        way = rule.get("mutability", "both")
        for old, new in zip(before[name], after[name], strict=True):
            if old == new:
                continue
            wrong = {
                "direction": way not in ("both", "increase" if order(new) > order(old) else "decrease"),
                "domain": (low is not None and new < low) or (high is not None and new > high),
                "allowed": new not in rule.get("allowed", [new]),
                "forbidden": (old, new) in rule.get("forbidden", []),
                "unseen": "categories" in rule and new not in set(people[name]),
                "whole": name == "loans" and new != int(new),
            }
            broken += [(name, old, new, what) for what, is_wrong in wrong.items() if is_wrong]
    return broken


@pytest.mark.parametrize("seed", [0, *repeats(1, 2)])
@pytest.mark.parametrize("generator", GENERATORS)
def test_rules_hold_for_every_generator(make_quick, generator, seed):
    people, decision = draw_people()
    rules = draw_rules(seed)
    classifier = make_quick(epochs=5, generator=generator, schema=rules, num_std=1.0, decision_threshold=0.6)
    classifier.fit(people, decision)
    denied = people[classifier.predict(people) == "denied"]
    for chosen in (None, generator):  # with the fall back, and alone
        explanation = classifier.explain(denied, target="granted", generator=chosen, max_steps=15)
        assert broken_rules(rules, people, explanation.original, explanation.frame) == []
        assert explanation.frame.dtypes.equals(denied.dtypes)
        assert (explanation.frame["loans"] >= 0).all()
        assert explanation.changed.to_numpy().sum() > len(denied) / 2  # rules that allow nothing prove nothing


def test_what_was_never_negative_does_not_become_so(make_quick):
    people, decision = draw_people()
    classifier = make_quick(epochs=5, num_std=3.0).fit(people, decision)
    denied = people[classifier.predict(people) == "denied"]
    after = classifier.explain(denied, target="granted", decision_threshold=0.99).frame
    assert (after[["debt", "loans", "rate"]] >= 0).all(axis=None)


@pytest.mark.parametrize("gate", ["none", "density"])
def test_a_best_effort_asks_for_nothing_that_does_not_help(make_quick, gate):
    people, decision = draw_people()
    people["noise"] = np.random.default_rng(1).normal(size=len(people)).round(2)
    held = dict.fromkeys(("debt", "loans", "degree", "job", "grade", "owner", "sex"), "none")
    classifier = make_quick(epochs=10, mutability=held, lambda_energy=20.0, gate=gate).fit(people, decision)

    def reached(frame):  # what is to reach the threshold
        if gate == "none":
            return classifier.predict_proba(frame)[:, 1]
        x = torch.as_tensor(classifier.encoder_.transform(frame), dtype=torch.float32)
        return classifier.predict_proba(frame)[:, 1] * classifier.gate_(x).exp()[:, 1].numpy()

    denied = people[classifier.predict(people) == "denied"]
    asked = {"target": "granted", "decision_threshold": 0.999, "generator": "ecco"}  # alone: energy moves what it likes
    explanation = classifier.explain(denied, **asked)
    missed = ~explanation.converged
    assert missed.sum() > 5
    confidence = reached(explanation.frame)
    for name in people:
        moved = missed & explanation.changed[name].to_numpy()
        undone = explanation.frame.assign(**{name: explanation.original[name]})
        assert (reached(undone)[moved] < confidence[moved]).all()
    longer = classifier.explain(denied, **asked, sparsify=False)
    assert explanation.changed.to_numpy().sum() < longer.changed.to_numpy().sum()
    assert (confidence[missed] >= reached(longer.frame)[missed] - 1e-5).all()


def test_a_dict_is_no_row(fitted, loans):
    row = loans[0].iloc[0].to_dict()
    with pytest.raises(InputError, match=r"use pd\.DataFrame\(\[row\]\)"):
        fitted.explain(row)
    with pytest.raises(InputError, match=r"use pd\.DataFrame\(rows\)"):
        fitted.predict([row])
