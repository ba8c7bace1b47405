"""`ct explain --all`: every row of a file, in blocks, in their order, resumed where it was
stopped.
"""

import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from counterfactual_training.cli import main, saved_models
from counterfactual_training.engine.launch import Engine
from counterfactual_training.errors import CounterfactualTrainingError, InputError
from counterfactual_training.persistence import locked
from counterfactual_training.tables import portfolio
from counterfactual_training.tables.estimators.classifier import CounterfactualClassifier
from counterfactual_training.tables.portfolio import Pending, explain_file

ROWS = 60
ALONE = ["--workers", "1"]


def make_people(n: int) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "age": rng.integers(18, 80, n),
            "debt": rng.gamma(2, 10, n).round(1),
            "job": rng.choice(["clerk", "cook", "nurse"], n),
        }
    )
    frame["granted"] = np.where(
        frame["debt"] - 0.2 * frame["age"] + 5 * (frame["job"] == "cook") < 10, "yes", "no"
    )
    return frame


def fit() -> CounterfactualClassifier:
    people = make_people(200)
    classifier = CounterfactualClassifier(mutability={"age": "none"}, epochs=10, random_state=0)
    return classifier.fit(people.drop(columns="granted"), people["granted"])


@pytest.fixture
def files(share, tmp_path, monkeypatch) -> tuple[str, str, str]:
    """Model, data, and where answers go; blocks of 20 rows."""
    monkeypatch.setattr(saved_models, "BLOCK_ROWS", 20)
    model, data = tmp_path / "people.safetensors", tmp_path / "people.csv"
    share("portfolio", fit).save(model)
    people = make_people(ROWS)
    people.insert(0, "customer", [f"{7 * i:05d}" for i in range(ROWS)])
    people.to_csv(data, index=False)
    return str(model), str(data), str(tmp_path / "answers.csv")


def command(files: tuple[str, str, str], *options: str) -> list[str]:
    model, data, out = files
    return [
        "explain",
        model,
        "--data",
        data,
        "--all",
        "--out",
        out,
        "--positive",
        "yes",
        *options,
    ]


def complaint(capsys, *argv: str) -> str:
    assert main(list(argv)) == 2
    return " ".join(capsys.readouterr().err.split())


def answers(path: str) -> pd.DataFrame:
    return pd.read_csv(path, dtype={"customer": str}, keep_default_na=True)


# ---- answers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [1, 2])
def test_answers_are_those_of_one_call_in_the_order_of_the_rows(files, options):
    model, data, out = files
    assert main(command(files, *ALONE, "--label", "customer", "--options", str(options))) == 0
    people = pd.read_csv(data).drop(columns=["customer", "granted"])
    told = (
        CounterfactualClassifier.load(model).explain(people, "yes", n_options=options).records()
    )
    table = answers(out)
    assert len(table) == len(told) >= ROWS
    assert table["row"].tolist() == [record["row"] for record in told]
    assert table["option"].tolist() == [record.get("option", 1) for record in told]
    assert table["customer"].tolist() == [f"{7 * record['row']:05d}" for record in told]
    for name in ("status", "answered", "decision", "target", "prediction", "num_changed"):
        assert table[name].tolist() == [record[name] for record in told], name
    for name in ("confidence", "plausibility", "cost"):
        wanted = np.array([record[name] for record in told], dtype=float)
        np.testing.assert_allclose(table[name], wanted, rtol=1e-4, atol=1e-6, err_msg=name)
    for line, record in zip(table.to_dict("records"), told, strict=True):
        assert record["sentence"].lower().endswith(line["sentence"].lower())
        changed = {
            name: line[f"{name}_after"]
            for name in ("debt", "job")
            if not pd.isna(line[f"{name}_after"])
        }
        assert changed == {name: change["to"] for name, change in record["changes"].items()}
    # What may not change has no column.
    assert "age_after" not in table.columns


def test_the_answers_are_written_as_the_data_are(files):
    _, data, out = files
    pd.read_csv(data, dtype={"customer": str}).to_csv(data, sep=";", decimal=",", index=False)
    assert main(command(files, *ALONE, "--lock", "job")) == 0
    table = pd.read_csv(out, sep=";", decimal=",")
    assert table["debt_after"].dtype == table["cost"].dtype == np.float64
    assert "job_after" not in table.columns and table["num_changed"].sum() > 0
    assert (
        Path(out).read_bytes().startswith(b"\xef\xbb\xbf")
    )  # or Excel takes UTF-8 for something else


