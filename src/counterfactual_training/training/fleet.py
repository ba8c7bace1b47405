"""Many models as one tensor program: Algorithm 1 on ``(members, n, d)``.

With small models nearly all time is overhead per operation. Members do not interact, so search, objective and backward
run on all of them at once, and each trains as it would alone, up to rounding.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from counterfactual_training.allocator import keeping_memory
from counterfactual_training.constraints import Constraints
from counterfactual_training.constraints.stacking import structure as constraint_structure
from counterfactual_training.errors import InputError
from counterfactual_training.models.stack import StackedModel, UnstackableError, check_stackable
from counterfactual_training.search import Generator
from counterfactual_training.search.stacking import compatible
from counterfactual_training.search.stacking import structure as generator_structure
from counterfactual_training.training import arguments
from counterfactual_training.training.budget import budgets
from counterfactual_training.training.callbacks import Callback, Progress
from counterfactual_training.training.checkpoint import Checkpoint
from counterfactual_training.training.distributed import unwrapped
from counterfactual_training.training.loop import fit
from counterfactual_training.training.memory import free_memory, memory_per_member
from counterfactual_training.training.objective import Objective
from counterfactual_training.training.rows import Rows
from counterfactual_training.training.run import Run, TrainResult, stated
from counterfactual_training.training.setting import Setting

# In what the configs of a fleet's members may differ; the rest decides the shape of the work.
_OWN = ("learning_rate", "burn_in", "max_bad_updates", "seed")


@dataclass(frozen=True, eq=False)
class Member:
    """One model of a fleet and how it is trained."""

    model: nn.Module
    setting: Setting = field(default_factory=Setting)


class Fleet:
    """Models that share architecture, data, batch size and epochs, trained together.

    Generator, constraints, objective, burn-in, learning rate and seed may differ per member; each ends up as
    :func:`train` would have left it alone, up to rounding. A member that diverges stops; the others do not notice.

    Members whose generators differ in more than numbers (REVISE beside ECCo) train one group after the other. Models
    that cannot be stacked (running statistics, dropout, hooks), and members with an objective, constraints or generator
    of a class of their own, train one by one, with a warning that says why. A fleet too large for the memory is split.
    """

    def __init__(self, members: Sequence[Member]) -> None:
        if not members:
            raise InputError("A fleet needs at least one member.")
        first = members[0].setting.config
        for i, member in enumerate(members):
            if unwrapped(member.model) is not member.model:
                raise InputError(f"Member {i} is distributed over processes; give ct.train one such model at a time.")
            for name, mine in vars(first).items():
                its = getattr(member.setting.config, name)
                if mine != its and name not in _OWN:
                    raise InputError(
                        f"Members of a fleet must share {name}: member 0 has {mine!r}, member {i} {its!r}. "
                        "Train them as two fleets."
                    )
        self.members = list(members)
        self.models = [member.model for member in members]

    def train(
        self,
        x: arguments.Source,
        y: Tensor | None = None,
        *,
        validation: arguments.Validation | None = None,
        sample_weight: Tensor | None = None,
        class_weight: arguments.ClassWeight | None = None,
        callbacks: Sequence[Callback] = (),
        checkpoint: str | Path | None = None,
        progress: bool | None = None,
        keep_memory: bool = True,
    ) -> list[TrainResult]:
        """Train all members, in place; their results in the order of the members.

        Args:
            x: ``(n, *features)`` training rows of all members, or ``(members, n, *features)``, own rows for each; or as
                for :func:`train`.
            y: ``(n,)`` or ``(members, n)`` class indices.
            validation: rows and classes, in either form, whose loss and accuracy are logged every epoch.
            sample_weight, class_weight: what rows count in class loss and adversarial loss, as for :func:`train`.
            callbacks: listeners; they hear of one group of members after the other.
            checkpoint: files beside this path are saved to while training, and resumed from if they exist.
            progress: show a bar; by default on a terminal.
            keep_memory: keep freed memory until training is over, which saves page faults (:mod:`allocator`).
        """
        count = len(self.members)
        data = arguments.training_rows(self.models[0], x, y, count, sample_weight, class_weight)
        held = arguments.validation_rows(self.models[0], validation, data, count)
        for i, model in enumerate(self.models):
            for rows in (data, held):
                if rows is not None:
                    arguments.try_model(model, rows.alone(i), data.num_classes)
        settings = [arguments.with_constraints(own.setting, data, i) for i, own in enumerate(self.members)]
        listeners = [*budgets(settings), *arguments.checked_callbacks(callbacks), Progress(progress)]
        results: dict[int, TrainResult] = {}
        most = self._most_at_once(data)

        def train_stack(group: list[int]) -> None:
            models, own = [self.models[i] for i in group], [settings[i] for i in group]
            run = Run(models, own, _rows_of(data, group), held and _rows_of(held, group), group, callbacks=listeners)
            fit(run, None if checkpoint is None else Checkpoint(checkpoint, run, shared=True))
            results.update(zip(group, run.results(), strict=True))

        def train_together(group: list[int]) -> None:
            """Train one group; in halves, where the memory does not suffice."""
            if len(group) <= most:
                try:
                    return train_stack(group)
                except (MemoryError, torch.OutOfMemoryError):
                    if len(group) == 1:
                        raise
            half = len(group) // 2
            warnings.warn(f"No memory for {len(group)} members at once: training {half} at a time.", stacklevel=3)
            train_together(group[:half])
            train_together(group[half:])

        with keeping_memory(keep_memory):
            for group in self._groups(settings, data):
                train_together(group)
        return [results[i] for i in range(count)]

    def _most_at_once(self, data: Rows) -> int:
        """Members that the free memory holds, with some to spare."""
        config, free = self.members[0].setting.config, free_memory(data.y.device)
        each = memory_per_member(self.models[0], data.num_features, data.num_rows, config)
        return len(self.members) if free is None else max(1, int(0.6 * free / each))

    def _groups(self, settings: Sequence[Setting], data: Rows) -> list[list[int]]:
        """Members that train as one stack: all that differ in numbers only; each alone, if they cannot be stacked."""
        alone = everyone = list(range(len(settings)))
        if len(everyone) > 1:
            try:
                check_stackable(self.models)
                _check_stacked(self.models, data)
                alone = _with_own_code(settings)
            except UnstackableError as error:
                warnings.warn(f"The fleet is trained one by one: {error}", stacklevel=3)
        for i in alone:
            arguments.check_modes(self.models[i], settings[i], data)
        kinds = [generator_structure(setting.generator) for setting in settings]
        rules = [constraint_structure(stated(setting)) for setting in settings]
        groups: list[list[int]] = []
        # Whoever has the most energies comes first, so that a group is open to all that fit its first member.
        for i in sorted(set(everyone) - set(alone), key=lambda i: (-len(kinds[i][3]), i)):
            for group in groups:
                if rules[i] == rules[group[0]] and compatible(kinds[i], kinds[group[0]]):
                    group.append(i)
                    break
            else:
                groups.append([i])
        return [*sorted(sorted(group) for group in groups), *([i] for i in alone)]


def _with_own_code(settings: Sequence[Setting]) -> list[int]:
    """Members with parts of a user's own class, which a stack would rebuild as plain ones."""
    found = []
    for i, setting in enumerate(settings):
        parts = ((setting.objective, Objective), (setting.constraints, Constraints), (setting.generator, Generator))
        own = [type(part).__name__ for part, plain in parts if type(part) is not plain]
        if own:
            found.append(i)
            text = f"Member {i} is trained alone: {own[0]} is a class of its own and cannot be stacked."
            warnings.warn(text, stacklevel=4)
    return found


def _check_stacked(models: Sequence[nn.Module], data: Rows) -> None:
    """Side by side the models must give what each gives alone, in training as in use."""
    some = [data.alone(i).first(16)[0] for i in range(len(models))]
    twins = copy.deepcopy(list(models))  # a forward pass may change what a model holds
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        for training in (True, False):
            stacked = StackedModel(twins).train(training)
            try:
                together = stacked(torch.stack(some))
            except RuntimeError as error:
                reason = str(error).splitlines()[0]
                raise UnstackableError(f"the models cannot run side by side ({reason}).") from error
            for i, twin in enumerate(twins):
                alone = (twin if training and twin.training else twin.train(training))(some[i])
                slack = 1e-3 if alone.dtype.itemsize < 8 else 1e-8
                if not torch.allclose(together[i], alone, rtol=slack, atol=slack * (1 + float(alone.abs().max()))):
                    raise UnstackableError(f"member {i} gives other logits in a stack than alone.")


def _rows_of(rows: Rows, group: list[int]) -> Rows:
    """The rows of a group; a member that trains alone has no leading dimension."""
    return rows.of(group) if len(group) > 1 else rows.alone(group[0])
