"""Tables from finished runs, against runs whose numbers are known."""

import numpy as np
import pandas as pd
import pytest

from counterfactual_lab.grids.file import load_grid
from counterfactual_lab.paper import summaries
from counterfactual_lab.paper.paper_results import Results, over_lambda
from counterfactual_lab.runs.outcome import Outcome
from counterfactual_training.datasets.dataset import PaperSettings
from counterfactual_training.errors import FileError, InputError
from counterfactual_training.evaluation.bootstrap import Estimate, published_reduction
from counterfactual_training.evaluation.metrics import COUNTERFACTUAL
from counterfactual_training.versions import versions

RUNS, ROWS = 20, 60
LEVELS = {
    "conventional": 4.0,
    "ct_published": 3.0,
    "ct_published protected": 1.0,
    "ct_published(lambda_adv=0)": 2.0,
    "ct_published(lambda_div=0, lambda_reg=0)": 5.0,
}


def run_of(data: str, model: str, seed: int, quick: bool):
    grid = load_grid("main" if model.endswith("protected") else "ablation", quick).changed(
        [data]
    )
    points = grid.points({data: PaperSettings(30, 0.5, 0.1, 1000, 600)})
    return next(
        point.run for point in points if (point.run.model, point.run.seed) == (model, seed)
    )


def made_up(
    data: str,
    model: str,
    seed: int,
    version: str | None = None,
    quick: bool = False,
    shift: float = 0.0,
) -> Outcome:
    """A run with every metric about LEVELS[model]: noise over runs and rows, but the same mean
    over all of them.
    """
    run = run_of(data, model, seed, quick)
    rng = np.random.default_rng([seed, list(LEVELS).index(model)])
    arrays = {}
    for setting in run.constraint_kinds:
        for protocol, size in (("published", RUNS), ("paired", ROWS)):
            for metric in COUNTERFACTUAL:
                noise = rng.normal(0, 0.1, (5, size))
                level = LEVELS[model] / 10 if metric == "validity" else LEVELS[model]
                scale = 0.01 if metric == "validity" else 1.0
                values = level + shift + scale * (noise - noise.mean())
                arrays[f"{protocol}/{setting}/{metric}"] = values
    arrays["attack/fgsm"] = np.linspace(1.0, 0.1, 10) * LEVELS[model] / 5
    arrays["attack/pgd"] = arrays["attack/fgsm"] / 2
    arrays["attribution"] = np.linspace(0, LEVELS[model], 101)
    history = {"epoch": np.array([1.0, 2.0]), "share_mature": np.array([0.0, 0.5 + seed / 10])}
    numbers = {"accuracy": 0.9 + seed / 100, "f1": 0.8, "calibration_error": 0.1}
    made_by = {**versions(), **({"counterfactual-training": version} if version else {})}
    made = {"versions": made_by, "date": "2026-01-01"}
    return Outcome(run, arrays, numbers, history, None, {"train": 1.0, "evaluate": 1.0}, made)


@pytest.fixture
def results() -> Results:
    return Results.from_outcomes(
        [
            made_up(data, model, seed)
            for data in ("CH", "LS")
            for model in LEVELS
            for seed in (0, 1, 2)
        ]
    )


def pick(table: pd.DataFrame, **where) -> pd.Series:
    for name, wanted in where.items():
        table = table[table[name] == wanted]
    assert len(table) == 1
    return table.iloc[0]


def test_the_main_table_has_the_columns_and_rows_it_should(results):
    table = summaries.main_table(results)
    assert list(table.columns) == [
        "data",
        "metric",
        "quantity",
        "published",
        "ours",
        "low",
        "high",
        "seeds",
    ]
    assert list(dict.fromkeys(table["data"])) == ["LS", "CH"]  # the paper's order
    assert len(table) == 2 * 3 * 3 and (table["seeds"] == 3).all()
    assert list(dict.fromkeys(table["quantity"])) == [
        "conventional",
        "ct_published",
        "reduction",
    ]


def test_the_main_table_holds_means_and_their_reduction_beside_the_published(results):
    table = summaries.main_table(results)
    baseline, ct, reduction = (
        pick(table, data="CH", metric="implausibility", quantity=q)
        for q in ("conventional", "ct_published", "reduction")
    )
    assert (baseline["ours"], ct["ours"], reduction["ours"]) == pytest.approx(
        (4.0, 3.0, 25.0), abs=1e-6
    )
    assert (baseline["published"], ct["published"], reduction["published"]) == (
        7.52,
        6.72,
        10.65,
    )
    assert reduction["low"] < 25.0 < reduction["high"]
    # The cost column compares with the model that was trained and searched with protected features.
    assert pick(table, data="CH", metric="cost", quantity="reduction")["ours"] == pytest.approx(
        75.0, abs=1e-6
    )


