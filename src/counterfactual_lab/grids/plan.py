"""From runs to jobs: fleets of one shape, split so that all workers are busy and members take
equally long.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence

from counterfactual_lab.grids.grid_run import GridRun
from counterfactual_lab.grids.job import Job
from counterfactual_training.datasets.dataset import Dataset
from counterfactual_training.generators import Generator

MAX_MEMBERS = 135
# A smaller fleet loses more by overhead per operation than it gains by members that take equally
# long.
MIN_MEMBERS = 15
_JOBS_PER_WORKER = 2
# Most values of all counterfactuals of a fleet's epoch; more do not fit into the processor's cache,
# or into memory.
_MAX_VALUES = 20_000_000
# How much longer a model trains alone than as a member of a fleet.
_ALONE = 4.0
# Fitting a gate takes this long per run, however many train together.
_GATE_SECONDS = {"none": 0.0, "density": 0.2, "learned": 2.0, "both": 2.2}
_SHAPE = (
    "model.hidden",
    "model.activation",
    "training.batch_size",
    "training.epochs",
    "training.num_counterfactuals",
    "training.refresh",
    "training.shuffle",
    "training.target_rule",
    "training.adversarial_label",
    "training.immature",
    "training.accumulate",
    "training.positives",
)


def run_seconds(run: GridRun, data: Dataset) -> float:
    """Seconds on one core, by a fit to measurements; good enough to order jobs and to warn."""
    values = run.values
    protocol = run.measurement.protocol
    rows = len(data.y_train) - data.settings.num_validation
    batches = rows / values["training.batch_size"]
    hidden = sum(values["model.hidden"]) or 1
    wide = 1 + data.num_features * hidden / 1200
    update = 2.4e-5 * batches * wide
    active = 1 - values["training.burn_in"]
    if not run.is_conventional and not run.generator:
        # Attacks and samples: a gradient by the inputs of every row, step by step.
        steps = values.get("steps", 1)
        update += active * batches * wide * (7e-5 + 2.4e-5 * steps)
    if run.generator:
        num = max(values["training.num_counterfactuals"], batches)
        steps = _steps(run)
        if run.generator == "revise":
            slow = 2.3
        else:
            slow = 1.0
        update += active * (7e-5 * batches * wide + 3e-7 * num * steps * wide * slow)
    individuals = (
        (protocol.num_individuals or rows) * protocol.num_runs * len(protocol.lambda_energy)
    )
    measured = 3e-5 * individuals * wide + _GATE_SECONDS[run.gate]
    if run.gate in ("density", "both"):  # a thousand kernels per class, at every step
        measured += 4e-3 * individuals
    trained = values["training.epochs"] * update * values.get("members", 1)
    if run.alone:
        trained = _ALONE * trained
    return trained + measured * len(run.constraint_kinds)


def plan(
    costs: Mapping[GridRun, float], data: Mapping[str, Dataset], workers: int
) -> list[Job]:
    """Every run in one job, the longest job first: a long one that starts last would keep one
    worker busy alone.

    Args:
        costs: of all runs, see :func:`run_seconds`.
    """
    target = sum(costs.values()) / max(1, _JOBS_PER_WORKER * workers)
    parts: list[list[GridRun]] = []
    for fleet in _grouped(list(costs), _fleet):
        for alike in _alike(fleet):
            num = (
                alike[0].values["training.num_counterfactuals"]
                * data[alike[0].data].num_features
            )
            most = max(1, min(MAX_MEMBERS, _MAX_VALUES // num))
            parts += _cut(alike, sum(costs[run] for run in alike) / target, most)
    parts.sort(key=lambda part: -sum(costs[run] for run in part))
    return [Job(tuple(part)) for part in parts]


def _grouped(
    runs: Sequence[GridRun], key: Callable[[GridRun], Hashable]
) -> list[list[GridRun]]:
    """Runs with equal keys together, in order of appearance."""
    groups: dict[Hashable, list[GridRun]] = {}
    for run in runs:
        groups.setdefault(key(run), []).append(run)
    return list(groups.values())


def _shape(run: GridRun) -> tuple[object, ...]:
    """What all members of a fleet have in common; everything else may differ from member to
    member.
    """
    return (
        run.data,
        run.measurement,
        run.brings_network,
        *(run.values.get(name) for name in _SHAPE),
    )


def _fleet(run: GridRun) -> Hashable:
    # Members without a search would wait for those with one; a latent space cannot be stacked with
    # any other, nor one loss with another.
    return (
        _shape(run),
        run.is_conventional,
        run.name,
        run.generator == "revise",
        run.ungated if run.alone else None,
    )


def _alike(fleet: list[GridRun]) -> list[list[GridRun]]:
    """Members with the same number of search steps, because all wait for the slowest; small groups
    join the next.
    """
    ordered = sorted(fleet, key=_steps)
    out: list[list[GridRun]] = []
    for group in _grouped(ordered, _steps):
        if out and len(out[-1]) + len(group) <= MIN_MEMBERS:
            out[-1] += group
        else:
            out.append(group)
    return out


def _steps(run: GridRun) -> int:
    if not run.generator:
        return 0
    # A generator that learns from rows lists only the numbers that were stated.
    return int(run.values.get("generator.max_steps", Generator.max_steps))


def _cut(runs: list[GridRun], shares: float, most: int) -> list[list[GridRun]]:
    """Nearly equal parts: enough that none is too long or too large, but none needlessly small.

    Runs that differ in their gate only stay together: they are trained as one.
    """
    members = _grouped(runs, lambda run: run.ungated)
    wanted = min(round(shares), len(members) // MIN_MEMBERS)
    number = max(1, wanted, -(-len(members) // most))
    return [[run for same in members[i::number] for run in same] for i in range(number)]
