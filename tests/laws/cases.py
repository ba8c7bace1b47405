"""One table of generators, one of models, one of constraints: the laws hold on their product.

A generator registered in ``counterfactual_training.generators.GENERATORS`` is in the table by that
alone.

One search serves several members at once, as in a fleet: each has weights, rows, directions and a
box of its own. What cannot differ within one search (groups, lattices, how categories are
projected) is the *family* of constraints.

``make test`` runs the part of the product in which every two values of two axes meet
(``tests/covering.py``); ``pytest -m check`` runs the rest.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn

from counterfactual_training import (
    Constraints,
    Domain,
    Generator,
    OneHotGroup,
    SearchResult,
    betarce,
    linear,
    mlp,
    search,
)
from counterfactual_training.constraints import Lattice
from counterfactual_training.constraints.stack_constraints import stack_constraints
from counterfactual_training.generators import (
    GENERATORS,
    SearchState,
    make_generator,
    register_generator,
)
from counterfactual_training.models.stack import StackedModel
from counterfactual_training.models.vae import VAE, fit_vae

NUM_FEATURES = 9
CONTINUOUS = [0, 1, 2]
INTEGER, STEPPED = 3, 4
GROUP, BINARY = [5, 6, 7], [8]
ROWS = 10
MEMBERS = 4


def draw_data(num_classes: int, n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Continuous, integer, stepped, one-hot and binary columns, all of which tell about the
    class.
    """
    rng = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % num_classes
    centres = torch.randn(num_classes, 5, generator=torch.Generator().manual_seed(7))
    five = 1.5 * centres[y] + 0.7 * torch.randn(n, 5, generator=rng)
    five[:, INTEGER] = (2 * five[:, INTEGER]).round()
    five[:, STEPPED] = (five[:, STEPPED] / 0.5).round() * 0.5
    category = (y + torch.randint(2, (n,), generator=rng)) % 3
    binary = (torch.rand(n, generator=rng) < 0.3 + 0.4 * (y % 2)).float()
    return torch.cat(
        [five, nn.functional.one_hot(category, 3).float(), binary.unsqueeze(1)], 1
    ), y


# ---- generators ----------------------------------------------------------------------------------


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
GENERATOR_NAMES = [*GENERATORS, *VARIANTS, "betarce", "own"]
# Whose every update moves all continuous features that can move.
SELECTIVE = ("line", "greedy", "top_k", "nearest_unlike", "growing_spheres", "betarce")
DESCENDING = [name for name in GENERATOR_NAMES if name not in SELECTIVE]


@cache
def vae() -> VAE:
    return fit_vae(draw_data(4, 200, seed=3)[0], epochs=40)


def generator_of(name: str, num_classes: int = 3, **settings: object) -> Generator:
    """The recipe of that name, set so that some rows arrive and some do not."""
    settings = {"learning_rate": 0.4, "max_steps": 20, "decision_threshold": 0.8, **settings}
    if name == "growing_spheres":
        settings = {"num": 15, **settings}
    if name == "betarce":
        return betarce(_others(num_classes), share=0.6, width=0.3, num=15, **settings)
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


