"""Variants of ``ct``, for the study of what each part of it brings (``lab/decision.py``).

Importing this registers them as methods; λ by a rule is :func:`weight_by_validation`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

import counterfactual_training as ct
from counterfactual_training.core.precision import at_least_single
from counterfactual_training.generators.perturbations import ascend, input_gradient
from counterfactual_training.training.objective import Batch, LossTerms
from counterfactual_training.training.round import Memory, Round, take
from counterfactual_training.training.rows import DrawnRows, TrainingRows
from counterfactual_training.training.train_config import TrainConfig

# As ct itself trains.
_TRAINING = TrainConfig(batch_size=100, learning_rate=3e-3)
_BAG = {"training": _TRAINING, "members": 5, "bootstrap": True}
# Rows that the classifier searches in an epoch, as a share of all.
_SEARCHED = 0.25
_HIDDEN = (64, 64)

# Which part does what: a row of the table each. A small divergence needs counterfactuals that
# arrive, so searches are longer; its weight is a tenth of the published one.
DIVERGENCE = "ct(lambda_div=0.05, lambda_reg=0.01, max_steps=20, decision_threshold=0.75)"
BY_VALIDATION = "ct, weight by validation"
PARTS = (
    *("conventional", "bag", "bag(members=10)", "ct"),
    *(
        "ct(members=3)",
        "ct(members=10)",
        "ct(bootstrap=False)",
        "ct(members=1, bootstrap=False)",
    ),
    *("ct(epsilon=0.05)", "ct(epsilon=0.2, steps=3)"),
    *("ct(lambda_adv=0.1)", "ct(lambda_adv=0.25)", "ct(lambda_adv=1.0)", BY_VALIDATION),
    *("random_step", DIVERGENCE, "taught"),
)

# ---- a random start in place of the search -------------------------------------------------------


@ct.register_method
def random_step(
    epsilon: float = 0.1, weight: float = 0.5, share: float = _SEARCHED
) -> ct.Method:
    """``ct`` with an attack in place of nascent counterfactuals: one signed step that raises the
    loss, from a random point inside ε; it knows no target. As many rows as ``ct`` searches.
    """

    def find(now: Round) -> tuple[Tensor, Tensor]:
        num = max(1, round(share * now.y.shape[-1]))
        x = now.x[..., :num, :]
        y = now.y[..., :num]
        low, high = (side[..., :num, :] for side in now.box(epsilon))
        noise = 2 * now.uniform()[..., :num, :] - 1
        start = (x + epsilon * noise).clamp(low, high)
        attacked = ascend(
            lambda point: input_gradient(now.model, point, y), start, (low, high), 1, epsilon
        )
        return attacked, y

    def loss(model: nn.Module, batch: Batch, found: tuple[Tensor, Tensor]) -> LossTerms:
        logits, near = _logits(model, batch, found[0])
        return LossTerms.sum(
            logits,
            class_loss=ct.class_loss(logits, batch.y, batch.weight),
            adversarial=weight * ct.class_loss(near, found[1]),
        )

    return ct.Method(loss=loss, find=find, **_BAG)


# ---- labels by the evidence of a bag -------------------------------------------------------------


@ct.register_method
def taught(weight: float = 1.0, teachers: int = 10, share: float = _SEARCHED) -> ct.Method:
    """A bag that also learns what another bag says of points on the way to counterfactuals:
    ``CE(f(x), y) + w CE(f(z), q(z))``.

    First ten networks on bootstrap samples, the teacher, stopped by a fifth of the rows, which also
    give its temperature. Then z, one for each row: anywhere on the way to the counterfactual that
    the teacher wants, with the teacher's probabilities q, which are fixed from there on.
    """

    def remember(data: TrainingRows, lead: torch.Size) -> Memory:
        if isinstance(data, DrawnRows):  # the teacher has all rows, as it would before a bag
            data = data.source
        points, labels = _lesson(data.x, data.y, data.num_classes, teachers)
        return {
            "points": points.expand(*lead, *points.shape).clone(),
            "labels": labels.expand(*lead, *labels.shape).clone(),
        }

    def find(now: Round) -> tuple[Tensor, Tensor]:
        num = max(1, round(share * now.y.shape[-1]))
        places = now.choose(now.memory["points"].shape[-2], num)
        return take(now.memory["points"], places), take(now.memory["labels"], places)

    def loss(model: nn.Module, batch: Batch, found: tuple[Tensor, Tensor]) -> LossTerms:
        logits, seen = _logits(model, batch, found[0])
        told = -(found[1] * seen.log_softmax(-1)).sum(-1).mean(-1)
        return LossTerms.sum(
            logits,
            class_loss=ct.class_loss(logits, batch.y, batch.weight),
            augmented=weight * told,
        )

    return ct.Method(loss=loss, find=find, remember=remember, **_BAG)


def _lesson(x: Tensor, y: Tensor, num_classes: int, teachers: int) -> tuple[Tensor, Tensor]:
    """Points ``(n, d)``, and what a bag says of them ``(n, k)``."""
    rng = torch.Generator().manual_seed(0)
    order = torch.randperm(len(y), generator=rng)
    held, rest = order[: len(y) // 5], order[len(y) // 5 :]
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        bag = ct.Ensemble(
            [ct.mlp(x.shape[1], num_classes, _HIDDEN, squash=True) for _ in range(teachers)]
        )
    ct.train(
        bag,
        x[rest],
        y[rest],
        ct.methods.bag(shuffle=True),
        validation=(x[held], y[held]),
        callbacks=[ct.EarlyStopping(10, metric="validation_loss", mode="min")],
        progress=False,
    )
    with torch.no_grad():
        heat = _temperature(bag(x[held]), y[held])
        own = bag(x).argmax(-1)
        shift = torch.randint(1, num_classes, own.shape, generator=rng)
    found = ct.search(bag, x, (own + shift) % num_classes, ct.line())
    way = torch.rand(len(x), 1, generator=rng)
    points = x + way * (found.x_cf - x)
    with torch.no_grad():
        return points, (bag(points) / heat).softmax(-1)


def _temperature(logits: Tensor, y: Tensor) -> float:
    """Of a few, the one with the lowest log-loss."""
    heats = np.geomspace(0.3, 3, 41)
    losses = [float(nn.functional.cross_entropy(logits / heat, y)) for heat in heats]
    return float(heats[int(np.argmin(losses))])


def _logits(model: nn.Module, batch: Batch, others: Tensor) -> tuple[Tensor, Tensor]:
    """Of the batch, and of other rows; one forward pass."""
    both = torch.cat([batch.x, others], -2)
    num = batch.x.shape[-2]
    logits = at_least_single(model(both))
    return logits[..., :num, :], logits[..., num:, :]


# ---- a weight that validation rows choose --------------------------------------------------------

WEIGHTS = (0.0, 0.1, 0.25, 0.5)
# What the log-loss of validation rows may rise by.
_ALLOWED = 0.005


def weighted(weight: float) -> str:
    """``ct`` with this weight of its second term."""
    if weight == 0:
        return "bag"
    return str(ct.make_method(f"ct(lambda_adv={weight})"))


def weight_by_validation(x: pd.DataFrame, labels: np.ndarray, seed: int) -> dict[str, Any]:
    """The largest weight whose log-loss, on a fifth of the rows, is at most .005 above that of 0;
    and every log-loss.
    """
    fitted, held, known, asked = train_test_split(
        x, labels, test_size=0.2, random_state=seed, stratify=labels
    )
    losses = {}
    for weight in WEIGHTS:
        classifier = ct.CounterfactualClassifier(
            weighted(weight), random_state=seed, progress=False, gate="none", unseen="unknown"
        )
        classifier.fit(fitted, known)
        losses[weight] = log_loss(
            asked, classifier.predict_proba(held), labels=classifier.classes_
        )
    chosen = max(weight for weight in WEIGHTS if losses[weight] <= losses[0.0] + _ALLOWED)
    return {
        "weight": chosen,
        **{f"log-loss at {weight:g}": losses[weight] for weight in WEIGHTS},
    }
