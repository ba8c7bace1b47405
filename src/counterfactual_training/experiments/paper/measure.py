"""All measurements of one trained cell, as named tensors.

=====================================  ============  ===============================================================
``published/<constraints>/<metric>``   (λ, runs)     means over individuals, by the published protocol
``paired/<constraints>/<metric>``      (λ, rows)     one value per individual, the same individuals for every cell
``attack/fgsm``, ``attack/pgd``        (ε,)          accuracy under attack, unclamped as published
``attribution``                        (rounds,)     sensitivity to the protected features
=====================================  ============  ===============================================================

<constraints> is ``free`` (τ = 0.95) or ``protected`` (the protected features immutable, τ = 0.5). NaN marks what does
not exist, such as the cost of an invalid counterfactual.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from counterfactual_training.datasets.dataset import Dataset
from counterfactual_training.evaluation.attacks import fgsm, pgd, robust_accuracy
from counterfactual_training.evaluation.attribution import protected_sensitivity
from counterfactual_training.evaluation.counterfactuals import aggregate, counterfactual_table
from counterfactual_training.evaluation.evaluate import performance
from counterfactual_training.evaluation.findings import check_attacks, warn
from counterfactual_training.evaluation.performance import predict_logits
from counterfactual_training.evaluation.protocol import PAIRED, PUBLISHED, EvaluationProtocol
from counterfactual_training.experiments.paper.cells import Cell

METRICS = ("implausibility", "implausibility_mmd", "cost", "validity")
DECISION_THRESHOLDS = {"free": 0.95, "protected": 0.5}
LARGEST_EPSILON = 0.1
_ATTRIBUTION_SEED = 2025

Measurements = tuple[dict[str, Tensor], dict[str, float]]


def epsilons(num: int) -> list[float]:
    """Budgets of the attacks: 0 … 0.1, evenly spaced."""
    return np.linspace(0.0, LARGEST_EPSILON, num).round(6).tolist()


def measure(model: nn.Module, data: Dataset, cell: Cell) -> Measurements:
    """Everything the experiments ask of this cell: tensors (see above) and single numbers."""
    x, y = data.x_test, data.y_test
    numbers = performance(predict_logits(model, x), y)
    tensors: dict[str, Tensor] = {}
    for setting in cell.settings_measured:
        part, missing = _counterfactuals(model, data, cell, setting)
        tensors |= part
        numbers[f"missing/{setting}"] = float(missing)
    if not cell.protected:
        tensors |= _attacks(model, x, y, cell)
    if "protected" in cell.settings_measured:
        # All models see the same rows and baselines.
        rng = torch.Generator().manual_seed(_ATTRIBUTION_SEED)
        rounds = cell.effort.attribution_rounds
        tensors["attribution"] = protected_sensitivity(model, x, y, data.protected, rng, rounds).double()
    return tensors, numbers


def protocols(cell: Cell, setting: str) -> tuple[EvaluationProtocol, EvaluationProtocol]:
    """The published and the paired protocol for a cell."""
    threshold = DECISION_THRESHOLDS[setting]
    effort = cell.effort
    # Individuals are drawn by each model's own predictions, as by the authors; models of one seed that predict alike
    # also draw alike, which makes our spread between runs a little smaller than two independent draws would.
    published = replace(
        PUBLISHED,
        num_individuals=effort.individuals(cell.data),
        num_runs=effort.num_runs,
        decision_threshold=threshold,
        seed=cell.seed,
    )
    # What the experiments do not report is not computed.
    paired = replace(PAIRED, num_individuals=effort.paired_individuals, decision_threshold=threshold, langevin_steps=0)
    return published, paired


def _counterfactuals(model: nn.Module, data: Dataset, cell: Cell, setting: str) -> tuple[dict[str, Tensor], int]:
    constraints = data.protect(data.constraints) if setting == "protected" else data.constraints
    published, paired = protocols(cell, setting)
    individuals = counterfactual_table(model, data, published, constraints)
    means = aggregate(individuals)
    out = {f"published/{setting}/{metric}": _runs(means, metric, published) for metric in (*METRICS, "share_mature")}
    rows = counterfactual_table(model, data, paired, constraints)
    out |= {f"paired/{setting}/{metric}": _rows(rows, metric, paired, len(data.y_test)) for metric in METRICS}
    wanted = published.num_runs * (published.num_individuals or 0) * len(published.lambda_energy)
    return out, wanted - len(individuals)


def _runs(means: pd.DataFrame, metric: str, protocol: EvaluationProtocol) -> Tensor:
    """``(λ, runs)``; NaN where a run has nothing to average."""
    table = means[means["metric"] == metric].pivot(index="lambda_energy", columns="run", values="value")
    table = table.reindex(index=list(protocol.lambda_energy), columns=range(protocol.num_runs))
    return torch.from_numpy(table.to_numpy(dtype=np.float64, copy=True))


def _rows(table: pd.DataFrame, metric: str, protocol: EvaluationProtocol, num_rows: int) -> Tensor:
    """``(λ, rows)`` over all test rows; NaN for rows that were not drawn or already are of the target class."""
    wide = table.pivot(index="lambda_energy", columns="row", values=metric)
    wide = wide.reindex(index=list(protocol.lambda_energy), columns=range(num_rows))
    return torch.from_numpy(wide.to_numpy(dtype=np.float32, copy=True))


def _attacks(model: nn.Module, x: Tensor, y: Tensor, cell: Cell) -> dict[str, Tensor]:
    budgets = epsilons(cell.effort.num_epsilons)
    rng = torch.Generator().manual_seed(cell.seed)
    curves = {
        "fgsm": robust_accuracy(model, x, y, budgets, fgsm),
        "pgd": robust_accuracy(model, x, y, budgets, partial(pgd, rng=rng)),
    }
    warn(check_attacks(budgets, curves))
    return {f"attack/{name}": curve.double() for name, curve in curves.items()}
