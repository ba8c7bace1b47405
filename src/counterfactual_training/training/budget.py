"""A budget of accuracy: counterfactual terms are weakened when they cost more than it."""

from __future__ import annotations

import copy
import math
from typing import Any

from torch import Tensor

from counterfactual_training.errors import InputError
from counterfactual_training.training.adam import AdamOptimizer
from counterfactual_training.training.algorithm import fit
from counterfactual_training.training.callbacks import Callback, column
from counterfactual_training.training.run import History, Run

_PACE = 0.15
_WEAKEST = 0.02
_STRONGEST = 1.0


class AccuracyBudget(Callback):
    """Adapt the strength s of all terms but the class loss to what they cost in accuracy.

    A conventional twin, with the same initial weights, seed, rows and optimizer, trains alongside
    every member. After each epoch ``s ← clip(s·exp(−0.15·clip((d − b)/b, −1, 2)), 0.02, 1)``, where
    d is the twin's accuracy on the training batches minus the member's. A member ends with its last
    epoch of the second half that was within b, if there was one. The history has s as ``strength``,
    and ``twin_accuracy``.

    Other callbacks, such as schedules or clipping, do not act on the twin.

    Args:
        budget: b, the share of accuracy that may be lost; by default that of each member's method.
        start: the first s.

    Examples:
        >>> import counterfactual_training as ct
        >>> data = ct.load_dataset("moons")
        >>> x, y = data.x_train[:200], data.y_train[:200]
        >>> budget, method = ct.AccuracyBudget(0.01, start=0.3), ct.methods.ct(epochs=3)
        >>> result = ct.train(ct.mlp(2, 2), x, y, method, callbacks=[budget])
        >>> [name for name in result.history.records[0] if name in ("strength", "twin_accuracy")]
        ['strength', 'twin_accuracy']
        >>> result.history.records[0]["strength"], 0.02 <= result.history.last("strength") <= 1
        (0.3, True)
    """

    def __init__(self, budget: float | None = None, start: float = 0.3) -> None:
        if budget is not None and not 0 < budget < 1:
            raise InputError(f"budget is a share of the rows between 0 and 1, got {budget!r}.")
        if not _WEAKEST <= start <= _STRONGEST:
            raise InputError(f"start lies in [{_WEAKEST}, {_STRONGEST}], got {start!r}.")
        self.budget = budget
        self.start = start
        self.twin: Run = None  # type: ignore[assignment]  # made when training begins
        self.kept: dict[
            int, dict[str, Tensor]
        ] = {}  # weights of the last epoch within the budget, by member

    def on_train_begin(self, run: Run) -> None:
        """Make the twin."""
        self.twin = conventional_twin(run)
        self.kept = {}
        if run.epoch == 0:  # a resumed run has its strengths already
            for i in self._bound(run):
                run.strength[i] = self.start

    def on_epoch_end(self, run: Run) -> None:
        """Train the twin for an epoch, compare, and adapt the strength."""
        twin = self.twin
        if twin.running:  # a twin that diverged keeps its last record as the aim
            fit(twin, until=twin.epoch + 1)
        for i in self._bound(run):
            if i not in run.running:
                continue
            budget = self._of(run, i)
            counterpart = twin.slots[run.slots.index(i)]
            aim = column(twin, counterpart, "accuracy")
            lost = aim - column(run, i, "accuracy")
            run.histories[i].records[-1] |= {"strength": run.strength[i], "twin_accuracy": aim}
            if lost <= budget and run.epoch > run.epochs // 2:
                self.kept[i] = run.snapshot(i).state_dict()
            if run.epoch > run.methods[i].training.burn_in_epochs and not math.isnan(lost):
                excess = min(max((lost - budget) / budget, -1.0), 2.0)
                run.strength[i] = min(
                    max(run.strength[i] * math.exp(-_PACE * excess), _WEAKEST), _STRONGEST
                )

    def on_stop(self, run: Run, i: int) -> None:
        """Give member i the weights of its last epoch within the budget."""
        if i in self.kept:
            run.replace(i, self.kept[i])

    def on_train_end(self, run: Run) -> None:
        """Give all members that still train the weights of their last epochs within the budget."""
        for i in run.running:
            self.on_stop(run, i)

    def keep(self, rows: Tensor) -> None:
        """Drop the twins of members that have left."""
        self.twin.keep([self.twin.slots[row] for row in rows.tolist()])

    def state_dict(self) -> dict[str, Any]:
        """The twin, and the weights of the last epochs within the budget."""
        twin = self.twin
        if twin is None:
            return {"kept": self.kept, "twin": None}
        histories = [twin.histories[i] for i in twin.slots]
        state = {
            "epoch": twin.epoch,
            "bad_updates": twin.bad_updates,
            "records": [history.records[-1:] for history in histories],
            "stopped": [history.stopped for history in histories],
            "model": twin.model.state_dict(),
            "optimizer": twin.optimizer.state_dict(),
        }
        return {"kept": self.kept, "twin": state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the twin and these weights."""
        twin = self.twin
        saved = state["twin"]
        self.kept = state["kept"]
        twin.epoch = saved["epoch"]
        twin.model.load_state_dict(saved["model"])
        twin.optimizer.load_state_dict(saved["optimizer"])
        twin.keep_sound_weights(*[0] * len(twin.slots))  # these weights are sound
        twin.bad_updates = saved["bad_updates"]
        for i, records, stopped in zip(
            twin.slots, saved["records"], saved["stopped"], strict=True
        ):
            twin.histories[i] = History(records, stopped)

    def _of(self, run: Run, i: int) -> float:
        if self.budget is None:
            budget = run.methods[i].budget
        else:
            budget = self.budget
        if budget is None:
            return math.inf
        return budget

    def _bound(self, run: Run) -> list[int]:
        """Members in the stack with a budget and with counterfactual terms."""
        needs = [i for i in run.slots if run.methods[i].minimised.needs_counterfactuals]
        return [i for i in needs if self._of(run, i) < math.inf]


def conventional_twin(run: Run) -> Run:
    """A run with the class loss only for every row of the stack, from current weights."""
    if not run.lead and not isinstance(run.optimizer, AdamOptimizer):
        # Copied together, so that the optimizer's copy holds the parameters of the model's copy.
        models, optimizer = copy.deepcopy((run.models, run.optimizer))
        return Run(models, [run.methods[0].conventional()], run.data, optimizer=optimizer)
    models = [copy.deepcopy(run.models[i]) for i in run.slots]
    methods = [run.methods[i].conventional() for i in run.slots]
    # The rows of a fleet have a leading dimension, even if only one member is left.
    return Run(models, methods, run.data, members=range(len(models)), stack=bool(run.lead))