def test_intervals_know_of_training_variance(results):
    """Seeds that differ make the interval wider than evaluation noise alone."""
    level = {0: -0.5, 1: 0.0, 2: 0.5}
    found = [
        made_up("CH", m, s, shift=level[s] if m == "ct_published" else 0.0)
        for m in ("conventional", "ct_published")
        for s in level
    ]
    spread = pick(
        summaries.main_table(Results.from_outcomes(found)),
        metric="implausibility",
        quantity="reduction",
    )
    steady = pick(
        summaries.main_table(results), data="CH", metric="implausibility", quantity="reduction"
    )
    assert spread["high"] - spread["low"] > 5 * (steady["high"] - steady["low"])


def test_the_paired_table_tests_every_reduction_and_corrects_for_all(results):
    table = summaries.paired_table(results)
    tested = table[table["quantity"] == "reduction"]
    assert tested["p_value"].notna().all() and (tested["p_holm"] >= tested["p_value"]).all()
    assert table.loc[table["quantity"] != "reduction", "p_value"].isna().all()
    assert pick(tested, data="CH", metric="implausibility")["ours"] == pytest.approx(
        25.0, abs=1e-5
    )


def test_individuals_that_nobody_drew_do_not_count(results):
    found = [
        made_up("CH", model, seed)
        for model in ("conventional", "ct_published")
        for seed in (0, 1)
    ]
    for result in found:
        result.arrays["paired/free/implausibility"][:, 30:] = float("nan")
        result.arrays["paired/free/implausibility"][:, 0] = (
            float("nan") if result.run.text == "ct_published" else 4.0
        )
    table = summaries.main_table(Results.from_outcomes(found), "paired")
    assert np.isfinite(pick(table, metric="implausibility", quantity="reduction")["ours"])


def test_by_seed_is_the_papers_own_inference(results):
    table = summaries.by_seed_table(results)
    row = pick(table, data="LS", metric="implausibility", seed=1)
    ct, baseline = (
        over_lambda(results.stack("LS", model, "published/free/implausibility", [1]))[0]
        for model in ("ct_published", "conventional")
    )
    expected = published_reduction(ct, baseline)
    assert (row["ours"], row["spread"], row["significant"]) == (
        expected.reduction,
        expected.standard_deviation,
        expected.significant,
    )
    assert (row["published"], row["published_spread"], row["published_significant"]) == (
        26.26,
        0.67,
        True,
    )
    assert pick(table, data="LS", metric="implausibility_mmd", seed=0)["published_significant"]


def test_mutability_has_cost_and_validity_with_and_without_constraints(results):
    table = summaries.mutability_table(results)
    assert set(table["metric"]) == {"cost", "validity", "cost_free", "validity_free"}
    assert (
        pick(table, data="LS", metric="cost_free", quantity="reduction")["published"] == -27.11
    )
    assert pick(table, data="LS", metric="cost_free", quantity="reduction")[
        "ours"
    ] == pytest.approx(25.0, abs=1e-6)
    row = pick(table, data="LS", metric="validity", quantity="ct_published")
    assert row["ours"] == pytest.approx(0.1, abs=1e-6) and row["published"] == 1.0
    assert row["low"] >= 0


@pytest.mark.check
def test_ablation_and_robustness_compare_objectives(results):
    ablation = summaries.ablation_table(results)
    found = {
        q: pick(ablation, data="CH", metric="implausibility", quantity=q)["ours"]
        for q in ablation["quantity"]
    }
    assert found == pytest.approx(
        {
            "ct_published(lambda_div=0, lambda_reg=0)": -25.0,
            "ct_published(lambda_adv=0)": 50.0,
            "ct_published": 25.0,
        },
        abs=1e-6,
    )
    robustness = summaries.robustness_table(results)
    row = pick(
        robustness[robustness["epsilon"].round(4) == 0.0333],
        data="CH",
        metric="fgsm",
        quantity="conventional",
    )
    assert row["published"] == 0.72
    assert pick(robustness, data="CH", metric="pgd", quantity="ct_published", epsilon=0.1)[
        "ours"
    ] == pytest.approx(0.03)
    assert len(robustness) == 2 * 4 * 2 * 10


def test_attribution_performance_maturity_and_lambda_tables(results):
    attribution = summaries.attribution_table(results)
    row = pick(attribution, data="LS", quantity="conventional")
    assert (row["ours"], row["low"], row["high"]) == pytest.approx((2.0, 0.1, 3.9), abs=0.03)
    assert (row["published"], row["published_high"]) == (30.69, 629.20)
    performance = summaries.performance_table(results)
    assert pick(performance, data="LS", metric="accuracy", quantity="ct_published")[
        "ours"
    ] == pytest.approx(0.91)
    maturity = summaries.maturity_table(results)
    last = pick(maturity, data="CH", model="ct_published", epoch=2.0)
    assert (last["low"], last["high"], last["seeds"]) == (0.5, 0.7, 3)
    by_lambda = summaries.by_lambda_table(results)
    assert len(by_lambda) == 2 * 3 * 5 * RUNS
    assert (
        by_lambda[(by_lambda["data"] == "CH") & (by_lambda["lambda_energy"] == 5)]["published"]
        .eq(11.84)
        .all()
    )


