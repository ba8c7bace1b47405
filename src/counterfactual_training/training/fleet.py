"""Many models as one tensor program: Algorithm 1 on ``(members, n, d)``.

With small models nearly all time is overhead per operation. Members do not interact, so search,
objective and backward pass run on all of them at once; each trains as it would alone, up to
rounding.
"""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from counterfactual_training.constraints import Constraints
from counterfactual_training.constraints.stack_constraints import constraint_structure
from counterfactual_training.errors import InputError, InputWarning, from_outside
from counterfactual_training.generators import Generator
from counterfactual_training.generators.stack_generators import compatible, generator_structure
from counterfactual_training.models.stack import StackedModel, UnstackableError, check_stackable
from counterfactual_training.torch_modes import ordinary, with_gradients
from counterfactual_training.training import arguments
from counterfactual_training.training.algorithm import fit
from counterfactual_training.training.callbacks import Callback
from counterfactual_training.training.checkpoint import Checkpoint
from counterfactual_training.training.method import FromRows, Method
from counterfactual_training.training.objective import Objective
from counterfactual_training.training.registry import make_method
from counterfactual_training.training.rows import (
    DrawnRows,
    FetchedRows,
    TrainingRows,
    draw_with_replacement,
    too_rare,
)
from counterfactual_training.training.run import Run, TrainResult, stated
from counterfactual_training.training.train_config import TrainConfig

# Settings that may differ between members; all others change the shape of the work.
_PER_MEMBER = ("learning_rate", "burn_in", "max_bad_updates", "seed")


@dataclass(frozen=True, eq=False)
class Member:
    """One model of a fleet and how it is trained.

    Attributes:
        model: trained in place.
        method: how, as for :func:`train`.
        rows: ``(n,)`` numbers of the rows that it trains on, such as a bootstrap sample; all by
            default. Members of a fleet have equally many.

    Examples:
        >>> import counterfactual_training as ct
        >>> data = ct.load_dataset("moons")
        >>> x, y = data.x_train[:200], data.y_train[:200]
        >>> short = ct.Member(ct.mlp(2, 2), ct.methods.ct_published(epochs=2, max_steps=10))
        >>> long = ct.Member(ct.mlp(2, 2), ct.methods.ct_published(epochs=2, max_steps=50))
        >>> results = ct.Fleet([short, long]).train(x, y)
        >>> results[0].model is short.model, results[1].model is long.model
        (True, True)
    """

    model: nn.Module
    method: Method
    rows: Tensor | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "method", make_method(self.method))  # the class is frozen


def members_of(
    models: Sequence[nn.Module],
    method: Method,
    y: Tensor | None,
    weight: Tensor | None = None,
    labels: Sequence[Any] | None = None,
) -> list[Member]:
    """The members of an ensemble or a bag: each with a seed of its own, as if it trained alone,
    and in a bag with a sample of the rows, of classes y ``(n,)``.

    Args:
        weight: ``(n,)`` of the rows; samples hold some that have one.
        labels: of the classes, for a warning.
    """
    if method.bootstrap and y is not None:
        _warn_of_rare(y, labels)
    first = method.training.seed
    return [
        member_of(model, method.seeded(first + i), y, weight) for i, model in enumerate(models)
    ]


def _warn_of_rare(y: Tensor, labels: Sequence[Any] | None) -> None:
    """Say that all samples share what one row tells of its class, if there is such a class."""
    rare = too_rare(y)
    if rare is None:
        return
    name: Any = rare
    if labels is not None:
        name = repr(labels[rare])
    warnings.warn(
        InputWarning(
            f"Class {name} has one row, which every member of the bag draws: of this class, "
            "their mean says no more than one of them."
        ),
        stacklevel=from_outside(),
    )


def member_of(
    model: nn.Module, method: Method, y: Tensor | None, weight: Tensor | None = None
) -> Member:
    """One network of an ensemble or a bag, whose seed also draws the rows of a bag."""
    rows = None
    if method.bootstrap and y is not None:
        rng = torch.Generator().manual_seed(method.training.seed)
        rows = draw_with_replacement(y, rng, weight)
    return Member(model, replace(method, members=1, bootstrap=False), rows)


