"""``ct audit`` and ``ct card``: a CSV file, a named data set, two models, files written, and bad
input.
"""

import json
import re

import numpy as np
import pandas as pd
import pytest

from counterfactual_training.cli import main

RULES = [
    "--target",
    "granted",
    "--positive",
    "yes",
    "--immutable",
    "age,owner",
    "--drop",
    "sex",
    "--epochs",
    "15",
]


def make_people(n: int = 300) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    age, sex = rng.integers(20, 70, n), rng.choice(["f", "m"], n)
    debt = np.round(rng.gamma(2, 10, n) * np.where(sex == "f", 1.5, 1.0), 1)
    owner = rng.random(n) < 0.5
    granted = np.where(debt / 20 - age / 60 - owner + rng.normal(0, 0.3, n) > 0, "no", "yes")
    return pd.DataFrame(
        {"age": age, "debt": debt, "owner": owner, "sex": sex, "granted": granted}
    )


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with a CSV file, a gated model and a conventional one without a gate."""
    folder = tmp_path_factory.mktemp("audit")
    csv = str(folder / "people.csv")
    make_people().to_csv(csv, index=False)
    assert main(["train", csv, *RULES, "--out", str(folder / "gated.safetensors")]) == 0
    assert (
        main(
            ["train", csv, *RULES, "--gate", "none", "--out", str(folder / "plain.safetensors")]
        )
        == 0
    )
    return folder


def ask(capsys, *argv: str) -> dict:
    capsys.readouterr()
    assert main([*argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys, *argv: str) -> str:
    capsys.readouterr()
    assert main([*argv]) == 2
    return capsys.readouterr().err


def quick(files, *more: str, model: str = "gated") -> list[str]:
    path = str(files / f"{model}.safetensors")
    return [
        "audit",
        path,
        "--data",
        str(files / "people.csv"),
        "--no-proxies",
        "--delta",
        "0",
        "--people",
        "20",
        *more,
    ]


@pytest.mark.check
def test_groups_may_be_columns_that_the_model_does_not_use(files, capsys):
    document = ask(capsys, *quick(files, "--group", "sex,age", "--group", "sex*owner"))
    by_name = {column["column"]: column for column in document["columns"]}
    assert list(by_name) == [None, "sex", "age", "sex*owner"]
    assert by_name["sex"]["in_model"] is False and by_name["age"]["immutable"] is True
    assert document["rows"] == 60 and "held out" in document["measured"]
    assert document["proxies"] == [] and document["later"] == []


def test_without_groups_those_that_people_cannot_change(files, capsys):
    document = ask(capsys, *quick(files))
    assert [column["column"] for column in document["columns"]] == [None, "owner", "age"]


@pytest.mark.check
def test_two_models_retrained_and_files_written(files, tmp_path, capsys):
    out = tmp_path / "pages" / "audit.html"
    more = [
        "--against",
        str(files / "plain.safetensors"),
        "--retrain",
        "1",
        "--group",
        "sex",
        "--out",
        str(out),
    ]
    assert main(quick(files, *more)) == 0
    text = capsys.readouterr().out
    assert "Burden of the same people" in text and "After retraining by another seed" in text
    page, markdown, table = (out.with_suffix(suffix) for suffix in (".html", ".md", ".csv"))
    assert not re.search(r"https?://|<script", page.read_text())
    assert "ct audit" in page.read_text() and "## Clear differences" in markdown.read_text()
    numbers = pd.read_csv(table)
    assert set(numbers["table"]) == {"groups", "gaps", "differences", "later"}
    assert set(numbers["model"].dropna()) == {"model", "against"}


def test_a_folder_gets_three_files(files, tmp_path, capsys):
    document = ask(capsys, *quick(files, "--group", "sex", "--out", str(tmp_path / "made")))
    assert sorted(path.name for path in (tmp_path / "made").iterdir()) == [
        "audit.csv",
        "audit.html",
        "audit.md",
    ]
    assert len(document["files"]) == 3


@pytest.mark.check
def test_each_note_on_a_file_is_printed_once_however_often_it_is_read(files, tmp_path, capsys):
    csv = tmp_path / "titled.csv"
    csv.write_text("# made up\n" + (files / "people.csv").read_text())
    argv = quick(files, "--against", str(files / "plain.safetensors"))
    assert main([str(csv) if word.endswith("people.csv") else word for word in argv]) == 0
    assert capsys.readouterr().err.count("'# made up'") == 1


def test_people_whose_class_nobody_knows(files, tmp_path, capsys):
    csv = tmp_path / "new.csv"
    make_people(80).drop(columns="granted").to_csv(csv, index=False)
    argv = [
        "audit",
        str(files / "gated.safetensors"),
        "--data",
        str(csv),
        "--group",
        "sex",
        "--no-proxies",
    ]
    document = ask(capsys, *argv, "--delta", "0")
    assert document["rows"] == 80
    assert "nawb" not in {measure["id"] for measure in document["columns"][0]["measures"]}


@pytest.fixture(scope="module")
def loan(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("loan") / "loan.safetensors")
    assert main(["train", "loan", "--epochs", "20", "--out", path]) == 0
    return path


def test_a_named_data_set(loan, capsys):
    from counterfactual_training.datasets import load_dataset

    wanted = load_dataset("loan").class_names[1]
    argv = [
        "audit",
        loan,
        "--positive",
        wanted,
        "--group",
        "age",
        "--people",
        "40",
        "--no-proxies",
        "--retrain",
        "1",
    ]
    document = ask(capsys, *argv, "--delta", "0")
    assert document["models"][0]["explained"] <= 40
    assert {check["id"] for check in document["later"]} == {"retrained", "left_out"}
    assert "test rows of loan" in document["measured"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--group", "sexx"], "Did you mean 'sex'"),
        (["--group", "sex*rase"], "Unknown column in --group 'rase'"),
        (["--positive", "yess"], "Did you mean 'yes'"),
        (["--people", "0"], "at least 1"),
        (["--retrain", "-1"], "must not be negative"),
        (["--seed", "-1"], "must not be negative"),
        (["--delta", "nan"], "--delta must be a number of at least 0, got nan"),
        (["--delta", "-1"], "--delta must be a number of at least 0"),
        (["--confidence", "nan"], "confidence must be a number above 0 and up to 1"),
        (["--out", "audit.pdf"], "ends in .html"),
        (["--against", "nothing.safetensors"], "no file"),
    ],
)
def test_bad_options(files, capsys, more, said):
    if more[0] in ("--people", "--retrain", "--seed"):  # argparse says it
        with pytest.raises(SystemExit):
            main(quick(files, *more))
        assert said in capsys.readouterr().err
    else:
        assert said in refused(capsys, *quick(files, *more))


def test_columns_that_cannot_be_groups(files, tmp_path, capsys):
    csv = tmp_path / "odd.csv"
    make_people().assign(same="x", name=[f"p{i}" for i in range(300)]).to_csv(csv, index=False)
    argv = ["audit", str(files / "gated.safetensors"), "--data", str(csv), "--group"]
    assert "one value" in refused(capsys, *argv, "same")
    assert "too many for groups" in refused(capsys, *argv, "name")


def test_data_that_does_not_fit(files, loan, tmp_path, capsys):
    csv = tmp_path / "other.csv"
    make_people().drop(columns="debt").to_csv(csv, index=False)
    assert "lacks 1 column(s)" in refused(
        capsys, "audit", str(files / "gated.safetensors"), "--data", str(csv)
    )
    assert "name a CSV file" in refused(capsys, "audit", str(files / "gated.safetensors"))
    assert "Say which class people want" in refused(capsys, "audit", loan)
    assert "is a model of 'loan'" in refused(capsys, *quick(files, "--against", loan))


def test_a_rival_of_other_columns_is_blamed_itself(files, tmp_path, capsys):
    csv, model = tmp_path / "other.csv", str(tmp_path / "other.safetensors")
    make_people(80).rename(columns={"debt": "wealth"}).to_csv(csv, index=False)
    assert (
        main(["train", str(csv), *RULES, "--gate", "none", "--epochs", "1", "--out", model])
        == 0
    )
    said = refused(capsys, *quick(files, "--against", model))
    assert (
        f"'{model}' is a model of other columns" in said
        and "'debt', 'wealth'" in said
        and "lacks" not in said
    )


def test_retraining_needs_the_rows_of_the_training(files, tmp_path, capsys):
    from counterfactual_training.tables.estimators.classifier import CounterfactualClassifier
    from counterfactual_training.tables.estimators.file import Origin

    forgetful, data = str(tmp_path / "forgetful.safetensors"), str(files / "people.csv")
    classifier = CounterfactualClassifier.load(files / "gated.safetensors")
    classifier.origin_ = Origin("granted", "yes")
    classifier.save(forgetful)
    said = refused(
        capsys, "audit", forgetful, "--data", data, "--group", "sex", "--retrain", "1"
    )
    assert "does not remember which rows it was trained on" in said
    some = tmp_path / "some.csv"
    make_people()[:200].to_csv(some, index=False)
    argv = ["audit", str(files / "gated.safetensors"), "--data"]
    assert "does not hold all rows that" in refused(capsys, *argv, str(some), "--retrain", "1")
    assert "--all-rows does not tell" in refused(
        capsys, *argv, data, "--retrain", "1", "--all-rows"
    )


@pytest.mark.parametrize("how", ["itself", "a link", "another way to it"])
@pytest.mark.parametrize(
    "what", ["card", "report", "train", "schema", "audit", "audit in a folder", "audited"]
)
def test_a_file_that_is_read_is_not_written(files, tmp_path, capsys, what, how):
    model, csv = tmp_path / "gated.safetensors", tmp_path / "audit.csv"
    model.write_bytes((files / "gated.safetensors").read_bytes())
    csv.write_bytes((files / "people.csv").read_bytes())
    read = model if what in ("card", "report") else csv
    out = {
        "itself": read,
        "a link": tmp_path / "link",
        "another way to it": tmp_path / "x" / ".." / read.name,
    }[how]
    (tmp_path / "x").mkdir()
    if how == "a link":
        out.symlink_to(read)
    # Audits write beside the page they are told to write: it is their input that has another name.
    csv = out if what.startswith("audit") else csv
    argv = {
        "card": ["card", model, "--out", out],
        "report": ["report", model, "--data", csv, "--out", out],
        "train": ["train", csv, "--target", "granted", "--out", out],
        "schema": [
            "train",
            files / "people.csv",
            "--target",
            "granted",
            "--schema",
            csv,
            "--out",
            out,
        ],
        # Numbers go beside the page, as audit.csv.
        "audit": ["audit", model, "--data", csv, "--out", tmp_path / "audit.html"],
        "audit in a folder": ["audit", model, "--data", csv, "--out", tmp_path],
        "audited": ["audit", csv, "--data", files / "people.csv", "--out", tmp_path],
    }[what]
    before = read.read_bytes()
    said = refused(capsys, *map(str, argv))
    assert "would overwrite" in said and "name another file" in said
    assert read.read_bytes() == before


def test_nobody_is_denied(files, tmp_path, capsys):
    csv = tmp_path / "rich.csv"
    make_people(40).assign(debt=0.0, age=60, owner=True, granted="yes").to_csv(csv, index=False)
    argv = ["audit", str(files / "gated.safetensors"), "--data", str(csv), "--group", "sex"]
    assert "Nobody among these" in refused(capsys, *argv)


# ---- cards ---------------------------------------------------------------------------------------


@pytest.mark.check
def test_a_card_with_measures(files, tmp_path, capsys):
    out = tmp_path / "card.md"
    argv = [
        "card",
        str(files / "gated.safetensors"),
        "--data",
        str(files / "people.csv"),
        "--out",
        str(out),
    ]
    document = ask(capsys, *argv, "--group", "sex", "--people", "30")
    sections = {section["id"]: section for section in document["sections"]}
    assert list(sections) == [
        "what",
        "use",
        "data",
        "columns",
        "measures",
        "groups",
        "limits",
        "versions",
    ]
    (measures,) = sections["measures"]["tables"]
    accuracy = next(row for row in measures["rows"] if row[0] == "accuracy")
    assert (
        re.fullmatch(r"\d+\.\d %", accuracy[1])
        and " to " in accuracy[2]
        and accuracy[3] == "60"
    )
    text = out.read_text()
    assert "## Intended use" in text and "ct card" in text and "| sha256 |" in text
    assert "### sex" in text


def test_a_card_without_data(files, capsys):
    capsys.readouterr()
    assert main(["card", str(files / "plain.safetensors")]) == 0
    shown = capsys.readouterr()
    assert (
        "There were no rows to measure it on" in shown.out and "nothing to measure" in shown.err
    )
    assert "## By group" not in shown.out


def test_a_card_of_people_whose_class_nobody_knows(files, tmp_path, capsys):
    csv = tmp_path / "new.csv"
    make_people(40).drop(columns="granted").to_csv(csv, index=False)
    document = ask(
        capsys, "card", str(files / "plain.safetensors"), "--data", str(csv), "--group", "sex"
    )
    sections = {section["id"]: section for section in document["sections"]}
    assert sections["measures"]["paragraphs"] == [
        "The classes of these rows are not known: whether decisions are right was not measured."
    ]
    titles = [row[0] for row in sections["measures"]["tables"][0]["rows"]]
    assert "burden" in titles and "accuracy" not in titles and "groups" in sections


def test_a_card_of_a_named_data_set(loan, capsys):
    document = ask(capsys, "card", loan)
    measures = next(section for section in document["sections"] if section["id"] == "measures")
    assert "It is not known which class people want" in measures["paragraphs"][0]
    assert measures["tables"][0]["rows"][0][0] == "accuracy"