def test_the_synthetic_table_has_a_column_per_seed(results):
    row = pick(summaries.synthetic_table(results), data="LS")
    assert (row["seed 0"], row["seed 2"], row["ours"]) == pytest.approx(
        (25.0, 25.0, 25.0), abs=1e-6
    )
    assert row["published"] == 26.26 and row["share_mature"] == pytest.approx(0.3)


def test_only_seeds_that_all_models_have_are_compared():
    found = [
        made_up("LS", "conventional", 0),
        made_up("LS", "conventional", 1),
        made_up("LS", "ct_published", 1),
    ]
    table = summaries.main_table(Results.from_outcomes(found))
    assert (
        set(table["metric"]) == {"implausibility", "implausibility_mmd"}
        and (table["seeds"] == 1).all()
    )


def test_no_results_give_empty_tables_not_errors():
    nothing = Results.from_outcomes([])
    for name in (
        "main",
        "paired",
        "by_seed",
        "mutability",
        "ablation",
        "robustness",
        "attribution",
        "performance",
        "by_lambda",
        "maturity",
        "synthetic",
    ):
        assert len(getattr(summaries, f"{name}_table")(nothing)) == 0, name


def test_a_metric_that_never_exists_is_nan_not_zero():
    found = [made_up("LS", model, 0) for model in ("conventional", "ct_published")]
    for result in found:
        result.arrays["published/free/implausibility"][:] = float("nan")
    row = pick(
        summaries.main_table(Results.from_outcomes(found)),
        metric="implausibility",
        quantity="reduction",
    )
    assert np.isnan(row["ours"])


def test_different_versions_and_different_settings_are_not_mixed():
    with pytest.raises(FileError, match=r"9\.9"):
        Results.from_outcomes(
            [made_up("LS", "conventional", 0), made_up("LS", "ct_published", 0, version="9.9")]
        )
    with pytest.raises(InputError, match="20 epochs"):
        Results.from_outcomes(
            [made_up("LS", "conventional", 0), made_up("LS", "ct_published", 0, quick=True)]
        )


def test_differences_are_those_beyond_both_uncertainties():
    table = pd.DataFrame(
        {
            "data": "LS",
            "metric": ["implausibility", "cost", "implausibility"],
            "quantity": ["reduction", "reduction", "conventional"],
            "published": [26.26, 16.41, 3.40],
            "ours": [24.5, 9.0, 3.42],
            "low": [24.0, 8.0, 3.402],
            "high": [25.0, 10.0, 3.44],
        }
    )
    by_seed = pd.DataFrame(
        {"data": "LS", "metric": ["implausibility", "cost"], "published_spread": [0.67, 0.57]}
    )
    assert summaries.differences("main", table, by_seed)["metric"].tolist() == ["cost"]


def test_a_table_made_twice_is_the_same_table(results):
    assert summaries.main_table(results).equals(summaries.main_table(results))


def test_the_paired_table_counts_only_individuals_for_whom_both_models_have_a_counterfactual():
    """Where CT fails for the dear half of the people, equal costs for the others are no
    reduction.
    """
    found = [made_up("LS", model, seed) for model in LEVELS for seed in (0, 1, 2)]
    for result in found:
        for name in [
            name
            for name in result.arrays
            if name.startswith("paired/") and name.endswith("cost")
        ]:
            num = result.arrays[name].shape[-1]
            values = np.broadcast_to(
                np.linspace(1.0, 3.0, num), result.arrays[name].shape
            ).copy()
            if result.run.model != "conventional":
                values[:, num // 2 :] = np.nan
            result.arrays[name] = values
    row = pick(
        summaries.main_table(Results.from_outcomes(found), "paired"),
        metric="cost",
        quantity="reduction",
    )
    assert row["ours"] == pytest.approx(0.0, abs=1e-6) and row["individuals"] == num // 2


def test_other_tables_tell_their_differences_too(results):
    table = pd.DataFrame(
        {
            "published": [0.5, 0.5, 0.5],
            "low": [0.40, 0.505, 0.52],
            "high": [0.6, 0.6, 0.6],
            "data": list("abc"),
        }
    )
    assert summaries.differences("robustness", table)["data"].tolist() == ["c"]
    table = table.assign(published_low=0.3, published_high=0.7)
    assert summaries.differences("attribution", table).empty


@pytest.mark.parametrize(
    ("metric", "low", "high"), [("validity", 0.0, 1.0), ("pgd", 0.0, 1.0), ("cost", -0.2, 1.3)]
)
def test_intervals_of_shares_end_at_none_and_all(metric, low, high):
    row = summaries._row(
        "LS", metric, "ct_published", np.nan, Estimate(0.6, -0.2, 1.3, np.nan, 3, 20)
    )
    assert (row["low"], row["high"]) == (low, high)
