"""A task that trains in a fraction of a second; run as a program, it is a process of a study that
several share.
"""

import json
import sys
from dataclasses import replace

import torch

from counterfactual_lab.tuning import RANGES, Goal, Task, TuningPlan, tune
from counterfactual_training.constraints import Constraints
from counterfactual_training.generators import ecco
from counterfactual_training.models.classifiers import mlp
from counterfactual_training.tables.estimators.validation import VALIDATION, ValidationRows
from counterfactual_training.training import methods

EPOCHS = 4
GOAL = Goal(("ip",), at_most_lost=20.0)
TUNED = {
    "objective.lambda_reg": (0.01, 1.0),
    "objective.lambda_div": (0.01, 1.0),
    "generator.decision_threshold": (0.5, 0.9),
}
SPACE = {**dict.fromkeys(RANGES, "published"), **TUNED}


def rows(n, seed):
    rng = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 2
    return torch.randn(n, 2, generator=rng) + 3.0 * y.unsqueeze(-1), y


def make_model(seed):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return mlp(2, 2, (4,))


def make_task(epochs=EPOCHS, num_seeds=1, **generator):
    x, y = rows(60, 0)
    start = methods.ct_published(
        generator=ecco(max_steps=6, **generator),
        epochs=epochs,
        batch_size=20,
        num_counterfactuals=10,
        learning_rate=0.02,
    )
    start = replace(start, constraints=Constraints.infer(x))
    quick = replace(
        VALIDATION,
        max_steps=10,
        learning_rate=0.5,
        decision_threshold=0.6,
        lambda_energy=(1.0,),
    )
    return Task(
        make_model,
        x,
        y,
        ValidationRows(*rows(40, 1), Constraints.infer(x), quick, quick),
        start,
        num_seeds,
    )


def say(text):
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main(storage, study, num_trials, batch, hang_after):
    """Announces itself, waits for a line, works; with ``hang_after`` it stops once within a batch,
    until it reads another line or is killed.
    """
    torch.set_num_threads(1)
    paused = False

    def listener(progress):
        nonlocal paused
        within = progress.epoch < progress.epochs
        if not paused and 0 <= hang_after <= progress.finished and within:
            paused = True
            say("hanging")
            sys.stdin.readline()

    say("ready")
    sys.stdin.readline()
    tuning = tune(
        make_task(), GOAL, TuningPlan(num_trials, batch, storage, study), SPACE, listener
    )
    say(json.dumps({"finished": tuning.num_finished, "best": tuning.best.number}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *(int(text) for text in sys.argv[3:]))
