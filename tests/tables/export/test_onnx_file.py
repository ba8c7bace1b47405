"""What an exported file holds, and what cannot be exported."""

import json

import numpy as np
import pandas as pd
import pytest
import torch

import counterfactual_training as ct
from counterfactual_training.errors import InputError, MissingExtraError, ModelError
from counterfactual_training.tables.export import export_onnx, onnx_file
from counterfactual_training.tables.export.description import (
    describe_classifier,
    weights_sha256,
)
from counterfactual_training.tables.export.traceable import RecourseGraph

ort = pytest.importorskip("onnxruntime", reason="export needs the extra 'onnx'")
onnx = pytest.importorskip("onnx", reason="export needs the extra 'onnx'")

pytestmark = pytest.mark.check


def told(path):
    metadata = ort.InferenceSession(str(path)).get_modelmeta().custom_metadata_map
    return json.loads(metadata["counterfactual_training"])


def own_network(num_features, num_classes):
    class Own(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(num_features, num_classes)
            self.shift = torch.linspace(0, 1, num_features)  # neither a parameter nor a buffer

        def forward(self, x):
            return self.layer(torch.nn.functional.gelu(x - self.shift))

    return Own()


def test_the_file_describes_columns_rules_and_model(loan_file, fitted):
    onnx.checker.check_model(str(loan_file), full_check=True)
    spec = told(loan_file)
    assert (
        spec["classes"] == ["denied", "granted"]
        and spec["wanted"] == "granted"
        and spec["gate"] == ["density"]
    )
    assert (
        spec["weights_sha256"] == weights_sha256(fitted) and ct.__version__ in spec["made_by"]
    )
    age, debt, degree, branch, owner = spec["columns"]
    assert (age["move"], debt["move"], debt["low"], debt["unit"]) == (
        "none",
        "decrease",
        0.0,
        "thousand dollars",
    )
    assert degree["may"] == [
        [0, 1, 2],
        [1, 2],
        [2],
        [1, 2],
    ]  # upwards only; the last line is for unknown degrees
    assert (
        branch["categories"] == ["north", "south", "west"]
        and branch["width"] == 3
        and branch["start"] == 3
    )
    assert owner["categories"] == [False, True]


def test_rules_of_every_kind_are_told(mixed_file):
    columns = {column["name"]: column for column in told(mixed_file)["columns"]}
    assert columns["late"]["special"] == [-9] and columns["late"]["width"] == 2
    assert (columns["late"]["low"], columns["late"]["high"]) == (0.0, 90.0)
    assert (
        columns["limit"]["grid"],
        columns["limit"]["max_change"],
        columns["limit"]["difficulty"],
    ) == (500, 6000, 2)
    assert columns["grade"]["may"][0] == [0, 1]  # one rank at a time
    jobs = columns["job"]["categories"]
    assert [jobs[place] for place in columns["job"]["may"][jobs.index("none")]] == [
        "clerk",
        "none",
        "nurse",
    ]
    assert columns["rooms"]["values"] == [1, 2, 4] and columns["sex"]["may"][:2] == [[0], [1]]


def test_rules_stated_after_fit_hold(fitted):
    other = ct.CounterfactualClassifier(**fitted.get_params(deep=False))
    other.__dict__.update(fitted.__dict__)
    other.set_params(mutability={"age": "none", "debt": "none"})
    other._follow_rules()
    assert [column["move"] for column in describe_classifier(other)["columns"][:2]] == [
        "none",
        "none",
    ]


def test_weights_decide_the_checksum(fitted, mixed_classifier):
    assert weights_sha256(fitted) == weights_sha256(fitted) != weights_sha256(mixed_classifier)


def test_a_network_of_ones_own(points, make_quick, tmp_path):
    classifier = make_quick(model=own_network, gate="none").fit(*points)
    export_onnx(classifier, tmp_path / "own.onnx")
    content = (tmp_path / "own.onnx").read_bytes()
    differences = onnx_file.graph_differences(
        content, classifier, classifier._encoded(points[0])
    )
    assert (
        set(differences) == set(onnx_file.Outputs._fields) and max(differences.values()) < 1e-5
    )


def test_a_network_that_looks_at_values_is_refused(points, make_quick, tmp_path):
    class Branches(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x) if float(x.detach().sum()) > 0 else super().forward(x) + 1

    classifier = make_quick(model=Branches, gate="none").fit(*points)
    with pytest.raises(
        ModelError,
        match=r"cannot be exported: .*data-dependent.* A graph can hold only tensor operations",
    ):
        export_onnx(classifier, tmp_path / "branches.onnx")
    assert not list(tmp_path.iterdir())


def test_convolutions_are_refused():
    pytest.importorskip("onnxscript", reason="export needs the extra 'onnx'")
    from counterfactual_training.tables.export.trace import to_onnx

    with pytest.raises(ModelError, match=r"convolution_backward.* convolutions have none\."):
        to_onnx(RecourseGraph(ct.cnn(784, 3), None), 784)


def test_a_graph_that_differs_is_not_written(points, make_quick, tmp_path, monkeypatch):
    classifier = make_quick(model="linear", gate="none").fit(*points)
    by_autograd = onnx_file.by_autograd
    wrong = lambda *given: by_autograd(*given)._replace(gradient=torch.ones(32, 2))  # noqa: E731
    monkeypatch.setattr(onnx_file, "by_autograd", wrong)
    with pytest.raises(
        ModelError, match="does not compute what torch does: gradient differs by"
    ):
        export_onnx(classifier, tmp_path / "wrong.onnx")
    assert not list(tmp_path.iterdir())


class Session:
    """Stands for onnxruntime, and computes what torch does."""

    def __init__(self, classifier, change=None) -> None:
        self.classifier = classifier
        self.change = change if change is not None else {}

    def __call__(self, content, providers):
        return self

    def run(self, names, feed):
        self.feed = feed
        outputs = onnx_file.by_autograd(
            self.classifier, *(torch.from_numpy(feed[name]) for name in ("x", "target"))
        )
        return [value.numpy() for value in outputs._replace(**self.change)]


@pytest.fixture
def flat(points, make_quick):
    return make_quick(model="linear", gate="none", epochs=1).fit(*points)


def test_a_graph_is_compared_for_every_class(flat, monkeypatch):
    session = Session(flat)
    monkeypatch.setattr(ort, "InferenceSession", session)
    assert max(onnx_file.graph_differences(b"", flat, torch.zeros(6, 2)).values()) == 0
    assert session.feed["target"].tolist() == [0, 1] * 3


@pytest.mark.parametrize("output", ["logits", "gradient"])
@pytest.mark.parametrize("value", [9.0, torch.nan])
def test_no_output_may_differ_or_be_no_number(flat, monkeypatch, output, value):
    monkeypatch.setattr(
        ort, "InferenceSession", Session(flat, {output: torch.full((6, 2), value)})
    )
    with pytest.raises(
        ModelError, match=f"does not compute what torch does: {output} differs by"
    ):
        onnx_file.graph_differences(b"", flat, torch.zeros(6, 2))


def test_an_export_holds_the_rules_that_are_stated_now(flat, tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_file, "_file", lambda classifier, described: b"")
    flat.set_params(mutability={0: "none"})
    assert export_onnx(flat, tmp_path / "x.onnx")["columns"][0]["move"] == "none"


def test_relations_are_named_and_warned_about(tmp_path, make_quick):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"total": rng.integers(5, 20, 100), "paid": rng.integers(0, 5, 100)})
    relation = "paid <= total"
    classifier = make_quick(model="linear", gate="none", relations=[relation])
    classifier.fit(frame, (frame["paid"] > 2).astype(int))
    with pytest.warns(
        UserWarning, match=r"Relations between columns are not exported \(paid <= total\)"
    ):
        spec = export_onnx(classifier, tmp_path / "related.onnx")
    assert spec["relations"] == [relation] == told(tmp_path / "related.onnx")["relations"]


