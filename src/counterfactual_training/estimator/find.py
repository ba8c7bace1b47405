"""Counterfactuals that hold for the rows a person reads: searched, rounded, checked again, shortened.

A search ends in model space. What counts is the row in the user's units, after rounding to integers, decimals and
categories, so every claim is made about the encoding of the row as printed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from counterfactual_training.constraints import Constraints
from counterfactual_training.errors import ModelError
from counterfactual_training.estimator.explanation import Explanation
from counterfactual_training.estimator.inputs import (
    column_owner,
    device_and_dtype,
    encode_rows,
    refuse_far,
    target_classes,
)
from counterfactual_training.estimator.refine import Shortener, swap_categories
from counterfactual_training.estimator.why import Obstacles, find_obstacles
from counterfactual_training.gates import Gate, Gated, towards_real
from counterfactual_training.search import Generator, Status, evaluating, generic, search
from counterfactual_training.tabular.column import Column
from counterfactual_training.tabular.dtypes import restore_numbers
from counterfactual_training.tabular.encode import Encoder
from counterfactual_training.tabular.frame import read, to_float
from counterfactual_training.threads import sensible_threads

# A row that rounding took below τ is searched again, aiming at this share of the way from τ to 1.
_AIM_HIGHER = 0.4
# Few rows need the last attempt; it may take this many times the steps.
_PATIENCE = 4
# A probability is trusted to this many digits: the same row in another batch may differ in the last bit.
_DIGITS = 1e-6
# … and a small one to this share.
_SHARE = 1e-4
_CHUNK = 65_536


@dataclass(frozen=True, eq=False)
class Factuals:
    """Rows to explain: in the user's units, in model space ``(n, d)``, and each column read as numbers ``(n,)``."""

    frame: pd.DataFrame
    x: Tensor
    numbers: tuple[np.ndarray, ...]

    def take(self, rows: Tensor) -> Factuals:
        """Some of the rows, by number."""
        index = rows.cpu().numpy()
        return Factuals(self.frame.iloc[index], self.x[rows], tuple(own[index] for own in self.numbers))


@dataclass(frozen=True, eq=False)
class Counterfactuals:
    """What was found for n rows with m features in d encoded columns.

    Attributes:
        frame: in the user's units.
        x_cf: ``(n, d)`` the encoding of ``frame``.
        probability: ``(n, k)`` at x_cf.
        plausibility: ``(n,)`` how much x_cf looks like a real row of the target; NaN without a gate.
        confidence: ``(n,)`` probability of the target times plausibility, to be compared with τ.
        status: ``(n,)`` values of :class:`Status`; rows that missed are all ``EXHAUSTED`` here.
        num_steps: ``(n,)`` of all searches together.
        distance: ``(n, m)`` how far each cell moved, L1 in model space; 0 is unchanged.
    """

    frame: pd.DataFrame
    x_cf: Tensor
    probability: np.ndarray
    plausibility: np.ndarray
    confidence: np.ndarray
    status: np.ndarray
    num_steps: np.ndarray
    distance: np.ndarray


