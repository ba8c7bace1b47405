"""The question that people ask: what would have to change?"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from torch import Tensor

from counterfactual_training import defaults
from counterfactual_training.errors import InputError, bad_value, check_count
from counterfactual_training.gates import Gate
from counterfactual_training.generators import Generator
from counterfactual_training.tables.advice.answer import explain_rows
from counterfactual_training.tables.advice.explanation import Explanation
from counterfactual_training.tables.advice.find import Finder
from counterfactual_training.tables.advice.lasting import lasting_advice
from counterfactual_training.tables.advice.options import Question
from counterfactual_training.tables.advice.rules import Rules, ask
from counterfactual_training.tables.advice.testimony import Witnesses
from counterfactual_training.tables.columns.native import is_native, like_native
from counterfactual_training.torch_modes import in_plain_torch

# Rows that a gate judges together; bounds memory.
_CHUNK = 4096
# Nobody reads more answers for one person, and looking for them takes long.
_MOST_OPTIONS = 100
# Nobody reads more answers for one person, and looking for them takes long.
_MOST_OPTIONS = 100


class Explains:
    """The methods ``explain`` and ``plausibility`` of anything that can find counterfactuals of a
    frame's rows.
    """

    classes_: Any
    num_std_: float
    gate_: Gate | None
    witnesses_: Witnesses | None = None
    # What to do if there are none.
    _without_witnesses = "fit some first, with add_witnesses(X, y)"

    def _asked(self, rows: Any) -> pd.DataFrame:
        """The rows of a question, checked."""
        raise NotImplementedError

    def _encoded(self, x: Any) -> Tensor:
        """Rows in model space ``(n, d)``, checked."""
        raise NotImplementedError

    def _finder(self) -> Finder:
        raise NotImplementedError

    def _explainer(
        self, generator: str | Generator | None, confidence: float | None, max_steps: int | None
    ) -> tuple[Generator, bool]:
        """The generator of an explanation, and whether it asks for the decision alone."""
        raise NotImplementedError

    @in_plain_torch
    def explain(  # noqa: PLR0913  # public
        self,
        X: Any,
        target: Any = None,
        *,
        n_options: int = 1,
        confidence: float | None = None,
        lasting: float | None = None,
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
        time_limit: float | None = None,
    ) -> Explanation:
        """What would have to change for each row of X to get the target class, within the rules of
        the columns.

        Every claim holds for the rows as printed: values that are searched are those that people
        read. No change in the answer can be undone, alone, with the target still reached. Each
        column counts a little beside its cost, so that few columns change.

        The rules below hold for this question, on top of those stated in ``fit``: nothing becomes
        freer. Each is given once for all rows, or as a list with one entry per row.

        Args:
            X: rows like those of ``fit``. Of a polars frame, the frames of the answer are polars
                too; of no rows, the answer is empty.
            target: a label for all rows, or one per row; by default the most probable class that is
                not predicted.
            n_options: answers per row, at most, each with other columns, up to 100; with a gate,
                what the model alone asks for comes last if it is cheaper.
            confidence: probability of the target to reach, times the plausibility if there is a
                gate. By default the answer flips the decision, and lies where the gate finds it at
                least as plausible as not.
            lasting: share of witnesses that should accept the answer; by default 0.9 where there
                are witnesses, and 0 where there are none. Half of them steer: a row is asked for
                more confidence until they find it so probable that one more would accept. The other
                half, which had no part in it, says how often the answer holds. ``lasting`` of the
                answer has that, and beside it what would be just enough for the model itself, for
                which 0 asks alone. A classifier gets witnesses by
                :meth:`~CounterfactualClassifier.add_witnesses`, an :class:`Explainer` when it is
                made.
            vary, lock, max_changes, relations: rules of this question, all described in
                :data:`RULES`.
            domain, step, max_change, difficulty: rules by column, such as ``{"debt": (0, None)}``.
            generator: searches along gradients instead, alone; its answers are rounded afterwards.
            max_steps: of a generator; by default :data:`parameters.EXPLAIN_STEPS`, or as a
                ready-made one has it.
            sparsify: of a generator, take back what the target does not need: whole changes, then
                parts of numbers.
            time_limit: seconds after which no further ways are tried. What was found by then is the
                answer, and ``complete`` is false. A search that has begun still ends, so this is no
                guarantee.

        Returns:
            An :class:`Explanation`, with one entry per row, or per option.
        """
        frame = self._asked(X)
        rules = {
            "vary": vary,
            "lock": lock,
            "domain": domain,
            "step": step,
            "max_change": max_change,
        }
        groups = ask(
            frame.index,
            **rules,
            difficulty=difficulty,
            max_changes=max_changes,
            relations=relations,
        )
        options = check_count("n_options", n_options, most=_MOST_OPTIONS)
        _check(confidence, max_steps, time_limit)
        share = self._share_of(lasting)
        if time_limit is None:
            until = math.inf
        else:
            until = time.monotonic() + time_limit

        def search(
            bar: float | None = confidence,
            rows: NDArray[np.int64] | None = None,
            labels: Any = target,
        ) -> Explanation:
            """The answers for this confidence, of all rows or of some."""
            chosen, decides = self._explainer(generator, bar, max_steps)
            question = Question(chosen, generator is not None, sparsify)
            finder = self._finder().asking(decides, until)
            some, own = _of_rows(frame, groups, rows)
            return explain_rows(
                finder, some, self.classes_, labels, question, own, options, self.num_std_
            )

        if self.witnesses_ is None:
            explanation = search()
        else:
            explanation = lasting_advice(search, frame.index, self.witnesses_, share, options)
        return in_kind(explanation, X)

    def _share_of(self, lasting: float | None) -> float:
        """Of witnesses that should accept an answer, checked; 0 for what is just enough."""
        if lasting is None:
            if self.witnesses_ is None:
                return 0.0
            return defaults.LASTING
        if not (_is_number(lasting) and 0 <= lasting < 1):
            raise bad_value("lasting", "a share of witnesses from 0 to below 1", lasting)
        if lasting and self.witnesses_ is None:
            raise InputError(
                f"lasting={lasting:g} asks witnesses, and this {type(self).__name__} has none: "
                f"{self._without_witnesses}.",
                code="no_witnesses",
                field="lasting",
            )
        return float(lasting)

    @in_plain_torch
    def plausibility(self, X: Any, *, given_fixed: bool = False) -> np.ndarray:
        """How much each row looks like a real one of each class ``(n, k)``: from 0 to 1, in the
        order of ``classes_``.

        A row that is low everywhere is unlike anything seen in training. ``gate="learned"`` takes
        immutable columns as given and judges by the others only. Raises an :class:`InputError`
        without a gate.

        Args:
            X: rows like those of ``fit``.
            given_fixed: judge each row among those that are like it in what cannot change, as
                ``explain`` does.
        """
        x = self._encoded(X)
        gate = self.gate_
        if gate is None:
            raise InputError(
                f"This {type(self).__name__} has no gate to judge plausibility: state "
                "gate='density'."
            )
        # The gate as a search sees it: conditional on immutable columns.
        if given_fixed:
            return self._finder().plausibility(x).numpy()
        return np.concatenate(
            [gate.plausibility(part).cpu().numpy() for part in x.split(_CHUNK)]
        )


def _of_rows(
    frame: pd.DataFrame,
    groups: Sequence[tuple[np.ndarray, Rules]],
    rows: NDArray[np.int64] | None,
) -> tuple[pd.DataFrame, Sequence[tuple[np.ndarray, Rules]]]:
    """Some of the rows, by ascending numbers, and the rules of these; all rows for ``None``."""
    # A frame of thousands of columns is slow to cut.
    if rows is None or len(rows) == len(frame):
        return frame, groups
    own = [(np.flatnonzero(np.isin(rows, places)), rules) for places, rules in groups]
    return frame.iloc[rows], [(places, rules) for places, rules in own if len(places)]


def _check(confidence: Any, max_steps: Any, time_limit: Any) -> None:
    if confidence is not None and not (_is_number(confidence) and 0 < confidence <= 1):
        raise bad_value("confidence", "a number above 0 and up to 1", confidence)
    if time_limit is not None and not (_is_number(time_limit) and time_limit > 0):
        raise bad_value("time_limit", "a positive number of seconds", time_limit)
    if max_steps is not None:
        check_count("max_steps", max_steps)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


# ---- frames of other libraries -------------------------------------------------------------------


@dataclass(frozen=True, eq=False, repr=False)
class NativeExplanation:
    """An :class:`Explanation` with frames of the library that the rows came in: polars, …

    Where an explanation has an index, with several options per row, the frames begin with columns
    ``row`` and ``option``. Everything else is that of ``pandas``, the same explanation in pandas.
    """

    pandas: Explanation
    rows: Any

    @property
    def original(self) -> Any:
        return self._native(self.pandas.original)

    @property
    def frame(self) -> Any:
        return self._native(self.pandas.frame)

    @property
    def changed(self) -> Any:
        return self._native(self.pandas.changed, typed=False)

    @property
    def summary(self) -> Any:
        return self._native(self.pandas.summary, typed=False)

    def differences(self) -> Any:
        return like_native(self.pandas.differences(), self.rows, typed=False)

    def option(self, number: int) -> Any:
        return like_native(self.pandas.option(number), self.rows)

    def __len__(self) -> int:
        return len(self.pandas)

    def __getattr__(self, name: str) -> Any:
        # Without this, looking for ``pandas`` would look for ``pandas`` without end.
        if name in ("pandas", "rows"):  # not there yet while an object is copied
            raise AttributeError(name)
        return getattr(self.pandas, name)

    def __repr__(self) -> str:
        return repr(self.pandas)

    def __str__(self) -> str:
        return str(self.pandas)

    def _repr_html_(self) -> str:
        return self.pandas._repr_html_()

    def _native(self, frame: pd.DataFrame, typed: bool = True) -> Any:
        return like_native(
            frame, self.rows, ("row", "option") if self.pandas.several else (), typed
        )


def in_kind(explanation: Explanation, rows: Any) -> Any:
    """The explanation with frames like the rows that were asked about."""
    if is_native(rows):
        return NativeExplanation(explanation, rows)
    return explanation
