"""Do rules hold? Random tables, random rules of ``fit`` and of the question, read again in the
user's units.

``python -m benchmarks.rules results --number 1000000``: two hours on one core. Every counterfactual
that comes out, answer or best effort, is compared with the rules as they were written, without the
library's own idea of them: columns and questions, relations, special codes. So is the library's
judge, whose verdict must be the same; answers that it had ``explain`` withhold count as broken. Of
answers without a gate, each change is taken back alone and the model asked again: a change is
superfluous if the target is still reached.
"""

from __future__ import annotations

import argparse
import platform
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

import counterfactual_training as ct
from counterfactual_training.persistence import atomic_write
from counterfactual_training.tables.advice.answer import advice_constraints
from counterfactual_training.tables.advice.rules import Rules
from counterfactual_training.tables.columns.plan_judge import PlanJudge

JOBS = ["clerk", "cook", "nurse", "pilot", "smith"]
RANKS = ["none", "school", "BSc", "MSc"]
WAYS = ["both", "both", "increase", "decrease", "none"]
# "No record" in the column ``late``; decimals of ``ratio``.
CODE = -9
RATIO = 4
RELATIONS = ["paid <= loans", "ratio = debt / income", "job = pilot requires degree = MSc"]
# Of a question; some people break it as they are.
RELATIONS_OF_QUESTION = ["loans + paid <= 12", "loans - late >= -6"]
# What is counted of changes that are taken back one at a time.
TRIED = "changes taken back, each alone"
SUPERFLUOUS = "superfluous changes"
# Sums and multiples of decimals are off by this share; nothing else has any slack.
SLACK = 1e-14


def draw_people(rng: np.random.Generator, n: int) -> tuple[pd.DataFrame, np.ndarray]:
    """Columns of every kind, and two or three classes."""
    people = pd.DataFrame(
        {
            "income": rng.gamma(3.0, 900.0, n).round(2),
            "debt": rng.gamma(2.0, 10.0, n).round(1),
            "loans": rng.integers(0, 12, n),
            "score": rng.normal(size=n),
            "degree": rng.choice(RANKS, n),
            "job": rng.choice(JOBS, n),
            "owner": rng.random(n) > 0.5,
        }
    )
    people["paid"] = rng.binomial(people["loans"], 0.6)
    people["late"] = np.where(rng.random(n) < 0.1, CODE, rng.integers(0, 9, n))
    people["ratio"] = (people["debt"] / people["income"]).round(RATIO)
    good = (
        people["income"] / 1500
        - people["debt"] / 12
        - people["loans"] / 6
        + people["score"]
        + 0.6 * people["owner"]
    )
    good += 0.4 * people["degree"].map(RANKS.index) + 0.3 * people["job"].map(JOBS.index)
    good += people["paid"] / 8 - people["late"].clip(0) / 6
    cuts = np.quantile(good, [0.5] if rng.random() < 0.5 else [0.4, 0.75])
    return people, np.digitize(good, cuts)


def draw_schema(rng: np.random.Generator) -> dict[str, dict[str, Any]]:
    """What ``fit`` is told."""
    way = {
        name: {"mutability": str(rng.choice(WAYS))}
        for name in ("income", "debt", "loans", "score", "owner", "degree")
    }
    way["degree"] |= {"kind": "ordinal", "categories": RANKS}
    pairs = [(a, b) for a in JOBS for b in JOBS if a != b]
    forbidden = [pairs[i] for i in rng.choice(len(pairs), 6, replace=False)]
    way["late"] = {"special": [CODE]}
    return way | {
        "job": {"categories": JOBS, "forbidden": forbidden},
        "debt": way["debt"] | {"domain": (0, 60)},
    }


