"""The result of a search, and how it ended for each row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor


class Status(IntEnum):
    """How the search ended for a row.

    Attributes:
        CONVERGED: the target's probability reached the threshold.
        EXHAUSTED: all steps used, threshold not reached; the best effort is returned.
        INFEASIBLE: stuck: every change that would still help is forbidden, see :class:`Binding`.
        ALREADY_THERE: the factual already is of the target class; returned unchanged.
        IMPLAUSIBLE: the model assigns the target, its gate rejects the point.

    Examples:
        >>> import torch
        >>> import counterfactual_training as ct
        >>> model = torch.nn.Linear(2, 2, bias=False)
        >>> model.weight.data = torch.eye(2)  # class 1 where the second feature is larger
        >>> x, y_target = torch.tensor([[2.0, 0.0], [0.0, 2.0]]), torch.tensor([1, 1])
        >>> result = ct.search(model, x, y_target, ct.generic(max_steps=100))
        >>> result.status_names
        ['converged', 'already_there']
        >>> result.status == ct.Status.CONVERGED
        tensor([ True, False])
    """

    CONVERGED = 0
    EXHAUSTED = 1
    INFEASIBLE = 2
    ALREADY_THERE = 3
    IMPLAUSIBLE = 4


class Binding(IntEnum):
    """What kept a feature from moving further towards the target.

    Attributes:
        NOTHING: no constraint.
        MUTABILITY: it may not move that way.
        DOMAIN: it is at the edge of its domain, or at a category it may not leave.

    Examples:
        >>> import torch
        >>> import counterfactual_training as ct
        >>> model = torch.nn.Linear(2, 2, bias=False)
        >>> model.weight.data = torch.eye(2)  # class 1 where the second feature is larger
        >>> rules = ct.Constraints.build(
        ...     2, {"age": "none"}, {"income": (0, 1)}, names=("age", "income")
        ... )
        >>> result = ct.search(
        ...     model, torch.tensor([[2.0, 0.0]]), torch.tensor([1]), constraints=rules
        ... )
        >>> result.status_names, result.binding_names(0, rules.names)
        (['infeasible'], {'age': 'mutability', 'income': 'domain'})
        >>> bool(result.binding[0, 1] == ct.Binding.DOMAIN)
        True
    """

    NOTHING = 0
    MUTABILITY = 1
    DOMAIN = 2


@dataclass(frozen=True, eq=False)
class SearchResult:
    """Counterfactuals of n factuals with d features; leading dimensions of a fleet come first.

    Attributes:
        x_cf: ``(..., n, *features)`` the mature counterfactual, or the last iterate where the row
            did not converge.
        x_adv: like ``x_cf``; the nascent one: the last iterate within ε of the factual (Eq. 4).
        converged: ``(..., n)`` whether x_cf satisfies the threshold τ.
        num_steps: ``(..., n)`` updates made: 0 for rows already there and where no feature may move
            at all; snapping discrete features is no update.
        status: ``(..., n)`` values of :class:`Status`.
        confidence: ``(..., n)`` probability of the target class at x_cf.
        binding: ``(..., n, d)`` values of :class:`Binding`: for rows that did not converge, which
            constraint keeps which feature from moving further at x_cf; last dimension 0 where the
            search did not diagnose.
        path: ``(T + 1, ..., n, *features)`` all iterates if recorded, else ``None``.
        answers: all of a generator's ``num_answers`` k > 1 as ``(..., n, k, *features)`` and
            ``(..., n, k)``, of which the rest describes the best: the nearest by ‖Δ‖₁ that
            converged, or else the most confident.

    Examples:
        >>> import counterfactual_training as ct
        >>> data = ct.load_dataset("moons")
        >>> method = ct.methods.conventional(epochs=5, learning_rate=0.01)
        >>> model = ct.train(ct.mlp(2, 2), data.x_train, data.y_train, method).model
        >>> result = ct.search(model, data.x_test, 1 - data.y_test)
        >>> result.x_cf.shape, result.converged.shape
        (torch.Size([900, 2]), torch.Size([900]))
        >>> bool((result.confidence[result.mature] >= 0.75).all())
        True
    """

    x_cf: Tensor
    x_adv: Tensor
    converged: Tensor
    num_steps: Tensor
    status: Tensor
    confidence: Tensor
    binding: Tensor
    path: Tensor | None = None
    answers: SearchResult | None = None

    @property
    def mature(self) -> Tensor:
        """``(..., n)`` counterfactuals that the search brought to τ: converged, and not there from
        the start.
        """
        return self.status == int(Status.CONVERGED)

    @property
    def status_names(self) -> list[str]:
        """The status of each row as a word, rows of all leading dimensions in order."""
        return [Status(code).name.lower() for code in self.status.flatten().tolist()]

    def binding_names(self, row: int, names: Sequence[str] | None = None) -> dict[str, str]:
        """What holds back a row of a lone model: by feature, ``"mutability"`` or ``"domain"``."""
        codes = self.binding[row].tolist()
        if names is not None:
            called = names
        else:
            called = [str(j) for j in range(len(codes))]
        return {
            name: Binding(code).name.lower()
            for name, code in zip(called, codes, strict=True)
            if code
        }

    def best_of(self, num_answers: int, x: Tensor) -> SearchResult:
        """From results of k consecutive answers to each row of x ``(..., n, *features)``: the best,
        and all.
        """
        dim = self.converged.dim()  # of the answers, once they have one
        split: dict[str, Any] = {
            name: value.unflatten(dim - 1 + (name == "path"), (-1, num_answers))
            for name, value in vars(self).items()
            if value is not None
        }
        every = SearchResult(**split)
        distance = (every.x_cf - x.unsqueeze(dim)).flatten(dim + 1).abs().sum(-1)
        nearest = distance.masked_fill(~every.converged, torch.inf).argmin(-1)
        best = torch.where(
            every.converged.any(-1), nearest, every.confidence.argmax(-1)
        ).unsqueeze(-1)
        chosen: dict[str, Any] = {}
        for name, value in split.items():
            if name == "path":
                place = best.unsqueeze(0)
            else:
                place = best
            at = place.dim() - 1
            index = place.reshape(*place.shape, *[1] * (value.dim() - place.dim()))
            chosen[name] = torch.take_along_dim(value, index, at).squeeze(at)
        return SearchResult(**chosen, answers=every)

    @staticmethod
    def join(parts: Sequence[SearchResult]) -> SearchResult:
        """One result from results of consecutive blocks of rows, each with features flattened
        ``(..., n, d)``.
        """
        joined: dict[str, Any] = {}
        for name, first in vars(parts[0]).items():
            # Rows are the last dimension of values per row, and the one before features otherwise.
            if name in ("converged", "num_steps", "status", "confidence"):
                row_dim = -1
            else:
                row_dim = -2
            if first is None:
                joined[name] = None
            else:
                joined[name] = torch.cat([getattr(part, name) for part in parts], row_dim)
        return SearchResult(**joined)
