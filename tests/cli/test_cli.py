"""The command ``ct``, in process and as a process."""

import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch

import counterfactual_training
from counterfactual_training import cli, defaults
from counterfactual_training.cli.output import json_value
from counterfactual_training.cli.parsing import (
    assignments,
    columns,
    interval_ends,
    pick_rows,
    settings,
)
from counterfactual_training.datasets import catalog
from counterfactual_training.datasets.synthetic import loan
from counterfactual_training.errors import InputError
from counterfactual_training.tables.estimators.classifier import CounterfactualClassifier
from covering import repeats

METRICS = {
    "accuracy",
    "implausibility",
    "implausibility_mmd",
    "cost",
    "validity",
    "robust_accuracy",
    "share_mature",
}


def ask(capsys, *argv: str) -> dict:
    """A command's JSON document; stdout must hold nothing else."""
    assert cli.main([*argv, "--json"]) == 0

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    return json.loads(capsys.readouterr().out, parse_constant=refuse)


def complaint(capsys, *argv: str, code: int = 2) -> str:
    """The one line in which a command says what is wrong."""
    try:
        found = cli.main(list(argv))
    except SystemExit as stop:  # argparse ends the process itself
        found = stop.code
    captured = capsys.readouterr()
    assert found == code
    assert captured.out == ""
    assert captured.err.count("\n") == 1 and captured.err.startswith("ct")
    return captured.err


