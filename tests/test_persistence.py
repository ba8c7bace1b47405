"""Files: what was saved is what is loaded; half-written ones do not exist; strange ones are
refused.
"""

import json
import math
import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from counterfactual_training.errors import FileError
from counterfactual_training.persistence import (
    _digest,
    atomic_write,
    flatten_state,
    load_file,
    load_weights,
    save_file,
    unflatten_state,
)
from covering import on_examples


def test_load_is_the_inverse_of_save(tmp_path):
    tensors = {
        "a": torch.randn(3, 4),
        "b/c": torch.arange(5),
        "flag": torch.tensor([True, False]),
        "half": torch.randn(2).half(),
        "scalar": torch.tensor(3.5, dtype=torch.float64),
        "nothing": torch.empty(0, 3),
        "strided": torch.randn(4, 6)[:, ::2],
    }
    content = {"name": "Ωμέγα", "numbers": [1, 2.5, None, True], "nested": {"x": math.inf}}
    save_file(tmp_path / "file", "thing", tensors, content)
    loaded, told = load_file(tmp_path / "file", "thing")
    assert told == content and loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert loaded[name].dtype == tensor.dtype and torch.equal(loaded[name], tensor)


def test_tied_weights_are_saved(tmp_path):
    shared = torch.randn(3)
    save_file(tmp_path / "file", "thing", {"a": shared, "b": shared}, {})
    loaded, _ = load_file(tmp_path / "file", "thing")
    assert torch.equal(loaded["a"], loaded["b"])


def test_missing_folders_are_made(tmp_path):
    save_file(tmp_path / "a" / "b" / "file", "thing", {}, {})
    assert load_file(tmp_path / "a" / "b" / "file", "thing") == ({}, {})


def test_a_file_of_another_kind_is_refused(tmp_path):
    save_file(tmp_path / "file", "model", {}, {})
    with pytest.raises(FileError, match=r"holds 'model' \(format 1\), expected 'result'"):
        load_file(tmp_path / "file", "result")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileError, match=r"There is no file .*nowhere"):
        load_file(tmp_path / "nowhere", "model")
    with pytest.raises(FileError, match="There is no file"):
        load_file(tmp_path, "model")


@settings(max_examples=60, deadline=None)
@given(cut=st.floats(0, 1), flip=st.integers(0, 7))
def test_no_damage_gets_past(tmp_path_factory, cut, flip):
    """A file cut anywhere is refused; one with a flipped bit is refused or differs in values
    only.
    """
    path = tmp_path_factory.mktemp("damage") / "file"
    save_file(path, "thing", {"a": torch.arange(6.0)}, {"x": 1})
    whole = path.read_bytes()
    place = min(int(cut * len(whole)), len(whole) - 1)
    path.write_bytes(whole[:place])
    with pytest.raises(FileError):
        load_file(path, "thing")
    broken = bytearray(whole)
    broken[place] ^= 1 << flip
    path.write_bytes(bytes(broken))
    try:
        tensors, content = load_file(path, "thing")
    except FileError:
        return
    assert all(isinstance(t, Tensor) for t in tensors.values()) and isinstance(content, dict)


# ---- atomic writes -------------------------------------------------------------------------------


def test_atomic_write_replaces(tmp_path):
    atomic_write(tmp_path / "file", b"old")
    atomic_write(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new" and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("fault", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError("disk"), KeyboardInterrupt()])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path, monkeypatch, fault, error
):
    target = tmp_path / "file"
    atomic_write(target, b"old")

    def fail(*args):
        raise error

    monkeypatch.setattr(os, "fsync", fail) if fault == "fsync" else monkeypatch.setattr(
        "pathlib.Path.replace", fail
    )
    with pytest.raises(type(error)):
        atomic_write(target, b"new")
    assert target.read_bytes() == b"old" and [f.name for f in tmp_path.iterdir()] == ["file"]


# ---- nested state --------------------------------------------------------------------------------


def same(a: object, b: object) -> bool:
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return isinstance(b, list) and len(a) == len(b) and all(map(same, a, b))
    return a == b and type(a) is type(b)


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-9, 9),
    st.floats(-9, 9),
    st.text(max_size=4),
    st.integers(0, 99).map(torch.tensor),
)
STATES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.text(alphabet="a/:01", max_size=4) | st.integers(0, 3), inner, max_size=3
        )
    ),
    max_leaves=12,
)


@on_examples(20, 150, STATES)
def test_unflatten_is_the_inverse_of_flatten(state):
    """Whatever the keys: also where they hold slashes, or 1 and "1" stand side by side."""
    tensors, plain = flatten_state({"state": state})
    assert same({"state": state}, unflatten_state(tensors, json.loads(json.dumps(plain))))


def test_optimizer_states_survive():
    layer = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.1, betas=(0.8, 0.9))
    layer(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    tensors, plain = flatten_state(optimizer.state_dict())
    back = unflatten_state(tensors, json.loads(json.dumps(plain)))
    assert same(optimizer.state_dict(), back)


def test_what_cannot_be_saved_is_named():
    with pytest.raises(FileError, match="Cannot save set without pickle"):
        flatten_state({"a": {1, 2}})
    with pytest.raises(FileError, match=r"key \(1, 2\) of type tuple"):
        flatten_state({(1, 2): 3})


@pytest.mark.parametrize("plain", [None, [], {}, {"a": 1, "b": 2}, {"tensor": "absent"}])
def test_a_damaged_table_of_contents_is_refused(plain):
    with pytest.raises(FileError, match="damaged"):
        unflatten_state({}, plain)


# ---- weights -------------------------------------------------------------------------------------


def test_weights_load():
    first, second = nn.Linear(3, 2), nn.Linear(3, 2)
    load_weights(second, first.state_dict(), "somewhere")
    assert torch.equal(first.weight, second.weight)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"weight": torch.zeros(2, 3)}, "Missing key"),
        ({"weight": torch.zeros(5, 3), "bias": torch.zeros(2)}, "size mismatch for weight"),
        (
            {"weight": torch.zeros(2, 3), "bias": torch.zeros(2), "more": torch.zeros(1)},
            "Unexpected key",
        ),
    ],
)
def test_weights_that_do_not_fit_change_nothing(state, message):
    layer = nn.Linear(3, 2)
    before = [parameter.clone() for parameter in layer.parameters()]
    with pytest.raises(FileError, match=rf"'somewhere' do not fit.*{message}"):
        load_weights(layer, state, "somewhere")
    assert all(torch.equal(a, b) for a, b in zip(before, layer.parameters(), strict=True))


def test_a_flipped_bit_is_noticed(tmp_path):
    path = tmp_path / "file.safetensors"
    save_file(path, "kind", {"weights": torch.arange(8.0)}, {"a": 1})
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(FileError, match="checksum"):
        load_file(path, "kind")


@pytest.mark.parametrize(
    "other",
    [{"a": torch.zeros(2, 3)}, {"a": torch.zeros(6, dtype=torch.int32)}, {"b": torch.zeros(6)}],
    ids=["shape", "dtype", "name"],
)
def test_the_same_bytes_under_another_header_have_another_checksum(other):
    assert _digest({"a": torch.zeros(6)}, "{}") != _digest(other, "{}")
