"""The regressor: scikit-learn's contract, rules and intervals that hold for the rows as printed,
files, bad input.
"""

import re
import warnings
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils import estimator_checks

import counterfactual_training as ct
from counterfactual_training.errors import FileError, InputError
from covering import repeats

EXPECTED_FAILED_CHECKS: dict[str, str] = {
    "check_sample_weight_equivalence_on_dense_data": "a row of weight 2 is not the row twice"
}


@estimator_checks.parametrize_with_checks(
    [ct.CounterfactualRegressor(epochs=20, learning_rate=0.03)],
    expected_failed_checks=lambda _: EXPECTED_FAILED_CHECKS,
)
def test_contract(estimator, check):
    check(estimator)


def houses(rows: int = 500, noise: float = 5000.0) -> tuple[pd.DataFrame, pd.Series]:
    """Price = 2,000 · area − 1,000 · age + 40,000 for a house."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "area": rng.normal(120, 30, rows).round(1),
            "age": rng.integers(0, 80, rows),
            "kind": rng.choice(["flat", "house"], rows),
        }
    )
    price = 2000 * frame["area"] - 1000 * frame["age"] + 40_000 * (frame["kind"] == "house")
    return frame, (price + rng.normal(0, noise, rows)).round().rename("price")


RULES = {"mutability": {"age": "none", "kind": "increase"}, "domain": {"area": (40, 260)}}
RULES["schema"] = {"kind": {"kind": "ordinal", "categories": ["flat", "house"]}}


@pytest.fixture(scope="module")
def model() -> ct.CounterfactualRegressor:
    return ct.CounterfactualRegressor(**RULES, epochs=60, random_state=0).fit(*houses())


@pytest.mark.parametrize(
    "target",
    [(None, 200_000), (230_000, None), (180_000, 190_000), (np.float64(150_000), np.inf)],
)
def test_answers_lie_inside_and_keep_the_rules_as_printed(model, target):
    frame, _ = houses()
    rows = frame[100:140]
    told = model.explain(rows, target=target)
    low, high = (
        side if edge is None else edge
        for edge, side in zip(target, (-np.inf, np.inf), strict=True)
    )
    reached = np.isin(told.status, ["converged", "implausible", "already_there"])
    assert reached.mean() > 0.8
    after = model.predict(told.frame)
    assert ((after[reached] >= low) & (after[reached] <= high)).all()
    np.testing.assert_array_equal(told.answered, (after >= low) & (after <= high))
    np.testing.assert_array_equal(told.summary["after"], after)
    np.testing.assert_array_equal(told.summary["before"], model.predict(rows))
    there = told.status == "already_there"
    np.testing.assert_array_equal(
        there, (model.predict(rows) >= low) & (model.predict(rows) <= high)
    )
    assert (told.frame["age"] == rows["age"]).all()
    assert not ((rows["kind"] == "house") & (told.frame["kind"] == "flat")).any()
    moved = told.changed["area"]
    assert told.frame["area"][moved].between(40, 260).all()
    assert np.allclose(
        told.frame["area"] * 10, (told.frame["area"] * 10).round()
    )  # one decimal, as in the data
    # NaN where too few rows lie inside to judge.
    assert not (told.plausibility[told.status == "converged"] < 0.5).any()
    assert told.converged.sum() == there.sum() + (told.status == "converged").sum()


def test_a_prediction_is_in_the_units_of_y_and_scores_well(model):
    frame, price = houses()
    assert model.score(frame, price) > 0.95
    assert abs(model.predict(frame).mean() - price.mean()) < 5000


@pytest.mark.parametrize(
    ("target", "slope"), [((None, 150.0), -1), ((300.0, None), 1), ((200.0, 201.0), 0)]
)
@pytest.mark.check
def test_one_column_is_changed_by_the_amount_that_the_truth_asks_for(target, slope):
    """Price = 3 · area − 2 · age, without noise; a linear model finds it, and age is locked."""
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"area": rng.uniform(20, 160, 400), "age": rng.uniform(0, 50, 400)})
    price = 3 * frame["area"] - 2 * frame["age"]
    linear = ct.CounterfactualRegressor(
        model="linear",
        scaling="standard",
        gate="none",
        learning_rate=0.05,
        random_state=0,
    )
    linear.set_params(early_stopping=False, epochs=60).fit(frame, price)
    assert linear.score(frame, price) > 0.999999
    told = linear.explain(frame[:20], target=target, lock=["age"])
    edges = [edge for edge in target if edge is not None]
    # The nearest edge: from below one has to reach the lower one, from above the upper one.
    goal = np.clip(price[:20], edges[0], edges[-1]) if not slope else np.full(20, edges[0])
    outside = told.status != "already_there"
    reach = outside & (told.status == "converged")
    assert reach.sum() > 5
    exact = (goal + 2 * frame["age"][:20]) / 3
    found = told.frame["area"].to_numpy()[reach]
    change = np.abs(exact - frame["area"][:20]).to_numpy()[reach]
    # Bisection ends within a 256th of the way; the model is not exact to the last digit either.
    assert np.abs(found - exact.to_numpy()[reach]).max() < max(0.02 * change.max(), 0.4)
    np.testing.assert_array_equal(told.frame["age"], frame["age"][:20])


def test_sentences_name_the_value_and_the_interval(model):
    frame, _ = houses()
    before = model.predict(frame)
    high, low = frame.iloc[[int(before.argmax())]], frame.iloc[[int(before.argmin())]]
    (said,) = model.explain(high, target=(None, 250_000)).changes()
    assert re.search(
        r"with area .* lower .*, the price would be 2\d\d,\d{3}, at most 250,000; plausibility "
        r"0\.\d+",
        said,
    )
    (said,) = model.explain(low, target=(None, 250_000)).changes()
    assert re.search(
        r"the price already is -?\d+,\d{3}, at most 250,000; nothing needs to change", said
    )
    locked = model.explain(high, target=(100_000, 120_000), lock=["area", "kind"])
    assert locked.status[0] == "infeasible"
    assert (
        "no allowed change was found that makes the price between 100,000 and 120,000: "
        in locked.changes()[0]
    )
    assert "price" in str(locked) and "confidence" not in str(locked)
    assert locked.records()[0]["target"] == "between 100,000 and 120,000"


@pytest.mark.check
def test_rules_of_the_question_hold(model):
    frame, _ = houses()
    rows = frame[:8]
    told = model.explain(
        rows, target=(None, 180_000), n_options=2, max_changes=1, step={"area": 10}
    )
    assert (told.changed.sum(axis=1) <= 1).all() and "option" in told.frame.index.names
    moved = told.changed["area"] & told.answered
    assert moved.any() and np.allclose(told.frame["area"][moved] % 10, 0)
    told = model.explain(
        rows,
        target=(150_000, 200_000),
        vary=["area"],
        max_change={"area": 5},
        generator="generic",
    )
    assert ((told.frame["area"] - rows["area"]).abs() <= 5 + 1e-9).all() and not told.changed[
        "kind"
    ].any()


@pytest.mark.check
def test_special_codes_and_relations_hold():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"rooms": rng.integers(2, 9, 200), "area": rng.uniform(20, 200, 200).round()}
    )
    frame["baths"] = np.minimum(rng.integers(1, 5, 200), frame["rooms"])
    frame.loc[::10, "area"] = -9
    price = 10 * frame["rooms"] + 15 * frame["baths"] + frame["area"].clip(lower=0)
    options = {
        "special": {"area": [-9]},
        "relations": ["baths <= rooms"],
        "epochs": 20,
        "random_state": 0,
    }
    told = (
        ct.CounterfactualRegressor(**options)
        .fit(frame, price)
        .explain(frame[:11], target=(250, None))
    )
    assert (told.frame["baths"] <= told.frame["rooms"]).all()
    assert (told.frame["area"][::10] == -9).all() and (
        told.frame["area"].drop(told.frame.index[::10]) != -9
    ).all()


@pytest.mark.check
def test_a_saved_regressor_explains_alike(model, tmp_path):
    frame, _ = houses()
    model.save(tmp_path / "houses.safetensors")
    again = ct.CounterfactualRegressor.load(tmp_path / "houses.safetensors")
    np.testing.assert_array_equal(again.predict(frame), model.predict(frame))
    for target in ((None, 190_000), (220_000, 230_000)):
        one, other = (m.explain(frame[:5], target=target) for m in (model, again))
        pd.testing.assert_frame_equal(one.frame, other.frame)
        pd.testing.assert_frame_equal(one.summary, other.summary)
        assert one.changes() == other.changes()
    assert (
        again.get_params()["mutability"] == model.get_params()["mutability"]
        and again.target_name_ == "price"
    )
    with pytest.raises(FileError, match="counterfactual regressor"):
        ct.CounterfactualClassifier.load(tmp_path / "houses.safetensors")


def test_own_networks_and_ensembles_are_saved(tmp_path):
    frame, price = houses(80)

    def own(inputs: int, outputs: int) -> torch.nn.Module:
        return torch.nn.Linear(inputs, outputs)

    several = ct.CounterfactualRegressor(
        "ensemble(members=2)", model=own, epochs=2, random_state=0
    )
    fitted = several.fit(frame, price)
    fitted.save(tmp_path / "own.safetensors")
    with pytest.raises(FileError, match="model of your own"):
        ct.CounterfactualRegressor.load(tmp_path / "own.safetensors")
    again = ct.CounterfactualRegressor.load(tmp_path / "own.safetensors", model=own)
    np.testing.assert_array_equal(again.predict(frame), fitted.predict(frame))


def test_rules_changed_after_fit_are_followed(model):
    frame, price = houses()
    loose = ct.CounterfactualRegressor(epochs=3, random_state=0).fit(frame, price)
    loose.set_params(mutability={"area": "none", "age": "none", "kind": "none"})
    assert not loose.explain(frame[:5], target=(None, 200_000)).changed.to_numpy().any()
    loose.set_params(special={"age": [0]})
    with pytest.raises(InputError, match="fit again"):
        loose.explain(frame[:5], target=(None, 200_000))


def test_plausibility_is_that_of_rows_with_such_a_value(model):
    frame, price = houses()
    cheap, dear = frame[price < 120_000], frame[price > 280_000]
    judged = partial(model.plausibility, target=(None, 130_000))
    assert np.median(judged(cheap)) > 0.5 > judged(dear).max()
    np.testing.assert_allclose(
        model.explain(dear[:5], target=(None, 130_000)).plausibility,
        judged(model.explain(dear[:5], target=(None, 130_000)).frame, given_fixed=True),
        rtol=1e-5,
    )


def test_the_regressor_trains_by_counterfactuals_alone_and_in_ensembles():
    frame, price = houses(200)
    method = "ensemble of ct_published(members=2, max_steps=5, lambda_div=0.01)"
    options = {"epochs": 3, "random_state": 0, **RULES}
    fitted = ct.CounterfactualRegressor(method, **options).fit(frame, price)
    assert len(fitted.model_.members) == 2 and fitted.method_.numbers["lambda_div"] == 0.01
    assert (
        np.isfinite(fitted.history_.last("divergence"))
        and fitted.history_.last("share_mature") >= 0
    )
    told = fitted.explain(frame[:10], target=(None, 200_000))
    assert (told.frame["age"] == frame["age"][:10]).all()
    assert clone(fitted).get_params()["method"] == method
    changed = clone(fitted).set_params(method="ct_published", method__lambda_div=0.3)
    assert changed.get_params()["method__lambda_div"] == 0.3


def test_evaluate_measures_predictions_and_counterfactuals(model):
    frame, price = houses(700)
    table = model.evaluate(frame[500:], price[500:], n_rows=10)
    assert len(table) == 3 and (table["r2"] > 0.95).all() and (table["validity"] > 0.7).all()
    assert table[["cost", "sparsity", "nn5", "ip", "rmse"]].notna().all().all()
    one = model.evaluate(
        frame[500:], price[500:], target=(None, 200_000), n_rows=10, lock=["kind"]
    )
    assert one["target"].tolist() == ["at most 200,000"] and (one["sparsity"] <= 1).all()
    with pytest.raises(InputError, match="200 rows but y has 3"):
        model.evaluate(frame[500:], price[:3])


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ((200, 100), r"Did you mean \(100, 200\)"),
        ((100, 100), "is empty"),
        ((None, None), "holds every number"),
        ((-np.inf, np.inf), "holds every number"),
        ((np.nan, 3), "sides of an interval"),
        (200_000, "target is an interval"),
        ("cheap", "target is an interval"),
        (("a", "b"), "sides of an interval"),
        ((True, 3), "sides of an interval"),
        ([(1, 2), (3, 4)], "One interval holds for all rows"),
        (None, "target is an interval"),
        ((200_000, 200_000.01), "narrower than what the model can tell apart"),
        (
            (None, -1e6),
            r"No training row has a price of at most -1,000,000 \(from .* gate='none'",
        ),
    ],
)
def test_bad_intervals_are_named(model, target, said):
    with pytest.raises(InputError, match=said):
        model.explain(houses()[0][:2], target=target)


def test_few_rows_inside_are_pointed_out(model):
    frame, price = houses()
    highest = float(price.sort_values().iloc[-3])
    with pytest.warns(
        UserWarning, match=r"Too few rows to judge.*price of at least.*for these values may"
    ):
        told = model.explain(frame[:2], target=(highest, None))
    # What nobody judged is not plausible for certain.
    assert np.isnan(told.plausibility).all()
    assert "plausib" not in " ".join(told.changes())


def test_arrays_are_explained_without_a_warning():
    x = np.random.default_rng(0).normal(size=(100, 3))
    fitted = ct.CounterfactualRegressor(epochs=3, random_state=0).fit(x, 2 * x[:, 0])
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        told = fitted.explain(x[:2], target=(1.0, None))
    np.testing.assert_array_equal(told.prediction, fitted.predict(told.frame.to_numpy()))


@pytest.mark.parametrize("name", ["gravitational", *repeats("dice")])
def test_generators_that_learn_from_rows_are_taught(model, name):
    rows = houses()[0][100:120]
    told = model.explain(rows, target=(None, 200_000), generator=name)
    moved = told.changed.any(axis=1).to_numpy()
    assert (told.answered & moved).any()
    assert (model.predict(told.frame)[told.answered] <= 200_000).all()


@pytest.mark.check
@pytest.mark.parametrize("rules", [{}, {"max_changes": 1}])
def test_the_closest_is_no_further_than_what_one_column_can_do(rules):
    frame, price = houses()
    alone = ct.CounterfactualRegressor(gate="none", epochs=30, random_state=0, **RULES).fit(
        frame, price
    )
    rows = frame[100:112]
    told = alone.explain(rows, target=(180_000, 180_001), **rules)
    # Areas have one decimal, so hardly any meets an interval this narrow.
    missed = np.flatnonzero(~told.answered)
    assert len(missed) > 5
    areas = np.arange(600, 1800) / 10
    for i in missed:
        values = alone.predict(pd.concat([rows.iloc[[i]]] * len(areas)).assign(area=areas))
        nearest = np.abs(values - 180_000.5).min()
        assert abs(told.prediction[i] - 180_000.5) <= nearest * 1.02 + 1e-6


def test_the_closest_says_that_it_has_to_be_plausible(model):
    frame, price = houses()
    rows = frame[price > 250_000][:5]
    gated = model.explain(rows, target=(None, 150_000), max_change={"area": 5})
    assert all(
        "Nothing comes near: the closest that looks like real cases makes it" in said
        or ("Nothing comes near: the closest makes it" in said and probable < 0.5)
        for said, probable in zip(gated.changes(), gated.plausibility, strict=True)
    )


def test_without_a_gate_the_model_alone_is_asked_beyond_the_data():
    frame, price = houses(200)
    alone = ct.CounterfactualRegressor(gate="none", epochs=30, random_state=0).fit(frame, price)
    told = alone.explain(frame[:2], target=(None, float(price.min()) - 1000))
    assert np.isnan(told.plausibility).all()
    with pytest.raises(InputError, match="no gate"):
        alone.plausibility(frame[:4], (None, 200_000))


@pytest.mark.parametrize(
    ("y", "said"),
    [
        (["a", "b"] * 10, "must hold numbers, got 'a'.*CounterfactualClassifier"),
        ([True, False] * 10, "must hold numbers, got True"),
        ([1.0] * 20, "All y are 1"),
        ([1.0, np.nan] * 10, "NaN or missing numbers"),
        ([1.0, np.inf] * 10, "infinity"),
        (list(range(19)), "X has 20 rows but y has 19"),
        (np.zeros((20, 2)), "1d array|shape"),
    ],
)
def test_bad_numbers_are_named(y, said):
    with pytest.raises(ValueError, match=said):
        ct.CounterfactualRegressor(epochs=1).fit(houses(20)[0], y)


def test_other_bad_input_is_named(model):
    frame, price = houses(30)
    with pytest.raises(NotFittedError):
        ct.CounterfactualRegressor().explain(frame, target=(None, 1))
    with pytest.raises(InputError, match="Did you mean 'conventional'"):
        ct.CounterfactualRegressor(method="conventionel").fit(frame, price)
    with pytest.raises(InputError, match="lambda_div has no effect"):
        ct.CounterfactualRegressor("conventional(lambda_div=1)").fit(frame, price)
    with pytest.raises(InputError, match="trains classifiers"):
        ct.CounterfactualRegressor(method=ct.methods.pgd()).fit(frame, price)
    with pytest.raises(InputError, match="lambda_adv must be"):
        ct.CounterfactualRegressor(method="ct(lambda_adv=-1)").fit(frame, price)
    with pytest.raises(InputError, match="Did you mean 'lock'"):
        model.explain(frame, target=(None, 200_000), look=["age"])
    with pytest.raises(InputError, match="NaN"):
        model.explain(frame.assign(area=np.nan), target=(None, 200_000))
    with pytest.raises(InputError, match="one sample"):
        ct.CounterfactualRegressor().fit(frame[:1], price[:1])


def test_missing_cells_are_imputed_and_a_series_is_not_needed():
    frame, price = houses(60)
    holes = frame.assign(area=frame["area"].mask(frame.index % 5 == 0))
    fitted = ct.CounterfactualRegressor(missing="impute", epochs=2, random_state=0).fit(
        holes, price.to_numpy()
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        said = fitted.explain(holes[:6], target=(float(price.median()), None)).changes()
    assert all("the value" in sentence or "no " in sentence for sentence in said)
    nullable = ct.CounterfactualRegressor(epochs=2, random_state=0).fit(
        frame, price.astype("Int64")
    )
    assert nullable.target_name_ == "price"


@pytest.mark.check
def test_polars_in_polars_out(model):
    polars = pytest.importorskip("polars")
    frame, _ = houses()
    told = model.explain(polars.DataFrame(frame[:4].to_dict("list")), target=(None, 150_000))
    assert isinstance(told.frame, polars.DataFrame) and "after" in told.summary.columns
    assert told.changes() == model.explain(frame[:4], target=(None, 150_000)).changes()