@dataclass(frozen=True, eq=False)
class Finder:
    """Model, encoder and rules that belong together; and, if there is one, the gate that limits where advice ends."""

    model: nn.Module
    encoder: Encoder
    constraints: Constraints
    gate: Gate | None = None

    @cached_property
    def searched(self) -> nn.Module:
        """The classifier whose probability has to reach τ."""
        return self.model if self.gate is None else Gated(self.model, self.gate)

    @cached_property
    def _free(self) -> Constraints:
        """The rules as the search sees them: categories and box, while integers and decimals may still vary.

        A search that fixed rounded columns on arrival would have nothing left to move when rounding took it back
        below τ. :meth:`_settled` rounds afterwards, away from the factual.
        """
        return replace(self.constraints, lattices=())

    # ---- rows and points -------------------------------------------------------------------------------------------

    def factuals(self, frame: pd.DataFrame) -> Factuals:
        """Encode the rows of a frame, once for all that follows."""
        x = encode_rows(self.encoder, frame, device_and_dtype(self.model))
        return Factuals(frame, x, tuple(read(c.feature, frame[c.feature.name]) for c in self.encoder.columns_))

    def as_printed(self, points: Tensor, factuals: Factuals) -> Tensor:
        """Points ``(n, d)`` moved to the encoding of the rows they decode to.

        The same arithmetic as decoding to a frame and encoding it again, without making the frame.
        """
        z, precision = points.detach().cpu().double().numpy(), torch.finfo(points.dtype).eps
        parts = []
        for column, own in zip(self.encoder.columns_, factuals.numbers, strict=True):
            numbers, same = column.decode_like(z[:, self.encoder.slices_[column.feature.name]], precision, own)
            parts.append(column.encode(_stored(column, np.where(same, own, numbers))))
        return torch.as_tensor(np.hstack(parts)).to(points)

    def logits(self, x: Tensor) -> Tensor:
        """``(n, k)``, on the CPU."""
        return _in_blocks(self.model, x)

    def plausibility(self, x: Tensor) -> Tensor:
        """``(n, k)``, on the CPU: how much each row looks like a real one of each class, given what cannot change; NaN
        without a gate."""
        if self.gate is None:
            return torch.full_like(self.logits(x), torch.nan)
        return _in_blocks(self.gate, x).exp()

    def _confidence(self, x: Tensor, y_target: Tensor) -> Tensor:
        """Probability ``(n,)`` of the target at x, gated if there is a gate."""
        probability = _in_blocks(self.searched, x).softmax(-1)
        return probability.gather(-1, y_target.cpu().unsqueeze(-1)).squeeze(-1).to(x.device)

    # ---- the search ------------------------------------------------------------------------------------------------

    def find(
        self, factuals: Factuals, y: Tensor, generator: Generator, fall_back: bool, sparsify: bool
    ) -> Counterfactuals:
        """A counterfactual for every row.

        Args:
            y: ``(n,)`` target classes.
            generator: tried first, then once more with a higher aim.
            fall_back: retry rows that still miss with class loss and distance only, then along real rows.
            sparsify: see :class:`Shortener`.
        """
        x, threshold = factuals.x, float(generator.decision_threshold)
        result = search(self.searched, x, y, generator, self._free, diagnose=False)
        # A row that is decided already is there, whatever its gate says.
        there = (result.status == int(Status.ALREADY_THERE)) | (self.logits(x).argmax(-1).to(y) == y)
        steps = result.num_steps.masked_fill(there, 0)
        x_cf, confidence = self._settled(result.x_cf, factuals, y, threshold)
        x_cf[there] = x[there]

        def missed() -> Tensor:
            return ((confidence < threshold + _DIGITS) & ~there).nonzero().squeeze(-1)

        def keep_better(rows: Tensor, points: Tensor) -> None:
            tried, gained = self._settled(points, factuals.take(rows), y[rows], threshold)
            better = gained > confidence[rows]
            x_cf[rows[better]], confidence[rows[better]] = tried[better], gained[better]

        # A line search that did not arrive would take the same path again.
        hopeful = result.converged if generator.step_rule == "line" else ~there
        for attempt in _attempts(generator, fall_back):
            rows = missed()
            rows = rows[hopeful[rows]]
            if len(rows) == 0:
                break
            again = search(self.searched, x[rows], y[rows], attempt, self._free, diagnose=False)
            keep_better(rows, again.x_cf)
            steps[rows] += again.num_steps
        rows = missed()
        if isinstance(self.searched, Gated) and fall_back and len(rows):
            points = towards_real(self.searched, x[rows], y[rows], self.constraints.to(x), threshold + _DIGITS)
            keep_better(rows, points)
        rows = (~there).nonzero().squeeze(-1)
        if sparsify and len(rows):
            # A best effort keeps every change that helps, and drops those that do not.
            trusted = (_SHARE * confidence).clamp_max(_DIGITS)
            floor = confidence.clamp_max(threshold + _DIGITS) - trusted * (confidence < threshold)
            x_cf[rows] = self.shorten(x_cf[rows], factuals.take(rows), y[rows], floor[rows])
        return self._measured(x_cf, factuals, y, there.cpu(), steps, threshold)

    def shorten(self, x_cf: Tensor, factuals: Factuals, y: Tensor, floor: Tensor) -> Tensor:
        """Counterfactuals ``(n, d)`` that ask for less; a row that rounding takes below its floor keeps the longer."""
        x, owner = factuals.x, column_owner(self.encoder).to(x_cf.device)
        pixels = torch.tensor([feature.kind == "pixel" for feature in self.encoder.schema_], device=x.device)
        shortener = Shortener(self._confidence, owner, pixels, self.constraints)
        shorter = self.as_printed(shortener(x_cf, x, y, floor), factuals)
        return torch.where((self._confidence(shorter, y) >= floor).unsqueeze(-1), shorter, x_cf)

    def implausible(self, x: Tensor, found: Counterfactuals, y: Tensor, generator: Generator) -> np.ndarray:
        """``(n,)`` whether only the gate stops a row: the model alone gives the target τ, here or after a search."""
        missed = found.status == int(Status.EXHAUSTED)
        if self.gate is None:
            return np.zeros_like(missed)
        y_target = y.cpu().numpy()
        beyond = found.probability[np.arange(len(missed)), y_target] >= float(generator.decision_threshold)
        rows = np.flatnonzero(missed & ~beyond)
        if len(rows):
            result = search(self.model, x[rows], y[rows], generator, self._free, diagnose=False)
            beyond[rows] = result.converged.cpu().numpy()
        return missed & beyond

    def _settled(self, x_cf: Tensor, factuals: Factuals, y: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
        """Points ``(n, d)`` rounded to what is printed, and their confidence ``(n,)``.

        Rows that rounding took below τ get other categories, if that helps.
        """
        x = factuals.x
        rules = self.constraints.to(x)
        points = self.as_printed(rules.snap(x_cf, x), factuals)
        if not rules.groups:
            return points, self._confidence(points, y)
        return swap_categories(points, x, y, rules, self._confidence, threshold + _DIGITS)

    def _measured(
        self, x_cf: Tensor, factuals: Factuals, y: Tensor, there: Tensor, steps: Tensor, threshold: float
    ) -> Counterfactuals:
        frame = self.encoder.inverse_transform(x_cf, like=factuals.frame)
        x_cf = self.as_printed(x_cf, factuals)  # the encoding of that frame
        plausibility = self.plausibility(x_cf).gather(-1, y.cpu().unsqueeze(-1)).squeeze(-1)
        confidence = self._confidence(x_cf, y).cpu()
        searched = torch.where(confidence >= threshold, int(Status.CONVERGED), int(Status.EXHAUSTED))
        moved = (x_cf - factuals.x).abs()
        by_feature = moved.new_zeros(len(moved), len(self.encoder.columns_))
        by_feature.index_add_(1, column_owner(self.encoder).to(moved.device), moved)
        return Counterfactuals(
            frame=frame,
            x_cf=x_cf,
            probability=self.logits(x_cf).softmax(-1).numpy(),
            plausibility=plausibility.numpy(),
            confidence=confidence.numpy(),
            status=torch.where(there, int(Status.ALREADY_THERE), searched).numpy(),
            num_steps=steps.cpu().numpy(),
            distance=by_feature.cpu().double().numpy(),
        )


def explain_rows(
    finder: Finder,
    frame: pd.DataFrame,
    classes: np.ndarray,
    target: Any,
    generator: Generator,
    fall_back: bool = True,
    sparsify: bool = True,
) -> Explanation:
    """What would have to change for each row of a frame to get the target class.

    Args:
        frame: the factuals, in the user's units.
        classes: labels ``(k,)`` in the order of the model's logits.
        target: a label for all rows or one per row; ``None`` is the most probable class that is not predicted.
        generator: of the search, with the threshold to reach.
        fall_back, sparsify: see :meth:`Finder.find`.
    """
    factuals = finder.factuals(frame)
    x, before = factuals.x, finder.logits(factuals.x).softmax(-1).numpy()
    y_target = target_classes(target, classes, before)
    y = torch.as_tensor(y_target, device=x.device)
    try:
        found = finder.find(factuals, y, generator, fall_back, sparsify)
    except ModelError:
        refuse_far(finder.encoder, frame, x, _in_blocks(finder.searched, x).to(x))
        raise
    status = found.status.copy()
    status[finder.implausible(x, found, y, generator)] = int(Status.IMPLAUSIBLE)
    missed = np.flatnonzero(status == int(Status.EXHAUSTED))
    stuck, why = find_obstacles(
        finder.searched, finder.encoder, finder.constraints, x[missed], found.x_cf[missed], y[missed]
    )
    status[missed[stuck]] = int(Status.INFEASIBLE)
    obstacles: list[Obstacles] = [[] for _ in status]
    for row, hindrance in zip(missed, why, strict=True):
        obstacles[row] = hindrance
    threshold = float(generator.decision_threshold)
    names = np.array([Status(code).name.lower() for code in sorted(Status)], dtype=object)
    return Explanation(
        original=frame,
        frame=found.frame,
        changed=pd.DataFrame(found.distance > 0, index=frame.index, columns=list(frame.columns)),
        target=classes[y_target],
        decision=classes[before.argmax(1)],
        prediction=classes[found.probability.argmax(1)],
        confidence=found.probability[np.arange(len(frame)), y_target],
        plausibility=found.plausibility,
        status=names[status],
        converged=found.confidence >= threshold,
        cost=found.distance.sum(1),
        num_steps=found.num_steps,
        decision_threshold=threshold,
        distance=found.distance,
        obstacles=obstacles,
        encoder=finder.encoder,
    )


def _in_blocks(module: nn.Module, x: Tensor) -> Tensor:
    """The module's output for rows x, in eval mode, block by block, on the CPU."""
    with evaluating(module), torch.no_grad(), sensible_threads(module, x[:_CHUNK]):
        return torch.cat([module(part).cpu() for part in x.split(_CHUNK)])


def _stored(column: Column, numbers: np.ndarray) -> np.ndarray:
    """Numbers ``(n,)`` as a cell of the column's dtype holds them: float32 has fewer digits than a point."""
    if column.feature.is_category or column.dtype == np.float64:
        return numbers
    return to_float(restore_numbers(numbers, column.dtype, whole=column.feature.kind == "integer"))


def _attempts(generator: Generator, fall_back: bool) -> Sequence[Generator]:
    """What to try, in order, for rows that missed."""
    threshold = float(generator.decision_threshold)
    higher = threshold + _AIM_HIGHER * (1 - threshold)
    attempts = [generator.replace(decision_threshold=higher)]
    if fall_back and generator.step_rule == "fixed":
        plain = generic(
            learning_rate=generator.learning_rate,
            max_steps=_PATIENCE * generator.max_steps,
            decision_threshold=threshold,
        )
        attempts += [plain, plain.replace(decision_threshold=higher)]
    return attempts
