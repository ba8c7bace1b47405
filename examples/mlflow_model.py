"""A classifier as an MLflow model: decisions, probabilities and, if asked for, advice. Nothing is
pickled.

The artifact is the file that CounterfactualClassifier.save writes, and the code is this very file
("models from code"). ``pip install mlflow-skinny`` is enough to save and load; ``mlflow models
serve -m FOLDER`` needs all of mlflow.
"""

import os
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import torch

import counterfactual_training as ct

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # nothing here leaves the machine
try:
    import mlflow
    from mlflow.models.signature import ModelSignature
    from mlflow.types.schema import ColSpec, ParamSchema, ParamSpec, Schema
except ImportError:
    mlflow = None


def save(classifier: ct.CounterfactualClassifier, frame: pd.DataFrame, folder: str) -> None:
    """Write the classifier as an MLflow model; ``frame`` are some rows, whose columns become the
    signature.
    """
    spec = [
        ColSpec("double" if pd.api.types.is_numeric_dtype(frame[name]) else "string", name)
        for name in frame
    ]
    params = [ParamSpec("advice", "boolean", False), ParamSpec("target", "string", "")]
    signature = ModelSignature(Schema(spec), params=ParamSchema(params))
    with tempfile.TemporaryDirectory() as scratch:
        file = str(Path(scratch) / "classifier.safetensors")
        classifier.save(file)
        mlflow.pyfunc.save_model(
            folder,
            python_model=__file__,
            artifacts={"classifier": file},
            signature=signature,
            pip_requirements=["counterfactual-training"],
        )


if mlflow is not None:

    class Advisor(mlflow.pyfunc.PythonModel):
        """Rows in, one row each out: ``decision``, ``p(class)`` and, with the parameter ``advice``,
        a sentence.
        """

        def load_context(self, context):
            self.classifier = ct.CounterfactualClassifier.load(context.artifacts["classifier"])

        def predict(
            self, context, model_input: pd.DataFrame, params: dict | None = None
        ) -> pd.DataFrame:
            probability = self.classifier.predict_proba(model_input)
            columns = {
                f"p({label})": probability[:, k]
                for k, label in enumerate(self.classifier.classes_)
            }
            found = pd.DataFrame(
                {"decision": self.classifier.classes_[probability.argmax(1)], **columns}
            )
            params = params or {}
            if params.get("advice"):
                # An empty target means the next most probable class of each row.
                labels = {str(label): label for label in self.classifier.classes_}
                if params.get("target"):
                    target = labels[params["target"]]
                else:
                    target = None
                found["advice"] = self.classifier.explain(model_input, target).changes()
            return found.set_index(model_input.index)

    mlflow.models.set_model(Advisor())


def main() -> None:
    applicants = ct.loan(400, torch.Generator().manual_seed(0))
    rules = {"mutability": {"age": "none", "debt": "decrease"}, "domain": {"debt": (0, None)}}
    classifier = ct.CounterfactualClassifier(epochs=20, random_state=0, **rules)
    classifier.fit(applicants.frame, applicants.labels)
    with tempfile.TemporaryDirectory() as scratch:
        folder = str(Path(scratch) / "advisor")
        save(classifier, applicants.frame, folder)
        loaded = mlflow.pyfunc.load_model(folder)
        rows = applicants.frame.head(20).astype(float)
        found = loaded.predict(rows, params={"advice": True, "target": "loan granted"})
    columns = [f"p({label})" for label in classifier.classes_]
    same = np.array_equal(found[columns], classifier.predict_proba(rows))
    print(f"same probabilities after loading: {same}")
    print(*found.loc[found["decision"] == "loan withheld", "advice"].head(3), sep="\n")


if __name__ == "__main__":
    if mlflow is None:
        print('Skipped: mlflow is not installed. Install it with: pip install "mlflow-skinny".')
    else:
        main()
