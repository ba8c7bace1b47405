"""Model space and the user's columns: which belong together, what is printed, what a change costs."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from counterfactual_training.constraints import Constraints
from counterfactual_training.estimator.bar import Bar
from counterfactual_training.estimator.foreign import BlackBox
from counterfactual_training.estimator.inputs import column_owner, device_and_dtype, encode_rows
from counterfactual_training.estimator.points import Factuals, stored
from counterfactual_training.estimator.related import Related
from counterfactual_training.tabular.encode import Encoder
from counterfactual_training.tabular.frame import read


class Space(Bar):
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
        return None if bool((self.difficulty == 1).all()) else self.difficulty[self.owner]

    @cached_property
    def related(self) -> Related | None:
        """Relations between the columns; ``None`` without any."""
        return Related(self.encoder) if self.encoder.schema_.relations else None

    @cached_property
    def following(self) -> list[int]:
        """Features that follow others, by position; they cost nothing and are never changed by themselves."""
        names = self.encoder.schema_.names
        return [names.index(name) for name in self.encoder.schema_.book.following]

    # ---- rows and points -------------------------------------------------------------------------------------------

    def factuals(self, frame: pd.DataFrame) -> Factuals:
        """Encode the rows of a frame, once for all that follows."""
        x = encode_rows(self.encoder, frame, device_and_dtype(self.model))
        numbers = np.stack([read(c.feature, frame[c.feature.name]) for c in self.encoder.columns_], 1)
        if isinstance(self.model, BlackBox):
            x = self.model.remember(frame, list(numbers.T), x)
        return Factuals(frame, np.arange(len(frame)), x, numbers)

    def as_printed(self, points: Tensor, factuals: Factuals) -> Tensor:
        """Points ``(n, d)`` moved to the encoding of the rows they decode to.

        The same arithmetic as decoding to a frame and encoding it again, without making the frame.
        """
        x, printed, precision = factuals.x, factuals.x.clone(), torch.finfo(points.dtype).eps
        moved = points.detach() != x
        following = set(self.following)
        for j in set(self.owner[moved.any(0).cpu()].tolist()) - following:  # often few of many
            column = self.encoder.columns_[j]
            place = self.encoder.slices_[column.feature.name]
            rows = moved[:, place].any(-1).nonzero().squeeze(-1)
            z, own = points[rows, place].detach().cpu().double().numpy(), factuals.numbers[rows.cpu().numpy(), j]
            numbers, same = column.decode_like(z, precision, own)
            code = torch.as_tensor(column.encode(stored(column, numbers))).to(points)
            unchanged = torch.as_tensor(same, device=x.device).unsqueeze(-1)
            printed[rows, place] = torch.where(unchanged, x[rows, place], code)
        return printed if self.related is None else self.related.follow(printed, factuals)

    def printed(self, points: Tensor, factuals: Factuals, numbers: bool = False) -> Tensor:
        """Points ``(n, d)`` rounded to valid values, away from the factual, and printed.

        With ``numbers``, all categories are known to be valid.
        """
        rules = self.constraints if not numbers or self.related is not None else replace(self.constraints, groups=())
        return self.as_printed(rules.to(points).snap(points, factuals.x, factuals.held), factuals)

    def keeps(self, points: Tensor, factuals: Factuals) -> Tensor:
        """Mask ``(n,)`` of printed points that break no relation between columns more than their factuals do."""
        if self.related is None:
            return torch.ones(len(points), dtype=torch.bool, device=points.device)
        return self.related.kept(points, factuals)

    # ---- changes ---------------------------------------------------------------------------------------------------

    @cached_property
    def pixels(self) -> Tensor:
        """Mask ``(m,)`` of pixels, which are too many to be changed one by one."""
        return torch.tensor([feature.kind == "pixel" for feature in self.encoder.schema_])

    def differs(self, x_cf: Tensor, x: Tensor) -> Tensor:
        """Mask ``(n, m)`` of the features that differ, those that follow others included."""
        moved = (x_cf != x).to(x)
        return moved.new_zeros(len(x), len(self.difficulty)).index_add_(1, self.owner.to(x.device), moved) > 0

    def num_changes(self, x_cf: Tensor, x: Tensor) -> Tensor:
        """``(n,)`` how many features differ, without those that follow others."""
        return (self.distance(x_cf, x) > 0).sum(-1)

    def distance(self, x_cf: Tensor, x: Tensor) -> Tensor:
        """``(n, m)`` how far each feature moved, L1 in model space; 0 for those that only followed others."""
        moved = (x_cf - x).abs()
        sums = moved.new_zeros(len(moved), len(self.difficulty)).index_add_(1, self.owner.to(moved.device), moved)
        sums[:, self.following] = 0
        return sums

    def cost(self, x_cf: Tensor, x: Tensor) -> Tensor:
        """``(n,)`` L1 distance in model space, each feature times its difficulty."""
        return (self.distance(x_cf, x) * self.difficulty.to(x)).sum(-1)
