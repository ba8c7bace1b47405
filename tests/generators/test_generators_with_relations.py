"""Every generator keeps relations between columns, whatever its steps are."""

import numpy as np
import pandas as pd
import pytest
import torch

from counterfactual_training import mlp
from counterfactual_training.generators import GENERATORS, make_generator, search
from counterfactual_training.tables.columns.encode import Encoder
from counterfactual_training.tables.columns.schema import Schema
from covering import repeats

QUICK = [name for name in GENERATORS if name != "growing_spheres"]
TEXTS = ["a <= b", "sum = a + b", "c + d >= 20", "job = pilot requires licence = yes"]


def table(rows=120):
    rng = np.random.default_rng(0)
    a = rng.integers(0, 20, rows)
    frame = {
        "a": a,
        "b": a + rng.integers(0, 15, rows),
        "c": np.round(rng.gamma(2, 5, rows), 1),
    }
    frame |= {"d": np.round(rng.normal(50, 20, rows), 2), "sum": frame["a"] + frame["b"]}
    job = rng.choice(["clerk", "pilot", "nurse"], rows)
    return pd.DataFrame(
        {**frame, "job": job, "licence": (rng.random(rows) > 0.4) | (job == "pilot")}
    )


@pytest.mark.parametrize("name", [*repeats("growing_spheres"), "sparse, two features", *QUICK])
def test_relations_hold(name):
    frame = table()
    encoder = Encoder(Schema.infer(frame, relations=TEXTS)).fit(frame)
    x = torch.as_tensor(encoder.transform(frame), dtype=torch.float32)
    torch.manual_seed(0)
    model, rules = mlp(x.shape[1], 2, hidden=(8,)), encoder.constraints(2.0).to(x)
    y_target = 1 - model(x).argmax(-1)
    own = {"growing_spheres": {"num": 100}, "sparse, two features": {"most": 2}}.get(name, {})
    settings = {"decision_threshold": 0.6, "max_steps": 40, **own}
    generator = make_generator(name.partition(",")[0], x, 1 - y_target, **settings)
    found = search(model, x, y_target, generator, rules)
    moved = found.num_steps > 0
    assert int(moved.sum()) > 20 and bool(
        (found.x_cf != x)[moved].any(-1).double().mean() > 0.5
    )
    assert not bool(rules.violations(found.x_cf[moved], x[moved]).any())
    # Derived columns follow, and what is said of the rows is true of them, as far as float32 tells.
    after = encoder.inverse_transform(found.x_cf.numpy())
    assert ((after["a"] <= after["b"] + 1e-3) | (frame["a"] > frame["b"]))[moved.numpy()].all()
    assert np.allclose(after["sum"], after["a"] + after["b"], atol=1e-3)
