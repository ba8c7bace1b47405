"""Adam for many members makes the updates that torch's makes for each of them."""

import pytest
import torch
from torch.testing import assert_close

from counterfactual_training.training.adam import AdamOptimizer

RATES, UPDATES = (0.01, 0.3, 0.002), 60


def by_torch(start, grads, rate, betas):
    weights = torch.nn.Parameter(start.clone())
    optimizer = torch.optim.Adam([weights], lr=rate, betas=betas, fused=True)
    for grad in grads:
        weights.grad = grad.clone()
        optimizer.step()
    return weights.detach()


@pytest.mark.parametrize(
    ("dtype", "close"), [(torch.float64, 1e-13), (torch.float32, 3e-6), (torch.bfloat16, 0.05)]
)
@pytest.mark.parametrize(
    "betas", [((0.9, 0.999),) * 3, ((0.85, 0.999), (0.95, 0.99), (0.9, 0.999))]
)
def test_members_with_numbers_of_their_own(dtype, close, betas):
    """Single precision is told to a few roundings: 1 − 0.999 taken after rounding would be 1e-5
    off.
    """
    torch.manual_seed(0)
    start, grads = torch.randn(3, 40).to(dtype), torch.randn(UPDATES, 3, 40).to(dtype)
    weights = torch.nn.Parameter(start.clone())
    optimizer = AdamOptimizer([weights], RATES, torch.Size([3]))
    for group, own in zip(optimizer.param_groups, betas, strict=True):
        group["betas"] = own
    with torch.no_grad():
        for grad in grads:
            optimizer.apply([grad], None)
    for i, rate in enumerate(RATES):
        assert_close(
            weights[i].detach(),
            by_torch(start[i], grads[:, i], rate, betas[i]),
            atol=close,
            rtol=close,
        )


def test_a_member_left_out_does_not_count_the_update():
    torch.manual_seed(0)
    start, grads = torch.randn(2, 10), torch.randn(UPDATES, 2, 10)
    weights = torch.nn.Parameter(start.clone())
    optimizer = AdamOptimizer([weights], (0.01, 0.01), torch.Size([2]))
    with torch.no_grad():
        for k, grad in enumerate(grads):
            spoilt = grad.clone()
            spoilt[1, 3] = torch.nan if k % 3 == 0 else spoilt[1, 3]
            optimizer.apply([spoilt], torch.tensor([0.0, 1.0]) if k % 3 == 0 else None)
    kept = [grad[1] for k, grad in enumerate(grads) if k % 3]
    assert_close(
        weights[0].detach(),
        by_torch(start[0], grads[:, 0], 0.01, (0.9, 0.999)),
        atol=1e-6,
        rtol=1e-6,
    )
    assert_close(
        weights[1].detach(), by_torch(start[1], kept, 0.01, (0.9, 0.999)), atol=1e-6, rtol=1e-6
    )
