"""Who takes part: every regime on the paper's network, with at most as many input gradients.

A name is that of a regime, such as ``pgd`` or ``ensemble of jem``; ``gated`` is a conventional
network with the gate of :class:`CounterfactualClassifier`, ``gated pgd`` that of another regime;
``counternet itself`` answers without a search.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from counterfactual_training.errors import check_name
from counterfactual_training.experiments.arena.caps import MEMBERS
from counterfactual_training.experiments.paper_data import IMAGES
from counterfactual_training.experiments.trained import untrained, with_weights
from counterfactual_training.experiments.truth.methods import (
    Fit,
    cheap_recourse_setting,
    with_gate,
)
from counterfactual_training.models import Ensemble, counternet, counternet_explainer
from counterfactual_training.tables.estimators.parameters import DEFAULT
from counterfactual_training.training import (
    AS_PRINTED,
    REGIMES,
    ClipGradient,
    Fleet,
    Member,
    Setting,
    make_regime,
)
from counterfactual_training.training.regimes import OWN_NETWORK, inner_regime

BASELINE = "conventional"
_GATED = "gated"
_ITSELF = "counternet itself"
# Objectives of the paper's experiments, by regime.
_PAPER = {
    "conventional": "vanilla",
    "ct": "full",
    "ct_divergence": "divergence",
    "ct_adversarial": "adversarial",
}
# Regimes that search as Eq. 2 does: a share of the rows, up to T steps each.
_SEARCHING = ("ct", "as_printed", "cheap_recourse", "ct_divergence", "ct_adversarial")
# Numbers of a recipe at K input gradients per row and epoch, T of them per counterfactual. Recipes
# that are not here take one, or as many as their searches need.
_AT: dict[str, Callable[[int, int], dict[str, float]]] = {
    "pgd": lambda k, t: {"steps": k},
    "trades": lambda k, t: {"steps": k},
    "jem": lambda k, t: {"steps": k},
    "dat": lambda k, t: {"steps": max(1, k // 2), "most": max(1, k - k // 2)},
    "cat": lambda k, t: {"share": min(1.0, k / t)},
}
# Gradients of the networks of :data:`OWN_NETWORK` are cut to this length, as the authors of
# CounterNet did.
_CLIP = 0.5
_FIXED = {"ross": 1, "gradient_supervision": 1, "counternet": 0}


@dataclass(frozen=True)
class Contestant:
    """One way to get a model.

    Attributes:
        name: as written by the user.
        regime: of the training; of an ensemble, that of its members.
        size: number of networks whose logits are averaged.
        gated: whether a gate is added.
        explainer: what answers in place of a search.
    """

    name: str
    regime: str
    size: int = 1
    gated: bool = False
    explainer: Callable[..., Any] | None = None

    @classmethod
    def named(cls, name: str) -> Contestant:
        if name == _ITSELF:
            return cls(name, "counternet", explainer=counternet_explainer)
        gated = name.split()[:1] == [_GATED]
        if gated:
            regime = name.removeprefix(_GATED).strip() or BASELINE
        else:
            regime = name
        inner = inner_regime(regime)
        # Only trained networks are gated or averaged.
        check_name("regime", inner, REGIMES if gated or inner != regime else all_names())
        return cls(name, inner, MEMBERS if inner != regime else 1, gated)

    def takes(self, num_classes: int) -> bool:
        """Whether it can be trained on so many classes."""
        return num_classes == 2 or self.regime not in OWN_NETWORK

    def make(self, fits: Sequence[Fit], gradients: int) -> list[nn.Module]:
        """A trained classifier per seed, in eval mode, with k outputs, or k + 1 if it is gated;
        trained as one fleet.

        Args:
            fits: of one data set, with as many rows each.
        """
        size = self.size
        # Seeds of their own: members of one ensemble share none with those of another.
        each = [
            replace(fit, seed=1000 + size * fit.seed + i) if size > 1 else fit
            for fit in fits
            for i in range(size)
        ]
        trained = _trained(each, self.regime, gradients)
        models = [
            Ensemble(trained[i : i + size]) if size > 1 else trained[i]
            for i in range(0, len(each), size)
        ]
        if self.gated:
            # Distances between pixels mean little, so images have a learned gate.
            if fits[0].name in IMAGES:
                kind = "learned"
            else:
                kind = DEFAULT.gate
            models = [
                with_gate(model, fit, kind) for model, fit in zip(models, fits, strict=True)
            ]
        return [model.eval().requires_grad_(False) for model in models]

    def input_gradients(self, fit: Fit, gradients: int) -> float:
        """Taken at most per row and epoch, to find what a batch is trained on."""
        if self.regime in _AT:
            return float(self.size * gradients)
        if self.regime in _FIXED:
            return float(self.size * _FIXED[self.regime])
        setting = setting_of(fit, self.regime, gradients)
        searches = self.regime in _SEARCHING or setting.regime is not None
        steps = int(setting.generator.numbers()["max_steps"])
        if setting.regime is None:
            share = setting.config.num_counterfactuals / len(fit.x)
        else:
            share = 1.0
        return round(self.size * searches * share * steps, 1)


def all_names() -> list[str]:
    """Those of ``--regimes all``."""
    return [*REGIMES, _ITSELF, _GATED]


def setting_of(fit: Fit, name: str, gradients: int) -> Setting:
    """How a regime trains here: the paper's epochs, batches and search, its own numbers, and the
    gradients allowed.
    """
    usual = fit.setting(_PAPER.get(name, "full"))
    if name == "cheap_recourse":
        usual = cheap_recourse_setting(fit)
    elif name == "as_printed":
        config = replace(
            AS_PRINTED.config,
            epochs=usual.config.epochs,
            batch_size=usual.config.batch_size,
            seed=fit.seed,
        )
        tau = usual.generator.numbers()["decision_threshold"]
        usual = replace(
            usual, generator=AS_PRINTED.generator.replace(decision_threshold=tau), config=config
        )
    steps = int(usual.generator.numbers()["max_steps"])
    if name in _PAPER or name in _SEARCHING:
        count = max(1, round(gradients * len(fit.x) / steps))
        return replace(usual, config=replace(usual.config, num_counterfactuals=count))
    made = make_regime(name, **_AT.get(name, lambda k, t: {})(gradients, steps))
    # Under the rules that it is measured by; the authors of CT trained with continuous categories.
    config = replace(usual.config, burn_in=made.config.burn_in)
    if name in OWN_NETWORK:  # trained as its authors did, but for the epochs
        config = replace(made.config, epochs=usual.config.epochs, seed=fit.seed)
    return replace(made, generator=usual.generator, constraints=fit.constraints, config=config)


def _trained(fits: Sequence[Fit], name: str, gradients: int) -> list[nn.Module]:
    members = [Member(_network(fit, name), setting_of(fit, name, gradients)) for fit in fits]
    x, y = (torch.stack([getattr(fit, part) for fit in fits]) for part in "xy")
    with warnings.catch_warnings():
        # A network with dropout cannot be stacked, which changes no number.
        warnings.filterwarnings("ignore", message="The fleet is trained one by one")
        if name in OWN_NETWORK:
            callbacks = [ClipGradient(_CLIP)]
        else:
            callbacks = []
        return [
            result.model
            for result in Fleet(members).train(x, y, callbacks=callbacks, progress=False)
        ]


def _network(fit: Fit, name: str) -> nn.Module:
    """The paper's, or that of the regime."""
    if name not in OWN_NETWORK:
        return untrained(fit.data, fit.seed)
    return with_weights(
        fit.seed, lambda: counternet(fit.data.num_features, fit.data.num_classes)
    )
