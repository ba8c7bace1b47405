"""All measurements of trained runs, as named arrays and single numbers.

A plain measurement has arrays ``(λ, runs)`` by metric: means over individuals. One ``as_trained``
has

====================================  ============
================================================================
``published/<constraints>/<metric>``  (λ, runs)     means over individuals, by the grid's protocol
``paired/<constraints>/<metric>``     (λ, rows)     one value per individual, the same individuals
for every run ``attack/fgsm``, ``attack/pgd``       (ε,)          accuracy under attack
``attribution``                       (rounds,)     sensitivity to the protected features
====================================  ============
================================================================

<constraints> is ``free`` or ``protected`` (the protected features immutable). NaN marks what does
not exist, such as the cost of an invalid counterfactual.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from counterfactual_lab.grids.grid_run import AS_TRAINED, GridRun
from counterfactual_training.constraints import Constraints
from counterfactual_training.datasets.dataset import Dataset
from counterfactual_training.evaluation.attribution import (
    AttributionRounds,
    protected_sensitivity,
)
from counterfactual_training.evaluation.counterfactuals import (
    aggregate,
    counterfactual_table,
    counterfactual_tables,
)
from counterfactual_training.evaluation.evaluate import attack_curves, performance
from counterfactual_training.evaluation.findings import check_attacks, warn
from counterfactual_training.evaluation.metrics import COUNTERFACTUAL
from counterfactual_training.evaluation.performance import decider, predict_logits
from counterfactual_training.evaluation.protocol import EvaluationProtocol

if TYPE_CHECKING:
    from counterfactual_training.models.vae import VAE

Arrays = dict[str, np.ndarray]
Rows = Mapping[str, tuple[Tensor, Tensor]]

_FLEET_SPLIT_SEED = 0
_ATTRIBUTION_SEED = 2025


@dataclass(frozen=True, eq=False)
class GridData:
    """A data set as jobs need it; sent once to each worker.

    Attributes:
        vae: of REVISE, fitted once; ``None`` where no run needs it.
    """

    data: Dataset
    vae: VAE | None = None

    def rows(self, run: GridRun) -> Rows:
        """``train``, ``validation`` and ``test``. Runs of a fleet share their rows; one alone
        draws its own split.
        """
        data = self.data
        # A fleet stacks weights, not rows.
        seed = run.seed if run.alone else _FLEET_SPLIT_SEED
        kept, held_out = data.validation_split(torch.Generator().manual_seed(seed))
        return {
            "train": (data.x_train[kept], data.y_train[kept]),
            "validation": (data.x_train[held_out], data.y_train[held_out]),
            "test": (data.x_test, data.y_test),
        }

    def rules(self, kind: str) -> Constraints:
        """Of evaluation, ``free`` or ``protected``."""
        if kind == "protected":
            return self.data.protect(self.data.constraints)
        return self.data.constraints


def measure(
    models: Sequence[nn.Module], runs: Sequence[GridRun], source: GridData
) -> list[tuple[Arrays, dict[str, float]]]:
    """Arrays and numbers of each model; all runs are of one job, so they are measured alike.

    The counterfactuals of a gated model are those of the gated one, its predictions those of its
    classifier.
    """
    first = runs[0]
    x = source.data.x_test
    y = source.data.y_test
    rows = source.rows(first)[first.measurement.on]
    deciders = [decider(model, x) for model in models]
    measured: list[tuple[Arrays, dict[str, float]]] = [
        ({}, performance(predict_logits(m, x), y)) for m in deciders
    ]
    for kind in ("free", "protected"):
        places = [i for i, run in enumerate(runs) if kind in run.constraint_kinds]
        if not places:
            continue
        members = [models[i] for i in places]
        rules = source.rules(kind)
        tables = _tables(members, rows, first.protocol(kind), rules, first)
        _add_published([measured[i] for i in places], tables, first, kind)
        if first.measurement.paired:
            paired = first.paired_protocol(kind)
            tables = _tables(members, rows, paired, rules, first)
            _add_paired([measured[i] for i in places], tables, paired, kind, len(rows[1]))
    for run, model, (arrays, numbers) in zip(runs, deciders, measured, strict=True):
        _add_attacks(run, model, source, arrays, numbers)
        if _has_attribution(run):
            _add_attribution(first, model, source, arrays)
    return measured


def _has_attribution(run: GridRun) -> bool:
    return not _is_plain(run) and "protected" in run.constraint_kinds


def _named(start: str, arrays: Arrays) -> Arrays:
    return {f"{start}/{name}": values for name, values in arrays.items()}


def _is_plain(run: GridRun) -> bool:
    """Whether it is measured under one kind of constraints, which names then leave out."""
    return run.measurement.protected != AS_TRAINED


def _add_paired(
    results: Sequence[tuple[Arrays, dict[str, float]]],
    tables: Sequence[pd.DataFrame],
    protocol: EvaluationProtocol,
    kind: str,
    num_rows: int,
) -> None:
    """Values by individual of each model, the same individuals for all."""
    for (arrays, _), table in zip(results, tables, strict=True):
        arrays.update(_named(f"paired/{kind}", _by_row(table, protocol, num_rows)))


def _add_published(
    results: Sequence[tuple[Arrays, dict[str, float]]],
    tables: Sequence[pd.DataFrame],
    run: GridRun,
    kind: str,
) -> None:
    """Means by run of each model, by the grid's protocol."""
    protocol = run.protocol(kind)
    for (arrays, numbers), table, means in zip(results, tables, _means(tables), strict=True):
        by_run = _by_run(means, protocol)
        if _is_plain(run):
            arrays |= by_run
        else:
            arrays |= _named(f"published/{kind}", by_run)
            numbers[f"missing/{kind}"] = float(_num_searched(protocol) - len(table))


