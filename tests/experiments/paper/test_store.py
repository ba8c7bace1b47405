"""The folder of finished cells: atomic, of one format, of one version."""

import json

import pandas as pd
import pytest
import torch

from counterfactual_training.errors import FileError
from counterfactual_training.experiments.paper.cells import FORMAT, Cell
from counterfactual_training.experiments.paper.store import Store, check_versions
from counterfactual_training.models import linear

CELL = Cell("LS", "full", seed=2, changes=(("burn_in", 0.5),))


def filled(root, cell=CELL) -> Store:
    store = Store(root)
    store.create()
    history = pd.DataFrame([{"epoch": 1, "share_mature": float("nan")}, {"epoch": 2, "share_mature": 0.1 + 0.2}])
    store.save_model(cell, linear(2, 2), history, 1.5)
    store.save_result(cell, {"a": torch.arange(3.0)}, {"accuracy": 0.5, "f1": float("nan")}, {}, "ct", 2.5)
    return store


def test_what_is_saved_is_loaded(tmp_path):
    store = filled(tmp_path)
    found = store.load(CELL)
    assert found.array("a").tolist() == [0.0, 1.0, 2.0]
    assert found.numbers["accuracy"] == 0.5 and found.numbers["f1"] != found.numbers["f1"]
    assert found.history["share_mature"].isna().tolist() == [True, False]
    assert found.history["share_mature"][1] == 0.1 + 0.2
    assert found.done["seconds"] == {"train": 1.5, "evaluate": 2.5}
    assert {"command", "versions", "date"} <= set(found.done)
    assert store.cells() == [CELL]


def test_the_model_comes_back_with_its_weights(tmp_path):
    store = Store(tmp_path)
    model = linear(2, 2)
    store.save_model(CELL, model, pd.DataFrame([{"epoch": 1}]), 0.0)
    other = store.load_model(CELL, linear(2, 2))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_a_cell_without_its_marker_is_not_done(tmp_path):
    store = filled(tmp_path)
    (store.folder(CELL) / "done.json").unlink()
    assert not store.is_done(CELL) and store.is_trained(CELL) and store.cells() == []
    with pytest.raises(FileError, match="LS full seed 2"):
        store.load(CELL)


def test_another_format_is_refused_with_the_reason(tmp_path):
    filled(tmp_path)
    (tmp_path / "store.json").write_text(json.dumps({"format": FORMAT + 1}))
    with pytest.raises(FileError, match=f"format {FORMAT + 1}, this version writes format {FORMAT}"):
        Store(tmp_path)
    (tmp_path / "store.json").unlink()
    with pytest.raises(FileError, match=r"no store\.json"):
        Store(tmp_path)


def test_results_of_different_versions_are_not_mixed(tmp_path):
    store = filled(tmp_path)
    other = Cell("LS", "vanilla")
    filled(tmp_path, other)
    marker = store.folder(other) / "done.json"
    content = json.loads(marker.read_text())
    content["versions"]["counterfactual-training"] = "0.0.1"
    marker.write_text(json.dumps(content))
    with pytest.raises(FileError, match=r"0\.0\.1 and"):
        check_versions([store.load(CELL), store.load(other)])
    with pytest.raises(FileError, match="this is"):
        check_versions([store.load(other)], current=True)
    assert check_versions([store.load(other)]) == "0.0.1"


@pytest.mark.parametrize("content", ["", "[]", "{", '{"cell": {}}'])
def test_a_damaged_marker_is_named(tmp_path, content):
    store = filled(tmp_path)
    (store.folder(CELL) / "done.json").write_text(content)
    with pytest.raises(FileError, match=r"done\.json"):
        store.cells()


def test_a_missing_measurement_is_named(tmp_path):
    with pytest.raises(FileError, match="no measurement 'b'"):
        filled(tmp_path).load(CELL).array("b")
