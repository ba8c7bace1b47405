"""Measure any torch classifier, however it was trained: one tidy table."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from counterfactual_training.constraints import Constraints
from counterfactual_training.data.dataset import Dataset
from counterfactual_training.errors import InputError
from counterfactual_training.evaluation.attacks import fgsm, pgd
from counterfactual_training.evaluation.checks import (
    Finding,
    check_classes,
    check_gradients,
    check_outputs,
    check_valid_count,
    warn,
)
from counterfactual_training.evaluation.groups import group_mmd
from counterfactual_training.evaluation.performance import (
    accuracy,
    calibration_error,
    macro_f1,
    predict_logits,
)
from counterfactual_training.evaluation.plausibility import implausibility_by_class
from counterfactual_training.evaluation.protocol import PAIRED, Draw, Protocol, draw_individuals
from counterfactual_training.evaluation.recourse import cost, redundancy
from counterfactual_training.evaluation.robustness import robust_accuracy
from counterfactual_training.search import Status, ecco, search

# Metrics that only make sense for a counterfactual that really is of the target class.
OF_VALID = ("implausibility", "implausibility_mmd", "cost", "redundancy")
OF_ALL = ("validity", "share_mature", "num_steps")


def evaluate(
    model: nn.Module,
    data: Dataset | tuple[Tensor, Tensor],
    protocol: Protocol = PAIRED,
    constraints: Constraints | None = None,
) -> pd.DataFrame:
    """Plausibility, recourse, accuracy and robustness of a model on test data.

    Args:
        model: returns logits.
        data: a data set, of which the test rows are used, or rows and classes ``((n, *features), (n,))``.
        protocol: how to measure.
        constraints: of the searches and attacks; by default those of the data set, or a box inferred from the rows.

    Returns:
        Columns ``metric``, ``lambda_energy``, ``run``, ``value`` and ``num``, the count of individuals behind it.
        Where no counterfactual is valid the value is NaN and num is 0. What would mislead is said in a
        :class:`MeasurementWarning`.
    """
    x, y, constraints = _unpacked(data, constraints)
    individuals = counterfactual_table(model, (x, y), protocol, constraints)
    warn(findings(model, x, y, individuals))
    return pd.concat([aggregate(individuals), performance(model, x, y, protocol, constraints)], ignore_index=True)


def findings(model: nn.Module, x: Tensor, y: Tensor, individuals: pd.DataFrame) -> list[Finding]:
    """What would mislead about the measurements of a model: its outputs, its gradients, too few valid rows."""
    logits = predict_logits(model, x)
    found = check_outputs(logits) + check_classes(y, logits.shape[-1]) + check_gradients(model, x[:1000], y[:1000])
    # Runs and λ_energy average out; what a mean over everything rests on is what must not be too little.
    return found + check_valid_count(torch.as_tensor(individuals["validity"].to_numpy(copy=True) == 1))


def summarise(table: pd.DataFrame) -> pd.Series:
    """One number per metric: the mean over runs, then over λ_energy."""
    per_setting = table.groupby(["metric", "lambda_energy"], dropna=False)["value"].mean()
    return per_setting.groupby("metric").mean()


def performance(model: nn.Module, x: Tensor, y: Tensor, protocol: Protocol, constraints: Constraints) -> pd.DataFrame:
    """Accuracy, macro F1, calibration, and accuracy under attack, as rows of the tidy table."""
    logits = predict_logits(model, x)
    values = {
        "accuracy": float(accuracy(logits, y)),
        "f1": float(macro_f1(logits, y)),
        "calibration_error": float(calibration_error(logits, y)),
    }
    limits = constraints if protocol.clamp_attacks else None
    rng = torch.Generator().manual_seed(protocol.seed)
    attacks = {"fgsm": partial(fgsm, constraints=limits), "pgd": partial(pgd, constraints=limits, rng=rng)}
    robust = robust_accuracy(model, x, y, protocol.epsilons, attacks[protocol.attack])
    records = [{"metric": name, "value": value} for name, value in values.items()]
    for epsilon, value in zip(protocol.epsilons, robust.tolist(), strict=True):
        name = "robust_accuracy" if epsilon == protocol.epsilons[0] else f"robust_accuracy@{epsilon:g}"
        records.append({"metric": name, "value": value})
    return pd.DataFrame([{"lambda_energy": float("nan"), "run": 0, "num": len(y), **record} for record in records])


def counterfactual_table(
    model: nn.Module,
    data: Dataset | tuple[Tensor, Tensor],
    protocol: Protocol = PAIRED,
    constraints: Constraints | None = None,
) -> pd.DataFrame:
    """One row per individual, run and λ_energy: what its counterfactual is like.

    Columns ``run, lambda_energy, row, factual, target, validity, share_mature, num_steps, implausibility, cost,
    redundancy, implausibility_mmd``. Individuals who already are of the target class have no counterfactual and are
    left out. IP* belongs to a group (run, predicted class, target); :class:`Protocol` says what of it a row holds.
    """
    x, y, constraints = _unpacked(data, constraints)
    logits = predict_logits(model, x)
    predicted = logits.argmax(-1)
    parts = []
    for setting, lambda_energy in enumerate(protocol.lambda_energy):
        draw = draw_individuals(protocol, y, predicted, logits.shape[-1], setting)
        parts.append(_measure(model, x, y, predicted, constraints, protocol, draw, lambda_energy))
    return pd.concat(parts, ignore_index=True)


def _measure(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    predicted: Tensor,
    constraints: Constraints,
    protocol: Protocol,
    draw: Draw,
    lambda_energy: float,
) -> pd.DataFrame:
    """All individuals of one λ_energy: one search, then every metric of its result."""
    rows, y_target = draw.row.to(x.device), draw.y_target.to(x.device)
    generator = ecco(
        protocol.lambda_cost,
        lambda_energy,
        max_steps=protocol.max_steps,
        decision_threshold=protocol.decision_threshold,
        learning_rate=protocol.learning_rate,
    )
    found = search(model, x[rows], y_target, generator, constraints, diagnose=False)
    searched = found.status != int(Status.ALREADY_THERE)
    x_cf, factuals = found.x_cf.flatten(1), x[rows].flatten(1)
    valid = (predict_logits(model, found.x_cf).argmax(-1) == y_target) & searched
    table = pd.DataFrame(
        {
            "run": draw.run.numpy(),
            "lambda_energy": lambda_energy,
            "row": draw.row.numpy(),
            "factual": predicted[rows].cpu().numpy(),
            "target": draw.y_target.numpy(),
            "validity": valid.double().cpu().numpy(),
            "share_mature": (found.status == int(Status.CONVERGED)).double().cpu().numpy(),
            "num_steps": found.num_steps.cpu().numpy(),
            "implausibility": implausibility_by_class(x_cf, y_target, x.flatten(1), y).cpu().numpy(),
            "cost": cost(x_cf, factuals).cpu().numpy(),
            "redundancy": redundancy(x_cf, factuals).cpu().numpy(),
        }
    )
    # Invalid counterfactuals have a place, but no meaning as recourse.
    table.loc[~valid.cpu().numpy(), ["implausibility", "cost", "redundancy"]] = float("nan")
    keep = searched.cpu().numpy()
    table, x_cf = table[keep].reset_index(drop=True), x_cf[searched]
    table["implausibility_mmd"] = _grouped_mmd(table, x_cf, x.flatten(1), y, protocol)
    table.loc[table["validity"] == 0, "implausibility_mmd"] = float("nan")
    return table


def _grouped_mmd(table: pd.DataFrame, x_cf: Tensor, x: Tensor, y: Tensor, protocol: Protocol) -> np.ndarray:
    """IP* of each row's group: run, predicted class, target."""
    keys = table[["run", "factual", "target"]].to_numpy()
    group = np.ravel_multi_index(tuple(keys.T), tuple(keys.max(0) + 1)) if len(keys) else np.empty(0, dtype=np.int64)
    if protocol.mmd_valid_only:
        group = np.where(table["validity"] == 1, group, -1)
    y_target = torch.as_tensor(table["target"].to_numpy(copy=True), device=x.device)
    return group_mmd(x_cf, group, y_target, x, y, protocol).cpu().numpy()


def aggregate(individuals: pd.DataFrame) -> pd.DataFrame:
    """Means over individuals per run and λ_energy, in the tidy form of :func:`evaluate`."""
    grouped = individuals.groupby(["lambda_energy", "run"])
    parts = []
    for metric in (*OF_ALL, *OF_VALID):
        part = grouped[metric].agg(value="mean", num="count").reset_index()
        parts.append(part.assign(metric=metric))
    return pd.concat(parts, ignore_index=True)[["metric", "lambda_energy", "run", "value", "num"]]


def _unpacked(
    data: Dataset | tuple[Tensor, Tensor], constraints: Constraints | None
) -> tuple[Tensor, Tensor, Constraints]:
    if isinstance(data, Dataset):
        return data.x_test, data.y_test, constraints if constraints is not None else data.constraints
    if not isinstance(data, tuple) or len(data) != 2:
        raise InputError("data must be a Dataset or a pair (x, y) of tensors.")
    x, y = data
    return x, y, constraints if constraints is not None else Constraints.infer(x)
