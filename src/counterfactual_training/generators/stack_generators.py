"""Join the generators of several models that differ in numbers only."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from counterfactual_training.errors import InputError
from counterfactual_training.generators.generator import NUMBERS, Generator
from counterfactual_training.generators.penalties import (
    Distance,
    Energy,
    Penalty,
    is_weighted,
)
from counterfactual_training.generators.spaces import FeatureSpace, LatentSpace

# A weight of zero switches these penalties off, so generators with and without them can be stacked.
_OPTIONAL = (Distance, Energy)


def generator_structure(generator: Generator) -> tuple[Any, ...]:
    """Equal for generators that :func:`stack_generators` can join: ECCo and Generic, but not
    REVISE.
    """
    space = generator.space
    # Feature spaces are all equal, latent spaces if they share the VAE; a user's own space equals
    # only itself.
    if type(space) is FeatureSpace:
        where: tuple[Any, ...] = ()
    else:
        where = (id(space),)
    if type(space) is LatentSpace:
        where = (id(space.vae), space.reencode)
    others = tuple(_kind(p) for p in generator.penalties if type(p) not in _OPTIONAL)
    # Energies with different decays cannot be joined; an energy and no energy can.
    energies = tuple(_kind(p) for p in generator.penalties if type(p) is Energy)
    return (
        (generator.step_rule, generator.num_answers, *where),
        generator.strict_epsilon,
        others,
        energies,
    )


def compatible(first: tuple[Any, ...], second: tuple[Any, ...]) -> bool:
    """Whether generators of these structures can be stacked."""
    return first[:3] == second[:3] and (first[3] == second[3] or not first[3] or not second[3])


def stack_generators(members: Sequence[Generator], like: Tensor) -> Generator:
    """One generator with numbers ``(M,)`` in the dtype and on the device of ``like``; shared
    numbers stay plain.
    """
    structures = [generator_structure(member) for member in members]
    # Compared with one that has an energy, if any has: two without are compatible with everything.
    richest = max(structures, key=lambda s: len(s[3]))
    if not all(compatible(one, richest) for one in structures):
        raise InputError(
            "Only generators of one space, with the same kinds of penalties, can be stacked."
        )
    # A dict keeps their order; members without a kind get it with weight 0.
    kinds = dict.fromkeys(_kind(p) for member in members for p in member.penalties)
    first = members[0]
    return replace(
        first,
        name=first.name if len({member.name for member in members}) == 1 else "mixed",
        penalties=tuple(_stacked_penalty(kind, members, like) for kind in kinds),
        **{
            number: _stacked(
                [getattr(m, number) for m in members],
                like,
                torch.long if number == "max_steps" else like.dtype,
            )
            for number in NUMBERS
        },
    )


def _kind(penalty: Penalty) -> tuple[Any, ...]:
    """A penalty without its weight."""
    if not is_weighted(penalty) or not is_dataclass(penalty):
        # A user's own penalty may hold anything, so it equals only itself.
        return (id(penalty),)
    rest = [getattr(penalty, field.name) for field in fields(penalty) if field.name != "weight"]
    return (
        type(penalty),
        *(_content(value) if isinstance(value, Tensor) else value for value in rest),
    )


def _content(values: Tensor) -> tuple[Any, ...]:
    """Equal for equal tensors, such as the training rows of all members; tensors themselves have no
    one truth value.
    """
    return (
        values.dtype,
        values.shape,
        hashlib.sha256(values.detach().cpu().contiguous().numpy().tobytes()).digest(),
    )


def _stacked_penalty(
    kind: tuple[Any, ...], members: Sequence[Generator], like: Tensor
) -> Penalty:
    penalties = [
        next((p for p in member.penalties if _kind(p) == kind), None) for member in members
    ]
    example = next(p for p in penalties if p is not None)
    if not is_weighted(example) or not is_dataclass(example):
        return example
    return replace(
        example,
        weight=_stacked([getattr(p, "weight", 0.0) for p in penalties], like, like.dtype),
    )


def _stacked(values: Sequence[Any], like: Tensor, dtype: torch.dtype) -> Any:
    """The number that all members share, or a tensor ``(M,)``."""
    if len(set(values)) == 1:
        return values[0]
    return torch.tensor(values, dtype=dtype, device=like.device)
