"""Which columns of a wide table promise most."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from counterfactual_training.generators import evaluating
from counterfactual_training.tables.advice.points import Factuals

if TYPE_CHECKING:
    from counterfactual_training.tables.advice.find import Finder

# Tables of more columns are wide: only the most promising columns of each row are tried.
WIDEST = 40


def promising(finder: Finder, factuals: Factuals, y: Tensor, most: int) -> Tensor:
    """Mask ``(n, m)`` of features that may move; if there are more than ``most``, those with the
    steepest way to go.
    """
    x = factuals.x
    lower, upper = finder.constraints.to(x).interval(x, factuals.held)
    owner = finder.owner.to(x.device)
    num_features = len(finder.encoder.columns_)
    # A feature may move if any of its encoded columns has room.
    free = (
        x.new_zeros(len(x), num_features).index_add_(1, owner, (upper - lower).expand_as(x)) > 0
    )
    if num_features <= most:
        return free
    if finder.background is not None:
        # Without a gradient: by how much the target's probability varies with each feature among
        # real rows.
        promise = finder.background.sensitivity.to(x)[:, y].mT.masked_fill(~free, -1.0)
        return torch.zeros_like(free).scatter_(-1, promise.topk(most, -1).indices, True) & free
    with evaluating(finder.model), torch.enable_grad():
        leaf = x.detach().requires_grad_()
        of_target = finder.model(leaf).log_softmax(-1).gather(-1, y.unsqueeze(-1)).sum()
        slope = torch.autograd.grad(of_target, leaf)[0]
    # Slope times the room that is left that way: a steep column at its limit promises nothing.
    way = (
        torch.where(slope > 0, upper - x, x - lower)
        * slope.abs()
        / finder.difficulty.to(x)[owner]
    )
    promise = (
        x.new_zeros(len(x), num_features).index_add_(1, owner, way).masked_fill(~free, -1.0)
    )
    return torch.zeros_like(free).scatter_(-1, promise.topk(most, -1).indices, True) & free