def draw_question(rng: np.random.Generator) -> dict[str, Any]:
    """Rules of one question; each may be there or not."""
    names = ["income", "debt", "loans", "score", "degree", "job", "owner"]
    rules: dict[str, Any] = {
        "lock": sorted(rng.choice(names, rng.integers(1, 4), replace=False).tolist()),
        # Job is never fixed.
        "vary": sorted({"job", *rng.choice(names, rng.integers(2, 5), replace=False).tolist()}),
        "domain": {"income": (500.0, 6000.0), "job": JOBS[:3], "loans": (1, 8)},
        "step": {"income": 50, "debt": 0.5, "loans": 2},
        "max_change": {"income": 1500.0, "debt": 12.0, "loans": 3, "degree": 1},
        "max_changes": int(rng.integers(1, 4)),
        "difficulty": {"income": 4.0, "job": 0.5},
        "confidence": float(rng.choice([0.6, 0.8])),
        "n_options": int(rng.integers(2, 4)),
        "relations": [str(rng.choice(RELATIONS_OF_QUESTION))],
    }
    question = {name: value for name, value in rules.items() if rng.random() < 0.35}
    if "vary" in question:  # a column cannot be free and held at once
        question.pop("lock", None)
    for name in ("domain", "step", "max_change"):
        if name in question:
            kept = [column for column in question[name] if rng.random() < 0.6]
            question[name] = {column: question[name][column] for column in kept}
    return question


@dataclass(frozen=True)
class Moved:
    """The changed cells of a column, before and after: as they are, and as numbers or ranks."""

    name: str
    old: pd.Series
    new: pd.Series

    @property
    def was(self) -> np.ndarray:
        return self._ranks(self.old)

    @property
    def now(self) -> np.ndarray:
        return self._ranks(self.new)

    def _ranks(self, values: pd.Series) -> np.ndarray:
        if self.name == "degree":
            rank = RANKS.index
        elif self.name == "job":
            rank = JOBS.index
        else:
            rank = float
        return np.array([rank(value) for value in values])


def broken(
    explanation: ct.Explanation,
    people: pd.DataFrame,
    schema: dict[str, Any],
    question: dict[str, Any],
) -> list[str]:
    """Every rule that a counterfactual breaks, by name."""
    before = explanation.original.reset_index(drop=True)
    after = explanation.frame.reset_index(drop=True)
    mask = explanation.changed.to_numpy()
    counts: dict[str, int] = {}
    if "max_changes" in question:
        many = (explanation.distance > 0).sum(1) > question["max_changes"]
        counts["max_changes"] = int(many.sum())
    for j, name in enumerate(people):
        rows = mask[:, j]
        differ = before[name][~rows] != after[name][~rows]
        moved = Moved(name, before[name][rows], after[name][rows])
        for rule, count in {
            "unchanged cell differs": int(differ.sum()),
            **_broken_of_model(moved, schema),
            **_broken_of_question(moved, schema, question),
        }.items():
            counts[f"{name}: {rule}"] = count
    return [rule for rule, count in counts.items() for _ in range(count)]


def _broken_of_model(moved: Moved, schema: dict[str, Any]) -> dict[str, int]:
    """How many cells break each rule that the model was told."""
    name = moved.name
    counts: dict[str, int] = {}
    way = schema.get(name, {}).get("mutability", "both")
    if way not in ("both", "increase"):
        counts["rises"] = int((moved.now > moved.was).sum())
    if way not in ("both", "decrease"):
        counts["falls"] = int((moved.now < moved.was).sum())
    if name == "job":
        pairs = zip(moved.old, moved.new, strict=True)
        counts["forbidden"] = sum(pair in schema[name]["forbidden"] for pair in pairs)
    if name == "late":
        coded = (moved.was == CODE) | (moved.now == CODE)
        counts["code moved or reached"] = int(coded.sum())
    if name in ("loans", "paid", "late"):
        counts["whole"] = int((moved.now != np.rint(moved.now)).sum())
    return counts


def _broken_of_question(
    moved: Moved, schema: dict[str, Any], question: dict[str, Any]
) -> dict[str, int]:
    """How many cells break each rule that the question adds, and the domain of both."""
    name = moved.name
    counts = {"domain": 0}
    if name in question.get("lock", ()):
        counts["lock"] = len(moved.new)
    if name not in question.get("vary", [name]) and name != "ratio":  # which may follow others
        counts["vary"] = len(moved.new)
    for low, high in _intervals(name, schema, question):
        # A factual outside may stay outside, and move towards the inside only.
        below = moved.now < np.minimum(low, moved.was)
        above = moved.now > np.maximum(high, moved.was)
        counts["domain"] += int((below | above).sum())
    if name == "job" and name in question.get("domain", {}):
        counts["domain"] += int((~moved.new.isin(question["domain"][name])).sum())
    if name in question.get("step", {}):
        steps = moved.now / question["step"][name]
        off = np.abs(steps - np.rint(steps)) > SLACK * np.abs(steps)
        counts["step"] = int(off.sum())
    if name in question.get("max_change", {}):
        most = question["max_change"][name] + SLACK * (1 + np.abs(moved.was))
        counts["max_change"] = int((np.abs(moved.now - moved.was) > most).sum())
    return counts


