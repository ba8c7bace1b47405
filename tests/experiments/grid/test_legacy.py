"""Folders of earlier versions: read as they are, nothing lost, the same cells."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from counterfactual_training.datasets.catalog import load_dataset
from counterfactual_training.errors import FileError
from counterfactual_training.experiments.grid.file import load_grid
from counterfactual_training.experiments.grid.run import GridWork
from counterfactual_training.experiments.grid.settings import setting_of
from counterfactual_training.experiments.grid.store import Store
from counterfactual_training.experiments.paper.reproduce import kind_of_grid
from counterfactual_training.experiments.trained import untrained
from counterfactual_training.persistence import save_file
from counterfactual_training.versions import versions

EFFORT = {
    "name": "full",
    "epochs": 100,
    "num_runs": 100,
    "num_individuals": None,
    "paired_individuals": None,
    "num_epsilons": 10,
    "attribution_rounds": 100,
}


@pytest.fixture
def cells():
    """The cells of one data set and seed, as the present version makes them."""
    return GridWork.from_grids(load_grid("main").changed(["LS"], 1)).cells


def old_folder(root, cells, effort=EFFORT, changes=()):
    """What version 0.1 wrote for these cells."""
    data = load_dataset("LS", "as_run")
    (root / "store.json").write_text(json.dumps({"format": 1}))
    for cell in cells:
        folder = root / f"{cell.label.replace(' ', '-')}-0123456789"
        history = [
            {"epoch": 1, "loss": 0.1 + 0.2, "share_mature": float("nan"), "seconds": 1.0}
        ]
        model = untrained(data, cell.seed)
        save_file(
            folder / "model.safetensors",
            "trained cell",
            model.state_dict(),
            {"history": history, "seconds": 1},
        )
        tensors = {"published/free/cost": torch.arange(6.0).reshape(2, 3) / 7}
        save_file(
            folder / "measured.safetensors",
            "measured cell",
            tensors,
            {"numbers": {"accuracy": 0.1 + 0.2}},
        )
        old = {
            "data": cell.data,
            "objective": cell.objective,
            "protected": cell.protected,
            "seed": cell.seed,
        }
        settings = {**cell.values, "generator.name": "ecco", **generator(cell, cells)}
        done = {
            "cell": {**old, "effort": effort, "changes": [list(pair) for pair in changes]},
            "settings": setting_of(settings, cell.seed).describe(),
            "command": "ct reproduce main",
            "versions": versions(),
            "date": "2026-01-01T00:00:00+00:00",
            "seconds": {"train": 1.5, "evaluate": 2.5},
        }
        (folder / "done.json").write_text(json.dumps(done))


def generator(cell, cells):
    """Conventional cells were noted with the generator they never used."""
    full = next(one for one in cells if one.objective == "full")
    return {name: value for name, value in full.values.items() if name.startswith("generator.")}


def test_the_cells_of_an_old_folder_are_those_of_today_and_nothing_is_written(tmp_path, cells):
    old_folder(tmp_path, cells)
    (tmp_path / "LS-full-seed-9-unfinished").mkdir()
    before = sorted(tmp_path.rglob("*"))
    store = Store(tmp_path)
    assert store.done() == {cell.id for cell in cells}
    found = store.load(cells[0])
    assert found.cell == cells[0] and found.numbers["accuracy"] == 0.1 + 0.2
    np.testing.assert_array_equal(
        found.array("published/free/cost"), (torch.arange(6.0).reshape(2, 3) / 7).double()
    )
    assert found.history["loss"][0] == 0.1 + 0.2 and np.isnan(found.history["share_mature"][0])
    assert (
        found.seconds == {"train": 1.5, "evaluate": 2.5}
        and found.made["command"] == "ct reproduce main"
    )
    data = load_dataset("LS", "as_run")
    model = store.load_model(cells[0], untrained(data, 5))
    assert all(
        a.equal(b)
        for a, b in zip(model.parameters(), untrained(data, 0).parameters(), strict=True)
    )
    [(kind, names)] = store.kinds()
    assert kind == kind_of_grid(load_grid("main")) and set(names) == store.done()
    assert sorted(tmp_path.rglob("*")) == before


def test_a_quick_folder_too(tmp_path):
    effort = {**EFFORT, "name": "quick", "epochs": 20, "num_runs": 10, "num_individuals": 50}
    effort |= {"paired_individuals": 300, "num_epsilons": 4, "attribution_rounds": 10}
    cells = GridWork.from_grids(load_grid("main", quick=True).changed(["LS"], 1)).cells
    old_folder(tmp_path, cells, effort)
    store = Store(tmp_path)
    assert store.done() == {cell.id for cell in cells}
    assert store.kinds()[0][0] == kind_of_grid(load_grid("main", quick=True)) == [effort, []]


def test_new_cells_are_stored_beside_old_ones(tmp_path, cells):
    old_folder(tmp_path, cells[1:])
    store = Store(tmp_path)
    with store.writing():
        store.save("task", {cells[0].id: replace(store.load(cells[1]), cell=cells[0])})
    again = Store(tmp_path)
    assert again.done() == {cell.id for cell in cells}
    assert (
        again.load(cells[0]).cell == cells[0]
        and again.has_model(cells[0])
        and again.has_model(cells[1])
    )


def test_an_old_folder_of_another_version_is_only_read(tmp_path, cells):
    old_folder(tmp_path, cells)
    marker = next(tmp_path.glob("*/done.json"))
    marker.write_text(
        marker.read_text().replace(versions()["counterfactual-training"], "0.0.1")
    )
    with pytest.raises(FileError, match=r"version 0\.0\.1"):
        Store(tmp_path)
    assert Store(tmp_path, any_version=True).done() == {cell.id for cell in cells}


@pytest.mark.parametrize("content", ["", "[]", "{", '{"cell": {}}'])
def test_a_damaged_cell_is_named(tmp_path, cells, content):
    old_folder(tmp_path, cells)
    next(tmp_path.glob("*/done.json")).write_text(content)
    with pytest.raises(FileError, match=r"done\.json"):
        Store(tmp_path)


def test_an_unknown_format_raises(tmp_path):
    (tmp_path / "store.json").write_text(json.dumps({"format": 2}))
    with pytest.raises(FileError, match="unknown format"):
        Store(tmp_path)


def test_the_published_effort_is_that_of_the_file():
    assert kind_of_grid(load_grid("main"))[0] == EFFORT
