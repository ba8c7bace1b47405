"""An epoch of CT beside an epoch of conventional training, of adversarial training by PGD, and of JEM.

The three others are written here as plain loops: same network, same optimizer, same batches. All three that look for
inputs by gradient steps may take as many of them: counterfactuals × T = rows × K.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import counterfactual_training as ct
from benchmarks.environments import Environments
from benchmarks.report import Table, Value
from benchmarks.timing import race

COLUMNS = (
    "regime",
    "ms per epoch",
    "beside conventional",
    "input gradients per epoch, at most",
    "µs per gradient of a row",
)
NOTE = """
One thread; every regime starts from the same network, trained conventionally for five epochs. *Input gradients*: of
one row by the network's input, taken to find counterfactuals, attacks or samples; *per gradient of a row* also
counts those by the weights. CT lets rows go that have arrived, and so takes fewer; *all steps* forbids that (τ =
1). PGD (Madry et al. 2018): K steps of the sign from a random start, per row and epoch. JEM (Grathwohl et al.
2020): cross-entropy plus the energy of data minus that of samples, K steps of SGLD from a replay buffer, as many
samples as rows. Both are plain eager loops without checks, records or constraints.
"""


@dataclass(frozen=True)
class Size:
    rows: int
    features: int
    batch_size: int
    num_counterfactuals: int
    max_steps: int = 30

    @property
    def steps_per_row(self) -> int:
        """K, such that rows · K = counterfactuals · T."""
        return self.num_counterfactuals * self.max_steps // self.rows

    def describe(self) -> str:
        return (
            f"{self.rows:,} rows × {self.features}, batch {self.batch_size}; CT: {self.num_counterfactuals:,} "
            f"counterfactuals, T = {self.max_steps}; the others: K = {self.steps_per_row}"
        )


SIZES = (Size(3000, 2, 30, 1000), Size(15_000, 30, 1000, 5000))  # the paper's synthetic and tabular settings
QUICK = (Size(300, 2, 30, 100),)


def run(_: Environments, quick: bool) -> tuple[list[Table], list[str]]:
    tables = [measure(size, 1 if quick else 5) for size in (QUICK if quick else SIZES)]
    return [replace(tables[0], note=NOTE), *tables[1:]], []


def measure(size: Size, rounds: int) -> Table:
    """One table: all regimes in turns, an epoch each."""
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(size.rows, size.features, generator=rng)
    y = (x[:, : min(5, size.features)].sum(-1) + 0.5 * torch.randn(size.rows, generator=rng) > 0).long()
    model = ct.mlp(size.features, 2)
    started = ct.TrainConfig(epochs=5, batch_size=size.batch_size)
    ct.train(model, x, y, objective="vanilla", config=started, progress=False)
    steps = size.steps_per_row
    taken: dict[str, float] = {}
    regimes: dict[str, Callable[[], object]] = {
        "conventional": partial(plain_epoch, model, x, y, size.batch_size),
        "CT": partial(ct_epoch, model, x, y, size, "CT", 0.75, taken),
        "CT, all steps": partial(ct_epoch, model, x, y, size, "CT, all steps", 1.0, taken),
        "PGD adversarial training": partial(plain_epoch, model, x, y, size.batch_size, partial(pgd_loss, steps=steps)),
        "JEM": partial(plain_epoch, model, x, y, size.batch_size, Jem(x, steps)),
    }
    seconds = race(regimes, rounds)
    inputs = dict.fromkeys(regimes, size.rows * steps) | {"conventional": 0}
    # By the weights: every row, and the three kinds of explanations of CT; attacks replace the rows, samples join them.
    weights = dict.fromkeys(regimes, size.rows) | {"JEM": 2 * size.rows}
    for name in ("CT", "CT, all steps"):
        weights[name] = size.rows + 3 * size.num_counterfactuals
    rows: list[tuple[Value, ...]] = []
    for name, value in seconds.items():
        gradients = weights[name] + taken.get(name, inputs[name])
        ratio = f"{value / seconds['conventional']:.1f}×"
        rows.append((name, 1e3 * value, ratio, inputs[name], 1e6 * value / gradients))
    return Table(COLUMNS, rows, size.describe())


def ct_epoch(
    model: nn.Module, x: Tensor, y: Tensor, size: Size, name: str, threshold: float, taken: dict[str, float]
) -> None:
    """One epoch by :func:`train`; notes how many input gradients it took."""
    config = ct.TrainConfig(1, size.batch_size, num_counterfactuals=size.num_counterfactuals, threads=1)
    generator = ct.ecco(max_steps=size.max_steps, decision_threshold=threshold)
    result = ct.train(deepcopy(model), x, y, generator, config=config, progress=False)
    taken[name] = size.num_counterfactuals * float(result.history.records[0]["mean_steps"])


Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]


def class_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model(x), y)


def plain_epoch(model: nn.Module, x: Tensor, y: Tensor, batch_size: int, loss_of: Loss = class_loss) -> None:
    """One epoch by the loop everybody writes."""
    model = deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    for x_batch, y_batch in zip(x.split(batch_size), y.split(batch_size), strict=True):
        optimizer.zero_grad(set_to_none=True)
        loss_of(model, x_batch, y_batch).backward()
        optimizer.step()


def pgd_loss(model: nn.Module, x: Tensor, y: Tensor, steps: int, epsilon: float = 0.1) -> Tensor:
    """The class loss at ``argmax_{‖x′ − x‖∞ ≤ ε}``, by K steps of the gradient's sign."""
    lower, upper = x - epsilon, x + epsilon
    x_adv = x + torch.empty_like(x).uniform_(-epsilon, epsilon)
    for _ in range(steps):
        x_adv.requires_grad_()
        (grad,) = torch.autograd.grad(cross_entropy(model(x_adv), y), x_adv)
        x_adv = x_adv.detach().add_(grad.sign_(), alpha=2.5 * epsilon / steps).clamp_(lower, upper)
    return cross_entropy(model(x_adv), y)


class Jem:
    """``CE(x, y) + E(x) − E(x̃)`` with ``E(x) = −log Σ_k exp M(x)[k]``; x̃ by K steps of SGLD from a replay buffer."""

    def __init__(
        self, x: Tensor, steps: int, restart: float = 0.05, step_size: float = 1.0, noise: float = 0.01
    ) -> None:
        self.steps, self.restart, self.step_size, self.noise = steps, restart, step_size, noise
        self.buffer = torch.empty_like(x).uniform_(-1, 1)

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        place = torch.randint(len(self.buffer), (len(x),))
        fresh = torch.rand(len(x), 1) < self.restart
        samples = torch.where(fresh, torch.empty_like(x).uniform_(-1, 1), self.buffer[place])
        for _ in range(self.steps):
            samples.requires_grad_()
            (grad,) = torch.autograd.grad(model(samples).logsumexp(-1).sum(), samples)
            samples = samples.detach().add_(grad, alpha=self.step_size)
            samples.add_(torch.randn_like(samples), alpha=self.noise)
        self.buffer[place] = samples
        logits, negative = model(torch.cat([x, samples])).split(len(x))
        return cross_entropy(logits, y) - logits.logsumexp(-1).mean() + negative.logsumexp(-1).mean()