def sound_members(results: Sequence[TrainResult]) -> list[int]:
    """Places of those that did not diverge, with a warning about the others; if none is left, of
    those that return numbers at least; or of all.
    """
    everyone = range(len(results))
    sound = [i for i in everyone if not results[i].history.diverged]
    if not sound:
        # Each has said so; the weights of the last sound epochs are what there is.
        return [i for i in everyone if results[i].history.usable] or list(everyone)
    if len(sound) < len(results):
        warnings.warn(
            f"Of {len(results)} members {len(results) - len(sound)} diverged and are left out; "
            "a lower learning_rate would keep them.",
            stacklevel=from_outside(),
        )
    return sound


class Fleet:
    """Models that share architecture, data, batch size and epochs, trained together.

    Generator, constraints, objective, burn-in, learning rate and seed may differ. Each member ends
    as :func:`train` would leave it, up to rounding. A member that diverges stops without affecting
    the others.

    Members whose generators differ in more than numbers (REVISE beside ECCo) train group by group.
    Models that cannot be stacked (running statistics, dropout, hooks), and members with custom
    classes of objective, constraints or generator, train one by one, with a warning. A fleet too
    large for the memory is split.

    Args:
        members: models and their methods.

    Attributes:
        models: those of the members.

    Examples:
        >>> import counterfactual_training as ct
        >>> data = ct.load_dataset("moons")
        >>> x, y = data.x_train[:200], data.y_train[:200]
        >>> methods = [ct.methods.ct_published(epochs=2, seed=seed) for seed in range(5)]
        >>> results = ct.Fleet([ct.Member(ct.mlp(2, 2), own) for own in methods]).train(x, y)
        >>> [len(result.history.records) for result in results]  # in the order of the members
        [2, 2, 2, 2, 2]
    """

    def __init__(self, members: Sequence[Member]) -> None:
        if not members:
            raise InputError("A fleet needs at least one member.")
        first = members[0].method.training
        for i, member in enumerate(members):
            if isinstance(member.model, DistributedDataParallel):
                raise InputError(
                    f"Member {i} is distributed over processes; give ct.train one such model at "
                    "a time."
                )
            if member.method.members > 1:
                raise InputError(
                    f"Member {i} is an ensemble: {member.method.name!r} trains "
                    f"{member.method.members} networks. Give ct.train one at a time, or state "
                    "members=1 for one network on all rows."
                )
            for name, mine in vars(first).items():
                its = getattr(member.method.training, name)
                if mine != its and name not in _PER_MEMBER:
                    raise InputError(
                        f"Members of a fleet must share {name}: member 0 has {mine!r}, member "
                        f"{i} {its!r}. "
                        "Train them as two fleets."
                    )
        self.members = list(members)
        self.models = ordinary([member.model for member in members])

    @with_gradients
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
    ) -> list[TrainResult]:
        """Train all members, in place; their results in the order of the members.

        Args:
            x: ``(n, *features)`` training rows of all members, ``(members, n, *features)`` with own
                rows for each, or as for :func:`train`.
            y: ``(n,)`` or ``(members, n)`` class indices.
            validation: rows and classes, in either form, whose loss and accuracy are logged every
                epoch.
            sample_weight: as for :func:`train`.
            class_weight: as for :func:`train`.
            callbacks: called for one group of members after the other.
            checkpoint: a file to save to while training, and to resume from if it exists; members
                that train in several groups have one for each group, beside this path.
            progress: show a status line; by default on a terminal.
        """
        values = {member.method.values for member in self.members}
        if len(values) > 1:
            raise InputError(
                "A fleet trains classifiers or regressions, not both: make two fleets."
            )
        data = arguments.training_rows(
            self.models, x, y, sample_weight, class_weight, values.pop()
        )
        validation_rows = arguments.validation_rows(self.models, validation, data)
        data = self._drawn(data)
        methods = [
            arguments.with_constraints(member, data, i)
            for i, member in enumerate(_ready([member.method for member in self.members], data))
        ]
        listeners = arguments.listeners(callbacks, methods, progress)

        def train_stack(group: list[int]) -> dict[int, TrainResult]:
            models = [self.models[i] for i in group]
            group_methods = [methods[i] for i in group]
            # A lone member's rows have no leading dimension.
            whose = group if len(group) > 1 else group[0]
            rows = (
                data.for_members(whose),
                validation_rows and validation_rows.for_members(whose),
            )
            run = Run(models, group_methods, *rows, group, callbacks=listeners)
            saver = None
            if checkpoint is not None:
                # Groups that train one after the other have a file each.
                saver = Checkpoint(checkpoint, run, shared=len(group) < len(methods))
            fit(run, saver)
            return dict(zip(group, run.results(), strict=True))

        results: dict[int, TrainResult] = {}
        free = free_memory(data.y.device)
        each = memory_per_member(
            self.models[0], data.num_features, data.num_rows, methods[0].training
        )
        # At once, with memory to spare.
        most = len(methods) if free is None else max(1, int(0.6 * free / each))
        for group in self._groups(methods, data):
            results |= _in_halves(train_stack, group, most)
        return [results[i] for i in range(len(methods))]

    def _drawn(self, data: TrainingRows) -> TrainingRows:
        """With the rows of every member, if they state some."""
        if all(member.rows is None for member in self.members):
            return data
        if data.separate or isinstance(data, FetchedRows):
            raise InputError(
                "Members choose among rows that are in memory and that all share; give x (n, d)."
            )
        everything = torch.arange(data.num_rows)
        places = [everything if one.rows is None else one.rows for one in self.members]
        counts = sorted({len(rows) for rows in places})
        if len(counts) > 1:
            raise InputError(
                f"Members of a fleet train on equally many rows, got {counts}; without rows of "
                "its own, a member trains on all."
            )
        together = torch.stack(places)
        if int(together.min()) < 0 or int(together.max()) >= data.num_rows:
            raise InputError(f"rows of a member lie between 0 and {data.num_rows - 1}.")
        return DrawnRows(data, together)

    def _groups(self, methods: Sequence[Method], data: TrainingRows) -> list[list[int]]:
        """Members that train as one stack, because they differ in numbers only."""
        alone = everyone = list(range(len(methods)))
        if len(everyone) > 1:
            try:
                check_stackable(self.models)
                _check_stacked(self.models, data)
                alone = _with_custom_code(methods)
            except UnstackableError as error:
                warnings.warn(
                    f"The fleet is trained one by one: {error}", stacklevel=from_outside()
                )
        for i in alone:
            arguments.check_modes(self.models[i], methods[i], data)
        kinds = [generator_structure(method.searcher) for method in methods]
        rules = [
            (constraint_structure(stated(method)), *_loss_structure(method))
            for method in methods
        ]
        groups: list[list[int]] = []
        # Generators with the most energies first: then a group accepts all that are compatible with
        # its first member.
        for i in sorted(set(everyone) - set(alone), key=lambda i: (-len(kinds[i][3]), i)):
            for group in groups:
                if rules[i] == rules[group[0]] and compatible(kinds[i], kinds[group[0]]):
                    group.append(i)
                    break
            else:
                groups.append([i])
        return [*sorted(sorted(group) for group in groups), *([i] for i in alone)]


