"""The picture of the README: rows of two moons before and after advice, by three models.

    python -m lab.before_after results     # writes results/before_after.png and .csv

Each model explains the same rows of two moons by its own `explain`: a network trained
conventionally, one by Counterfactual Training as published, and the default of
`CounterfactualClassifier`.
"""

from __future__ import annotations

import io
import json
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from sklearn.datasets import make_moons
from sklearn.neighbors import NearestNeighbors

import counterfactual_training as ct
from counterfactual_lab.reports.style import palette_png
from lab.further import PAPER

ROWS = 1500
PEOPLE = 14
SEED = 0
OTHER, WANTED = "#4477AA", "#EE9933"  # told apart by colour-blind readers too
MODELS = {
    "conventional network": {"method": "conventional", "gate": "none"},
    "Counterfactual Training\nas published": PAPER,
    "default: bag of networks\nwith a gate": {},
}


def moons(seed: int, n: int = ROWS) -> tuple[pd.DataFrame, np.ndarray]:
    x, y = make_moons(n, noise=0.12, random_state=seed)
    return pd.DataFrame(x, columns=["first", "second"]), np.where(y, "wanted", "other")


def draw(
    axes: Axes, model: ct.CounterfactualClassifier, title: str, people: pd.DataFrame
) -> dict[str, float | str]:
    """One panel: real rows, where the wanted class is decided, an arrow for each row; returns its
    numbers.
    """
    real, labels = moons(SEED + 1)
    grid = np.stack(np.meshgrid(np.linspace(-1.6, 2.6, 160), np.linspace(-1.2, 1.7, 120)), -1)
    frame = pd.DataFrame(grid.reshape(-1, 2), columns=people.columns)
    share = model.predict_proba(frame)[:, list(model.classes_).index("wanted")].reshape(
        grid.shape[:2]
    )
    axes.contourf(grid[..., 0], grid[..., 1], share, [0, 0.5, 1], colors=["#DCE6F0", "#FCEBD3"])
    for name, colour in (("other", OTHER), ("wanted", WANTED)):
        axes.plot(
            *real[labels == name].to_numpy().T[:, ::2],
            ".",
            color=colour,
            alpha=0.35,
            ms=4,
            mew=0,
        )
    explanation = model.explain(people, target="wanted")
    before = people.to_numpy()
    after = explanation.frame.to_numpy()
    for start, end in zip(before, after, strict=True):
        axes.annotate(
            "",
            end,
            start,
            arrowprops={"arrowstyle": "->", "color": "#333333", "lw": 1, "shrinkA": 3},
        )
    axes.plot(
        *before.T, "o", color="white", mec=OTHER, mew=1.4, ms=5, label="before: the other class"
    )
    axes.plot(
        *after.T, "o", color=WANTED, mec="black", mew=0.8, ms=6, label="after: the wanted class"
    )
    # Distances to rows that no model has seen.
    near = NearestNeighbors(n_neighbors=5).fit(real[labels == "wanted"].to_numpy())
    away = float(np.median(near.kneighbors(after)[0].mean(1)))
    cost = float(np.median(np.abs(after - before).sum(1)))
    axes.set_title(title, fontsize=11)
    axes.set_xlabel(
        f"distance to real rows of the wanted class {away:.2f}\ndistance moved {cost:.2f}",
        fontsize=10,
    )
    axes.set_xticks([])
    axes.set_yticks([])
    reached = float(np.mean(model.predict(explanation.frame) == "wanted"))
    return {
        "model": title.replace("\n", " "),
        "wanted": reached,
        "distance": round(away, 4),
        "cost": round(cost, 4),
    }


def main() -> None:
    out = Path(sys.argv[1])
    x, y = moons(SEED)
    models = {
        title: ct.CounterfactualClassifier(random_state=SEED, progress=False, **how).fit(x, y)
        for title, how in MODELS.items()
    }
    others, labels = moons(SEED + 2)
    refused = np.all(
        [model.predict(others) == "other" for model in models.values()], axis=0
    ) & (labels == "other")
    people = others[refused].iloc[:PEOPLE]
    figure, panels = plt.subplots(1, 3, figsize=(11, 3.9), layout="constrained")
    numbers = [
        draw(axes, model, title, people)
        for axes, (title, model) in zip(panels, models.items(), strict=True)
    ]
    panels[0].legend(loc="lower left", fontsize=9, framealpha=1)
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=110)
    (out / "before_after.png").write_bytes(palette_png(drawn.getvalue()))
    pd.DataFrame(numbers).to_csv(out / "before_after.csv", index=False)
    provenance = {
        "command": "python -m lab.before_after results",
        "seed": SEED,
        "versions": {
            name: version(name)
            for name in ("counterfactual-training", "torch", "scikit-learn", "matplotlib")
        },
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    (out / "provenance").mkdir(exist_ok=True)
    (out / "provenance" / "before_after.json").write_text(
        json.dumps(provenance, indent=2) + "\n", encoding="utf-8"
    )
    print(pd.DataFrame(numbers).to_string(index=False))


if __name__ == "__main__":
    main()
