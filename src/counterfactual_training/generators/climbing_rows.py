"""The rows of a line search, and where each of them is."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(eq=False)
class ClimbingRows:
    """Rows ``(..., a)`` or ``(..., a, d)`` of a block. A lone model may work on a part of it, a
    fleet works on all.
    """

    index: Tensor  # place in the flattened block
    x: Tensor
    y_target: Tensor
    one_hot: Tensor
    # The box of each row, mutability included; a held feature has an interval of one point.
    lower: Tensor
    upper: Tensor
    still: Tensor  # mask of the cells that keep their value
    x_cf: Tensor  # this field and all below change as rows climb
    before: Tensor  # the point before x_cf
    x_adv: Tensor  # the last iterate within ε
    value: Tensor  # of the objective at x_cf
    confidence: Tensor
    gap: Tensor  # log-odds beyond those of τ
    slope: Tensor  # gradient of the objective in features that may move; at a ridge, along it
    reach: Tensor  # length of the next step, as a share of the longest
    turned: Tensor  # whether the last step did not help
    tries: Tensor
    moves: Tensor
    live: Tensor

    def part(self, mask: Tensor) -> ClimbingRows:
        """A copy of the rows under the mask; in a fleet all rows, because they must stay a
        rectangle.
        """
        # Callers compare with ``is`` to see whether they got a part or all rows.
        if mask.dim() > 1:
            return self
        where = mask.nonzero().squeeze(-1)
        return ClimbingRows(
            **{name: values.index_select(0, where) for name, values in vars(self).items()}
        )

    def put(self, part: ClimbingRows) -> None:
        """Write a part back."""
        # Fields above x_cf do not change while a part climbs.
        names = list(vars(self))
        for name in names[names.index("x_cf") :] if part is not self else ():
            getattr(self, name).index_copy_(0, part.index, getattr(part, name))

    def set(self, mask: Tensor, **values: Tensor) -> None:
        """Replace values of the rows under the mask."""
        for name, new in values.items():
            if new.dim() > mask.dim():
                under = mask.unsqueeze(-1)
            else:
                under = mask
            # A new tensor each time: parts and earlier points may still hold the old one.
            setattr(self, name, torch.where(under, new, getattr(self, name)))
