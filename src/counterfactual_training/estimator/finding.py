"""Counterfactuals that hold for the frame a person reads: searched, decoded, looked at again, put right, made short.

A search ends in model space. What counts is the row in the user's units, after rounding to integers, decimals and
categories; so every claim about a row is made about the encoding of the decoded row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from counterfactual_training.constraints import Constraints
from counterfactual_training.errors import InputError
from counterfactual_training.estimator.shortening import Shortener
from counterfactual_training.estimator.swapping import swap_categories
from counterfactual_training.gates import Gate, Gated, towards_real
from counterfactual_training.search import Generator, Status, evaluating, generic, search
from counterfactual_training.tabular.encode import Encoder
from counterfactual_training.threads import sensible_threads

# A row that decoding took below τ is searched again, aiming at this share of the way from τ to 1.
_AIM_HIGHER = 0.4
# Few rows get to the last resort; they may take so many times the steps.
_PATIENCE = 4
# A probability is trusted to this many digits: the same row in another batch may differ in the last bit.
_DIGITS = 1e-6
# … and a small one to this share.
_SHARE = 1e-4
_CHUNK = 65_536
# Standard deviations away from which a row may itself be why numbers overflow.
_FAR = 1e6


@dataclass(frozen=True, eq=False)
class Found:
    """Counterfactuals of n rows with m features in d encoded columns.

    Attributes:
        frame: in the user's units.
        x, x_cf: ``(n, d)`` factuals and counterfactuals; ``x_cf`` is the encoding of ``frame``.
        probability: ``(n, k)`` at x_cf.
        plausibility: ``(n,)`` how much x_cf looks like a real row of the target; NaN without a gate.
        confidence: ``(n,)`` probability of the target times plausibility, which is to reach τ.
        status: ``(n,)`` values of :class:`Status`; whether a miss was infeasible is not asked here.
        num_steps: ``(n,)`` of all searches together.
        distance: ``(n, m)`` how far each cell moved, L1 in model space; 0 is unchanged.
    """

    frame: pd.DataFrame
    x: Tensor
    x_cf: Tensor
    probability: np.ndarray
    plausibility: np.ndarray
    confidence: np.ndarray
    status: np.ndarray
    num_steps: np.ndarray
    distance: np.ndarray


@dataclass(frozen=True, eq=False)
class Finder:
    """Model, encoder and rules that belong together, and the gate that tells where advice may end, if there is one."""

    model: nn.Module
    encoder: Encoder
    constraints: Constraints
    gate: Gate | None = None

    @cached_property
    def searched(self) -> nn.Module:
        """The classifier whose probability is to reach τ."""
        return self.model if self.gate is None else Gated(self.model, self.gate)

    def training_constraints(self, project_categories: bool = False) -> Constraints:
        """Directions, box and reachable categories; every column continuous, how the authors searched in training,
        unless categories are projected."""
        return self._free if project_categories else replace(self._free, category_projection="never")

    @cached_property
    def _free(self) -> Constraints:
        """The rules as the search sees them: categories and box, while integers and decimals may still vary.

        A search that rounded every column where it arrives would have nothing left to move when rounding took it
        back below τ. :meth:`_settled` rounds afterwards, away from the factual.
        """
        return replace(self.constraints, lattices=())

    # ---- the model -------------------------------------------------------------------------------------------------

    @property
    def like(self) -> Tensor:
        """Of the device and precision of the model."""
        parameter = next(self.model.parameters(), None)
        return parameter if parameter is not None else torch.empty(())

    def encode(self, frame: pd.DataFrame) -> Tensor:
        """Model space ``(n, d)``, as the model wants it."""
        x = torch.as_tensor(self.encoder.transform(frame)).to(self.like)
        self._refuse_far(frame, x, x)
        return x

    def refuse_far(self, frame: pd.DataFrame) -> None:
        """Name the row that is so far outside that no number comes out of the model or its gate, if there is one."""
        x = self.encode(frame)
        self._refuse_far(frame, x, _rows_of(self.searched, x).to(x))

    def _refuse_far(self, frame: pd.DataFrame, x: Tensor, computed: Tensor) -> None:
        """Refuse rows x ``(n, d)`` of which what was computed ``(n, ...)`` is not finite, if it is their own fault."""
        far = x.abs().nan_to_num(torch.inf)
        blamed = ~computed.isfinite().all(-1) & (far.amax(-1) > _FAR)
        if bool(blamed.any()):
            row = int(blamed.nonzero()[0])
            column = self.encoder.columns_[int(self._owner(x.device)[far[row].argmax()])].feature.name
            raise InputError(
                f"Row {frame.index[row]}: {column!r} is {frame[column].iloc[row]}, so far outside anything else seen "
                f"in training that the model cannot compute with it; so it is with {int(blamed.sum())} of {len(frame)} "
                "row(s). Check the unit, or leave these rows out."
            )

    def logits(self, x: Tensor) -> Tensor:
        """``(n, k)``, on the CPU."""
        return _rows_of(self.model, x)

    def plausibility(self, x: Tensor) -> Tensor:
        """``(n, k)``, on the CPU: how much each row looks like a real one of each class, given what cannot change; NaN
        without a gate."""
        if self.gate is None:
            return torch.full_like(self.logits(x), torch.nan)
        return _rows_of(self.gate, x).exp()

    # ---- the search ------------------------------------------------------------------------------------------------

    def find(
        self, frame: pd.DataFrame, y_target: np.ndarray, generator: Generator, fall_back: bool, sparsify: bool
    ) -> Found:
        """A counterfactual for every row of the frame.

        Args:
            frame: the factuals.
            y_target: ``(n,)`` class indices.
            generator: tried first, then once more with a higher aim.
            fall_back: try rows that it does not bring there with nothing but class loss and distance.
            sparsify: see :class:`Shortener`.
        """
        x = self.encode(frame)
        y = torch.as_tensor(y_target, device=x.device)
        threshold = float(generator.decision_threshold)
        result = search(self.searched, x, y, generator, self._free, diagnose=False)
        # A gate has no say in what is decided already.
        there = (result.status == int(Status.ALREADY_THERE)) | (self.logits(x).argmax(-1).to(y) == y)
        steps = result.num_steps.masked_fill(there, 0)
        x_cf, confidence = self._settled(result.x_cf, x, y, frame, threshold)
        x_cf[there] = x[there]

        def missed() -> Tensor:
            return ((confidence < threshold + _DIGITS) & ~there).nonzero().squeeze(-1)

        def take(rows: Tensor, points: Tensor) -> None:
            """Points for these rows, where they are better than what there is."""
            tried, gained = self._settled(points, x[rows], y[rows], frame.iloc[rows.cpu().numpy()], threshold)
            better = gained > confidence[rows]
            x_cf[rows[better]], confidence[rows[better]] = tried[better], gained[better]

        # A search by line that did not arrive would go the same way again.
        hopeful = result.converged if generator.step_rule == "line" else ~there
        for attempt in _attempts(generator, fall_back):
            rows = missed()
            rows = rows[hopeful[rows]]
            if len(rows) == 0:
                break
            again = search(self.searched, x[rows], y[rows], attempt, self._free, diagnose=False)
            take(rows, again.x_cf)
            steps[rows] += again.num_steps
        rows = missed()
        if isinstance(self.searched, Gated) and fall_back and len(rows):
            take(rows, towards_real(self.searched, x[rows], y[rows], self.constraints.to(x), threshold + _DIGITS))
        if sparsify and not bool(there.all()):
            # A best effort gives up nothing that helps, and asks for nothing that does not.
            trusted = (_SHARE * confidence).clamp_max(_DIGITS)
            floor = confidence.clamp_max(threshold + _DIGITS) - trusted * (confidence < threshold)
            rows = (~there).nonzero().squeeze(-1)
            kept = frame.iloc[rows.cpu().numpy()]
            x_cf[rows] = self._shortened(x_cf[rows], x[rows], y[rows], kept, floor[rows])
        decoded = self.encoder.inverse_transform(x_cf, like=frame)
        return self._found(decoded, x, y, there.cpu(), steps, threshold)

    def implausible(self, found: Found, y_target: np.ndarray, generator: Generator) -> np.ndarray:
        """``(n,)`` whether it is the gate alone that a row does not pass: without it, it is there or a search arrives.

        Args:
            found: counterfactuals for the classes ``y_target`` ``(n,)``, by this generator.
        """
        missed = found.status == int(Status.EXHAUSTED)
        if self.gate is None:
            return np.zeros_like(missed)
        beyond = found.probability[np.arange(len(missed)), y_target] >= float(generator.decision_threshold)
        rows = np.flatnonzero(missed & ~beyond)
        if len(rows):
            x = found.x[rows].to(self.like)
            y = torch.as_tensor(y_target[rows], device=x.device)
            beyond[rows] = search(self.model, x, y, generator, self._free, diagnose=False).converged.cpu().numpy()
        return missed & beyond

    def _settled(
        self, x_cf: Tensor, x: Tensor, y: Tensor, frame: pd.DataFrame, threshold: float
    ) -> tuple[Tensor, Tensor]:
        """Points ``(n, d)`` rounded to valid values, as the encoding of what they then decode to; and their confidence.

        Rows that rounding took below τ get other categories, if that helps.
        """
        rules = self.constraints.to(x)
        points = self._as_printed(rules.snap(x_cf, x), frame)
        if not rules.groups:
            return points, self._confidence(points, y)
        return swap_categories(points, x, y, rules, self._confidence, threshold + _DIGITS)

    def _as_printed(self, x_cf: Tensor, frame: pd.DataFrame) -> Tensor:
        """Points ``(n, d)`` moved to the encoding of what they decode to."""
        return self.encode(self.encoder.inverse_transform(x_cf, like=frame))

    def _confidence(self, x: Tensor, y_target: Tensor) -> Tensor:
        """Probability ``(n,)`` of the target, where x is; gated, where there is a gate."""
        probability = _rows_of(self.searched, x).softmax(-1)
        return probability.gather(-1, y_target.cpu().unsqueeze(-1)).squeeze(-1).to(x.device)

    def _shortened(self, x_cf: Tensor, x: Tensor, y: Tensor, frame: pd.DataFrame, floor: Tensor) -> Tensor:
        """Counterfactuals that ask for less; where decoding takes the shorter one below the floor, the longer stays."""
        pixels = torch.tensor([feature.kind == "pixel" for feature in self.encoder.schema_], device=x.device)
        shorten = Shortener(self._confidence, self._owner(x.device), pixels, self.constraints)
        shorter = self._as_printed(shorten(x_cf, x, y, floor), frame)
        return torch.where((self._confidence(shorter, y) >= floor).unsqueeze(-1), shorter, x_cf)

    def _found(
        self, frame: pd.DataFrame, x: Tensor, y: Tensor, there: Tensor, steps: Tensor, threshold: float
    ) -> Found:
        x_cf = self.encode(frame)
        target = y.cpu().unsqueeze(-1)
        plausibility = self.plausibility(x_cf).gather(-1, target).squeeze(-1)
        confidence = self._confidence(x_cf, y).cpu()
        searched = torch.where(confidence >= threshold, int(Status.CONVERGED), int(Status.EXHAUSTED))
        return Found(
            frame=frame,
            x=x.cpu(),
            x_cf=x_cf.cpu(),
            probability=self.logits(x_cf).softmax(-1).numpy(),
            plausibility=plausibility.numpy(),
            confidence=confidence.numpy(),
            status=torch.where(there, int(Status.ALREADY_THERE), searched).numpy(),
            num_steps=steps.cpu().numpy(),
            distance=self._by_feature((x_cf - x).abs()).cpu().double().numpy(),
        )

    def _owner(self, device: torch.device) -> Tensor:
        """``(d,)`` which feature each encoded column belongs to."""
        widths = torch.tensor([column.width for column in self.encoder.columns_])
        return torch.arange(len(widths)).repeat_interleave(widths).to(device)

    def _by_feature(self, values: Tensor) -> Tensor:
        """Sums of encoded columns ``(n, d)`` over each feature: ``(n, m)``."""
        num_features = len(self.encoder.columns_)
        return values.new_zeros(len(values), num_features).index_add_(1, self._owner(values.device), values)


def _rows_of(module: nn.Module, x: Tensor) -> Tensor:
    """What a module says of the rows x, in eval mode, block by block, on the CPU."""
    with evaluating(module), torch.no_grad(), sensible_threads(module, x[:_CHUNK]):
        return torch.cat([module(part).cpu() for part in x.split(_CHUNK)])


def _attempts(generator: Generator, fall_back: bool) -> Sequence[Generator]:
    """What to try, in this order, for rows that do not arrive."""
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
