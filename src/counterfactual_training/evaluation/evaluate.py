"""Measure any torch classifier; the result is one tidy table."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pandas as pd
import torch
from torch import Tensor, nn

from counterfactual_training.constraints import Constraints
from counterfactual_training.datasets.dataset import Dataset
from counterfactual_training.evaluation.attacks import fgsm, pgd, random_perturbation
from counterfactual_training.evaluation.attribution import NUM_SAMPLES, protected_sensitivity
from counterfactual_training.evaluation.counterfactuals import (
    Data,
    Find,
    aggregate,
    counterfactual_table,
    counterfactual_tables,
    unpacked,
)
from counterfactual_training.evaluation.findings import (
    Finding,
    check_attacks,
    check_classes,
    check_gradients,
    check_group_sizes,
    check_individuals,
    check_outputs,
    check_valid_count,
    warn,
)
from counterfactual_training.evaluation.performance import (
    accuracy,
    calibration_error,
    decider,
    macro_f1,
    predict_logits,
)
from counterfactual_training.evaluation.protocol import PAIRED, EvaluationProtocol, draw_individuals
from counterfactual_training.evaluation.robustness import Attack, robust_accuracy
from counterfactual_training.search import search


def evaluate(
    model: nn.Module | Sequence[nn.Module],
    data: Data,
    protocol: EvaluationProtocol = PAIRED,
    constraints: Constraints | None = None,
    find: Find = search,
) -> pd.DataFrame:
    """Plausibility, faithfulness, recourse, accuracy and robustness of a model on test data.

    Args:
        model: returns logits; or several models, which are searched together. Of a gated one, counterfactuals are
            searched by the gated probability, and its classifier is measured.
        data: a data set, of which the test rows are used, or rows and classes ``((n, *features), (n,))``.
        protocol: how to measure.
        constraints: of the searches and attacks; by default those of the data set, or a box inferred from the rows.
        find: searches, called as :func:`search` is; ``search_gated`` also leads by real rows.

    Returns:
        Columns ``metric``, ``lambda_energy``, ``run``, ``value`` and ``num``, the count of individuals behind it; for
        several models, also ``member``, the index in the list. Where no counterfactual is valid the value is NaN and
        num is 0. Misleading results give a :class:`MeasurementWarning`. For data sets with protected features there is
        the metric ``sensitivity``, one run per round.
    """
    x, y, rules = unpacked(data, constraints)
    protected = data.protected if isinstance(data, Dataset) else ()
    if isinstance(model, nn.Module):
        individuals = counterfactual_table(model, data, protocol, rules, find)
        rest, found = _of_model(decider(model, x), x, y, protocol, rules, individuals, protected)
        warn(found)
        return pd.concat([aggregate(individuals), rest], ignore_index=True)
    parts, found_by_member = [], []
    tables = counterfactual_tables(model, data, protocol, rules, find)
    for member, (one, individuals) in enumerate(zip(model, tables, strict=True)):
        rest, found = _of_model(decider(one, x), x, y, protocol, rules, individuals, protected)
        parts.append(rest.assign(member=member))
        found_by_member.append(found)
    warn(_summed(found_by_member))
    means = aggregate(pd.concat([table.assign(member=member) for member, table in enumerate(tables)]))
    return pd.concat([means, *parts], ignore_index=True)


def summarise(table: pd.DataFrame) -> pd.Series:
    """One number per metric (and member): the mean over runs, then over λ_energy."""
    keys = ["member", "metric"] if "member" in table else ["metric"]
    per_setting = table.groupby([*keys, "lambda_energy"], dropna=False)["value"].mean()
    return per_setting.groupby(keys).mean()


def performance(logits: Tensor, y: Tensor) -> dict[str, float]:
    """Accuracy, macro F1 and calibration from logits ``(n, k)``."""
    return {
        "accuracy": float(accuracy(logits, y)),
        "f1": float(macro_f1(logits, y)),
        "calibration_error": float(calibration_error(logits, y)),
    }


def attack_curves(
    model: nn.Module, x: Tensor, y: Tensor, protocol: EvaluationProtocol, constraints: Constraints | None
) -> dict[str, Tensor]:
    """Accuracy ``(E,)`` under each attack of the protocol."""
    limits = constraints if protocol.clamp_attacks else None

    def rng() -> torch.Generator:
        return torch.Generator().manual_seed(protocol.seed)

    attacks: dict[str, Attack] = {
        "fgsm": partial(fgsm, constraints=limits),
        "pgd": partial(pgd, constraints=limits, rng=rng()),
        "random": partial(random_perturbation, constraints=limits, rng=rng()),
    }
    return {name: robust_accuracy(model, x, y, protocol.epsilons, attacks[name]) for name in protocol.attacks}


def findings(
    model: nn.Module, x: Tensor, y: Tensor, logits: Tensor, protocol: EvaluationProtocol, individuals: pd.DataFrame
) -> list[Finding]:
    """What would mislead about a model's measurements: its outputs, its gradients, small numbers."""
    num_classes = logits.shape[-1]
    found = check_outputs(logits) + check_classes(y, num_classes) + check_gradients(model, x[:1000], y[:1000])
    if protocol.num_individuals is not None:
        settings = range(len(protocol.lambda_energy))
        draws = [draw_individuals(protocol, y, logits.argmax(-1), num_classes, setting) for setting in settings]
        wanted = protocol.num_individuals * protocol.num_runs * len(settings)
        found += check_individuals(wanted - sum(draw.missing for draw in draws), wanted)
    valid = individuals[individuals["validity"] == 1]
    groups = valid if protocol.mmd_valid_only else individuals
    sizes = groups.groupby(["lambda_energy", "run", "factual", "target"]).size()
    # Counted over all runs and λ_energy, as in the mean that is reported.
    found += check_valid_count(torch.as_tensor(individuals["validity"].to_numpy(copy=True) == 1))
    return found + check_group_sizes(torch.from_numpy(sizes.to_numpy(copy=True)))


