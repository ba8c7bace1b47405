"""The MLflow example: saved and loaded in a folder, without pickle, with the same answers."""

import runpy
from pathlib import Path

import numpy as np
import pytest
import torch

import counterfactual_training as ct

mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")

pytestmark = pytest.mark.check
EXAMPLE = Path(__file__).parents[3] / "examples" / "mlflow_model.py"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    data = ct.loan(150, torch.Generator().manual_seed(0))
    classifier = ct.CounterfactualClassifier(
        epochs=5, random_state=0, mutability={"age": "none"}
    )
    classifier.fit(data.frame, data.labels)
    folder = tmp_path_factory.mktemp("mlflow") / "advisor"
    runpy.run_path(str(EXAMPLE))["save"](classifier, data.frame, str(folder))
    return classifier, data.frame.head(12).astype(float), folder


def test_loaded_answers_are_the_same(saved):
    classifier, rows, folder = saved
    loaded = mlflow.pyfunc.load_model(str(folder))
    plain = loaded.predict(rows)
    columns = [f"p({label})" for label in classifier.classes_]
    assert (
        plain["decision"].tolist() == classifier.predict(rows).tolist()
        and "advice" not in plain
    )
    assert np.array_equal(plain[columns], classifier.predict_proba(rows))
    told = loaded.predict(rows, params={"advice": True, "target": "loan granted"})
    assert told["advice"].tolist() == classifier.explain(rows, "loan granted").changes()
    assert (
        loaded.predict(rows, params={"advice": True})["advice"].tolist()
        == classifier.explain(rows).changes()
    )


def test_nothing_is_pickled(saved):
    names = {path.name for path in saved[2].rglob("*") if path.is_file()}
    assert {"classifier.safetensors", "mlflow_model.py"} <= names
    assert not {
        name for name in names if Path(name).suffix in (".pkl", ".pickle", ".pt", ".joblib")
    }
