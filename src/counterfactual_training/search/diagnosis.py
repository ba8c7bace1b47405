"""Why a row did not arrive: which constraints stood in its way."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from counterfactual_training.constraints import Constraints
from counterfactual_training.core.broadcast import per_member
from counterfactual_training.core.losses import class_loss_gradient
from counterfactual_training.search.chain import Differentiable
from counterfactual_training.search.generator import Generator
from counterfactual_training.search.gradient import search_gradient
from counterfactual_training.search.penalties import SearchState
from counterfactual_training.search.result import Binding, SearchResult, Status


def diagnose_rows(
    result: SearchResult,
    network: Differentiable,
    x: Tensor,
    y_target: Tensor,
    generator: Generator,
    constraints: Constraints,
) -> SearchResult:
    """Fill in ``binding``, and tell rows that are stuck (infeasible) from rows that ran out of steps (exhausted).

    At the last iterate, a feature *wants* to move if the gradient of Eq. 1 says so, and is *blocked* if mutability and
    domain leave nothing of that step. A row whose wishes are all blocked is infeasible. That is a statement about
    this point and this model, not a proof that no counterfactual exists anywhere.
    """
    late = result.status == int(Status.EXHAUSTED)
    binding = torch.zeros(x.shape, dtype=torch.int8, device=x.device)
    if not bool(late.any()):
        return replace(result, binding=binding)
    # A lone model looks at the late rows only; a fleet needs its rectangular batch.
    rows = late.nonzero().squeeze(-1) if late.dim() == 1 else slice(None)
    x_cf, x, y_target = result.x_cf[rows], x[rows], y_target[rows]
    logits = network.logits(x_cf)
    steps = generator.max_steps
    limit = steps.unsqueeze(-1) if isinstance(steps, Tensor) else steps
    state = SearchState(x, x_cf, x_cf - x, logits, y_target, limit, limit)
    wish = search_gradient(generator, state, network, class_loss_gradient(logits.softmax(-1), y_target))
    wish.mul_(per_member(generator.learning_rate, 2)).neg_()
    size = wish.abs()
    wants = size > torch.maximum(1e-6 * size.amax(-1, keepdim=True), size.new_full((), 1e-12))
    masked = constraints.mask_step(wish)
    moved = constraints.project(x_cf + masked, constraints.bounds(x)) - x_cf
    blocked = wants & (moved.abs() <= 1e-3 * size)
    stuck = wants.any(-1) & (blocked == wants).all(-1)
    reason = torch.where(masked == 0, int(Binding.MUTABILITY), int(Binding.DOMAIN)).to(torch.int8)
    binding[rows] = reason * (blocked & late[rows].unsqueeze(-1))
    status = result.status.clone()
    status[rows] = torch.where(stuck & late[rows], int(Status.INFEASIBLE), status[rows])
    return replace(result, status=status, binding=binding)
