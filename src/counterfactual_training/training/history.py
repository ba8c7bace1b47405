"""What happened, epoch by epoch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pandas as pd


@dataclass
class History:
    """One record per epoch, and why training ended.

    Columns: ``epoch``, ``loss``, ``class_loss``, ``divergence``, ``ridge``, ``adversarial``, ``accuracy`` (running, on
    the training batches), ``validation_loss`` (the class loss, rows alike), ``validation_accuracy``, ``share_mature``,
    ``mean_steps`` of the search, ``skipped`` updates and ``seconds``; NaN where an epoch had no such thing. Callbacks
    may add others.
    """

    records: list[dict[str, Any]] = field(default_factory=list)
    stopped: str | None = None

    def to_frame(self) -> pd.DataFrame:
        return pd.DataFrame(self.records)

    def last(self, column: str) -> float:
        """The value of the last epoch; NaN before the first."""
        return float(self.records[-1][column]) if self.records else float("nan")