@cache
def _others(num_classes: int) -> tuple[nn.Module, ...]:
    """Models that were trained alike, but on other rows."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        samples = [draw_data(num_classes, 60, seed=20 + i) for i in range(4)]
        return tuple(_fitted(linear(NUM_FEATURES, num_classes), *rows) for rows in samples)


# ---- models --------------------------------------------------------------------------------------


class OwnModule(nn.Module):
    """What a user may bring: batch normalisation, dropout, a branch, a frozen layer and mixed
    modes.
    """

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
def _trained(name: str, seed: int) -> nn.Module:
    num_classes, build = MODELS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _fitted(build(num_classes), *draw_data(num_classes, 120, seed=2))


def _fitted(model: nn.Module, x: Tensor, y: Tensor) -> nn.Module:
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.03)
    for _ in range(40):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model


def model_of(name: str, seed: int = 1) -> nn.Module:
    """A copy of a somewhat trained model in train mode, one layer in eval mode."""
    model = copy.deepcopy(_trained(name, seed))
    if isinstance(model, OwnModule):
        model.norm.eval()
    return model


class SideBySide(nn.Module):
    """Models that no stack takes, such as those with running statistics, asked one after the
    other.
    """

    def __init__(self, models: list[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(models)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([member(rows) for member, rows in zip(self.members, x, strict=True)])


def together(models: list[nn.Module]) -> nn.Module:
    """The models as one, ``(M, n, d)`` to ``(M, n, k)``, with gradients in place."""
    if isinstance(models[0], OwnModule):
        joined = SideBySide(models)
    else:
        joined = StackedModel(models)
    for parameter in joined.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.ones_like(parameter)
    return joined


def snapshot(model: nn.Module) -> dict[str, object]:
    """Everything a search must leave alone: weights, buffers, gradients, modes, what is
    trainable.
    """
    state: dict[str, object] = {
        f"value of {k}": v.clone() for k, v in model.state_dict().items()
    }
    for name, parameter in model.named_parameters():
        state[f"gradient of {name}"] = (
            None if parameter.grad is None else parameter.grad.clone()
        )
        state[f"{name} is trainable"] = parameter.requires_grad
    return state | {
        f"training {name}": module.training for name, module in model.named_modules()
    }


# ---- constraints ---------------------------------------------------------------------------------

LATTICES = (Lattice(INTEGER), Lattice(STEPPED, values=torch.arange(-20, 21) * 0.5))
# From category 0 one may go to 1 only, from 1 to 2 only, from 2 nowhere.
TRANSITIONS = torch.tensor([[1, 1, 0], [0, 1, 1], [0, 0, 1]]).bool()
GROUPS = (OneHotGroup(tuple(GROUP)), OneHotGroup(tuple(BINARY)))
ONE_WAY = (OneHotGroup(tuple(GROUP), TRANSITIONS), OneHotGroup(tuple(BINARY)))
# What each member may do; the last one also has a box.
DIRECTIONS: tuple[dict[int, object], ...] = (
    {},
    {0: "none", **dict.fromkeys(GROUP, "none")},
    {0: "increase", 1: "decrease", 2: +1, INTEGER: -1},
    {0: "none", 1: "increase", INTEGER: "decrease", 8: "increase"},
)
FAMILIES: dict[str, dict[str, object]] = {
    "boxes": {},
    "inferred_box": {},
    "one_hot": {"groups": GROUPS},
    "one_hot_step": {"groups": GROUPS, "category_projection": "step"},
    "transitions": {"groups": ONE_WAY},
    "lattices": {"lattices": LATTICES},
    "discrete_only": {"groups": GROUPS, "lattices": LATTICES},
    "mixed": {"groups": ONE_WAY, "lattices": LATTICES},
}
WITH_GROUPS = [name for name, parts in FAMILIES.items() if "groups" in parts]
WITH_LATTICES = [name for name, parts in FAMILIES.items() if "lattices" in parts]


def rules_of(family: str, member: int, x: Tensor) -> Constraints:
    """What one member of a family may do with its rows."""
    directions = dict(DIRECTIONS[member])
    if family == "inferred_box":
        return Constraints.infer(x[:4], directions, num_std=0.5)
    if family == "discrete_only":
        directions |= dict.fromkeys(CONTINUOUS, "none")
    box = Domain(
        torch.full((NUM_FEATURES,), -torch.inf), torch.full((NUM_FEATURES,), torch.inf)
    )
    if member == MEMBERS - 1:
        box = Domain(x.amin(0) - 0.3, x.amax(0) + 0.3)
    return Constraints.build(NUM_FEATURES, directions, box, **FAMILIES[family])


# ---- their product -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One search of several members, with all that went into it."""

    family: str
    models: list[nn.Module]
    model: nn.Module
    x: Tensor
    y_target: Tensor
    generator: Generator
    rules: list[Constraints]
    constraints: Constraints
    result: SearchResult
    before: dict[str, object]  # the model
    after: dict[str, object]

    @property
    def logits(self) -> Tensor:
        return self.logits_at(self.x)

    def logits_at(self, x: Tensor) -> Tensor:
        """What the models say, in eval mode: ``(M, n, k)``."""
        with torch.no_grad():
            return copy.deepcopy(self.model).eval()(x)

    def again(self, rows: Tensor | slice = slice(None), **options: object) -> SearchResult:
        """The same search of some of the rows of every member."""
        x = self.x[:, rows]
        y_target = self.y_target[:, rows]
        return search(
            self.model, x, y_target, self.generator, self.constraints, seeds(), **options
        )

    def alone(self, member: int) -> SearchResult:
        """The same search of one member, by its own model and rules."""
        generator = self.generator
        if isinstance(generator.decision_threshold, Tensor):
            threshold = float(generator.decision_threshold[member])
            generator = generator.replace(decision_threshold=threshold)
        rows = self.x[member]
        targets = self.y_target[member]
        return search(
            self.models[member],
            rows,
            targets,
            generator,
            self.rules[member],
            seeds()[member],
            record=True,
        )


def seeds() -> list[torch.Generator]:
    return [torch.Generator().manual_seed(5 + member) for member in range(MEMBERS)]


@cache
def case(
    generator: str,
    model: str,
    family: str,
    double: bool = False,
    thresholds: tuple[float, ...] = (),
) -> Case:
    num_classes = MODELS[model][0]
    x = torch.stack([draw_data(num_classes, ROWS, seed=11 + i)[0] for i in range(MEMBERS)])
    y_target = ((torch.arange(ROWS) * 2 + 1) % num_classes).expand(MEMBERS, ROWS)
    rules = [rules_of(family, i, x[i]) for i in range(MEMBERS)]
    models = [model_of(model, seed=1 + i) for i in range(MEMBERS)]
    searcher = generator_of(generator, num_classes)
    if thresholds:
        searcher = searcher.replace(decision_threshold=torch.tensor(thresholds))
    if double:
        x = x.double()
        models = [member.double() for member in models]
        searcher = doubled(searcher.replace(max_steps=13))
    joined = together(models)
    constraints = stack_constraints(rules)
    before = snapshot(joined)
    result = search(joined, x, y_target, searcher, constraints, seeds(), record=True)
    after = snapshot(joined)
    return Case(
        family, models, joined, x, y_target, searcher, rules, constraints, result, before, after
    )


def doubled(generator: Generator) -> Generator:
    """The same generator for rows in double precision."""
    if not hasattr(generator.space, "vae"):
        return generator
    vae_ = copy.deepcopy(generator.space.vae).double()
    return generator.replace(space=type(generator.space)(vae_, generator.space.reencode))
