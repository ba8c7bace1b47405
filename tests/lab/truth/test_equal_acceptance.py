"""Cost at equal acceptance: the same people, seed by seed, with an interval over seeds."""

import numpy as np
import pandas as pd
import pytest

from counterfactual_lab.truth.equal_acceptance import COLUMNS, equal_acceptance
from counterfactual_training.evaluation.acceptance import Frontier, cost_at_equal_acceptance

BARS = (".5", ".8*", ".95*")
PEOPLE = 12


def rows(model, costs, accepted, seed=0, **changes):
    """Everybody pays the same and is believed alike at each bar."""
    return pd.DataFrame(
        [
            {
                "data": "Moon",
                "setting": "ecco",
                "seed": seed,
                "model": model,
                "tau": tau,
                "row": row,
                "valid": 1.0,
                "cost": cost,
                "acceptance": share,
                **changes,
            }
            for tau, cost, share in zip(BARS, costs, accepted, strict=True)
            for row in range(PEOPLE)
        ]
    )


def table(factors):
    """A method at these shares of the conventional cost, one for each seed."""
    usual = ([1.0, 2.0, 3.0], [0.4, 0.6, 0.9])
    parts = []
    for seed, factor in enumerate(factors):
        parts.append(rows("conventional", *usual, seed))
        parts.append(rows("bag", [factor * cost for cost in usual[0]], usual[1], seed))
    return pd.concat(parts, ignore_index=True)


def test_a_method_at_a_share_of_the_cost_has_this_share_with_an_interval_over_seeds():
    (found,) = equal_acceptance(table([0.5, 0.8])).to_dict("records")
    assert (found["method"], found["reference"], found["by"]) == (
        "bag",
        "conventional",
        "other families",
    )
    assert found["cost"] == pytest.approx(np.sqrt(0.5 * 0.8))
    assert found["low"] < 0.5 and found["high"] > 0.8  # two seeds say little
    assert (found["people"], found["seeds"]) == (PEOPLE, 2)
    (same,) = equal_acceptance(table([0.7, 0.7, 0.7])).to_dict("records")
    assert same["cost"] == same["low"] == same["high"] == pytest.approx(0.7)


def test_one_seed_has_no_interval():
    (found,) = equal_acceptance(table([0.5])).to_dict("records")
    assert found["cost"] == pytest.approx(0.5) and np.isnan([found["low"], found["high"]]).all()


def test_only_people_whom_both_answer_at_every_bar_count():
    whole = table([0.5])
    lost = (whole["model"] == "bag") & (whole["row"] < 3) & (whole["tau"] == ".95*")
    whole.loc[lost, ["cost", "acceptance"]] = np.nan
    # Those who are lost would make the bag dear; others are not asked about them either.
    whole.loc[(whole["model"] == "bag") & (whole["row"] < 3) & ~lost, "cost"] = 1000.0
    # The conventional model already decides as two of them want.
    whole = whole[~((whole["model"] == "conventional") & (whole["row"] == 4))]
    (found,) = equal_acceptance(whole).to_dict("records")
    assert found["people"] == PEOPLE - 4 and found["cost"] == pytest.approx(0.5)
    whole.loc[(whole["model"] == "bag") & (whole["row"] == 5), "cost"] = np.nan
    (few,) = equal_acceptance(whole).to_dict("records")
    assert np.isnan(few["cost"]) and few["seeds"] == 0


def test_what_is_not_believed_alike_is_not_compared():
    never = pd.concat(
        [
            rows("conventional", [1, 2, 3], [0.1, 0.2, 0.3]),
            rows("ct", [1, 2, 3], [0.5, 0.6, 0.7]),
        ]
    )
    (found,) = equal_acceptance(never).to_dict("records")
    assert np.isnan(found["cost"])
    assert (found["accepted"], found["reference_accepted"]) == pytest.approx((0.5, 0.1))


def test_refits_are_judges_of_their_own_and_numbers_are_those_of_frontiers():
    rng = np.random.default_rng(0)
    parts = []
    fronts = {}
    for name in ("conventional", "pgd"):
        cost = np.cumsum(rng.uniform(0.5, 1.5, (3, PEOPLE)), axis=0)
        share = np.sort(rng.uniform(0, 1, (3, PEOPLE)), axis=0)
        part = rows(name, [0, 0, 0], [0.3, 0.5, 0.8])
        part["cost"] = cost.ravel()
        part["retrained"] = share.ravel()
        parts.append(part)
        fronts[name] = Frontier(cost, share, np.ones((3, PEOPLE), dtype=bool))
    found = equal_acceptance(pd.concat(parts)).set_index("by")["cost"]
    assert list(found.index) == ["other families", "refits"]
    expected = cost_at_equal_acceptance(fronts["pgd"], fronts["conventional"])
    assert found["refits"] == pytest.approx(expected) != found["other families"]


def test_every_method_has_the_reference_it_was_given():
    whole = pd.concat([table([0.5]), rows("gated", [2, 4, 6], [0.4, 0.6, 0.9])])
    references = {"bag": "conventional", "gated": "bag", "conventional": "conventional"}
    found = equal_acceptance(whole, references).set_index("method")
    assert dict(found["reference"]) == {"bag": "conventional", "gated": "bag"}
    assert found.loc["gated", "cost"] == pytest.approx(4)


def test_nobody_to_compare_with_gives_an_empty_table():
    alone = equal_acceptance(rows("conventional", [1, 2, 3], [0.1, 0.2, 0.3]))
    assert alone.empty and list(alone.columns) == list(COLUMNS)
