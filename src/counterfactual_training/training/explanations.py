"""One round of counterfactuals for training: draw, search, mature, protect (Algorithm 1, lines 2-6)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from counterfactual_training.constraints import Constraints
from counterfactual_training.search import Generator, SearchResult, Status, evaluating, search
from counterfactual_training.training.config import Immature, TrainConfig
from counterfactual_training.training.objective import Explanations
from counterfactual_training.training.sampling import Streams, draw_positives, draw_rows, draw_targets, each


class Round(NamedTuple):
    """Counterfactuals, and how their search went: one number each, or one per member of a fleet."""

    explanations: Explanations
    share_mature: Tensor
    mean_steps: Tensor


class TrainingData(NamedTuple):
    """Training rows with what is derived from them once. The members of a fleet share rows, or have their own."""

    x: Tensor  # (n, *features), or (members, n, *features)
    y: Tensor  # (n,), or (members, n)
    rows_by_class: list[list[Tensor]]  # of every member, or of the one set of rows that all share
    class_counts: Tensor  # (k,), or (members, k)

    @classmethod
    def of(cls, x: Tensor, y: Tensor, num_classes: int) -> TrainingData:
        classes = range(num_classes)
        rows = [[(own == k).nonzero().flatten() for k in classes] for own in y.reshape(-1, y.shape[-1])]
        counts = torch.tensor([[len(part) for part in own] for own in rows])
        return cls(x, y, rows, counts.reshape(*y.shape[:-1], num_classes))

    @property
    def num_rows(self) -> int:
        return self.y.shape[-1]

    @property
    def num_classes(self) -> int:
        return self.class_counts.shape[-1]

    def at(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """x and y at these indices: ``(m,)``, or in a fleet ``(members, m)``."""
        if self.y.dim() == 1:
            return self.x[rows], self.y[rows]
        member = torch.arange(len(rows), device=rows.device).unsqueeze(-1)
        return self.x[member, rows], self.y[member, rows]

    def positives(self, y_target: Tensor, rng: Streams) -> Tensor:
        """For every target class ``(..., m)`` a row that truly is of it ``(..., m, *features)``."""
        own = self.rows_by_class
        if isinstance(rng, torch.Generator):
            rows = draw_positives(own[0], y_target, rng)
        else:
            draws = [draw_positives(own[i % len(own)], y_target[i], one) for i, one in enumerate(rng)]
            rows = torch.stack(draws)
        return self.at(rows)[0]


def explain_round(
    model: nn.Module,
    data: TrainingData,
    generator: Generator,
    constraints: Constraints,
    config: TrainConfig,
    num: int,
    rng: Streams,
    active: Tensor | None = None,
) -> Round:
    """Search ``num`` counterfactuals of training rows for the current model, or for every model of a fleet.

    Args:
        rng: of the draws and the search; one per member of a fleet.
        active: ``(members,)`` mask; the others' rows are done before they start, as if already of the target class.
    """
    rows = each(lambda own: draw_rows(data.num_rows, num, own), rng).to(data.x.device)
    x, y = data.at(rows)
    lead = y.dim()
    with evaluating(model), torch.no_grad():
        logits = model(x)

    def targets(own: torch.Generator, logits: Tensor, y: Tensor, counts: Tensor) -> Tensor:
        return draw_targets(logits, y, config.target_rule, counts, own)

    y_target = each(targets, rng, logits, y, data.class_counts.expand(*y.shape[:-1], -1))
    if active is not None:
        y_target = torch.where(active.unsqueeze(-1), y_target, logits.argmax(-1))
    found = search(model, x, y_target, generator, constraints, rng, diagnose=False, threads=torch.get_num_threads())
    x_pos = data.positives(y_target, rng)

    mature = found.mature
    x_cf = found.x_cf
    if config.immature == "replace":
        x_cf = torch.where(mature.reshape(*mature.shape, *[1] * (x.dim() - lead)), x_cf, x_pos)
    shape = x.shape
    x_pos = constraints.to(x).protect(x_pos.flatten(lead), x_cf.flatten(lead)).reshape(shape)  # §3.4
    explanations = Explanations(
        x_cf=x_cf,
        x_pos=x_pos,
        x_adv=found.x_adv,
        y_target=y_target,
        y_adv=y if config.adversarial_label == "true" else logits.argmax(-1),
        weight=_weight(found, config.immature),
    )
    return Round(explanations, mature.float().mean(-1), found.num_steps.float().mean(-1))


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