def test_the_document_counts(files, capsys):
    assert main([*command(files, *ALONE), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    table = answers(files[2])
    assert document["rows"] == ROWS and document["resumed"] == 0
    assert document["status"] == table["status"].value_counts().to_dict()
    assert not Path(f"{files[2]}.parts").exists()


def test_progress_goes_to_stderr(files, capsys):
    assert main(command(files, *ALONE)) == 0
    told = capsys.readouterr()
    assert f"{ROWS} of {ROWS} rows" in told.err and "about" in told.err
    assert told.out.startswith(f"{ROWS} row(s) explained")


def test_names_without_rows_give_names_without_rows(files):
    Path(files[1]).write_text("age,debt,job\n")
    assert main(command(files, *ALONE)) == 0
    assert len(answers(files[2])) == 0


def test_python_gives_the_same_file(files, tmp_path):
    model, data, out = files
    other = tmp_path / "other.csv"
    assert main(command(files, *ALONE, "--label", "customer")) == 0
    told = explain_file(
        model,
        data,
        other,
        target="yes",
        label="customer",
        n_options=1,
        engine=Engine(workers=1),
        block_rows=20,
    )
    assert (told.rows, told.out, sum(told.status.values())) == (ROWS, other, ROWS)
    assert other.read_bytes() == Path(out).read_bytes()


@pytest.mark.filterwarnings("always")
def test_a_category_that_training_never_saw_is_told_once(files, capsys):
    data = Path(files[1])
    data.write_text(data.read_text().replace("nurse", "pilot"))
    assert main(command(files, *ALONE)) == 0
    told = capsys.readouterr().err
    assert 1 <= told.count("'pilot'") <= 3 and "rows 0 to 19" in told


# ---- memory --------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_blocks", [5, 50])
def test_few_blocks_are_held_however_many_there_are(num_blocks):
    read = []

    def blocks():
        for number in range(num_blocks):
            read.append(number)
            yield pd.DataFrame({"a": [number]})

    pending = Pending(blocks, [number for number in range(num_blocks) if number != 2])
    running = []
    # As an engine of three workers asks.
    for index in range(len(pending)):
        running.append(pending[index])
        if len(running) == 3:
            assert len(read) <= running[-1].number + 1, "nothing is read ahead"
            again = pending[index - 2]
            assert again is running[0], "held for a second attempt"
            pending.release(running.pop(0))
    assert pending.most == 3
    assert [block.number for block in running] == list(range(num_blocks))[-2:]


def test_one_worker_holds_one_block(files, monkeypatch):
    seen = []
    original = Pending.release
    monkeypatch.setattr(
        Pending, "release", lambda self, block: (original(self, block), seen.append(self.most))
    )
    assert main(command(files, *ALONE)) == 0
    assert seen == [1] * 3


# ---- resuming ------------------------------------------------------------------------------------


def stop_after(number: int, monkeypatch) -> list[int]:
    """Let a run end after so many blocks, as Ctrl-C would; returns the blocks that were kept."""
    kept: list[int] = []
    original = portfolio.Parts.write

    def write(self, block, answered):
        if len(kept) == number:
            raise KeyboardInterrupt
        kept.append(block)
        original(self, block, answered)

    monkeypatch.setattr(portfolio.Parts, "write", write)
    return kept


@pytest.fixture
def stopped(files, monkeypatch, capsys) -> tuple[str, str, str]:
    """Two of three blocks are done."""
    with monkeypatch.context() as patch:
        kept = stop_after(2, patch)
        assert main(command(files, *ALONE)) == 130
    assert kept == [0, 1] and not Path(files[2]).exists()
    capsys.readouterr()
    return files


def test_a_stopped_run_goes_on_and_ends_in_the_same_file(
    stopped, tmp_path, monkeypatch, capsys
):
    kept = stop_after(99, monkeypatch)
    assert main([*command(stopped, *ALONE), "--json"]) == 0
    assert kept == [2], "what was done is not done again"
    told = capsys.readouterr()
    assert (
        json.loads(told.out)["resumed"] == 40
        and "40 of 60 rows were explained before" in told.err
    )
    whole = (*stopped[:2], str(tmp_path / "whole.csv"))
    assert main(command(whole, *ALONE)) == 0
    assert Path(stopped[2]).read_bytes() == Path(whole[2]).read_bytes()


def test_another_question_is_refused(stopped, capsys):
    told = complaint(capsys, *command(stopped, *ALONE, "--lock", "debt"))
    assert (
        "lock was nothing, now ['debt']" in told
        and "answers.csv.parts" in told
        and "delete" in told
    )
    assert "n_options was 1, now 2" in complaint(
        capsys, *command(stopped, *ALONE, "--options", "2")
    )


def test_another_file_is_refused(stopped, capsys):
    data = Path(stopped[1])
    data.write_text(data.read_text().replace("cook", "clerk"))
    assert "the data file had another content" in complaint(capsys, *command(stopped, *ALONE))


def test_another_model_is_refused(stopped, capsys):
    people = make_people(150)
    other = CounterfactualClassifier(mutability={"age": "none"}, epochs=1, random_state=1)
    other.fit(people.drop(columns="granted"), people["granted"]).save(stopped[0])
    assert "the model file had another content" in complaint(capsys, *command(stopped, *ALONE))


def test_only_one_process_at_a_time_writes_a_file(stopped, capsys):
    with locked(Path(f"{stopped[2]}.parts") / "lock", timeout=0):
        assert "Another process" in complaint(capsys, *command(stopped, *ALONE))
    assert main(command(stopped, *ALONE)) == 0


def test_a_folder_of_something_else_is_not_touched(files, capsys):
    folder = Path(f"{files[2]}.parts")
    folder.mkdir()
    (folder / "letters.txt").write_text("mine")
    assert "other files" in complaint(capsys, *command(files, *ALONE))
    assert [path.name for path in folder.iterdir()] == ["letters.txt"]


def test_blocks_that_fail_are_tried_again(files, monkeypatch, capsys):
    original = portfolio._explained
    with monkeypatch.context() as patch:
        patch.setattr(
            portfolio, "_explained", lambda shared, block: _odd(original, shared, block)
        )
        told = complaint(capsys, *command(files, *ALONE))
    assert (
        "1 of 3 blocks of rows failed" in told and "no luck" in told and "rows 20 to 39" in told
    )
    assert not Path(files[2]).exists()
    kept = stop_after(99, monkeypatch)
    assert main(command(files, *ALONE)) == 0
    assert kept == [1]


def _odd(original, shared, block):
    if block.number % 2:
        raise CounterfactualTrainingError("no luck.")
    return original(shared, block)


# ---- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--rows", "0-3"], "leave one of the two out"),
        (["--workers", "0"], "workers must be 1 or more, got 0"),
        (["--label", "custmer"], "Did you mean 'customer'?"),
        (["--lock", "dept"], "Did you mean 'debt'?"),
        (["--options", "0"], "--options must"),
        (["--confidence", "2"], "--confidence must"),
        (["--address", "host:1", "--engine", "processes"], "Ray"),
    ],
)
def test_bad_options(files, options, words, capsys):
    assert words in complaint(capsys, *command(files, *options))
    assert not Path(f"{files[2]}.parts").exists()


