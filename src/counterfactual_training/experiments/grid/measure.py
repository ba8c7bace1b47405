"""All measurements of trained cells, as named arrays and single numbers.

A plain measurement has arrays ``(λ, runs)`` by metric: means over individuals. One ``as_trained``
has

====================================  ============
================================================================
``published/<constraints>/<metric>``  (λ, runs)     means over individuals, by the grid's protocol
``paired/<constraints>/<metric>``     (λ, rows)     one value per individual, the same individuals
for every cell ``attack/fgsm``, ``attack/pgd``       (ε,)          accuracy under attack
``attribution``                       (rounds,)     sensitivity to the protected features
====================================  ============
================================================================

<constraints> is ``free`` or ``protected`` (the protected features immutable). NaN marks what does
not exist, such as the cost of an invalid counterfactual.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from counterfactual_training.constraints import Constraints
from counterfactual_training.datasets.dataset import Dataset
from counterfactual_training.evaluation.attribution import protected_sensitivity
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
from counterfactual_training.experiments.grid.cell import AS_TRAINED, Cell
from counterfactual_training.gates import search_gated
from counterfactual_training.models.vae import VAE

Arrays = dict[str, np.ndarray]
Rows = Mapping[str, tuple[Tensor, Tensor]]

_FLEET_SPLIT_SEED = 0
_ATTRIBUTION_SEED = 2025


@dataclass(frozen=True, eq=False)
class GridData:
    """A data set as tasks need it; sent once to each worker.

    Attributes:
        vae: of REVISE, fitted once; ``None`` where no cell needs it.
    """

    data: Dataset
    vae: VAE | None = None

    def rows(self, cell: Cell) -> Rows:
        """``train``, ``validation`` and ``test``. Cells of a fleet share their rows; one alone
        draws its own split.
        """
        data = self.data
        # A fleet stacks weights, not rows.
        seed = cell.seed if cell.alone else _FLEET_SPLIT_SEED
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
    models: Sequence[nn.Module], cells: Sequence[Cell], source: GridData
) -> list[tuple[Arrays, dict[str, float]]]:
    """Arrays and numbers of each model; all cells are of one task, so they are measured alike.

    The counterfactuals of a gated model are those of the gated one, its predictions those of its
    classifier.
    """
    first = cells[0]
    x = source.data.x_test
    y = source.data.y_test
    rows = source.rows(first)[first.measurement.on]
    plain = first.measurement.protected != AS_TRAINED
    deciders = [decider(model, x) for model in models]
    found: list[tuple[Arrays, dict[str, float]]] = [
        ({}, performance(predict_logits(m, x), y)) for m in deciders
    ]
    for kind in ("free", "protected"):
        places = [i for i, cell in enumerate(cells) if kind in cell.constraint_kinds]
        if not places:
            continue
        members = [models[i] for i in places]
        protocol = first.protocol(kind)
        rules = source.rules(kind)
        tables = _tables(members, rows, protocol, rules, first)
        means = aggregate(
            pd.concat(
                [table.assign(member=i) for i, table in enumerate(tables)], ignore_index=True
            )
        )
        of_member = dict(tuple(means.groupby("member")))
        for member, (i, table) in enumerate(zip(places, tables, strict=True)):
            arrays, numbers = found[i]
            # No row is left of a member whose individuals all are of the target class already.
            for name, part in of_member.get(member, means.iloc[:0]).groupby("metric"):
                values = _wide(part, "run", "value", protocol, protocol.num_runs)
                arrays[str(name) if plain else f"published/{kind}/{name}"] = values
            if not plain:
                wanted = (
                    protocol.num_runs
                    * (protocol.num_individuals or 0)
                    * len(protocol.lambda_energy)
                )
                numbers[f"missing/{kind}"] = float(wanted - len(table))
        if first.measurement.paired:
            paired = first.paired_protocol(kind)
            for i, table in zip(
                places, _tables(members, rows, paired, rules, first), strict=True
            ):
                arrays = found[i][0]
                # Rows that were not drawn, or already are of the target class, are NaN.
                by_row = {
                    m: _wide(table, "row", m, paired, len(rows[1])).astype(np.float32)
                    for m in COUNTERFACTUAL
                }
                arrays |= {f"paired/{kind}/{m}": values for m, values in by_row.items()}
    for cell, model, (arrays, numbers) in zip(cells, deciders, found, strict=True):
        _add_attacks(cell, model, source, arrays, numbers)
        if (
            not plain
            and "protected" in cell.constraint_kinds
            and first.measurement.protocol.attribution_rounds
        ):
            # All models see the same rows and baselines.
            rng = torch.Generator().manual_seed(_ATTRIBUTION_SEED)
            rounds = first.measurement.protocol.attribution_rounds
            arrays["attribution"] = protected_sensitivity(
                model, x, y, source.data.protected, rng, rounds
            ).numpy()
    return found


def _tables(
    models: Sequence[nn.Module],
    rows: tuple[Tensor, Tensor],
    protocol: EvaluationProtocol,
    rules: Constraints,
    cell: Cell,
) -> list[pd.DataFrame]:
    # A stack of one gives the same numbers up to rounding only, so a cell that trained alone is
    # measured alone.
    if cell.alone:
        return [
            counterfactual_table(model, rows, protocol, rules, search_gated) for model in models
        ]
    return counterfactual_tables(models, rows, protocol, rules, search_gated)


def _wide(
    table: pd.DataFrame, by: str, values: str, protocol: EvaluationProtocol, count: int
) -> np.ndarray:
    """``(λ, count)``; NaN where there is no value, as for a run with nothing to average."""
    wide = table.pivot(index="lambda_energy", columns=by, values=values)
    return wide.reindex(index=list(protocol.lambda_energy), columns=range(count)).to_numpy(
        dtype=float
    )


def _add_attacks(
    cell: Cell, model: nn.Module, source: GridData, arrays: Arrays, numbers: dict[str, float]
) -> None:
    """Accuracy under attack: numbers of a plain measurement, arrays of the other, for models
    trained free.
    """
    plain = cell.measurement.protected != AS_TRAINED
    if not plain and cell.protected:
        return
    kind = cell.constraint_kinds[0]
    protocol = cell.protocol(kind)
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
