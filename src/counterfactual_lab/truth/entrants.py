"""Who takes part in a comparison: a method by its text, maybe with something added.

============================  =====================================================================
``pgd(epsilon=0.2)``          any method, published or registered, with settings
``gated pgd``                 with the gate that suits the data: a density, of images a learned one
``gated``                     the same of conventional training
``pgd + density``             with this gate; also ``learned``, ``both``, and ``best``: both, of
                              images a learned one
``conventional rescaled``     logits times the factor by which the published steps look best
``counternet itself``         answers without a search
``default network``           what :class:`CounterfactualClassifier` trains by default
============================  =====================================================================
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from counterfactual_lab.grids.settings import CONVENTIONAL, published
from counterfactual_lab.networks import untrained, with_weights
from counterfactual_lab.paper_data import IMAGES
from counterfactual_lab.truth.caps import Caps
from counterfactual_training.constraints import Constraints
from counterfactual_training.datasets.dataset import Dataset
from counterfactual_training.defaults import GATES
from counterfactual_training.errors import InputError, check_name
from counterfactual_training.evaluation.plausibility import implausibility_by_class
from counterfactual_training.evaluation.stepfree import (
    FIXED_STEPS,
    Rescaled,
    first_individuals,
    scale_of,
)
from counterfactual_training.generators import search
from counterfactual_training.models.classifiers import bend, mlp
from counterfactual_training.models.counternet import counternet
from counterfactual_training.models.ensemble import Ensemble
from counterfactual_training.training.callbacks import ClipGradient, EarlyStopping
from counterfactual_training.training.fleet import Fleet, Member
from counterfactual_training.training.method import Method
from counterfactual_training.training.methods import OWN_NETWORK
from counterfactual_training.training.registry import make_method
from counterfactual_training.training.train import train

# Factors of the logits that the control tries.
SCALES = (0.125, 0.18, 0.25, 0.35, 0.5, 0.71, 1.0, 1.41, 2.0)
_CONTROL_ROWS = 200
DEFAULT_NETWORK = "default network"
_GATED = "gated"
_RESCALED = "rescaled"
_ITSELF = "itself"
_BEST = "best"
# Gates that are densities; of pixels these mean little.
_DENSITIES = ("density", "both")
# Gradients of the networks of :data:`OWN_NETWORK` are cut to this length, as the authors of
# CounterNet did.
_CLIP = 0.5
# Methods that train on the same batches as the others here, though they shuffle by themselves.
_SAME_BATCHES = ("cheap_recourse",)

# Models by entrant, and whether they know the protected features.
Known = dict[tuple[str, bool], nn.Module]
# Changes a method before it trains: of a comparison with limits of its own.
Change = Callable[["Fit", Method], Method]


@dataclass(frozen=True)
class Entrant:
    """What the text of a participant means.

    Attributes:
        text: as written by the user.
        method: text of the method that trains it, or :data:`DEFAULT_NETWORK`.
        gate: kind of the gate that is added: one of :data:`GATES`, ``"gated"``, ``"best"`` or
            ``"none"``.
        rescaled: whether it is the control with rescaled logits.
        itself: whether the network answers in place of a search.
    """

    text: str
    method: str
    gate: str = "none"
    rescaled: bool = False
    itself: bool = False

    @classmethod
    def named(cls, text: str) -> Entrant:
        """The participant of this text; raises if it is unknown."""
        first = text.split()[:1]
        if first == [_GATED]:
            rest = text.strip().removeprefix(_GATED).strip()
            found = cls(text, rest or CONVENTIONAL, _GATED)
        elif " + " in text:
            method, _, gate = text.rpartition(" + ")
            check_name("gate", gate.strip(), (*GATES, _BEST))
            found = cls(text, method.strip(), gate.strip())
        elif text.endswith(f" {_RESCALED}"):
            found = cls(text, text.removesuffix(_RESCALED).strip(), rescaled=True)
        elif text.endswith(f" {_ITSELF}"):
            found = cls(text, text.removesuffix(_ITSELF).strip(), itself=True)
        else:
            found = cls(text, text)
        if found.method == DEFAULT_NETWORK:
            return found
        name = make_method(found.method).name
        if found.itself and name not in OWN_NETWORK:
            raise InputError(
                f"{text!r}: only {', '.join(OWN_NETWORK)} answers without a search; leave "
                f"{_ITSELF!r} out."
            )
        return found

    @property
    def twin(self) -> str:
        """Text of the participant that it is compared with."""
        if self.method == DEFAULT_NETWORK and self.gate != "none":
            return DEFAULT_NETWORK
        return CONVENTIONAL

    @property
    def protects(self) -> bool:
        """Whether it is made anew where features are protected; else one model serves both."""
        # A gate compares people with those who have the same protected features.
        if self.gate != "none":
            return True
        if self.rescaled or self.method == DEFAULT_NETWORK:
            return False
        method = make_method(self.method)
        return method.loss is not None or method.needs_counterfactuals

    def takes(self, num_classes: int, images: bool = False) -> bool:
        """Whether it can be made of such data: CounterNet has two classes, a density no pixels."""
        if images and (self.gate in _DENSITIES or self.method == DEFAULT_NETWORK):
            return False
        if self.method == DEFAULT_NETWORK:
            return True
        return num_classes == 2 or make_method(self.method).name not in OWN_NETWORK

    def gate_of(self, data: str) -> str:
        """The kind of its gate on a data set."""
        if self.gate not in (_GATED, _BEST):
            return self.gate
        # Distances between pixels mean little, so images have a learned gate.
        if data in IMAGES:
            return "learned"
        if self.gate == _BEST:
            return "both"
        return "density"


@dataclass(frozen=True, eq=False)
class Fit:
    """Everything a participant may use. The rows it will be measured on are not included.

    Attributes:
        name: the paper's short name of the data set.
        data: the data set with the rows to fit as its training rows, and no test rows.
        x_validation, y_validation: cut from the training rows, for stopping, choosing and
            calibrating.
        free_constraints: of the searches the model will be measured by, no feature protected.
        seed: of weights and draws.
        protected: whether the model is for people who cannot change the protected features.
        known: models made so far, by participant and whether they know the protected features.
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

    def method(self, text: str) -> Method:
        """How a method trains here: with the published numbers of the data set, epochs and batches
        as capped. What its text states stays as it is.
        """
        paper = self.data.settings
        most = self.caps.batch_size
        if most is not None:
            paper = replace(paper, batch_size=min(most, paper.batch_size))
        stated = make_method(text).stated
        method = published(text, paper)
        if "training.epochs" not in stated:
            method = method.replace("training.epochs", self.caps.epochs)
        if method.name in _SAME_BATCHES and "training.shuffle" not in stated:
            method = method.replace("training.shuffle", False)
        # The authors of CT trained with continuous categories; others train under the rules that
        # they are measured by.
        if method.loss is not None or method.project_categories:
            rules = self.constraints
        elif self.protected:
            rules = self.data.protect(self.data.training_constraints)
        else:
            rules = self.data.training_constraints
        method = replace(method, constraints=rules).seeded(self.seed)
        return method.with_rows(self.x, self.y)

    def model(self, text: str) -> nn.Module:
        """The participant of this text, of these rows and seed; made once."""
        entrant = Entrant.named(text)
        known = (text, self.protected and entrant.protects)
        if known not in self.known:
            # The copy shares ``known``, so that what several participants build on is trained once.
            made = _made(entrant, replace(self, protected=known[1]))
            self.known[known] = made.eval().requires_grad_(False)
        return self.known[known]


