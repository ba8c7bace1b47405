"""Real rows as places to go to."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor

from counterfactual_training.constraints import Constraints
from counterfactual_training.generators.generator import Generator
from counterfactual_training.generators.result import SearchResult


@runtime_checkable
class KnowsRealRows(Protocol):
    """A model that also knows real rows, such as :class:`Gated`; :func:`search` asks it for rows
    that gradients do not lead to τ.
    """

    def try_real_rows(
        self,
        x: Tensor,
        y_target: Tensor,
        result: SearchResult,
        generator: Generator,
        constraints: Constraints,
        held: Tensor | None,
    ) -> SearchResult:
        """The result ``found`` of rows x, better where real rows of the target are."""
        ...


def by_distance(
    x: Tensor, rows: Tensor, lower: Tensor, upper: Tensor, weights: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows ``(m, d)`` moved into the box ``(..., n, d)`` of each row x ``(..., n, d)``, and sorted
    by L1 distance.

    Args:
        weights: ``(d,)`` of the features in the distance.

    Returns:
        The moved rows ``(..., n, m, d)``, their distances ``(..., n, m)``, and the places of the
        nearest ones first ``(..., n, m)``.
    """
    moved = rows.clamp(lower.unsqueeze(-2), upper.unsqueeze(-2))
    away = (moved - x.unsqueeze(-2)).abs()
    distance = (away if weights is None else away * weights).sum(-1)
    return moved, distance, distance.argsort(dim=-1, stable=True)
