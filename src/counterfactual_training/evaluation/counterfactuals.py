"""The table of counterfactuals, one row per individual, run and λ_energy; for one model or for many
at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from counterfactual_training.constraints import Constraints, Domain
from counterfactual_training.constraints.stack_constraints import (
    constraint_structure,
    stack_constraints,
    unstack_constraints,
)
from counterfactual_training.core.precision import at_least_single
from counterfactual_training.datasets.dataset import Dataset
from counterfactual_training.errors import InputError, ModelError
from counterfactual_training.evaluation.cross_jury import Panel
from counterfactual_training.evaluation.metrics import ACCEPTANCE, JURY_ACCURACY
from counterfactual_training.evaluation.performance import check_labels, decider, predict_logits
from counterfactual_training.evaluation.plausibility import (
    Langevin,
    class_samples,
    energy_differential,
    group_mmd,
    implausibility_by_class,
    unfaithfulness,
)
from counterfactual_training.evaluation.plugins import (
    Find,
    ForeignExplainer,
    Measured,
    MetricFunction,
    as_find,
    broken_rules,
    check_metrics,
    values_of,
)
from counterfactual_training.evaluation.protocol import (
    PAIRED,
    EvaluationProtocol,
    draw_individuals,
)
from counterfactual_training.evaluation.recourse import (
    cost,
    redundancy,
    sparsity,
    validity,
    validity_strict,
)
from counterfactual_training.generators import Status, ecco, search
from counterfactual_training.models.stack import StackedModel
from counterfactual_training.torch_modes import ordinary

# Metrics of valid counterfactuals only.
OF_VALID = (
    "implausibility",
    "implausibility_mmd",
    "unfaithfulness",
    "energy_differential",
    "cost",
    "redundancy",
    "sparsity",
)
OF_ALL = ("validity", "validity_strict", "share_mature", "num_steps")
# Names that a metric of a user may not have.
TAKEN = (
    *OF_ALL,
    *OF_VALID,
    "violations",
    "run",
    "lambda_energy",
    "row",
    "factual",
    "target",
    "searched",
    "member",
    "explainer",
    "metric",
    "value",
    "num",
    "accuracy",
    "f1",
    "calibration_error",
    "robust_accuracy",
    "sensitivity",
    ACCEPTANCE,
    JURY_ACCURACY,
)

# Memory: at most so many values of factuals are searched together.
_FLEET_VALUES = 2**25
_PROBES = 16

Data = Dataset | tuple[Tensor, Tensor]
Explains = Find | Callable[..., Any]


def counterfactual_table(
    model: nn.Module,
    data: Data,
    protocol: EvaluationProtocol = PAIRED,
    constraints: Constraints | None = None,
    find: Explains = search,
    metrics: Mapping[str, MetricFunction] | None = None,
    panel: Panel | None = None,
) -> pd.DataFrame:
    """One row per individual, run and λ_energy.

    Columns ``run, lambda_energy, row, factual, target``, then :data:`OF_ALL` and :data:`OF_VALID`
    (without ``unfaithfulness`` where the protocol has no Langevin steps). Individuals already of
    the target class are left out. IP* belongs to a group (run, predicted class, target); see
    :class:`EvaluationProtocol`. For a gated model, the search and ``validity_strict`` use the gated
    probability, all else its classifier (:func:`decider`).

    Args:
        find: searches, called as :func:`search` is; or any explainer, see :func:`as_find`. One that
            is not ours has no λ_energy (NaN), is measured once, and has one column more,
            ``violations``.
        metrics: of your own, by name: functions of a :class:`Measured`.
        panel: asked about every valid counterfactual; what it says are columns named
            ``acceptance…``.
    """
    x, y, constraints = unpacked(data, constraints)
    plugins = _plugins(find, metrics)
    return _Measurement(
        [model], x, y, constraints, protocol, as_find(find), plugins, panel
    ).tables()[0]


def _plugins(
    find: Explains, metrics: Mapping[str, MetricFunction] | None
) -> dict[str, MetricFunction]:
    """The plug-ins that are measured: those given, and for explainers other than our search, the
    rules they break.
    """
    metrics = dict(metrics or {})
    check_metrics(
        {name: metric for name, metric in metrics.items() if metric is not broken_rules}, TAKEN
    )
    return {
        **({"violations": broken_rules} if isinstance(as_find(find), ForeignExplainer) else {}),
        **metrics,
    }


def counterfactual_tables(
    models: Sequence[nn.Module],
    data: Data,
    protocol: EvaluationProtocol = PAIRED,
    constraints: Constraints | Sequence[Constraints] | None = None,
    find: Explains = search,
    metrics: Mapping[str, MetricFunction] | None = None,
    panel: Panel | None = None,
) -> list[pd.DataFrame]:
    """:func:`counterfactual_table` of each model, all models searched and measured together.

    A table equals that of its model alone, up to rounding. Models that cannot be stacked, and gated
    ones, whose gates would not be faster together, are measured one by one; so are all if the
    explainer is not our search.

    Args:
        models: of one architecture.
        constraints: for all models, or one each.
    """
    models = list(models)
    if not models:
        raise InputError("There is no model to measure.")
    each = _for_each(constraints, len(models))
    x, y, _ = unpacked(data, each[0])
    rules = [unpacked(data, one)[2] for one in each]
    find = as_find(find)
    tables: dict[int, pd.DataFrame] = {}
    for part in _fleets(models, x, protocol, find):
        # Models of one fleet must share the structure of their rules, not the rules.
        rules_of_part = [rules[i] for i in part]
        alone = [models[i] for i in part]
        if len({constraint_structure(one) for one in rules_of_part}) == 1:
            fleet = stacked(alone, x)
        else:
            fleet = None
        if fleet is not None:
            plugins = _plugins(find, metrics)
            together = stack_constraints(rules_of_part)
            measured = _Measurement(
                alone, x, y, together, protocol, find, plugins, panel, fleet
            )
            tables |= zip(part, measured.tables(), strict=True)
    # Whatever could not be stacked: other architectures, other rules, gates.
    for i in set(range(len(models))) - set(tables):
        tables[i] = counterfactual_table(
            models[i], (x, y), protocol, rules[i], find, metrics, panel
        )
    return [tables[i] for i in range(len(models))]


def _for_each(
    constraints: Constraints | Sequence[Constraints] | None, number: int
) -> Sequence[Constraints | None]:
    """Constraints of each of a number of models."""
    if constraints is None or isinstance(constraints, Constraints):
        return [constraints] * number
    if len(constraints) != number:
        raise InputError(
            f"{len(constraints)} constraints for {number} models: give one for all, or one each."
        )
    return constraints


def _fleets(
    models: Sequence[nn.Module], x: Tensor, protocol: EvaluationProtocol, find: Explains
) -> list[list[int]]:
    """Places of the models to search together, as many as memory allows.

    Gates would not be faster together, so gated models are left out; so are all, if the explainer
    is not our search.
    """
    if isinstance(find, ForeignExplainer):
        return []
    plain = [i for i, model in enumerate(models) if decider(model, x) is model]
    individuals = protocol.num_runs * (protocol.num_individuals or len(x))
    together = max(1, _FLEET_VALUES // max(1, individuals * x[:1].numel()))
    return [
        [i for i in plain if first <= i < first + together]
        for first in range(0, len(models), together)
    ]


def aggregate(individuals: pd.DataFrame, user_metrics: Sequence[str] = ()) -> pd.DataFrame:
    """Means over individuals per run and λ_energy (``member`` and ``explainer``, if there are such
    columns), tidy.

    Columns ``metric, lambda_energy, run, value, num``. NaN and 0 where nothing is valid.

    Args:
        user_metrics: names of metrics of users.
    """
    keys = [
        *(key for key in ("member", "explainer") if key in individuals),
        "lambda_energy",
        "run",
    ]
    accepted = [name for name in individuals if str(name).startswith(ACCEPTANCE)]
    named = dict.fromkeys((*OF_ALL, *OF_VALID, *accepted, *user_metrics))
    metrics = [name for name in named if name in individuals]
    # Means and counts leave out NaN, so invalid counterfactuals do not count where only valid ones
    # do.
    grouped = individuals.groupby(keys, dropna=False)[metrics]
    value, num = (
        part.melt(ignore_index=False, var_name="metric")
        for part in (grouped.mean(), grouped.count())
    )
    table = value.assign(num=num["value"]).reset_index()
    return table[[*keys[:-2], "metric", "lambda_energy", "run", "value", "num"]]


def unpacked(data: Data, constraints: Constraints | None) -> tuple[Tensor, Tensor, Constraints]:
    """Test rows, their classes, and the constraints: those given, the data set's, or a box inferred
    from the rows.
    """
    if isinstance(data, Dataset):
        x, y = ordinary((data.x_test, data.y_test))
        return x, y, constraints if constraints is not None else data.constraints
    if not isinstance(data, tuple) or len(data) != 2:
        raise InputError("data must be a Dataset or a pair (x, y) of tensors.")
    x, y = data
    return x, y, constraints if constraints is not None else Constraints.infer(x)


def stacked(models: Sequence[nn.Module], x: Tensor) -> StackedModel | None:
    """The models as one; ``None`` if they cannot be stacked, or a stack gives other logits on rows
    of x.
    """
    try:
        fleet = StackedModel(models).requires_grad_(False).eval()
        probes = x[:_PROBES]
        together = predict_logits(fleet, probes.expand(len(models), *probes.shape), row_dim=1)
    except (ModelError, InputError, RuntimeError):
        return None
    # Stacking is checked by results, because a module may do anything in its forward.
    alone = torch.stack([predict_logits(model, probes) for model in models])
    if torch.allclose(together, alone, rtol=1e-3, atol=1e-4, equal_nan=True):
        return fleet
    return None


@dataclass(frozen=True, eq=False)
class _Measurement:
    """One model, or a fleet, ``lead`` = ``(members,)``, and how it is measured; columns are ``(...,
    m)``.
    """

    members: Sequence[nn.Module]
    x: Tensor
    y: Tensor
    constraints: Constraints
    protocol: EvaluationProtocol
    find: Find
    metrics: Mapping[str, MetricFunction]
    panel: Panel | None = None
    fleet: StackedModel | None = None

    @property
    def model(self) -> nn.Module:
        if self.fleet is None:
            return self.members[0]
        return self.fleet

    @property
    def lead(self) -> tuple[int, ...]:
        if self.fleet is None:
            return ()
        return (len(self.members),)

    def tables(self) -> list[pd.DataFrame]:
        """One table per member, of the individuals who were searched, all λ_energy one after the
        other.
        """
        # A fleet is never gated.
        if self.lead:
            inner = self.model
        else:
            inner = decider(self.model, self.x)
        logits = self._logits(inner, self.x.expand(*self.lead, *self.x.shape))  # (..., n, k)
        check_labels(logits[0] if self.lead else logits, self.y)
        if self.protocol.langevin_steps:
            samples = self._model_samples(inner, logits.shape[-1])
        else:
            samples = None
        # An explainer that is not our search knows no λ_energy, so it is asked once.
        foreign = isinstance(self.find, ForeignExplainer)
        strengths = enumerate((math.nan,) if foreign else self.protocol.lambda_energy)
        parts = [
            self._columns(inner, logits, samples, setting, strength)
            for setting, strength in strengths
        ]
        columns = {
            name: torch.atleast_2d(torch.cat([part[name] for part in parts], -1).cpu())
            for name in parts[0]
        }
        # Padding and rows that were of their target class leave here, so tables of members may
        # differ in length.
        searched = columns.pop("searched")
        return [
            pd.DataFrame(
                {name: values[member][mask].numpy() for name, values in columns.items()}
            )
            for member, mask in enumerate(searched)
        ]

    def _columns(
        self,
        inner: nn.Module,
        logits: Tensor,
        samples: Tensor | None,
        setting: int,
        lambda_energy: float,
    ) -> dict[str, Tensor]:
        """All individuals of one λ_energy: one search, then every metric of its result."""
        x = self.x
        y = self.y
        protocol = self.protocol
        num_classes = logits.shape[-1]
        run, rows, y_target = (
            part.to(x.device) for part in self._draw(logits.argmax(-1), num_classes, setting)
        )
        generator = ecco(
            protocol.lambda_cost,
            0.0 if math.isnan(lambda_energy) else lambda_energy,
            max_steps=protocol.max_steps,
            decision_threshold=protocol.decision_threshold,
            learning_rate=protocol.learning_rate,
        )
        # One search for all runs: rows do not interact.
        result = self.find(
            self.model, x[rows], y_target, generator, self.constraints, diagnose=False
        )
        factual = logits.argmax(-1).gather(-1, rows)
        # Whether a row already is of the target class is decided by the classifier, not by its
        # gate.
        gated = inner is not self.model
        if gated:
            searched = factual != y_target
        else:
            searched = result.status != int(Status.ALREADY_THERE)
        x_cf, factuals = (
            at_least_single(points).flatten(rows.dim()) for points in (result.x_cf, x[rows])
        )
        rows_of_data = at_least_single(x).flatten(1)
        logits_cf = self._logits(inner, result.x_cf)
        if gated:
            gated_cf = predict_logits(self.model, result.x_cf)
        else:
            gated_cf = logits_cf
        valid = validity(logits_cf, y_target) & searched
        strict = validity_strict(gated_cf, y_target, protocol.decision_threshold) & searched
        # One number per (run, predicted class, target), which are the groups of IP*.
        group = (run * num_classes + factual) * num_classes + y_target
        # Negative numbers are left out.
        group = group.where(valid if protocol.mmd_valid_only else searched, -1)
        of_valid = {
            "implausibility": implausibility_by_class(x_cf, y_target, rows_of_data, y),
            "implausibility_mmd": group_mmd(x_cf, group, y_target, rows_of_data, y, protocol),
            "energy_differential": energy_differential(logits_cf, y_target, logits, y),
            "cost": cost(x_cf, factuals),
            "redundancy": redundancy(x_cf, factuals),
            "sparsity": sparsity(x_cf, factuals, self.constraints).to(x_cf.dtype),
        }
        mature = (result.status == int(Status.CONVERGED)).cpu().double()
        if samples is not None:
            of_valid["unfaithfulness"] = unfaithfulness(x_cf, y_target, samples)
        return {
            "run": run,
            # Of the table, not the device.
            "lambda_energy": torch.full(run.shape, lambda_energy, dtype=torch.float64),
            "row": rows,
            "factual": factual,
            "target": y_target,
            "validity": valid.cpu().double(),
            "validity_strict": strict.cpu().double(),
            # An explainer without steps also gives no reason why its search ended.
            "share_mature": mature.masked_fill(result.num_steps.isnan().cpu(), math.nan),
            "num_steps": result.num_steps,
            # NaN, not dropped: means leave these rows out, and tables keep their shape.
            **{name: values.where(valid, torch.nan) for name, values in of_valid.items()},
            **self._accepted(rows, result.x_cf, y_target, valid),
            **self._plugged(
                x[rows], result.x_cf, y_target, logits_cf, valid, torch.where(searched, run, -1)
            ),
            "searched": searched,
        }

    def _accepted(
        self, rows: Tensor, x_cf: Tensor, y_target: Tensor, valid: Tensor
    ) -> dict[str, Tensor]:
        """What the panel says of valid counterfactuals, NaN of others; each ``(..., m)``."""
        if self.panel is None:
            return {}
        judged = valid.cpu()
        out = {
            name: torch.full(judged.shape, math.nan, dtype=torch.float64)
            for name in self.panel.names
        }
        if judged.any():
            # Judges know neither members nor runs, so all are asked at once.
            verdicts = self.panel.columns(rows[valid], x_cf[valid], y_target[valid])
            for name, values in verdicts.items():
                out[name][judged] = values
        return out

    def _plugged(self, *columns: Tensor) -> dict[str, Tensor]:
        """The metrics of users ``(..., m)``: member by member and run by run, of those who were
        searched (run ≥ 0).
        """
        run = torch.atleast_2d(columns[-1])
        out = {
            name: torch.full(run.shape, math.nan, dtype=torch.float64) for name in self.metrics
        }
        for member, model in enumerate(self.members if self.metrics else ()):
            if self.lead:
                rules = unstack_constraints(self.constraints, member)
            else:
                rules = self.constraints
            of_member = [column[member] if self.lead else column for column in columns[:-1]]
            for one in run[member].unique().tolist():
                mask = run[member] == one
                if one >= 0:
                    x, x_cf, y_target, logits, valid = (column[mask] for column in of_member)
                    measured = Measured(
                        model, x, x_cf, y_target, logits, valid, rules, self.x, self.y
                    )
                    for name, metric in self.metrics.items():
                        out[name][member, mask.cpu()] = values_of(name, metric, measured)
        return {name: values.reshape(columns[-1].shape) for name, values in out.items()}

    def _draw(self, predicted: Tensor, num_classes: int, setting: int) -> Iterator[Tensor]:
        """Run, row and target ``(..., m)`` of the individuals of all models, which predict ``(...,
        n)``.

        Members with fewer individuals are padded with a row whose target is its own class, which is
        never searched.
        """
        predicted = torch.atleast_2d(predicted).cpu()
        # By prediction, members draw different rows and different numbers of them.
        draws = [
            draw_individuals(self.protocol, self.y, one, num_classes, setting)[:3]
            for one in predicted
        ]
        columns = zip(*draws, strict=True)
        run, row, y_target = (
            pad_sequence(list(column), batch_first=True, padding_value=-1) for column in columns
        )
        # The padding is row 0, with its predicted class as target: already there before the first
        # step.
        y_target = torch.where(row < 0, predicted[:, :1], y_target)
        return (
            part.reshape(*self.lead, -1)
            for part in (run.clamp_min(0), row.clamp_min(0), y_target)
        )

    def _model_samples(self, inner: nn.Module, num_classes: int) -> Tensor:
        """Samples of every class from the model's energy ``(..., k, s, d)``."""
        # Chains need a finite box; open sides are taken from the data.
        box = self.constraints.to(self.x).domain.filled(Domain.infer(self.x.flatten(1)))
        y = torch.arange(num_classes, device=self.x.device).expand(*self.lead, num_classes)
        rng = torch.Generator().manual_seed(self.protocol.seed)
        chains = Langevin(steps=self.protocol.langevin_steps)
        return class_samples(inner, y, box, rng, chains, self.x.shape[1:])

    def _logits(self, inner: nn.Module, x: Tensor) -> Tensor:
        # Batches of a fleet hold as many rows of all members together.
        return predict_logits(
            inner, x, max(64, 2**16 // self.lead[0]) if self.lead else 4096, len(self.lead)
        )
