"""A step rule that makes an answer robust: points in growing shells around it (BetaRCE)."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from counterfactual_training.core.broadcast import per_member
from counterfactual_training.core.losses import softmax
from counterfactual_training.errors import InputError, check_count
from counterfactual_training.generators.gradient_free import allowed, seeds
from counterfactual_training.generators.live_rows import row_places, rows_in_order
from counterfactual_training.generators.robust import Guarantee
from counterfactual_training.generators.steps import StepInput

if TYPE_CHECKING:
    from counterfactual_training.generators.live_rows import LiveRows

_BLOCK_VALUES = 2**21  # numbers held at once, in points that are tried


@dataclass(frozen=True, eq=False)
class SpheresAround:
    """Plain descent until τ; then random points in growing shells around that answer, until one
    suffices (BetaRCE).

    The nearest point of a shell stays that the model gives τ and the guarantee holds for. In shell
    t, points are between t and t + 1 widths away from the answer, by L2. All rows share the
    directions, and all points obey the rules of their row, rounding included.
    """

    cannot_train: ClassVar = "it asks dozens of models about a hundred points per row and step"
    guarantee: Guarantee
    width: float = 0.1
    num: int = 100

    def __post_init__(self) -> None:
        check_count("num", self.num)
        if not 0 < self.width < torch.inf:
            raise InputError(
                f"width, of a shell, must be positive and finite, got {self.width}."
            )

    def __call__(self, work: LiveRows, step_input: StepInput) -> None:
        origin = work.remembered("origin")
        if "shell" not in work.memory:
            work.memory["shell"] = torch.full_like(work.x[..., :1], -1)
        shell = work.memory["shell"]
        reached = step_input.confidence >= per_member(work.threshold, 1)
        arriving = reached.unsqueeze(-1) & (shell < 0)
        if bool(arriving.any()):
            # The answer that is made robust is one that may be given.
            answer = allowed(work.constraints, work.x_cf, work.x)
            origin.copy_(torch.where(arriving, answer, origin))
        shell.add_(((shell >= 0) | arriving).to(shell))
        change = step_input.grad.mul_(step_input.learning_rate).neg_()
        work.constraints.mask_step(change)
        around = shell.squeeze(-1) >= 0
        points = torch.where(around.unsqueeze(-1), work.x_cf, work.x_cf + change)
        searching = around & work.live
        if bool(searching.any()):
            points = self._moved(points, searching, work, step_input)
        work.place(points)

    def _moved(
        self, points: Tensor, mask_of_rows: Tensor, work: LiveRows, step_input: StepInput
    ) -> Tensor:
        """Points ``(..., a, d)`` with the best of their shell in the rows under the mask."""
        order = row_places(mask_of_rows, int(mask_of_rows.sum(-1).max()))
        directions, reach = self._drawn(step_input, work.x)
        lower, upper = work.interval()
        columns = (work.x, lower, upper, work.memory["origin"], work.memory["shell"])
        rows = [rows_in_order(values, order) for values in columns]
        moved = rows_in_order(points, order).clone()
        y_target = rows_in_order(work.y_target, order)
        member = self.num * points.shape[-1] * prod(points.shape[:-2])
        width = max(1, _BLOCK_VALUES // member)
        for start in range(0, order.shape[-1], width):
            part = slice(start, start + width)
            x, low, high, origin, shell = (values[..., part, :] for values in rows)
            # (..., rows, num, d)
            moves = directions * ((shell + reach) * self.width).unsqueeze(-1)
            tried = (origin.unsqueeze(-2) + moves).clamp(low.unsqueeze(-2), high.unsqueeze(-2))
            repeated = x.unsqueeze(-2).expand_as(tried).flatten(-3, -2)
            tried = allowed(work.constraints, tried.flatten(-3, -2), repeated)
            y = y_target[..., part].repeat_interleave(self.num, -1)
            good = self._good(tried, y, work, step_input).unflatten(-1, (-1, self.num))
            tried = tried.unflatten(-2, (-1, self.num))
            away = (tried - origin.unsqueeze(-2)).norm(dim=-1).double()
            nearest, place = torch.where(good, away, torch.inf).min(-1, keepdim=True)
            place = place.unsqueeze(-1).expand(*place.shape, x.shape[-1])
            best = tried.gather(-2, place).squeeze(-2)
            moved[..., part, :] = torch.where(nearest.isfinite(), best, moved[..., part, :])
        # A fleet takes rows along that are not under the mask.
        mask = rows_in_order(mask_of_rows, order).unsqueeze(-1)
        moved = torch.where(mask, moved, rows_in_order(points, order))
        if order.dim() == 1:
            return points.index_copy(0, order, moved)
        return points.scatter(-2, order.unsqueeze(-1).expand_as(moved), moved)

    def _good(
        self, points: Tensor, y_target: Tensor, work: LiveRows, step_input: StepInput
    ) -> Tensor:
        """Mask ``(..., m)`` of points ``(..., m, d)`` at τ for which the guarantee holds."""
        probability = softmax(step_input.network.logits(points))
        target_probability = probability.gather(-1, y_target.unsqueeze(-1)).squeeze(-1)
        good = target_probability >= per_member(work.threshold, 1)
        good[good.clone()] = self.guarantee.holds(points[good], y_target[good])
        return good

    def _drawn(self, step_input: StepInput, x: Tensor) -> tuple[Tensor, Tensor]:
        """Directions ``(num, d)`` of length 1 and shares ``(num,)`` of a shell's width; of a fleet
        with seeds of its own, ``(members, 1, num, d)`` and ``(members, 1, num)``.
        """
        ways = []
        reaches = []
        for seed in seeds(step_input.noise):
            rng = torch.Generator().manual_seed(seed)
            way = torch.randn(self.num, x.shape[-1], generator=rng, dtype=torch.float64)
            ways.append(way / way.norm(dim=-1, keepdim=True))
            reaches.append(torch.rand(self.num, generator=rng, dtype=torch.float64))
        if step_input.noise.dim() == 1:
            return ways[0].to(x), reaches[0].to(x)
        return torch.stack(ways).unsqueeze(1).to(x), torch.stack(reaches).unsqueeze(1).to(x)
