"""Random tables with columns of all kinds, and random rules for them: what golden files and the
laws of advice are drawn from.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

ROWS = 600


def draw(rng: np.random.Generator) -> tuple[pd.DataFrame, np.ndarray]:
    """A random table and its labels."""
    frame = pd.DataFrame(
        {
            "income": rng.gamma(3, 1000, ROWS).round(-1),
            "debt": rng.gamma(2, 800, ROWS).round(2),
            "loans": rng.integers(0, 6, ROWS),
            "term": rng.choice([24, 36, 60], ROWS),
            "share": rng.beta(2, 3, ROWS),
            "age": rng.integers(18, 80, ROWS),
            "job": rng.choice(["clerk", "cook", "nurse", "pilot"], ROWS),
            "owner": rng.random(ROWS) > 0.5,
        }
    )
    numbers = frame.assign(
        job=frame["job"].map({"clerk": -1.0, "cook": 0.0, "nurse": 1.0, "pilot": 2.0})
    ).astype(float)
    standard = ((numbers - numbers.mean()) / numbers.std()).to_numpy()
    first, second = rng.integers(0, standard.shape[1], 2)
    score = (
        standard @ rng.normal(size=standard.shape[1]) + standard[:, first] * standard[:, second]
    )
    return frame, np.digitize(score + rng.normal(size=ROWS) / 2, [rng.normal() / 2 + 0.5])


def rules_of_fit(rng: np.random.Generator) -> dict:
    """Rules that are stated when the classifier is fitted."""
    schema = {
        "income": {"step": 50.0} if rng.random() < 0.3 else {},
        "debt": {"difficulty": float(rng.uniform(0.5, 3))},
        "age": {"mutability": ["both", "increase", "none"][int(rng.integers(3))]},
        "loans": {"special": [-9]} if rng.random() < 0.5 else {},
        "job": {"forbidden": [("clerk", "pilot")]} if rng.random() < 0.5 else {},
    }
    relations = ["debt <= income", "job = nurse requires owner = yes"]
    return {"schema": schema, "relations": [text for text in relations if rng.random() < 0.2]}
