"""The page *What the published gains are made of* says what the tables say; the one in docs/ those
committed.
"""

import re
from pathlib import Path

import pandas as pd

from counterfactual_lab.reports.gains_page import PICTURED, QUOTED, gains_page, quoted

ROOT = Path(__file__).parents[3]
COMMITTED = ROOT / "results" / "truth"
NAMES = ("truth", "truth_performance", "truth_gains", "truth_by_seed", *PICTURED)
WHOLE = ("truth", "truth_by_seed")
HEAD = "Measured on rows. Made with: ct truth"


def tables(
    verdicts=("better", "worse", ""),
    models=("conventional", "conventional rescaled", "ct_published", "conventional + density"),
    data=("LS", "CH", "GMSC"),
):
    cells = [
        {
            "data": d,
            "setting": s,
            "tau": t,
            "method": m,
            "reference": "conventional",
            "metric": q,
            "value": 1.0,
            "reference_value": 2.0,
            "real": 0.5,
            "unmoved": 1.5,
            "nearest_unlike": 0.4,
            "change": 50.0,
            "validity": 0.875,
            "diversity": 0.25,
            "p_value": 1e-9,
            "seeds": 2,
            "verdict": "" if m == "conventional" else verdict,
        }
        for d, verdict in zip(data, verdicts, strict=True)
        for s in ("free", "protected")
        for t in ("50 × 0.1", ".5", ".95*")
        for m in models
        for q in ("nn5", "ip", "ip_star", "boosting", "cost", "valid")
    ]
    accuracy = [
        {
            "data": d,
            "setting": "free",
            "method": m,
            "metric": q,
            "value": 0.9,
            "change": -0.01 * place,
        }
        for place, d in enumerate(data)
        for m in models
        for q in ("accuracy", "calibration_error")
    ]
    by_seed = [
        {
            "data": "LS",
            "setting": "free",
            "tau": t,
            "seed": seed,
            "method": m,
            "reference": "conventional",
            "metric": "nn5",
            "value": 1.0 + (seed == 1 and t == ".5"),
            "reference_value": 1.5,
        }
        for t in (".5", ".95*")
        for seed in (0, 1)
        for m in models
        if m != "conventional"
    ]
    gains = [
        {
            "data": d,
            "metric": q,
            "published": 12.3,
            "ct_published, 50 × 0.1": 11.1,
            "ct_published, .5": -7.7,
            "ct_published, .95*": float("nan"),
        }
        for d in data
        for q in ("implausibility", "implausibility_mmd", "cost")
    ]
    frames = (pd.DataFrame(rows) for rows in (cells, accuracy, gains, by_seed))
    return dict(zip(NAMES, (*frames, pd.DataFrame(), pd.DataFrame()), strict=True))


def test_verdicts_are_counted_and_named():
    page = gains_page(tables(), "../results/truth", HEAD)
    assert "By the published steps CT lowers IP on 1 of 3 data sets (LS)." in page
    assert (
        "past τ = .5, CT lowers IP on 1 of 3 data sets (LS), and people" in page
        and "conventional training on 1 of 3 data sets (CH)." in page
    )
    assert "by −2.0 points where it does worst (GMSC)" in page
    assert re.search(
        r"\| ct_published +\| +5-NN \| +line, τ = \.5 \| +LS \| +CH \| +−50 \|", page
    )
    assert re.search(r"\| ct_published +\|( +1 / 1 \|){7} +−2\.00 \|", page)
    assert HEAD in page and "3 data sets (LS, CH, GMSC), 2 training seeds each" in page
    assert re.search(r"\| LS +\| +12\.3 \| +11\.1 \| +– \| +−7\.7 \| +– \|", page)


def test_acceptance_has_a_section_where_judges_were_asked():
    assert "Would the advice work" not in gains_page(tables(), ".", HEAD)
    asked = tables()
    truth = asked["truth"]
    cells = truth[truth["metric"] == "nn5"].assign(
        metric="acceptance", value=0.44, reference_value=0.4, real=0.91
    )
    asked["truth"] = pd.concat([truth, cells], ignore_index=True)
    asked["truth_acceptance"] = pd.DataFrame(
        {
            "data": ["LS", "CH", "LS"],
            "setting": ["free", "free", "protected"],
            "method": "ct_published",
            "reference": "conventional",
            "by": "other families",
            "cost": [0.9, 1.25, 7.0],
            "low": [0.8, float("nan"), 6.0],
            "high": [0.95, float("nan"), 8.0],
        }
    )
    page = gains_page(asked, "figures", HEAD)
    assert "## 5. Would the advice work" in page and "## 6. The price of plausibility" in page
    assert re.search(r"\| real rows +\| +\|( +91 \|){3}", page)
    assert re.search(r"\| ct_published +\| +\.95\\\* \|( +44 \|){3}", page)
    assert re.search(
        r"\| ct_published \| +1\.07 \| +0\.90\\\* \(0\.80 … 0\.95\) \| +1\.25 \|", page
    )
    assert "7.00" not in page  # of protected features
    assert re.search(r"\| ct_published +\|( +1 / 1 \|){9} +−2\.00 \|", page)


