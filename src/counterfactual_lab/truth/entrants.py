"""The methods of a comparison: what the text of one means, and models trained by it.

A text is a method, maybe with a gate as a part of its own:

============================  =====================================================================
``pgd(epsilon=0.2)``          any method, published or registered, with settings
``pgd + density``             with this gate; also ``learned``, ``both``, and ``best``: both, of
                              images a learned one
``pgd rescaled``              a control: logits times the factor by which the published steps look
                              best
``counternet itself``         answers without a search
``default network``           a network as :class:`CounterfactualClassifier` makes it
============================  =====================================================================

:data:`counterfactual_lab.truth.caps.METHODS_HELP` says the same to those who ask the commands.
"""

from __future__ import annotations

import re
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
from counterfactual_training.training.fleet import Fleet, Member, member_of
from counterfactual_training.training.method import Method
from counterfactual_training.training.methods import METHODS_WITH_NETWORK
from counterfactual_training.training.registry import (
    kind_and_method,
    make_method,
    method_names,
)
from counterfactual_training.training.train import train

# Factors of the logits that the control tries.
SCALES = (0.125, 0.18, 0.25, 0.35, 0.5, 0.71, 1.0, 1.41, 2.0)
_CONTROL_ROWS = 200
DEFAULT_NETWORK = "default network"
# By which it is trained.
_USUAL = "conventional"
_RESCALED = "rescaled"
_ITSELF = "itself"
_BEST = "best"
# A method, and a gate behind the last plus, which no setting can contain.
_WITH_GATE = re.compile(r"(?P<method>.*\S)\s*\+\s*(?P<gate>\w+)\s*", re.DOTALL)
# Gates that are densities; of pixels these mean little.
_DENSITIES = ("density", "both")
# Gradients of the networks of :data:`METHODS_WITH_NETWORK` are cut to this length, as the authors
# of CounterNet did.
_CLIP = 0.5
# Methods that train on the same batches as the others here, though they shuffle by themselves.
_SAME_BATCHES = ("cheap_recourse",)

# Models by the text of their method, and whether they know the protected features.
TrainedModels = dict[tuple[str, bool], nn.Module]
# Changes a method before it trains: of a comparison with limits of its own.
Change = Callable[["Fit", Method], Method]


@dataclass(frozen=True)
class Compared:
    """What the text of a method means in a comparison.

    Attributes:
        method: text of the method that trains it, as the registry writes it, or
            :data:`DEFAULT_NETWORK`.
        gate: kind of the gate that is added: one of :data:`GATES`, ``"best"`` or ``"none"``.
        rescaled: whether it is the control with rescaled logits.
        itself: whether the network answers in place of a search.
    """

    method: str
    gate: str = "none"
    rescaled: bool = False
    itself: bool = False

    @classmethod
    def of(cls, text: str) -> Compared:
        """Of a text as people write it; raises if it is unknown."""
        gated = _WITH_GATE.fullmatch(text)
        if gated is not None:
            check_name("gate", gated["gate"], (*GATES, _BEST))
            return cls(_canonical(gated["method"]), gated["gate"])
        bare = text.strip()
        if bare.endswith(f" {_RESCALED}"):
            return cls(_canonical(bare.removesuffix(_RESCALED)), rescaled=True)
        if bare.endswith(f" {_ITSELF}"):
            method = _canonical(bare.removesuffix(_ITSELF))
            if (
                method == DEFAULT_NETWORK
                or make_method(method).name not in METHODS_WITH_NETWORK
            ):
                raise InputError(
                    f"{text!r}: of all methods, only {', '.join(METHODS_WITH_NETWORK)} answers "
                    f"without a search; leave {_ITSELF!r} out."
                )
            return cls(method, itself=True)
        return cls(_canonical(bare))

    def __str__(self) -> str:
        """The canonical text: texts of equal meaning become equal."""
        if self.gate != "none":
            return f"{self.method} + {self.gate}"
        if self.rescaled:
            return f"{self.method} {_RESCALED}"
        if self.itself:
            return f"{self.method} {_ITSELF}"
        return self.method

    @property
    def reference(self) -> str:
        """Text of the method that it is compared with."""
        if self.method == DEFAULT_NETWORK and self.gate != "none":
            return DEFAULT_NETWORK
        return CONVENTIONAL

    @property
    def trains_by(self) -> str:
        """The method that trains its network."""
        if self.method == DEFAULT_NETWORK:
            return _USUAL
        return self.method

    @property
    def protects(self) -> bool:
        """Whether it is trained again where features are protected; else one model serves both."""
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
        return num_classes == 2 or make_method(self.method).name not in METHODS_WITH_NETWORK

    def gate_of(self, data: str) -> str:
        """The kind of its gate on a data set."""
        if self.gate != _BEST:
            return self.gate
        # Distances between pixels mean little, so images have a learned gate.
        if data in IMAGES:
            return "learned"
        return "both"

    def complete(self, model: nn.Module, fit: Fit) -> nn.Module:
        """The trained model with what its text adds to it; its decisions do not change."""
        if self.gate != "none":
            return with_gate(model, fit, self.gate_of(fit.name))
        if self.rescaled:
            return rescaled(model, fit)
        return model


