"""Our adversarial training, `pgd` and `trades`, beside that of the Adversarial Robustness Toolbox.

Same network, initial weights, rows, optimizer, ε, steps and step size; no limits of the inputs.
Batches and random starts are drawn by each library. All models are attacked by our PGD and by
ART's.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import counterfactual_training as ct
from benchmarks.environments import Environments, Peer
from benchmarks.foreign.api import layers_of, network
from benchmarks.report import Table, Value
from counterfactual_training.evaluation.bootstrap import compare

DATA = ("CH", "GMSC")
ROWS = 2000
TEST = 2000
SEEDS = 3
EPOCHS = 10
HIDDEN = (32, 32)
TRAINING = {"epsilon": 0.1, "steps": 10, "step_size": 0.025}  # the methods' own
ATTACK = {"epsilon": 0.2, "steps": 20, "step_size": 0.025}  # on trained models: stronger
BETA = 6.0
# Our method, its numbers, and ways of ART to train the same.
PAIRS: dict[str, tuple[dict[str, float], tuple[str, ...]]] = {
    "pgd": ({}, ("pgd",)),
    "trades": ({"beta": BETA}, ("trades, CE", "trades, KL")),
}
COLUMNS = (
    "data",
    "trained by",
    "accuracy",
    "under our PGD",
    "under ART's PGD",
    "minus ours: accuracy",
    "our PGD",
    "ART's PGD",
    "seconds per epoch, beside ours",
)
NOTE = f"""
{ROWS:,} training rows, {TEST:,} test rows, {" and ".join(map(str, HIDDEN))} hidden units, {EPOCHS}
epochs of batch 128, Adam, {SEEDS} seeds, which draw the first weights and the batches. Training: ε
= {TRAINING["epsilon"]}, {TRAINING["steps"]} steps of {TRAINING["step_size"]}, β = {BETA:g}. Attacks
on trained models: ε = {ATTACK["epsilon"]}, {ATTACK["steps"]} steps of {ATTACK["step_size"]}, one
random start. *Minus ours*: ART's model less ours, in points, with its 95 % interval by bootstrap
over seeds and rows. ART's trainers are `AdversarialTrainerMadryPGD` and
`AdversarialTrainerTRADESPyTorch`. The latter takes any attack: *CE* is ART's PGD, which climbs the
cross-entropy; *KL* an attack written for this comparison, which climbs KL(p(x) ‖ p(x′)) from
0.001·N(0, 1), as that of TRADES' authors and ours. *Conventional*: without attacks. """


@dataclass(frozen=True)
class Problem:
    name: str
    data: ct.Dataset
    arrays: dict[str, Any]  # first weights, stacked over seeds
    file: Path
    settings: dict[str, Any]


def run(places: Environments, quick: bool) -> tuple[list[Table], list[str]]:
    rows: list[tuple[Value, ...]] = []
    with tempfile.TemporaryDirectory() as name:
        for data in DATA[:1] if quick else DATA:
            problem = make_problem(data, Path(name), 1 if quick else EPOCHS)
            try:
                peer = Peer.foreign(
                    places, "art", "art_train.py", str(problem.file), one_thread=True
                )
            except FileNotFoundError as missing:
                return [], [str(missing)]
            with peer:
                rows += measure(peer, problem, Path(name))
    return [Table(COLUMNS, rows, note=NOTE)], []


def make_problem(name: str, folder: Path, epochs: int) -> Problem:
    """Rows and first weights, as a file for ART."""
    data = ct.load_dataset(name, allow_download=False)
    cut = {
        "x": data.x_train[:ROWS],
        "y": data.y_train[:ROWS],
        "x_test": data.x_test[:TEST],
        "y_test": data.y_test[:TEST],
    }
    fresh = []
    for seed in range(SEEDS):
        torch.manual_seed(seed)
        fresh.append(ct.mlp(data.x_train.shape[1], 2, HIDDEN))
    arrays = {"layers": len(HIDDEN) + 1, **layers_of(fresh)}
    file = folder / f"{name}.npz"
    np.savez(file, **arrays, **{key: values.numpy() for key, values in cut.items()})
    return Problem(
        name,
        data,
        arrays,
        file,
        {"epochs": epochs, "batch_size": 128, "shuffle": True, "threads": 1},
    )


