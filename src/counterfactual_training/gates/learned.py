"""A gate by a network that learns to tell real rows from noise and implausible counterfactuals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from counterfactual_training.constraints import Constraints
from counterfactual_training.gates.calibration import FEWEST_ROWS, Calibrated, Line, calibrate
from counterfactual_training.gates.gated import Gated
from counterfactual_training.gates.negatives import Negatives
from counterfactual_training.generators import evaluating
from counterfactual_training.models.classifiers import mlp
from counterfactual_training.torch_modes import single_precision

# Most rows to learn from. All epochs together see at most a few times as many.
_MOST_ROWS = 100_000
# Below every score: with this origin, all rows pass.
_OPEN = -1e30


@dataclass(frozen=True)
class GateConfig:
    """How a gate is trained.

    Attributes:
        hidden: widths of its network.
        epochs: of its training.
        batch_size: of its training.
        learning_rate: of its training.
        most_rows: seen per epoch.
        burn_in: epochs with noise alone, before the first search.
        num_counterfactuals: searched per epoch.
        replay: counterfactuals kept of earlier epochs.
        max_steps: of the search.
        threshold: range from which each epoch draws the τ of its search.

    Examples:
        >>> import counterfactual_training as ct
        >>> data = ct.load_dataset("linearly_separable")
        >>> x, y = data.x_train[:500], data.y_train[:500]
        >>> method = ct.methods.conventional(epochs=5, learning_rate=0.05)
        >>> model = ct.train(ct.mlp(2, 2), x, y, method).model
        >>> small = ct.GateConfig(hidden=(16,), epochs=3, num_counterfactuals=20, max_steps=5)
        >>> gated = ct.fit_gate(model, x, y, "learned", config=small)
        >>> gated.gate.network[0]
        Linear(in_features=2, out_features=16, bias=True)
    """

    hidden: tuple[int, ...] = (128, 128)
    epochs: int = 30
    batch_size: int = 250
    learning_rate: float = 2e-3
    most_rows: int = 10_000
    burn_in: int = 2
    num_counterfactuals: int = 400
    replay: int = 4000
    max_steps: int = 20
    threshold: tuple[float, float] = (0.5, 0.95)


class Learned(Calibrated):
    """``g_k(x) = β_k (n_k(x) − θ_k)`` with a network n, trained by counterfactuals.

    The loss is ``softplus(−n_y(x)) + mean_k softplus(n_k(noise)) + (1 − 2π)₊ softplus(n_t(x′))``:
    real rows belong to their class, noise to none, and a counterfactual x′ for class t not to t if
    it is implausible. π is the conformal p-value of x′. The x′ are searched on the gated model, so
    the gate learns from its own mistakes.

    Immutable features are given: n estimates ``p_k(free | given) / q(free | given)``, because noise
    has the given features of a real row of the class, or sometimes of any row. Each noise point
    then counts against one class only, and π and :meth:`plausibility` see the free features only. A
    row that is unusual in its given features alone is detected by a :class:`Density`, not by this
    gate.

    Attributes:
        network: maps ``(n, d)`` to ``(n, k)``.
    """

    def __init__(self, network: nn.Sequential, line: Line) -> None:
        super().__init__(line)
        self.network = network

    @classmethod
    def fit(
        cls,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        *,
        constraints: Constraints,
        config: GateConfig | None = None,
        quantile: float = 0.1,
        scale: float = 1.0,
        seed: int = 0,
    ) -> Learned:
        """Train a gate for a model on its training rows x ``(n, *features)`` with classes y
        ``(n,)``.

        Args:
            constraints: of the searches.
            quantile: share of real rows with σ(g) below ½.
            scale: of the model's logits, see :class:`Gated`.
        """
        if config is None:
            config = GateConfig()
        with evaluating(model), torch.no_grad():
            num_classes = model(x[:2]).shape[-1]
        rng = torch.Generator().manual_seed(seed)
        # Layers draw their weights from the global generator; seed it for them and leave the
        # caller's randomness alone.
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            gate = cls.empty([x[0].numel(), *config.hidden, num_classes]).to(x)
        gate.feature_dims = x.dim() - 1
        if bool(constraints.immutable.all()):  # no feature can change: nothing to judge
            gate.origin = torch.full_like(gate.origin, _OPEN)
            return gate.requires_grad_(False).eval()
        order = torch.randperm(len(x), generator=rng).to(x.device)
        # By class, because each class is calibrated on rows of its own that the network has not
        # seen.
        held_out = torch.cat(
            [_share(order[y[order] == label], config.most_rows) for label in range(num_classes)]
        )
        in_training = (
            torch.ones_like(y, dtype=torch.bool)
            .index_fill(0, held_out, False)
            .nonzero()
            .squeeze(-1)
        )
        if len(in_training) > _MOST_ROWS:
            in_training = in_training[
                torch.randperm(len(in_training), generator=rng)[:_MOST_ROWS].to(x.device)
            ]
        rows = x[in_training].flatten(1)
        labels = y[in_training]
        # Gated by the network in training: each epoch searches for what it still lets through.
        negatives = Negatives(
            Gated(model, gate, scale), rows, labels, constraints, x.shape[1:], config, rng
        )
        optimizer = torch.optim.Adam(gate.network.parameters(), config.learning_rate)
        for epoch in range(config.epochs):
            # Train on noise alone first: the search needs a gate.
            if epoch >= config.burn_in:
                negatives.search()
            shuffled = torch.randperm(len(rows), generator=rng)[: config.most_rows].to(x.device)
            for batch in shuffled.split(config.batch_size):
                loss = _loss(gate.network, rows[batch], labels[batch], negatives)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        with torch.no_grad():
            scores = torch.cat(
                [gate.network(part) for part in x[held_out].flatten(1).split(8192)]
            )
        gate.slope, gate.origin = calibrate(scores, y[held_out], num_classes, quantile)
        return gate.requires_grad_(False).eval()

    @classmethod
    def empty(cls, sizes: Sequence[int]) -> Learned:
        """An untrained gate; ``sizes`` are the widths of its network, from features to classes."""
        d, *hidden, num_classes = sizes
        with single_precision():
            # Slope 1, origin 0: while it trains, the gate is the network as it is.
            line = Line(torch.ones(num_classes), torch.zeros(num_classes))
            return cls(mlp(d, num_classes, hidden, "swish"), line)

    def describe(self) -> list[dict[str, Any]]:
        linear = [layer for layer in self.network if isinstance(layer, nn.Linear)]
        sizes = [linear[0].in_features, *(layer.out_features for layer in linear)]
        return [{"kind": "learned", "sizes": sizes, "feature_dims": self.feature_dims}]

    def forward(self, x: Tensor) -> Tensor:
        return self.passes(self.network(x.flatten(x.dim() - self.feature_dims)))


def _loss(network: nn.Module, x: Tensor, y: Tensor, negatives: Negatives) -> Tensor:
    """Loss of a batch of real rows x ``(n, d)``, as many noise points and half as many
    counterfactuals.
    """
    real = network(negatives.lend(x)).gather(-1, y.unsqueeze(-1))
    points, among = negatives.noise(len(x))
    # Conditional noise counts against the class whose given columns it has; free noise counts
    # against all.
    if negatives.conditional:
        noise = network(points).gather(-1, among.unsqueeze(-1))
    else:
        noise = network(points)
    x_cf, target, weight = negatives.recall(len(x) // 2)
    against = network(x_cf).gather(-1, target.unsqueeze(-1)).squeeze(-1)
    loss = functional.softplus(-real).mean() + functional.softplus(noise).mean()
    # Before the first search there is none, and the mean of nothing is NaN.
    if len(x_cf):
        return loss + (weight * functional.softplus(against)).mean()
    return loss


def _share(rows: Tensor, most: int) -> Tensor:
    """The rows of a class to calibrate on: a fifth, or more if that is too few and leaves as many
    to learn from.
    """
    if len(rows) >= 4 * FEWEST_ROWS:
        enough = 2 * FEWEST_ROWS
    else:
        enough = FEWEST_ROWS
    return rows[: min(most, max(len(rows) // 5, min(enough, len(rows) // 2)))]
