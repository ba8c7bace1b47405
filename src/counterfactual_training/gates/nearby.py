"""A density at points that differ from known rows in some columns only."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from counterfactual_training.gates.density import FARTHEST, HEAVY, Density, log_sum
from counterfactual_training.gates.gated import Gate


class Nearby:
    """A :class:`Density` at points that differ from rows x ``(n, d)`` in some columns ``(c,)``
    only.

    ``‖x − c_j‖²`` is a sum over columns. The part of the other columns is computed once for each
    row, and so is the whole kernel of given features.

    Args:
        gate: none of whose given features are among the columns.
    """

    def __init__(self, gate: Density, x: Tensor, columns: Tensor) -> None:
        self.gate = gate
        self.x = x
        free, *given = gate.kernels
        place = (free.columns.cumsum(0) - 1)[columns]
        inside = torch.zeros(len(free.middle), dtype=torch.bool, device=x.device)
        inside[place] = True
        self.middle = free.middle[place]
        self.power = -(HEAVY + len(free.middle)) / 2
        self._free = free
        self._given = given
        self._place = place
        self._others = (~inside).nonzero().squeeze(-1)
        self._known: dict[int, tuple[Tensor, Tensor, Tensor | None, Tensor | None]] = {}

    @classmethod
    def of(cls, gate: Gate | None, x: Tensor, columns: Tensor) -> Nearby | None:
        """``None`` for gates of other kinds, and if given features are among the columns."""
        if (
            type(gate) is not Density
            or bool(gate.given.all())
            or bool(gate.given[columns].any())
        ):
            return None
        return cls(gate, x, columns)

    @torch.no_grad()
    def of_class(self, row: Tensor, points: Tensor, label: int) -> Tensor:
        """``log σ(g)`` ``(a,)`` of one class at points ``(a, c)`` of rows ``(a,)``."""
        if not bool(self.gate.judged[label]):
            return points.new_zeros(len(points))
        weights, far, given, total = self._of_label(label)
        z = (points - self.middle).clamp_(-FARTHEST, FARTHEST)
        z = torch.cat([z, z.square().sum(-1, keepdim=True)], -1)
        if len(far) == 1:
            distance = torch.addmm(far, z, weights)
        else:
            distance = far.index_select(0, row).addmm_(z, weights)
        # Rounding can make the distance to a kernel's own centre negative.
        logs = distance.clamp_min_(0.0).log1p_().mul_(self.power).add_(self._free.peak[label])
        if given is not None and total is not None:
            # Of one row, all points share it.
            if len(given) > 1:
                given = given.index_select(0, row)
                total = total.index_select(0, row)
            score = log_sum(logs.add_(given)) - total
        else:
            score = log_sum(logs)
        return functional.logsigmoid(self.gate.slope[label] * (score - self.gate.origin[label]))

    def _of_label(self, label: int) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """What does not depend on points: weights ``(c + 1, m)``, distances in other columns,
        kernels of given ones.
        """
        if label not in self._known:
            own = self._free.weights.unflatten(0, self._free.peak.shape)[label]
            weights = torch.cat([own[:, self._place], own[:, -2:-1]], -1).mT.contiguous()
            far = own[:, -1].unsqueeze(0)
            if len(self._others):
                x = (self.x[:, self._free.columns] - self._free.middle)[:, self._others].clamp(
                    -FARTHEST, FARTHEST
                )
                far = (
                    far
                    + x.square().sum(-1, keepdim=True) * own[:, -2]
                    + x @ own[:, self._others].mT
                )
            given = total = None
            for kernels in self._given:
                given = self.gate.log_kernels(self.x, kernels, label)
                total = log_sum(given.clone())
            self._known[label] = weights, far, given, total
        return self._known[label]