def _canonical(text: str) -> str:
    """A method as the registry writes it."""
    bare = text.strip()
    # A bare name states everything.
    if bare == DEFAULT_NETWORK or bare in method_names():
        return bare
    return str(make_method(bare))


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
        trained_models: models made so far, by method and whether they know the protected features.
    """

    name: str
    data: Dataset
    x_validation: Tensor
    y_validation: Tensor
    free_constraints: Constraints
    seed: int
    caps: Caps = field(default_factory=Caps)
    protected: bool = False
    trained_models: TrainedModels = field(default_factory=dict)

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
        """The model of this text, of these rows and seed; made once."""
        compared = Compared.of(text)
        key = (str(compared), self.protected and compared.protects)
        if key not in self.trained_models:
            # The copy shares ``trained_models``: what several methods build on is trained once.
            fit = replace(self, protected=key[1])
            if str(compared) == compared.method:
                model = trained([fit], compared.method)[0]
            else:
                model = compared.complete(fit.model(compared.method), fit)
            self.trained_models[key] = model.eval().requires_grad_(False)
        return self.trained_models[key]


def trained(fits: Sequence[Fit], text: str, change: Change | None = None) -> list[nn.Module]:
    """A model per fit, in eval mode, trained by a method as one fleet; of an ensemble, all its
    networks.

    Args:
        fits: of one data set, with as many rows each.
        text: of the method, or :data:`DEFAULT_NETWORK`.
        change: what a comparison changes in the method, given a fit.
    """
    if text == DEFAULT_NETWORK:
        return [default_network(fit) for fit in fits]
    size = make_method(text).members
    # Seeds of their own: members of one ensemble share none with those of another.
    each = [
        replace(fit, seed=1000 + size * fit.seed + i) if size > 1 else fit
        for fit in fits
        for i in range(size)
    ]
    rows = []
    members = []
    for fit in each:
        method = fit.method(text)
        if change is not None:
            method = change(fit, method)
        drawn, member = _with_rows(fit, method)
        rows.append(drawn)
        members.append(member)
    x, y = _rows_of(rows)
    callbacks = []
    if kind_and_method(members[0].method.name)[1] in METHODS_WITH_NETWORK:
        callbacks = [ClipGradient(_CLIP)]
    with warnings.catch_warnings():
        # A network with dropout cannot be stacked, which changes no number.
        warnings.filterwarnings("ignore", message="The fleet is trained one by one")
        results = Fleet(members).train(x, y, callbacks=callbacks, progress=False)
    models = [result.model.eval().requires_grad_(False) for result in results]
    if size == 1:
        return models
    return [Ensemble(models[i : i + size]) for i in range(0, len(models), size)]


def _with_rows(fit: Fit, method: Method) -> tuple[tuple[Tensor, Tensor], Member]:
    """A network about to be trained, and its rows and classes: in a bag, those that it drew."""
    member = member_of(_network(fit, method.name), method, fit.y)
    drawn = slice(None) if member.rows is None else member.rows
    return (fit.x[drawn], fit.y[drawn]), replace(member, rows=None)


def _rows_of(parts: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """The rows and classes of a fleet's members: stacked, unless there is one."""
    if len(parts) == 1:
        return parts[0]
    return torch.stack([x for x, _ in parts]), torch.stack([y for _, y in parts])


def _network(fit: Fit, name: str) -> nn.Module:
    """The paper's, or that of the method."""
    if kind_and_method(name)[1] not in METHODS_WITH_NETWORK:
        return untrained(fit.data, fit.seed)
    return with_weights(
        fit.seed, lambda: counternet(fit.data.num_features, fit.data.num_classes)
    )


def default_network(fit: Fit) -> nn.Module:
    """One network as :class:`CounterfactualClassifier` makes it, trained conventionally and stopped
    by the validation rows.

    Width, activation, asinh, bends, batches and patience are the default's, epochs as capped;
    numbers come standardised here, not by median and quartiles.
    """
    # Imported here: only this entrant needs the classifier of tables, which loads fifty modules.
    from counterfactual_training.tables.estimators.classifier import CounterfactualClassifier
    from counterfactual_training.tables.estimators.parameters import BENT, usual_batch_size

    usual = CounterfactualClassifier()
    shape = (fit.x.shape[-1], fit.data.num_classes, usual.hidden, usual.activation)
    model = with_weights(fit.seed, lambda: mlp(*shape, squash=True))
    bend(model, fit.x, BENT)
    method = make_method(_USUAL).replace(
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
    ratios = {}
    for scale in SCALES:
        one = Rescaled(model, scale)
        generator = FIXED_STEPS.generator
        x_cf = search(one, who.x, who.y_target, generator, fit.constraints, diagnose=False).x_cf
        valid = one(x_cf).argmax(-1) == who.y_target
        ip = implausibility_by_class(x_cf[valid], who.y_target[valid], fit.x, fit.y)
        ratios[scale] = (float(valid.double().mean()), float(ip.mean()))
    needed = 0.95 * max(valid for valid, _ in ratios.values())
    best = min((ip, scale) for scale, (valid, ip) in ratios.items() if valid >= needed)
    return Rescaled(model, best[1])


def with_gate(model: nn.Module, fit: Fit, kind: str) -> nn.Module:
    """The model with a gate fitted to the same rows, at the scale of .95*."""
    # Here, because few entrants have a gate.
    from counterfactual_training.gates import fit_gate

    scale = scale_of(model, fit.x, fit.y)
    return fit_gate(
        model, fit.x, fit.y, kind, constraints=fit.constraints, scale=scale, seed=fit.seed
    )
