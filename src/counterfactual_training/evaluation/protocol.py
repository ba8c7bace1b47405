"""Evaluation protocols: which individuals, which search, which comparisons."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from counterfactual_training.defaults import PROTOCOLS as NAMES
from counterfactual_training.errors import InputError, check_name, lookup

Individuals = Literal["same", "by_prediction"]
ATTACKS = ("fgsm", "pgd", "random")


@dataclass(frozen=True)
class EvaluationProtocol:
    """One way to measure. The defaults are ours; :data:`PUBLISHED` is the paper's.

    Attributes:
        name: for tables.
        individuals: ``"same"`` draws test rows and targets independently of the model, so that
            models are compared on the same people; ``"by_prediction"`` draws a class pair, and a
            row that *this* model predicts as the first class (as the authors did).
        num_individuals: per run and λ_energy; ``None`` takes every test row once.
        num_runs: repetitions of the draw.
        lambda_energy: strengths of ECCo's energy penalty; one evaluation each.
        lambda_cost: strength of the search's distance penalty.
        decision_threshold: τ, the probability of the target at which the search stops.
        max_steps: of the search.
        learning_rate: of the search.
        length_scale: ℓ of IP*'s kernel.
        mmd_size: most counterfactuals and most samples that one IP* sees; ``None`` takes all.
        mmd_valid_only: leave invalid counterfactuals out of IP* (as printed), or not (as run).
        mmd_per_row: a row holds its own contribution to the IP* of its group, so that rows can be
            resampled; else the group's value, raised to 0 where the estimate is negative (as run).
        langevin_steps: of the chains that sample from the model's energy, for unfaithfulness; 0
            leaves it out.
        attacks: of the robust accuracy: ``"fgsm"``, ``"pgd"`` or ``"random"`` (noise, which an
            attack must beat). The first with the first ε is called ``robust_accuracy``, others
            ``robust_accuracy_pgd@0.1`` and the like.
        epsilons: budgets of the attacks.
        clamp_attacks: attacks keep to the constraints, domain and mutability alike; those of the
            authors knew neither.
        attribution_rounds: of the sensitivity to protected features, where the data set has any; 0
            leaves it out.
        seed: of the draws.

    Examples:
        >>> import counterfactual_training as ct
        >>> data, model = ct.load_dataset("linearly_separable"), ct.mlp(2, 2)
        >>> method = ct.methods.conventional(epochs=2, batch_size=100, learning_rate=0.05)
        >>> model = ct.train(model, data.x_train, data.y_train, method).model
        >>> quick = ct.EvaluationProtocol(
        ...     num_individuals=50, lambda_energy=(0.1,), langevin_steps=0, attacks=("pgd",)
        ... )
        >>> table = ct.evaluate(model, (data.x_test, data.y_test), quick)
        >>> [name for name in table["metric"] if name.startswith("robust")]  # one for each ε
        ['robust_accuracy', 'robust_accuracy@0.1']
    """

    name: str = "paired"
    individuals: Individuals = "same"
    num_individuals: int | None = None
    num_runs: int = 1
    lambda_energy: tuple[float, ...] = (0.1, 0.5, 1.0, 5.0, 10.0)
    # Without a distance penalty, as the authors evaluated: cost is measured, not asked for.
    lambda_cost: float = 0.0
    decision_threshold: float = 0.95
    max_steps: int = 50
    learning_rate: float = 0.1
    length_scale: float = 5.0
    mmd_size: int | None = 8000
    mmd_valid_only: bool = True
    mmd_per_row: bool = True
    langevin_steps: int = 500
    attacks: tuple[str, ...] = ATTACKS
    epsilons: tuple[float, ...] = (0.03, 0.1)
    clamp_attacks: bool = True
    attribution_rounds: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        check_name("individuals", self.individuals, ("same", "by_prediction"))
        # Drawn with replacement from what a model predicts, there is no "every row once".
        if self.individuals == "by_prediction" and self.num_individuals is None:
            raise InputError(
                "individuals='by_prediction' draws with replacement: say how many with "
                "num_individuals."
            )
        if self.num_runs < 1 or (self.num_individuals is not None and self.num_individuals < 1):
            raise InputError(f"num_runs and num_individuals must be positive, got {self}.")
        if self.langevin_steps < 0 or self.attribution_rounds < 0:
            raise InputError(
                f"langevin_steps and attribution_rounds must not be negative, got {self}."
            )
        if not self.lambda_energy:
            raise InputError(
                "lambda_energy is empty: name at least one strength of the energy penalty."
            )
        for attack in self.attacks:
            check_name("attack", attack, ATTACKS)


PAIRED = EvaluationProtocol()
"""The default of :func:`evaluate`: all models are measured on the same people, with the same
targets.