def _of_model(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    protocol: EvaluationProtocol,
    constraints: Constraints,
    individuals: pd.DataFrame,
    protected: Sequence[int],
) -> tuple[pd.DataFrame, list[Finding]]:
    """Metrics measured once per model, as rows of the tidy table, and findings."""
    logits = predict_logits(model, x)
    values = performance(logits, y)
    curves = attack_curves(model, x, y, protocol, constraints)
    for attack, curve in curves.items():
        for epsilon, value in zip(protocol.epsilons, curve.tolist(), strict=True):
            values[_attack_name(protocol, attack, epsilon)] = value
    found = findings(model, x, y, logits, protocol, individuals) + check_attacks(protocol.epsilons, curves)
    records = [{"metric": name, "run": 0, "value": value, "num": len(y)} for name, value in values.items()]
    if protected and protocol.attribution_rounds:
        rng = torch.Generator().manual_seed(protocol.seed)
        scores = protected_sensitivity(model, x, y, protected, rng, protocol.attribution_rounds).tolist()
        records += [{"metric": "sensitivity", "run": r, "value": s, "num": NUM_SAMPLES} for r, s in enumerate(scores)]
    return pd.DataFrame(records).assign(lambda_energy=float("nan")), found


def _attack_name(protocol: EvaluationProtocol, attack: str, epsilon: float) -> str:
    first = attack == protocol.attacks[0]
    name = "robust_accuracy" if first else f"robust_accuracy_{attack}"
    return name if first and epsilon == protocol.epsilons[0] else f"{name}@{epsilon:g}"


def _summed(found_by_member: Sequence[Sequence[Finding]]) -> list[Finding]:
    """Each kind of finding once, with the message of the first member that has it."""
    kinds: dict[str, list[tuple[int, Finding]]] = {}
    for member, found in enumerate(found_by_member):
        for finding in found:
            kinds.setdefault(finding.name, []).append((member, finding))
    return [
        Finding(name, f"member {same[0][0]}: {same[0][1].message} ({len(same)} of {len(found_by_member)} models.)")
        for name, same in kinds.items()
    ]