@pytest.mark.parametrize(
    "options", [["--out", "x.csv"], ["--workers", "2"], ["--label", "customer"]]
)
def test_options_of_all_need_all(files, options, capsys):
    assert "is for --all" in complaint(
        capsys, "explain", files[0], "--data", files[1], *options
    )


def test_all_needs_a_file_to_write_that_it_does_not_read(files, capsys):
    model, data, _ = files
    base = ["explain", model, "--data", data, "--all"]
    assert "--out" in complaint(capsys, *base)
    before = Path(data).read_bytes(), Path(model).read_bytes()
    assert "would overwrite" in complaint(capsys, *base, "--out", data)
    assert "would overwrite" in complaint(capsys, *base, "--out", model)
    assert (Path(data).read_bytes(), Path(model).read_bytes()) == before


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda lines: [], "is empty"),
        (
            lambda lines: [line.rsplit(",", 2)[0] for line in lines],
            "lacks 1 column(s) that the model needs: 'job'",
        ),
        (
            lambda lines: [*lines[:40], lines[40].replace(",", ",,", 1), *lines[41:]],
            "line 41: 6 cells",
        ),
        (
            lambda lines: [*lines[:40], "1,a lot,2.5,cook,no", *lines[41:]],
            "line 41: 'age' is 'a lot'",
        ),
        (lambda lines: [*lines[:40], "1,30,,cook,no", *lines[41:]], "line 41: "),
        (
            lambda lines: [*lines[:40], "1,30,inf,cook,no", *lines[41:]],
            "line 41: 'debt' is infinity",
        ),
    ],
    ids=["empty", "a column less", "a cell more", "text for a number", "a blank", "infinity"],
)
def test_bad_files(files, change, words, capsys):
    data = Path(files[1])
    data.write_text("\n".join(change(data.read_text().splitlines())))
    told = complaint(capsys, *command(files, *ALONE))
    assert words in told
    # Found before anything was searched: a corrected file is another one.
    assert not Path(f"{files[2]}.parts").exists()


