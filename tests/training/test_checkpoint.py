"""Killed and resumed equals never interrupted, bit for bit; a checkpoint is whole or absent, ours
or refused.
"""

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file as save_safetensors
from torch import nn

from counterfactual_training import (
    Callback,
    Constraints,
    Generator,
    Method,
    ecco,
    fit_vae,
    generic,
    methods,
    mlp,
    revise,
    train,
)
from counterfactual_training.errors import FileError
from counterfactual_training.persistence import load_file, save_file
from counterfactual_training.training import checkpoint
from counterfactual_training.training.run import Run
from covering import each_value

QUICK = methods.ct_published(
    epochs=5, batch_size=20, num_counterfactuals=12, learning_rate=0.01
)
KIND = "training checkpoint"


def with_changes(**changes) -> Method:
    return QUICK.replace(changes)


class Noisy(nn.Sequential):
    """Dropout and batch normalisation: random state and buffers that a resume must get right."""

    def __init__(self) -> None:
        super().__init__(
            nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.4), nn.Linear(8, 2)
        )


def fresh(noisy: bool = False) -> nn.Module:
    torch.manual_seed(0)
    return Noisy() if noisy else mlp(2, 2, hidden=(8,))


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat(
        [value.detach().flatten().double() for value in model.state_dict().values()]
    )


class InterruptedRunError(Exception):
    pass


class Interrupt(Callback):
    """Stops the program, as a power cut would, when it has heard of enough epochs."""

    def __init__(self, after: int) -> None:
        self.after = after

    def on_epoch_end(self, run: Run) -> None:
        if run.epoch > self.after:
            raise InterruptedRunError


def interrupted_then_resumed(
    x, y, path: Path, build, after: int, **arguments
) -> tuple[nn.Module, list[dict]]:
    with pytest.raises(InterruptedRunError):
        train(build(), x, y, checkpoint=path, callbacks=[Interrupt(after)], **arguments)
    model = build()
    torch.manual_seed(123)  # another process has another state
    for parameter in model.parameters():
        parameter.data.normal_()
    return model, train(model, x, y, checkpoint=path, **arguments).history.records


def told(records: list[dict]) -> list[dict]:
    """Records without the time they took; NaN compares as a word."""
    return [{k: repr(v) for k, v in record.items() if k != "seconds"} for record in records]


SITUATIONS = {
    "plain": {},
    "shuffled": {"method": with_changes(shuffle=True)},
    "a search per batch": {"method": with_changes(refresh="batch", shuffle=True)},
    "burn-in": {"method": with_changes(burn_in=0.5)},
    "SGD with momentum": {"optimizer": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)},
    "AMSGrad": {"optimizer": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True)},
    "LBFGS": {"optimizer": lambda p: torch.optim.LBFGS(p, lr=0.05, max_iter=3)},
    "validation": {"validation": (torch.zeros(4, 2), torch.zeros(4).long())},
}


@each_value(name=list(SITUATIONS), noisy=[False, True])
def test_resumed_equals_uninterrupted(blobs, tmp_path, name, noisy):
    x, y = blobs
    after = 3 if noisy else 1
    arguments = {"method": QUICK, **SITUATIONS[name]}
    search = ecco(learning_rate=0.5, max_steps=8)
    arguments["method"] = arguments["method"].replace("generator", search)
    whole = fresh(noisy)
    records = train(whole, x, y, **arguments).history.records
    resumed, again = interrupted_then_resumed(
        x, y, tmp_path / "run.ckpt", lambda: fresh(noisy), after, **arguments
    )
    assert torch.equal(weights(resumed), weights(whole))
    assert told(again) == told(records)
    assert resumed.training == whole.training


def test_the_randomness_of_revise_resumes_too(blobs, tmp_path):
    x, y = blobs
    generator = revise(fit_vae(x, epochs=2))
    whole = fresh()
    train(whole, x, y, QUICK.replace("generator", generator))
    resumed, _ = interrupted_then_resumed(
        x, y, tmp_path / "run.ckpt", fresh, 2, method=QUICK.replace("generator", generator)
    )
    assert torch.equal(weights(resumed), weights(whole))


def test_a_finished_run_is_not_trained_again(blobs, tmp_path):
    x, y = blobs
    path = tmp_path / "run.ckpt"
    first, second = fresh(), fresh()
    train(first, x, y, QUICK, checkpoint=path)
    history = train(second, x, y, QUICK, checkpoint=path).history
    assert (
        torch.equal(weights(first), weights(second))
        and len(history.records) == 5
        and not second.training
    )


