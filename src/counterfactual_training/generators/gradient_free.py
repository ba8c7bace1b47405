"""Step rules that ask the model for its answers only, so they explain models that have no
gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from counterfactual_training.constraints import Constraints
from counterfactual_training.core.broadcast import per_member
from counterfactual_training.core.losses import softmax
from counterfactual_training.errors import check_count
from counterfactual_training.generators.real_rows import by_distance
from counterfactual_training.generators.spaces import FeatureSpace
from counterfactual_training.generators.steps import StepInput

if TYPE_CHECKING:
    from counterfactual_training.generators.chain import Differentiable
    from counterfactual_training.generators.live_rows import LiveRows

_BLOCK_VALUES = 2**21  # numbers held at once, in points that are tried


@dataclass(frozen=True, eq=False)
class NearestRows:
    """Step t tries the t-th nearest row that the model gives the target class, moved inside the
    rules of its row.

    The first one that reaches τ stays. If none does, the row ends at the most confident of those
    that were tried.
    """

    gradient_free: ClassVar = True
    cannot_train: ClassVar = (
        "its counterfactuals are training rows, which Eq. 2 would teach to be implausible and "
        "other losses would repeat"
    )
    rows: Tensor  #: ``(m, d)``
    predicted: Tensor | None = (
        None  #: ``(..., m)`` their classes by the model, for each member of a fleet
    )

    def prepare(self, ask: Callable[[Tensor], Tensor]) -> NearestRows:
        """The rule with the classes that the model predicts."""
        return replace(self, predicted=ask(self.rows).argmax(-1))

    def __call__(self, work: LiveRows, step_input: StepInput) -> None:
        rows = self.rows.to(work.x)
        if "order" not in work.memory:
            work.memory["order"] = self._order(work, rows)
            # Confidence and place of the best row tried.
            work.memory["best"] = torch.zeros(
                *work.index.shape, 2, dtype=torch.float64, device=rows.device
            )
        order = work.memory["order"]
        best = work.memory["best"]
        tried = _column(order, step_input.step - 1)
        here = _column(order, step_input.step)
        # How good the last try was is known only now.
        now = torch.stack([step_input.confidence, tried.squeeze(-1)], -1).to(best)
        best.copy_(torch.where((tried >= 0) & (now[..., :1] >= best[..., :1]), now, best))
        last = torch.as_tensor(
            (step_input.step > 0) & (step_input.step >= work.limit - 1), device=rows.device
        ).unsqueeze(-1)
        here = torch.where((here < 0) | last, best[..., 1:].long(), here)
        points = rows[here.squeeze(-1)].clamp(*work.interval())
        # A row for which the model knows no example stays.
        work.place(
            torch.where(
                order[..., :1] >= 0, allowed(work.constraints, points, work.x), work.x_cf
            )
        )

    def _order(self, work: LiveRows, rows: Tensor) -> Tensor:
        """Places of the rows to try ``(..., n, t)``, the nearest first; −1 where there is none."""
        if self.predicted is None:
            raise RuntimeError("prepare() has not been called.")
        lower, upper = work.interval()
        width = max(1, _BLOCK_VALUES // max(1, prod(work.x.shape[:-2]) * rows.numel()))
        parts = []
        for start in range(0, work.x.shape[-2], width):
            part = slice(start, start + width)
            _, distance, _ = by_distance(
                work.x[..., part, :], rows, *(b[..., part, :] for b in (lower, upper))
            )
            fits = self.predicted.unsqueeze(-2) == work.y_target[..., part].unsqueeze(-1)
            # Where it would not move, it is no try.
            distance = distance.masked_fill(~fits | (distance == 0), torch.inf)
            distances, place = distance.sort(dim=-1, stable=True)
            parts.append(
                place.masked_fill(distances.isinf(), -1)[..., : max(1, work.limits.stop)]
            )
        return torch.cat(parts, -2)


@dataclass(frozen=True)
class SeedSpace(FeatureSpace):
    """The features themselves, with one seed per step for rules that draw points."""

    def noise(self, num: int, rng: torch.Generator | None, like: Tensor) -> Tensor:
        if rng is None:
            rng = torch.Generator().manual_seed(0)
        # Whole numbers that half precision holds exactly.
        return torch.randint(256, (num, 4), generator=rng, device=rng.device).to(like)


@dataclass(frozen=True)
class GrowingSpheres:
    """Step t draws points between the spheres of radius t·η and (t + 1)·η around x (Laugel et al.
    2018).

    The nearest one that reaches τ stays, after its changes that are not needed are taken back, the
    smallest first. Until then x′ is the most confident point of its shell. All rows share the
    draws.
    """

    gradient_free: ClassVar = True
    cannot_train: ClassVar = "it asks the model about a thousand points per row and step"
    num: int = 1000

    def __post_init__(self) -> None:
        check_count("num", self.num)

    def __call__(self, work: LiveRows, step_input: StepInput) -> None:
        shell = self._shell(step_input, work.x)
        lower, upper = work.interval()
        goal = per_member(work.threshold, 2)
        width = max(
            1, _BLOCK_VALUES // (prod(work.x.shape[:-2]) * shell.shape[-2] * shell.shape[-1])
        )
        chosen = work.x_cf.clone()
        for start in range(0, work.x.shape[-2], width):
            part = slice(start, start + width)
            x = work.x[..., part, :]
            y = work.y_target[..., part]
            low, high = (bound[..., part, :].unsqueeze(-2) for bound in (lower, upper))
            points = (x.unsqueeze(-2) + shell).clamp(low, high)
            repeated = x.unsqueeze(-2).expand_as(points).flatten(-3, -2)
            points = allowed(work.constraints, points.flatten(-3, -2), repeated).view(
                points.shape
            )
            p = target_probability(
                step_input.network, points.flatten(-3, -2), y.repeat_interleave(self.num, -1)
            )
            p = p.view(points.shape[:-1])
            # Those that arrive by distance, others by probability: no distance is as large as 1e9.
            away = (points - x.unsqueeze(-2)).norm(dim=-1).double()
            rank = torch.where(p >= goal, away - 1e9, -p.double()).argmin(-1, keepdim=True)
            chosen[..., part, :] = points.gather(
                -2, rank.unsqueeze(-1).expand(*rank.shape, x.shape[-1])
            ).squeeze(-2)
        work.place(self._fewer(chosen, work, step_input))

    def _shell(self, step_input: StepInput, x: Tensor) -> Tensor:
        """Moves ``(num, d)``, or ``(members, 1, num, d)``, uniform between two spheres."""
        d = x.shape[-1]
        drawn = []
        for seed in seeds(step_input.noise):
            rng = torch.Generator().manual_seed(seed)
            way = torch.randn(self.num, d, generator=rng, dtype=torch.float64)
            inner = (step_input.step / (step_input.step + 1)) ** d  # share of the ball's volume
            share = inner + (1 - inner) * torch.rand(
                self.num, 1, generator=rng, dtype=torch.float64
            )
            drawn.append(way / way.norm(dim=-1, keepdim=True) * share ** (1 / d))
        if step_input.noise.dim() == 1:
            moves = drawn[0]
        else:
            moves = torch.stack(drawn).unsqueeze(1)
        rate = (
            step_input.learning_rate.unsqueeze(-1)
            if isinstance(step_input.learning_rate, Tensor)
            else step_input.learning_rate
        )
        return (moves.to(x.device) * rate * (step_input.step + 1)).to(x)

    def _fewer(self, points: Tensor, work: LiveRows, step_input: StepInput) -> Tensor:
        """Points ``(..., n, d)`` that reach τ with changes taken back, feature by feature, as long
        as they still do.
        """
        goal = per_member(work.threshold, 1)
        arrived = target_probability(step_input.network, points, work.y_target) >= goal
        if not bool(arrived.any()):
            return points
        owner = torch.arange(points.shape[-1], device=points.device)
        for group in work.constraints.groups:  # one-hot columns go back together
            owner[list(group.columns)] = group.columns[0]
        size = torch.zeros_like(points).index_add_(-1, owner, (points - work.x).abs())
        order = size.argsort(dim=-1, stable=True)
        for place in range(points.shape[-1]):
            back = (owner == order[..., place : place + 1]) & arrived.unsqueeze(-1)
            if not bool((back & (points != work.x)).any()):
                continue
            tried = allowed(work.constraints, torch.where(back, work.x, points), work.x)
            reaches = target_probability(step_input.network, tried, work.y_target) >= goal
            points = torch.where((reaches & arrived).unsqueeze(-1), tried, points)
        return points


def seeds(noise: Tensor) -> list[int]:
    """The numbers of one step's draws of a :class:`SeedSpace`: one, or one per member."""
    parts = noise.reshape(-1, 4).long()
    weighted = parts * torch.tensor([1, 2**8, 2**16, 2**24], device=parts.device)
    return list(weighted.sum(-1).tolist())


def _column(places: Tensor, number: int) -> Tensor:
    """One column ``(..., n, 1)``; −1 beyond the ends."""
    inside = 0 <= number < places.shape[-1]
    if inside:
        return places[..., number : number + 1]
    return torch.full_like(places[..., :1], -1)


def allowed(constraints: Constraints, points: Tensor, x: Tensor) -> Tensor:
    """Points ``(..., n, d)``, each of its row of x, as they look if all rules hold, rounding
    included.
    """
    return constraints.snap(constraints.project(points.clone(), constraints.bounds(x)), x)


def target_probability(network: Differentiable, points: Tensor, y_target: Tensor) -> Tensor:
    """p ``(..., n)`` of the target class at points ``(..., n, d)``."""
    return softmax(network.logits(points)).gather(-1, y_target.unsqueeze(-1)).squeeze(-1)
