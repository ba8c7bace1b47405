"""A round: one mini-batch at the weights of its update, as a method's ``find`` sees it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from counterfactual_training.constraints import Constraints
from counterfactual_training.core.precision import at_least_single
from counterfactual_training.generators import Generator, SearchResult, search
from counterfactual_training.generators.perturbations import Box, attack_box
from counterfactual_training.training.rows import TrainingRows
from counterfactual_training.training.sampling import Streams, draw_targets, each

# What outlives a batch, by name: tensors ``(*lead, …)``, saved with every checkpoint.
Memory = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Round:
    """One mini-batch at the weights of its update: all that a method may look at.

    Random numbers come from ``uniform``, ``normal`` and ``choose`` only: in a fleet each member
    draws from its own stream, as it would alone.

    Attributes:
        model: in eval mode; maps ``(..., n, *features)`` to logits ``(..., n, k)``.
        x: ``(..., n, *features)`` rows of the batch.
        y: ``(..., n)`` their classes.
        constraints: what may change.
        generator: of counterfactuals, for methods that search.
        data: all training rows.
        memory: tensors to read and to replace.
        epoch: epochs done.
        rng: random generators, one per member of a fleet.

    Examples:
        >>> import counterfactual_training as ct
        >>> data = ct.load_dataset("moons")
        >>> x, y = data.x_train[:200], data.y_train[:200]
        >>> pgd = ct.methods.pgd(epochs=2, batch_size=200)
        >>> def find(now):  # a Round
        ...     print(now.epoch, tuple(now.x.shape), tuple(now.search(now.targets()).x_cf.shape))
        ...     return pgd.find(now)
        >>> mine = ct.Method("mine", loss=pgd.loss, find=find, training=pgd.training)
        >>> result = ct.train(ct.mlp(2, 2), x, y, mine)
        0 (200, 2) (200, 2)
        1 (200, 2) (200, 2)
    """

    model: nn.Module
    x: Tensor
    y: Tensor
    constraints: Constraints
    generator: Generator
    data: TrainingRows
    memory: Memory
    epoch: int
    rng: Streams

    def uniform(self, *shape: int) -> Tensor:
        """Uniform in [0, 1) ``(*lead, *shape)``; by default like x."""
        return self._draw(torch.rand, shape)

    def normal(self, *shape: int) -> Tensor:
        """Standard normal ``(*lead, *shape)``; by default like x."""
        return self._draw(torch.randn, shape)

    def choose(self, num: int, count: int) -> Tensor:
        """``count`` of the numbers 0 … num − 1 ``(*lead, count)``, with replacement."""
        return each(lambda rng: torch.randint(num, (count,), generator=rng), self.rng).to(
            self.x.device
        )

    def box(self, epsilon: float) -> Box:
        """Bounds, like x, of changes of at most ε that the constraints allow."""
        return attack_box(self.x, self.y, epsilon, self.constraints, clamp=True)

    @property
    def immutable(self) -> Tensor:
        """Mask ``(..., n, *features)`` of what may not change at all."""
        mask = self.constraints.to(self.x).immutable.unsqueeze(-2)
        return mask.expand(*self.y.shape, mask.shape[-1]).reshape(self.x.shape)

    def per_row(self, values: Tensor) -> Tensor:
        """Values of rows ``(..., n)`` with dimensions for the features of x."""
        return values.reshape(*self.y.shape, *[1] * (self.x.dim() - self.y.dim()))

    def targets(self) -> Tensor:
        """For each row a class that the model does not predict ``(..., n)``."""
        logits = at_least_single(self.model(self.x))
        counts = self.data.class_counts.expand(*self.y.shape[:-1], -1)
        return each(
            lambda rng, *rows: draw_targets("not_predicted", rng, *rows),
            self.rng,
            logits,
            self.y,
            counts,
        )

    def search(self, y_target: Tensor) -> SearchResult:
        """Counterfactuals of the rows, under the constraints."""
        threads = torch.get_num_threads()  # already chosen for the whole training
        rows = (self.model, self.x, y_target, self.generator, self.constraints, self.rng)
        return search(*rows, diagnose=False, threads=threads)

    def slope(self, x: Tensor, weights: Callable[[Tensor], Tensor]) -> Tensor:
        """``Σ_k w_k ∇ₓ f_k(x)``, like x, with weights ``(..., n, k)`` of the logits there; softmax
        gives ∇ₓ LSE f.
        """
        leaf = x.detach().requires_grad_()
        with torch.enable_grad():
            logits = at_least_single(self.model(leaf))
        (slope,) = torch.autograd.grad(logits, leaf, weights(logits.detach()))
        return slope

    def _draw(self, draw: Callable[..., Tensor], shape: tuple[int, ...]) -> Tensor:
        row_shape = shape or self.x.shape[self.y.dim() - 1 :]
        return each(
            lambda rng: draw(row_shape, generator=rng, dtype=torch.float32), self.rng
        ).to(self.x)


def take(rows: Tensor, places: Tensor) -> Tensor:
    """Rows ``(..., N, *features)`` at places ``(..., n)``."""
    return rows[_index(places)]


def put(rows: Tensor, places: Tensor, values: Tensor) -> Tensor:
    """A copy of the rows ``(..., N, *features)`` with others at places ``(..., n)``."""
    rows = rows.clone()
    rows[_index(places)] = values.to(rows)
    return rows


def _index(places: Tensor) -> Any:
    lone = places.dim() == 1
    if lone:
        return places
    return (torch.arange(len(places), device=places.device).unsqueeze(-1), places)