def test_intervals_are_told_by_their_text(make_quick):
    ages = pd.cut(np.linspace(18, 79, 60), [0, 30, 50, 90])
    frame = pd.DataFrame({"age": ages, "debt": np.linspace(0, 9, 60).round(1)})
    classifier = make_quick(model="linear", gate="none").fit(frame, np.arange(60) % 2)
    spec = describe_classifier(classifier)
    assert spec["columns"][0]["categories"] == ["(0, 30]", "(30, 50]", "(50, 90]"]
    json.dumps(spec, allow_nan=False)


@pytest.mark.parametrize("what", [object(), ct.CounterfactualRegressor()])
def test_only_classifiers(what, tmp_path):
    with pytest.raises(
        InputError,
        match=f"Only a CounterfactualClassifier can be exported, got {type(what).__name__}",
    ):
        export_onnx(what, tmp_path / "x.onnx")


def test_where_it_cannot_be_written(fitted, tmp_path):
    with pytest.raises(InputError, match="is a folder; name a file"):
        export_onnx(fitted, tmp_path)
    with pytest.raises(InputError, match=r"Unknown class 'grnated'\. Did you mean 'granted'"):
        export_onnx(fitted, tmp_path / "x.onnx", wanted="grnated")


def test_a_missing_package_is_named(fitted, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "onnxscript", None)
    with pytest.raises(
        MissingExtraError, match=r"onnxscript is not installed.*counterfactual-training\[onnx\]"
    ):
        export_onnx(fitted, tmp_path / "x.onnx")
