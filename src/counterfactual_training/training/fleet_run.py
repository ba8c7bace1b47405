"""A fleet while it trains: what all members share as one tensor, and what each has for itself."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from counterfactual_training.constraints import Constraints
from counterfactual_training.constraints.stacking import stack_constraints
from counterfactual_training.models.stack import StackedModel
from counterfactual_training.search import Generator
from counterfactual_training.search.stacking import stack_generators
from counterfactual_training.training.callbacks import Callback, Run
from counterfactual_training.training.config import TrainConfig
from counterfactual_training.training.explanations import TrainingData
from counterfactual_training.training.history import History
from counterfactual_training.training.objective import Objective
from counterfactual_training.training.setting import Setting
from counterfactual_training.training.stacked_adam import StackedAdam

# Members that have ended ride along, ignored, until a smaller stack is worth its price.
_COMPACT_AT = 0.75


@dataclass(frozen=True, eq=False)
class Member:
    """One model of a fleet and how it is trained; constraints that are not given are inferred from its rows."""

    model: nn.Module
    setting: Setting = field(default_factory=Setting)

    @property
    def generator(self) -> Generator:
        return self.setting.generator

    @property
    def constraints(self) -> Constraints | None:
        return self.setting.constraints

    @property
    def objective(self) -> Objective:
        return self.setting.objective

    @property
    def config(self) -> TrainConfig:
        return self.setting.config


class FleetRun:
    """Members of one structure in training, as ``on_epoch`` sees them.

    A member is named by its place i in this group; ``members[i]`` is its place in the list that :class:`Fleet` got.

    Attributes:
        members: places of the group's members in the fleet.
        settings: the members themselves.
        histories: what happened to each.
        epoch: epochs done.
        epochs: epochs to do.
    """

    def __init__(self, members: Sequence[int], settings: Sequence[Member], data: TrainingData) -> None:
        self.members, self.settings, self.data = list(members), list(settings), data
        self.histories = [History() for _ in self.settings]
        self.config = self.settings[0].config
        self.epoch, self.epochs = 0, self.config.epochs
        self.stacked = StackedModel([member.model for member in self.settings])
        like = self.stacked.weights.detach()
        self.optimizer = StackedAdam(like, like.new_tensor([member.config.learning_rate for member in self.settings]))
        self.good = like.clone()  # weights of each member's last sound epoch
        self.bad_updates = like.new_zeros(len(like))  # in a row, skipped for a non-finite loss
        self.alive = torch.ones_like(self.bad_updates, dtype=torch.bool)  # which rows of the stack still train
        self.slots = list(range(len(like)))  # which member each row of the stack is
        self._ended: dict[int, nn.Module] = {}  # members that no longer train, as they ended
        self.broken: dict[int, Tensor] = {}  # weights of rows whose search failed in this epoch, as they were then
        self._restack()

    @property
    def running(self) -> list[int]:
        """Members that still train."""
        return [i for i in self.slots if self.histories[i].stopped is None]

    def stop(self, i: int, reason: str) -> None:
        """End one member, as it is now; the others go on."""
        if self.histories[i].stopped is not None:
            return
        self.histories[i].stopped = reason
        self._ended[i] = self.model(i)
        slot = self.slots.index(i)
        self.alive[slot] = False
        with torch.no_grad():
            self.stacked.weights[slot] = 0  # what rides along, ignored, must not spoil the search of the others

    def model(self, i: int) -> nn.Module:
        """A copy of one member as it is now, in eval mode."""
        if i in self._ended:
            return copy.deepcopy(self._ended[i])
        return self.stacked.unstack(self.slots.index(i)).eval()

    def config_of(self, i: int) -> TrainConfig:
        return self.settings[i].config

    def trying(self) -> Tensor:
        """``(rows,)``: who would make the next update; not who has ended, nor who will with this epoch."""
        return self.alive & (self.bad_updates < self.max_bad_updates)

    def admit(self, finite: Tensor) -> Tensor:
        """Who makes an update, given whose loss is finite; counts the others. All ``(rows,)``."""
        trying = self.trying()
        self.bad_updates = torch.where(trying, (self.bad_updates + 1) * ~finite, self.bad_updates)
        return finite & trying

    def explaining(self) -> Tensor:
        """``(rows,)``: who trains with counterfactuals in this epoch."""
        searching = [
            self.settings[i].objective.needs_counterfactuals and self.epoch >= self.config_of(i).burn_in_epochs
            for i in self.slots
        ]
        return torch.tensor(searching, device=self.alive.device) & self.alive

    def objective_now(self, explaining: Tensor) -> Objective:
        """The stacked objective, without the terms of members that have no counterfactuals now."""
        weights = {name: value * explaining for name, value in self.weights.items() if name != "lambda_class"}
        return replace(Objective(), lambda_class=self.weights["lambda_class"], **weights)

    def used(self, explaining: Tensor) -> tuple[Tensor, Tensor]:
        """``(rows,)`` each: whose divergence and ridge, and whose adversarial loss, a lone run would compute."""
        contrast = (self.weights["lambda_div"] != 0) | (self.weights["lambda_reg"] != 0)
        return contrast & explaining, (self.weights["lambda_adv"] != 0) & explaining

    def end_epoch(self) -> None:
        """Remember the weights of sound members; restore and end those that have left for infinity."""
        weights = self.stacked.weights.detach()
        finite = torch.isfinite(weights).all(-1)
        lost = self.bad_updates >= self.max_bad_updates
        sound = finite & self.alive & (self.bad_updates == 0)
        self.good = torch.where(sound.unsqueeze(-1), weights, self.good)
        for slot in (self.alive & (lost | ~finite)).nonzero().flatten().tolist():
            self.break_off(slot, "the weights became non-finite")

    def break_off(self, slot: int, reason: str) -> None:
        """End a member whose numbers are no longer finite, with the weights of its last sound epoch."""
        i, bad = self.slots[slot], int(self.bad_updates[slot])
        if bad >= int(self.max_bad_updates[slot]):
            reason = f"{bad} updates in a row had a non-finite loss"
        with torch.no_grad():
            self.stacked.weights[slot] = self.good[slot]
        self.bad_updates[slot] = 0
        self.stop(i, reason)
        warnings.warn(
            f"Member {self.members[i]} of the fleet stopped in epoch {self.epoch}: {reason}. The weights of its last "
            "sound epoch are kept; the other members are not touched. A larger lambda_reg or a smaller learning rate "
            "usually helps.",
            stacklevel=2,
        )

    def compact(self) -> None:
        """Take ended members out of the stack, once there are enough of them."""
        running = self.running
        if running and len(running) <= _COMPACT_AT * len(self.slots):
            self._keep(running)

    def _keep(self, slots: list[int]) -> None:
        """Go on with these members in the stack, in this order."""
        keep = [self.slots.index(i) for i in slots]
        rows = torch.tensor(keep, device=self.alive.device)
        self.slots = list(slots)
        self.stacked.keep(rows)
        self.optimizer.keep(rows)
        self.good, self.bad_updates, self.alive = self.good[rows], self.bad_updates[rows], self.alive[rows]
        if self.data.y.dim() > 1:
            own = self.data.rows_by_class
            self.data = TrainingData(
                self.data.x[rows], self.data.y[rows], [own[slot] for slot in keep], self.data.class_counts[keep]
            )
        self._restack()

    def _restack(self) -> None:
        """The settings of the members in the stack, as numbers ``(rows,)``."""
        settings = [self.settings[i] for i in self.slots]
        like = self.stacked.weights.detach()
        self.generator = stack_generators([member.generator for member in settings], like)
        self.constraints = stack_constraints([_constraints(member, like) for member in settings])
        limits = [member.config.max_bad_updates for member in settings]
        self.max_bad_updates = torch.tensor(limits, device=like.device)
        names = vars(settings[0].objective)
        self.weights = {
            name: like.new_tensor([getattr(member.objective, name) for member in settings]) for name in names
        }

    # What a checkpoint holds.

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        adam = {f"adam.{name}": value for name, value in vars(self.optimizer).items()}
        tensors = {"weights": self.stacked.weights.detach(), "good": self.good, "bad_updates": self.bad_updates, **adam}
        for i, model in self._ended.items():
            tensors |= {f"ended.{i}": torch.cat([p.detach().flatten() for p in model.parameters()])}
        content = {
            "epoch": self.epoch,
            "slots": self.slots,
            "records": [history.records for history in self.histories],
            "stopped": [history.stopped for history in self.histories],
        }
        return tensors, content

    def restore(self, tensors: dict[str, Tensor], content: dict[str, Any]) -> None:
        """The inverse of :meth:`state` on a run that has just been made."""
        for i, history in enumerate(self.histories):
            history.records, history.stopped = content["records"][i], content["stopped"][i]
        self.epoch, slots = content["epoch"], content["slots"]
        if not slots or slots != sorted(set(slots)):
            raise ValueError(f"its members in training are {slots}")
        device = self.good.device
        with torch.no_grad():
            for i in self.slots:
                if f"ended.{i}" in tensors or i not in slots:
                    self.stacked.weights[i] = tensors[f"ended.{i}"].to(device)
                    self._ended[i] = self.stacked.unstack(i).eval()
            self._keep(slots)
            self.stacked.weights.copy_(tensors["weights"])
        self.good, self.bad_updates = tensors["good"].to(device), tensors["bad_updates"].to(device)
        ended = [self.histories[i].stopped is not None for i in self.slots]
        self.alive &= ~torch.tensor(ended, device=device)
        for name in vars(self.optimizer):
            setattr(self.optimizer, name, tensors[f"adam.{name}"].to(device))


class LoneRun(Callback):
    """A member that trains by itself, shown to ``on_epoch`` as the :class:`FleetRun` of a group of one."""

    def __init__(self, member: int, on_epoch: Callable[[FleetRun], None]) -> None:
        self.members, self.on_epoch = [member], on_epoch

    def on_epoch_end(self, run: Run) -> None:
        self.run, self.histories = run, [run.history]
        self.epoch, self.epochs, self.config = run.epoch, run.config.epochs, run.config
        run.history.stopped = run.stop
        self.on_epoch(cast(FleetRun, self))

    @property
    def running(self) -> list[int]:
        return [0] if self.run.stop is None else []

    def stop(self, i: int, reason: str) -> None:
        self.run.stop = self.histories[i].stopped = self.run.stop or reason

    def model(self, i: int) -> nn.Module:
        return copy.deepcopy(self.run.model).eval()


def _constraints(member: Member, like: Tensor) -> Constraints:
    if member.constraints is None:
        raise TypeError("constraints are inferred before a run is made")
    return member.constraints.to(like)
