"""Measure any torch classifier; the result is one tidy table."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pandas as pd
import torch
from torch import Tensor, nn

from counterfactual_training.constraints import Constraints
from counterfactual_training.datasets.dataset import Dataset
from counterfactual_training.evaluation.attacks import Attack, robust_accuracy
from counterfactual_training.evaluation.attribution import NUM_SAMPLES, protected_sensitivity
from counterfactual_training.evaluation.counterfactuals import (
    Data,
    Find,
    aggregate,
    counterfactual_table,
    counterfactual_tables,
    unpacked,
)
from counterfactual_training.evaluation.findings import Finding, check_attacks, check_measurement, warn
from counterfactual_training.evaluation.performance import (
    accuracy,
    calibration_error,
    decider,
    macro_f1,
    predict_logits,
)
from counterfactual_training.evaluation.protocol import PAIRED, EvaluationProtocol
from counterfactual_training.search import search
from counterfactual_training.search.perturbations import fgsm, pgd, random_perturbation


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
        table = counterfactual_table(model, data, protocol, rules, find)
        once, found = _of_model(model, x, y, protocol, rules, table, protected)
        warn(found)
        return pd.concat([aggregate(table), once], ignore_index=True)
    tables = counterfactual_tables(model, data, protocol, rules, find)
    each = [_of_model(m, x, y, protocol, rules, own, protected) for m, own in zip(model, tables, strict=True)]
    # Each kind of finding once, with the message of the first member that has it.
    kinds: dict[str, list[str]] = {}
    for member, finding in ((member, finding) for member, (_, found) in enumerate(each) for finding in found):
        kinds.setdefault(finding.name, []).append(f"member {member}: {finding.message}")
    warn(Finding(name, f"{same[0]} ({len(same)} of {len(tables)} models.)") for name, same in kinds.items())
    means = aggregate(pd.concat([table.assign(member=member) for member, table in enumerate(tables)]))
    return pd.concat([means, *(once.assign(member=i) for i, (once, _) in enumerate(each))], ignore_index=True)


def summarise(table: pd.DataFrame) -> pd.Series:
    """One number per metric (and member): the mean over runs, then over λ_energy."""
    keys = ["member", "metric"] if "member" in table else ["metric"]
    # Metrics measured once per model have λ_energy NaN; groupby would drop them.
    per_setting = table.groupby([*keys, "lambda_energy"], dropna=False)["value"].mean()
    # First over runs, so that every λ_energy counts alike.
    return per_setting.groupby(keys).mean()


def performance(logits: Tensor, y: Tensor) -> dict[str, float]:
    """Accuracy, macro F1 and calibration from logits ``(n, k)``."""
    metrics = {"accuracy": accuracy, "f1": macro_f1, "calibration_error": calibration_error}
    return {name: float(metric(logits, y)) for name, metric in metrics.items()}


def attack_curves(
    model: nn.Module, x: Tensor, y: Tensor, protocol: EvaluationProtocol, constraints: Constraints | None
) -> dict[str, Tensor]:
    """Accuracy ``(E,)`` under each attack of the protocol."""
    # As published: attacks know neither a domain nor mutability.
    limits = constraints if protocol.clamp_attacks else None
    # One generator each, so that the noise of an attack does not depend on which others are asked for.
    pgd_rng, random_rng = (torch.Generator().manual_seed(protocol.seed) for _ in range(2))
    attacks: dict[str, Attack] = {
        "fgsm": partial(fgsm, constraints=limits),
        "pgd": partial(pgd, constraints=limits, rng=pgd_rng),
        "random": partial(random_perturbation, constraints=limits, rng=random_rng),
    }
    return {name: robust_accuracy(model, x, y, protocol.epsilons, attacks[name]) for name in protocol.attacks}


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
    # A gate takes no part in predictions, so attacks and accuracy are the classifier's.
    model = decider(model, x)
    logits = predict_logits(model, x)
    values = performance(logits, y)
    curves = attack_curves(model, x, y, protocol, constraints)
    for attack, curve in curves.items():
        name = "robust_accuracy" if attack == protocol.attacks[0] else f"robust_accuracy_{attack}"
        for epsilon, value in zip(protocol.epsilons, curve.tolist(), strict=True):
            # One curve point has the plain name, for tables with a single column.
            first = attack == protocol.attacks[0] and epsilon == protocol.epsilons[0]
            values[name if first else f"{name}@{epsilon:g}"] = value
    found = [*check_measurement(model, x, y, logits, protocol, individuals), *check_attacks(protocol.epsilons, curves)]
    records = [{"metric": name, "run": 0, "value": value, "num": len(y)} for name, value in values.items()]
    if protected and protocol.attribution_rounds:
        rng = torch.Generator().manual_seed(protocol.seed)
        scores = protected_sensitivity(model, x, y, protected, rng, protocol.attribution_rounds).tolist()
        records += [{"metric": "sensitivity", "run": r, "value": s, "num": NUM_SAMPLES} for r, s in enumerate(scores)]
    return pd.DataFrame(records).assign(lambda_energy=float("nan")), found
