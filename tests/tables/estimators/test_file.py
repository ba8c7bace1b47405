"""Files: what was saved explains identically elsewhere; what is damaged or hostile is refused and
never run.
"""

import json
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import counterfactual_training as ct
from counterfactual_training.errors import FileError, InputError, ModelError
from counterfactual_training.generators import GENERATORS, generic, make_generator
from counterfactual_training.models.classifiers import linear, mlp
from counterfactual_training.persistence import load_file, save_file
from counterfactual_training.tables.estimators.classifier import CounterfactualClassifier
from counterfactual_training.tables.estimators.parameters import learned_by
from covering import repeats

KIND = "counterfactual classifier"


@pytest.fixture
def saved(fitted, tmp_path):
    fitted.save(tmp_path / "loans.ct")
    return tmp_path / "loans.ct"


def same(a, b, frame):
    np.testing.assert_array_equal(a.predict_proba(frame), b.predict_proba(frame))
    one, other = a.explain(frame), b.explain(frame)
    assert one.frame.equals(other.frame)
    assert one.changes() == other.changes()
    assert one.summary.equals(other.summary)


def test_round_trip(saved, fitted, rejected):
    loaded = CounterfactualClassifier.load(saved)
    same(loaded, fitted, rejected)
    assert loaded.classes_.tolist() == fitted.classes_.tolist()
    assert loaded.classes_.dtype == fitted.classes_.dtype
    assert loaded.feature_names_in_.tolist() == fitted.feature_names_in_.tolist()
    assert loaded.schema_ == fitted.schema_
    assert loaded.history_.to_frame().equals(fitted.history_.to_frame())
    before, after = fitted.get_params(), loaded.get_params()
    assert {k: v for k, v in before.items() if k != "schema"} == {
        k: v for k, v in after.items() if k != "schema"
    }


def test_a_loaded_classifier_can_be_trained_again(saved, fitted, loans):
    frame, y = loans
    again = clone(CounterfactualClassifier.load(saved)).fit(frame, y)
    np.testing.assert_array_equal(again.predict_proba(frame), fitted.predict_proba(frame))


