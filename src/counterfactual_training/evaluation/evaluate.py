"""Measure any torch classifier; the result is one tidy table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from counterfactual_training.constraints import Constraints
from counterfactual_training.datasets.dataset import Dataset
from counterfactual_training.errors import InputError
from counterfactual_training.evaluation.acceptance import Maker
from counterfactual_training.evaluation.attacks import Attack, robust_accuracy
from counterfactual_training.evaluation.attribution import (
    NUM_SAMPLES,
    AttributionRounds,
    protected_sensitivity,
)
from counterfactual_training.evaluation.counterfactuals import (
    Data,
    Explains,
    aggregate,
    counterfactual_table,
    counterfactual_tables,
    unpacked,
)
from counterfactual_training.evaluation.cross_jury import CrossJury, Panel
from counterfactual_training.evaluation.findings import (
    Finding,
    check_attacks,
    check_individuals,
    check_model,
    warn,
)
from counterfactual_training.evaluation.metrics import JURY_ACCURACY
from counterfactual_training.evaluation.performance import (
    accuracy,
    calibration_error,
    decider,
    macro_f1,
    predict_logits,
)
from counterfactual_training.evaluation.plugins import (
    Find,
    MetricFunction,
    as_find,
    broken_rules,
)
from counterfactual_training.evaluation.protocol import PAIRED, EvaluationProtocol
from counterfactual_training.generators import Generator, search
from counterfactual_training.generators.perturbations import fgsm, pgd, random_perturbation
from counterfactual_training.torch_modes import with_gradients


@with_gradients
def evaluate(
    model: nn.Module | Sequence[nn.Module],
    data: Data,
    protocol: EvaluationProtocol = PAIRED,
    constraints: Constraints | None = None,
    *,
    explainers: Mapping[str, Explains | Generator] | None = None,
    metrics: Mapping[str, MetricFunction] | None = None,
    families: Mapping[str, Maker] | None = None,
    witnesses: Sequence[nn.Module] = (),
) -> pd.DataFrame:
    """Plausibility, acceptance by other models, recourse, accuracy and robustness of a model on
    test data.

    ``acceptance`` says whether counterfactuals would work: the share of judges of other families
    (``acceptance@boosting`` and the like: one family) that give a valid one its target. Judges are
    fitted to the rows of data, which the model should not have seen, in halves: a person of one
    half is judged by those fitted to the other. ``jury_accuracy`` is theirs on real rows that they
    did not see. Where a half has fewer than 30 rows or a single class, nobody judges.

    Args:
        model: returns logits; or several models, which are searched together. Of a gated one,
            counterfactuals are searched by the gated probability, and its classifier is measured.
        data: a data set, of which the test rows are used, or rows and classes ``((n, *features),
            (n,))``.
        protocol: how to measure.
        constraints: of the searches and attacks; by default those of the data set, or a box
            inferred from the rows.
        explainers: measured instead of :func:`search`, by name: functions ``(model, x, y_target,
            constraints) -> x_cf``, a :class:`Generator` (searched up to the protocol's τ), or what
            is called as :func:`search` is. The table then has a column ``explainer`` (empty where
            none took part) and the metric ``violations``. Foreign ones have no λ_energy (NaN).
        metrics: of your own, by name: functions of a :class:`Measured` that return one value per
            individual ``(n,)``, or one number.
        families: of the judges, see :meth:`Jury.fit`; leave out any that helped to train or to
            search. With ``{}`` nobody judges.
        witnesses: models that had no part in the search, such as refits on bootstrap samples:
            the share of them that accept is ``acceptance@witnesses``.

    Returns:
        Columns ``metric``, ``lambda_energy``, ``run``, ``value`` and ``num``, the count of
        individuals behind it; for several models, also ``member``, the index in the list. Where no
        counterfactual is valid the value is NaN and num is 0. Misleading results give a
        :class:`MeasurementWarning`. For data sets with protected features there is the metric
        ``sensitivity``, one run per round.

    Examples:
        >>> import counterfactual_training as ct
        >>> data, model = ct.load_dataset("linearly_separable"), ct.mlp(2, 2)
        >>> method = ct.methods.conventional(epochs=2, batch_size=100, learning_rate=0.05)
        >>> model = ct.train(model, data.x_train, data.y_train, method).model
        >>> protocol = ct.EvaluationProtocol(
        ...     num_individuals=50, lambda_energy=(0.1,), langevin_steps=0
        ... )
        >>> table = ct.evaluate(model, (data.x_test, data.y_test), protocol)
        >>> print(table[table["metric"].isin(["validity", "accuracy"])].to_string(index=False))
          metric  lambda_energy  run  value  num
        validity            0.1    0    1.0   50
        accuracy            NaN    0    1.0  900
    """
    x, y, rules = unpacked(data, constraints)
    if isinstance(data, Dataset):
        protected = data.protected
    else:
        protected = ()
    _check_named("explainers", explainers)
    _check_named("metrics", metrics)
    models = _listed(model)
    # Of every explainer alike, our search among them, so that the table has no holes.
    user_metrics = dict(metrics or {})
    if explainers is not None:
        user_metrics = {"violations": broken_rules, **user_metrics}
    lone = isinstance(model, nn.Module)
    panel = _panel(x, y, families, witnesses)
    tables: list[dict[str, pd.DataFrame]] = [{} for _ in models]
    for name, method in _methods(explainers).items():
        arguments = (data, protocol, rules, method, user_metrics, panel)
        individuals = _individuals(models, lone, arguments)
        for mine, table in zip(tables, individuals, strict=True):
            mine[name] = table
    each = [
        _of_model(m, x, y, protocol, rules, mine, protected, panel)
        for m, mine in zip(models, tables, strict=True)
    ]
    _warn([findings for _, findings in each], lone)
    out = _joined(tables, [table for table, _ in each], user_metrics)
    if lone:
        out = out.drop(columns="member")
    if explainers is None:
        out = out.drop(columns="explainer")
    return out


def _panel(
    x: Tensor, y: Tensor, families: Mapping[str, Maker] | None, witnesses: Sequence[nn.Module]
) -> Panel:
    """Who is asked whether counterfactuals work."""
    _check_named("families", families)
    if not all(isinstance(witness, nn.Module) for witness in witnesses):
        kinds = ", ".join(type(witness).__name__ for witness in witnesses)
        raise InputError(f"witnesses is a list of torch modules, got {kinds}.")
    if families is not None and not families:
        return Panel(None, witnesses)
    return Panel(CrossJury.fit(x, y, families), witnesses)


def _listed(model: nn.Module | Sequence[nn.Module]) -> list[nn.Module]:
    """One or several models as a list."""
    if isinstance(model, nn.Module):
        return [model]
    if isinstance(model, Mapping) or not isinstance(model, Sequence):
        raise InputError(
            f"model is a torch module or a list of them, got {type(model).__name__}."
        )
    return list(model)


def _individuals(
    models: Sequence[nn.Module], lone: bool, arguments: tuple[Any, ...]
) -> Sequence[pd.DataFrame]:
    """The counterfactuals of every model."""
    if lone:
        return [counterfactual_table(models[0], *arguments)]
    return counterfactual_tables(models, *arguments)


def _check_named(argument: str, named: Mapping[str, Any] | None) -> None:
    if named is not None and not isinstance(named, Mapping):
        raise InputError(
            f"{argument} is a dict of names and functions, got {type(named).__name__}."
        )


def _joined(
    individuals: Sequence[Mapping[str, pd.DataFrame]],
    once: Sequence[pd.DataFrame],
    user_metrics: Iterable[str],
) -> pd.DataFrame:
    """One table, of the individuals of every model by explainer and of what is measured once per
    model.
    """
    people = [
        table.assign(member=i, explainer=name)
        for i, tables in enumerate(individuals)
        for name, table in tables.items()
    ]
    models = [table.assign(member=i, explainer="") for i, table in enumerate(once)]
    names = tuple(dict.fromkeys(("violations", *user_metrics)))
    return pd.concat([aggregate(pd.concat(people), names), *models], ignore_index=True)


def summarise(table: pd.DataFrame) -> pd.Series:
    """One number per metric (and member, and explainer): the mean over runs, then over λ_energy.

    Args:
        table: from :func:`evaluate`.

    Returns:
        Values by metric; of several models or explainers, by ``member``, ``explainer`` and
        ``metric``.

    Examples:
        >>> import counterfactual_training as ct
        >>> data, model = ct.load_dataset("linearly_separable"), ct.mlp(2, 2)
        >>> method = ct.methods.conventional(epochs=2, batch_size=100, learning_rate=0.05)
        >>> model = ct.train(model, data.x_train, data.y_train, method).model
        >>> protocol = ct.EvaluationProtocol(
        ...     num_individuals=50, lambda_energy=(0.1, 1.0), langevin_steps=0
        ... )
        >>> numbers = ct.summarise(ct.evaluate(model, (data.x_test, data.y_test), protocol))
        >>> numbers[["accuracy", "validity"]].round(2).to_dict()
        {'accuracy': 1.0, 'validity': 1.0}
    """
    keys = [*(key for key in ("member", "explainer") if key in table), "metric"]
    # Metrics measured once per model have λ_energy NaN; groupby would drop them.
    per_setting = table.groupby([*keys, "lambda_energy"], dropna=False)["value"].mean()
    # First over runs, so that every λ_energy counts alike.
    return per_setting.groupby(keys).mean()


def performance(logits: Tensor, y: Tensor) -> dict[str, float]:
    """Accuracy, macro F1 and calibration from logits ``(n, k)``."""
    metrics = {"accuracy": accuracy, "f1": macro_f1, "calibration_error": calibration_error}
    return {name: float(metric(logits, y)) for name, metric in metrics.items()}


def attack_curves(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    protocol: EvaluationProtocol,
    constraints: Constraints | None,
) -> dict[str, Tensor]:
    """Accuracy ``(E,)`` under each attack of the protocol."""
    # As published: attacks know neither a domain nor mutability.
    if protocol.clamp_attacks:
        limits = constraints
    else:
        limits = None
    # One generator each, so that the noise of an attack does not depend on which others are asked
    # for.
    pgd_rng, random_rng = (torch.Generator().manual_seed(protocol.seed) for _ in range(2))
    attacks: dict[str, Attack] = {
        "fgsm": partial(fgsm, constraints=limits),
        "pgd": partial(pgd, constraints=limits, rng=pgd_rng),
        "random": partial(random_perturbation, constraints=limits, rng=random_rng),
    }
    return {
        name: robust_accuracy(model, x, y, protocol.epsilons, attacks[name])
        for name in protocol.attacks
    }


def _methods(explainers: Mapping[str, Explains | Generator] | None) -> dict[str, Find]:
    if explainers is None:
        return {"": as_find(search)}
    if not explainers or not all(isinstance(name, str) and name for name in explainers):
        raise InputError(
            f"explainers needs at least one name, and no empty ones, got {list(explainers)}."
        )
    return {name: as_find(explainer, name) for name, explainer in explainers.items()}


def _warn(findings: Sequence[Sequence[Finding]], lone: bool) -> None:
    """Each kind of finding once, with the message of the first member that has it."""
    if lone:
        return warn(findings[0])
    kinds: dict[str, dict[int, str]] = {}
    for member, finding in (
        (member, finding) for member, of_member in enumerate(findings) for finding in of_member
    ):
        # The first of a member: one per explainer may say the same of it.
        kinds.setdefault(finding.name, {}).setdefault(
            member, f"member {member}: {finding.message}"
        )
    messages = ((name, *same.values()) for name, same in kinds.items())
    return warn(
        Finding(name, f"{first} ({1 + len(others)} of {len(findings)} models.)")
        for name, first, *others in messages
    )


def _of_model(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    protocol: EvaluationProtocol,
    constraints: Constraints,
    individuals: Mapping[str, pd.DataFrame],
    protected: Sequence[int],
    panel: Panel,
) -> tuple[pd.DataFrame, list[Finding]]:
    """Metrics measured once per model, as rows of the tidy table, and findings."""
    # A gate takes no part in predictions, so attacks and accuracy are the classifier's.
    model = decider(model, x)
    logits = predict_logits(model, x)
    values = performance(logits, y)
    curves = attack_curves(model, x, y, protocol, constraints)
    for attack, curve in curves.items():
        if attack == protocol.attacks[0]:
            name = "robust_accuracy"
        else:
            name = f"robust_accuracy_{attack}"
        for epsilon, value in zip(protocol.epsilons, curve.tolist(), strict=True):
            # One curve point has the plain name, for tables with a single column.
            first = attack == protocol.attacks[0] and epsilon == protocol.epsilons[0]
            values[name if first else f"{name}@{epsilon:g}"] = value
    if panel.jury is not None:
        # Of the judges, who are the same for all models.
        values[JURY_ACCURACY] = float(panel.jury.accuracy.mean())
    findings = [
        *check_model(model, x, y, logits, protocol),
        *check_attacks(protocol.epsilons, curves),
        *panel.check(),
    ]
    for name, table in individuals.items():
        findings += _findings(name, table, protocol)
    records = [
        {"metric": name, "run": 0, "value": value, "num": len(y)}
        for name, value in values.items()
    ]
    if protected and protocol.attribution_rounds:
        rng = torch.Generator().manual_seed(protocol.seed)
        scores = protected_sensitivity(
            model, x, y, protected, rng, AttributionRounds(protocol.attribution_rounds)
        ).tolist()
        records += [
            {"metric": "sensitivity", "run": r, "value": s, "num": NUM_SAMPLES}
            for r, s in enumerate(scores)
        ]
    return pd.DataFrame(records).assign(lambda_energy=float("nan")), findings


def _findings(
    explainer: str, table: pd.DataFrame, protocol: EvaluationProtocol
) -> list[Finding]:
    """What misleads about the counterfactuals of an explainer."""
    if explainer:
        whose = f"With explainer {explainer!r}: "
    else:
        whose = ""
    return [
        Finding(kind, f"{whose}{text}") for kind, text in check_individuals(protocol, table)
    ]
