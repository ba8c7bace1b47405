"""The methods of the truth tables: each makes a classifier from rows. A new one is a function and a
line in METHODS (and, to be listed by `ct truth --help`, its name in METHOD_NAMES).

>>> def smoother(fit: Fit) -> nn.Module:
...     return Rescaled(fit.model("BL"), 0.5)
>>> METHODS["smoother"] = Method(smoother)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from torch import Tensor, nn

from counterfactual_training.constraints import Constraints
from counterfactual_training.datasets.dataset import Dataset
from counterfactual_training.errors import lookup
from counterfactual_training.evaluation.plausibility import implausibility_by_class
from counterfactual_training.evaluation.stepfree import (
    FIXED_STEPS,
    Rescaled,
    draw_individuals,
    scale_of,
)
from counterfactual_training.experiments.grid.settings import published, setting_of
from counterfactual_training.experiments.paper_data import IMAGES
from counterfactual_training.experiments.trained import untrained, with_weights
from counterfactual_training.experiments.truth.caps import Caps
from counterfactual_training.gates import fit_gate
from counterfactual_training.generators import search
from counterfactual_training.models import bend, mlp
from counterfactual_training.tables.estimators.parameters import DEFAULT, usual_batch_size
from counterfactual_training.training import CHEAP_RECOURSE, EarlyStopping, Setting, train

# Factors of the logits that the control tries.
SCALES = (0.125, 0.18, 0.25, 0.35, 0.5, 0.71, 1.0, 1.41, 2.0)
_CONTROL_ROWS = 200

# Models by method, and whether they know the protected features.
Known = dict[tuple[str, bool], nn.Module]


@dataclass(frozen=True, eq=False)
class Fit:
    """Everything a method may use. The rows it will be measured on are not included.

    Attributes:
        name: the paper's short name of the data set.
        data: the data set with the rows to fit as its training rows, and no test rows.
        x_validation, y_validation: cut from the training rows, for stopping, choosing and
            calibrating.
        free_constraints: of the searches the model will be measured by, no feature protected.
        seed: of weights and draws.
        protected: whether the model is for people who cannot change the protected features.
        known: models made so far, by method and whether they know the protected features.
    """

    name: str
    data: Dataset
    x_validation: Tensor
    y_validation: Tensor
    free_constraints: Constraints
    seed: int
    caps: Caps = field(default_factory=Caps)
    protected: bool = False
    known: Known = field(default_factory=dict)

    @property
    def constraints(self) -> Constraints:
        """Those of the searches the model will be measured by; the protected features immutable if
        ``protected``.
        """
        if self.protected:
            return self.data.protect(self.free_constraints)
        return self.free_constraints

    @property
    def x(self) -> Tensor:
        """Rows to fit ``(n, d)``."""
        return self.data.x_train

    @property
    def y(self) -> Tensor:
        return self.data.y_train

    def setting(self, objective: str) -> Setting:
        """The published settings of an objective, with epochs and batches as capped."""
        most = self.caps.batch_size
        usual = self.data.settings.batch_size
        if most is None:
            size = usual
        else:
            size = min(most, usual)
        rules = self.data.training_constraints
        settings = {
            "objective.name": objective,
            "training.epochs": self.caps.epochs,
            "training.batch_size": size,
        }
        return setting_of(
            {**published(self.data.settings), **settings},
            self.seed,
            self.data.protect(rules) if self.protected else rules,
        )

    def trained(self, setting: Setting, model: nn.Module | None = None) -> nn.Module:
        """A model, the paper's network by default, trained by the setting on these rows."""
        if model is None:
            model = untrained(self.data, self.seed)
        return train(model, self.x, self.y, setting=setting, progress=False).model

    def model(self, method: str) -> nn.Module:
        """What another method makes of the same rows and seed; made once."""
        recipe = lookup("method", method, METHODS)
        known = (method, self.protected and recipe.protects)
        if known not in self.known:
            # The copy shares ``known``, so that twins and gates of many methods are trained once.
            made = recipe.make(replace(self, protected=known[1]))
            self.known[known] = made.eval().requires_grad_(False)
        return self.known[known]


@dataclass(frozen=True)
class Method:
    """One way to get a classifier.

    Attributes:
        make: a module with k outputs, or gated with k + 1, from a :class:`Fit`.
        twin: the method it is compared with.
        protects: whether it trains anew where features are protected; else one model serves both
            settings.
        images: whether it takes images too; a density of pixels means little.
    """

    make: Callable[[Fit], nn.Module]
    twin: str = "BL"
    protects: bool = False
    images: bool = True


