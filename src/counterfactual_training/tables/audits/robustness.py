"""Is today's advice still valid later: after retraining, with other weights, or if people do not
follow it exactly?
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from counterfactual_training.evaluation.bootstrap import bootstrap_mean
from counterfactual_training.tables.audits.intervals import FEW, holding, opened
from counterfactual_training.tables.audits.people import ModelAdvice, Predicts
from counterfactual_training.tables.audits.protocol import AuditProtocol
from counterfactual_training.tables.columns.model_space import (
    column_owner,
    device_and_dtype,
    encode_rows,
)

# α and R of the number of draws: if all accept, then with confidence α a share of at least R of
# such models does.
CONFIDENCE = 0.999
SHARE = 0.995
# Size of the noise in standard deviations of a column.
INPUT_NOISE = 0.1
DROPPED_SHARE = 0.2
_INPUT_DRAWS = 200
_MOST_PEOPLE = 300
# Numbers (draws × the larger of weights and activations) that are in memory at once.
_BLOCK = 2**23


def num_draws(confidence: float = CONFIDENCE, share: float = SHARE) -> int:
    """``n = ⌈ln(1 − α) / ln R⌉``, 1,379 for the defaults."""
    return math.ceil(math.log(1 - confidence) / math.log(share))


@dataclass(frozen=True)
class Check:
    """One way in which later may differ from today; ``{delta}`` in its meaning stands for the noise
    on the weights.
    """

    id: str
    title: str
    meaning: str


CHECKS = {
    check.id: check
    for check in (
        Check(
            "retrained",
            "After retraining by another seed",
            "Share of today's advice that models trained on the same rows from other seeds accept.",
        ),
        Check(
            "left_out",
            "After retraining without some rows",
            "Share of today's advice that models trained without a random "
            f"{DROPPED_SHARE:.0%} of the rows accept.",
        ),
        Check(
            "weights",
            "With noise on the weights",
            "Share of today's advice that a model accepts whose weights differ by up to {delta} "
            "of the "
            "typical weight of their layer.",
        ),
        Check(
            "weights_all",
            "With noise on the weights, in every draw",
            f"Share of people whose advice all {num_draws():,} such models accept: then at least "
            f"{SHARE:.1%} of them "
            f"do, with a confidence of {CONFIDENCE:.1%}.",
        ),
        Check(
            "inputs",
            "If people do not hit it exactly",
            "Share of today's advice that is still accepted if every number that may change "
            "ends up to "
            f"{INPUT_NOISE:g} standard deviations away from it.",
        ),
    )
}


def robustness(
    advice: ModelAdvice, target: Any, protocol: AuditProtocol
) -> list[dict[str, Any]]:
    """All checks that are possible for a model, one record each; no noise without a ``delta``."""
    if advice.explanation is not None:
        helped = advice.helped[advice.chosen]
    else:
        helped = np.zeros(0, dtype=bool)
    if advice.explanation is None or not helped.any():
        return []
    frame = advice.explanation.frame[helped]
    seed = protocol.seed
    delta = protocol.delta
    rng = np.random.default_rng(seed)
    accepted: dict[str, np.ndarray] = {}
    if protocol.retrain and advice.subject.retrain is not None:
        seeds = [seed + 1 + k for k in range(protocol.retrain)]
        accepted["retrained"] = _accepted(
            [advice.subject.retrain(one, 0.0) for one in seeds], frame, target
        )
        accepted["left_out"] = _accepted(
            [advice.subject.retrain(one, DROPPED_SHARE) for one in seeds], frame, target
        )
    model = module_of(advice.subject.classifier)
    if delta is not None and model is not None:
        some = frame.iloc[np.sort(rng.permutation(len(frame))[:_MOST_PEOPLE])]
        accepted |= _noisy(advice, model, some, target, delta, seed)
    return [_record(name, values, rng, protocol.level) for name, values in accepted.items()]


def _record(
    name: str, accepted: np.ndarray, rng: np.random.Generator, level: float
) -> dict[str, Any]:
    draws, people = accepted.shape
    if name in ("retrained", "left_out"):
        # Models are few, so they are resampled together with the people.
        mean = bootstrap_mean(accepted.astype(float), rng, level)
    else:
        if name == "weights_all":
            share = accepted.all(0)
        else:
            share = accepted.mean(0)
        mean = bootstrap_mean(share.astype(float), rng, level)
    # Student's wider tails may leave the range of a share.
    interval = holding(mean.value, max(0.0, mean.low), min(1.0, mean.high))
    interval = opened(interval, people, level)
    return {"check": name, "n": people, "draws": draws, **interval, "few": people < FEW}


def _accepted(models: list[Predicts], frame: Any, target: Any) -> np.ndarray:
    """``(models, people)`` whether each model gives the wanted decision."""
    return np.stack([np.asarray(model.predict(frame)) == target for model in models])


def _noisy(
    advice: ModelAdvice, model: nn.Module, frame: Any, target: Any, delta: float, seed: int
) -> dict[str, np.ndarray]:
    classifier = advice.subject.classifier
    x = encode_rows(classifier.encoder_, frame, device_and_dtype(model))
    wanted = advice.subject.classes.index(target)
    draws = np.concatenate(
        [part.cpu().numpy() for part in with_weight_noise(model, x, wanted, delta, seed)]
    )
    return {
        "weights": draws,
        "weights_all": draws,
        "inputs": with_input_noise(advice, model, x, wanted, seed),
    }


def module_of(classifier: Any) -> nn.Module | None:
    """The torch module that decides; ``None`` for a black box."""
    model = getattr(classifier, "model_", getattr(classifier, "model", None))
    if isinstance(model, nn.Module):
        return model
    return None


@torch.no_grad()
def with_weight_noise(
    model: nn.Module, x: Tensor, wanted: int, delta: float, seed: int, draws: int | None = None
) -> list[Tensor]:
    """Blocks ``(b, n)``: whether models with weights w + δ s u accept rows x ``(n, d)``.

    u is uniform on [−1, 1] for each weight, s the root mean square of the weights of its tensor.
    """
    model = model.eval()
    rng = torch.Generator().manual_seed(seed)
    weights = {name: value.detach() for name, value in model.named_parameters()}
    scale = {name: delta * value.square().mean().sqrt() for name, value in weights.items()}
    if draws is None:
        total = num_draws()
    else:
        total = draws
    # A hidden layer has at most about as many values per row as the widest weight has rows.
    width = max(value.shape[0] for value in weights.values())
    block = max(
        1, _BLOCK // max(sum(value.numel() for value in weights.values()), len(x) * width)
    )
    decide = _stacked(model, x)
    blocks = []
    for first in range(0, total, block):
        size = min(block, total - first)
        drawn = {}
        for name, value in weights.items():
            noise = torch.rand(size, *value.shape, generator=rng, dtype=torch.float32).to(value)
            drawn[name] = value + scale[name] * (2 * noise - 1)
        blocks.append(decide(drawn).argmax(-1) == wanted)
    return blocks


def _stacked(model: nn.Module, x: Tensor) -> Callable[[dict[str, Tensor]], Tensor]:
    """Logits ``(b, n, k)`` of rows x for b sets of weights at once."""
    buffers = dict(model.named_buffers())

    def alone(weights: dict[str, Tensor]) -> Tensor:
        out: Tensor = functional_call(model, (weights, buffers), (x,))
        return out

    def one_by_one(weights: dict[str, Tensor]) -> Tensor:
        count = len(next(iter(weights.values())))
        return torch.stack(
            [alone({name: value[i] for name, value in weights.items()}) for i in range(count)]
        )

    try:  # some layers of users' own networks cannot be batched
        vmap(alone)({name: value.detach()[None] for name, value in model.named_parameters()})
    except Exception:
        return one_by_one
    return vmap(alone)


@torch.no_grad()
def with_input_noise(
    advice: ModelAdvice, model: nn.Module, x: Tensor, wanted: int, seed: int
) -> np.ndarray:
    """``(draws, n)`` whether rows are accepted whose changeable numbers are a little off."""
    schema = advice.subject.schema
    encoder = advice.subject.classifier.encoder_
    free = torch.tensor(
        [f.mutability != "none" and not f.is_category and not f.special for f in schema]
    )
    moves = free[column_owner(encoder)].to(x)
    rng = torch.Generator().manual_seed(seed)
    accepted = []
    for _ in range(_INPUT_DRAWS):
        noise = INPUT_NOISE * (
            2 * torch.rand(x.shape, generator=rng, dtype=torch.float32).to(x) - 1
        )
        accepted.append((model(x + noise * moves).argmax(-1) == wanted).cpu().numpy())
    return np.stack(accepted)