def breaks(before: pd.DataFrame, after: pd.DataFrame, relation: str) -> np.ndarray:
    """Which counterfactuals break a relation, more than their factuals do."""
    if relation == RELATIONS[0]:
        worse = after["paid"] - after["loans"] > np.maximum(0, before["paid"] - before["loans"])
    elif relation == RELATIONS[1]:
        worse = (
            after["ratio"] - after["debt"] / after["income"]
        ).abs() > 0.5 * 10**-RATIO + 1e-8
    elif relation == RELATIONS[2]:
        pilot = (after["job"] == "pilot") & (after["degree"] != "MSc")
        worse = pilot & ~((before["job"] == "pilot") & (before["degree"] != "MSc"))
    elif relation == RELATIONS_OF_QUESTION[0]:
        worse = after["loans"] + after["paid"] > np.maximum(
            12, before["loans"] + before["paid"]
        )
    else:
        late = (after["late"] != CODE) & (after["late"] - after["loans"] > 6)
        worse = late & (after["late"] - after["loans"] > before["late"] - before["loans"])
    return worse.to_numpy()


def verdicts(
    classifier: ct.CounterfactualClassifier,
    explanation: ct.Explanation,
    question: dict[str, Any],
) -> list[str]:
    """The rules that the library's judge says are broken, by name, and the answers that it had
    withheld.
    """
    stated = {
        name: rule for name, rule in question.items() if name not in ("confidence", "n_options")
    }
    rules = Rules(**stated)
    encoder = classifier.encoder_.with_schema(rules.narrow(classifier.schema_))
    judge = PlanJudge(
        encoder, advice_constraints(encoder, classifier.num_std_), rules.max_changes
    )
    broken_rules = [
        f"judge: {v.column}: {v.rule}" for v in judge(explanation.original, explanation.frame)
    ]
    return broken_rules + ["withheld"] * sum(
        "broke a rule" in note for note in explanation.notes
    )


def superfluous(
    classifier: ct.CounterfactualClassifier,
    explanation: ct.Explanation,
    relations: Sequence[str],
) -> tuple[int, int]:
    """Changes of answers that can be undone alone with the target still reached, and how many were
    tried.
    """
    before = explanation.original.reset_index(drop=True)
    after = explanation.frame.reset_index(drop=True)
    mask = explanation.changed.to_numpy() & (explanation.status == "converged")[:, None]
    row, column = np.nonzero(mask & (explanation.distance > 0))
    if len(row) == 0:
        return 0, 0
    undone = after.iloc[row].reset_index(drop=True)
    for j, name in enumerate(undone):
        here = column == j
        undone.loc[here, name] = before[name].to_numpy()[row[here]]
    if RELATIONS[1] in relations:
        undone["ratio"] = (undone["debt"] / undone["income"]).round(RATIO)
    factuals = before.iloc[row].reset_index(drop=True)
    allowed = ~np.any(
        [np.zeros(len(row), bool), *(breaks(factuals, undone, text) for text in relations)],
        axis=0,
    )
    chance = classifier.predict_proba(undone)
    places = np.searchsorted(classifier.classes_, explanation.target[row])
    target_chance = chance[np.arange(len(row)), places]
    rival = np.where(np.arange(chance.shape[1]) == places[:, None], -1.0, chance).max(1)
    if explanation.asked is None:
        bar = target_chance / (target_chance + rival) - 0.5
    else:
        bar = target_chance - explanation.asked
    return int((allowed & (bar > 3e-6)).sum()), int(allowed.sum())


def _intervals(
    name: str, schema: dict[str, Any], question: dict[str, Any]
) -> list[tuple[float, float]]:
    stated = [schema.get(name, {}).get("domain"), question.get("domain", {}).get(name)]
    return [pair for pair in stated if pair is not None and name != "job"]


def same_columns(explanation: ct.Explanation) -> int:
    """Plausible options of one person that do not differ in the columns they change."""
    if explanation.frame.index.nlevels == 1:
        return 0
    seen: Counter[tuple[Any, ...]] = Counter()
    for label, status, line in zip(
        explanation.frame.index, explanation.status, explanation.changed.to_numpy(), strict=True
    ):
        if status == "converged":
            seen[(label[0], line.tobytes())] += 1
    return sum(count - 1 for count in seen.values())


