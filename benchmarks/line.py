"""What it costs to be free of step size: the line search beside plain searches of the same
validity.
"""

from __future__ import annotations

import torch

import counterfactual_training as ct
from benchmarks.environments import Environments
from benchmarks.report import Table, Value
from benchmarks.timing import race

ROWS = 2000
COLUMNS = ("data", "τ", "search", "ms", "line / it", "validity", "cost", "past τ by at most")
NOTE = """
{rows} rows, one thread, an MLP with 32 hidden units trained conventionally; the plain search by Eq.
1 without penalties takes at most 2,000 steps of η until p ≥ τ. Cost is the mean ‖x′ − x‖₁. With
long steps a plain search is quicker, overshoots and pays for it in cost; with shorter ones it comes
nearer to τ and takes longer. """


def run(_: Environments, quick: bool) -> tuple[list[Table], list[str]]:
    if quick:
        rows = 100
    else:
        rows = ROWS
    problems = {"Moon": _moons(rows), "20 features": _normal(rows, 20)}
    table = [
        line
        for name, problem in problems.items()
        for tau in (0.5, 0.95)
        for line in _compare(name, problem, tau)
    ]
    return [Table(COLUMNS, table, "Free of step size", NOTE.format(rows=f"{rows:,}"))], []


def _compare(
    name: str, problem: tuple[torch.nn.Module, torch.Tensor], tau: float
) -> list[tuple[Value, ...]]:
    model, x = problem
    y_target = 1 - model(x).argmax(-1)
    rules = ct.Constraints.infer(x)
    generators = {"line": ct.line(decision_threshold=tau)} | {
        f"η = {rate:g}": ct.generic(
            0.0, learning_rate=rate, max_steps=2000, decision_threshold=tau
        )
        for rate in (0.1, 0.01, 0.005)
    }

    def search(kind: str) -> ct.SearchResult:
        return ct.search(model, x, y_target, generators[kind], rules, diagnose=False)

    times = race({kind: lambda kind=kind: search(kind) for kind in generators}, rounds=3)  # type: ignore[misc]
    rows: list[tuple[Value, ...]] = []
    for kind in generators:
        result = search(kind)
        cost = float((result.x_cf - x).abs().sum(-1)[result.mature].mean())
        past = float((result.confidence[result.mature] - tau).max())
        ratio = f"{times['line'] / times[kind]:.2f}"
        valid = f"{float(result.mature.float().mean()):.3f}"
        rows.append((name, f"{tau:g}", kind, 1e3 * times[kind], ratio, valid, cost, past))
    return rows


def _moons(num: int) -> tuple[torch.nn.Module, torch.Tensor]:
    data = ct.load_dataset("moons")
    return _trained(data.x_train, data.y_train), data.x_train[:num]


def _normal(num: int, num_features: int) -> tuple[torch.nn.Module, torch.Tensor]:
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(max(num, 2000), num_features, generator=rng)
    y = (x[:, :5].sum(-1) + 0.5 * torch.randn(len(x), generator=rng) > 0).long()
    return _trained(x, y), x[:num]


def _trained(x: torch.Tensor, y: torch.Tensor) -> torch.nn.Module:
    torch.manual_seed(0)
    model = ct.mlp(x.shape[-1], 2)
    ct.train(
        model,
        x,
        y,
        ct.methods.conventional(epochs=20, batch_size=50),
    )
    return model
