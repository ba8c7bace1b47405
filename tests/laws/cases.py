"""One table of generators, one of models, one of constraints: the laws hold on their product.

A generator registered in ``counterfactual_training.search.GENERATORS`` is in the table by that alone.

``make test`` runs the part of the product in which every two values of two axes meet (``tests/covering.py``);
``pytest -m exhaustive`` runs the rest.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn

from counterfactual_training import Constraints, Domain, Generator, OneHotGroup, SearchResult, linear, mlp, search
from counterfactual_training.constraints import Lattice
from counterfactual_training.models import VAE, fit_vae
from counterfactual_training.search import GENERATORS, SearchState, make_generator, register_generator

NUM_FEATURES = 9
CONTINUOUS = [0, 1, 2]
INTEGER, STEPPED = 3, 4
GROUP, BINARY = [5, 6, 7], [8]
ROWS = 10


def draw_data(num_classes: int, n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Continuous, integer, stepped, one-hot and binary columns, all of which tell about the class."""
    rng = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % num_classes
    centres = torch.randn(num_classes, 5, generator=torch.Generator().manual_seed(7))
    five = 1.5 * centres[y] + 0.7 * torch.randn(n, 5, generator=rng)
    five[:, INTEGER] = (2 * five[:, INTEGER]).round()
    five[:, STEPPED] = (five[:, STEPPED] / 0.5).round() * 0.5
    category = (y + torch.randint(2, (n,), generator=rng)) % 3
    binary = (torch.rand(n, generator=rng) < 0.3 + 0.4 * (y % 2)).float()
    return torch.cat([five, nn.functional.one_hot(category, 3).float(), binary.unsqueeze(1)], 1), y


# ---- generators ----------------------------------------------------------------------------------------------------


def squared_distance(state: SearchState) -> Tensor:
    """A penalty as a user writes one: no derivative given, autograd finds it."""
    return 0.05 * state.delta.square().sum(-1)


def own(**settings: object) -> Generator:
    """A user's own recipe."""
    return Generator("own", penalties=(squared_distance,), **settings)


# Recipes with other steps than their usual ones.
VARIANTS: dict[str, tuple[str, dict[str, object]]] = {
    "normalised": ("generic", {"step_rule": "normalised"}),
    "adam": ("ecco", {"step_rule": "adam"}),
    "top_k": ("sparse", {"most": 3}),
}
GENERATOR_NAMES = [*GENERATORS, *VARIANTS, "own"]
# Whose every update moves all continuous features that can move.
SELECTIVE = ("line", "greedy", "top_k", "nearest_unlike", "growing_spheres")
DESCENDING = [name for name in GENERATOR_NAMES if name not in SELECTIVE]


@cache
def vae() -> VAE:
    return fit_vae(draw_data(4, 200, seed=3)[0], epochs=40)


def generator_of(name: str, num_classes: int = 3, **settings: object) -> Generator:
    """The recipe of that name, set so that some rows arrive and some do not."""
    settings = {"learning_rate": 0.4, "max_steps": 20, "decision_threshold": 0.8, **settings}
    if name == "growing_spheres":
        settings = {"num": 15, **settings}
    if name in VARIANTS:
        name, own_settings = VARIANTS[name]
        settings = {**settings, **own_settings}
    if name == "revise":
        return make_generator(name, vae=vae(), **settings)
    if name != "own":
        return make_generator(name, *draw_data(num_classes, 200, seed=3), **settings)
    register_generator("own", own)
    try:
        return make_generator("own", **settings)
    finally:
        del GENERATORS["own"]


# ---- models --------------------------------------------------------------------------------------------------------