def _made(entrant: Entrant, fit: Fit) -> nn.Module:
    if entrant.gate != "none":
        # Its decisions do not change.
        return with_gate(fit.model(entrant.method), fit, entrant.gate_of(fit.name))
    if entrant.rescaled:
        return rescaled(fit.model(entrant.method), fit)
    if entrant.method == DEFAULT_NETWORK:
        return default_network(fit)
    return trained([fit], entrant.method)[0]


def trained(fits: Sequence[Fit], text: str, change: Change | None = None) -> list[nn.Module]:
    """A model per fit, in eval mode, trained by a method as one fleet; of an ensemble, all its
    networks.

    Args:
        fits: of one data set, with as many rows each.
        change: what a comparison changes in the method, given a fit.
    """
    size = make_method(text).members
    # Seeds of their own: members of one ensemble share none with those of another.
    each = [
        replace(fit, seed=1000 + size * fit.seed + i) if size > 1 else fit
        for fit in fits
        for i in range(size)
    ]
    members = []
    for fit in each:
        method = fit.method(text)
        if change is not None:
            method = change(fit, method)
        members.append(Member(_network(fit, method.name), replace(method, members=1)))
    x, y = _rows_of(each)
    callbacks = []
    if members[0].method.name.removeprefix("ensemble of ") in OWN_NETWORK:
        callbacks = [ClipGradient(_CLIP)]
    with warnings.catch_warnings():
        # A network with dropout cannot be stacked, which changes no number.
        warnings.filterwarnings("ignore", message="The fleet is trained one by one")
        results = Fleet(members).train(x, y, callbacks=callbacks, progress=False)
    models = [result.model.eval().requires_grad_(False) for result in results]
    if size == 1:
        return models
    return [Ensemble(models[i : i + size]) for i in range(0, len(models), size)]