def measure(peer: Peer, problem: Problem, folder: Path) -> list[tuple[Value, ...]]:
    """Lines of a data set: conventional training, then ours and ART's of each method."""
    judge = Judge(peer, problem, folder / "judged.npz")
    plain = judge.scores([ours(problem, seed, "conventional")[0] for seed in range(SEEDS)])
    rows = [line(problem.name, "conventional", plain)]
    for name, (numbers, ways) in PAIRS.items():
        trained = [ours(problem, seed, name, **TRAINING, **numbers) for seed in range(SEEDS)]
        mine = judge.scores([model for model, _ in trained])
        seconds = min(taken for _, taken in trained)
        rows.append(line(problem.name, f"ours, `{name}`", mine, ratio=1.0))
        for way in ways:
            theirs = [judge.trained(seed, way, numbers) for seed in range(SEEDS)]
            scores = judge.scores([model for model, _ in theirs])
            least = min(taken for _, taken in theirs)
            rows.append(line(problem.name, f"ART, {way}", scores, mine, least / seconds))
    return rows


def ours(problem: Problem, seed: int, name: str, **numbers: Any) -> tuple[nn.Module, float]:
    """A model, and the seconds of its training."""
    x = problem.data.x_train[:ROWS]
    y = problem.data.y_train[:ROWS]
    method = ct.make_method({"name": name, **numbers, **problem.settings, "seed": seed})
    constraints = ct.Constraints.build(x.shape[1])
    model = network(problem.arrays, seed)
    started = time.perf_counter()
    ct.train(model, x, y, method, constraints, progress=False)
    return model.eval(), time.perf_counter() - started


class Judge:
    """Attacks models, here and in ART's process; and has ART train."""

    def __init__(self, peer: Peer, problem: Problem, file: Path) -> None:
        self.peer = peer
        self.problem = problem
        self.file = file

    def trained(
        self, seed: int, way: str, numbers: dict[str, float]
    ) -> tuple[nn.Module, float]:
        config = {
            "epochs": self.problem.settings["epochs"],
            "batch_size": self.problem.settings["batch_size"],
            "learning_rate": ct.TrainConfig().learning_rate,
        }
        answer = self.peer.ask(
            seed=seed,
            out=str(self.file),
            how=way,
            numbers={**TRAINING, **numbers},
            config=config,
        )
        return network({"layers": len(HIDDEN) + 1, **np.load(self.file)}), float(
            answer["seconds"]
        )

    def scores(self, models: list[nn.Module]) -> np.ndarray:
        """Which rows are right ``(3, seeds, n)``: plain, under our attack, under ART's."""
        x = self.problem.data.x_test[:TEST]
        y = self.problem.data.y_test[:TEST]
        by_seed = []
        for seed, model in enumerate(models):
            np.savez(self.file, **{key: array[0] for key, array in layers_of([model]).items()})
            request = {"seed": seed, "how": "attack", "numbers": ATTACK, "config": {}}
            theirs = self.peer.ask(out=str(self.file), **request)["correct"]
            rng = torch.Generator().manual_seed(seed)
            moved = ct.pgd(model, x, y, **ATTACK, rng=rng)
            with torch.no_grad():
                correct = [(model(rows).argmax(-1) == y).numpy() for rows in (x, moved)]
            by_seed.append([*correct, np.array(theirs)])
        return np.array(by_seed, dtype=float).swapaxes(0, 1)


def line(
    data: str,
    who: str,
    scores: np.ndarray,
    ours: np.ndarray | None = None,
    ratio: float | None = None,
) -> tuple[Value, ...]:
    """Accuracies with the deviation over seeds, and the differences from ours."""
    cells = [f"{part.mean():.3f} ± {part.mean(1).std(ddof=1):.3f}" for part in scores]
    gaps = ["–"] * len(scores)
    if ours is not None:
        rng = np.random.default_rng(0)
        estimates = [
            compare(part, our_part, rng, "difference")
            for part, our_part in zip(scores, ours, strict=True)
        ]
        gaps = [
            f"{100 * e.value:+.1f} ({100 * e.low:+.1f} … {100 * e.high:+.1f})"
            for e in estimates
        ]
    return data, who, *cells, *gaps, "–" if ratio is None else f"{ratio:.1f}×"
