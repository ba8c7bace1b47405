"""``ct tune``: what it prints and writes, and what it refuses."""

import json
import sys

import numpy as np
import pandas as pd
import pytest

import counterfactual_training as ct
from counterfactual_lab.tuning import RANGES
from counterfactual_training.cli import main
from counterfactual_training.tables.estimators.classifier import CounterfactualClassifier

pytest.importorskip("optuna", reason="tuning needs the extra 'lab'")
pytest.importorskip("matplotlib", reason="figures need the extra 'lab'")


@pytest.fixture
def ranges(tmp_path):
    """Few settings, of which few are tried."""
    path = tmp_path / "ranges.toml"
    fixed = [f'{name} = "published"' for name in RANGES if name != "objective.lambda_reg"]
    path.write_text("\n".join([*fixed, "lambda_reg = [0.01, 0.02]"]))
    return str(path)


@pytest.mark.check
def test_a_study_from_start_to_confirmation(tmp_path, ranges, capsys):
    out = tmp_path / "tuned"
    command = [
        "tune",
        "--method",
        "ct_published",
        "loan",
        "--trials",
        "2",
        "--batch",
        "2",
        "--epochs",
        "2",
        "--space",
        ranges,
        "--out",
        str(out),
    ]
    assert main([*command, "--at-most-lost", "90"]) == 0
    printed = capsys.readouterr()
    assert (
        "2 trials" in printed.out and "published" in printed.out and "lambda_reg" in printed.out
    )
    assert "[2/2] best ip" in printed.err
    assert main([*command, "--at-most-lost", "90", "--confirm", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (
        document["trials"] == 2
        and document["confirmation"]["trial"] == document["best"]["trial"]
    )
    assert document["best"]["implausibility"] <= document["published"]["implausibility"]
    table = pd.read_csv(out / "trials.csv")
    assert table["published"].tolist() == [True, False]
    for name in (
        "best.toml",
        "front.png",
        "importance.png",
        "confirmation.json",
        "study.journal",
    ):
        assert (out / name).stat().st_size > 0
    assert main([*command, "--at-most-lost", "90", "--confirm"]) == 0
    assert "looked at before" in capsys.readouterr().err
    assert main([*command, "--at-most-lost", "80"]) == 2
    assert "was made for something else: goal" in capsys.readouterr().err


@pytest.mark.check
@pytest.mark.parametrize(
    "confirm", [False]
)  # tests/lab/tuning/test_data_tasks.py confirms a gate, too
def test_a_gate_is_tuned_and_named_in_the_grid_file(tmp_path, capsys, confirm):
    space, out = tmp_path / "space.toml", tmp_path / "tuned"
    space.write_text(
        "\n".join([*(f'{name} = "published"' for name in RANGES), 'gate = ["none", "density"]'])
    )
    command = [
        "tune",
        "--method",
        "ct_published",
        "loan",
        "--trials",
        "2",
        "--batch",
        "2",
        "--epochs",
        "6",
        "--space",
        str(space),
    ]
    assert (
        main(
            [
                *command,
                "--out",
                str(out),
                "--at-most-lost",
                "90",
                *(["--confirm"] if confirm else []),
            ]
        )
        == 0
    )
    printed = capsys.readouterr().out
    assert any(line.split() == ["gate", "none", "density"] for line in printed.splitlines())
    assert 'gate = "density"' in (out / "best.toml").read_text()
    assert (out / "confirmation.json").exists() == confirm
    if confirm:
        means = json.loads((out / "confirmation.json").read_text())["mean"]
        assert means["tuned"]["accuracy"] == means["published"]["accuracy"]
        assert means["tuned"]["implausibility"] < means["published"]["implausibility"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["moon.csv", "--target", "y"], "There is no file 'moon.csv'"),
        (["loan", "--target", "y"], "--target is for CSV files"),
        (["moonz"], "Did you mean"),
        (["loan", "--improve", "costt"], "Did you mean 'cost'"),
        (["loan", "--objectives", "ip,ip"], "different"),
        (["loan", "--space", "no-such-file.toml"], "cannot be read"),
        pytest.param(
            ["loan", "--storage", "postgresql://a:secret@127.0.0.1:1/b"],
            "does not answer",
            marks=pytest.mark.check,  # needs psycopg
        ),
    ],
)
def test_bad_input_is_refused_in_a_sentence(tmp_path, capsys, options, message):
    assert (
        main(
            [
                "tune",
                "--method",
                "ct_published",
                *options,
                "--epochs",
                "1",
                "--out",
                str(tmp_path),
            ]
        )
        == 2
    )
    said = capsys.readouterr().err
    assert message in said and "secret" not in said and "Traceback" not in said


