"""A budget of accuracy: counterfactual terms are weakened when they cost more than it."""

from __future__ import annotations

import copy
import math
import warnings
from typing import Any

from torch import Tensor

from counterfactual_training.errors import InputError, InputWarning, from_outside
from counterfactual_training.training.adam import AdamOptimizer
from counterfactual_training.training.algorithm import fit
from counterfactual_training.training.callbacks import Callback, column
from counterfactual_training.training.run import History, Run

_PACE = 0.15
_WEAKEST = 0.02
_STRONGEST = 1.0


class AccuracyBudget(Callback):
    """Adapt the strength s of all terms but the class loss to what they cost in accuracy.

    A conventional reference, with the same initial weights, seed, rows and optimizer, trains
    alongside every member. After each epoch ``s ← clip(s·exp(−0.15·clip((d − b)/b, −1, 2)), 0.02,
    1)``, where d is what the member loses on the training batches, against the same epoch of the
    reference; or on validation rows, if there are any and it is more, against the reference's best
    epoch. A member ends with its last epoch of the second half that was within b; without one, and
    with validation rows, with the weights that its reference had where its validation loss was
    lowest, which a warning tells. The history has s as ``strength``, and ``reference_accuracy``.

    Other callbacks, such as schedules or clipping, do not act on the reference.

    Args:
        budget: b, the share of accuracy that may be lost; by default that of each member's method.
        start: the first s.

    Examples:
        >>> import counterfactual_training as ct
        >>> data = ct.load_dataset("moons")
        >>> x, y = data.x_train[:200], data.y_train[:200]
        >>> budget, method = ct.AccuracyBudget(0.01, start=0.3), ct.methods.ct_published(epochs=3)
        >>> result = ct.train(ct.mlp(2, 2), x, y, method, callbacks=[budget])
        >>> sorted({"strength", "reference_accuracy"} & set(result.history.records[0]))
        ['reference_accuracy', 'strength']
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
        self.reference: Run = None  # type: ignore[assignment]  # made when training begins
        # By member: weights of the last epoch within the budget; those of the best epoch of the
        # reference, and its validation loss.
        self.kept: dict[int, dict[str, Tensor]] = {}
        self.usual: dict[int, dict[str, Tensor]] = {}
        self.loss: dict[int, float] = {}

    def on_train_begin(self, run: Run) -> None:
        """Make the reference."""
        self.reference = conventional_run(run)
        self.kept = {}
        self.usual = {}
        self.loss = {}
        if run.epoch == 0:  # a resumed run has its strengths already
            for i in self._bound(run):
                run.strength[i] = self.start

    def on_epoch_end(self, run: Run) -> None:
        """Train the reference for an epoch, compare, and adapt the strength."""
        reference = self.reference
        if reference.running:  # a reference that diverged keeps its last record as the aim
            fit(reference, until=reference.epoch + 1)
        for i in self._bound(run):
            if i not in run.running:
                continue
            budget = self._of(run, i)
            counterpart = reference.slots[run.slots.index(i)]
            aim = column(reference, counterpart, "accuracy")
            lost = max(
                aim - column(run, i, "accuracy"),
                _lost_on_validation(run, reference, i, counterpart),
            )
            run.histories[i].records[-1] |= {
                "strength": run.strength[i],
                "reference_accuracy": aim,
            }
            self._remember_usual(run, i, counterpart)
            # At first, a reference that has hardly learned is no aim.
            if run.epoch > run.epochs // 2 and lost <= budget:
                self.kept[i] = run.snapshot(i).state_dict()
            if run.epoch > run.methods[i].training.burn_in_epochs and not math.isnan(lost):
                excess = min(max((lost - budget) / budget, -1.0), 2.0)
                run.strength[i] = min(
                    max(run.strength[i] * math.exp(-_PACE * excess), _WEAKEST), _STRONGEST
                )

    def _remember_usual(self, run: Run, i: int, counterpart: int) -> None:
        """Keep the weights of the reference if it has not been better yet."""
        if run.validation is None:
            return
        loss = column(self.reference, counterpart, "validation_loss")
        if loss < self.loss.get(i, math.inf):
            self.loss[i] = loss
            self.usual[i] = self.reference.snapshot(counterpart).state_dict()

    def on_stop(self, run: Run, i: int) -> None:
        """Give member i the weights of its last epoch within the budget, or of its reference."""
        if i in self.kept:
            run.replace(i, self.kept[i])
        elif i in self.usual:
            run.replace(i, self.usual[i])
            warnings.warn(
                InputWarning(
                    f"No epoch kept the budget of {self._of(run, i):.2%} of accuracy on the rows "
                    "held out, so the conventional network that was trained alongside is kept."
                ),
                stacklevel=from_outside(),
            )

    def on_train_end(self, run: Run) -> None:
        """Give all members that still train the weights of their last epochs within the budget."""
        for i in run.running:
            self.on_stop(run, i)

    def keep(self, rows: Tensor) -> None:
        """Drop the references of members that have left."""
        self.reference.keep([self.reference.slots[row] for row in rows.tolist()])

    def state_dict(self) -> dict[str, Any]:
        """The reference, and the weights to end with."""
        reference = self.reference
        if reference is None:
            return {**self._weights(), "reference": None}
        histories = [reference.histories[i] for i in reference.slots]
        state = {
            "epoch": reference.epoch,
            "bad_updates": reference.bad_updates,
            "records": [history.records for history in histories],
            "stopped": [history.stopped for history in histories],
            "model": reference.model.state_dict(),
            "optimizer": reference.optimizer.state_dict(),
        }
        return {**self._weights(), "reference": state}

    def _weights(self) -> dict[str, Any]:
        return {"kept": self.kept, "usual": self.usual, "loss": self.loss}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the reference and these weights."""
        reference = self.reference
        saved = state["reference"]
        self.kept = state["kept"]
        self.usual = state["usual"]
        self.loss = state["loss"]
        reference.epoch = saved["epoch"]
        reference.model.load_state_dict(saved["model"])
        reference.optimizer.load_state_dict(saved["optimizer"])
        reference.keep_sound_weights(*[0] * len(reference.slots))  # these weights are sound
        reference.bad_updates = saved["bad_updates"]
        for i, records, stopped in zip(
            reference.slots, saved["records"], saved["stopped"], strict=True
        ):
            reference.histories[i] = History(records, stopped)

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


def _lost_on_validation(run: Run, reference: Run, i: int, counterpart: int) -> float:
    """The accuracy that member i lacks on validation rows, against the best epoch of its reference:
    training rows alone flatter who overfits.
    """
    if run.validation is None:
        return -math.inf
    name = "validation_accuracy"
    best = max(record[name] for record in reference.histories[counterpart].records)
    return best - column(run, i, name)


def conventional_run(run: Run) -> Run:
    """A run with the class loss only for every row of the stack, from current weights."""
    if not run.lead and not isinstance(run.optimizer, AdamOptimizer):
        # Copied together, so that the optimizer's copy holds the parameters of the model's copy.
        models, optimizer = copy.deepcopy((run.models, run.optimizer))
        return Run(
            models,
            [run.methods[0].conventional()],
            run.data,
            run.validation,
            optimizer=optimizer,
        )
    models = [copy.deepcopy(run.models[i]) for i in run.slots]
    methods = [run.methods[i].conventional() for i in run.slots]
    # The rows of a fleet have a leading dimension, even if only one member is left.
    return Run(
        models,
        methods,
        run.data,
        run.validation,
        members=range(len(models)),
        stack=bool(run.lead),
    )