def _means(tables: Sequence[pd.DataFrame]) -> list[pd.DataFrame]:
    """Of the individuals of each table."""
    numbered = [table.assign(member=i) for i, table in enumerate(tables)]
    means = aggregate(pd.concat(numbered, ignore_index=True))
    of_member = dict(tuple(means.groupby("member")))
    # A member whose individuals all are of the target class already has no rows.
    return [of_member.get(i, means.iloc[:0]) for i in range(len(tables))]


def _num_searched(protocol: EvaluationProtocol) -> int:
    individuals = protocol.num_runs * (protocol.num_individuals or 0)
    return individuals * len(protocol.lambda_energy)


def _by_run(means: pd.DataFrame, protocol: EvaluationProtocol) -> Arrays:
    """Metrics ``(λ, runs)`` of one model."""
    return {
        str(metric): _wide(part, "run", "value", protocol, protocol.num_runs)
        for metric, part in means.groupby("metric")
    }


def _by_row(table: pd.DataFrame, protocol: EvaluationProtocol, count: int) -> Arrays:
    """Metrics ``(λ, count)`` of all rows; NaN for those that were not drawn, or already are of the
    target class.
    """
    return {
        metric: _wide(table, "row", metric, protocol, count).astype(np.float32)
        for metric in COUNTERFACTUAL
    }


def _add_attribution(run: GridRun, model: nn.Module, source: GridData, arrays: Arrays) -> None:
    """Sensitivity to protected features, if the protocol has rounds of it."""
    rounds = run.measurement.protocol.attribution_rounds
    if not rounds:
        return
    data = source.data
    # All models see the same rows and baselines.
    rng = torch.Generator().manual_seed(_ATTRIBUTION_SEED)
    arrays["attribution"] = protected_sensitivity(
        model, data.x_test, data.y_test, data.protected, rng, AttributionRounds(rounds)
    ).numpy()


def _tables(
    models: Sequence[nn.Module],
    rows: tuple[Tensor, Tensor],
    protocol: EvaluationProtocol,
    rules: Constraints,
    run: GridRun,
) -> list[pd.DataFrame]:
    # A stack of one gives the same numbers up to rounding only, so a run that trained alone is
    # measured alone.
    if run.alone:
        return [counterfactual_table(model, rows, protocol, rules) for model in models]
    return counterfactual_tables(models, rows, protocol, rules)


def _wide(
    table: pd.DataFrame, by: str, values: str, protocol: EvaluationProtocol, count: int
) -> np.ndarray:
    """``(λ, count)``; NaN where there is no value, as for a run with nothing to average."""
    wide = table.pivot(index="lambda_energy", columns=by, values=values)
    return wide.reindex(index=list(protocol.lambda_energy), columns=range(count)).to_numpy(
        dtype=float
    )


def _add_attacks(
    run: GridRun, model: nn.Module, source: GridData, arrays: Arrays, numbers: dict[str, float]
) -> None:
    """Accuracy under attack: numbers of a plain measurement, arrays of the other, for models
    trained free.
    """
    plain = run.measurement.protected != AS_TRAINED
    if not plain and run.protected:
        return
    kind = run.constraint_kinds[0]
    protocol = run.protocol(kind)
    rules = source.rules(kind)
    curves = attack_curves(model, source.data.x_test, source.data.y_test, protocol, rules)
    for attack, curve in curves.items():
        if plain:
            pairs = zip(protocol.epsilons, curve.tolist(), strict=True)
            numbers |= {
                f"robust_accuracy_{attack}@{epsilon:g}": value for epsilon, value in pairs
            }
        else:
            arrays[f"attack/{attack}"] = curve.double().numpy()
    if not plain:
        warn(check_attacks(list(protocol.epsilons), curves))
