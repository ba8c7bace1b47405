"""Questions about an interval of a regression, asked as those about a classifier."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from counterfactual_training.generators import Generator, line, make_generator
from counterfactual_training.tables.advice.explains import Explains
from counterfactual_training.tables.advice.find import Finder
from counterfactual_training.tables.estimators import parameters

_OURS = ("self", "X", "target", "confidence", "lasting")
#: What may be stated about a question.
ARGUMENTS = [
    name for name in inspect.signature(Explains.explain).parameters if name not in _OURS
]


class Inquiry(Explains):
    """A question to a regressor about one interval, in the terms of a classifier of "inside" and
    "outside".
    """

    classes_ = np.array([0, 1])

    def __init__(
        self,
        params: Mapping[str, Any],
        num_std: float,
        frame: pd.DataFrame,
        finder: Finder,
        rows: tuple[Tensor, Tensor],
    ) -> None:
        self.num_std_ = num_std
        self.gate_ = finder.gate
        self._frame = frame
        self._finder_of_question = finder
        self._params = params
        self._rows = rows

    def _asked(self, rows: Any) -> pd.DataFrame:
        return self._frame

    def _encoded(self, x: Any) -> Tensor:
        return self._finder_of_question.factuals(self._frame).x

    def _finder(self) -> Finder:
        return self._finder_of_question

    def _explainer(
        self, generator: str | Generator | None, confidence: float | None, max_steps: int | None
    ) -> tuple[Generator, bool]:
        # Only inside or not counts: the odds of "inside" are no probability that a user could ask
        # for.
        usual = line()
        if isinstance(generator, str):
            # Some recipes learn from training rows, which no training of this regressor has shown
            # them.
            usual = make_generator(generator, *self._rows)
        chosen, _ = parameters.make_explainer(usual, generator, parameters.DECISION, max_steps)
        return chosen, True