def one_table(seed: int, num_rows: int) -> tuple[Counter[str], Counter[str]]:
    """One random table with four questions: what was counted, and what was broken."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", UserWarning)
    counts = Counter[str]()
    wrong = Counter[str]()
    rng = np.random.default_rng(seed)
    people, y = draw_people(rng, num_rows)
    schema = draw_schema(rng)
    relations = [text for text in RELATIONS if rng.random() < 0.3]
    if seed % 8 == 0:
        gate = "density"
    else:
        gate = "none"
    classifier = ct.CounterfactualClassifier(
        hidden=(16,),
        epochs=4,
        random_state=seed,
        schema=schema,
        relations=relations,
        gate=gate,
        progress=False,
    ).fit(people[:600], y[:600])
    if gate == "none":
        rows = people
    else:
        rows = people[:400]
    for _ in range(4):
        question = draw_question(rng)
        explanation = classifier.explain(rows, **question)
        related = [*relations, *question.get("relations", ())]
        counts.update({"counterfactuals": len(explanation), "questions": 1})
        counts.update(explanation.status.tolist())
        counts.update(
            [*(f"rule {name}" for name in question), *(f"relation {text}" for text in related)]
        )
        wrong.update(broken(explanation, people, schema, question))
        wrong.update(verdicts(classifier, explanation, question))
        before = explanation.original.reset_index(drop=True)
        after = explanation.frame.reset_index(drop=True)
        wrong.update({text: int(breaks(before, after, text).sum()) for text in related})
        wrong["options with the same columns"] += same_columns(explanation)
        if gate == "none":
            more, tried = superfluous(classifier, explanation, related)
            wrong[SUPERFLUOUS] += more
            counts[TRIED] += tried
    return counts, wrong


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="folder of rules.md")
    parser.add_argument("--number", type=int, default=1_000_000, help="of counterfactuals")
    parser.add_argument("--rows", type=int, default=4000, help="per table")
    parser.add_argument("--workers", type=int, default=1, help="processes")
    parser.add_argument("--first", type=int, default=0, help="seed of the first table")
    arguments = parser.parse_args()
    counts = Counter[str]()
    wrong = Counter[str]()
    seed = arguments.first
    started = time.time()
    arguments.out.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(arguments.workers, get_context("spawn")) as pool:
        while counts["counterfactuals"] < arguments.number:
            seeds = range(seed, seed + 4 * arguments.workers)
            for counted, broken_rules in pool.map(one_table, seeds, repeat(arguments.rows)):
                counts.update(counted)
                wrong.update(broken_rules)
            seed = seeds.stop
            nonzero = {name: n for name, n in wrong.items() if n}
            print(
                seed,
                counts["counterfactuals"],
                nonzero,
                round(time.time() - started),
                flush=True,
            )
            # After every round, so that a run that is stopped has its page, too.
            text = page(
                counts,
                wrong,
                f"seeds {arguments.first} to {seed - 1}",
                arguments,
                time.time() - started,
            )
            atomic_write(arguments.out / "rules.md", text.encode())


def page(
    counts: Counter[str],
    wrong: Counter[str],
    seeds: str,
    arguments: argparse.Namespace,
    seconds: float,
) -> str:
    lines = [
        "# Do rules hold?\n",
        f"`python -m benchmarks.rules results --number {arguments.number} --rows "
        f"{arguments.rows}`, "
        f"{seeds}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC, "
        f"version {ct.__version__}, torch {torch.__version__}, "
        f"Python {platform.python_version()}, {seconds:.0f} s.\n",
        f"{counts['counterfactuals']:,} counterfactuals, {sum(wrong.values()):,} broken rules.\n",
        f"{counts[TRIED]:,} changes of answers were taken back, each alone, and the model asked "
        "again: "
        f"{wrong[SUPERFLUOUS]:,} of them were superfluous, the target still reached.\n",
        *(
            f"- {name}: {n:,}"
            for name, n in sorted(counts.items())
            if name not in ("counterfactuals", TRIED)
        ),
        *(f"- broken: {name}: {n:,}" for name, n in sorted(wrong.items()) if n),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
