"""``--register``: methods of a user's own file take part in commands, in worker processes too."""

import json
from pathlib import Path

import pytest

from counterfactual_training.cli import main
from counterfactual_training.engine.launch import Engine, Failed, launch
from counterfactual_training.errors import FileError, InputError
from counterfactual_training.registered import _files, register_file
from counterfactual_training.training.registry import METHODS, make_method

NOISE = '''
import counterfactual_training as ct


@ct.register_method
def noise(scale: float = 0.1):
    """Rows with noise on them."""

    def find(now):
        return now.x + scale * now.normal()

    def loss(model, batch, noisy):
        logits = model(noisy)
        fit = ct.class_loss(logits, batch.y, batch.weight)
        return ct.LossTerms.sum(logits, class_loss=fit)

    return ct.Method(loss=loss, find=find)
'''
GRID = """
data = "LS"
method = ["noise", "noise(scale=0.5)"]
[training]
epochs = 2
batch_size = 500
[evaluation]
num_individuals = 5
num_runs = 1
lambda_energy = 1.0
max_steps = 5
langevin_steps = 2
"""


@pytest.fixture
def noise(tmp_path):
    path = tmp_path / "noise.py"
    path.write_text(NOISE)
    yield str(path)
    METHODS.pop("noise", None)
    _files.clear()


def known(shared, name):
    """Whether a worker knows a method."""
    return make_method(name).name


def test_a_file_registers_methods_here_and_in_workers(noise):
    with pytest.raises(InputError, match="Unknown method 'noise'"):
        make_method("noise")
    register_file(noise)
    assert make_method("noise(scale=0.2)").numbers == {"scale": 0.2}
    assert dict(launch(known, ["noise", "ct_published"], engine=Engine(workers=2))) == {
        "noise": "noise",
        "ct_published": "ct_published",
    }
    _files.clear()
    (_, lost), *_ = launch(known, ["noise", "noise"], engine=Engine(workers=2))
    assert isinstance(lost, Failed) and "Unknown method" in lost.reason


def test_a_file_that_cannot_be_run_is_told(tmp_path):
    with pytest.raises(FileError, match="cannot be read"):
        register_file(tmp_path / "nothing.py")
    path = tmp_path / "wrong.py"
    path.write_text("1 / 0")
    with pytest.raises(InputError, match="fails while it registers: ZeroDivisionError"):
        register_file(path)


@pytest.mark.check
def test_a_grid_of_a_registered_method(noise, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("noise.toml").write_text(GRID)
    assert main(["grid", "run", "noise.toml", "--dry-run"]) == 2
    assert "Unknown method 'noise'" in capsys.readouterr().err
    assert main(["grid", "run", "noise.toml", "--register", noise, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["failures"] == {}
    assert "noise(scale=0.5)" in Path("grids/noise_summary.csv").read_text()


@pytest.mark.check
def test_a_registered_method_is_compared(noise, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    what = [
        "--data",
        "LS",
        "--methods",
        "noise(scale=0.3, epochs=1), noise(epochs=1) + density",
    ]
    how = ["--register", noise, "--seeds", "1", "--generators", "generic", "--json"]
    assert main(["compare", *what, *how]) == 0
    found = json.loads(capsys.readouterr().out)["tables"]["arena_overview"]
    assert {row["method"] for row in found} == {
        "conventional",
        "noise(scale=0.3, epochs=1)",
        "noise(epochs=1) + density",
    }


@pytest.mark.check
def test_a_registered_method_is_tuned_and_trained(noise, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("ranges.toml").write_text('scale = [0.1, 0.4]\ntraining.learning_rate = "published"\n')
    what = ["--method", "noise", "--space", "ranges.toml", "--trials", "2", "--epochs", "2"]
    assert main(["tune", "loan", *what, "--register", noise, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["best"]["settings"]["scale"] in (0.1, 0.4)
    assert 'method = "noise(scale=' in Path("tuned/best.toml").read_text()
    train = ["train", "loan", "--method", "noise(epochs=2)", "--register", noise]
    assert main([*train, "--out", "noise.safetensors", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["method"] == "noise(epochs=2)"
