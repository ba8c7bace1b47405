"""The folder of finished runs: whole files, nothing lost to a kill or a full disk, versions never
mixed.
"""

import errno
import json

import numpy as np
import pytest
import torch

from counterfactual_lab.grids import notes
from counterfactual_lab.grids.grid_run import GridRun, Measurement
from counterfactual_lab.grids.settings import usual
from counterfactual_lab.runs import store as run_store
from counterfactual_lab.runs.outcome import Outcome, check_versions
from counterfactual_lab.runs.store import Store
from counterfactual_training.errors import FileError
from counterfactual_training.models import vae
from counterfactual_training.models.classifiers import linear
from counterfactual_training.training.registry import make_method
from counterfactual_training.versions import versions


def run(seed: int = 0) -> GridRun:
    method = make_method("conventional(epochs=1)")
    return GridRun.from_method("LS", seed, method, usual({}), Measurement())


def outcome(value: float = 1.0, **more) -> Outcome:
    arrays = {"implausibility": np.array([[value, np.nan]]), "validity": np.array([[1.0, 0.0]])}
    numbers, history = {"accuracy": 0.9, "f1": np.nan}, {"loss": np.array([0.1 + 0.2])}
    return Outcome(run(int(value)), arrays, numbers, history, None, {"train": 1.0}, **more)


RUNS = {run(seed).id: outcome(float(seed)) for seed in range(4)}


def test_what_was_saved_comes_back(tmp_path):
    store = Store(tmp_path / "new")
    with store.writing():
        store.save("job", RUNS)
    assert store.done() == set(RUNS)
    found = store.load(run(3))
    np.testing.assert_array_equal(found.arrays["implausibility"], [[3.0, np.nan]])
    assert found.numbers["accuracy"] == 0.9 and np.isnan(found.numbers["f1"])
    assert found.stopped is None and not list((tmp_path / "new" / "pending").iterdir())


@pytest.mark.parametrize("writes", range(6))
def test_killed_at_any_write_nothing_is_lost(tmp_path, monkeypatch, writes):
    """Die at the n-th write of a job with four runs: either nothing is known of it, or soon
    everything.
    """
    store = Store(tmp_path)
    with store.writing():
        pass
    real, left = run_store.atomic_write, [writes]

    def dying(path, content):
        if left[0] == 0:
            raise KeyboardInterrupt
        left[0] -= 1
        real(path, content)

    monkeypatch.setattr(run_store, "atomic_write", dying)
    if writes < 5:
        with pytest.raises(KeyboardInterrupt), store.writing():
            store.save("job", RUNS)
    else:
        with store.writing():
            store.save("job", RUNS)
    monkeypatch.setattr(run_store, "atomic_write", real)
    with Store(tmp_path).writing():
        assert Store(tmp_path).done() == (set(RUNS) if writes else set())


def test_a_full_disk_is_explained_and_loses_nothing(tmp_path, monkeypatch):
    store = Store(tmp_path)
    with store.writing():
        store.save("first", {run(9).id: outcome()})
        real = run_store.atomic_write

        def full(path, content):
            raise OSError(errno.ENOSPC, "No space left on device", str(path))

        monkeypatch.setattr(run_store, "atomic_write", full)
        with pytest.raises(
            FileError, match=r"no space left.*1 runs that are finished are kept"
        ):
            store.save("second", RUNS)
        monkeypatch.setattr(run_store, "atomic_write", real)
        store.save("second", RUNS)
    assert len(store.done()) == 5


def test_other_errors_of_the_disk_are_not_called_a_full_one(tmp_path, monkeypatch):
    store = Store(tmp_path)

    def denied(path, content):
        raise PermissionError(errno.EACCES, "denied", str(path))

    monkeypatch.setattr(run_store, "atomic_write", denied)
    with pytest.raises(PermissionError), store.writing():
        pass


def test_two_runs_at_once_are_refused(tmp_path):
    with (
        Store(tmp_path).writing(),
        pytest.raises(FileError, match="Another run is writing"),
        Store(tmp_path).writing(),
    ):
        pass
    with Store(tmp_path).writing():
        pass


@pytest.mark.parametrize("change", [{"format": 0}, {"version": "0.0.1"}])
def test_a_folder_of_another_version_is_refused(tmp_path, change):
    with Store(tmp_path).writing():
        pass
    marker = tmp_path / "store.json"
    marker.write_text(json.dumps({**json.loads(marker.read_text()), **change}))
    with pytest.raises(FileError, match="do not belong in one table"):
        Store(tmp_path)


def test_folders_that_hold_something_else_are_refused(tmp_path):
    (tmp_path / "a").write_text("a file")
    with pytest.raises(FileError, match="is a file"):
        Store(tmp_path / "a")
    (tmp_path / "b" / "runs").mkdir(parents=True)
    (tmp_path / "b" / "runs" / "x.json").write_text("{}")
    with pytest.raises(FileError, match=r"no store\.json"):
        Store(tmp_path / "b")


def test_a_damaged_run_is_named(tmp_path):
    store = Store(tmp_path)
    with store.writing():
        store.save("job", RUNS)
    path = tmp_path / "runs" / f"{run(1).id}.json"
    for text in ('{"run"', "[1]", '{"run": {}}'):
        path.write_text(text)
        with pytest.raises(FileError, match="is damaged"):
            store.load(run(1))
    with pytest.raises(FileError, match="run it first"):
        store.load(run(77))


def test_the_vae_is_fitted_once_per_training_rows(tmp_path, monkeypatch):
    store = Store(tmp_path)
    x = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
    fitted = []
    real = vae.fit_vae
    monkeypatch.setattr(vae, "fit_vae", lambda rows: fitted.append(1) or real(rows, epochs=1))
    first, second = notes.shared_vae(store, x), notes.shared_vae(store, x)
    assert torch.equal(first.decode(x), second.decode(x)) and len(fitted) == 1
    notes.shared_vae(store, x + 1)
    assert len(fitted) == 2


def test_a_model_that_trained_alone_keeps_its_weights_and_every_digit(tmp_path):
    model, store = linear(2, 2), Store(tmp_path)
    origin = {"command": "ct", "versions": versions(), "date": "today"}
    alone = outcome(0.1 + 0.2, weights=model.state_dict(), origin=origin)
    alone.arrays["paired"] = np.array([0.1], dtype=np.float32)
    with store.writing():
        store.save("job", {run(0).id: alone})
    found = store.load(run(0))
    assert found.array("implausibility")[0, 0] == 0.1 + 0.2 == found.history["loss"][0]
    assert (
        found.arrays["paired"].dtype == np.float32 and found.array("paired").dtype == np.float64
    )
    assert found.origin == origin and store.has_model(run(0)) and not store.has_model(run(1))
    other = store.load_model(run(0), linear(2, 2))
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True)
    )
    with pytest.raises(FileError, match="no measurement 'cost'"):
        found.array("cost")


def test_results_of_different_versions_are_not_mixed():
    old = outcome(origin={"versions": {**versions(), "counterfactual-training": "0.0.1"}})
    new, torch_1 = (
        outcome(origin={"versions": versions()}),
        outcome(origin={"versions": {**versions(), "torch": "1.0"}}),
    )
    with pytest.raises(FileError, match=r"0\.0\.1 and"):
        check_versions([old, new])
    with pytest.raises(FileError, match=r"torch 1\.0 and"):
        check_versions([torch_1, new])
    with pytest.raises(FileError, match=r"torch 1\.0 and"):
        check_versions([torch_1], current=True)
    with pytest.raises(FileError, match="this is"):
        check_versions([old], current=True)
    assert check_versions([old]) == "0.0.1"