def _rows_of(fits: Sequence[Fit]) -> tuple[Tensor, Tensor]:
    """The rows of a fleet: stacked, unless there is one."""
    if len(fits) == 1:
        return fits[0].x, fits[0].y
    return torch.stack([fit.x for fit in fits]), torch.stack([fit.y for fit in fits])


def _network(fit: Fit, name: str) -> nn.Module:
    """The paper's, or that of the method."""
    if name.removeprefix("ensemble of ") not in OWN_NETWORK:
        return untrained(fit.data, fit.seed)
    return with_weights(
        fit.seed, lambda: counternet(fit.data.num_features, fit.data.num_classes)
    )


def default_network(fit: Fit) -> nn.Module:
    """The network that :class:`CounterfactualClassifier` trains by default, stopped by the
    validation rows.

    Width, activation, asinh, bends, batches and patience are the default's, epochs as capped;
    numbers come standardised here, not by median and quartiles.
    """
    # Here, because nobody else needs the classifier of tables, which brings fifty modules.
    from counterfactual_training.tables.estimators.classifier import CounterfactualClassifier
    from counterfactual_training.tables.estimators.parameters import BENT, usual_batch_size

    usual = CounterfactualClassifier()
    shape = (fit.x.shape[-1], fit.data.num_classes, usual.hidden, usual.activation)
    model = with_weights(fit.seed, lambda: mlp(*shape, squash=True))
    bend(model, fit.x, BENT)
    method = make_method(usual.method).replace(
        {
            "training.shuffle": True,
            "training.epochs": fit.caps.epochs,
            "training.batch_size": usual_batch_size(len(fit.x)),
            "training.seed": fit.seed,
        }
    )
    stop = EarlyStopping(usual.n_iter_no_change, metric="validation_loss", mode="min")
    return train(
        model,
        fit.x,
        fit.y,
        method,
        fit.constraints,
        validation=(fit.x_validation, fit.y_validation),
        callbacks=[stop],
        progress=False,
    ).model


def rescaled(model: nn.Module, fit: Fit) -> nn.Module:
    """The control: the model with its logits times the factor that makes it look best by the
    published steps.

    Chosen on validation rows: the lowest IP among the factors that lose no more than one
    counterfactual in twenty.
    """
    who = first_individuals(
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


def with_gate(model: nn.Module, fit: Fit, kind: str) -> nn.Module:
    """The model with a gate fitted to the same rows, at the scale of .95*."""
    # Here, because few entrants have a gate.
    from counterfactual_training.gates import fit_gate

    scale = scale_of(model, fit.x, fit.y)
    return fit_gate(
        model, fit.x, fit.y, kind, constraints=fit.constraints, scale=scale, seed=fit.seed
    )
