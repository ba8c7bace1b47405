"""From a CSV file to a model by ``ct`` alone: ids, blanks, semicolons, decimal commas, codes, rows
held out.
"""

import json
import re
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from counterfactual_training.cli import main
from counterfactual_training.cli.saved_models import open_model
from counterfactual_training.tables.estimators.classifier import CounterfactualClassifier

OPTIONS = [
    "--target",
    "default",
    "--positive",
    "no",
    "--immutable",
    "age,sex",
    "--decrease",
    "debt",
]


def ask(capsys, *argv: str) -> dict:
    assert main([*argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def make_people(n: int = 150) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    age, debt = rng.integers(20, 70, n), np.round(rng.gamma(2, 2000, n), 2)
    late = np.where(rng.random(n) < 0.1, -9, rng.integers(0, 5, n))
    default = np.where(debt / 4000 - age / 60 + rng.normal(0, 0.2, n) > 0, "yes", "no")
    return pd.DataFrame(
        {
            "customer": rng.permutation(n) + 5001,
            "age": age,
            "sex": rng.choice(["f", "m"], n),
            "debt": debt,
            "late": late,
            "home": pd.Series(rng.choice(["own", "rent"], n)).mask(rng.random(n) < 0.1),
            "default": default,
        }
    )


@pytest.fixture(scope="module")
def people(tmp_path_factory):
    """The file, its model, and what training printed."""
    folder = tmp_path_factory.mktemp("people")
    csv, model = str(folder / "people.csv"), str(folder / "people.safetensors")
    make_people().to_csv(csv, sep=";", decimal=",", index=False, encoding="utf-16")
    assert (
        main(
            [
                "train",
                csv,
                *OPTIONS,
                "--missing",
                "impute",
                "--na=-9",
                "--epochs",
                "20",
                "--out",
                model,
            ]
        )
        == 0
    )
    return csv, model


def test_the_id_is_left_out_and_rules_hold(people, capsys):
    csv, model = people
    classifier = CounterfactualClassifier.load(model)
    assert classifier.schema_.names == ("age", "sex", "debt", "late", "home")
    may = {feature.name: feature.mutability for feature in classifier.schema_}
    assert (may["age"], may["sex"], may["debt"], may["home"]) == (
        "none",
        "none",
        "decrease",
        "both",
    )
    document = ask(capsys, "explain", model, "--data", csv, "--rows", "0-9", "--options", "2")
    assert {row["target"] for row in document["rows"]} == {"no"}  # what --positive named
    moved = {name for row in document["rows"] for name in row["changes"]}
    assert moved and moved <= {"debt", "late", "home"}


def test_the_first_rows_are_explained_if_none_are_named(people, capsys, tmp_path):
    csv, model = people
    lines = Path(csv).read_text(encoding="utf-16").splitlines()
    for num in (1, 7):
        file = tmp_path / f"{num}.csv"
        file.write_text("\n".join(lines[: num + 1]) + "\n", encoding="utf-16")
        assert main(["explain", model, "--data", str(file)]) == 0
        said = capsys.readouterr().out
        assert said.count("Row ") >= min(num, 3) and (
            "3 of 7 rows; --rows 0-6 explains all." in said
        ) == (num == 7)


def test_a_file_without_rows_has_no_advice(people, capsys, tmp_path):
    csv, model = people
    file = tmp_path / "nobody.csv"
    file.write_text(Path(csv).read_text(encoding="utf-16").splitlines()[0] + "\n")
    assert ask(capsys, "explain", model, "--data", str(file))["rows"] == []
    assert main(["explain", model, "--data", str(file)]) == 0
    assert "Explanation of 0 rows" in capsys.readouterr().out
    assert main(["train", str(file), *OPTIONS]) == 2
    assert "names of columns, but no rows" in capsys.readouterr().err


def test_rules_of_a_question_are_flags(people, capsys):
    csv, model = people
    question = ["explain", model, "--data", csv, "--rows", "0-9"]
    rules = [
        "--domain",
        "debt=500:",
        "home=own",
        "--step",
        "debt=50",
        "--max-change",
        "debt=9000",
        "--relations",
    ]
    document = ask(capsys, *question, *rules, "late <= 1 + debt", "--difficulty", "late=9")
    debts = [row["changes"]["debt"] for row in document["rows"] if "debt" in row["changes"]]
    assert debts and all(
        change["to"] % 50 == 0 and change["from"] - change["to"] <= 9000 for change in debts
    )
    assert all(change["to"] >= min(500, change["from"]) for change in debts)
    assert all(
        row["changes"].get("home", {"to": "own"})["to"] == "own" for row in document["rows"]
    )
    for flag, value, said in (
        ("--step", "debt=much", "--step takes COLUMN=NUMBER"),
        ("--domain", "home=boat", "'own'"),
        ("--domain", "hoem=own", "'home'"),
    ):
        assert main([*question, flag, value]) == 2
        assert said in capsys.readouterr().err


def test_a_model_that_was_loaded_and_saved_still_knows_its_rows(people, tmp_path):
    csv, model = people
    copy = str(tmp_path / "copy.safetensors")
    CounterfactualClassifier.load(model).save(copy)
    assert (
        open_model(copy)
        .labelled(csv, None)
        .description.startswith("30 rows held out of training (of 150 in")
    )


def test_evaluate_measures_the_rows_that_were_held_out(people, capsys, tmp_path):
    csv, model = people
    measured = ask(capsys, "evaluate", model, "--data", csv, "--people", "5")
    assert measured["test_rows"] == 30 and measured["rows"].startswith(
        "30 rows held out of training (of 150 in"
    )
    held = open_model(model).labelled(csv, None)
    shuffled = str(tmp_path / "again.csv")  # other order, separator, decimal sign, encoding
    make_people().iloc[::-1][["default", "home", "late", "debt", "sex", "age"]].to_csv(
        shuffled, index=False
    )
    again = open_model(model).labelled(shuffled, None)
    assert sorted(again.frame["debt"]) == sorted(held.frame["debt"])
    classifier = CounterfactualClassifier.load(model)
    right = float(np.mean(classifier.predict(held.frame) == held.labels.to_numpy()))
    assert measured["accuracy"] == pytest.approx(right, abs=1e-6)


def test_evaluate_tells_new_rows_from_rows_trained_on(people, capsys, tmp_path):
    csv, model = people
    opened = open_model(model)
    old = make_people()
    new = old.assign(debt=old["debt"] + 1)
    path = str(tmp_path / "new.csv")
    pd.concat([old, new]).to_csv(path, index=False)
    assert opened.labelled(path, None).description.startswith(
        "30 rows held out of training and 150 rows that training never"
    )
    assert opened.labelled(path, None, all_rows=True).description == f"all 300 rows of {path}"
    new.to_csv(path, index=False)
    capsys.readouterr()
    assert opened.labelled(path, None).description.startswith(
        "150 rows that training never saw"
    )
    assert "rounded or edited" in capsys.readouterr().err
    held = set(opened.labelled(csv, None).frame["debt"])
    old[~old["debt"].isin(held)].to_csv(path, index=False)
    assert main(["evaluate", model, "--data", path]) == 2
    assert "All 120 rows of" in (said := capsys.readouterr().err) and "--all-rows" in said


def test_a_model_that_does_not_know_its_rows_is_measured_on_all_and_says_so(people, tmp_path):
    _, model = people
    classifier = CounterfactualClassifier.load(model)
    classifier.origin_ = None  # as if Python had trained it
    classifier.save(tmp_path / "m")
    make_people().replace(-9, np.nan).to_csv(tmp_path / "p.csv", index=False)
    found = open_model(str(tmp_path / "m")).labelled(str(tmp_path / "p.csv"), "default")
    assert len(found.frame) == 150 and "does not say which" in found.description


# ---- schema --------------------------------------------------------------------------------------


def test_the_draft_is_toml_as_it_is_and_with_every_hint_in_force(people, capsys):
    csv, _ = people
    assert main(["schema", csv, "--target", "default"]) == 0
    captured = capsys.readouterr()
    draft = tomllib.loads(captured.out)
    assert list(draft) == ["age", "sex", "debt", "late", "home"]
    assert draft["home"] == {"kind": "binary", "categories": ["own", "rent"]} and draft[
        "late"
    ] == {"kind": "integer"}
    assert (
        "Is -9 a code for 'not known'?" in captured.out
        and "Left out: customer." in captured.out
    )
    assert "'customer' counts the rows and is left out" in captured.err
    every = tomllib.loads(re.sub(r"^# (\w+ = )", r"\1", captured.out, flags=re.MULTILINE))
    assert every["late"]["domain"] == [0, 4] and set(every["age"]) >= {
        "mutability",
        "domain",
        "unit",
        "step",
    }


def test_the_draft_suggests_values_of_the_columns_own_size(tmp_path, capsys):
    rng = np.random.default_rng(0)
    made = {
        "Age (years)": rng.integers(18, 90, 200),
        "1990": rng.uniform(0, 0.84, 200),
        "score": rng.integers(300, 850, 200),
        "one": 7.5,
        "share": rng.uniform(0, 9, 200).round(2),
        "k\nline": range(200),
        "y": rng.choice(["a", "b"], 200),
    }
    pd.DataFrame(made).to_csv(tmp_path / "p.csv", index=False)
    assert main(["schema", str(tmp_path / "p.csv"), "--target", "y"]) == 0
    text = capsys.readouterr().out
    draft, every = (
        tomllib.loads(text),
        tomllib.loads(re.sub(r"^# (\w+ = )", r"\1", text, flags=re.MULTILINE)),
    )
    assert (
        draft["Age (years)"] == {"kind": "integer", "mutability": "none"}
        and "mutability" not in draft["score"]
    )
    assert (
        every["1990"]["step"] == 0.01
        and every["score"]["step"] == 10
        and every["Age (years)"]["step"] == 1
    )
    assert all(isinstance(end, int) for end in every["score"]["domain"])
    assert (
        all(end == round(end, 2) for end in every["share"]["domain"])
        and "step" not in every["one"]
    )
    assert every["relations"] == ["'1990' <= 'score'"] and "relations" not in draft
    (tmp_path / "all.toml").write_text(text.replace("# relations", "relations"))
    command = [
        "train",
        str(tmp_path / "p.csv"),
        "--target",
        "y",
        "--epochs",
        "1",
        "--out",
        str(tmp_path / "m"),
    ]
    assert main([*command, "--schema", str(tmp_path / "all.toml")]) == 0
    assert open_model(str(tmp_path / "m")).classifier.schema_.relations == (
        "'1990' <= 'score'",
    )


def test_a_draft_can_be_trained_with_even_if_it_describes_the_class(people, capsys, tmp_path):
    csv, _ = people
    assert main(["schema", csv, "--keep", "customer"]) == 0
    rules = tmp_path / "rules.toml"
    edited = capsys.readouterr().out.replace('# mutability = "none"', 'mutability = "none"', 1)
    rules.write_text(edited)
    assert "[default]" in edited and "[customer]" in edited
    command = [
        "train",
        csv,
        "--target",
        "default",
        "--drop",
        "customer",
        "--missing",
        "impute",
        "--epochs",
        "1",
    ]
    assert main([*command, "--schema", str(rules), "--out", str(tmp_path / "m")]) == 0
    rules.write_text("[agee]\nkind = 'integer'\n")
    assert main([*command, "--schema", str(rules), "--out", str(tmp_path / "m")]) == 2
    assert "Did you mean 'age'" in capsys.readouterr().err


def test_columns_that_stay_text_are_remembered_by_the_model(tmp_path, capsys):
    people = make_people(60)[["debt", "default"]]
    people["branch"] = np.resize(["007", "010", "NA"], len(people))
    csv = str(tmp_path / "p.csv")
    model = str(tmp_path / "m")
    people.to_csv(csv, index=False)
    command = [
        "train",
        csv,
        "--target",
        "default",
        "--hidden",
        "--epochs",
        "1",
        "--gate",
        "none",
    ]
    assert main([*command, "--text", "branch", "--out", model]) == 0
    assert "--text" not in capsys.readouterr().err
    opened = open_model(model)
    assert opened.classifier.schema_["branch"].categories == ("007", "010", "NA")
    assert opened.rows(csv)["branch"].tolist()[:3] == ["007", "010", "NA"]
    assert main([*command, "--text", "brunch", "--out", model]) == 2
    assert "column in --text 'brunch'. Did you mean 'branch'?" in capsys.readouterr().err
    assert main(["schema", csv, "--target", "default", "--text", "branch"]) == 0
    assert 'categories = ["007", "010", "NA"]' in capsys.readouterr().out


def test_codes_of_a_model_that_python_fitted_are_read_as_it_knows_them(tmp_path):
    people = make_people(60)[["debt", "default"]]
    people["branch"] = np.resize(["007", "010", "NA"], len(people))
    classifier = CounterfactualClassifier(model="linear", epochs=1, gate="none", mutability={})
    classifier.fit(people[["debt", "branch"]], people["default"]).save(tmp_path / "m")
    people.to_csv(tmp_path / "p.csv", index=False)
    rows = open_model(str(tmp_path / "m")).rows(str(tmp_path / "p.csv"))
    assert rows["branch"].tolist()[:3] == ["007", "010", "NA"]


# ---- what a table may hold that cannot be learned from -------------------------------------------


@pytest.mark.parametrize(
    ("change", "options", "said"),
    [
        (lambda d: d[["default"]], [], "has one column, 'default'"),
        (lambda d: d.assign(default="no"), [], "--target 'default' holds 1 class(es)"),
        (lambda d: d, [], "--missing impute"),
        (
            lambda d: d.assign(street=[f"road {i % 99}" for i in range(len(d))]),
            ["--missing", "impute"],
            "--drop",
        ),
        (lambda d: d, ["--missing", "impute", "--domain", "sex=0:1"], "--schema"),
    ],
    ids=["one column", "one class", "blanks", "streets", "domain of a category"],
)
def test_errors_speak_of_flags(tmp_path, capsys, change, options, said):
    csv = tmp_path / "people.csv"
    change(make_people()).to_csv(csv, index=False)
    assert (
        main(
            [
                "train",
                str(csv),
                "--target",
                "default",
                *options,
                "--epochs",
                "1",
                "--out",
                str(tmp_path / "m"),
            ]
        )
        == 2
    )
    last = capsys.readouterr().err.splitlines()[-1]
    assert (
        said in last and "schema={" not in last and "missing=" not in last and "pd." not in last
    )


def test_rows_without_a_class_and_empty_columns_are_left_out(tmp_path, capsys):
    people = make_people().drop(columns="home")
    people.loc[:9, "default"] = None
    days = pd.date_range("2024-01-01", periods=75).repeat(2).strftime("%d.%m.%Y")
    people.assign(nothing=np.nan, since=days).to_csv(tmp_path / "p.csv", index=False)
    options = [
        "--target",
        "default",
        "--epochs",
        "1",
        "--test-share",
        "0",
        "--out",
        str(tmp_path / "m"),
    ]
    document = ask(capsys, "train", str(tmp_path / "p.csv"), *options)
    assert (
        document["train_rows"] == 140
        and document["test_rows"] == 0
        and document["accuracy"] is None
    )
    assert document["left_out"] == ["customer", "nothing", "since"]
    assert main(["evaluate", str(tmp_path / "m"), "--data", str(tmp_path / "p.csv")]) == 2
    assert "All 140 rows" in capsys.readouterr().err


def test_hints_on_columns_left_out_help(tmp_path, capsys):
    people = make_people(90).drop(columns="home")
    day = pd.date_range("2024-01-01", periods=90)
    dates = {
        "Opened": day.strftime("%Y-%m-%d"),
        "Paid": day.strftime("%d.%m.%Y"),
        "Due": day.strftime("%d/%m/%Y"),
    }
    dates["Seen at"] = day.strftime("%Y-%m-%dT12:00:00+02:00")
    people.rename(columns={"customer": "Case ID"}).assign(**dates).to_csv(
        tmp_path / "p.csv", index=False
    )
    frame = pd.read_csv(tmp_path / "p.csv")
    command = [
        "train",
        str(tmp_path / "p.csv"),
        "--target",
        "default",
        "--epochs",
        "1",
        "--out",
        str(tmp_path / "m"),
    ]
    assert main(command) == 0
    said = capsys.readouterr().err
    assert (
        "'Case ID' counts the rows and is left out; --keep 'Case ID' uses it" in said
        and "--keep Opened" not in said
    )
    for line in re.findall(r"with pandas: (.*)", said):
        exec(line, {"frame": frame, "pd": pd})  # noqa: S102 - the line is ours
    assert all((frame[name].diff().dropna() == 1).all() for name in dates)
    assert main([*command, "--keep", "Opened"]) == 2
    assert (
        '--drop Opened, or write numbers into the file, with pandas: `frame["Opened"] ='
        in capsys.readouterr().err
    )


def test_a_column_with_a_comma_can_be_locked(tmp_path, capsys):
    people = make_people(80)[["debt", "late", "default"]].rename(columns={"debt": "x,y"})
    csv, model = str(tmp_path / "p.csv"), str(tmp_path / "m")
    people.to_csv(csv, index=False)
    assert (
        main(
            [
                "train",
                csv,
                "--target",
                "default",
                "--positive",
                "no",
                "--epochs",
                "5",
                "--out",
                model,
            ]
        )
        == 0
    )
    question = ["explain", model, "--data", csv, "--rows", "0-9"]
    capsys.readouterr()
    rows = ask(capsys, *question, "--lock", "x,y")["rows"]
    assert not any("x,y" in row["changes"] for row in rows)
    assert main([*question, "--lock", "x,y,late"]) == 2
    assert "A name with a comma stands alone: --lock x,y." in capsys.readouterr().err


def test_a_file_that_lacks_a_column_is_refused(people, capsys, tmp_path):
    make_people().rename(columns={"debt": "debts"}).to_csv(tmp_path / "p.csv", index=False)
    assert main(["explain", people[1], "--data", str(tmp_path / "p.csv")]) == 2
    assert (
        "lacks 1 column(s) that the model needs: 'debt' (is it 'debts'?)"
        in capsys.readouterr().err
    )
