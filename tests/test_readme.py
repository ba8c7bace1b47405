"""What the README says runs as written, only shorter."""

import re
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingClassifier

import counterfactual_training as ct
from counterfactual_training.cli import main

README = (Path(__file__).parent.parent / "README.md").read_text()
DATAFRAME, FOREIGN, MODULE, OWN_LOOP, CALLBACKS, FLEET, GATE, REGIME = re.findall(
    r"```python\n(.*?)```", README, re.DOTALL
)
COMMANDS = [line.split("#")[0].strip() for line in README.splitlines() if re.match(r"ct \w+", line)]


def test_a_dataframe_and_a_question(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code = DATAFRAME.replace("CounterfactualClassifier(", "CounterfactualClassifier(epochs=5, ", 1)
    exec(compile(code, "README.md", "exec"), {})  # noqa: S102
    assert re.search(r"Row \d+: with debt .* the decision would be 'loan granted'", capsys.readouterr().out)
    assert (tmp_path / "loan.safetensors").is_file()


def test_a_model_trained_elsewhere(capsys):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.integers(20, 70, 200), "debt": rng.gamma(2, 10, 200).round(1)})
    labels = np.where(frame["debt"] < 15 + frame["age"] / 20, "granted", "denied")
    scope = {"ct": ct, "train_frame": frame, "train_labels": labels}
    scope["boosting"] = HistGradientBoostingClassifier(max_iter=20).fit(frame, labels)
    exec(compile(FOREIGN, "README.md", "exec"), scope)  # noqa: S102
    assert "Row 0, option 1: with debt " in capsys.readouterr().out


def test_your_own_network_and_loop(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    x, y = ct.load_dataset("moons").x_train[:300], ct.load_dataset("moons").y_train[:300]
    scope = {"ct": ct, "MyNetwork": lambda: ct.mlp(2, 2), "x": x, "y": y, "x_val": x, "y_val": y}
    exec(compile(MODULE.replace("epochs=100", "epochs=2"), "README.md", "exec"), scope)  # noqa: S102
    assert scope["result"].history.last("epoch") == 2
    scope |= {"y_target": 1 - y, "x_pos": x.flip(0)}
    exec(compile(OWN_LOOP, "README.md", "exec"), scope)  # noqa: S102
    assert torch.isfinite(scope["loss"])
    short = CALLBACKS.replace("callbacks=callbacks", "callbacks=callbacks, config=ct.TrainConfig(epochs=2)")
    exec(compile(short, "README.md", "exec"), scope | {"torch": torch})  # noqa: S102
    exec(compile(FLEET.replace("TrainConfig(", "TrainConfig(epochs=2, "), "README.md", "exec"), scope)  # noqa: S102
    assert [r.history.last("epoch") for r in scope["results"]] == [2] * 15
    exec(compile(GATE, "README.md", "exec"), scope)  # noqa: S102
    assert scope["gated"](x).shape == (300, 3) and scope["found"].x_cf.shape == x.shape
    assert len(REGIME.strip().splitlines()) < 20
    short = REGIME.replace("constraints=constraints)\n", "constraints=constraints, config=ct.TrainConfig(epochs=1))\n")
    exec(compile(short, "README.md", "exec"), scope)  # noqa: S102
    own = ct.Setting(regime=ct.Regime("own", scope["loss"], scope["find"]), config=ct.TrainConfig(epochs=1))
    assert len(ct.Fleet([ct.Member(ct.mlp(2, 2), own.seeded(seed)) for seed in (0, 1)]).train(x, y)) == 2


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_are_understood(command, capsys):
    words = shlex.split(command)[1:]
    with pytest.raises(SystemExit) as done:
        main([*words, "--help"])
    assert done.value.code == 0
    options = [word for word in words if word.startswith("--")]
    told = capsys.readouterr().out
    assert all(option in told for option in options)