def _in_halves(
    train: Callable[[list[int]], dict[int, TrainResult]], group: list[int], most: int
) -> dict[int, TrainResult]:
    """Train one group; in halves, if the memory does not suffice."""
    if len(group) <= most:
        try:
            return train(group)
        except (MemoryError, torch.OutOfMemoryError):
            if len(group) == 1:
                raise
    half = len(group) // 2
    warnings.warn(
        f"No memory for {len(group)} members at once: training {half} at a time.",
        stacklevel=from_outside(),
    )
    return _in_halves(train, group[:half], most) | _in_halves(train, group[half:], most)


def _ready(methods: Sequence[Method], data: TrainingRows) -> list[Method]:
    """With generators that learn from the rows of their members, if they are of this kind."""
    learned: dict[tuple[int, int], Method] = {}
    ready = []
    for i, method in enumerate(methods):
        if isinstance(method.generator, FromRows):
            # Members that share recipe and rows share what is learned.
            key = (id(method.generator), i if data.separate else 0)
            if key not in learned:
                rows = data.for_members(i)
                if isinstance(rows, FetchedRows):
                    learned[key] = method.with_rows(None)
                else:
                    learned[key] = method.with_rows(rows.x, rows.y)
            ready.append(replace(method, generator=learned[key].generator))
        else:
            ready.append(method)
    return ready


def _loss_structure(method: Method) -> tuple[object, ...]:
    """Equal for members that one loss can train: of one method, from the same epoch on."""
    if method.loss is None:
        return ()
    return (id(method.loss), method.training.burn_in_epochs)


