"""Who takes part: every regime on the paper's network, with as many input gradients as the others.

A name is that of a regime, ``ensemble`` (of conventional networks) or ``gated`` (a conventional network with the gate
of :class:`CounterfactualClassifier`); ``ensemble of jem`` and ``gated pgd`` are those of other regimes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from counterfactual_training.errors import check_name
from counterfactual_training.estimator.parameters import DEFAULT
from counterfactual_training.evaluation.stepfree import scale_of
from counterfactual_training.experiments.arena.caps import MEMBERS
from counterfactual_training.experiments.paper_data import IMAGES
from counterfactual_training.experiments.trained import untrained
from counterfactual_training.experiments.truth.methods import Fit, cheap_recourse_setting
from counterfactual_training.gates import fit_gate
from counterfactual_training.models import Ensemble
from counterfactual_training.training import AS_PRINTED, REGIMES, Fleet, Member, Setting, make_regime

BASELINE = "conventional"
_ENSEMBLE, _GATED = "ensemble", "gated"
# Objectives of the paper's experiments, by regime.
_PAPER = {"conventional": "vanilla", "ct": "full", "ct_divergence": "divergence", "ct_adversarial": "adversarial"}
# Regimes that search as Eq. 2 does: a share of the rows, up to T steps each.
_SEARCHING = ("ct", "as_printed", "cheap_recourse", "ct_divergence", "ct_adversarial")
# Numbers of a recipe at K input gradients per row and epoch, T of them per counterfactual. Recipes that are not here
# take one, or as many as their searches need.
_AT: dict[str, Callable[[int, int], dict[str, float]]] = {
    "pgd": lambda k, t: {"steps": k},
    "trades": lambda k, t: {"steps": k},
    "jem": lambda k, t: {"steps": k},
    "dat": lambda k, t: {"steps": max(1, k // 2), "most": max(1, k - k // 2)},
    "cat": lambda k, t: {"share": min(1.0, k / t)},
}
_ONE_GRADIENT = ("ross", "gradient_supervision")


@dataclass(frozen=True)
class Contestant:
    """One way to get a model.

    Attributes:
        name: as written by the user.
        regime: of the training.
        kind: a plain network, an ensemble or a gated network.
    """

    name: str
    regime: str
    kind: str = "plain"

    @classmethod
    def named(cls, name: str) -> Contestant:
        words = name.split()
        first, rest = (words[0], [word for word in words[1:] if word != "of"]) if words else (name, [])
        if first in (_ENSEMBLE, _GATED) and len(rest) < 2:
            regime = rest[0] if rest else BASELINE
            check_name("regime", regime, REGIMES)
            return cls(name, regime, first)
        check_name("regime", name, all_names())
        return cls(name, name)

    def make(self, fits: Sequence[Fit], gradients: int) -> list[nn.Module]:
        """A trained classifier per seed, in eval mode, with k outputs, or k + 1 if it is gated; trained as one fleet.

        Args:
            fits: of one data set, with as many rows each.
        """
        size = MEMBERS if self.kind == _ENSEMBLE else 1
        # Seeds of their own: members of one ensemble share none with those of another.
        each = [replace(fit, seed=1000 + size * fit.seed + i) if size > 1 else fit for fit in fits for i in range(size)]
        trained = _trained(each, self.regime, gradients)
        models = [Ensemble(trained[i : i + size]) if size > 1 else trained[i] for i in range(0, len(each), size)]
        if self.kind == _GATED:
            models = [_gated(model, fit) for model, fit in zip(models, fits, strict=True)]
        return [model.eval().requires_grad_(False) for model in models]

    def input_gradients(self, fit: Fit, gradients: int) -> float:
        """Taken at most per row and epoch, to find what a batch is trained on."""
        setting = setting_of(fit, self.regime, gradients)
        members = MEMBERS if self.kind == _ENSEMBLE else 1
        if self.regime in _AT:
            return float(members * gradients)
        if self.regime in _ONE_GRADIENT:
            return float(members)
        searches = self.regime in _SEARCHING or setting.regime is not None
        steps = int(setting.generator.numbers()["max_steps"])
        share = setting.config.num_counterfactuals / len(fit.x) if setting.regime is None else 1.0
        return round(members * searches * share * steps, 1)


def all_names() -> list[str]:
    """Those of ``--regimes all``."""
    return [*REGIMES, _ENSEMBLE, _GATED]


def setting_of(fit: Fit, name: str, gradients: int) -> Setting:
    """How a regime trains here: the paper's epochs, batches and search, its own numbers, and the gradients allowed."""
    usual = fit.setting(_PAPER.get(name, "full"))
    if name == "cheap_recourse":
        usual = cheap_recourse_setting(fit)
    elif name == "as_printed":
        config = replace(
            AS_PRINTED.config, epochs=usual.config.epochs, batch_size=usual.config.batch_size, seed=fit.seed
        )
        tau = usual.generator.numbers()["decision_threshold"]
        usual = replace(usual, generator=AS_PRINTED.generator.replace(decision_threshold=tau), config=config)
    steps = int(usual.generator.numbers()["max_steps"])
    if name in _PAPER or name in _SEARCHING:
        count = max(1, round(gradients * len(fit.x) / steps))
        return replace(usual, config=replace(usual.config, num_counterfactuals=count))
    made = make_regime(name, **_AT.get(name, lambda k, t: {})(gradients, steps))
    # Under the rules that it is measured by; the authors of CT trained with continuous categories.
    config = replace(usual.config, burn_in=made.config.burn_in)
    return replace(made, generator=usual.generator, constraints=fit.constraints, config=config)


def _trained(fits: Sequence[Fit], name: str, gradients: int) -> list[nn.Module]:
    members = [Member(untrained(fit.data, fit.seed), setting_of(fit, name, gradients)) for fit in fits]
    x, y = (torch.stack([getattr(fit, part) for fit in fits]) for part in "xy")
    return [result.model for result in Fleet(members).train(x, y, progress=False)]


def _gated(model: nn.Module, fit: Fit) -> nn.Module:
    # Distances between pixels mean little, so images have a learned gate.
    gate, scale = "learned" if fit.name in IMAGES else DEFAULT.gate, scale_of(model, fit.x, fit.y)
    return fit_gate(model, fit.x, fit.y, gate, constraints=fit.constraints, scale=scale, seed=fit.seed)