@pytest.mark.check
def test_a_csv_file_is_tuned_like_a_named_data_set(tmp_path, capsys):
    rng = np.random.default_rng(0)
    people = pd.DataFrame(
        {
            "id": np.arange(120),
            "age": rng.integers(20, 70, 120),
            "debt": rng.gamma(2, 2, 120).round(1),
        }
    )
    people["paid"] = np.where(people["debt"] < 3, "yes", "no")
    people.to_csv(tmp_path / "people.csv", index=False, sep=";", decimal=",")
    space = tmp_path / "space.toml"
    fixed = [f'{name} = "published"' for name in RANGES if name != "objective.lambda_reg"]
    space.write_text("\n".join([*fixed, "lambda_reg = [0.01, 0.02]"]))
    csv, out = str(tmp_path / "people.csv"), tmp_path / "tuned"
    command = [
        "tune",
        "--method",
        "ct_published",
        csv,
        "--target",
        "paid",
        "--positive",
        "yes",
        "--immutable",
        "age",
        "--space",
        str(space),
    ]
    more = [
        "--trials",
        "2",
        "--batch",
        "2",
        "--epochs",
        "3",
        "--at-most-lost",
        "90",
        "--confirm",
        "--out",
        str(out),
    ]
    assert main([*command, *more, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (
        document["data"] == "people"
        and document["trials"] == 2
        and document["confirmation"]["test_rows"] == 24
    )
    for name in (
        "trials.csv",
        "front.png",
        "importance.png",
        "confirmation.json",
        "study.journal",
    ):
        assert (out / name).stat().st_size > 0
    assert not (out / "best.toml").exists()
    classifier = CounterfactualClassifier.load(out / "model.safetensors")
    found = document["best"]["settings"]["objective.lambda_reg"]
    assert ct.make_method(classifier.method).objective.lambda_reg == found
    assert (
        main(
            [
                "evaluate",
                str(out / "model.safetensors"),
                "--data",
                csv,
                "--people",
                "4",
                "--json",
            ]
        )
        == 0
    )
    assert json.loads(capsys.readouterr().out)["rows"].startswith(
        "24 rows held out of training (of 120"
    )


def test_without_its_extra_it_names_the_extra(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert (
        main(
            [
                "tune",
                "--method",
                "ct_published",
                "loan",
                "--storage",
                "postgresql://a@127.0.0.1:1/b",
                "--out",
                str(tmp_path),
            ]
        )
        == 2
    )
    said = (
        'optuna is not installed. Install it with: pip install "counterfactual-training[lab]".'
    )
    assert capsys.readouterr().err == f"ct: {said}\n"


@pytest.mark.parametrize("option", ["--epochs", "--trials", "--seeds"])
def test_nothing_is_trained_for_no_time(capsys, option):
    with pytest.raises(SystemExit) as stop:
        main(["tune", "--method", "ct_published", "loan", option, "0"])
    assert stop.value.code == 2
    assert f"argument {option}: must be at least 1, got 0" in capsys.readouterr().err


def test_conventional_training_has_nothing_to_tune(tmp_path, capsys):
    out = tmp_path / "out"
    assert (
        main(
            [
                "tune",
                "--method",
                "ct_published",
                "loan",
                "--method",
                "conventional",
                "--out",
                str(out),
            ]
        )
        == 2
    )
    said = capsys.readouterr().err
    assert "nothing to tune: --method ct_published trains with counterfactuals" in said
    assert not out.exists()