def _with_custom_code(methods: Sequence[Method]) -> list[int]:
    """Members with custom classes, which a stack would replace by plain ones."""
    members = []
    for i, method in enumerate(methods):
        parts = (
            (method.objective, Objective),
            (method.constraints, Constraints),
            (method.generator, Generator),
        )
        custom = [type(part).__name__ for part, plain in parts if type(part) is not plain]
        if custom:
            members.append(i)
            text = (
                f"Member {i} is trained alone: {custom[0]} is a custom class and cannot be "
                "stacked."
            )
            warnings.warn(text, stacklevel=from_outside())
    return members


def _check_stacked(models: Sequence[nn.Module], data: TrainingRows) -> None:
    """Raise unless the stack gives the logits of its models, in training and eval mode."""
    some = [data.for_members(i).first(16)[0] for i in range(len(models))]
    try:
        clones = copy.deepcopy(list(models))  # a forward pass may change what a model holds
    except Exception as error:  # what a module of somebody else raises
        raise UnstackableError(
            f"{type(models[0]).__name__} cannot be copied ({error})."
        ) from error
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        for training in (True, False):
            stacked = StackedModel(clones).train(training)
            try:
                together = stacked(torch.stack(some))
            except RuntimeError as error:
                reason = str(error).splitlines()[0]
                raise UnstackableError(
                    f"the models cannot run side by side ({reason})."
                ) from error
            for i, clone in enumerate(clones):
                alone = (clone if training and clone.training else clone.train(training))(
                    some[i]
                )
                # Which side of overflow a sum ends on depends on its order.
                if not bool(torch.isfinite(alone).all()):
                    continue
                if alone.dtype.itemsize < 8:
                    slack = 1e-3
                else:
                    slack = 1e-8
                if not torch.allclose(
                    together[i], alone, rtol=slack, atol=slack * (1 + float(alone.abs().max()))
                ):
                    raise UnstackableError(
                        f"member {i} gives other logits in a stack than alone."
                    )


def memory_per_member(
    model: nn.Module, num_features: int, num_rows: int, config: TrainConfig
) -> int:
    """An upper estimate of the bytes that a member adds at its peak.

    Weights with the moments of Adam, gradient and best copy; the counterfactuals of an epoch
    (factual, mature, nascent, positive, and the search's own copies); the activations of one
    mini-batch, forward and backward; all training rows with their classes, where every member has
    them in an order of its own.
    """
    parameters = sum(p.numel() for p in model.parameters())
    # Of trees, embeddings or implicit members, all leading dimensions together are the units of a
    # layer.
    units = (
        (max(p.shape), p.numel() // p.shape[-1])
        for p in model.parameters()
        if p.dim() > 1 and p.numel()
    )
    widest = max((size for sizes in units for size in sizes), default=1)
    batches = max(1, num_rows // config.batch_size)
    batch = config.batch_size + 3 * (config.num_counterfactuals // batches + 1)
    values = (
        6 * parameters
        + 12 * config.num_counterfactuals * num_features
        + 8 * batch * (num_features + 2 * widest)
    )
    if config.shuffle:
        values += num_rows * (num_features + 2)
    return 4 * values  # bytes of a float32


def free_memory(device: torch.device) -> int | None:
    """Free bytes; ``None`` if unknown."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    limits = [_container()]
    with contextlib.suppress(OSError, LookupError, ValueError):  # of the machine
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        limits.append(int(lines["MemAvailable"].split()[0]) * 1024)
    # Of this process, if `ulimit -v` limits it.
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        if limit != resource.RLIM_INFINITY:
            limits += [max(limit - pages * resource.getpagesize(), 0)]
    return min((free for free in limits if free is not None), default=None)


def _container(folder: Path = Path("/sys/fs/cgroup")) -> int | None:
    """What the limit of a container leaves; ``None`` without one."""
    try:
        free_bytes = int((folder / "memory.max").read_text()) - int(
            (folder / "memory.current").read_text()
        )
    except (OSError, ValueError):
        return None
    # The page cache counts as used, but is freed on demand.
    with contextlib.suppress(OSError, ValueError):
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        free_bytes += int(stat.get("inactive_file", 0))
    return max(free_bytes, 0)
