"""A training run: the state of its members, for callbacks and checkpoints."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, fields, replace
from types import EllipsisType
from typing import Any, Protocol

import pandas as pd
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from counterfactual_training.constraints import Constraints
from counterfactual_training.constraints.stack_constraints import stack_constraints
from counterfactual_training.core.broadcast import Number
from counterfactual_training.core.precision import at_least_single
from counterfactual_training.errors import InputError, StoppedWarning, from_outside
from counterfactual_training.generators import SearchResult, evaluating
from counterfactual_training.generators.search import search_rows
from counterfactual_training.generators.stack_generators import stack_generators
from counterfactual_training.models.stack import StackedModel
from counterfactual_training.threads import sensible_threads
from counterfactual_training.training.callbacks import Callback, overrides
from counterfactual_training.training.learner import Learner
from counterfactual_training.training.method import Method
from counterfactual_training.training.network import Gradients
from counterfactual_training.training.objective import Objective
from counterfactual_training.training.rows import TrainingRows

# Stopped members stay in the stack, ignored, until so small a share still trains: restacking costs
# time.
_COMPACT_AT = 0.75
# That a trained model is asked about at once.
_BLOCK_ROWS = 4096


class Saver(Protocol):
    """What keeps a run in a file."""

    def resume(self, run: Run) -> None: ...

    def resume_optimizer(self, run: Run) -> None: ...

    def save(self, run: Run) -> None: ...


@dataclass
class History:
    """One record per epoch, and why training stopped early, if it did.

    Columns: ``epoch``, ``loss`` and its terms ``class_loss``, ``divergence``, ``ridge`` and
    ``adversarial``; ``accuracy`` on the training batches; ``validation_loss`` and
    ``validation_accuracy``; ``share_mature`` and ``mean_steps`` of the search; ``skipped`` updates;
    ``seconds``. NaN where a value does not apply. Callbacks may add columns.

    Attributes:
        records: one dict per epoch.
        stopped: the reason; ``None`` if all epochs were run.
        diverged: whether the reason is that losses, weights or outputs became non-finite.
        usable: whether the trained model returns finite numbers for the training rows.

    Examples:
        >>> import counterfactual_training as ct
        >>> data = ct.load_dataset("moons")
        >>> x, y = data.x_train[:200], data.y_train[:200]
        >>> history = ct.train(ct.mlp(2, 2), x, y, method="ct_published(epochs=2)").history
        >>> print(history.to_frame()[["epoch", "skipped", "validation_loss"]])
           epoch  skipped  validation_loss
        0      1        0              NaN
        1      2        0              NaN
        >>> 0 <= history.last("share_mature") <= 1, history.stopped
        (True, None)
    """

    records: list[dict[str, Any]] = field(default_factory=list)
    stopped: str | None = None
    diverged: bool = False
    usable: bool = True

    def to_frame(self) -> pd.DataFrame:
        """One row per epoch."""
        return pd.DataFrame(self.records)

    @property
    def best_epoch(self) -> int:
        """Epochs up to the lowest validation loss; all of them without validation rows."""
        losses = [record["validation_loss"] for record in self.records]
        known = [loss for loss in losses if not math.isnan(loss)]
        if not known:
            return len(self.records)
        return losses.index(min(known)) + 1

    def last(self, column: str) -> float:
        """The value of the last epoch; NaN without any."""
        if self.records:
            return float(self.records[-1][column])
        return float("nan")


@dataclass(frozen=True)
class TrainResult:
    """The trained model and its history.

    Attributes:
        model: the object that was given, in eval mode.
        history: one record per epoch.

    Examples:
        >>> import counterfactual_training as ct
        >>> data = ct.load_dataset("moons")
        >>> x, y = data.x_train[:200], data.y_train[:200]
        >>> model = ct.mlp(2, 2)
        >>> result = ct.train(model, x, y, "ct_published(epochs=3)")
        >>> result.model is model, result.model.training, len(result.history.records)
        (True, False, 3)
    """

    model: nn.Module
    history: History


class Run:
    """One model in training, or several of one architecture as a stack; passed to callbacks.

    Members have numbers i in this run; a lone run has one, 0. :func:`train` and :class:`Fleet` make
    it.

    Args:
        stack: make a stack even of one model.

    Attributes:
        members: for each member, its index in the list given to :class:`Fleet`.
        methods: of each member.
        histories: of each member; ``history`` is that of a lone run.
        epoch: epochs done.
        epochs: epochs to do.
        slots: the member of each row of the stack.
        lead: ``()`` for one model, ``(rows of the stack,)`` in a fleet.
        model: the model; in a fleet the stack.
        parameters: the trained tensors, each ``(*lead, …)``.
        memory: what a method remembers, such as JEM's replay buffer; tensors ``(*lead, …)``.
        strength: of each member, a factor of all weights of Eq. 2 but that of the class loss;
            callbacks may change it.
        gradients: of the next update, one per tensor of ``parameters``; ``None`` where a parameter
            has none.
        optimizer: in a fleet with one parameter group per member.
        models: the members' own models; in a fleet, their weights are written back at the end.
        data: the training rows.
        validation: the validation rows, or ``None``.
        config: of the first member.
        method: of the first member; in a stack all minimise the same.
        callbacks: in the order in which they are called.

    Examples:
        >>> import counterfactual_training as ct
        >>> data = ct.load_dataset("moons")
        >>> x, y = data.x_train[:200], data.y_train[:200]
        >>> class Enough(ct.Callback):
        ...     def on_epoch_end(self, run):  # a Run
        ...         if run.epoch == 2:
        ...             run.stop(f"{run.epoch} of {run.epochs} epochs are enough")
        >>> ct.train(
        ...     ct.mlp(2, 2), x, y, "ct_published(epochs=50)", callbacks=[Enough()]
        ... ).history.stopped
        '2 of 50 epochs are enough'
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        methods: Sequence[Method],
        data: TrainingRows,
        validation: TrainingRows | None = None,
        members: Sequence[int] = (0,),
        optimizer: Optimizer | None = None,
        callbacks: Iterable[Callback] = (),
        stack: bool = False,
    ) -> None:
        self.methods = list(methods)
        self.members = list(members)
        self.models = list(models)
        self.data = data
        self.validation = validation
        self.callbacks = list(callbacks)
        self.method = self.methods[0]
        self.config = self.method.training
        if self.method.check is not None:
            self.method.check(self.models, data)
        self.epoch = 0
        self.epochs = self.config.epochs
        self.histories = [History() for _ in self.methods]
        self.strength = [1.0] * len(models)
        self.slots = list(range(len(models)))
        self.bad_updates = [0] * len(models)  # consecutive ones up to now, by row of the stack
        self.gradients: Gradients = []
        self.search: Callable[..., SearchResult] = search_rows  # Eq. 1
        self.speaks = True  # of several processes, one prints
        model = StackedModel(models) if stack or len(models) > 1 else models[0]
        self.learner = self.make_learner(model, optimizer)
        self.model = self.learner.model
        self.optimizer = self.learner.optimizer
        self.device = self.learner.parameters[0].device
        if self.method.remember is None:
            self.memory = {}
        else:
            self.memory = self.method.remember(data, self.learner.lead)
        # Weights after each member's last sound epoch, by row of the stack.
        self.good = self._weights()
        self.ended: dict[
            int, dict[str, Tensor]
        ] = {}  # final weights of stopped members of a fleet
        self._restack()

    def make_learner(self, model: nn.Module, optimizer: Optimizer | None) -> Learner:
        """What computes gradients and makes updates."""
        rates = [method.training.learning_rate for method in self.methods]
        objective = self.method.minimised
        return Learner(model, objective, self.data.num_classes, rates, optimizer)

    @property
    def history(self) -> History:
        """The history of a lone run."""
        if len(self.histories) > 1:
            raise InputError("A fleet has a history per member: run.histories[i].")
        return self.histories[0]

    @property
    def running(self) -> list[int]:
        """Members that still train."""
        return [i for i in self.slots if self.histories[i].stopped is None]

    def has_epochs_left(self, until: int | None = None) -> bool:
        """Whether there is an epoch left to train, before ``until`` are done."""
        last = self.epochs if until is None else until
        return self.epoch < last and bool(self.running)

    @contextmanager
    def session(self, saver: Saver | None) -> Iterator[None]:
        """From the checkpoint, if there is one, to the last callback."""
        if saver is not None:
            saver.resume(self)
        with self._torch_settings():
            for callback in self.callbacks:
                callback.on_train_begin(self)
            if saver is not None:
                # Only now: a new scheduler starts by setting the learning rate.
                saver.resume_optimizer(self)
            yield
            for callback in self.callbacks:
                callback.on_train_end(self)

    @contextmanager
    def _torch_settings(self) -> Iterator[None]:
        """Threads, random state and autocast cache as training needs them; restored at the end."""
        if self.device.type == "cuda":
            devices = [self.device]
        else:
            devices = []
        caching = torch.is_autocast_cache_enabled()
        with torch.random.fork_rng(devices=devices):
            example, _ = self.data.first(
                self.config.batch_size + self.config.num_counterfactuals
            )
            with sensible_threads(self.model, example, self.config.threads):
                # Autocast around a whole training would otherwise cast the weights once, and never
                # see an update.
                torch.clear_autocast_cache()
                torch.set_autocast_cache_enabled(False)
                try:
                    yield
                finally:
                    torch.set_autocast_cache_enabled(caching)

    def end_epoch(self, saver: Saver | None, compact: bool) -> None:
        """Call the callbacks, let stopped members leave the stack, and save."""
        for callback in self.callbacks:
            callback.on_epoch_end(self)
        if compact:
            self.compact()
        if saver is not None:
            saver.save(self)

    def call(self, listener: Callable[[Run], None]) -> None:
        """Call a callback of an update; honour the gradients and modes that it sets."""
        shown = list(self.gradients)
        self.gradients = list(self.gradients)
        self.learner.expose(shown)
        listener(self)
        pairs = zip(self.parameters, shown, self.gradients, strict=True)
        # Callbacks may put a new tensor into run.gradients or, as torch's own functions do, into
        # ``.grad``.
        self.gradients = [
            changed if parameter.grad is grad else parameter.grad
            for parameter, grad, changed in pairs
        ]
        self.learner.train_mode()

    def stop(self, reason: str, i: int | None = None) -> None:
        """Stop one member with its current weights, or all members."""
        if i is not None and i not in range(len(self.members)):
            raise InputError(f"This run has the members 0..{len(self.members) - 1}, not {i!r}.")
        for member in self.running:
            # Callbacks first: they may set the weights that the member ends with.
            if i is None or i == member:
                for callback in self.listeners("on_stop"):
                    callback.on_stop(self, member)
                self._end(member, reason)

    def snapshot(self, i: int = 0) -> nn.Module:
        """A copy of one member as it is now, in eval mode."""
        model = copy.deepcopy(self.models[i])
        if i in self.ended:
            model.load_state_dict(self.ended[i])
        elif isinstance(self.model, StackedModel):
            self.model.unstack(self.slots.index(i), model)
        return model.eval()

    def weights(self, i: int = 0) -> dict[str, Tensor]:
        """A copy of one member's weights as they are now; a lone model itself is not copied."""
        if isinstance(self.model, StackedModel):
            return self.snapshot(i).state_dict()
        state = self.models[i].state_dict()
        return {name: copy.deepcopy(value) for name, value in state.items()}

    @torch.no_grad()
    def put(self, i: int, values: Sequence[Tensor]) -> None:
        """Set the parameters of a member that trains to its part of these, each ``(*lead, …)``."""
        place = self._place(self.slots.index(i))
        for parameter, value in zip(self.parameters, values, strict=True):
            parameter[place] = value[place].to(parameter)

    def replace(self, i: int, weights: dict[str, Tensor]) -> None:
        """Replace a member's weights by a state dict of its model."""
        if i in self.ended:
            self.ended[i] = weights
        elif isinstance(self.model, StackedModel):
            row = torch.cat([weights[name].flatten() for name in self.model.names])
            self.model.weights.data[self.slots.index(i)] = row.to(self.model.weights)
        else:
            self.model.load_state_dict(weights)

    def listeners(self, event: str) -> list[Callback]:
        """The callbacks that override this event."""
        return [callback for callback in self.callbacks if overrides(callback, event)]

    def evaluating(self) -> AbstractContextManager[None]:
        """Eval mode, for searches and validation rows."""
        return evaluating(self.model)

    def record(self, columns: dict[str, list[Any]], training: set[int]) -> None:
        """Add the record of an epoch, one value per row of the stack, of members that trained."""
        for slot, i in enumerate(self.slots):
            if i in training:
                record = {name: values[slot] for name, values in columns.items()}
                self.histories[i].records.append({"epoch": self.epoch, **record})

    def validate(self) -> tuple[Tensor, int]:
        """Loss and hits ``(2, rows of the stack)``, summed over validation rows; their number."""
        sums = torch.zeros(2, len(self.slots), device=self.device)
        rows = 0
        if self.validation is None:
            return sums, rows
        with self.evaluating(), torch.no_grad():
            for x, y, _ in self.validation.batches(4096, None, self.lead):
                logits = at_least_single(self.model(x))
                sums[0] += self.objective.fit_loss(logits, y) * y.shape[-1]
                sums[1] += self.objective.hits(logits, y)
                rows += y.shape[-1]
        return sums, rows

    def explaining(self) -> list[bool]:
        """For each row of the stack, whether it trains with counterfactuals in this epoch."""
        running = self.running
        methods = self.methods
        search = [i for i in running if methods[i].minimised.needs_counterfactuals]
        return [
            i in search and self.epoch >= methods[i].training.burn_in_epochs for i in self.slots
        ]

    def objective_for(self, explaining: Sequence[bool]) -> Objective:
        """Eq. 2 at the members' strength; 0 for members without counterfactuals."""
        # A lone model without counterfactuals gets batches without them, so its weights may stay.
        factors = [
            self.strength[i] * (on or not self.lead)
            for i, on in zip(self.slots, explaining, strict=True)
        ]
        if all(factor == 1 for factor in factors) or self.method.loss is not None:
            return self.objective
        return self._weakened(factors)

    def _weakened(self, factors: list[float]) -> Objective:
        """Eq. 2 with these factors, one per row of the stack, of all weights but λ_class."""
        if self.lead:
            factor: Number = torch.tensor(factors, device=self.device, dtype=torch.float32)
        else:
            factor = factors[0]
        # Fields of Objective only: a subclass may have others that are not weights.
        names = [weight.name for weight in fields(Objective) if weight.name != "lambda_class"]
        return replace(
            self.objective, **{name: getattr(self.objective, name) * factor for name in names}
        )

    def idle_rows(self) -> Tensor | None:
        """``(*lead)``: 1.0 for rows of stopped members; ``None`` if all train."""
        flags = [float(self.histories[i].stopped is not None) for i in self.slots]
        if not any(flags):
            return None
        return torch.tensor(flags, device=self.device, dtype=torch.float32).reshape(self.lead)

    def keep_sound_weights(self, *streaks: int) -> None:
        """After an epoch, given each row's consecutive bad updates: keep sound weights, stop
        members that diverged.
        """
        weights = self._weights()
        floats = [w for w in weights.values() if w.is_floating_point() and w.numel()]
        finite = (
            torch.stack(
                [torch.isfinite(w).reshape(len(self.slots), -1).all(-1) for w in floats]
            )
            .all(0)
            .tolist()
        )
        self.bad_updates = list(streaks)
        if all(finite) and not any(streaks) and len(self.running) == len(self.slots):
            self.good = weights
        else:
            self._sort_out(weights, finite)

    def _sort_out(self, weights: dict[str, Tensor], finite: list[bool]) -> None:
        """Keep sound weights, stop members that diverged."""
        streaks = self.bad_updates
        for slot, i in enumerate(self.slots):
            limit = self.methods[i].training.max_bad_updates
            place = self._place(slot)
            if self.histories[i].stopped is not None:
                continue
            if streaks[slot] >= limit:
                self.fail(
                    slot,
                    self.epoch,
                    f"{limit} updates in a row had a non-finite loss or gradient",
                )
            elif not finite[slot]:
                self.fail(slot, self.epoch, "the weights became non-finite")
            elif streaks[slot] == 0:  # within a streak, the weights may be what causes it
                for name, value in weights.items():
                    self.good[name][place] = value[place]

    def fail(self, slot: int, epoch: int, reason: str) -> None:
        """Stop a member that diverged, with the weights of its last sound epoch."""
        i = self.slots[slot]
        if self.lead:
            self.parameters[0].data[slot] = self.good["weights"][slot]
        else:
            self.model.load_state_dict(self.good)
        self._end(i, reason)
        self.histories[i].diverged = True
        fleet = len(self.members) > 1
        if fleet:
            who = f"Member {self.members[i]} of the fleet stopped in"
        else:
            who = "Training stopped after"
        if fleet:
            others = "; the other members are not touched"
        else:
            others = ""
        # What keeps the terms of this loss small.
        damping = {
            "ridge": "A larger ridge",
            "lambda_reg": "A larger lambda_reg",
            "clip": "a smaller clip",
        }
        has = ("lambda_reg",) if self.method.loss is None else self.method.numbers
        helps = ", ".join(text for name, text in damping.items() if name in has)
        if helps:
            advice = f"{helps} or a smaller learning rate usually helps."
        else:
            advice = "Try a smaller learning rate."
        kept = f"The weights of {'its' if fleet else 'the'} last sound epoch are kept{others}."
        text = f"{who} epoch {epoch}: {reason}. {kept} {advice}"
        warnings.warn(text, StoppedWarning, stacklevel=4)

    def compact(self) -> None:
        """Remove stopped members from the stack, once there are enough of them."""
        running = self.running
        if self.lead and running and len(running) <= _COMPACT_AT * len(self.slots):
            rows = self.keep(running)
            for callback in self.callbacks:
                callback.keep(rows)

    def keep(self, slots: list[int]) -> Tensor:
        """Continue with these members in the stack; returns the rows they had."""
        places = [self.slots.index(i) for i in slots]
        rows = torch.tensor(places, device=self.device)
        self.learner.keep(rows)
        self.good = {name: value[rows] for name, value in self.good.items()}
        self.bad_updates = [self.bad_updates[place] for place in places]
        self.memory = {
            name: value[rows.to(value.device)] for name, value in self.memory.items()
        }
        self.data = self.data.for_members(places)
        self.validation = self.validation and self.validation.for_members(places)
        self.slots = list(slots)
        self._restack()
        return rows

    def results(self) -> list[TrainResult]:
        """The members' models with their final weights."""
        if self.lead:  # a stack has copies of the weights
            for i, model in enumerate(self.models):
                model.load_state_dict(self.weights(i))
        for i, model in enumerate(self.models):
            if not self._returns_numbers(i, model.eval()):
                self._tell_unusable(i)
        return [
            TrainResult(m.eval(), h) for m, h in zip(self.models, self.histories, strict=True)
        ]

    @torch.no_grad()
    def _returns_numbers(self, i: int, model: nn.Module) -> bool:
        """Whether a trained model returns finite numbers for training rows."""
        # Of members that left a stack, whose own rows are gone, for those of another one.
        row = self.slots.index(i) if i in self.slots else 0
        blocks = self.data.possible(row).split(_BLOCK_ROWS)
        return all(bool(torch.isfinite(model(block)).all()) for block in blocks)

    def _tell_unusable(self, i: int) -> None:
        """Mark the history of a model that does not, and say so, unless it was said before."""
        history = self.histories[i]
        history.usable = False
        history.diverged = True
        reason = "its outputs for training rows are not finite numbers"
        history.stopped = history.stopped or reason
        who = "The trained model"
        if len(self.members) > 1:
            who = f"Member {self.members[i]} of the fleet"
        text = f"{who} cannot be used: {reason}. A smaller learning rate usually helps."
        warnings.warn(text, StoppedWarning, stacklevel=from_outside())

    def state(self) -> dict[str, Any]:
        """Everything a resumed run needs, as nested dicts of tensors and plain values."""
        return {
            "epoch": self.epoch,
            "slots": self.slots,
            "bad_updates": self.bad_updates,
            "strength": self.strength,
            "records": [history.records for history in self.histories],
            "stopped": [history.stopped for history in self.histories],
            "diverged": [history.diverged for history in self.histories],
            "model": self.model.state_dict(),
            "good": self.good,
            "ended": self.ended,
            "memory": self.memory,
            "optimizer": self.optimizer.state_dict(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Restore :meth:`state` on a new run, except for the optimizer.

        Values are taken as they are: the file's checksum has shown that it is sound, its
            fingerprint that it is ours.
        """
        if state["slots"] != self.slots:
            self.keep(state["slots"])
        # After keep: the saved stack has these rows only.
        self.model.load_state_dict(state["model"])
        self.good = {name: value.to(self.good[name]) for name, value in state["good"].items()}
        self.ended = state["ended"]
        self.bad_updates = state["bad_updates"]
        self.strength = state["strength"]
        self.epoch = state["epoch"]
        self.memory = {
            name: state["memory"][name].to(value) for name, value in self.memory.items()
        }
        parts = zip(state["records"], state["stopped"], state["diverged"], strict=True)
        self.histories = [History(*part) for part in parts]

    def _place(self, slot: int) -> int | EllipsisType:
        """The index of a row of the stack in tensors ``(*lead, …)``."""
        if self.lead:
            return slot
        return ...

    def _end(self, i: int, reason: str) -> None:
        self.histories[i].stopped = reason
        if self.lead:
            self.ended[i] = self.weights(i)
            # Non-finite weights would make the search of the whole stack fail.
            self.parameters[0].data[self.slots.index(i)] = 0

    def _weights(self) -> dict[str, Tensor]:
        return {name: value.detach().clone() for name, value in self.model.state_dict().items()}

    def _restack(self) -> None:
        """Stack the methods of the members as tensors ``(rows,)``; a lone run keeps its own."""
        self.lead = self.learner.lead
        self.parameters = self.learner.parameters
        methods = [self.methods[i] for i in self.slots]
        first = methods[0]
        self.generator = first.searcher
        self.constraints = stated(first)
        self.objective = first.minimised
        if self.lead:
            like = self.parameters[0].detach()
            self.generator = stack_generators([method.searcher for method in methods], like)
            self.constraints = stack_constraints([stated(method) for method in methods])
            if first.loss is None:  # a loss of their own is the same for all, with its numbers
                names = vars(first.objective)
                weights = {
                    name: like.new_tensor(
                        [getattr(method.objective, name) for method in methods]
                    )
                    for name in names
                }
                self.objective = replace(first.objective, **weights)


def stated(method: Method) -> Constraints:
    if method.constraints is None:
        raise TypeError("constraints are inferred before a run is made")
    return method.constraints
