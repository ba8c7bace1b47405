"""The protocol free of step and scale: rescaled models are the same model, floors bound what can be
gained.
"""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import counterfactual_training as ct
from counterfactual_training.errors import InputError, ModelError
from counterfactual_training.evaluation.judges import Judge
from counterfactual_training.evaluation.stepfree import (
    FIXED_STEPS,
    FLOORS,
    STEP_FREE,
    Rescaled,
    at_one_scale,
    decider,
    first_individuals,
    floor_table,
    scale_of,
    stepfree_table,
    summarise_stepfree,
)

# A stand-in: small plain steps. Levels and scales are the protocol's own.
SMALL_STEPS = ct.generic(lambda_cost=0.0, learning_rate=0.05, max_steps=400)


class Gated(nn.Module):
    """The smallest model with one output more than classes: a gate that opens near the origin."""

    def __init__(self, model, scale=1.0):
        super().__init__()
        self.model, self.scale = model, scale

    def forward(self, x):
        log_p = (self.scale * self.model(x)).log_softmax(-1)
        gate = nn.functional.logsigmoid(10 - x.square().sum(-1, keepdim=True))
        return torch.cat([log_p + gate, torch.log1p(-gate.exp().clamp(max=1 - 1e-6))], -1)


@pytest.fixture(scope="module")
def bench():
    """A trained classifier of moons, individuals and judge on rows it never saw."""
    data = ct.load_dataset("moons")
    torch.manual_seed(0)
    model = ct.mlp(2, 2)
    method = ct.methods.conventional(epochs=6, batch_size=100, learning_rate=0.02)
    x, y = data.x_train[:1000], data.y_train[:1000]
    ct.train(model, x, y, method)
    return {
        "model": model,
        "train_rows": (x, y),
        "individuals": first_individuals(data.x_test, data.y_test, 2, 60),
        "judge": Judge.fit(data.x_test[60:], data.y_test[60:], 2),
        "constraints": data.constraints,
    }


def measured(bench, models, **changes):
    rest = {name: bench[name] for name in ("individuals", "judge", "train_rows", "constraints")}
    own = changes.pop("generator", SMALL_STEPS)
    levels = [
        replace(level, generator=level.generator or own)
        for level in changes.pop("levels", STEP_FREE)
    ]
    return stepfree_table(models, **{**rest, "levels": levels, **changes})


def median_confidence(model, x, y):
    logits = model(x).detach()
    right = logits.argmax(-1) == y
    return float(logits.softmax(-1).gather(-1, y.unsqueeze(-1))[right].median())


@pytest.mark.parametrize("num_classes", [2, 4])
def test_at_its_scale_the_median_row_has_the_confidence(num_classes, make_blobs):
    x, _ = make_blobs(num_classes, n=201)
    model = ct.mlp(2, num_classes)
    y = model(x).argmax(-1)
    y[::7] = (y[::7] + 1) % num_classes  # wrong rows do not count
    for factor in (1.0, 0.01, 30.0):
        other = Rescaled(model, factor)
        assert median_confidence(Rescaled(other, scale_of(other, x, y)), x, y) == pytest.approx(
            0.95, abs=1e-4
        )
        assert scale_of(other, x, y) * factor == pytest.approx(scale_of(model, x, y), rel=1e-4)


def test_a_model_that_is_never_right_keeps_its_scale(blobs):
    x, _ = blobs
    model = ct.linear(2, 2)
    with torch.no_grad():
        wrong = 1 - model(x).argmax(-1)
    assert scale_of(model, x, wrong) == 1.0


def test_multiplying_logits_changes_no_number(bench):
    models = {
        "conventional": bench["model"],
        "flat": Rescaled(bench["model"], 0.1),
        "steep": Rescaled(bench["model"], 8.0),
    }
    table = measured(bench, models)
    plain = table[table["model"] == "conventional"].drop(columns="model").reset_index(drop=True)
    assert set(table["tau"]) == {".5", ".95*"} and plain["valid"].mean() > 0.9
    for name in ("flat", "steep"):
        other = table[table["model"] == name].drop(columns="model").reset_index(drop=True)
        pd.testing.assert_frame_equal(plain, other, atol=2e-3, rtol=1e-2)


def test_the_published_steps_do_see_the_scale(bench):
    models = {"conventional": bench["model"], "steep": Rescaled(bench["model"], 8.0)}
    cost = measured(bench, models, levels=(FIXED_STEPS,)).groupby("model")["cost"].mean()
    assert cost["steep"] > 1.2 * cost["conventional"]


def test_those_already_there_are_left_out_and_invalid_ones_have_no_measures(bench):
    table = measured(
        bench, {"conventional": bench["model"]}, generator=SMALL_STEPS.replace(max_steps=3)
    )
    who = bench["individuals"]
    there = bench["model"](who.x).argmax(-1) == who.y_target
    assert bool(there.any()) and len(table) == 2 * int((~there).sum())
    assert 0 < table["valid"].mean() < 1
    assert (table["nn5"].isna() == (table["valid"] == 0)).all() and (
        table["cost"].isna() == table["nn5"].isna()
    ).all()