class OwnModule(nn.Module):
    """What a user may bring: batch normalisation, dropout, a branch, a frozen layer and mixed modes."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.enter = nn.Linear(NUM_FEATURES, 12)
        self.norm = nn.BatchNorm1d(12)
        self.drop = nn.Dropout(0.4)
        self.leave = nn.Linear(12, num_classes)
        self.skip = nn.Linear(NUM_FEATURES, num_classes)
        self.skip.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(self.drop(torch.tanh(self.norm(self.enter(x))))) + self.skip(x)


MODELS: dict[str, tuple[int, Callable[[int], nn.Module]]] = {
    "linear": (2, lambda k: linear(NUM_FEATURES, k)),
    "mlp": (2, lambda k: mlp(NUM_FEATURES, k, hidden=(16,))),
    "deep": (4, lambda k: mlp(NUM_FEATURES, k, hidden=(16, 8), activation="swish")),
    "own_module": (3, OwnModule),
}


@cache
def _trained(name: str) -> nn.Module:
    num_classes, build = MODELS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = build(num_classes)
        x, y = draw_data(num_classes, 120, seed=2)
        optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.03)
        for _ in range(40):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    return model


def model_of(name: str) -> nn.Module:
    """A copy of a somewhat trained model, left in train mode with gradients in place, one layer in eval mode."""
    model = copy.deepcopy(_trained(name))
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter) if parameter.requires_grad else None
    if isinstance(model, OwnModule):
        model.norm.eval()
    return model


def snapshot(model: nn.Module) -> dict[str, object]:
    """Everything a search must leave alone: weights, buffers, gradients, modes, what is trainable."""
    state: dict[str, object] = {f"value of {k}": v.clone() for k, v in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        state[f"gradient of {name}"] = None if parameter.grad is None else parameter.grad.clone()
        state[f"{name} is trainable"] = parameter.requires_grad
    return state | {f"training {name}": module.training for name, module in model.named_modules()}


# ---- constraints ---------------------------------------------------------------------------------------------------

LATTICES = (Lattice(INTEGER), Lattice(STEPPED, values=torch.arange(-20, 21) * 0.5))
# From category 0 one may go to 1 only, from 1 to 2 only, from 2 nowhere.
TRANSITIONS = torch.tensor([[1, 1, 0], [0, 1, 1], [0, 0, 1]]).bool()
GROUPS = (OneHotGroup(tuple(GROUP)), OneHotGroup(tuple(BINARY)))

CONSTRAINTS: dict[str, Callable[[Tensor], Constraints | None]] = {
    "none": lambda x: None,
    "immutable": lambda x: Constraints.build(NUM_FEATURES, {0: "none", 5: "none", -1: "none"}),
    "directions": lambda x: Constraints.build(NUM_FEATURES, {0: "increase", 1: "decrease", 2: +1, 3: -1}),
    "stated_box": lambda x: Constraints.build(NUM_FEATURES, domain=Domain(x.amin(0) - 0.1, x.amax(0) + 0.1)),
    "inferred_box": lambda x: Constraints.infer(x[:4], {1: "increase", 2: "none"}, num_std=0.5),
    "one_hot": lambda x: Constraints.build(NUM_FEATURES, groups=GROUPS),
    "one_hot_step": lambda x: Constraints.build(NUM_FEATURES, groups=GROUPS, category_projection="step"),
    "transitions": lambda x: Constraints.build(
        NUM_FEATURES, groups=[OneHotGroup(tuple(GROUP), TRANSITIONS), OneHotGroup(tuple(BINARY))]
    ),
    "lattices": lambda x: Constraints.build(NUM_FEATURES, lattices=LATTICES),
    "discrete_only": lambda x: Constraints.build(
        NUM_FEATURES, dict.fromkeys(CONTINUOUS, "none"), (-20, 20), groups=GROUPS, lattices=LATTICES
    ),
    "mixed": lambda x: Constraints.build(
        NUM_FEATURES,
        {0: "none", 1: "increase", INTEGER: "decrease", 8: "increase"},
        Domain(x.amin(0) - 0.3, x.amax(0) + 0.3),
        groups=[OneHotGroup(tuple(GROUP), TRANSITIONS), OneHotGroup(tuple(BINARY))],
        lattices=LATTICES,
    ),
}


# ---- their product -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One search, with all that went into it."""

    model: nn.Module
    x: Tensor
    y_target: Tensor
    generator: Generator
    constraints: Constraints | None
    result: SearchResult
    before: dict[str, object]  # the model
    after: dict[str, object]

    @property
    def rules(self) -> Constraints:
        return self.constraints if self.constraints is not None else Constraints.build(NUM_FEATURES)

    def again(self, rows: Tensor | slice = slice(None), **options: object) -> SearchResult:
        """The same search of some of the rows."""
        rng = torch.Generator().manual_seed(5)
        return search(self.model, self.x[rows], self.y_target[rows], self.generator, self.constraints, rng, **options)


@cache
def case(generator: str, model: str, constraints: str, double: bool = False, threshold: float = 0.8) -> Case:
    num_classes = MODELS[model][0]
    x, _ = draw_data(num_classes, ROWS, seed=11)
    y_target = (torch.arange(ROWS) * 2 + 1) % num_classes
    searcher = generator_of(generator, num_classes, decision_threshold=threshold)
    classifier, rules = model_of(model), CONSTRAINTS[constraints](x)
    if double:
        x, classifier, searcher = x.double(), classifier.double(), searcher.replace(max_steps=13)
        if hasattr(searcher.space, "vae"):
            space = type(searcher.space)(copy.deepcopy(searcher.space.vae).double(), searcher.space.reencode)
            searcher = searcher.replace(space=space)
    rng = torch.Generator().manual_seed(5)
    before = snapshot(classifier)
    result = search(classifier, x, y_target, searcher, rules, rng, record=True)
    return Case(classifier, x, y_target, searcher, rules, result, before, snapshot(classifier))
