"""A classifier with a gate: counterfactuals must be plausible, predictions do not change."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from counterfactual_training.constraints import Constraints
from counterfactual_training.core.precision import at_least_single
from counterfactual_training.gates import anchors
from counterfactual_training.generators import Generator, SearchResult

# log σ(g) stays below this, because log(1 − σ) = log 0 would make gradients NaN.
_CERTAIN = -1e-7


class Gate(nn.Module):
    """Scores for each class how much a row looks like a real row of that class.

    A subclass defines :meth:`forward`: rows ``(..., n, *features)`` to ``log σ(g)`` ``(..., n,
    k)``, at most 0.

    Attributes:
        feature_dims: of the rows; 1 for tables, 3 for images.

    Examples:
        >>> import torch
        >>> import counterfactual_training as ct
        >>> data = ct.load_dataset("linearly_separable")
        >>> gate = ct.fit_gate(ct.mlp(2, 2), data.x_train, data.y_train).gate
        >>> centre = data.x_train[data.y_train == 0].mean(0)
        >>> gate.plausibility(torch.stack([centre, centre + 9])) > 0.5  # like class 0; like neither
        tensor([[ True, False],
                [False, False]])
    """

    feature_dims: int = 1

    def forward(self, x: Tensor) -> Tensor:
        """``log σ(g)`` ``(..., n, k)`` of rows ``(..., n, *features)``."""
        raise NotImplementedError

    def of_class(self, x: Tensor, label: int) -> Tensor:
        """``log σ(g)`` ``(..., n)`` of one class alone, without gradients; up to rounding what
        :meth:`forward` says.
        """
        return self(x)[..., label]

    def describe(self) -> list[dict[str, Any]]:
        """What :func:`make_gate` needs to make a gate of the same shape: one JSON object per
        part.
        """
        raise NotImplementedError

    @property
    def judged(self) -> Tensor:
        """Mask ``(k,)`` of the classes with enough rows to judge; for the others every row
        passes.
        """
        raise NotImplementedError

    @property
    def lone(self) -> list[Gate]:
        """The parts of this gate; a simple gate is its own only part."""
        return [self]

    @property
    def real_rows(self) -> Tensor | None:
        """Rows ``(k, m, d)`` that the gate stores, NaN where a class has fewer; ``None`` if it
        stores none.
        """
        return None

    @torch.no_grad()
    def plausibility(self, x: Tensor) -> Tensor:
        """σ(g) ``(..., n, k)`` in [0, 1]: near 1 among the real rows of a class, near 0 far from
        them.

        A density also judges the immutable features here, which a search takes as given.
        """
        return self(x).exp()


class Both(Gate):
    """A row passes if it passes every part: ``Π σ(g)``."""

    def __init__(self, *parts: Gate) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([part(x) for part in self.lone]).sum(0)

    def of_class(self, x: Tensor, label: int) -> Tensor:
        return torch.stack([part.of_class(x, label) for part in self.lone]).sum(0)

    def plausibility(self, x: Tensor) -> Tensor:
        return torch.stack([part.plausibility(x) for part in self.lone]).prod(0)

    def describe(self) -> list[dict[str, Any]]:
        return [entry for part in self.lone for entry in part.describe()]

    @property
    def judged(self) -> Tensor:
        """By any part."""
        return torch.stack([part.judged for part in self.lone]).any(0)

    @property
    def real_rows(self) -> Tensor | None:
        """The rows of the first part that stores some."""
        stored = (part.real_rows for part in self.lone)
        return next((rows for rows in stored if rows is not None), None)

    @property
    def lone(self) -> list[Gate]:
        return [part for part in self.parts if isinstance(part, Gate)]


class Gated(nn.Module):
    """A classifier f of k classes with one more: "like none of them".

    ``p_k = softmax_k(s·f) · σ(g_k)``; the last class gets the rest up to 1. A softmax must assign
    empty space to some class, this need not. It is an ordinary classifier with k + 1 outputs, so
    every search and metric accepts it, and a search for class k stops by the gated probability.
    Predictions are those of ``model``.

    A fleet may share a density gate, because it depends on the rows only: one search serves all M
    members of ``Gated(StackedModel(models), fit_gate(models[0], x, y).gate)``, which maps ``(M, n,
    d)`` to ``(M, n, k + 1)``. Members must then have the same rows and immutable features. A
    learned gate depends on its model; models with such gates are searched one by one.

    Attributes:
        model: f, maps ``(..., n, *features)`` to logits ``(..., n, k)``.
        gate: g.
        scale: s, of the logits.

    Examples:
        >>> import torch
        >>> import counterfactual_training as ct
        >>> data, model = ct.load_dataset("moons"), ct.mlp(2, 2)
        >>> gated = ct.fit_gate(model, data.x_train, data.y_train)
        >>> probability = gated(torch.tensor([[9.0, 9.0]])).exp()  # far away: like neither class
        >>> probability.argmax(-1), torch.equal(gated.model(data.x_test), model(data.x_test))
        (tensor([2]), True)
    """

    scale: Tensor

    def __init__(self, model: nn.Module, gate: Gate, scale: float = 1.0) -> None:
        super().__init__()
        self.model = model
        self.gate = gate
        # A buffer, so that it moves with the model and is saved with it.
        self.register_buffer("scale", torch.tensor(float(scale), dtype=torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        """Log-probabilities ``(..., n, k + 1)``."""
        of_class = functional.log_softmax(at_least_single(self.model(x)) * self.scale, -1)
        passes = at_least_single(self.gate(x)).clamp_max(_CERTAIN)
        # log(1 − σ(g)); 1 − exp would round to 0 near σ = 1
        stopped = torch.log(-torch.expm1(passes))
        # What the gates stop of each class, together: the outputs are log-probabilities that add up
        # to one.
        none = torch.logsumexp(of_class + stopped, -1, keepdim=True)
        return torch.cat([of_class + passes, none], -1)

    def plausibility(self, x: Tensor) -> Tensor:
        """``(..., n, k)``, see :meth:`Gate.plausibility`."""
        return self.gate.plausibility(x)

    def try_real_rows(
        self,
        x: Tensor,
        y_target: Tensor,
        result: SearchResult,
        generator: Generator,
        constraints: Constraints,
        held: Tensor | None,
    ) -> SearchResult:
        """For :func:`search`: rows of a table x that miss τ try real rows of the target, and the
        status says where plausibility is what binds.

        All members of a fleet are searched at once, ``(M, n, d)``; real rows are tried member by
        member.
        """
        if x.dim() == y_target.dim() + 1 and self.gate.real_rows is not None:
            result = anchors.lead(self, x, y_target, result, generator, constraints, held)
        return anchors.mark_implausible(self, y_target, result, generator)
