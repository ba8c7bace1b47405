"""Checks that warn when a measurement would mislead; each returns its findings, usually none."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd
import torch
from torch import Tensor, nn

from counterfactual_training.evaluation.attacks import input_gradient
from counterfactual_training.evaluation.protocol import EvaluationProtocol, draw_individuals
from counterfactual_training.search import evaluating

# Fewer valid counterfactuals than this, or fewer in a group of IP*, are too few for a mean.
_FEW_VALID, _SMALL_GROUP = 30, 20


class MeasurementWarning(UserWarning):
    """A reported number may not mean what its name says."""


@dataclass(frozen=True)
class Finding:
    """What would mislead: a short ``name`` for programs, a sentence with numbers and a remedy for people."""

    name: str
    message: str

    def __str__(self) -> str:
        return f"{self.name}: {self.message}"


def warn(findings: Iterable[Finding]) -> None:
    """Issue every finding as a :class:`MeasurementWarning`."""
    for finding in findings:
        warnings.warn(str(finding), MeasurementWarning, stacklevel=2)


def check_outputs(logits: Tensor, tolerance: float = 1e-4) -> list[Finding]:
    """Are these ``(..., n, k)`` logits, or something that only looks like it?"""
    values = logits.detach()
    bad = int((~torch.isfinite(values)).any(-1).sum())
    if bad:
        return _found("non_finite_logits", f"{bad} of {values.shape[:-1].numel()} rows have NaN or infinite logits.")
    if not values.numel():
        return []
    if bool((values >= 0).all()) and bool(((values.sum(-1) - 1).abs() < tolerance).all()):
        sentence = "All rows are non-negative and sum to 1: these are probabilities."
        remedy = "Energies, calibration and gradients need logits; remove the final softmax."
        return _found("probabilities_as_logits", sentence, remedy)
    if bool((values <= 0).all()) and bool((values.logsumexp(-1).abs() < tolerance).all()):
        sentence = "All rows are log-probabilities. Accuracy and attacks are right, but energies compare classes,"
        return _found("log_probabilities_as_logits", sentence, "not inputs; remove the final log-softmax.")
    return []


def check_gradients(model: nn.Module, x: Tensor, y: Tensor, largest_share: float = 0.05) -> list[Finding]:
    """Do rows ``(..., n, *features)`` have gradients to attack and to search with?"""
    with evaluating(model):
        gradient = input_gradient(model, x, y).reshape(y.numel(), -1)
    share = float((gradient == 0).all(-1).float().mean())  # NaN without rows
    sentence = f"The gradient is exactly zero for {share:.0%} of the rows: attacks and searches stand still there,"
    remedy = "which is not robustness. Compare with random perturbations."
    return _found("zero_gradients", sentence, remedy) if share > largest_share else []


def check_attacks(epsilons: Sequence[float], curves: Mapping[str, Tensor], slack: float = 0.01) -> list[Finding]:
    """Do accuracies ``(E,)`` under ``"pgd"``, ``"fgsm"`` and ``"random"``, as far as given, fall as they should?"""
    findings = []
    for strong, weak in (("pgd", "fgsm"), ("fgsm", "random"), ("pgd", "random")):
        if strong not in curves or weak not in curves:
            continue
        gap = curves[strong] - curves[weak]
        worst = int(gap.argmax())
        low, high = float(curves[weak][worst]), float(curves[strong][worst])
        if float(gap[worst]) > slack:
            findings += _found(
                f"{weak}_beats_{strong}",
                f"At ε = {float(epsilons[worst]):g} accuracy is {low:.3f} under {weak} but {high:.3f} under {strong}:",
                "gradients are masked, or the steps too few or too small.",
            )
    order = torch.as_tensor([float(epsilon) for epsilon in epsilons]).argsort()
    for name in ("fgsm", "pgd"):
        if name in curves and len(epsilons) > 1 and float(curves[name].cpu()[order].diff().max()) > slack:
            sentence = f"Accuracy under {name} rises with ε: the attack overshoots, or the gradients mislead it."
            findings += _found("rising_curve", sentence)
    return findings


def check_completeness(attributions: Tensor, change: Tensor, tolerance: float = 0.05) -> list[Finding]:
    """Do attributions ``(n, d)`` add up to the change F(x) − F(b) ``(n,)``?"""
    gap, scale = float((attributions.sum(-1) - change).abs().mean()), float(change.abs().mean())
    if gap <= tolerance * scale or scale == 0:
        return []
    sentence = f"Integrated gradients miss F(x) − F(baseline) by {gap / scale:.0%}: take more steps."
    return _found("incomplete_attributions", sentence)


def check_seeds(num_seeds: int) -> list[Finding]:
    """Does an interval know about training variance?"""
    sentence = "Only one training run: the interval leaves out training variance, often the larger part."
    return _found("one_seed", sentence, "Train several seeds.") if num_seeds <= 1 else []


def check_measurement(
    model: nn.Module, x: Tensor, y: Tensor, logits: Tensor, protocol: EvaluationProtocol, individuals: pd.DataFrame
) -> list[Finding]:
    """What would mislead about a model's measurements: its outputs, its gradients, small numbers."""
    num_classes, found = logits.shape[-1], check_outputs(logits)
    absent = sorted(set(range(num_classes)) - set(y.unique().tolist()))
    if absent:
        names = ", ".join(map(str, absent))
        found += _found("absent_classes", f"No sample has class {names}: plausibility for these targets is NaN.")
    found += check_gradients(model, x[:1000], y[:1000])
    if protocol.num_individuals is not None:
        settings = range(len(protocol.lambda_energy))
        draws = [draw_individuals(protocol, y, logits.argmax(-1), num_classes, setting) for setting in settings]
        wanted, missing = protocol.num_individuals * protocol.num_runs * len(settings), sum(d.missing for d in draws)
        sentence = f"Only {wanted - missing} of the {wanted} individuals asked for exist; intervals are wider."
        found += _found("fewer_individuals", sentence) if missing else []
    # Counted over all runs and λ_energy, as in the mean that is reported.
    valid = individuals["validity"] == 1
    if valid.sum() < _FEW_VALID:
        sentence = f"Only {valid.sum()} of {len(valid)} counterfactuals are valid: a mean over them is uncertain,"
        found += _found("few_valid", sentence, "and biased towards the easy cases.")
    groups = individuals[valid] if protocol.mmd_valid_only else individuals
    sizes = groups.groupby(["lambda_energy", "run", "factual", "target"]).size()
    small, lone = (sizes < _SMALL_GROUP).sum(), (sizes < 2).sum()
    if small:
        sentence = f"{small} of {len(sizes)} groups have fewer than {_SMALL_GROUP} counterfactuals, {lone} fewer than"
        remedy = "two (no MMD at all): IP* is mostly noise there. Evaluate more individuals."
        found += _found("small_groups", sentence, remedy)
    return found


def _found(name: str, *sentences: str) -> list[Finding]:
    return [Finding(name, " ".join(sentences))]
