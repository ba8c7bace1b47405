"""Model space and the user's columns: what answers must reach, what is printed, what it costs."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from counterfactual_training.constraints import Constraints, OneHotGroup
from counterfactual_training.gates import Gate
from counterfactual_training.tables.advice.black_box import BlackBox
from counterfactual_training.tables.advice.points import Factuals, in_blocks, stored
from counterfactual_training.tables.advice.related import Related
from counterfactual_training.tables.columns.column import Column, stack_columns
from counterfactual_training.tables.columns.encode import Encoder
from counterfactual_training.tables.columns.model_space import (
    column_owner,
    device_and_dtype,
    read_rows,
)
from counterfactual_training.tables.columns.plan_judge import PlanJudge


class Bar:
    """A model and perhaps a gate, and what counts as reached.

    With ``decision``, the bar is the decision: the target must beat every other class, at a point
    that is at least as plausible as not. Otherwise its probability, times the plausibility, must
    reach the threshold of the generator.
    """

    model: nn.Module
    gate: Gate | None
    decision: bool

    def logits(self, x: Tensor) -> Tensor:
        """``(n, k)``, on the CPU."""
        return in_blocks(self.model, x)

    def plausibility(self, x: Tensor) -> Tensor:
        """``(n, k)``, on the CPU: how much each row looks like a real one of each class, given what
        cannot change; NaN without a gate."""
        if self.gate is None:
            return torch.full_like(self.logits(x), torch.nan)
        return in_blocks(self.gate, x).exp()

    def odds(self, x: Tensor, y_target: Tensor) -> Tensor:
        """Log-odds ``(n,)`` of the target at x; if the bar is the decision, against the strongest
        other class alone.
        """
        return self.odds_of(self.logits(x), y_target.cpu())

    def odds_of(self, logits: Tensor, y_target: Tensor) -> Tensor:
        """The same, given the logits ``(n, k)``."""
        target = y_target.unsqueeze(-1)
        target_logits = logits.gather(-1, target)
        others = logits.scatter(-1, target, -torch.inf)
        # Against the strongest rival, even odds are where the target becomes the argmax, of any
        # number of classes.
        if self.decision:
            rival = others.amax(-1, keepdim=True)
        else:
            rival = others.logsumexp(-1, keepdim=True)
        return (target_logits - rival).squeeze(-1)

    def probability(self, x: Tensor, y_target: Tensor) -> Tensor:
        """The probability of the target ``(n,)`` at x; if the bar is the decision, against the
        strongest other class alone.
        """
        return self.odds(x, y_target).sigmoid().to(x)

    def confidence(self, x: Tensor, y_target: Tensor) -> Tensor:
        """What must reach τ ``(n,)``: the probability, times the plausibility if there is a gate.

        If the bar is the decision, both must reach one half, each for itself.
        """
        probability = self.probability(x, y_target)
        if self.gate is None:
            return probability
        return self._gated(probability, self._passes(x, y_target))

    def reaches(self, x: Tensor, y_target: Tensor, floor: Tensor) -> Tensor:
        """Mask ``(n,)`` of the rows whose confidence is at least their floor ``(n,)``."""
        probability = self.probability(x, y_target)
        fine = probability >= floor
        rows = fine.nonzero().squeeze(-1)
        # The gate is slow, and can only lower a probability.
        if self.gate is not None and len(rows):
            fine[rows] = (
                self._gated(probability[rows], self._passes(x[rows], y_target[rows]))
                >= floor[rows]
            )
        return fine

    def _gated(self, probability: Tensor, plausibility: Tensor) -> Tensor:
        # A product of two halves would be a quarter, so each has to reach one half for itself.
        if self.decision:
            return torch.minimum(probability, plausibility)
        return probability * plausibility

    def _passes(self, x: Tensor, y_target: Tensor) -> Tensor:
        return self.plausibility(x).gather(-1, y_target.cpu().unsqueeze(-1)).squeeze(-1).to(x)


class AdviceSpace(Bar):
    """An encoder and rules that belong together, and rows and points in them."""

    encoder: Encoder
    constraints: Constraints

    @cached_property
    def owner(self) -> Tensor:
        """``(d,)`` the feature that each encoded column belongs to."""
        return column_owner(self.encoder)

    @cached_property
    def difficulty(self) -> Tensor:
        """``(m,)`` of each feature."""
        return torch.tensor([feature.difficulty for feature in self.encoder.schema_])

    @cached_property
    def weights(self) -> Tensor | None:
        """Difficulty of the encoded columns ``(d,)``; ``None`` if all are alike."""
        if bool((self.difficulty == 1).all()):
            return None
        return self.difficulty[self.owner]

    @cached_property
    def related(self) -> Related | None:
        """Relations between the columns; ``None`` without any."""
        if self.encoder.schema_.relations:
            return Related(self.encoder)
        return None

    @cached_property
    def following(self) -> list[int]:
        """Features that follow others, by position: at no cost, never by themselves."""
        names = self.encoder.schema_.names
        return [names.index(name) for name in self.encoder.schema_.book.following]

    @cached_property
    def movable(self) -> np.ndarray:
        """Features ``(f,)`` whose values an answer may change, by position; all if there are
        relations between them.
        """
        columns = self.encoder.columns_
        if self.related is not None:
            return np.arange(len(columns))
        return np.flatnonzero([not self.judge.fixed(column.feature.name) for column in columns])

    @cached_property
    def judge(self) -> PlanJudge:
        """The judge of plans, by the rules of the columns."""
        return PlanJudge(self.encoder, self.constraints)

    @cached_property
    def groups(self) -> list[OneHotGroup | None]:
        """The one-hot group of each feature; ``None`` for numbers."""
        starts = [
            self.encoder.slices_[column.feature.name].start for column in self.encoder.columns_
        ]
        # A feature is known by its first encoded column.
        owned = {column: group for group in self.constraints.groups for column in group.columns}
        return [owned.get(start) for start in starts]

    @cached_property
    def numbers(self) -> Tensor:
        """Mask ``(m,)`` of the features that are numbers in model space."""
        return torch.tensor([group is None for group in self.groups])

    @cached_property
    def _alike(self) -> list[list[int]]:
        """Features by position, those together that are printed by the same rules."""
        groups: dict[Any, list[int]] = {}
        for j, column in enumerate(self.encoder.columns_):
            groups.setdefault(column.alike, []).append(j)
        return list(groups.values())

    # ---- rows and points -------------------------------------------------------------------------

    def factuals(self, frame: pd.DataFrame) -> Factuals:
        """Encode the rows of a frame, once for all that follows."""
        numbers, x = read_rows(self.encoder, frame, device_and_dtype(self.model))
        if isinstance(self.model, BlackBox):
            x = self.model.remember(frame, list(numbers.T), x)
        return Factuals(frame, np.arange(len(frame)), x, numbers)

    def as_printed(self, points: Tensor, factuals: Factuals) -> Tensor:
        """Points ``(n, d)`` moved to the encoding of the rows they decode to.

        The same arithmetic as decoding to a frame and encoding it again, without making the frame.
        """
        # Starts from the factuals' own codes, so that unchanged cells keep their bits.
        x = factuals.x
        printed = factuals.x.clone()
        moved = points.detach() != x
        # Often few of many.
        changed = set(self.owner[moved.any(0).cpu()].tolist()) - set(self.following)
        for features in self._alike:
            here = [j for j in features if j in changed]
            columns = [self.encoder.columns_[j] for j in here]
            places = [self.encoder.slices_[column.feature.name] for column in columns]
            if len(here) == 1:
                rows = moved[:, places[0]].any(-1).nonzero().squeeze(-1)
                numbers = factuals.numbers[factuals.place[rows.cpu().numpy()], here[0]]
                cells = (rows, places[0])
                printed[cells] = _print(columns[0], points[cells], x[cells], numbers)
            elif here:
                # Numbers that are printed alike, all at once: a frame may have thousands of
                # columns.
                starts = torch.tensor([place.start for place in places], device=x.device)
                rows, at = moved[:, starts].nonzero(as_tuple=True)
                row = factuals.place[rows.cpu().numpy()]
                cell = (rows, starts[at])
                numbers = factuals.numbers[row, np.array(here)[at.cpu().numpy()]]
                column = stack_columns(columns, at.cpu().numpy())
                printed[cell] = _print(
                    column, points[cell].unsqueeze(-1), x[cell].unsqueeze(-1), numbers
                ).squeeze(-1)
        if self.related is None:
            return printed
        return self.related.follow(printed, factuals)

    def printed(self, points: Tensor, factuals: Factuals, numbers: bool = False) -> Tensor:
        """Points ``(n, d)`` rounded to valid values, away from the factual, and printed.

        With ``numbers``, all categories are known to be valid.
        """
        # Skipping the groups saves most of the time; relations may still change categories.
        if not numbers or self.related is not None:
            rules = self.constraints
        else:
            rules = replace(self.constraints, groups=())
        return self.as_printed(
            rules.to(points).snap(points, factuals.x, factuals.held), factuals
        )

    def keeps(self, points: Tensor, factuals: Factuals) -> Tensor:
        """Mask ``(n,)`` of printed points that break relations no more than their factuals."""
        if self.related is None:
            return torch.ones(len(points), dtype=torch.bool, device=points.device)
        return self.related.kept(points, factuals)

    # ---- changes ---------------------------------------------------------------------------------

    @cached_property
    def pixels(self) -> Tensor:
        """Mask ``(m,)`` of pixels, which are too many to be changed one by one."""
        return torch.tensor([feature.kind == "pixel" for feature in self.encoder.schema_])

    def differs(self, x_cf: Tensor, x: Tensor) -> Tensor:
        """Mask ``(n, m)`` of the features that differ, those that follow others included."""
        # Exactly, because points are codes of printed rows: a cell that prints alike has the same
        # bits.
        moved = (x_cf != x).to(x)
        return (
            moved.new_zeros(len(x), len(self.difficulty)).index_add_(
                1, self.owner.to(x.device), moved
            )
            > 0
        )

    def num_changes(self, x_cf: Tensor, x: Tensor) -> Tensor:
        """``(n,)`` how many features differ, without those that follow others."""
        return (self.distance(x_cf, x) > 0).sum(-1)

    def distance(self, x_cf: Tensor, x: Tensor) -> Tensor:
        """``(n, m)`` how far features moved, L1 in model space; 0 where they followed."""
        moved = (x_cf - x).abs()
        sums = moved.new_zeros(len(moved), len(self.difficulty)).index_add_(
            1, self.owner.to(moved.device), moved
        )
        sums[:, self.following] = 0
        return sums

    def cost(self, x_cf: Tensor, x: Tensor) -> Tensor:
        """``(n,)`` L1 distance in model space, each feature times its difficulty."""
        return (self.distance(x_cf, x) * self.difficulty.to(x)).sum(-1)


def _print(column: Column, z: Tensor, z_factual: Tensor, factual: np.ndarray) -> Tensor:
    """Cells of a column ``(n, width)`` as they are printed; its factuals are ``z_factual`` and
    ``factual`` ``(n,)``.
    """
    numbers, same = column.decode_like(
        z.detach().cpu().double().numpy(), torch.finfo(z.dtype).eps, factual
    )
    code = torch.as_tensor(column.encode(stored(column, numbers))).to(z)
    # A cell that did not change keeps its code bit by bit.
    return torch.where(torch.as_tensor(same, device=z.device).unsqueeze(-1), z_factual, code)
