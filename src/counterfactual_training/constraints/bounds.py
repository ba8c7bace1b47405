"""Where the counterfactuals of given rows may lie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from counterfactual_training.constraints.discrete import OneHotGroup


class Bounds(NamedTuple):
    """Where the counterfactuals of given factuals may lie; each tensor has one row per factual, or
    a single row.

    ``home`` and ``choices`` have no columns if categories are not projected.
    """

    lower: Tensor  #: the box, like ``upper`` broadcastable to ``(..., n, d)``
    upper: Tensor
    home: Tensor  #: ``(..., n, d)`` the factuals as they look if they keep their categories
    #: ``(..., n, Σ (max(k, 2) + 1))`` categories to choose from, by group; see OneHotGroup.settle
    choices: Tensor
    #: ``(..., n, d)`` the factuals, if there are relations between features
    factual: Tensor = torch.empty(1, 0)

    def hold(self, x: Tensor, held: Tensor | None) -> Bounds:
        """The bounds with the cells under the mask ``held`` ``(..., n, d)`` closed around their
        factuals x.
        """
        if held is None:
            return self
        # An interval of one point holds a cell through every clamp, without a mask of its own in
        # the search.
        lower, upper = (torch.where(held, x, bound) for bound in (self.lower, self.upper))
        return self._replace(lower=lower, upper=upper)

    def settle(self, groups: Sequence[OneHotGroup], x_cf: Tensor) -> Tensor:
        """Round every group of points ``(..., n, d)`` to the nearest of its row's allowed
        categories, in place.
        """
        start = 0
        for group in groups:
            # One more than the categories: the last choice of each group is "no category".
            end = start + group.num_categories + 1
            x_cf[..., group.index] = group.settle(x_cf, self.home, self.choices[..., start:end])
            start = end
        return x_cf
