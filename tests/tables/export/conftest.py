"""The loan book, and a table with every kind of column and rule, each exported once."""

import numpy as np
import pandas as pd
import pytest

from counterfactual_training.tables.export import export_onnx
from loan_book import fitted, loans, make_quick, points, quick, schema

__all__ = ["fitted", "loans", "make_quick", "points", "schema"]

MIXED = {
    "late": {
        "kind": "integer",
        "special": [-9],
        "mutability": "decrease",
        "domain": (0, 90),
        "unit": "days",
    },
    "limit": {"step": 500, "max_change": 6000, "difficulty": 2.0},
    "ratio": {"mutability": "increase"},
    "grade": {
        "kind": "ordinal",
        "categories": ["C", "B", "A"],
        "mutability": "increase",
        "max_change": 1,
    },
    "job": {
        "allowed": ["clerk", "nurse", "pilot"],
        "forbidden": [("clerk", "pilot"), ("none", "pilot")],
    },
    "licence": {"kind": "binary", "categories": ["no", "yes"]},
    "rooms": {"allowed": [1, 2, 4]},
    "sex": {"mutability": "none"},
}


def draw_mixed(n: int = 500, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray]:
    """Special codes, steps, lists of values, an order, forbidden changes, blanks; three classes."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "late": np.where(rng.random(n) < 0.1, -9, rng.integers(0, 60, n)),
            "limit": 500.0 * rng.integers(2, 40, n),
            "ratio": rng.normal(0.4, 0.1, n),
            "grade": rng.choice(["C", "B", "A"], n),
            "job": rng.choice(["clerk", "nurse", "pilot", "none"], n),
            "licence": rng.choice(["no", "yes"], n),
            "rooms": rng.choice([1, 2, 4], n),
            "sex": rng.choice(["f", "m"], n),
        }
    )
    score = 0.0002 * frame["limit"] - 0.05 * frame["late"].clip(0) + 8 * (frame["ratio"] - 0.4)
    score += frame["grade"].map({"C": 0.0, "B": 0.6, "A": 1.2}) + 0.8 * (
        frame["job"] == "pilot"
    )
    score += 0.4 * (frame["licence"] == "yes") + 0.2 * frame["rooms"]
    frame.loc[rng.random(n) < 0.03, "ratio"] = np.nan
    return frame, np.select([score < 1.0, score < 2.2], ["no", "perhaps"], "yes")


@pytest.fixture(scope="session")
def mixed():
    return draw_mixed()


@pytest.fixture(scope="session")
def mixed_classifier(mixed, share):
    return share(
        "mixed", lambda: quick(schema=MIXED, missing="impute", model="linear").fit(*mixed)
    )


@pytest.fixture(scope="session")
def loan_file(fitted, tmp_path_factory):
    pytest.importorskip("onnxruntime", reason="export needs the extra 'onnx'")
    path = tmp_path_factory.mktemp("export") / "loan.onnx"
    export_onnx(fitted, path, wanted="granted")
    return path


@pytest.fixture(scope="session")
def mixed_file(mixed_classifier, tmp_path_factory):
    pytest.importorskip("onnxruntime", reason="export needs the extra 'onnx'")
    path = tmp_path_factory.mktemp("export") / "mixed.onnx"
    export_onnx(mixed_classifier, path)
    return path
