"""Checks that warn when a measurement would mislead; each yields its findings, usually none."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import pandas as pd
import torch
from torch import Tensor, nn

from counterfactual_training.evaluation.protocol import EvaluationProtocol, draw_individuals
from counterfactual_training.generators import evaluating
from counterfactual_training.generators.perturbations import input_gradient

# Fewer valid counterfactuals than this, or fewer in a group of IP*, are too few for a mean.
_FEW_VALID = 30
_SMALL_GROUP = 20
# Sums of probabilities differ from 1 by rounding; accuracies of two attacks, by single rows.
_ROUNDING = 1e-4
_SLACK = 0.01
# Of rows without a gradient, and of F(x) − F(b) that attributions miss: more than this share is
# told.
_FLAT_SHARE = _GAP = 0.05


class MeasurementWarning(UserWarning):
    """A reported number may not mean what its name says."""


class Finding(NamedTuple):
    """What would mislead: a short ``name`` for programs, a sentence with numbers and a remedy for
    people.
    """

    name: str
    message: str


def warn(findings: Iterable[Finding]) -> None:
    """Issue every finding as a :class:`MeasurementWarning`."""
    for name, message in findings:
        # The name first, so that a filter can match it.
        warnings.warn(f"{name}: {message}", MeasurementWarning, stacklevel=2)


def check_outputs(logits: Tensor) -> Iterator[Finding]:
    """Are these ``(..., n, k)`` logits, or something that only looks like it? Searches and attacks
    refuse more.
    """
    values = logits.detach()
    bad = int((~torch.isfinite(values)).any(-1).sum())
    if bad:
        yield Finding(
            "non_finite_logits",
            f"{bad} of {values.shape[:-1].numel()} rows have NaN or infinite logits.",
        )
    # Log-probabilities: none positive, and their exponentials sum to one.
    elif (
        values.numel()
        and bool((values <= 0).all())
        and bool((values.logsumexp(-1).abs() < _ROUNDING).all())
    ):
        sentence = (
            "All rows are log-probabilities. Accuracy and attacks are right, but energies "
            "compare classes,"
        )
        yield Finding(
            "log_probabilities_as_logits",
            f"{sentence} not inputs; remove the final log-softmax.",
        )


def check_gradients(model: nn.Module, x: Tensor, y: Tensor) -> Iterator[Finding]:
    """Do rows ``(..., n, *features)`` have gradients to attack and to search with?"""
    with evaluating(model):
        gradient = input_gradient(model, x, y).reshape(y.numel(), -1)
    share = float((gradient == 0).all(-1).float().mean())  # NaN without rows
    if share > _FLAT_SHARE:
        sentence = (
            f"The gradient is exactly zero for {share:.0%} of the rows: attacks and searches "
            "stand still there,"
        )
        yield Finding(
            "zero_gradients",
            f"{sentence} which is not robustness. Compare with random perturbations.",
        )


def check_attacks(epsilons: Sequence[float], curves: Mapping[str, Tensor]) -> Iterator[Finding]:
    """Do accuracies ``(E,)`` under ``"pgd"``, ``"fgsm"`` and ``"random"``, as far as given, fall as
    they should?
    """
    # A stronger attack must not leave more rows right than a weaker one; noise is the weakest.
    for strong, weak in (("pgd", "fgsm"), ("fgsm", "random"), ("pgd", "random")):
        if strong not in curves or weak not in curves:
            continue
        gap = curves[strong] - curves[weak]
        worst = int(gap.argmax())
        if float(gap[worst]) > _SLACK:
            low = float(curves[weak][worst])
            high = float(curves[strong][worst])
            sentence = (
                f"At ε = {float(epsilons[worst]):g} accuracy is {low:.3f} under {weak} but "
                f"{high:.3f} under"
            )
            remedy = "gradients are masked, or the steps too few or too small."
            yield Finding(f"{weak}_beats_{strong}", f"{sentence} {strong}: {remedy}")
    # A protocol may list its budgets in any order.
    order = torch.as_tensor([float(epsilon) for epsilon in epsilons]).argsort()
    for name in ("fgsm", "pgd"):
        if (
            name in curves
            and len(epsilons) > 1
            and float(curves[name].cpu()[order].diff().max()) > _SLACK
        ):
            sentence = (
                f"Accuracy under {name} rises with ε: the attack overshoots, or the gradients "
                "mislead it."
            )
            yield Finding("rising_curve", sentence)


def check_completeness(attributions: Tensor, change: Tensor) -> Iterator[Finding]:
    """Do attributions ``(n, d)`` add up to the change F(x) − F(b) ``(n,)``?"""
    gap = float((attributions.sum(-1) - change).abs().mean())
    scale = float(change.abs().mean())
    if scale != 0 and not gap <= _GAP * scale:  # so written, NaN is found too
        missed = f"{gap / scale:.0%}"
        sentence = f"Integrated gradients miss F(x) − F(baseline) by {missed}: take more steps."
        yield Finding("incomplete_attributions", sentence)


def check_seeds(num_seeds: int) -> Iterator[Finding]:
    """Does an interval know about training variance?"""
    if num_seeds <= 1:
        sentence = (
            "Only one training run: the interval leaves out training variance, often the larger "
            "part."
        )
        yield Finding("one_seed", f"{sentence} Train several seeds.")


def check_model(
    model: nn.Module, x: Tensor, y: Tensor, logits: Tensor, protocol: EvaluationProtocol
) -> Iterator[Finding]:
    """What would mislead about a model's measurements: its outputs, its gradients, small
    numbers.
    """
    yield from check_outputs(logits)
    num_classes = logits.shape[-1]
    absent = sorted(set(range(num_classes)) - set(y.unique().tolist()))
    if absent:
        names = ", ".join(map(str, absent))
        yield Finding(
            "absent_classes",
            f"No sample has class {names}: plausibility for these targets is NaN.",
        )
    # A sample will do to see a share.
    yield from check_gradients(model, x[:1000], y[:1000])
    if protocol.num_individuals is not None:
        settings = range(len(protocol.lambda_energy))
        # The same seeds as the measurement, so these are the very draws that were measured.
        draws = [
            draw_individuals(protocol, y, logits.argmax(-1), num_classes, setting)
            for setting in settings
        ]
        wanted = protocol.num_individuals * protocol.num_runs * len(settings)
        missing = sum(d.missing for d in draws)
        if missing:
            sentence = (
                f"Only {wanted - missing} of the {wanted} individuals asked for exist; intervals "
                "are wider."
            )
            yield Finding("fewer_individuals", sentence)


def check_individuals(
    protocol: EvaluationProtocol, individuals: pd.DataFrame
) -> Iterator[Finding]:
    """Are there enough counterfactuals for a mean?"""
    # Counted over all runs and λ_energy, as in the mean that is reported.
    valid = individuals["validity"] == 1
    if valid.sum() < _FEW_VALID:
        count = f"{valid.sum()} of {len(valid)} counterfactuals are valid"
        # A model with all of them measures no easier cases than there are.
        if valid.all():
            words = ("All", ". Evaluate more individuals.")
        else:
            words = ("Only", ", and biased towards the easy cases.")
        yield Finding(
            "few_valid", f"{words[0]} {count}: a mean over them is uncertain{words[1]}"
        )
    # The groups that IP* is computed in.
    if protocol.mmd_valid_only:
        groups = individuals[valid]
    else:
        groups = individuals
    sizes = groups.groupby(["lambda_energy", "run", "factual", "target"], dropna=False).size()
    small = (sizes < _SMALL_GROUP).sum()
    lone = (sizes < 2).sum()
    if small:
        sentence = (
            f"{small} of {len(sizes)} groups have fewer than {_SMALL_GROUP} counterfactuals, "
            f"{lone} fewer than"
        )
        remedy = "two (no MMD at all): IP* is mostly noise there. Evaluate more individuals."
        yield Finding("small_groups", f"{sentence} {remedy}")