class Stop(Callback):
    def on_epoch_end(self, run: Run) -> None:
        if run.epoch == 3:
            run.stop("enough")


def test_the_last_epoch_of_a_run_that_stops_early_is_written(blobs, tmp_path, monkeypatch):
    """However sparing it is with the epochs before."""
    monkeypatch.setattr(checkpoint, "_SPARING", 1e9)
    path = tmp_path / "run.ckpt"
    train(fresh(), *blobs, QUICK, checkpoint=path, callbacks=[Stop()])
    assert load_file(path, KIND)[1]["epoch"] == 3


# ---- whole or absent -----------------------------------------------------------------------------


@pytest.mark.usefixtures("saved_every_epoch")
def test_a_write_that_fails_leaves_the_checkpoint_before(blobs, tmp_path, monkeypatch):
    x, y = blobs
    path = tmp_path / "run.ckpt"
    real, calls = os.fsync, []

    def failing(handle):
        calls.append(handle)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")
        real(handle)

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(OSError, match="No space left"):
        train(fresh(), x, y, QUICK, checkpoint=path)
    monkeypatch.undo()
    assert [file.name for file in tmp_path.iterdir()] == ["run.ckpt"], (
        "a half-written file was left behind"
    )
    assert load_file(path, KIND)[1]["epoch"] == 2
    whole, resumed = fresh(), fresh()
    train(whole, x, y, QUICK)
    train(resumed, x, y, QUICK, checkpoint=path)
    assert torch.equal(weights(resumed), weights(whole))


def test_a_run_that_diverged_is_saved_as_it_ended(blobs, tmp_path):
    """With its last sound epoch, not the wreck; started again it ends the same way at once."""
    x, y = blobs
    path = tmp_path / "run.ckpt"

    class Wreck(Callback):
        def on_epoch_end(self, run: Run) -> None:
            if run.epoch == 3:
                for group in run.optimizer.param_groups:
                    group["lr"] = 1e30

    model, again = fresh(), fresh()
    with pytest.warns(UserWarning, match="last sound epoch"):
        history = train(model, x, y, QUICK, checkpoint=path, callbacks=[Wreck()]).history
    tensors, _ = load_file(path, KIND)
    assert all(
        bool(torch.isfinite(tensors[name]).all())
        for name in tensors
        if "/model" in name or "/good" in name
    )
    resumed = train(again, x, y, QUICK, checkpoint=path).history
    assert torch.equal(weights(again), weights(model)) and bool(
        torch.isfinite(weights(model)).all()
    )
    assert resumed.stopped == history.stopped and told(resumed.records) == told(history.records)


# ---- ours or refused -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(make_blobs, tmp_path_factory) -> bytes:
    """The checkpoint of a finished run."""
    path = tmp_path_factory.mktemp("finished") / "run.ckpt"
    train(fresh(), *make_blobs(), QUICK, checkpoint=path)
    return path.read_bytes()


@pytest.fixture
def path(finished, tmp_path) -> Path:
    """A copy of that checkpoint."""
    copy = tmp_path / "run.ckpt"
    copy.write_bytes(finished)
    return copy


OTHER_RUNS = {
    "data": lambda x, y: {"x": x + 1},
    "labels": lambda x, y: {"y": 1 - y},
    "seed": lambda x, y: {"method": with_changes(seed=1)},
    "epochs": lambda x, y: {"method": with_changes(epochs=9)},
    "constraints": lambda x, y: {"constraints": Constraints.infer(x, {0: "none"})},
    "generator": lambda x, y: {"method": with_changes(generator=generic())},
    "model": lambda x, y: {"model": mlp(2, 2, hidden=(9,))},
    "optimizer": lambda x, y: {"optimizer": torch.optim.SGD},
}


@pytest.mark.parametrize("name", OTHER_RUNS)
def test_the_checkpoint_of_another_run_is_refused(blobs, path, name):
    x, y = blobs
    arguments = {"model": fresh(), "x": x, "y": y, "method": QUICK, **OTHER_RUNS[name](x, y)}
    before = weights(arguments["model"])
    with pytest.raises(FileError, match=r"another run.*path of its own"):
        train(**arguments, checkpoint=path)
    assert torch.equal(weights(arguments["model"]), before)


def test_another_vae_is_another_run(blobs, tmp_path):
    x, y = blobs
    path = tmp_path / "run.ckpt"
    train(
        fresh(), x, y, QUICK.replace("generator", revise(fit_vae(x, epochs=1))), checkpoint=path
    )
    with pytest.raises(FileError, match="another run"):
        train(
            fresh(),
            x,
            y,
            QUICK.replace("generator", revise(fit_vae(x, epochs=2))),
            checkpoint=path,
        )


