"""One network with two heads: what the class is, and whether the row looks like a real one of it."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from counterfactual_training.constraints import Constraints
from counterfactual_training.errors import InputError
from counterfactual_training.gates.calibration import Line
from counterfactual_training.gates.density import Density
from counterfactual_training.gates.fit import IN_A_ROW
from counterfactual_training.gates.gated import Both, Gated
from counterfactual_training.gates.learned import GateConfig, Learned
from counterfactual_training.models import mlp


def train_two_heads(
    x: Tensor,
    y: Tensor,
    *,
    constraints: Constraints | None = None,
    config: GateConfig | None = None,
    weight: float = 0.3,
    seed: int = 0,
) -> Gated:
    """A classifier and a gate that share all layers but the last, trained together from nothing; a density beside.

    ``CE(f(x), y) + w · (the loss of`` :class:`Learned` ``)``, searched on ``softmax(f) · σ(g)``. When trained, each
    head gets layers of its own: the result is like one of :func:`fit_gate`, and is told, saved and searched as such.

    Args:
        x, y: rows of a table ``(n, d)``, and their classes.
        constraints: of the features; what is immutable is given.
        config: of both heads; by default that of a gate, with 30 epochs.
        weight: w. The higher, the fewer of the shared units serve the classes.
    """
    if x.dim() != 2:
        raise InputError(f"Two heads are for tables (n, d), got rows of shape {tuple(x.shape[1:])}; use fit_gate.")
    config = config if config is not None else GateConfig(epochs=30)
    constraints = constraints if constraints is not None else Constraints.infer(x)
    num_classes = int(y.max()) + 1
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = mlp(x.shape[1], num_classes, config.hidden, "swish").to(x)
        head = mlp([x.shape[1], *config.hidden][-1], num_classes, ()).to(x)
    trunk = list(model)[:-1]
    gate = Learned(nn.Sequential(*trunk, *head), Line(torch.ones(num_classes), torch.zeros(num_classes))).to(x)
    rng = torch.Generator().manual_seed(seed)
    gate.learn(Gated(model, gate), x, y, constraints, config, IN_A_ROW, rng, weight)
    density = Density.fit(x, y, num_classes, given=constraints.immutable, quantile=IN_A_ROW, seed=seed)
    return Gated(model, Both(density, copy.deepcopy(gate))).requires_grad_(False).eval()
