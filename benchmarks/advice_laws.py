"""Laws of advice on random tables with all kinds of rules: how often is one broken?

``python -m benchmarks.advice_laws results`` draws tables (numbers, amounts, counts, few values,
categories) and rules, fits the default or a single network, with and without a gate, and asks pairs
of questions, one of which is freer. The price of an answer is its cost and a little for each
column. ``--answers`` says how many answers to look at.
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
from counterfactual_training.persistence import atomic_write
from counterfactual_training.tables.advice.candidates import COLUMN
from tools.random_tables import draw, rules_of_fit

PEOPLE = 150
KINDS = ("domain", "max_change", "lock", "max_changes", "options")


def questions(kind: str, frame: pd.DataFrame, rng: np.random.Generator) -> tuple[dict, dict]:
    """A question, and a freer one."""
    numbers = ["income", "debt", "share"]
    if kind == "domain":
        tight = {
            c: tuple(np.sort(rng.choice(frame[c], 2)).tolist())
            for c in rng.choice(numbers, 2, replace=False)
        }
        tight = {c: (low, high + float(frame[c].std()) / 5) for c, (low, high) in tight.items()}
        free = {
            c: (low - abs(low) / 3, high + abs(high) / 3) for c, (low, high) in tight.items()
        }
        return {"domain": tight}, {"domain": free}
    if kind == "max_change":
        tight = {
            c: float(frame[c].std() * rng.uniform(0.1, 1.0))
            for c in rng.choice(numbers, 2, replace=False)
        }
        return {"max_change": tight}, {
            "max_change": {c: 1.5 * most for c, most in tight.items()}
        }
    if kind == "lock":
        locked = rng.choice(frame.columns, 3, replace=False).tolist()
        return {"lock": locked}, {"lock": locked[:1]}
    if kind == "max_changes":
        most = int(rng.integers(1, 4))
        return {"max_changes": most}, {"max_changes": most + 1}
    return {"n_options": 1}, {"n_options": 3}


def prices(explanation: ct.Explanation) -> pd.DataFrame:
    """Price, number of columns and status of the first answer of each row."""
    lines = pd.DataFrame(
        {
            "price": explanation.cost,
            "columns": (explanation.distance > 0).sum(1),
            "status": explanation.status,
        }
    )
    lines["price"] += COLUMN * lines["columns"]
    lines.loc[lines["status"] != "converged", "price"] = np.inf
    if explanation.several:
        labels = explanation.frame.index.get_level_values(0)
    else:
        labels = explanation.frame.index
    return lines[~labels.duplicated()].reset_index(drop=True)


def broken_alone(
    classifier: ct.CounterfactualClassifier, explanation: ct.Explanation
) -> dict[str, int]:
    """How many answers break a law that concerns one question alone."""
    converged = explanation.status == "converged"
    frame = explanation.frame.reset_index(drop=True)
    original = explanation.original.reset_index(drop=True)
    moved = explanation.distance > 0
    if converged.any():
        judged = classifier.predict(frame[converged]) == explanation.target[converged]
    else:
        judged = np.ones(0, dtype=bool)
    # Every change taken back alone, where no other column follows: the bar must be missed.
    row, column = (moved & converged[:, None]).nonzero()
    lighter = frame.iloc[row].reset_index(drop=True)
    for j, name in enumerate(frame.columns):
        here = np.flatnonzero(column == j)
        lighter.loc[here, name] = original[name].iloc[row[here]].to_numpy()
    needed = 0
    if len(row) and not classifier.encoder_.schema_.relations:
        target = explanation.target[row]
        reached = classifier.predict(lighter) == target
        if classifier.gate_ is not None:
            # As advice is judged: given what cannot change.
            x = torch.as_tensor(classifier.encoder_.transform(lighter), dtype=torch.float32)
            place = torch.as_tensor(np.searchsorted(classifier.classes_, target))
            with torch.no_grad():
                passes = classifier.gate_(x).exp().gather(1, place[:, None]).squeeze(1)
            reached &= passes.numpy() >= 0.5 + 1e-4
        sure = classifier.predict_proba(lighter).max(1) > 0.5 + 1e-4
        needed = int((reached & sure & (moved.sum(1)[row] > 1)).sum())
    return {
        "the row as printed has the target": int((~judged).sum()),
        "every change is needed": needed,
    }


def nested(explanation: ct.Explanation) -> int:
    """How many options change all columns of another one of the same row."""
    groups = pd.Series(range(len(explanation)))[explanation.answered].groupby(
        explanation.frame.index.get_level_values(0)[explanation.answered]
    )
    moved = explanation.distance > 0
    return sum(
        bool((moved[i] >= moved[j]).all())
        for _, options in groups
        for i in options.tolist()
        for j in options.tolist()
        if i != j
    )


def measure(num_answers: int, seed: int) -> pd.DataFrame:
    """Laws, how often each was looked at, and how often it was broken."""
    rng = np.random.default_rng(seed)
    counts: dict[tuple[str, str], list[int]] = {}
    answers = 0

    def count(law: str, about: str, looked_at: int, broken: int) -> None:
        line = counts.setdefault((law, about), [0, 0])
        line[0] += looked_at
        line[1] += broken

    while answers < num_answers:
        frame, y = draw(rng)
        gate = ("none", "density")[int(rng.integers(2))]
        method = ("conventional", "bag")[int(rng.integers(2))]
        classifier = ct.CounterfactualClassifier(
            method, epochs=15, gate=gate, random_state=0, progress=False, **rules_of_fit(rng)
        ).fit(frame, y)
        people = frame[classifier.predict(frame) == 0].head(PEOPLE)
        if len(people) < 5:
            continue
        for kind in KINDS:
            tight, free = questions(kind, frame, rng)
            explanations = [classifier.explain(people, 1, **rules) for rules in (tight, free)]
            tight_prices, free_prices = map(prices, explanations)
            broken = free_prices["price"] > tight_prices["price"] + 1e-6
            # Where the tight question has no answer, the freer one cannot be dearer.
            answered = tight_prices["status"] == "converged"
            for few in (True, False):
                chosen = answered & ((tight_prices["columns"] <= 2) == few)
                about = f"{kind}, {'one or two columns' if few else 'more columns'}"
                count(
                    "a freer question does not cost more",
                    about,
                    int(chosen.sum()),
                    int((broken & chosen).sum()),
                )
            if kind == "options":
                same = (explanations[1].option(1) == explanations[0].frame).all(1)
                count(
                    "the first of three options is the answer to one",
                    "",
                    len(same),
                    int((~same).sum()),
                )
                count(
                    "no option contains another",
                    "",
                    len(explanations[1]),
                    nested(explanations[1]),
                )
            for one in explanations:
                for law, number in broken_alone(classifier, one).items():
                    count(law, "", len(one), number)
                answers += len(one)
        order = rng.permutation(len(people))
        base = classifier.explain(people, 1)
        shuffled = classifier.explain(people.iloc[order], 1).frame.loc[people.index]
        count(
            "shuffling people changes nothing",
            "",
            len(people),
            int((shuffled != base.frame).any(axis=1).sum()),
        )
        lone = pd.concat([classifier.explain(people.iloc[[i]], 1).frame for i in range(5)])
        count(
            "asking one by one changes nothing",
            "",
            5,
            int((lone != base.frame.head(5)).any(axis=1).sum()),
        )
        answers += 2 * len(people) + 5
        with torch.no_grad():
            for network in getattr(classifier.model_, "members", [classifier.model_]):
                for weight in network[-1].parameters():
                    weight *= 4
        scaled = classifier.explain(people, 1).frame
        count(
            "scaling all logits changes nothing",
            "",
            len(people),
            int((scaled != base.frame).any(axis=1).sum()),
        )
        answers += len(people)
        print(answers, flush=True)
    lines = [
        {"law": law, "about": about, "looked at": n, "broken": bad}
        for (law, about), (n, bad) in counts.items()
    ]
    return pd.DataFrame(lines).sort_values(["law", "about"], kind="stable")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="where to write advice_laws.md")
    parser.add_argument("--answers", type=int, default=300_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    counts = measure(arguments.answers, arguments.seed)
    text = [
        "# The laws of advice, on random tables",
        "",
        f"`python -m benchmarks.advice_laws results --answers {arguments.answers} --seed "
        f"{arguments.seed}`, "
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, counterfactual-training {ct.__version__}, "
        f"torch {torch.__version__}, "
        f"Python {platform.python_version()}.",
        "",
        "Random tables, classifiers and rules: directions, steps, difficulty, special codes, "
        "forbidden categories, "
        "relations at fit; domains, largest changes, locks and numbers of columns in the "
        "question. *A freer question "
        "does not cost more*: pairs of questions to the same people; broken if the freer one has "
        "no answer, or a "
        "dearer one (cost, and a little for each column). A change counts as superfluous where "
        "the row without it "
        "reaches the bar by more than 0.0001.",
        "",
        "| law | | looked at | broken |",
        "|---|---|--:|--:|",
    ]
    for line in counts.itertuples(index=False):
        text.append(f"| {line[0]} | {line[1]} | {line[2]:,} | {line[3]:,} |")
    pairs = counts[counts["about"] != ""]
    text.append(
        f"| a freer question does not cost more | all | {pairs['looked at'].sum():,} | "
        f"{pairs['broken'].sum():,} |"
    )
    atomic_write(arguments.out / "advice_laws.md", ("\n".join(text) + "\n").encode())
    print("\n".join(text))


if __name__ == "__main__":
    main()