def conventional(fit: Fit) -> nn.Module:
    """The paper's baseline."""
    return fit.trained(fit.setting("vanilla"))


def cheap_recourse_setting(fit: Fit) -> Setting:
    """N5c's: searched by the rules that it is measured by, with the baseline's epochs and
    batches.
    """
    config = replace(
        fit.setting("vanilla").config,
        immature="keep",
        positives=CHEAP_RECOURSE.config.positives,
    )
    return replace(CHEAP_RECOURSE, constraints=fit.constraints, config=config)


def default_network(fit: Fit) -> nn.Module:
    """The network that :class:`CounterfactualClassifier` trains by default, stopped by the
    validation rows.

    Width, activation, asinh, bends, batches and patience are the default's, epochs as capped;
    numbers come standardised here, not by median and quartiles.
    """
    shape = (fit.x.shape[-1], fit.data.num_classes, DEFAULT.hidden, DEFAULT.activation)
    model = with_weights(fit.seed, lambda: mlp(*shape, squash=True))
    bend(model, fit.x, DEFAULT.bent)
    size = usual_batch_size(len(fit.x))
    config = replace(
        DEFAULT.setting.config, epochs=fit.caps.epochs, batch_size=size, seed=fit.seed
    )
    stop = EarlyStopping(DEFAULT.n_iter_no_change, metric="validation_loss", mode="min")
    return train(
        model,
        fit.x,
        fit.y,
        setting=replace(DEFAULT.setting, config=config, constraints=fit.constraints),
        validation=(fit.x_validation, fit.y_validation),
        callbacks=[stop],
        progress=False,
    ).model


def rescaled_baseline(fit: Fit) -> nn.Module:
    """The control: the baseline with its logits times the factor that makes it look best by the
    published steps.

    Chosen on validation rows: the lowest IP among the factors that lose no more than one
        counterfactual in twenty.
    """
    model = fit.model("BL")
    who = draw_individuals(
        fit.x_validation, fit.y_validation, fit.data.num_classes, _CONTROL_ROWS
    )
    found = {}
    for scale in SCALES:
        one = Rescaled(model, scale)
        generator = FIXED_STEPS.generator
        x_cf = search(one, who.x, who.y_target, generator, fit.constraints, diagnose=False).x_cf
        valid = one(x_cf).argmax(-1) == who.y_target
        ip = implausibility_by_class(x_cf[valid], who.y_target[valid], fit.x, fit.y)
        found[scale] = (float(valid.double().mean()), float(ip.mean()))
    needed = 0.95 * max(valid for valid, _ in found.values())
    best = min((ip, scale) for scale, (valid, ip) in found.items() if valid >= needed)
    return Rescaled(model, best[1])


def gated(kind: str, method: str = "BL") -> Callable[[Fit], nn.Module]:
    """The model of another method with a gate at the scale of .95*; its decisions do not change."""

    return lambda fit: with_gate(fit.model(method), fit, kind)


def with_gate(model: nn.Module, fit: Fit, kind: str) -> nn.Module:
    """The model with a gate fitted to the same rows, at the scale of .95*."""
    scale = scale_of(model, fit.x, fit.y)
    return fit_gate(
        model, fit.x, fit.y, kind, constraints=fit.constraints, scale=scale, seed=fit.seed
    )


def best(fit: Fit) -> nn.Module:
    """One rule for all data, chosen on rows cut from training rows: both gates for tables, a
    learned one for images, whose pixels have no density to speak of."""
    return fit.model("G" if fit.name in IMAGES else "K + G")


# A gate compares people with those who have the same protected features, so it is made anew where
# there are some.
METHODS: dict[str, Method] = {
    "BL": Method(conventional),
    "BL rescaled": Method(rescaled_baseline),
    "CT": Method(lambda fit: fit.trained(fit.setting("full")), protects=True),
    # Logistic contrast, and recourse where features are protected, as far as a twin's accuracy
    # lets.
    "N5c": Method(lambda fit: fit.trained(cheap_recourse_setting(fit)), protects=True),
    "N5c + K": Method(gated("density", "N5c"), protects=True, images=False),
    "K": Method(gated("density"), protects=True, images=False),
    "G": Method(gated("learned"), protects=True),
    "K + G": Method(gated("both"), protects=True, images=False),
    "best": Method(best, protects=True),
    "default net": Method(default_network, images=False),
    "default": Method(
        gated(DEFAULT.gate, "default net"), twin="default net", protects=True, images=False
    ),
}
