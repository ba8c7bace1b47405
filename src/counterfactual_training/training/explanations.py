"""One round of counterfactuals for training: draw, search, mature, protect (Algorithm 1, lines 2-6)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from counterfactual_training.constraints import Constraints
from counterfactual_training.search import Generator, SearchResult, Status, evaluating, search
from counterfactual_training.training.config import Immature, TrainConfig
from counterfactual_training.training.objective import Explanations
from counterfactual_training.training.sampling import draw_positives, draw_rows, draw_targets


class Round(NamedTuple):
    explanations: Explanations
    share_mature: float
    mean_steps: float


class TrainingData(NamedTuple):
    """Training rows with what is derived from them once."""

    x: Tensor  # (n, *features)
    y: Tensor  # (n,)
    rows_by_class: list[Tensor]

    @classmethod
    def of(cls, x: Tensor, y: Tensor, num_classes: int) -> TrainingData:
        return cls(x, y, [(y == k).nonzero().flatten() for k in range(num_classes)])


def explain_round(
    model: nn.Module,
    data: TrainingData,
    generator: Generator,
    constraints: Constraints,
    config: TrainConfig,
    num: int,
    rng: torch.Generator,
) -> Round:
    """Search ``num`` counterfactuals of training rows for the current model."""
    rows = draw_rows(len(data.x), num, rng).to(data.x.device)
    x, y = data.x[rows], data.y[rows]
    with evaluating(model), torch.no_grad():
        logits = model(x)
    counts = torch.tensor([len(r) for r in data.rows_by_class])
    y_target = draw_targets(logits, y, config.target_rule, counts, rng)
    found = search(model, x, y_target, generator, constraints, rng, diagnose=False, threads=torch.get_num_threads())
    x_pos = data.x[draw_positives(data.rows_by_class, y_target, rng)]

    mature = found.mature
    x_cf = found.x_cf
    if config.immature == "replace":
        x_cf = torch.where(mature.reshape(-1, *[1] * (x.dim() - 1)), x_cf, x_pos)
    shape = x.shape
    x_pos = constraints.to(x).protect(x_pos.flatten(1), x_cf.flatten(1)).reshape(shape)  # §3.4
    explanations = Explanations(
        x_cf=x_cf,
        x_pos=x_pos,
        x_adv=found.x_adv,
        y_target=y_target,
        y_adv=y if config.adversarial_label == "true" else logits.argmax(-1),
        weight=_weight(found, config.immature),
    )
    return Round(explanations, float(mature.float().mean()), float(found.num_steps.float().mean()))


def _weight(found: SearchResult, immature: Immature) -> Tensor | None:
    """What each row counts in divergence and ridge; ``None`` counts all alike."""
    if immature == "replace":
        return None
    counts = found.mature if immature == "drop" else found.status != int(Status.ALREADY_THERE)
    return counts.to(found.x_cf.dtype)


def shares(total: int, parts: int) -> list[slice]:
    """``total`` rows as contiguous, nearly equal parts; the first ones get the surplus."""
    sizes = [total // parts + (i < total % parts) for i in range(parts)]
    ends = torch.tensor(sizes).cumsum(0).tolist()
    return [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]
