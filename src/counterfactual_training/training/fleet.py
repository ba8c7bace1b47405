"""Many models as one tensor program: Algorithm 1 on ``(members, n, d)``.

With small models nearly all time is overhead per operation. Members do not interact, so search, objective and backward
run on all of them at once, and each trains as it would alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from counterfactual_training.constraints import Constraints
from counterfactual_training.constraints.stacking import structure as constraint_structure
from counterfactual_training.errors import InputError, ModelError
from counterfactual_training.models.stack import check_stackable
from counterfactual_training.search import evaluating
from counterfactual_training.search.checks import check_inputs, first_logits
from counterfactual_training.search.stacking import compatible
from counterfactual_training.search.stacking import structure as generator_structure
from counterfactual_training.training.explanations import TrainingData
from counterfactual_training.training.fleet_loop import OnEpoch, train_group
from counterfactual_training.training.fleet_run import LoneRun, Member
from counterfactual_training.training.loop import TrainResult, train
from counterfactual_training.training.memory import free_memory, is_out_of_memory, memory_per_member

# What the members of a fleet have in common, because it decides the shape of the work.
SHARED = (
    "epochs", "batch_size", "num_counterfactuals", "refresh", "shuffle", "target_rule", "adversarial_label", "immature",
    "threads",
)  # fmt: skip


class Fleet:
    """Models that share architecture, data, batch size and epochs, trained together.

    Generator, constraints, objective, burn-in, learning rate and seed may differ per member; each ends up as
    :func:`train` would have left it alone. A member whose numbers leave for infinity stops; the others do not notice.

    Members whose generators differ in more than numbers (REVISE beside ECCo) train one group after the other. Models
    that cannot be stacked (running statistics, dropout) are trained one by one, with a warning that says why. A fleet
    too large for the memory is split.
    """

    def __init__(self, members: Sequence[Member]) -> None:
        if not members:
            raise InputError("A fleet needs at least one member.")
        first = members[0].config
        for i, member in enumerate(members):
            for name in SHARED:
                mine, its = getattr(first, name), getattr(member.config, name)
                if mine != its:
                    raise InputError(
                        f"Members of a fleet must share {name}: member 0 has {mine!r}, member {i} {its!r}. "
                        "Train them as two fleets."
                    )
        self.members = list(members)

    def train(
        self,
        x: Tensor,
        y: Tensor,
        *,
        validation: tuple[Tensor, Tensor] | None = None,
        checkpoint: str | Path | None = None,
        on_epoch: OnEpoch | None = None,
        progress: bool | None = None,
    ) -> list[TrainResult]:
        """Train all members, in place; their results in the order of the members.

        Args:
            x: ``(n, *features)`` training rows of all members, or ``(members, n, *features)``, own rows for each.
            y: ``(n,)`` or ``(members, n)`` class indices.
            validation: rows and classes, in either form, whose accuracy is logged every epoch.
            checkpoint: file to save to while training, and to resume from if it exists.
            on_epoch: called after every epoch of a group of members; may end members (:meth:`FleetRun.stop`).
            progress: show a bar; by default on a terminal.
        """
        reason = _unstackable(self.members)
        results: dict[int, TrainResult] = {}
        if reason is not None:
            if len(self.members) > 1:
                warnings.warn(f"The fleet is trained one by one: {reason}", stacklevel=2)
            for i in range(len(self.members)):
                results[i] = self._alone(i, x, y, validation, checkpoint, on_epoch, progress)
            return [results[i] for i in range(len(self.members))]
        data, held = _checked(self.members, x, y, validation)
        members = [_with_constraints(member, data, i) for i, member in enumerate(self.members)]
        for group in _groups(members):
            for part in _fitting(group, members, data):
                self._group(part, members, data, held, checkpoint, on_epoch, progress, results)
        return [results[i] for i in range(len(members))]

    def _group(
        self,
        group: list[int],
        members: list[Member],
        data: TrainingData,
        validation: tuple[Tensor, Tensor] | None,
        checkpoint: str | Path | None,
        on_epoch: OnEpoch | None,
        progress: bool | None,
        results: dict[int, TrainResult],
    ) -> None:
        """Train one group; in halves, where the memory does not suffice."""
        try:
            run = train_group(group, members, data, validation, checkpoint, on_epoch, progress)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error) or len(group) == 1:
                raise
            half = len(group) // 2
            warnings.warn(f"No memory for {len(group)} members at once: training {half} at a time.", stacklevel=3)
            for part in (group[:half], group[half:]):
                self._group(part, members, data, validation, checkpoint, on_epoch, progress, results)
            return
        for i, place in enumerate(group):
            model = members[place].model
            model.load_state_dict(run.model(i).state_dict())
            results[place] = TrainResult(model.eval(), run.histories[i])

    def _alone(
        self,
        i: int,
        x: Tensor,
        y: Tensor,
        validation: tuple[Tensor, Tensor] | None,
        checkpoint: str | Path | None,
        on_epoch: OnEpoch | None,
        progress: bool | None,
    ) -> TrainResult:
        member = self.members[i]
        own = y.dim() > 1
        if validation is not None and validation[1].dim() > 1:
            validation = (validation[0][i], validation[1][i])
        path = None if checkpoint is None else Path(checkpoint).with_suffix(f".{i}{Path(checkpoint).suffix}")
        return train(
            member.model,
            x[i] if own else x,
            y[i] if own else y,
            member.generator,
            member.constraints,
            member.objective,
            member.config,
            validation=validation,
            callbacks=[] if on_epoch is None else [LoneRun(i, on_epoch)],
            checkpoint=path,
            progress=progress,
        )


def _unstackable(members: Sequence[Member]) -> str | None:
    try:
        check_stackable([member.model for member in members])
    except ModelError as error:
        if "share parameters" in str(error) or "same architecture" in str(error):
            raise
        return str(error)
    return None


def _checked(
    members: Sequence[Member], x: Tensor, y: Tensor, validation: tuple[Tensor, Tensor] | None
) -> tuple[TrainingData, tuple[Tensor, Tensor] | None]:
    """Training and validation rows that fit the models, or an error that says what does not."""
    model = members[0].model
    check_inputs(model, x, y)
    if y.dim() > 2 or y.numel() == 0 or (y.dim() == 2 and len(y) != len(members)):
        raise InputError(
            f"A fleet of {len(members)} needs y (n,) or ({len(members)}, n) with rows, got shape {tuple(y.shape)}."
        )
    num_classes = int(y.max()) + 1
    for own in y.reshape(-1, y.shape[-1]):
        found = own.unique().tolist()
        if num_classes < 2 or found != list(range(num_classes)):
            raise InputError(f"y must hold every class index 0..k−1 and at least two classes; found {found[:20]}.")
    for i, member in enumerate(members):
        rows, classes = (x[i], y[i]) if y.dim() > 1 else (x, y)
        with evaluating(member.model), torch.no_grad():
            first_logits(member.model, rows[:64], classes[:64], num_classes=num_classes)
    if validation is not None:
        x_val, y_val = validation[0].to(x.device), validation[1].to(y.device)
        check_inputs(model, x_val, y_val)
        if y_val.dim() > 2 or (y_val.dim() == 2 and len(y_val) != len(members)):
            raise InputError(f"Validation rows are given for {len(y_val)} members of a fleet of {len(members)}.")
        for i, member in enumerate(members):
            rows, classes = (x_val[i], y_val[i]) if y_val.dim() > 1 else (x_val, y_val)
            with evaluating(member.model), torch.no_grad():
                first_logits(member.model, rows[:64], classes[:64], num_classes=num_classes)
        if y_val.numel() and not 0 <= int(y_val.min()) <= int(y_val.max()) < num_classes:
            raise InputError(f"Validation classes must lie in 0..{num_classes - 1}, got {y_val.unique().tolist()}.")
        validation = (x_val, y_val)
    return TrainingData.of(x, y.long(), num_classes), validation


def _with_constraints(member: Member, data: TrainingData, i: int) -> Member:
    rows = data.x[i] if data.y.dim() > 1 else data.x
    constraints = member.constraints if member.constraints is not None else Constraints.infer(rows)
    constraints = constraints.to(rows)
    constraints.check_factuals(rows.flatten(1))
    return replace(member, setting=replace(member.setting, constraints=constraints))


def _groups(members: Sequence[Member]) -> list[list[int]]:
    """Members whose generators and constraints differ in numbers only, together."""
    groups: list[tuple[Any, str, list[int]]] = []
    for i, member in enumerate(members):
        kind = generator_structure(member.generator)
        rules = "" if member.constraints is None else constraint_structure(member.constraints)
        for place, (other, others_rules, group) in enumerate(groups):
            if rules == others_rules and compatible(kind, other):
                group.append(i)
                richer = kind if len(kind[3]) > len(other[3]) else other
                groups[place] = (richer, rules, group)
                break
        else:
            groups.append((kind, rules, [i]))
    return [group for _, _, group in groups]


def _fitting(group: list[int], members: Sequence[Member], data: TrainingData) -> list[list[int]]:
    """The group in parts that the free memory holds."""
    member = members[group[0]]
    each = memory_per_member(member.model, data.x.shape[data.y.dim() :].numel(), data.num_rows, member.config)
    free = free_memory(data.x.device)
    most = len(group) if free is None else max(1, int(0.6 * free / each))
    if most >= len(group):
        return [group]
    count = -(-len(group) // most)
    size = -(-len(group) // count)
    warnings.warn(f"No memory for {len(group)} members at once: training {size} at a time.", stacklevel=4)
    return [group[start : start + size] for start in range(0, len(group), size)]
