"""Callbacks: called at every update and epoch, alike for one model and for a fleet."""

from __future__ import annotations

import copy
import math
import time
import warnings
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from counterfactual_training.core.precision import at_least_single
from counterfactual_training.errors import FileError, InputError, check_name
from counterfactual_training.persistence import flatten_state
from counterfactual_training.progress import StatusLine
from counterfactual_training.text import duration
from counterfactual_training.torch_internals import mark_stepped

if TYPE_CHECKING:
    from counterfactual_training.training.run import Run


class Callback:
    """Base class; override the events you need.

    Return state that lives longer than an epoch from ``state_dict``, under the names of its
    attributes, so that checkpoints hold it. Cut tensors with the leading dimension of
    ``run.parameters`` in ``keep``, when stopped members leave. A fleet may train its members in
    several runs, one after the other, with the same callbacks.

    Examples:
        >>> import counterfactual_training as ct
        >>> data = ct.load_dataset("moons")
        >>> x, y = data.x_train[:200], data.y_train[:200]
        >>> class Tell(ct.Callback):
        ...     def on_epoch_end(self, run):
        ...         skipped = run.history.last("skipped")
        ...         print(f"epoch {run.epoch} of {run.epochs}, {skipped:.0f} updates skipped")
        >>> method = ct.methods.ct_published(epochs=2)
        >>> result = ct.train(ct.mlp(2, 2), x, y, method, callbacks=[Tell()])
        epoch 1 of 2, 0 updates skipped
        epoch 2 of 2, 0 updates skipped
    """

    def on_train_begin(self, run: Run) -> None:
        """Before the first epoch of a run, or of a resumed one: reset all state."""

    def before_step(self, run: Run) -> None:
        """Before every update; ``run.gradients``, also as ``.grad``, may be changed.

        The attributes of such a callback are part of a checkpoint's fingerprint.
        """

    def on_batch_end(self, run: Run) -> None:
        """After every update."""

    def on_epoch_end(self, run: Run) -> None:
        """After every epoch; its record is the last of ``run.histories[i].records``."""

    def on_stop(self, run: Run, i: int) -> None:
        """Before ``run.stop`` ends member i with the weights it has now."""

    def on_train_end(self, run: Run) -> None:
        """After the last epoch; :meth:`Run.replace` may still set other weights."""

    def keep(self, rows: Tensor) -> None:
        """A fleet continues with these rows of its stack only."""

    def state_dict(self) -> dict[str, Any]:
        """Tensors, numbers, strings, lists and dicts."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state, after ``on_train_begin``; by default as attributes."""
        vars(self).update(state)


def overrides(callback: Callback, name: str) -> bool:
    """Whether a callback overrides this method."""
    return getattr(type(callback), name) is not getattr(Callback, name)


_SHOWN = {
    "loss": "loss",
    "accuracy": "acc",
    "validation_accuracy": "val",
    "share_mature": "mature",
}


_PRINTED = ("loss", "validation_loss")


class EpochProgress(Callback):
    """A status line with the epochs done, the time left and, for one model, loss and accuracy.

    Args:
        show: by default, only where standard error is a terminal.
    """

    def __init__(self, show: bool | None = None) -> None:
        self.status = StatusLine(live=show)

    def on_train_begin(self, run: Run) -> None:
        self.first = run.epoch
        self.started = time.monotonic()

    def on_epoch_end(self, run: Run) -> None:
        if not self.status.live or not run.speaks:
            return
        seconds = (
            (time.monotonic() - self.started)
            / (run.epoch - self.first)
            * (run.epochs - run.epoch)
        )
        if len(run.members) == 1:
            name = "training"
        else:
            name = f"fleet of {len(run.members)}"
        notes = [f"{name}: epoch {run.epoch}/{run.epochs}", f"{duration(seconds)} left"]
        if len(run.members) == 1:
            record = run.history.records[-1]
            notes += [
                f"{label} {record[k]:.3f}"
                for k, label in _SHOWN.items()
                if not math.isnan(record[k])
            ]
        self.status.show(", ".join(notes))

    def on_train_end(self, run: Run) -> None:
        self.status.close()


class PrintLoss(Callback):
    """A line on standard output per epoch, as scikit-learn's networks print with ``verbose``."""

    def on_epoch_end(self, run: Run) -> None:
        for i in run.running if run.speaks else ():
            record = run.histories[i].records[-1]
            if len(run.members) == 1:
                who = ""
            else:
                who = f"Model {run.members[i]}, "
            parts = [
                f"{k.replace('_', ' ')} = {record[k]:.8f}"
                for k in _PRINTED
                if not math.isnan(record[k])
            ]
            print(f"{who}Epoch {record['epoch']}, {', '.join(parts)}")


