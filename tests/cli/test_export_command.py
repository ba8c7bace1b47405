"""``ct export``: models of tables and of named data sets, and what it refuses."""

import hashlib
import json
import sys

import numpy as np
import pytest
import torch

import counterfactual_training as ct
from counterfactual_training.cli import main

ort = pytest.importorskip("onnxruntime", reason="export needs the extra 'onnx'")

pytestmark = pytest.mark.check


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A saved classifier of two columns, and its rows."""
    path = tmp_path_factory.mktemp("models") / "tiny.safetensors"
    data = ct.loan(80, torch.Generator().manual_seed(0))
    classifier = ct.CounterfactualClassifier(
        model="linear", gate="none", epochs=2, random_state=0, mutability={"age": 0}
    )
    classifier.fit(data.frame, data.labels).save(path)
    return path, classifier, data.frame


def run(capsys, *words):
    code = main(["export", *map(str, words)])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def probabilities(file, x):
    session = ort.InferenceSession(str(file))
    feed = {"x": x.numpy(), "target": np.zeros(len(x), dtype=np.int64), "depth": np.array(0)}
    return session.run(["probability"], feed)[0]


def test_a_model_of_a_table(tiny, tmp_path, capsys):
    path, classifier, frame = tiny
    code, out, err = run(capsys, path, tmp_path / "new" / "tiny.onnx", "--json")
    document = json.loads(out)
    assert code == 0 and err == "" and document["classes"] == classifier.classes_.tolist()
    assert document["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    file = tmp_path / "new" / "tiny.onnx"
    assert document["bytes"] == file.stat().st_size and document["out"] == str(file)
    assert np.allclose(
        probabilities(file, classifier._encoded(frame)),
        classifier.predict_proba(frame),
        atol=1e-6,
    )
    spec = json.loads(
        ort.InferenceSession(str(file))
        .get_modelmeta()
        .custom_metadata_map["counterfactual_training"]
    )
    assert spec["source"] == {"name": "tiny.safetensors", "sha256": document["sha256"]}


def test_a_model_of_a_named_data_set(tmp_path, capsys):
    data = ct.load_dataset("linearly-separable")
    path = tmp_path / "ls.safetensors"
    command = ["train", "linearly-separable", "--epochs", "1", "--gate", "none"]
    assert main([*command, "--out", str(path)]) == 0
    capsys.readouterr()
    code, out, _ = run(capsys, path)
    assert code == 0 and "2 columns in 2 inputs, 2 classes" in out
    classifier = ct.CounterfactualClassifier.load(path)
    # Without a name, the file stands beside the model.
    assert np.allclose(
        probabilities(tmp_path / "ls.onnx", classifier._encoded(data.frame_test)),
        classifier.predict_proba(data.frame_test),
        atol=1e-6,
    )


def test_a_file_that_is_no_model(tmp_path, capsys):
    (tmp_path / "notes.safetensors").write_text("dear diary")
    code, _, err = run(capsys, tmp_path / "notes.safetensors", tmp_path / "x.onnx")
    assert code == 2 and "is not a file of this package, or is damaged" in err
    code, _, err = run(capsys, tmp_path / "nothing.safetensors", tmp_path / "x.onnx")
    assert code == 2 and "There is no file" in err and not (tmp_path / "x.onnx").exists()


@pytest.mark.parametrize("link", [False, True])
def test_the_model_is_not_overwritten(tiny, tmp_path, capsys, link):
    path, before = tmp_path / "m.safetensors", tiny[0].read_bytes()
    path.write_bytes(before)
    out = tmp_path / "m.onnx" if link else path
    if link:  # the default name, which leads back to the model
        out.symlink_to(path)
    code, _, err = run(capsys, path, *([] if link else [out]))
    assert code == 2 and "would overwrite" in err and path.read_bytes() == before


def test_a_network_of_ones_own_is_exported_from_python(points_and_own, tmp_path, capsys):
    code, _, err = run(capsys, points_and_own, tmp_path / "x.onnx")
    assert code == 2 and "a model of your own" in err and "load(path, model=…)" in err


@pytest.fixture
def points_and_own(tmp_path):
    x = np.random.default_rng(0).normal(size=(60, 2))
    classifier = ct.CounterfactualClassifier(model=torch.nn.Linear, gate="none", epochs=1)
    classifier.fit(x, (x[:, 0] > 0).astype(int)).save(tmp_path / "own.safetensors")
    return tmp_path / "own.safetensors"


def test_numbers_are_not_exported(tmp_path, capsys):
    x = np.random.default_rng(0).normal(size=(60, 2))
    ct.CounterfactualRegressor(epochs=1, gate="none").fit(x, x[:, 0]).save(
        tmp_path / "number.safetensors"
    )
    code, _, err = run(capsys, tmp_path / "number.safetensors", tmp_path / "x.onnx")
    assert code == 2 and "holds a regressor" in err


def test_where_nothing_can_be_written(tiny, tmp_path, capsys):
    code, _, err = run(capsys, tiny[0], tmp_path)
    assert code == 2 and "is a folder; name a file" in err


def test_without_the_extra(tiny, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    code, _, err = run(capsys, tiny[0], tmp_path / "x.onnx")
    assert code == 2 and 'pip install "counterfactual-training[onnx]"' in err