@pytest.fixture(scope="module")
def loan_model(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "loan.safetensors"
    assert (
        cli.main(
            [
                "train",
                "loan",
                "--immutable",
                "age",
                "--epochs",
                "25",
                "--learning-rate",
                "0.02",
                "--gate",
                "none",
                "--out",
                str(path),
            ]
        )
        == 0
    )
    return str(path)


@pytest.fixture(scope="module")
def people(tmp_path_factory):
    """A CSV file of 200 applicants, and a classifier of it."""
    folder = tmp_path_factory.mktemp("people")
    sample = loan(200, torch.Generator().manual_seed(0))
    frame = sample.frame.assign(
        job=np.where(np.arange(200) % 3, "cook", "clerk"),
        granted=np.where(sample.y == 1, "yes", "no"),
    )
    frame.to_csv(folder / "people.csv", index=False)
    arguments = [
        "--target",
        "granted",
        "--mutability",
        "age=none",
        "debt=decrease",
        "--domain",
        "debt=0:",
    ]
    out = str(folder / "people.safetensors")
    assert (
        cli.main(
            ["train", str(folder / "people.csv"), *arguments, "--epochs", "30", "--out", out]
        )
        == 0
    )
    return str(folder / "people.csv"), out


# ---- the main job --------------------------------------------------------------------------------


def test_demo_says_before_training_what_to_install(capsys, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    said = complaint(capsys, "demo", "--out", str(tmp_path / "demo"))
    assert (
        said == "ct: matplotlib is not installed. Install it with: pip install "
        '"counterfactual-training[lab]".\n'
    )


# ---- train, explain, evaluate --------------------------------------------------------------------


def test_train_on_a_synthetic_set_reports_what_it_did(capsys, tmp_path):
    out = tmp_path / "moons.safetensors"
    command = ["train", "Moon", "--method", "ct_published(burn_in=0)", "--epochs", "1"]
    document = ask(capsys, *command, "--out", str(out))
    assert (
        document["data"] == "moons"
        and document["train_rows"] == 3600
        and document["test_rows"] == 900
    )
    assert 0 <= document["accuracy"] <= 1 and 0 <= document["share_mature"] <= 1
    assert document["method"] == "ct_published(burn_in=0)" and document["gate"] == "density"
    assert document["trained"].startswith(
        "Trained by ct_published(burn_in=0): network with hidden layers of 64"
    )
    assert out.exists()


def test_train_says_in_words_what_it_did(capsys, tmp_path):
    out = str(tmp_path / "m.safetensors")
    command = ["train", "loan", "--method", "conventional", "--epochs", "1", "--gate", "none"]
    assert cli.main([*command, "--out", out]) == 0
    said = capsys.readouterr().out
    assert said.startswith("Trained by conventional: network with hidden layers of 64 and 64")
    assert " rows. Accuracy " in said and said.endswith(f"held-out rows, saved as {out}.\n")


def test_training_without_counterfactuals_says_null_of_mature_ones(capsys, tmp_path):
    out = str(tmp_path / "m.safetensors")
    document = ask(capsys, "train", "loan", "--epochs", "1", "--out", out)
    assert document["share_mature"] is None and document["method"] == "bag"


def test_nascent_counterfactuals_are_not_said_to_be_immature(capsys, tmp_path):
    arguments = ["loan", "--epochs", "1", "--gate", "none", "--out", str(tmp_path / "m")]
    shares = {
        method: ask(capsys, "train", *arguments, "--method", method)["share_mature"]
        for method in ("ct(members=2)", "ct_published")
    }
    assert shares["ct(members=2)"] is None and shares["ct_published"] is not None


def test_witnesses_say_how_long_advice_lasts(capsys, tmp_path):
    path = str(tmp_path / "asked.safetensors")
    options = ["--immutable", "age", "--epochs", "10", "--gate", "none", "--witnesses", "4"]
    assert ask(capsys, "train", "loan", *options, "--out", path)["witnesses"] == 4
    document = ask(capsys, "explain", path, "--rows", "0,1", "--lasting", "0.8")
    assert document["lasting"] == 0.8
    for row in document["rows"]:
        assert row["holds"] <= 2 and row["just_enough_cost"] <= row["cost"]
        assert f"It holds in {row['holds']} of 2 refits" in row["sentence"]
    assert ask(capsys, "explain", path, "--rows", "0")["lasting"] == defaults.LASTING
    plain = ask(capsys, "explain", path, "--rows", "0", "--lasting", "0")
    assert plain["lasting"] == 0 and "just_enough_cost" not in plain["rows"][0]


def test_without_witnesses_none_can_be_asked(capsys, loan_model):
    assert (
        ask(capsys, "explain", loan_model, "--rows", "0", "--lasting", "0")["lasting"] is None
    )
    refused = complaint(capsys, "explain", loan_model, "--rows", "0", "--lasting", "0.8")
    assert "has none: train it with `ct train --witnesses 10`" in refused


def test_explain_holds_protected_columns_and_speaks_in_units(capsys, loan_model):
    document = ask(capsys, "explain", loan_model, "--rows", "0,1,2", "--confidence", "0.6")
    assert [row["row"] for row in document["rows"]] == [0, 1, 2]
    for row in document["rows"]:
        assert set(row["changes"]) == {"debt"}
        assert row["status"] == "converged" and row["confidence"] >= 0.6
        assert "thousand dollars" in row["sentence"]


def test_explain_gives_the_target_asked_for_and_leaves_those_who_have_it(capsys, loan_model):
    document = ask(capsys, "explain", loan_model, "--rows", "0-5", "--positive", "loan granted")
    assert {row["target"] for row in document["rows"]} == {"loan granted"}
    already = [row for row in document["rows"] if row["decision"] == "loan granted"]
    assert already and all(
        row["status"] == "already_there" and row["changes"] == {} for row in already
    )


def test_explain_without_json_is_prose(capsys, loan_model):
    assert cli.main(["explain", loan_model, "--rows", "0"]) == 0
    assert "Row 0: with debt" in capsys.readouterr().out


def test_evaluate_prints_metrics_by_their_code_names(capsys, loan_model):
    document = ask(capsys, "evaluate", loan_model, "--people", "40", "--epsilons", "0.2")
    assert set(document) >= METRICS and document["epsilons"] == [0.2]
    assert document["accuracy"] == 1.0 and document["validity"] >= 0.9
    assert len({row["lambda_energy"] for row in document["by_lambda_energy"]} - {None}) == 5


def test_evaluate_says_in_words_whether_advice_would_work(capsys, loan_model):
    few = ["evaluate", loan_model, "--people", "40", "--epsilons", "0.2"]
    judges = ["--judges", "neighbours,boosting"]
    document = ask(capsys, *few, *judges)
    named = {name for name in document if name.startswith("acceptance@")}
    assert named == {"acceptance@neighbours", "acceptance@boosting"}
    assert cli.main([*few, *judges]) == 0
    words = capsys.readouterr().out
    shares = [f"{name.partition('@')[2]} {document[name]:.0%}" for name in sorted(named)]
    told = f"{document['acceptance']:.0%} of all cases ({', '.join(shares)})"
    assert told in words
    assert f"right in {document['jury_accuracy']:.0%} of all cases" in words
    assert "acceptance" not in ask(capsys, *few, "--judges", "none")
    assert cli.main([*few, "--judges", "none"]) == 0
    assert "Would the advice work" not in capsys.readouterr().out
    assert "'support vectors'" in complaint(capsys, *few, "--judges", "vectors")


def test_a_csv_file_is_trained_explained_and_measured(capsys, people):
    csv, model = people
    document = ask(
        capsys, "explain", model, "--data", csv, "--rows", "0-4", "--positive", "yes"
    )
    changed = {name for row in document["rows"] for name in row["changes"]}
    assert changed <= {"debt", "job"}
    falls = [row["changes"]["debt"] for row in document["rows"] if "debt" in row["changes"]]
    assert falls and all(0 <= change["to"] < change["from"] for change in falls)
    numbers = ask(capsys, "evaluate", model, "--data", csv, "--people", "20")
    assert set(numbers) >= METRICS and numbers["accuracy"] > 0.9
    assert (
        numbers["test_rows"] == 40
        and numbers["rows"] == f"40 rows held out of training (of 200 in {csv})"
    )


@pytest.mark.parametrize("gate", [None, "none", *repeats("density", "learned", "both")])
@pytest.mark.usefixtures("quick_gates")
def test_the_gate_asked_for_is_the_one_fitted_and_told(capsys, people, tmp_path, gate):
    command = [
        "train",
        people[0],
        "--target",
        "granted",
        "--epochs",
        "2",
        "--out",
        str(tmp_path / "m"),
    ]
    document = ask(capsys, *command, *([] if gate is None else ["--gate", gate]))
    kinds = {"none": [], "both": ["density", "learned"]}.get(gate, [gate or "density"])
    found = CounterfactualClassifier.load(tmp_path / "m").gate_
    assert [part["kind"] for part in (found.describe() if found is not None else [])] == kinds
    assert document["gate"] == (gate or "density")


def test_a_gate_does_not_depend_on_the_method(capsys, people, tmp_path):
    command = [
        "train",
        people[0],
        "--target",
        "granted",
        "--epochs",
        "2",
        "--method",
        "ct_published",
    ]
    gates = [
        ask(capsys, *command, *more, "--out", str(tmp_path / "m"))["gate"]
        for more in ([], ["--gate", "none"])
    ]
    assert gates == ["density", "none"]


def test_the_same_seed_gives_the_same_file(tmp_path):
    paths = [tmp_path / name for name in ("a.safetensors", "b.safetensors")]
    for path in paths:
        assert (
            cli.main(["train", "loan", "--epochs", "1", "--seed", "3", "--out", str(path)]) == 0
        )
    assert paths[0].read_bytes() == paths[1].read_bytes()


# ---- data ----------------------------------------------------------------------------------------


def test_data_list_names_the_nine_the_loan_example_and_fashion_mnist(capsys):
    document = ask(capsys, "data", "list")
    assert len(document["datasets"]) == 11
    assert {"moons", "adult", "mnist", "loan"} <= {
        entry["name"] for entry in document["datasets"]
    }


def test_data_info_of_a_synthetic_set_is_as_published(capsys):
    document = ask(capsys, "data", "info", "Circ")
    assert (document["train_rows"], document["test_rows"], document["columns"]) == (
        3600,
        900,
        2,
    )
    assert document["decision_threshold"] == 0.5 and document["lambda_reg"] == 0.5
    assert cli.main(["data", "info", "LS"]) == 0
    assert "3,600 to train, 900 to test" in capsys.readouterr().out


def test_data_fetch_tells_where_files_are(capsys, monkeypatch):
    files = [{"file": "gmsc.csv", "path": "somewhere/gmsc.csv", "origin": "the cache"}]
    monkeypatch.setattr(catalog, "fetch_dataset", lambda name, variant: files)
    assert ask(capsys, "data", "fetch", "gmsc") == {
        "name": "gmsc",
        "variant": "default",
        "files": files,
    }


# ---- what goes wrong -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "COMMAND"),
        (["trian"], "invalid choice"),
        (["train"], "DATASET"),
        (["train", "moons", "--epochs", "many"], "--epochs"),
        (["train", "moons", "--epochs", "0"], "argument --epochs: must be at least 1, got 0"),
        (["train", "moons", "--method", "conventionel"], "Did you mean 'conventional'"),
        (
            ["train", "moons", "--method", "ct_published(lambda_dif=1)"],
            "Did you mean 'lambda_div'",
        ),
        (["train", "lon"], "Did you mean 'loan'"),
        (["train", "moons", "--immutable", "x9"], "'x1', 'x2'"),
        (["train", "moons", "--hidden", "0"], "--hidden: widths must be positive, got 0."),
        (
            ["train", "moons", "--hidden", "64", "0"],
            "--hidden: widths must be positive, got 64, 0.",
        ),
        (["train", "moons", "--seed", "-1"], "argument --seed: must not be negative, got -1"),
        (["train", "moons", "--test-share", "0.3"], "--test-share is for CSV files"),
        (
            ["tune", "moons", "--method", "ct_published", "--test-share", "0.3"],
            "--test-share is for CSV files",
        ),
        (["train", "moons", "--target", "x1"], "CSV"),
        (["train", "moons", "--drop", "x1"], "CSV"),
        (["train", "moons", "--variant", "strange"], "as_run"),
        (["train", "missing.csv", "--target", "y"], "missing.csv"),
        (["data", "info", "adlt"], "adult"),
        (["explain", "missing.safetensors"], "missing.safetensors"),
        (["demo", "--out", "/dev/null/demo"], "/dev/null"),
    ],
)
def test_a_bad_command_ends_with_one_line(capsys, argv, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert said in complaint(capsys, *argv)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["explain", "MODEL"], "--data"),
        (["explain", "MODEL", "--data", "CSV", "--rows", "200"], "0 to 199"),
        (["explain", "MODEL", "--data", "CSV", "--rows", "first"], "--rows"),
        (["explain", "MODEL", "--data", "CSV", "--positive", "perhaps"], "'yes'"),
        (["explain", "CSV"], "not a file of this package"),
        (["evaluate", "MODEL", "--data", "CSV", "--target", "job"], "class"),
        (["train", "CSV"], "--target COLUMN, one of age, debt, job, granted"),
        (["train", "CSV", "--target", "debt"], "too many for classes"),
        (
            ["train", "CSV", "--target", "granted", "--positive", "maybe"],
            "Unknown class in --positive 'maybe'",
        ),
        (
            ["train", "CSV", "--target", "granted", "--immutable", "agee"],
            "column in --immutable 'agee'",
        ),
        (
            ["train", "CSV", "--target", "granted", "--immutable", "age", "--increase", "age"],
            "--increase",
        ),
        (
            ["train", "CSV", "--target", "granted", "--drop", "granted"],
            "--target and by --drop",
        ),
        (["train", "CSV", "--target", "granted", "--drop", "age,debt,job"], "Nothing is left"),
        (["train", "CSV", "--target", "grnted"], "Did you mean 'granted'"),
        (["train", "CSV", "--target", "granted", "--mutability", "age"], "COLUMN=VALUE"),
        (["train", "CSV", "--target", "granted", "--mutability", "agee=none"], "age"),
        (["train", "CSV", "--target", "granted", "--domain", "debt=much"], "LOW:HIGH"),
        (["train", "CSV", "--target", "granted", "--domain", "debt=9:1"], "debt"),
        (["train", "CSV", "--target", "granted", "--test-share", "1"], "--test-share"),
        (["train", "CSV", "--target", "granted", "--out", "."], "folder"),
    ],
)
def test_bad_input_with_a_csv_file_ends_with_one_line(capsys, people, argv, said):
    words = {"CSV": people[0], "MODEL": people[1]}
    assert said in complaint(capsys, *[words.get(word, word) for word in argv])