class Schedule(Callback):
    """A learning-rate scheduler of torch, or one like it; in a fleet, one per member.

    Args:
        make: makes the scheduler of an optimizer: ``lambda optimizer: OneCycleLR(optimizer, 0.1,
            total_steps=1000)``.
        per: step after every ``"epoch"`` or every ``"update"``.
        metric: column of the history for ``ReduceLROnPlateau``, which steps after every epoch.

    Attributes:
        schedulers: one per row of the stack, once training has begun.

    Examples:
        >>> import torch
        >>> import counterfactual_training as ct
        >>> data = ct.load_dataset("moons")
        >>> x, y = data.x_train[:200], data.y_train[:200]
        >>> schedule = ct.Schedule(
        ...     lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        ... )
        >>> method = ct.methods.ct_published(epochs=3, learning_rate=0.08)
        >>> result = ct.train(ct.mlp(2, 2), x, y, method, callbacks=[schedule])
        >>> schedule.schedulers[0].get_last_lr()
        [0.01]
    """

    def __init__(
        self,
        make: Callable[[Optimizer], LRScheduler],
        per: Literal["epoch", "update"] = "epoch",
        metric: str = "loss",
    ) -> None:
        check_name("value of per:", per, ("epoch", "update"))
        self.make = make
        self.per = per
        self.metric = metric
        self.schedulers = list[LRScheduler]()

    def on_train_begin(self, run: Run) -> None:
        """Make the schedulers."""
        self.schedulers = [self.make(optimizer) for optimizer in _optimizers(run)]

    def on_batch_end(self, run: Run) -> None:
        """Step, if the schedule is per update."""
        self._step(run, "update")

    def on_epoch_end(self, run: Run) -> None:
        """Step, if the schedule is per epoch."""
        self._step(run, "epoch")

    def _step(self, run: Run, after: str) -> None:
        for i, scheduler in zip(run.slots, self.schedulers, strict=True):
            if isinstance(scheduler, ReduceLROnPlateau):
                if after == "epoch":
                    scheduler.step(column(run, i, self.metric))
            elif after == self.per:
                scheduler.step()

    def state_dict(self) -> dict[str, Any]:
        """The states of the schedulers, without what cannot be saved."""
        states = [scheduler.state_dict() for scheduler in self.schedulers]
        lost = [
            k
            for state in states[:1]
            for k, v in state.items()
            if not _can_be_saved(v) and not _of_functions(v)
        ]
        if lost:
            warnings.warn(
                f"{type(self.schedulers[0]).__name__} holds {', '.join(lost)}, which cannot be "
                "saved: "
                "a resumed run may continue at another rate.",
                stacklevel=2,
            )
        return {
            "schedulers": [
                {k: v for k, v in state.items() if _can_be_saved(v)} for state in states
            ]
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the states of the schedulers."""
        for scheduler, saved in zip(self.schedulers, state["schedulers"], strict=True):
            # What could not be saved, such as functions, stays as it has just been made.
            scheduler.load_state_dict({**scheduler.state_dict(), **saved})

    def keep(self, rows: Tensor) -> None:
        """Drop the schedulers of members that have left."""
        self.schedulers = [self.schedulers[slot] for slot in rows.tolist()]


def _optimizers(run: Run) -> list[Optimizer]:
    """The optimizer; in a fleet, a view per member that shares its parameter group."""
    if not run.lead:
        return [run.optimizer]
    views = [copy.copy(run.optimizer) for _ in run.slots]
    for view, group in zip(views, run.optimizer.param_groups, strict=True):
        view.param_groups = [group]
        mark_stepped(view)  # the whole steps, not the view
    return views


class ClipGradient(Callback):
    """Scale every member's gradient down to at most this 2-norm.

    Args:
        max_norm: of the gradient of all parameters together.

    Examples:
        >>> import counterfactual_training as ct
        >>> data, method = ct.load_dataset("moons"), ct.methods.ct_published(epochs=1)
        >>> x, y = data.x_train[:200], data.y_train[:200]
        >>> class Norm(ct.Callback):
        ...     def before_step(self, run):
        ...         Norm.last = sum(float(own.square().sum()) for own in run.gradients) ** 0.5
        >>> result = ct.train(ct.mlp(2, 2), x, y, method, callbacks=[ct.ClipGradient(0.01), Norm()])
        >>> round(Norm.last, 4) <= 0.01
        True
    """

    def __init__(self, max_norm: float) -> None:
        if not max_norm > 0:
            raise InputError(f"max_norm is a positive number, got {max_norm!r}.")
        self.max_norm = max_norm

    def before_step(self, run: Run) -> None:
        """Scale the gradients in place."""
        grads = [grad for grad in run.gradients if grad is not None]
        lead = len(run.lead)
        # Squares overflow in half precision.
        wide = [at_least_single(grad.flatten(lead)) for grad in grads]
        norm = torch.stack([grad.square().sum(-1) for grad in wide]).sum(0).sqrt()
        factor = (self.max_norm / (norm + 1e-6)).clamp_max(1.0)  # as torch's clip_grad_norm_
        for grad in grads:
            grad.mul_(factor.reshape(factor.shape + (1,) * (grad.dim() - lead)).to(grad.dtype))


class AverageWeights(Callback):
    """Average the weights after every update, and end with the average.

    A member that is stopped early ends with its average so far; one that diverged, with its last
    sound epoch. Buffers, such as running statistics, are not averaged. :class:`BestEpoch` and
    :class:`EarlyStopping` also replace the final weights: the last callback in the list wins.

    Args:
        decay: of an exponential average; by default all updates from ``start`` on count alike.
        start: share of the epochs after which averaging begins.

    Attributes:
        count: updates averaged.
        mean: the average, like ``run.parameters``.

    Examples:
        >>> import counterfactual_training as ct
        >>> data = ct.load_dataset("moons")
        >>> x, y = data.x_train[:200], data.y_train[:200]
        >>> average = ct.AverageWeights(decay=0.99, start=0.5)
        >>> method = ct.methods.ct_published(epochs=4, batch_size=50)
        >>> result = ct.train(ct.mlp(2, 2), x, y, method, callbacks=[average])
        >>> average.count  # updates of the last two epochs
        8
        >>> bool((result.model[0].weight == average.mean[0]).all())
        True
    """

    def __init__(self, decay: float | None = None, start: float = 0.0) -> None:
        if (decay is not None and not 0 <= decay < 1) or not 0 <= start <= 1:
            raise InputError(
                f"decay lies in [0, 1) and start in [0, 1], got {decay} and {start}."
            )
        self.decay = decay
        self.start = start
        self.count = 0
        self.mean = list[Tensor]()

    def on_train_begin(self, run: Run) -> None:
        """Start a new average."""
        self.count = 0
        self.mean = []

    @torch.no_grad()
    def on_batch_end(self, run: Run) -> None:
        """Add the weights to the average."""
        if run.epoch < self.start * run.epochs:
            return
        self.count += 1
        self.mean = self.mean or [parameter.detach().clone() for parameter in run.parameters]
        if self.decay is None:
            share = 1 / self.count
        else:
            share = 1 - self.decay
        # A checkpoint's mean lies on the CPU.
        pairs = zip(self.mean, run.parameters, strict=True)
        self.mean = [
            mean.to(parameter.device).lerp_(parameter.detach(), share)
            for mean, parameter in pairs
        ]

    def on_stop(self, run: Run, i: int) -> None:
        """Give member i its average."""
        if self.mean:
            run.put(i, self.mean)

    def on_train_end(self, run: Run) -> None:
        """Give all members that still train their averages."""
        for i in run.running:
            self.on_stop(run, i)

    def keep(self, rows: Tensor) -> None:
        """Drop the averages of members that have left."""
        self.mean = [mean[rows] for mean in self.mean]

    def state_dict(self) -> dict[str, Any]:
        """Count and average."""
        return {"count": self.count, "mean": self.mean}


class BestEpoch(Callback):
    """End with the weights of the best epoch.

    Args:
        metric: column of the history.
        mode: whether ``"max"`` or ``"min"`` is best.
        patience: stop after so many epochs without improvement; by default all epochs are run.
        min_delta: the smallest improvement that counts.

    Examples:
        >>> import counterfactual_training as ct
        >>> data = ct.load_dataset("moons")
        >>> x, y = data.x_train[:200], data.y_train[:200]
        >>> method, held = ct.methods.ct_published(epochs=5), (data.x_test, data.y_test)
        >>> result = ct.train(
        ...     ct.mlp(2, 2), x, y, method, validation=held, callbacks=[ct.BestEpoch()]
        ... )
        >>> accuracy = float((result.model(data.x_test).argmax(-1) == data.y_test).float().mean())
        >>> best = max(record["validation_accuracy"] for record in result.history.records)
        >>> round(accuracy, 4) == round(best, 4)
        True
    """

    def __init__(
        self,
        metric: str = "validation_accuracy",
        mode: Literal["max", "min"] = "max",
        patience: int | None = None,
        min_delta: float = 0.0,
    ) -> None:
        check_name("mode", mode, ("max", "min"))
        if patience is not None and (not isinstance(patience, Integral) or patience < 1):
            raise InputError(
                f"patience is a whole number of epochs of at least 1, got {patience!r}."
            )
        self.metric = metric
        if mode == "max":
            self.sign = 1.0
        else:
            self.sign = -1.0
        self.patience = patience
        self.min_delta = min_delta
        self.best: dict[int, float] = {}
        self.since: dict[int, int] = {}
        self.weights: dict[int, dict[str, Tensor]] = {}

    def on_train_begin(self, run: Run) -> None:
        """Forget the best epoch of an earlier run."""
        self.best = {}
        self.since = {}
        self.weights = {}

    def on_epoch_end(self, run: Run) -> None:
        """Keep the weights if this epoch is the best; stop a member that is out of patience."""
        for i in run.running:
            value = self.sign * column(run, i, self.metric)
            if math.isnan(value):  # such as share_mature during burn-in
                continue
            if value > self.best.get(i, -math.inf) + self.min_delta:
                self.best[i] = value
                self.since[i] = 0
                self.weights[i] = run.weights(i)
            else:
                self.since[i] = self.since.get(i, 0) + 1
            if self.patience is not None and self.since[i] >= self.patience:
                run.stop(f"{self.metric} has not improved for {self.patience} epochs", i)

    def on_train_end(self, run: Run) -> None:
        """Give all members the weights of their best epochs."""
        for i, weights in self.weights.items():  # stopped members too
            run.replace(i, weights)

    def state_dict(self) -> dict[str, Any]:
        """Best values, epochs since, and weights, by member."""
        return {"best": self.best, "since": self.since, "weights": self.weights}


class EarlyStopping(BestEpoch):
    """Stop a member whose metric no longer improves, and end with its best epoch.

    Args:
        patience: stop after so many epochs without improvement.
        options: ``metric``, ``mode`` and ``min_delta`` of :class:`BestEpoch`.

    Examples:
        >>> import counterfactual_training as ct
        >>> data = ct.load_dataset("moons")
        >>> x, y = data.x_train[:200], data.y_train[:200]
        >>> held = data.x_test, data.y_test
        >>> method = ct.methods.ct_published(epochs=1000, learning_rate=0.05)
        >>> stop = ct.EarlyStopping(patience=3)
        >>> result = ct.train(ct.mlp(2, 2), x, y, method, validation=held, callbacks=[stop])
        >>> result.history.stopped
        'validation_accuracy has not improved for 3 epochs'
    """

    def __init__(self, patience: int = 10, **options: Any) -> None:
        super().__init__(patience=patience, **options)


class EpochsOfMembers(Callback):
    """Train every member of a fleet for epochs of its own, again from the first where there are
    more members than numbers.

    Args:
        epochs: of each member; no more than those of the run.
    """

    def __init__(self, epochs: Sequence[int]) -> None:
        self.epochs = list(epochs)

    def on_epoch_end(self, run: Run) -> None:
        """Stop the members whose epochs are done."""
        for i in run.running:
            own = self.epochs[run.members[i] % len(self.epochs)]
            if run.epoch == own < run.epochs:
                run.stop(f"its {own} epochs are done", i)


def column(run: Run, i: int, name: str) -> float:
    """A member's last value in a column of its history."""
    record = run.histories[i].records[-1]
    check_name("column of the history:", name, record)
    value = float(record[name])
    if math.isnan(value) and name.startswith("validation_") and run.validation is None:
        raise InputError(f"{name} needs validation rows; pass validation=(x, y).")
    return value


def _of_functions(value: Any) -> bool:
    """Whether it holds only functions, such as LambdaLR's, which are made anew."""
    if isinstance(value, list | tuple):
        return all(_of_functions(one) for one in value)
    return callable(value)


def _can_be_saved(value: Any) -> bool:
    try:
        flatten_state(value)
    except FileError:
        return False
    return True