def test_prose_follows_the_verdicts():
    none = gains_page(tables(verdicts=("", "", "")), ".", HEAD)
    assert (
        "CT lowers IP on none of 3 data sets." in none
        and "just past τ = .5, CT lowers IP on none" in none
    )
    worse = gains_page(tables(verdicts=("worse",) * 3), ".", HEAD)
    assert (
        "further than with conventional training on 3 of 3 data sets (LS, CH, GMSC)." in worse
    )
    # Fixed steps and the line search have verdicts of their own.
    lost = tables(verdicts=("better",) * 3)
    lost["truth"].loc[
        (lost["truth"]["tau"] == ".5") & (lost["truth"]["data"] == "LS"), "verdict"
    ] = ""
    page = gains_page(lost, ".", HEAD)
    assert (
        "CT lowers IP on 3 of 3" in page
        and "past τ = .5, CT lowers IP on 2 of 3 data sets (CH, GMSC)" in page
    )


def test_aims_are_told_met_or_missed():
    page = gains_page(
        tables(models=("conventional", "cheap_recourse", "conventional + best")), ".", HEAD
    )
    row = (
        r"\| conventional \+ best: 5-NN, τ = \.5 +\| +≥ 3 of 3, none worse "
        r"\| +1, 3, 3; worse 1 \(CH\) \| +no \|"
    )
    assert re.search(row, page)
    assert re.search(
        r"\| conventional \+ best: boosting agrees, τ = \.5 +\| +≥ 2 of 3, none worse "
        r"\| +1, 0, 0; worse 1",
        page,
    )
    assert re.search(
        r"\| conventional \+ best: lowest validity, protected, τ = \.5 +\| +≥ 95 % "
        r"\| +100\.0 % \(LS; reference "
        r"200\.0 %\) \| +yes \|",
        page,
    )
    assert re.search(
        r"\| conventional \+ best: worst change of accuracy +\| +within 0\.5 pp "
        r"\| +−2\.00 pp \| +no \|",
        page,
    )
    assert re.search(
        r"seeds of LS that are nearer, τ = \.5 +\| +all \| +1 of 2 \| +no \|", page
    )
    assert re.search(
        r"seeds of LS that are nearer, τ = \.95\\\* +\| +all \| +2 of 2 \| +yes \|", page
    )
    assert re.search(r"\| LS +\|( +0\.25 \|){3}", page) and re.search(
        r"\| LS +\|( +88 \|){6}", page
    )
    better = gains_page(
        tables(
            verdicts=("better",) * 3,
            models=("conventional", "cheap_recourse", "conventional + best"),
        ),
        ".",
        HEAD,
    )
    assert re.search(
        r"\| cheap_recourse: cost under protection, τ = \.5 +\| +≥ 2 of 3, none worse "
        r"\| +3, 3, 3; worse 0 "
        r"\| +yes \|",
        better,
    )
    assert "≥ 8 of 9" not in gains_page(tables(), ".", HEAD)


def test_digits_have_a_place_where_they_were_measured_and_methods_may_be_missing():
    assert "digits.png" in gains_page(tables(data=("LS", "CH", "MNIST")), ".", HEAD)
    few = gains_page(tables(models=("conventional", "conventional + density")), "figures", HEAD)
    assert (
        "digits.png" not in few
        and "By the published steps" not in few
        and "The gate of *conventional + density*" in few
    )
    assert "$" not in few


def test_the_page_follows_from_what_it_quotes():
    models = ("conventional", "conventional rescaled", "ct_published", "conventional + best")
    whole = tables(models=models)
    kept = quoted(whole)
    small = {**whole, **{name: kept[short] for name, short in zip(WHOLE, QUOTED, strict=True)}}
    assert len(kept["quoted"]) < 0.6 * len(whole["truth"])
    assert len(kept["quoted_by_seed"]) == 4  # one method, two seeds, two τ
    page = gains_page(whole, ".", HEAD)
    assert gains_page(small, ".", HEAD) == page and "training seeds of LS" in page


def test_the_page_is_of_the_committed_tables():
    page = (ROOT / "docs" / "explanation" / "gains.md").read_text(encoding="utf-8")
    kept = {**dict(zip(NAMES, NAMES, strict=True)), **dict(zip(WHOLE, QUOTED, strict=True))}
    read = {
        name: pd.read_csv(COMMITTED / f"{file}.csv", keep_default_na=True, dtype={"tau": str})
        for name, file in kept.items()
    }
    if (COMMITTED / "truth_acceptance.csv").is_file():
        read["truth_acceptance"] = pd.read_csv(COMMITTED / "truth_acceptance.csv")
    head = next(line for line in page.splitlines() if line.startswith("Measured on"))
    assert gains_page(read, "../../results/truth", head) == page
    linked = re.findall(r"\]\(([^)#]+)\)", page)
    assert linked and all((ROOT / "docs" / "explanation" / link).exists() for link in linked)