def test_a_penalty_of_ones_own_is_known_again(blobs, tmp_path):
    """A function lies elsewhere in memory in the next process; that makes it no other run."""
    x, y = blobs
    path = tmp_path / "run.ckpt"

    def build():
        def own_penalty(state):
            return state.delta.square().sum(-1)

        return Generator("own", penalties=(own_penalty,))

    kept = build()
    train(fresh(), x, y, QUICK.replace("generator", kept), checkpoint=path)
    train(fresh(), x, y, QUICK.replace("generator", build()), checkpoint=path)


def test_threads_make_no_other_run(blobs, path):
    history = train(fresh(), *blobs, with_changes(threads=1), checkpoint=path).history
    assert len(history.records) == 5


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def bit_flipped_header(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[20] ^= 0xFF
    path.write_bytes(bytes(content))


def huge_header(path: Path) -> None:
    path.write_bytes((2**62).to_bytes(8, "little") + path.read_bytes()[8:])


def pickled(path: Path) -> None:
    torch.save({"epoch": 1}, path)


def strange(path: Path) -> None:
    save_safetensors({"a": torch.zeros(2)}, path)


def no_table(path: Path) -> None:
    save_safetensors(
        {"a": torch.zeros(2)}, path, metadata={"counterfactual_training": "[1, 2]"}
    )


def deep(path: Path) -> None:
    nested = "[" * 100_000 + "]" * 100_000
    save_safetensors({"a": torch.zeros(2)}, path, metadata={"counterfactual_training": nested})


def altered(**changes):
    def change(path: Path) -> None:
        tensors, content = load_file(path, KIND)
        save_file(path, KIND, tensors, {**content, **changes})

    return change


def without_tensors(path: Path) -> None:
    _, content = load_file(path, KIND)
    save_file(path, KIND, {}, content)


def other_shapes(path: Path) -> None:
    tensors, content = load_file(path, KIND)
    save_file(path, KIND, {name: torch.zeros(7) for name in tensors}, content)


def nested_state(path: Path) -> None:
    tensors, content = load_file(path, KIND)
    state: dict = {"value": 1}
    for _ in range(300):
        state = {"list": [state]}
    # Deeper than the interpreter likes to recurse, yet harmless to parse.
    save_file(
        path,
        KIND,
        tensors,
        {**content, "state": {"dict": [["model", state], ["optimizer", state]]}},
    )


def other_kind(path: Path) -> None:
    tensors, content = load_file(path, KIND)
    save_file(path, "classifier", tensors, content)


DAMAGE = {
    "empty": lambda path: path.write_bytes(b""),
    "random bytes": lambda path: path.write_bytes(bytes(range(256)) * 8),
    "truncated": truncated,
    "bit flipped": bit_flipped_header,
    "huge header": huge_header,
    "a pickle": pickled,
    "not ours": strange,
    "no table": no_table,
    "a very deep header": deep,
    "another kind": other_kind,
    "tensors missing": without_tensors,
    "tensors of other shapes": other_shapes,
    "state missing": altered(state={"dict": []}),
    "state of numbers": altered(
        state={"dict": [["model", {"value": 1}], ["optimizer", {"value": 2}]]}
    ),
    "state no table": altered(state=[1, 2]),
    "state of unknown parts": altered(state={"dict": [["model"]]}),
    "a deep state": nested_state,
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_and_hostile_files_are_refused(blobs, path, name):
    DAMAGE[name](path)
    model = fresh()
    before = weights(model)
    with pytest.raises(FileError, match=r"run\.ckpt"):
        train(model, *blobs, QUICK, checkpoint=path)
    assert torch.equal(weights(model), before), "a refused file must not change the model"
    assert model.training, "nothing should have happened to the model"


def test_a_hostile_pickle_does_not_run(blobs, tmp_path):
    x, y = blobs
    path, trap = tmp_path / "run.ckpt", tmp_path / "trapped"

    class Trap:
        def __reduce__(self):
            return (Path.touch, (trap,))

    torch.save(Trap(), path)
    with pytest.raises(FileError):
        train(fresh(), x, y, QUICK, checkpoint=path)
    assert not trap.exists()


def test_the_file_can_be_read_by_others(finished):
    """One safetensors file with JSON in its header: nothing of this package is needed to look
    inside.
    """
    header = json.loads(finished[8 : 8 + int.from_bytes(finished[:8], "little")])
    told_inside = json.loads(header["__metadata__"]["counterfactual_training"])
    assert told_inside["kind"] == KIND and json.loads(told_inside["content"])["epoch"] == 5
