"""The question that people ask: what would have to change?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from counterfactual_training.errors import InputError
from counterfactual_training.estimator.answer import explain_rows
from counterfactual_training.estimator.explanation import Explanation
from counterfactual_training.estimator.find import Finder
from counterfactual_training.estimator.inputs import check_count
from counterfactual_training.estimator.native import in_kind
from counterfactual_training.estimator.options import Question
from counterfactual_training.estimator.rules import ask
from counterfactual_training.search import Generator


class Explains:
    """The method ``explain`` of anything that can find counterfactuals of a frame's rows."""

    classes_: Any
    num_std_: float

    def _asked(self, rows: Any) -> pd.DataFrame:
        """The rows of a question, checked."""
        raise NotImplementedError

    def _finder(self) -> Finder:
        raise NotImplementedError

    def _explainer(
        self, given: str | Generator | None, confidence: float | None, max_steps: int | None
    ) -> tuple[Generator, bool]:
        """The generator of an explanation, and whether it asks for the decision alone."""
        raise NotImplementedError

    def explain(
        self,
        X: Any,  # noqa: N803
        target: Any = None,
        *,
        n_options: int = 1,
        confidence: float | None = None,
        vary: Sequence[Any] | None = None,
        lock: Sequence[Any] | None = None,
        domain: Mapping[str, Any] | Sequence[Any] | None = None,
        step: Mapping[str, float] | Sequence[Any] | None = None,
        max_change: Mapping[str, float] | Sequence[Any] | None = None,
        difficulty: Mapping[str, float] | Sequence[Any] | None = None,
        max_changes: int | Sequence[Any] | None = None,
        relations: Sequence[Any] | None = None,
        generator: str | Generator | None = None,
        max_steps: int | None = None,
        sparsify: bool = True,
    ) -> Explanation:
        """What would have to change for each row of X to get the target class, within the rules of the columns.

        Every claim holds for the rows as printed: after rounding to integers, decimals and categories. No change in the
        answer can be undone, alone, with the target still reached. A column that is found to suffice changes alone.

        The rules below hold for this question, on top of those stated in ``fit``: nothing becomes freer. Each is given
        once for all rows, or as a list with one entry per row.

        Args:
            X: rows like those of ``fit``. Of a polars frame, the frames of the answer are polars too.
            target: a label for all rows, or one per row; by default the most probable class that is not predicted.
            n_options: how many answers per row, at most; each changes other columns. With a gate, one of them is what
                the model alone asks for, if that differs.
            confidence: probability of the target to reach, times the plausibility if there is a gate. By default the
                answer flips the decision, and lies where the gate finds it at least as plausible as not.
            vary: the only columns that may change.
            lock: columns that may not change.
            domain: by column, where advice may lead: ``(lower, upper)``, or a list of categories.
            step: by column; advice names multiples of this number.
            max_change: by column, the largest change in its units (in ranks for ordinal columns).
            difficulty: by column, how much dearer than usual a change is.
            max_changes: the largest number of columns to change; those that follow others do not count.
            relations: between columns, such as ``["satisfactory <= total"]``; see the classifier.
            generator: used alone if given. By default the preset's, then other searches for rows that still miss.
            max_steps: of the search; by default :data:`parameters.EXPLAIN_STEPS`, or as the preset's generator has it.
            sparsify: take back changes that the target does not need: whole ones, the smallest first, then a share of
                the numbers.
        """
        frame = self._asked(X)
        rules = {"vary": vary, "lock": lock, "domain": domain, "step": step, "max_change": max_change}
        groups = ask(frame.index, **rules, difficulty=difficulty, max_changes=max_changes, relations=relations)
        options = check_count("n_options", n_options)
        if confidence is not None and not 0 < confidence <= 1:
            raise InputError(f"confidence is a probability above 0 and up to 1, got {confidence!r}.")
        chosen, decides = self._explainer(generator, confidence, max_steps)
        # A generator that is named here is used alone, without falling back on others.
        question = Question(chosen, generator is None, sparsify)
        finder = replace(self._finder(), decision=decides)
        told = explain_rows(finder, frame, self.classes_, target, question, groups, options, self.num_std_)
        return in_kind(told, X)