@pytest.mark.check  # test_round_trip explains by what is loaded, in this process
def test_explains_identically_in_another_process(saved, fitted, rejected, tmp_path):
    rows = rejected.head(12)
    rows.to_json(tmp_path / "rows.json", orient="split")
    script = (
        "import sys, json, pandas as pd\n"
        "from counterfactual_training import CounterfactualClassifier\n"
        "classifier = CounterfactualClassifier.load(sys.argv[1])\n"
        "rows = pd.read_json(sys.argv[2], orient='split')\n"
        "print(json.dumps(classifier.explain(rows, target='granted').records()))\n"
    )
    command = [sys.executable, "-c", script, str(saved), str(tmp_path / "rows.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    assert json.loads(done.stdout) == json.loads(
        json.dumps(fitted.explain(rows, target="granted").records())
    )


@pytest.mark.parametrize("labels", [(3, 7), *repeats((False, True), (1.0, 2.0), ("no", "yes"))])
def test_labels_keep_their_type(make_quick, make_blobs, tmp_path, labels):
    x, y = make_blobs()
    classifier = make_quick(epochs=1, mutability={0: 1}).fit(x.numpy(), np.array(labels)[y])
    classifier.save(tmp_path / "c")
    loaded = CounterfactualClassifier.load(tmp_path / "c")
    assert loaded.classes_.dtype == classifier.classes_.dtype
    assert loaded.classes_.tolist() == list(labels)
    assert not hasattr(loaded, "feature_names_in_")
    assert loaded.mutability == {0: 1}
    same(loaded, classifier, x.numpy()[:5])


@pytest.mark.check
def test_revise_takes_its_vae_along(make_quick, make_blobs, tmp_path):
    x, y = make_blobs()
    classifier = make_quick("ct_published(generator=revise)", epochs=1).fit(
        x.numpy(), y.numpy()
    )
    classifier.save(tmp_path / "c")
    same(CounterfactualClassifier.load(tmp_path / "c"), classifier, x.numpy()[:8])


@pytest.mark.parametrize("name", ["gravitational", *repeats("wachter", "eccco", "dice")])
def test_what_a_generator_learned_from_data_is_taken_along(
    make_quick, make_blobs, tmp_path, name
):
    x, y = make_blobs()
    classifier = make_quick(f"ct_published(generator={name})", epochs=1).fit(
        x.numpy(), y.numpy()
    )
    classifier.save(tmp_path / "c")
    loaded = CounterfactualClassifier.load(tmp_path / "c")
    same(loaded, classifier, x.numpy()[:8])
    old, new = (learned_by(own.generator_) for own in (classifier, loaded))
    assert (
        old and old.keys() == new.keys() and all(torch.equal(old[key], new[key]) for key in old)
    )
    assert loaded.explain(x.numpy()[:2], generator=name).frame.shape == (2, x.shape[1])
    loaded.partial_fit(x.numpy(), y.numpy())  # goes on with what was learned
    tensors, content = load_file(tmp_path / "c", "counterfactual classifier")
    key = next(
        key
        for key in tensors
        if key.startswith("learned.") and tensors[key].is_floating_point()
    )
    for wrong in (tensors[key][..., :1], tensors[key] * float("nan"), tensors[key][:0]):
        save_file(
            tmp_path / "d",
            "counterfactual classifier",
            {**tensors, key: wrong.contiguous()},
            content,
        )
        with pytest.raises(FileError, match="of its generator does not fit the columns"):
            CounterfactualClassifier.load(tmp_path / "d")


def test_a_generator_that_learns_from_rows_cannot_be_named_afterwards(make_quick, make_blobs):
    x, y = make_blobs()
    classifier = make_quick(epochs=1).fit(x.numpy(), y.numpy())
    with pytest.raises(
        InputError,
        match=r"'wachter' learns from training rows: fit with generator='wachter', or pass",
    ):
        classifier.explain(x.numpy()[:2], generator="wachter")
    made = make_generator("wachter", x, max_steps=50)
    assert classifier.explain(x.numpy()[:2], generator=made).frame.shape == (2, x.shape[1])


@pytest.mark.check
def test_what_no_file_can_hold_is_brought_along(make_quick, make_blobs, tmp_path):
    x, y = make_blobs()
    own = ct.Method(generator=generic(max_steps=9))
    classifier = make_quick(own, epochs=1, model=linear).fit(x.numpy(), y.numpy())
    classifier.save(tmp_path / "c")
    with pytest.raises(
        FileError,
        match=r"a model of your own \(function\) and a .*load\(path, model=…, method=…\)",
    ):
        CounterfactualClassifier.load(tmp_path / "c")
    with pytest.raises(FileError, match=r"with a method of your own \(Method\)"):
        CounterfactualClassifier.load(tmp_path / "c", model=linear)
    loaded = CounterfactualClassifier.load(tmp_path / "c", model=linear, method=own)
    same(loaded, classifier, x.numpy()[:5])
    with pytest.raises(FileError, match="do not fit"):
        wrong = torch.nn.Linear
        CounterfactualClassifier.load(
            tmp_path / "c", model=lambda d, k: wrong(d, k + 1), method=own
        )


def test_only_what_is_fitted_is_saved(tmp_path):
    with pytest.raises(NotFittedError):
        CounterfactualClassifier().save(tmp_path / "c")
    assert list(tmp_path.iterdir()) == []


# ---- bad files -----------------------------------------------------------------------------------


def test_truncated_and_foreign_files(saved, tmp_path):
    content = saved.read_bytes()
    bad = tmp_path / "bad"
    for part in (
        b"",
        content[:7],
        content[:100],
        content[: len(content) // 2],
        content[:-1],
        b"garbage" * 50,
    ):
        bad.write_bytes(part)
        with pytest.raises(FileError):
            CounterfactualClassifier.load(bad)
    with pytest.raises(FileError, match="no file"):
        CounterfactualClassifier.load(tmp_path / "absent")
    save_file(bad, "training checkpoint", {}, {})
    with pytest.raises(FileError, match="holds 'training checkpoint'"):
        CounterfactualClassifier.load(bad)


class Hostile:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def test_a_pickle_is_refused_and_not_run(tmp_path):
    trap = tmp_path / "trap"
    pickle.loads(pickle.dumps(Hostile(trap))).close()  # noqa: S301 - shows that the trap works
    trap.unlink()
    (tmp_path / "c").write_bytes(pickle.dumps(Hostile(trap)))
    torch.save(Hostile(trap), tmp_path / "t")
    for name in ("c", "t"):
        with pytest.raises(FileError):
            CounterfactualClassifier.load(tmp_path / name)
    assert not trap.exists()


def alter(**changes):
    def apply(tensors, content):
        for path, value in changes.items():
            *parents, last = path.split("__")
            place = content
            for key in parents:
                place = place[key]
            place[last] = value

    return apply


def spoil_weights(tensors, content):
    tensors["model.1.weight"][0, 0] = float("nan")


def drop_weights(tensors, content):
    del tensors["model.1.weight"]


def whole_weights(tensors, content):
    for name in tensors:
        tensors[name] = tensors[name].long()


@pytest.mark.parametrize(
    "tamper",
    [
        alter(params=[]),
        alter(params__os_system={"name": "rm"}),
        alter(network__hidden=[10**13]),
        alter(network__hidden="wide"),
        alter(network__os_system="rm"),
        alter(params__generator={"name": "__import__"}),
        alter(params__model={"name": "eval"}),
        alter(params__model=None),
        alter(params__max_steps="many"),
        alter(classes={"dtype": "O", "labels": ["one"]}),
        alter(classes={"dtype": "V8", "labels": ["a", "b"]}),
        alter(classes={"dtype": "int64", "labels": ["a", "b"]}),
        alter(encoder={}),
        alter(encoder__columns={}),
        alter(encoder__columns__debt__scale="x"),
        alter(encoder__columns__debt__dtype="no such type"),
        alter(encoder__schema__debt__kind="magic"),
        alter(history=None),
        alter(num_std="x"),
        alter(vae={"latent_dim": 2, "hidden_dim": 3}),
        spoil_weights,
        drop_weights,
        whole_weights,
    ],
)
def test_altered_files(saved, tmp_path, tamper):
    tensors, content = load_file(saved, KIND)
    tamper(tensors, content)
    save_file(tmp_path / "altered", KIND, tensors, content)
    with pytest.raises(FileError):
        CounterfactualClassifier.load(tmp_path / "altered")


def test_a_label_type_that_claims_gigabytes_costs_none(saved, tmp_path):
    tensors, content = load_file(saved, KIND)
    content["classes"]["dtype"] = "<U500000000"
    save_file(tmp_path / "altered", KIND, tensors, content)
    assert CounterfactualClassifier.load(tmp_path / "altered").classes_.dtype.itemsize < 100


@pytest.mark.parametrize(
    "changed", [{"activation": "relu"}, {"hidden": (5,)}, {"scaling": "standard"}]
)
def test_a_file_holds_the_network_that_was_trained(make_quick, loans, tmp_path, changed):
    frame, y = loans
    classifier = (
        make_quick(activation="swish", gate="none", epochs=2)
        .fit(frame, y)
        .set_params(**changed)
    )
    path = tmp_path / "model.safetensors"
    classifier.save(path)
    again = CounterfactualClassifier.load(path)
    np.testing.assert_array_equal(again.predict_proba(frame), classifier.predict_proba(frame))


@pytest.mark.parametrize("activation", ["swish", "tanh"])
def test_a_network_trained_elsewhere_keeps_its_activation(fitted, loans, tmp_path, activation):
    frame, _ = loans
    module = mlp(len(fitted.encoder_.names_), 2, (7, 5), activation)
    classifier = CounterfactualClassifier.from_trained(
        module, fitted.encoder_, ["denied", "granted"]
    )
    path = tmp_path / "model.safetensors"
    classifier.save(path)
    again = CounterfactualClassifier.load(path)
    np.testing.assert_array_equal(again.predict_proba(frame), classifier.predict_proba(frame))
    with pytest.raises(ModelError, match="Expected layers as mlp"):
        CounterfactualClassifier.from_trained(torch.nn.LSTM(3, 2), fitted.encoder_, ["a", "b"])


def test_a_recipe_of_ones_own_is_asked_for_by_name(
    make_quick, make_blobs, tmp_path, monkeypatch
):
    def recipe(x_train, y_train, **settings):
        return generic(**settings)

    monkeypatch.setitem(GENERATORS, "mine", recipe)
    x, y = make_blobs()
    path = tmp_path / "mine.safetensors"
    fitted = make_quick("ct_published(generator=mine)").fit(x.numpy(), y.numpy())
    fitted.save(path)
    told = r"the method 'ct_published\(generator=mine\)', which cannot be made here.*method="
    with pytest.raises(FileError, match=told):  # known, but its rows are not
        CounterfactualClassifier.load(path)
    loaded = CounterfactualClassifier.load(path, method=fitted.method_)
    assert np.array_equal(loaded.predict(x.numpy()), fitted.predict(x.numpy()))
    monkeypatch.delitem(GENERATORS, "mine")
    with pytest.raises(FileError, match=told):
        CounterfactualClassifier.load(path)
