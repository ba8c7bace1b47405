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

from counterfactual_training.data.dataset import Dataset
from counterfactual_training.evaluation.attacks import fgsm, pgd
from counterfactual_training.evaluation.attribution import integrated_gradients, standardise
from counterfactual_training.evaluation.evaluate import aggregate, counterfactual_table
from counterfactual_training.evaluation.performance import accuracy, calibration_error, macro_f1, predict_logits
from counterfactual_training.evaluation.protocol import PAIRED, PUBLISHED, Protocol
from counterfactual_training.evaluation.robustness import robust_accuracy
from counterfactual_training.experiments.cells import Cell

METRICS = ("implausibility", "implausibility_mmd", "cost", "validity")
DECISION_THRESHOLDS = {"free": 0.95, "protected": 0.5}
LARGEST_EPSILON = 0.1
# Gauss-Legendre nodes on the path of integrated gradients; more change no digit that is reported.
ATTRIBUTION_STEPS = 20

Measurements = tuple[dict[str, Tensor], dict[str, float]]


def epsilons(num: int) -> list[float]:
    """Budgets of the attacks: 0 … 0.1, evenly spaced."""
    return np.linspace(0.0, LARGEST_EPSILON, num).round(6).tolist()


def measure(model: nn.Module, data: Dataset, cell: Cell) -> Measurements:
    """Everything the experiments ask of this cell: tensors (see above) and single numbers."""
    x, y = data.x_test, data.y_test
    logits = predict_logits(model, x)
    numbers = {
        "accuracy": float(accuracy(logits, y)),
        "f1": float(macro_f1(logits, y)),
        "calibration_error": float(calibration_error(logits, y)),
    }
    tensors: dict[str, Tensor] = {}
    for setting in cell.settings_measured:
        part, missing = _counterfactuals(model, data, cell, setting)
        tensors |= part
        numbers[f"missing/{setting}"] = float(missing)
    if not cell.protected:
        tensors |= _attacks(model, x, y, cell)
    if "protected" in cell.settings_measured:
        tensors["attribution"] = sensitivity(model, data, cell.effort.attribution_rounds)
    return tensors, numbers


def sensitivity(model: nn.Module, data: Dataset, rounds: int, num_samples: int = 2500) -> Tensor:
    """How strongly the model leans on the protected features, once per round: ``(rounds,)`` (reference §5.6).

    Every sample has a baseline of its own: with one for all samples of a round, rounds differ ten times more than the
    published intervals allow. All models see the same rows and baselines.
    """
    rng = torch.Generator().manual_seed(2025)
    x, y = data.x_test, data.y_test
    scores = []
    for _ in range(rounds):
        rows = torch.randint(len(x), (num_samples,), generator=rng)
        baseline = 2 * torch.rand((num_samples, *x.shape[1:]), generator=rng) - 1
        attributions = integrated_gradients(model, x[rows], y[rows], baseline, ATTRIBUTION_STEPS)
        scores.append(standardise(attributions.flatten(1).mean(0))[list(data.protected)].mean())
    return torch.stack(scores).double()


def protocols(cell: Cell, setting: str) -> tuple[Protocol, Protocol]:
    """The published and the paired protocol for a cell."""
    threshold = DECISION_THRESHOLDS[setting]
    effort = cell.effort
    # The published draws differ from model to model and from seed to seed, as they did for the authors.
    published = replace(
        PUBLISHED,
        num_individuals=effort.individuals(cell.data),
        num_runs=effort.num_runs,
        decision_threshold=threshold,
        seed=cell.seed,
    )
    return published, replace(PAIRED, num_individuals=effort.paired_individuals, decision_threshold=threshold)


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


def _runs(means: pd.DataFrame, metric: str, protocol: Protocol) -> Tensor:
    """``(λ, runs)``; NaN where a run has nothing to average."""
    table = means[means["metric"] == metric].pivot(index="lambda_energy", columns="run", values="value")
    table = table.reindex(index=list(protocol.lambda_energy), columns=range(protocol.num_runs))
    return torch.from_numpy(table.to_numpy(dtype=np.float64, copy=True))


def _rows(table: pd.DataFrame, metric: str, protocol: Protocol, num_rows: int) -> Tensor:
    """``(λ, rows)`` over all test rows; NaN for rows that were not drawn or already are of the target class."""
    wide = table.pivot(index="lambda_energy", columns="row", values=metric)
    wide = wide.reindex(index=list(protocol.lambda_energy), columns=range(num_rows))
    return torch.from_numpy(wide.to_numpy(dtype=np.float32, copy=True))


def _attacks(model: nn.Module, x: Tensor, y: Tensor, cell: Cell) -> dict[str, Tensor]:
    budgets = epsilons(cell.effort.num_epsilons)
    rng = torch.Generator().manual_seed(cell.seed)
    return {
        "attack/fgsm": robust_accuracy(model, x, y, budgets, fgsm).double(),
        "attack/pgd": robust_accuracy(model, x, y, budgets, partial(pgd, rng=rng)).double(),
    }