Examples:
    >>> from dataclasses import replace
    >>> import counterfactual_training as ct
    >>> ct.PAIRED.individuals
    'same'
    >>> quick = replace(ct.PAIRED, num_individuals=100)  # the same, on fewer people
    >>> quick.num_individuals, quick.lambda_energy == ct.PAIRED.lambda_energy
    (100, True)
"""
PUBLISHED = EvaluationProtocol(
    name="published",
    individuals="by_prediction",
    num_individuals=100,
    num_runs=100,
    mmd_size=100,
    mmd_valid_only=False,
    mmd_per_row=False,
    langevin_steps=0,
    clamp_attacks=False,
)
"""How the paper's authors measured: every model on rows that it predicts itself, drawn with
replacement.

Examples:
    >>> from dataclasses import replace
    >>> import counterfactual_training as ct
    >>> ct.PUBLISHED.individuals
    'by_prediction'
    >>> short = replace(ct.PUBLISHED, num_runs=2)  # ct.evaluate(model, data, short) takes less time
    >>> short.num_runs * short.num_individuals  # searches per λ_energy
    200
"""
PROTOCOLS: dict[str, EvaluationProtocol] = dict(zip(NAMES, (PAIRED, PUBLISHED), strict=True))


class Draw(NamedTuple):
    """The individuals of one evaluation: runs × individuals, flattened to m rows."""

    run: Tensor  # (m,)
    row: Tensor  # (m,) index into the test set
    y_target: Tensor  # (m,)
    missing: int  # individuals that do not exist


def draw_individuals(
    protocol: EvaluationProtocol, y: Tensor, predicted: Tensor, num_classes: int, setting: int
) -> Draw:
    """Whose counterfactuals to search, for the ``setting``-th λ_energy.

    Args:
        y: ``(n,)`` true classes of the test rows.
        predicted: ``(n,)`` what the model says of them; only looked at by ``"by_prediction"``.
    """
    if protocol.individuals == "by_prediction":
        return _by_prediction(protocol, predicted.cpu(), num_classes, setting)
    # The same stream for every model and every λ_energy, so that all explain the same people to the
    # same targets.
    y = y.cpu()
    rng = torch.Generator().manual_seed(protocol.seed)
    if protocol.num_individuals is None:
        wanted = len(y)
    else:
        wanted = protocol.num_individuals
    size = min(wanted, len(y))
    rows = torch.cat(
        [torch.randperm(len(y), generator=rng)[:size] for _ in range(protocol.num_runs)]
    )
    # Shifted by 1 … k − 1: any class but the true one.
    shift = torch.randint(1, num_classes, (len(rows),), generator=rng)
    run = torch.arange(protocol.num_runs).repeat_interleave(size)
    return Draw(run, rows, (y[rows] + shift) % num_classes, (wanted - size) * protocol.num_runs)


def _by_prediction(
    protocol: EvaluationProtocol, predicted: Tensor, num_classes: int, setting: int
) -> Draw:
    # A prime, so that seeds and settings do not share streams; ours above is the same for every λ,
    # to pair them.
    rng = torch.Generator().manual_seed(protocol.seed * 1_000_003 + setting)
    size = protocol.num_individuals or 0
    # The class pairs are drawn once; every run draws other rows for them.
    factual = torch.randint(num_classes, (size,), generator=rng)
    target = (factual + torch.randint(1, num_classes, (size,), generator=rng)) % num_classes
    factual = factual.repeat(protocol.num_runs)
    target = target.repeat(protocol.num_runs)
    run = torch.arange(protocol.num_runs).repeat_interleave(size)
    # A class that the model never predicts has no row to draw; those individuals are missing.
    rows = torch.full_like(factual, -1)
    for k in range(num_classes):
        pool = (predicted == k).nonzero().flatten()
        wanted = factual == k
        if len(pool):
            rows[wanted] = pool[torch.randint(len(pool), (int(wanted.sum()),), generator=rng)]
    exists = rows >= 0
    return Draw(run[exists], rows[exists], target[exists], int((~exists).sum()))


def protocol_named(name: str, **changes: Any) -> EvaluationProtocol:
    """``"paired"`` or ``"published"``, with some settings changed."""
    return replace(lookup("protocol", name, PROTOCOLS), **changes)