def test_a_model_of_one_set_does_not_pass_for_another(capsys, loan_model):
    assert "model of 'loan'" in complaint(capsys, "evaluate", loan_model, "--data", "moons")


def test_a_damaged_model_is_refused(capsys, loan_model, tmp_path):
    content = open(loan_model, "rb").read()  # noqa: SIM115, PTH123
    damaged = tmp_path / "damaged.safetensors"
    damaged.write_bytes(content[: len(content) // 2])
    assert "damaged" in complaint(capsys, "explain", str(damaged))


def test_ctrl_c_ends_with_130(capsys, monkeypatch):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(catalog, "list_datasets", interrupted)
    assert "interrupted" in complaint(capsys, "data", "list", code=130)


def test_an_unexpected_error_is_one_line_unless_debugging(capsys, monkeypatch):
    def broken(*_: object) -> None:
        raise RuntimeError("a bug\nof two lines")

    monkeypatch.setattr(catalog, "list_datasets", broken)
    assert "RuntimeError: a bug of two lines" in complaint(capsys, "data", "list", code=1)
    with pytest.raises(RuntimeError):
        cli.main(["data", "list", "--debug"])


def test_debug_shows_where_an_explained_error_comes_from(capsys):
    assert cli.main(["data", "info", "nothing", "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err


# ---- as a process --------------------------------------------------------------------------------


@pytest.mark.check
def test_as_a_process_stdout_is_json_and_notes_go_to_stderr():
    run = subprocess.run(
        [sys.executable, "-m", "counterfactual_training.cli", "data", "info", "loan", "--json"],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0 and json.loads(run.stdout)["name"] == "loan"
    assert run.stderr == ""


def test_version(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"ct {counterfactual_training.__version__}\n"


# ---- small parts ---------------------------------------------------------------------------------


def test_plain_values_are_json():
    value = {
        "a": np.float32(0.5),
        "b": float("nan"),
        3: (np.int64(1), float("inf")),
        "d": np.array([1.0, np.nan]),
    }
    assert json_value(value) == {"a": 0.5, "b": None, "3": [1, None], "d": [1.0, None]}


def test_rows_are_picked_by_number_and_keep_it():
    frame = pd.DataFrame({"a": [10, 11, 12, 13, 14]})
    assert pick_rows(frame, "4,0-2").index.tolist() == [4, 0, 1, 2]
    assert pick_rows(frame, "4,0-2")["a"].tolist() == [14, 10, 11, 12]
    for wrong in ("5", "3-9", "-1", "", "2-1"):
        with pytest.raises(InputError):
            pick_rows(frame, wrong)


def test_assignments_and_intervals():
    assert assignments(["age=none", "a=b=decrease"], "mutability") == {
        "age": "none",
        "a=b": "decrease",
    }
    assert interval_ends("18:90") == (18.0, 90.0)
    assert interval_ends(":5") == (None, 5.0)
    assert interval_ends("0:") == (0.0, None)


def test_columns_are_separated_by_commas_unless_that_is_their_name():
    assert columns(["age,sex", "debt"], ["age", "sex", "debt"], "--drop") == [
        "age",
        "sex",
        "debt",
    ]
    assert columns(["debt, in EUR"], ["debt, in EUR", "age"], "--drop") == ["debt, in EUR"]


def test_settings_are_python_literals_or_text():
    assert settings(["burn_in=0.1", "adversarial_label=predicted"]) == {
        "burn_in": 0.1,
        "adversarial_label": "predicted",
    }
    with pytest.raises(InputError, match="NAME=VALUE"):
        settings(["burn_in"])
