"""A regime: what a mini-batch is trained on beside its own rows, and the loss on all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from counterfactual_training.constraints import Constraints
from counterfactual_training.core.losses import class_loss, value_loss
from counterfactual_training.core.precision import at_least_single
from counterfactual_training.errors import InputError, lookup
from counterfactual_training.generators import Generator, SearchResult, search
from counterfactual_training.generators.perturbations import Box, attack_box
from counterfactual_training.training.objective import Batch, LossTerms, Objective
from counterfactual_training.training.rows import TrainingRows
from counterfactual_training.training.sampling import Streams, draw_targets, each

# What outlives a batch, by name: tensors ``(*lead, …)``, saved with every checkpoint.
Memory = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Round:
    """One mini-batch at the weights of its update: all that a regime may look at.

    Random numbers come from ``uniform``, ``normal`` and ``choose`` only: in a fleet each member
    draws from its own stream, as it would alone.

    Attributes:
        model: in eval mode; maps ``(..., n, *features)`` to logits ``(..., n, k)``.
        x: ``(..., n, *features)`` rows of the batch.
        y: ``(..., n)`` their classes.
        constraints: what may change.
        generator: of counterfactuals, for regimes that search.
        data: all training rows.
        memory: tensors to read and to replace.
        epoch: epochs done.
        rng: random generators, one per member of a fleet.

    Examples:
        >>> import counterfactual_training as ct
        >>> data = ct.load_dataset("moons")
        >>> x, y = data.x_train[:200], data.y_train[:200]
        >>> pgd, config = ct.make_regime("pgd").regime, ct.TrainConfig(epochs=2, batch_size=200)
        >>> def find(now):  # a Round
        ...     print(now.epoch, tuple(now.x.shape), tuple(now.search(now.targets()).x_cf.shape))
        ...     return pgd.find(now)
        >>> result = ct.train(
        ...     ct.mlp(2, 2), x, y, regime=ct.Regime("mine", pgd.loss, find), config=config
        ... )
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
        own = shape or self.x.shape[self.y.dim() - 1 :]
        return each(lambda rng: draw(own, generator=rng, dtype=torch.float32), self.rng).to(
            self.x
        )


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


Find = Callable[[Round], Any]
Loss = Callable[[nn.Module, Batch, Any], LossTerms]


@dataclass(frozen=True, eq=False)
class Regime:
    """A way to train, as a recipe; :mod:`regimes` has the published ones.

    Everything is written for leading dimensions ``(..., n, *features)``, so that it trains fleets
    too.

    Attributes:
        name: for reports.
        loss: ``loss(model, batch, found)``, with gradients; the model is in training mode. See
            :meth:`LossTerms.sum`.
        find: ``find(round)``: what the loss gets as ``found``, at the current weights and without
            gradients by them: attacks, samples, counterfactuals. Not called during burn-in, when
            only the class loss counts.
        remember: ``remember(data, lead)``: the memory before the first epoch, tensors ``(*lead,
            …)``.
        numbers: what its recipe in :data:`RECIPES` was made with, for reports and tuning.
        check: ``check(models, data)``: raises before training if it cannot train these models on
            these rows.
        values: a regression: y are numbers ``(n,)``, and the model has one output ``(n, 1)``
            instead of logits.
        searches: ``find`` calls :meth:`Round.search`; generators that cannot serve training are
            refused then.

    Examples:
        >>> import counterfactual_training as ct
        >>> data = ct.load_dataset("moons")
        >>> x, y = data.x_train[:200], data.y_train[:200]
        >>> def loss(model, batch, noisy):
        ...     logits = model(noisy)
        ...     return ct.LossTerms.sum(
        ...         logits, class_loss=ct.class_loss(logits, batch.y, batch.weight)
        ...     )
        >>> regime = ct.Regime("noise", loss, find=lambda now: now.x + 0.1 * now.normal())
        >>> config = ct.TrainConfig(epochs=2)
        >>> ct.train(ct.mlp(2, 2), x, y, regime=regime, config=config).history.last("epoch")
        2.0
    """

    name: str
    loss: Loss
    find: Find | None = None
    remember: Callable[[TrainingRows, torch.Size], Memory] | None = None
    numbers: dict[str, Any] = field(default_factory=dict)
    check: Callable[[Sequence[nn.Module], TrainingRows], None] | None = None
    values: bool = False
    searches: bool = False

    def __post_init__(self) -> None:
        parts = {
            "loss": self.loss,
            "find": self.find,
            "remember": self.remember,
            "check": self.check,
        }
        for name, part in parts.items():
            if not callable(part) and (name == "loss" or part is not None):
                raise InputError(
                    f"{name} of the regime {self.name!r} must be a function, got "
                    f"{type(part).__name__}; "
                    "published regimes are made by name: make_regime('pgd')."
                )

    def with_numbers(self, numbers: Mapping[str, Any]) -> Regime:
        """The same recipe with some numbers changed; only published ones have a recipe."""
        from counterfactual_training.training.regimes import RECIPES  # which is made of regimes

        return lookup("regime with a recipe:", self.name, RECIPES)(
            **{**self.numbers, **numbers}
        )


@dataclass(frozen=True, eq=False)
class RegimeLoss(Objective):
    """A regime's loss in place of Eq. 2. The weights of Eq. 2 have no effect."""

    regime: Regime = None  # type: ignore[assignment]  # required; fields of Objective have defaults

    @property
    def needs_counterfactuals(self) -> bool:
        return self.regime.find is not None

    # The history shows all terms.
    needs_divergence = needs_adversarial = property(lambda self: True)

    @property
    def title(self) -> str:
        return f"The loss of the regime {self.regime.name!r}"

    def fit_loss(self, outputs: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
        return (value_loss if self.regime.values else class_loss)(outputs, y, weight)

    def hits(self, outputs: Tensor, y: Tensor) -> Tensor:
        # A number is never simply right, so a regression has no accuracy.
        if self.regime.values:
            return y.new_full(y.shape[:-1], torch.nan)
        return super().hits(outputs, y)

    def __call__(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        explanations: Any = None,
        weight: Tensor | None = None,
    ) -> LossTerms:
        if explanations is None and self.regime.find is not None:  # burn-in
            logits = at_least_single(model(x))
            return LossTerms.sum(logits, class_loss=self.fit_loss(logits, y, weight))
        return self.regime.loss(model, Batch(x, y, weight), explanations)