def test_python_is_told_the_row(files, tmp_path):
    model, data, _ = files
    text = Path(data).read_text().splitlines()
    text[40] = "1,30,,cook,no"
    Path(data).write_text("\n".join(text))
    with pytest.raises(InputError, match="row 39 of"):
        explain_file(model, data, tmp_path / "x.csv", engine=Engine(workers=1))
    with pytest.raises(InputError, match="no file"):
        explain_file(model, tmp_path / "none.csv", tmp_path / "x.csv")


# ---- processes -----------------------------------------------------------------------------------


# Kills itself once two blocks are kept.
KILLED = """
import os, signal, sys
from pathlib import Path
from counterfactual_training.cli import main, saved_models
from counterfactual_training.tables.portfolio import Parts
original = Parts.write
def write(self, block, answered):
    original(self, block, answered)
    if len([path for path in self.folder.iterdir() if path.name.isdigit()]) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
if __name__ == "__main__":
    saved_models.BLOCK_ROWS = 20
    Parts.write = write
    main(sys.argv[1:])
"""


@pytest.mark.check
@pytest.mark.parametrize("workers", ["1", "2"])
def test_killed_in_the_middle_and_started_again(files, tmp_path, workers):
    whole = (*files[:2], str(tmp_path / "whole.csv"))
    assert main(command(whole, *ALONE)) == 0
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    killed = subprocess.run(
        [sys.executable, str(script), *command(files, "--workers", workers)], check=False
    )
    assert killed.returncode == -signal.SIGKILL
    folder = Path(f"{files[2]}.parts")
    assert (
        len([path for path in folder.iterdir() if path.name.isdigit()]) == 2
        and not Path(files[2]).exists()
    )
    assert main(command(files, "--workers", workers)) == 0
    assert Path(files[2]).read_bytes() == Path(whole[2]).read_bytes()


@pytest.mark.check
def test_processes_hold_a_block_each(files, tmp_path, monkeypatch):
    data = Path(files[1])
    head, *lines = data.read_text().splitlines()
    data.write_text("\n".join([head, *lines * 5]))
    held = []
    original = Pending.release
    monkeypatch.setattr(
        Pending, "release", lambda self, block: (original(self, block), held.append(self.most))
    )
    assert main(command(files, "--workers", "2")) == 0
    assert len(held) == 15 and max(held) <= 3
    assert answers(files[2])["row"].tolist() == list(range(5 * ROWS))


@pytest.mark.check
def test_ray_gives_the_same_file(files, tmp_path):
    pytest.importorskip("ray")
    whole = (*files[:2], str(tmp_path / "whole.csv"))
    assert main(command(whole, *ALONE)) == 0
    assert main(command(files, "--engine", "ray", "--workers", "1")) == 0
    assert Path(files[2]).read_bytes() == Path(whole[2]).read_bytes()


@pytest.mark.parametrize("question", [{}, {"lasting": 0.8}, {"lasting": 0}])
def test_answers_of_a_model_with_witnesses_say_how_long_they_last(share, tmp_path, question):
    people = make_people(200)
    fitted = share("portfolio", fit)
    fitted.add_witnesses(people.drop(columns="granted"), people["granted"], 4)
    fitted.save(tmp_path / "asked.safetensors")
    make_people(12).to_csv(tmp_path / "few.csv", index=False)
    paths = [tmp_path / name for name in ("asked.safetensors", "few.csv", "answers.csv")]
    explain_file(*paths, target="yes", **question, engine=Engine(workers=1))
    answers = pd.read_csv(paths[-1])
    told = fitted.explain(make_people(12).drop(columns="granted"), "yes", **question).summary
    beside = [name for name in answers.columns if name.startswith("just_enough")]
    assert len(beside) == (0 if question == {"lasting": 0} else 3)
    for name in ("holds", "reached"):
        assert answers[name].tolist() == told[name].tolist()
    for name in ("probability", *beside):
        np.testing.assert_allclose(answers[name], told[name], rtol=1e-4, atol=1e-3)
