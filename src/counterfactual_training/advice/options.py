"""Answers for people: the cheapest one, and several that change different columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from counterfactual_training.advice.beam import Beam, Pool
from counterfactual_training.advice.find import Finder
from counterfactual_training.advice.points import Counterfactuals, Factuals
from counterfactual_training.advice.promise import WIDEST, promising
from counterfactual_training.search import Generator, Status

# People searched together; bounds memory.
_PEOPLE = 256
# Of wider tables, the columns that promise most are tried; first few, then more for those whom they do not help.
_TRIED = (24, 96)


@dataclass(frozen=True, eq=False)
class Question:
    """How people are asked about.

    Attributes:
        generator: with its threshold; searches along gradients if it is named, otherwise only its threshold counts.
        named: whether the user asks for this very generator.
        sparsify: of a named generator, take back what is not needed.
        max_changes: the largest number of columns to change.
    """

    generator: Generator
    named: bool = False
    sparsify: bool = True
    max_changes: int | None = None

    @property
    def threshold(self) -> float:
        return float(self.generator.decision_threshold)


@dataclass(frozen=True, eq=False)
class Options:
    """Answers in the order of the rows, and of cost within a row.

    Attributes:
        row: ``(e,)`` the row that each answers.
        found: of the e answers.
    """

    row: Tensor
    found: Counterfactuals


def find_options(finder: Finder, factuals: Factuals, y: Tensor, question: Question, num_options: int) -> Options:
    """Up to ``num_options`` answers per row, no two of which change the same columns.

    Plausible answers come first, the cheapest of them at the head: it is the answer to a question for one option. If
    there is a gate, what the model alone asks for may stand last, if it is cheaper. No plausible answer changes all
    columns of another one and more.
    """
    # Pixels are too many to change one by one.
    if question.named or bool(finder.pixels.any()):
        return _by_gradients(finder, factuals, y, question)
    there = finder.logits(factuals.x).argmax(-1).to(y) == y
    answers: dict[int, list[_Answer]] = {
        int(i): [_Answer(factuals.x[i], int(Status.ALREADY_THERE), 0, 0.0)] for i in there.nonzero().squeeze(-1)
    }
    rows = (~there).nonzero().squeeze(-1)
    wide = len(finder.encoder.columns_) > WIDEST
    for part in rows.split(1 if wide else _PEOPLE):
        found = _search(finder, factuals.take(part), y[part], question, num_options, wide)
        answers |= {int(row): own for row, own in zip(part.tolist(), found, strict=True)}
    listed = [(row, answer) for row in range(len(y)) for answer in answers[row]]
    return Options(
        torch.tensor([row for row, _ in listed], dtype=torch.long, device=y.device),
        Counterfactuals(
            torch.stack([answer.point for _, answer in listed]) if listed else factuals.x[:0],
            torch.tensor([answer.status for _, answer in listed], dtype=torch.long, device=y.device),
            torch.tensor([answer.asked for _, answer in listed], dtype=torch.long, device=y.device),
        ),
    )


def _by_gradients(finder: Finder, factuals: Factuals, y: Tensor, question: Question) -> Options:
    """One answer per row by the generator of the question."""
    found = finder.find(factuals, y, question.generator, not question.named, question.sparsify)
    if question.max_changes is not None:
        # A search along gradients cannot count columns, so what changes too many is no answer.
        many = finder.num_changes(found.x_cf, factuals.x) > question.max_changes
        found.x_cf[many] = factuals.x[many]
        found.status[many] = int(Status.EXHAUSTED)
    return Options(torch.arange(len(y), device=y.device), found)


@dataclass(frozen=True, eq=False)
class _Answer:
    """A point as printed ``(d,)``, its status, how many points the model was asked about, and its price."""

    point: Tensor
    status: int
    asked: int
    price: float


def _search(
    finder: Finder, factuals: Factuals, y: Tensor, question: Question, num_options: int, wide: bool
) -> list[list[_Answer]]:
    """The answers of each person, at least one."""
    if wide:
        return _search_wide(finder, factuals, y, question, num_options)
    beam = Beam(finder, factuals, y, question.threshold, question.max_changes)
    beam.run(num_options)
    return _chosen(finder, beam, factuals, num_options)


def _search_wide(
    finder: Finder, factuals: Factuals, y: Tensor, question: Question, num_options: int
) -> list[list[_Answer]]:
    """One person with many columns: only the most promising are tried."""
    found: list[list[_Answer]] = []
    for most in _TRIED:
        mask = promising(finder, factuals, y, most)
        columns = mask[0].nonzero().squeeze(-1).cpu().numpy()
        beam = Beam(finder, factuals, y, question.threshold, question.max_changes, columns)
        beam.run(num_options)
        found = _chosen(finder, beam, factuals, num_options)
        if found[0][0].status == int(Status.CONVERGED) or finder.late:
            break
    return found


def _chosen(finder: Finder, beam: Beam, factuals: Factuals, num_options: int) -> list[list[_Answer]]:
    """The best of what a search found, for each person; then what the model alone asks for, and best efforts."""
    plausible = _by_person(finder, beam, beam.pool, factuals, int(Status.CONVERGED))
    answers = [_distinct(pool, num_options) for pool in plausible]
    if finder.gate is not None and not finder.late and (num_options > 1 or not all(answers)):
        alone = _by_person(finder, beam, beam.run_alone(num_options), factuals, int(Status.IMPLAUSIBLE))
        pairs = zip(answers, alone, strict=True)
        answers = [_with_doubtful(own, doubtful, num_options) for own, doubtful in pairs]
    for i, own in enumerate(answers):
        if not own:
            own.append(_Answer(_effort(beam, i), int(Status.EXHAUSTED), int(beam.asked[i]), 0.0))
    return answers


def _effort(beam: Beam, i: int) -> Tensor:
    return beam.effort[i]


def _by_person(finder: Finder, beam: Beam, pool: Pool, factuals: Factuals, status: int) -> list[list[_Answer]]:
    """Everybody's answers, the cheapest first."""
    person, point, price = pool.joined(factuals.x.shape[1], factuals.x)
    found: list[list[_Answer]] = [[] for _ in range(len(factuals.x))]
    for place in np.lexsort((price, person)).tolist():
        i = int(person[place])
        found[i].append(_Answer(point[place], status, int(beam.asked[i]), float(price[place])))
    for i, own in enumerate(found):
        moved = finder.distance(torch.stack([a.point for a in own]), factuals.x[i].expand(len(own), -1)) if own else []
        found[i] = [
            _Columns(a, frozenset(line.nonzero().squeeze(-1).tolist())) for a, line in zip(own, moved, strict=True)
        ]  # type: ignore[misc]
    return found


class _Columns(_Answer):
    """An answer that knows the columns it changes."""

    def __init__(self, answer: _Answer, support: frozenset[int]) -> None:
        super().__init__(answer.point, answer.status, answer.asked, answer.price)
        object.__setattr__(self, "support", support)

    support: frozenset[int]


def _distinct(pool: list[_Answer], num_options: int) -> list[_Answer]:
    """The cheapest answers, none of which changes all columns of another."""
    kept: list[_Answer] = []
    for answer in pool:
        support = answer.support  # type: ignore[attr-defined]
        nested = any(support <= other.support or other.support <= support for other in kept)  # type: ignore[attr-defined]
        if support and not nested:
            kept.append(answer)
        if len(kept) == num_options:
            break
    return kept


def _with_doubtful(plausible: list[_Answer], doubtful: list[_Answer], num_options: int) -> list[_Answer]:
    """Plausible answers, then the one of the model alone if it is cheaper; only such ones if there are no others."""
    if not plausible:
        return _distinct(doubtful, num_options)
    if not doubtful or doubtful[0].price >= plausible[0].price:
        return plausible
    return [*plausible[: num_options - 1], doubtful[0]]
