"""The loop announces, callbacks listen."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.optim import Optimizer
from tqdm.auto import tqdm

from counterfactual_training.training.config import TrainConfig
from counterfactual_training.training.history import History


@dataclass
class Run:
    """A training run as its callbacks see it. Setting ``stop`` to a reason ends the run after this epoch."""

    model: nn.Module
    optimizer: Optimizer
    config: TrainConfig
    history: History
    epoch: int = 0  # epochs done
    stop: str | None = None
    bad_updates: int = 0  # in a row, up to now, skipped for a non-finite loss
    sound: bool = True  # finite weights, and the last update was not skipped


class Callback:
    """Override what you want to hear of."""

    def on_train_begin(self, run: Run) -> None: ...

    def on_epoch_end(self, run: Run) -> None: ...

    def on_train_end(self, run: Run) -> None: ...


class Progress(Callback):
    """A bar with the time left; silent where standard error is not a terminal, unless asked for."""

    def __init__(self, show: bool | None = None) -> None:
        self.show = sys.stderr.isatty() if show is None else show
        self.bar: Any = None

    def on_train_begin(self, run: Run) -> None:
        self.bar = tqdm(
            total=run.config.epochs,
            initial=run.epoch,
            desc="training",
            unit="epoch",
            disable=not self.show,
            leave=False,
        )

    def on_epoch_end(self, run: Run) -> None:
        record = run.history.records[-1]
        shown = {"loss": "loss", "accuracy": "acc", "validation_accuracy": "val", "share_mature": "mature"}
        notes = {short: f"{record[name]:.3f}" for name, short in shown.items() if record[name] == record[name]}
        self.bar.set_postfix(notes, refresh=False)
        self.bar.update(1)

    def on_train_end(self, run: Run) -> None:
        self.bar.close()