def test_a_gated_model_decides_by_its_classifier_and_takes_its_scale(bench):
    inner = bench["model"]
    gated = Gated(inner, scale=7.0)
    assert decider(gated, *bench["train_rows"][:1], 2) is inner
    at_scale = at_one_scale(gated, *bench["train_rows"], 2)
    assert (
        at_scale.scale == pytest.approx(scale_of(inner, *bench["train_rows"]))
        and gated.scale == 7.0
    )
    table = measured(bench, {"conventional": inner, "gated": gated})
    rows = {
        name: part["row"].tolist()
        for name, part in table[table["tau"] == ".5"].groupby("model")
    }
    assert rows["gated"] == rows["conventional"]
    # The gate lets nothing far away pass, so what is valid has crossed both the boundary and the
    # gate.
    x_far = {
        **bench,
        "individuals": bench["individuals"]._replace(x=bench["individuals"].x + 50),
    }
    far = measured(
        x_far, {"gated": gated}, generator=SMALL_STEPS.replace(max_steps=1), constraints=None
    )
    assert far["valid"].sum() == 0


def test_a_model_of_other_width_is_refused(bench):
    with pytest.raises(ModelError, match="5 outputs for 2 classes"):
        measured(bench, {"odd": ct.linear(2, 5)})
    with pytest.raises(ModelError, match="3 outputs for 2 classes"):
        measured(bench, {"no gate": ct.linear(2, 3)})
    with pytest.raises(InputError, match="positive"):
        Rescaled(bench["model"], 0.0)


def test_real_rows_are_the_most_plausible_floor(bench):
    floors = floor_table(bench["individuals"], bench["judge"], bench["train_rows"])
    means = floors.groupby("model")[["nn5", "acceptance", "cost"]].mean()
    assert tuple(dict.fromkeys(floors["model"])) == FLOORS
    assert (
        means["nn5"]["real rows"] < means["nn5"]["unmoved"]
        and means["acceptance"]["real rows"] > 0.95
    )
    assert (
        means["cost"]["unmoved"]
        == 0
        < means["cost"]["nearest unlike"]
        < means["cost"]["real rows"]
    )


def rows_of(model, tau, values, seed, valid=True):
    frame = pd.DataFrame(
        {"model": model, "tau": tau, "row": range(len(values)), "nn5": values, "seed": seed}
    )
    return frame.assign(target=1, valid=float(valid), spread=0.5)


def test_the_summary_pairs_individuals_and_counts_all_cells():
    rng = np.random.default_rng(0)
    parts = []
    for seed in range(3):
        base = 2 + 0.1 * rng.standard_normal(100)
        better = 1.5 + 0.1 * rng.standard_normal(100)
        same = base + 0.1 * rng.standard_normal(100)
        better[:40] = np.nan  # invalid there, and BL's values of these people must not count
        base[:40] = 9.0
        parts += [
            rows_of(name, ".5", v, seed)
            for name, v in (("conventional", base), ("gate", better), ("twin", same))
        ]
    parts.append(rows_of("real rows", "", np.full(100, 1.0), 0))
    table = summarise_stepfree(pd.concat(parts), metrics=("nn5",)).set_index("model")
    gate = table.loc["gate"]
    assert gate["reference_value"] == pytest.approx(2, abs=0.02) and gate[
        "value"
    ] == pytest.approx(1.5, abs=0.02)
    assert gate["change"] == pytest.approx(25, abs=2) and gate["share"] == pytest.approx(
        0.5, abs=0.03
    )
    assert (
        gate["verdict"] == "better"
        and gate["num"] == 180
        and gate["seeds"] == 3
        and gate["diversity"] == 0.5
    )
    assert (
        gate["p_holm"] == pytest.approx(2 * gate["p_value"])
        and gate["p_holm_model"] == gate["p_value"]
    )
    assert (
        math.isnan(table.loc["conventional"]["change"])
        and table.loc["conventional"]["verdict"] == ""
    )
    assert table.loc["conventional"]["real"] == 1.0 and table.loc["twin"]["num"] == 300


def test_a_model_is_compared_with_its_own_reference():
    parts = [
        rows_of(n, ".5", np.linspace(v, v + 1, 20), 0)
        for n, v in (("conventional", 5.0), ("W", 3.0), ("W gate", 3.0))
    ]
    table = summarise_stepfree(
        pd.concat(parts), {"W gate": "W", "W": "conventional"}, ("nn5",)
    ).set_index("model")
    assert table.loc["W gate"]["change"] == 0 and table.loc["W"]["change"] > 30
    with pytest.raises(InputError, match="compared with 'Z'"):
        summarise_stepfree(pd.concat(parts), "Z", ("nn5",))
    with pytest.raises(InputError, match="Unknown metric 'taste'"):
        summarise_stepfree(pd.concat(parts), metrics=("taste",))


def test_what_the_search_leaves_of_itself_is_no_verdict():
    values = np.linspace(1, 2, 50)
    parts = [
        rows_of("conventional", ".5", values, 0),
        rows_of("same", ".5", values - 1e-5, 0),
        rows_of("less", ".5", values - 1, 0),
    ]
    table = summarise_stepfree(pd.concat(parts), metrics=("nn5",)).set_index("model")
    assert table["p_holm"]["same"] < 0.01 and table["verdict"].to_dict() == {
        "conventional": "",
        "same": "",
        "less": "better",
    }


def test_a_model_without_a_valid_counterfactual_gives_nan_not_an_error():
    nobody = rows_of("CT", ".5", np.full(20, np.nan), 0, valid=False)
    table = summarise_stepfree(
        pd.concat([rows_of("conventional", ".5", np.ones(20), 0), nobody]),
        metrics=("nn5", "valid"),
    )
    ct_rows = table[table["model"] == "CT"].set_index("metric")
    assert math.isnan(ct_rows.loc["nn5", "value"]) and ct_rows.loc["nn5", "num"] == 0
    assert ct_rows.loc["valid", "change"] == -1 and ct_rows.loc["valid", "verdict"] == "worse"
