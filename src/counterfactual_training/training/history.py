"""The history of a training run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pandas as pd


@dataclass
class History:
    """One record per epoch, and why training stopped early, if it did.

    Columns: ``epoch``, ``loss`` and its terms ``class_loss``, ``divergence``, ``ridge`` and ``adversarial``;
    ``accuracy`` on the training batches; ``validation_loss`` and ``validation_accuracy``; ``share_mature`` and
    ``mean_steps`` of the search; ``skipped`` updates; ``seconds``. NaN where a value does not apply. Callbacks may add
    columns.

    Attributes:
        records: one dict per epoch.
        stopped: the reason; ``None`` if all epochs were run.
    """

    records: list[dict[str, Any]] = field(default_factory=list)
    stopped: str | None = None

    def to_frame(self) -> pd.DataFrame:
        """One row per epoch."""
        return pd.DataFrame(self.records)

    def last(self, column: str) -> float:
        """The value of the last epoch; NaN without any."""
        return float(self.records[-1][column]) if self.records else float("nan")
