"""G: a network that learns what a class looks like, with counterfactuals as what it does not."""

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
from counterfactual_training.models import mlp

# Copied to learn from, however many there are; all epochs together see no more than a few times as many.
_MOST_ROWS = 100_000
# Below every score: with this origin all rows pass.
_OPEN = -1e30


@dataclass(frozen=True)
class GateConfig:
    """How a gate is learned.

    Attributes:
        hidden: widths of its network.
        epochs, batch_size, learning_rate: of its training.
        most_rows: seen per epoch.
        burn_in: epochs with noise alone, before the first search.
        num_counterfactuals: searched per epoch.
        replay: counterfactuals kept of earlier epochs.
        max_steps: of the search.
        threshold: the range that the τ of an epoch's search is drawn from.
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

    ``softplus(−n_y(x)) + mean_k softplus(n_k(noise)) + (1 − 2π)₊ softplus(n_t(x′))``: real rows are of their class,
    noise is of none, and a counterfactual x′ for the class t is not of t in so far as it is implausible. π is its
    conformal p-value. The x′ are searched on the gated model itself, so that the gate meets its own mistakes.

    Immutable features are given: n is about ``p_k(free | given) / q(free | given)``, because noise and real rows of a
    class have the same given features, those of its real rows and now and then of anybody. Each point of noise then
    counts against one class, and π looks at the free features only. So does :meth:`plausibility`: a row that is strange
    in what is given alone is not told by this gate, but by a :class:`Density` beside it.

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
        num_classes: int,
        *,
        constraints: Constraints,
        config: GateConfig | None = None,
        quantile: float = 0.1,
        scale: float = 1.0,
        seed: int = 0,
    ) -> Learned:
        """The gate of a trained model, learned on its training rows x ``(n, *features)`` with classes y ``(n,)``.

        Args:
            constraints: of the searches.
            quantile: share of real rows with σ(g) below ½.
            scale: of the model's logits, see :class:`Gated`.
        """
        config = config if config is not None else GateConfig()
        rng = torch.Generator().manual_seed(seed)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            gate = cls.empty([x[0].numel(), *config.hidden, num_classes]).to(x)
        gate.feature_dims = x.dim() - 1
        if bool(constraints.immutable.all()):  # nobody can change anything: there is nothing to judge
            gate.origin = torch.full_like(gate.origin, _OPEN)
        else:
            gate.learn(Gated(model, gate, scale), x, y, constraints, config, quantile, rng)
        return gate.requires_grad_(False).eval()

    def learn(
        self,
        gated: Gated,
        x: Tensor,
        y: Tensor,
        constraints: Constraints,
        config: GateConfig,
        quantile: float,
        rng: torch.Generator,
    ) -> None:
        """Train the network of this gate, which is ``gated``'s, and calibrate it on rows that it did not see."""
        network, num_classes = self.network, len(self.slope)
        order = torch.randperm(len(x), generator=rng).to(x.device)
        held = torch.cat([_share(order[y[order] == label], config.most_rows) for label in range(num_classes)])
        kept = torch.ones_like(y, dtype=torch.bool).index_fill(0, held, False).nonzero().squeeze(-1)
        if len(kept) > _MOST_ROWS:
            kept = kept[torch.randperm(len(kept), generator=rng)[:_MOST_ROWS].to(x.device)]
        rows, labels = x[kept].flatten(1), y[kept]
        negatives = Negatives(gated, rows, labels, constraints, x.shape[1:], config, rng)
        optimizer = torch.optim.Adam(network.parameters(), config.learning_rate)
        for epoch in range(config.epochs):
            if epoch >= config.burn_in:
                negatives.search()
            shuffled = torch.randperm(len(rows), generator=rng)[: config.most_rows].to(x.device)
            for batch in shuffled.split(config.batch_size):
                loss = _loss(network, rows[batch], labels[batch], negatives)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        with torch.no_grad():
            scores = torch.cat([network(part) for part in x[held].flatten(1).split(8192)])
        self.slope, self.origin = calibrate(scores, y[held], num_classes, quantile)

    @classmethod
    def empty(cls, sizes: Sequence[int]) -> Learned:
        """One with a network of these widths, from the features to the classes, to load a saved one into."""
        d, *hidden, num_classes = sizes
        return cls(mlp(d, num_classes, hidden, "swish"), Line(torch.ones(num_classes), torch.zeros(num_classes)))

    def describe(self) -> list[dict[str, Any]]:
        linear = [layer for layer in self.network if isinstance(layer, nn.Linear)]
        sizes = [linear[0].in_features, *(layer.out_features for layer in linear)]
        return [{"kind": "learned", "sizes": sizes, "feature_dims": self.feature_dims}]

    def forward(self, x: Tensor) -> Tensor:
        return self.passes(self.network(x.flatten(x.dim() - self.feature_dims)))


def _loss(network: nn.Module, x: Tensor, y: Tensor, negatives: Negatives) -> Tensor:
    """Of a batch of real rows x ``(n, d)``, with as many points of noise and half as many counterfactuals."""
    real = network(negatives.lend(x)).gather(-1, y.unsqueeze(-1))
    points, among = negatives.noise(len(x))
    noise = network(points)
    if negatives.conditional:
        noise = noise.gather(-1, among.unsqueeze(-1))
    x_cf, target, weight = negatives.recall(len(x) // 2)
    against = network(x_cf).gather(-1, target.unsqueeze(-1)).squeeze(-1)
    loss = functional.softplus(-real).mean() + functional.softplus(noise).mean()
    return loss + (weight * functional.softplus(against)).mean() if len(x_cf) else loss


def _share(rows: Tensor, most: int) -> Tensor:
    """Of a class, the rows to calibrate on: a fifth, but enough of them where that leaves as many to learn from."""
    enough = 2 * FEWEST_ROWS if len(rows) >= 4 * FEWEST_ROWS else FEWEST_ROWS
    return rows[: min(most, max(len(rows) // 5, min(enough, len(rows) // 2)))]
