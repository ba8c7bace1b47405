"""The line that makes a score a gate: a known share of real rows passes, also where many are
alike.
"""

from math import log

import pytest
import torch

from counterfactual_training.gates.calibration import Calibrated, calibrate

TOP = log(0.98 / 0.02)


def passes(scores: torch.Tensor, quantile: float, at: torch.Tensor) -> torch.Tensor:
    """σ(g) at scores ``(n,)`` of one class, calibrated on others; rows of another class have
    −20.
    """
    both = torch.stack(
        [torch.cat([scores, torch.full((30,), -20.0)]), torch.zeros(len(scores) + 30)], -1
    )
    line = calibrate(both, (torch.arange(len(both)) >= len(scores)).long(), 2, quantile)
    return Calibrated(line).passes(at[:, None])[:, 0].exp()


@pytest.mark.parametrize("n", [20, 21, 101, 2000])
@pytest.mark.parametrize("quantile", [0.05, 0.1])
def test_without_ties_the_line_goes_through_two_quantiles(n, quantile):
    scores = torch.randn(n, generator=torch.Generator().manual_seed(n)) * 3 - 40
    low, high = torch.quantile(scores, torch.tensor([quantile, quantile + 0.2]))
    line = calibrate(scores[:, None], torch.zeros(n, dtype=torch.long), 1, quantile)
    assert line.origin.equal(low[None]) and line.slope.equal(TOP / (high - low)[None])


@pytest.mark.parametrize("quantile", [0.05, 0.1])
@pytest.mark.parametrize(
    "shares", [(1.0,), (0.3, 0.7), (0.04, 0.2, 0.76), (0.02, 0.15, 0.83), (0.11, 0.1, 0.79)]
)
def test_rows_that_are_alike_pass_together(shares, quantile):
    """Nine in ten rows pass, clearly, and what is less like the class than any of them does not."""
    levels = torch.arange(len(shares)) * 3.0 + 5
    scores = torch.cat(
        [level.expand(round(200 * share)) for level, share in zip(levels, shares, strict=True)]
    )
    scores = scores + 1e-6 * torch.randn(
        len(scores), generator=torch.Generator().manual_seed(0)
    )  # rounding
    passed = passes(scores, quantile, scores)
    assert float((passed > 0.97).float().mean()) >= 0.89
    assert float(passes(scores, quantile, torch.tensor([0.0]))) < 0.01


def test_half_is_at_most_midway_to_the_next_lower_score():
    scores = torch.tensor([1.0] * 5 + [2.0] * 95)
    middle, tied = passes(scores, 0.1, torch.tensor([1.5, 2.0])).tolist()
    assert middle == pytest.approx(0.5, abs=1e-3) and tied == pytest.approx(0.98, abs=1e-3)
    alone = passes(torch.full((50,), 2.0), 0.1, torch.tensor([0.0, 1.0, 2.0])).tolist()
    assert alone == pytest.approx([0.02, 0.5, 0.98], abs=1e-3)


def test_scores_that_hardly_tell_classes_apart_still_do():
    scores = torch.tensor([[0.1, 0.0]] * 50 + [[0.0, 0.1]] * 50)
    line = calibrate(scores, torch.arange(100) // 50, 2, 0.1)
    torch.testing.assert_close(
        Calibrated(line).passes(scores[:50]).exp()[0],
        torch.tensor([0.98, 0.0]),
        atol=1e-3,
        rtol=0,
    )
