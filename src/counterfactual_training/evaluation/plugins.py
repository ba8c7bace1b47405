"""Explainers and metrics of the user's own, as :func:`evaluate` measures them: a function and a
name each.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from counterfactual_training.constraints import Constraints
from counterfactual_training.core.precision import at_least_single
from counterfactual_training.errors import InputError
from counterfactual_training.evaluation.performance import decider, predict_logits
from counterfactual_training.generators import (
    Generator,
    SearchResult,
    Status,
    evaluating,
    search,
)

Find = Callable[..., SearchResult]


@dataclass(frozen=True, eq=False)
class Measured:
    """The counterfactuals of one run and λ_energy, and all that a metric may look at. No row here
    was of their target.

    Attributes:
        model: as given to :func:`evaluate`.
        x: ``(n, *features)`` factuals.
        x_cf: their counterfactuals, like x.
        y_target: ``(n,)`` the classes asked for.
        logits: ``(n, k)`` of the model at x_cf.
        valid: ``(n,)`` whether these decide for the target.
        constraints: what was allowed to change.
        x_data: ``(m, *features)`` all test rows.
        y_data: ``(m,)`` their classes.

    Examples:
        >>> import counterfactual_training as ct
        >>> data, model = ct.load_dataset("linearly_separable"), ct.mlp(2, 2)
        >>> method = ct.methods.conventional(epochs=2, batch_size=100, learning_rate=0.05)
        >>> model = ct.train(model, data.x_train, data.y_train, method).model
        >>> def largest_change(measured):
        ...     return (measured.x_cf - measured.x).abs().amax(-1)
        >>> metrics = {"largest_change": largest_change}
        >>> rows = data.x_test[:200], data.y_test[:200]
        >>> protocol = ct.EvaluationProtocol(langevin_steps=0)
        >>> table = ct.evaluate(model, rows, protocol, metrics=metrics)
        >>> bool(ct.summarise(table)["largest_change"] > 1)  # the classes are far apart
        True
    """

    model: nn.Module
    x: Tensor
    x_cf: Tensor
    y_target: Tensor
    logits: Tensor
    valid: Tensor
    constraints: Constraints
    x_data: Tensor
    y_data: Tensor


# One value per individual ``(n,)``, or one number.
MetricFunction = Callable[[Measured], Any]


@dataclass(frozen=True, eq=False)
class ForeignExplainer:
    """A function ``(model, x, y_target, constraints) -> x_cf`` behind the call of :func:`search`.

    It is asked for rows that are not of their target yet. What it returns is checked but not
    repaired; steps taken are NaN, because it does not tell them.
    """

    name: str
    function: Callable[..., Any] | Generator

    def __call__(
        self,
        model: nn.Module,
        x: Tensor,
        y_target: Tensor,
        generator: Generator | None = None,
        constraints: Constraints | None = None,
        *,
        diagnose: bool = False,
    ) -> SearchResult:
        if constraints is not None:
            rules = constraints
        else:
            rules = Constraints.build(x[:1].numel())
        searched = predict_logits(decider(model, x), x).argmax(-1) != y_target
        x_cf = x.clone()
        steps = torch.full(y_target.shape, torch.nan, dtype=torch.float64, device=x.device)
        status = torch.full_like(y_target, int(Status.ALREADY_THERE))
        if searched.any():
            with evaluating(model):
                # Clones, because a function of somebody else may write into what it gets.
                answer = self._ask(
                    model, x[searched].clone(), y_target[searched].clone(), rules, generator
                )
            has_status = isinstance(answer, SearchResult)
            x_cf[searched] = self._checked(answer.x_cf if has_status else answer, x[searched])
            if has_status:
                steps[searched] = answer.num_steps.to(steps)
            else:
                steps[searched] = torch.nan
        confidence = (
            predict_logits(model, x_cf)
            .softmax(-1)
            .gather(-1, y_target.unsqueeze(-1))
            .squeeze(-1)
        )
        arrived = confidence >= (generator.decision_threshold if generator is not None else 0.5)
        status[searched] = torch.where(arrived, int(Status.CONVERGED), int(Status.EXHAUSTED))[
            searched
        ]
        binding = torch.empty(*y_target.shape, 0, dtype=torch.long)
        return SearchResult(
            x_cf, x.clone(), arrived | ~searched, steps, status, confidence, binding
        )

    def _ask(
        self,
        model: nn.Module,
        x: Tensor,
        y_target: Tensor,
        rules: Constraints,
        generator: Generator | None,
    ) -> Any:
        if not isinstance(self.function, Generator):
            return self.function(model, x, y_target, rules)
        # Compared with others, a recipe goes as far as they do.
        if generator is None:
            same = {}
        else:
            same = {"decision_threshold": generator.decision_threshold}
        return search(model, x, y_target, self.function.replace(**same), rules, diagnose=False)

    def _checked(self, answer: Any, x: Tensor) -> Tensor:
        try:
            x_cf = torch.as_tensor(answer).detach().to(x)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError(
                f"Explainer {self.name!r} must return a tensor or array, got {type(answer)}."
            ) from error
        if x_cf.shape != x.shape:
            raise InputError(
                f"Explainer {self.name!r} must return one counterfactual per row, "
                f"{tuple(x.shape)}, "
                f"got {tuple(x_cf.shape)}."
            )
        bad = int((~x_cf.isfinite()).flatten(1).any(-1).sum())
        if bad:
            raise InputError(
                f"Explainer {self.name!r} returned NaN or infinite values for {bad} of {len(x)} "
                "rows; "
                "where it finds nothing, it should return the row unchanged, which counts as not "
                "valid."
            )
        return x_cf


def as_find(explainer: Find | Generator | Callable[..., Any], name: str = "") -> Find:
    """Whatever explains, to be called as :func:`search` is.

    A function with a parameter ``generator`` already is; a :class:`Generator` is a search by that
    recipe, at the τ of the measurement; any other function is a :class:`ForeignExplainer`.
    """
    if isinstance(explainer, Generator):
        return ForeignExplainer(name or "generator", explainer)
    if isinstance(explainer, ForeignExplainer):
        return explainer
    # A search whose recipe is settled.
    if isinstance(explainer, partial) and "generator" in explainer.keywords:
        return ForeignExplainer(
            name or "search",
            lambda *question: explainer(*question[:3], constraints=question[3]),
        )
    if not callable(explainer):
        raise InputError(
            f"Explainer {name!r} must be a function (model, x, y_target, constraints) -> x_cf, "
            f"got {type(explainer).__name__}."
        )
    try:
        as_search = "generator" in inspect.signature(explainer).parameters
    except (TypeError, ValueError):  # compiled functions have no signature
        as_search = False
    if as_search:
        return explainer
    return ForeignExplainer(name or _called(explainer), explainer)


def _called(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", type(function).__name__)


def broken_rules(measured: Measured) -> Tensor:
    """1 where a counterfactual breaks a constraint, else 0: ``(n,)``."""
    x_cf, x = (at_least_single(rows).flatten(1) for rows in (measured.x_cf, measured.x))
    return measured.constraints.to(x).violations(x_cf, x).any(-1).double()


def check_metrics(metrics: Mapping[str, MetricFunction], taken: tuple[str, ...]) -> None:
    """Refuse what is no function, and names that a table already has."""
    for name, metric in metrics.items():
        # Names with an @ are those of attacks and their ε.
        if not isinstance(name, str) or not name or name in taken or "@" in name:
            raise InputError(
                f"A metric needs a name that no other has, got {name!r}. Taken: {', '.join(taken)}."
            )
        if not callable(metric):
            raise InputError(
                f"Metric {name!r} must be a function of a Measured, got {type(metric).__name__}."
            )


def values_of(name: str, metric: MetricFunction, measured: Measured) -> Tensor:
    """A metric's value for each individual ``(n,)``; one number counts for all.

    NaN leaves an individual out of the mean, and is allowed where the counterfactual is not valid.
    """
    answer = metric(measured)
    try:
        values = torch.as_tensor(answer).detach().cpu().double()
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"Metric {name!r} must return numbers, got {type(answer).__name__}."
        ) from error
    valid = measured.valid.cpu()
    if values.dim() and values.shape != valid.shape:
        raise InputError(
            f"Metric {name!r} must return one number, or one per individual, ({len(valid)},), "
            f"got shape {tuple(values.shape)}."
        )
    values = values.expand(valid.shape)
    bad = values.isinf() | (values.isnan() & valid)
    if bad.any():
        raise InputError(
            f"Metric {name!r} is NaN or infinite for {int(bad.sum())} of {len(valid)} individuals. "
            "NaN is allowed only where measured.valid is False, and leaves these out of the mean."
        )
    return values
