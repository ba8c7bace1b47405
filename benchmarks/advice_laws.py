"""Laws of advice on random tables with all kinds of rules: how often does a freer question cost more?

``python -m benchmarks.advice_laws results`` draws tables (numbers, amounts, counts, few values, categories), fits the
default classifier with and without a gate, and asks pairs of questions, one of which is freer. The price of an answer
is its cost and a little for each column. ``--answers`` says how many answers to look at.
"""

from __future__ import annotations

import argparse
import platform
import warnings
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd
import torch

import counterfactual_training as ct
from counterfactual_training.advice.candidates import COLUMN
from counterfactual_training.persistence import atomic_write

ROWS, PEOPLE = 600, 150
KINDS = ("domain", "max_change", "lock", "max_changes", "options")


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
    numbers = frame.assign(job=frame["job"].map({"clerk": -1.0, "cook": 0.0, "nurse": 1.0, "pilot": 2.0})).astype(float)
    standard = ((numbers - numbers.mean()) / numbers.std()).to_numpy()
    first, second = rng.integers(0, standard.shape[1], 2)
    score = standard @ rng.normal(size=standard.shape[1]) + standard[:, first] * standard[:, second]
    return frame, np.digitize(score + rng.normal(size=ROWS) / 2, [rng.normal() / 2 + 0.5])


def questions(kind: str, frame: pd.DataFrame, rng: np.random.Generator) -> tuple[dict, dict]:
    """A question, and a freer one."""
    numbers = ["income", "debt", "share"]
    if kind == "domain":
        tight = {c: tuple(np.sort(rng.choice(frame[c], 2)).tolist()) for c in rng.choice(numbers, 2, replace=False)}
        tight = {c: (low, high + float(frame[c].std()) / 5) for c, (low, high) in tight.items()}
        free = {c: (low - abs(low) / 3, high + abs(high) / 3) for c, (low, high) in tight.items()}
        return {"domain": tight}, {"domain": free}
    if kind == "max_change":
        tight = {c: float(frame[c].std() * rng.uniform(0.1, 1.0)) for c in rng.choice(numbers, 2, replace=False)}
        return {"max_change": tight}, {"max_change": {c: 1.5 * most for c, most in tight.items()}}
    if kind == "lock":
        locked = rng.choice(frame.columns, 3, replace=False).tolist()
        return {"lock": locked}, {"lock": locked[:1]}
    if kind == "max_changes":
        most = int(rng.integers(1, 4))
        return {"max_changes": most}, {"max_changes": most + 1}
    return {"n_options": 1}, {"n_options": 3}


def prices(told: ct.Explanation) -> pd.DataFrame:
    """Price, number of columns and status of the first answer of each row."""
    lines = pd.DataFrame({"price": told.cost, "columns": (told.distance > 0).sum(1), "status": told.status})
    lines["price"] += COLUMN * lines["columns"]
    lines.loc[lines["status"] != "converged", "price"] = np.inf
    labels = told.frame.index.get_level_values(0) if told.several else told.frame.index
    return lines[~labels.duplicated()].reset_index(drop=True)


def measure(num_answers: int, seed: int) -> pd.DataFrame:
    """Pairs of questions, and how many of them break the law; by kind, and by whether two columns suffice."""
    rng, counts, answers = np.random.default_rng(seed), [], 0
    while answers < num_answers:
        frame, y = draw(rng)
        gate = ("none", "density")[int(rng.integers(2))]
        classifier = ct.CounterfactualClassifier(epochs=15, gate=gate, random_state=0, progress=False).fit(frame, y)
        people = frame[classifier.predict(frame) == 0].head(PEOPLE)
        if len(people) == 0:
            continue
        for kind in KINDS:
            tight, free = questions(kind, frame, rng)
            dear, cheap = (prices(classifier.explain(people, 1, **rules)) for rules in (tight, free))
            broken = cheap["price"] > dear["price"] + 1e-6
            # Where the tight question has no answer, the freer one cannot be dearer.
            answered = dear["status"] == "converged"
            for few in (True, False):
                chosen = answered & ((dear["columns"] <= 2) == few)
                pairs, bad = int(chosen.sum()), int((broken & chosen).sum())
                counts.append({"kind": kind, "few": few, "pairs": pairs, "broken": bad})
            answers += len(dear) + len(cheap)
    return pd.DataFrame(counts).groupby(["kind", "few"], sort=False).sum().reset_index()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="where to write advice_laws.md")
    parser.add_argument("--answers", type=int, default=300_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    found = measure(arguments.answers, arguments.seed)
    text = [
        "# A freer question never costs more",
        "",
        f"`python -m benchmarks.advice_laws results --answers {arguments.answers} --seed {arguments.seed}`, "
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, counterfactual-training {ct.__version__}, torch {torch.__version__}, "
        f"Python {platform.python_version()}.",
        "",
        "Random tables; pairs of questions to the same people, one of which is freer. *Broken*: the freer one has no "
        "answer, or a dearer one (cost, and a little for each column).",
        "",
        "| freer by | tight answer changes | pairs | broken |",
        "|---|---|--:|--:|",
    ]
    for line in found.itertuples():
        columns = "one or two columns" if line.few else "more"
        text.append(f"| {line.kind} | {columns} | {line.pairs:,} | {line.broken:,} |")
    text.append(f"| all | | {found['pairs'].sum():,} | {found['broken'].sum():,} |")
    atomic_write(arguments.out / "advice_laws.md", ("\n".join(text) + "\n").encode())
    print("\n".join(text))


if __name__ == "__main__":
    main()
