"""Answers for people: the cheapest one, and several that change different columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from counterfactual_training.generators import Generator, Status
from counterfactual_training.tables.advice.beam import Beam
from counterfactual_training.tables.advice.candidates import Pool
from counterfactual_training.tables.advice.find import Finder
from counterfactual_training.tables.advice.hurdles import Sources
from counterfactual_training.tables.advice.points import Counterfactuals, Factuals
from counterfactual_training.tables.advice.promise import WIDEST, promising

# Of wider tables, the columns that promise most are tried; first few, then more for those whom they
# do not help.
_TRIED = (24, 96)
# People searched together; bounds memory. Of wide tables fewer, because everybody has other
# promising columns; of tables with hardly more columns than are tried, they are the same ones.
_PEOPLE = 256
_PEOPLE_OF_WIDE = 64
_PEOPLE_OF_WIDEST = 16


@dataclass(frozen=True, eq=False)
class Question:
    """How people are asked about.

    Attributes:
        generator: with its threshold; searches along gradients if it is named, otherwise only its
            threshold counts.
        named: whether the user asks for this very generator.
        sparsify: of a named generator, take back what is not needed.
        max_changes: the largest number of columns to change.
        sources: which of the rules are this question's.
    """

    generator: Generator
    named: bool = False
    sparsify: bool = True
    max_changes: int | None = None
    sources: Sources = field(default_factory=Sources)

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


def find_options(
    finder: Finder, factuals: Factuals, y: Tensor, question: Question, num_options: int
) -> Options:
    """Up to ``num_options`` answers per row, no two of which change the same columns.

    Plausible answers come first, the cheapest of them at the head: it is the answer to a question
    for one option. If there is a gate, what the model alone asks for may stand last, if it is
    cheaper; the rare one of these that the gate lets pass after all stays in its place, because the
    first of several answers is that to a question for one. No plausible answer changes all columns
    of another one and more.
    """
    # Pixels are too many to change one by one.
    if question.named or bool(finder.pixels.any()):
        first = _by_gradients(finder, factuals, y, question)
        if num_options == 1 or bool(finder.pixels.any()):
            return first
        others = find_options(finder, factuals, y, replace(question, named=False), num_options)
        return _beside(finder, factuals, first, others, num_options)
    there = finder.logits(factuals.x).argmax(-1).to(y) == y
    answers: dict[int, list[_Answer]] = {
        int(i): [_Answer(factuals.x[i].cpu(), int(Status.ALREADY_THERE), 0)]
        for i in there.nonzero().squeeze(-1)
    }
    rows = (~there).nonzero().squeeze(-1)
    num_columns = len(finder.encoder.columns_)
    if num_columns > WIDEST:
        search = _search_wide
    else:
        search = _search
    for part in rows.split(_people_at_once(num_columns)):
        lists = search(finder, factuals.take(part), y[part], question, num_options)
        answers |= {int(row): own for row, own in zip(part.tolist(), lists, strict=True)}
    return _listed(answers, factuals.x, y.device)


def _people_at_once(num_columns: int) -> int:
    if num_columns > _TRIED[-1]:
        return _PEOPLE_OF_WIDEST
    if num_columns > WIDEST:
        return _PEOPLE_OF_WIDE
    return _PEOPLE


def _listed(answers: dict[int, list[_Answer]], x: Tensor, device: torch.device) -> Options:
    """The answers of all rows, row after row."""
    listed = [(row, answer) for row in range(len(x)) for answer in answers[row]]
    points = x[:0]
    if listed:
        points = torch.stack([answer.point for _, answer in listed]).to(x)
    numbers = [(row, answer.status, answer.asked) for row, answer in listed]
    rows, status, asked = (
        torch.tensor(numbers, dtype=torch.long, device=device).reshape(-1, 3).T
    )
    return Options(rows, Counterfactuals(points, status, asked))


def _by_gradients(finder: Finder, factuals: Factuals, y: Tensor, question: Question) -> Options:
    """One answer per row by the generator of the question."""
    answers = finder.find(
        factuals, y, question.generator, not question.named, question.sparsify
    )
    if question.max_changes is not None:
        # A search along gradients cannot count columns, so what changes too many is no answer.
        many = finder.num_changes(answers.x_cf, factuals.x) > question.max_changes
        answers.x_cf[many] = factuals.x[many]
        answers.status[many] = int(Status.EXHAUSTED)
    return Options(torch.arange(len(y), device=y.device), answers)


def _beside(
    finder: Finder, factuals: Factuals, first: Options, others: Options, num_options: int
) -> Options:
    """The first answer of each row, then others that change different columns."""
    both = torch.cat([first.row, others.row])
    together = Counterfactuals(
        torch.cat([first.found.x_cf, others.found.x_cf]),
        torch.cat([first.found.status, others.found.status]),
        torch.cat([first.found.num_steps, others.found.num_steps]),
    )
    moved = (finder.distance(together.x_cf, factuals.x[both]) > 0).cpu().numpy()
    columns = [frozenset(np.flatnonzero(line).tolist()) for line in moved]
    kept: dict[int, list[int]] = {row: [row] for row in range(len(first.row))}
    for place, row in enumerate(both.tolist()):
        own = kept[row]
        nested = is_nested(columns[place], [columns[other] for other in own])
        # Whoever is not helped by the first answer gets no list of others.
        helped = bool(first.found.reached[row]) and int(together.status[place]) == int(
            Status.CONVERGED
        )
        if place >= len(first.row) and helped and not nested and len(own) < num_options:
            own.append(place)
    places = torch.tensor(
        [place for own in kept.values() for place in own], dtype=torch.long, device=both.device
    )
    return Options(both[places], together.take(places))


@dataclass(frozen=True, eq=False)
class _Answer:
    """One answer.

    Attributes:
        point: ``(d,)`` as printed.
        status: a value of :class:`Status`.
        asked: how many points of this person the model was asked about.
        price: cost, and a little for each column.
        columns: the features that it changes.
    """

    point: Tensor
    status: int
    asked: int
    price: float = 0.0
    columns: frozenset[int] = frozenset()


def _search(
    finder: Finder,
    factuals: Factuals,
    y: Tensor,
    question: Question,
    num_options: int,
    features: np.ndarray | None = None,
    num_columns: int | None = None,
) -> list[list[_Answer]]:
    """The answers of each person, at least one; in so many of the features, if there are many."""
    # Changes of many columns are found along gradients, if there are any.
    if features is not None and finder.background is None:
        along = question.generator
    else:
        along = None
    beam = Beam(
        finder,
        factuals,
        y,
        question.threshold,
        question.max_changes,
        features,
        num_columns,
        along,
    )
    beam.run(num_options)
    return _chosen(finder, beam, factuals, num_options)


def _search_wide(
    finder: Finder, factuals: Factuals, y: Tensor, question: Question, num_options: int
) -> list[list[_Answer]]:
    """The same for people with many columns: only the most promising of each are tried."""
    answers: list[list[_Answer]] = [[] for _ in range(len(y))]
    rows = torch.arange(len(y), device=y.device)
    for most in _TRIED:
        part = factuals.take(rows)
        promise = promising(finder, part, y[rows], most)
        features = promise.any(0).nonzero().squeeze(-1).cpu().numpy()
        part = part.holding(~promise[:, finder.owner.to(y.device)])
        lists = _search(finder, part, y[rows], question, num_options, features, most)
        for row, own in zip(rows.tolist(), lists, strict=True):
            answers[row] = own
        missed = [
            row for row in rows.tolist() if answers[row][0].status != int(Status.CONVERGED)
        ]
        if not missed or finder.late:
            break
        rows = torch.tensor(missed, device=y.device)
    return answers


def _chosen(
    finder: Finder, beam: Beam, factuals: Factuals, num_options: int
) -> list[list[_Answer]]:
    """The best that was found for each person; then the model's alone, and best efforts."""
    plausible = _by_person(beam, beam.pool, factuals, int(Status.CONVERGED))
    answers = [_distinct(pool, num_options) for pool in plausible]
    if finder.gate is not None and not finder.late and (num_options > 1 or not all(answers)):
        alone = _by_person(beam, beam.run_alone(num_options), factuals, int(Status.IMPLAUSIBLE))
        pairs = zip(answers, alone, strict=True)
        answers = [_with_doubtful(own, doubtful, num_options) for own, doubtful in pairs]
        answers = _as_measured(finder, beam.oracle.y, beam.oracle.threshold, answers)
    for i, own in enumerate(answers):
        if not own:
            effort = beam.window.rows(np.array([i]), beam.effort[i : i + 1])[0]
            own.append(_Answer(effort, int(Status.EXHAUSTED), int(beam.oracle.asked[i])))
    return answers


def _as_measured(
    finder: Finder, y: Tensor, threshold: float, answers: list[list[_Answer]]
) -> list[list[_Answer]]:
    """The answers with the status that model and gate give them: what was found without the gate
    may pass it.
    """
    doubtful = [
        (i, place)
        for i, own in enumerate(answers)
        for place, answer in enumerate(own)
        if answer.status == int(Status.IMPLAUSIBLE)
    ]
    if not doubtful:
        return answers
    people = torch.tensor([i for i, _ in doubtful])
    points = torch.stack([answers[i][place].point for i, place in doubtful])
    passes = finder.confidence(points.to(y.device), y[people]) >= threshold
    measured = [list(own) for own in answers]
    for (i, place), fine in zip(doubtful, passes.tolist(), strict=True):
        if fine:
            measured[i][place] = replace(answers[i][place], status=int(Status.CONVERGED))
    return measured


def _by_person(
    beam: Beam, pool: Pool, factuals: Factuals, status: int
) -> list[Iterator[_Answer]]:
    """Everybody's answers, the cheapest first; made one by one, for few of many are looked at."""
    person, points, price = pool.joined(beam.x.shape[1], beam.x)
    moved = beam.window.distance(person, points) > 0
    points = beam.window.rows(person, points)
    order = np.lexsort((price, person))
    ends = np.searchsorted(person[order], np.arange(len(factuals.x) + 1))

    def answers(i: int) -> Iterator[_Answer]:
        for place in order[ends[i] : ends[i + 1]].tolist():
            columns = frozenset(np.flatnonzero(moved[place]).tolist())
            asked = int(beam.oracle.asked[i])
            yield _Answer(points[place], status, asked, float(price[place]), columns)

    return [answers(i) for i in range(len(factuals.x))]


def _distinct(pool: Iterable[_Answer], num_options: int) -> list[_Answer]:
    """The cheapest answers, none of which changes all columns of another."""
    kept: list[_Answer] = []
    for answer in pool:
        if answer.columns and not is_nested(answer.columns, [own.columns for own in kept]):
            kept.append(answer)
        if len(kept) == num_options:
            break
    return kept


def is_nested(columns: frozenset[int], others: list[frozenset[int]]) -> bool:
    """Whether these are all columns of another answer and more, or another one has all of these."""
    return any(columns <= other or other <= columns for other in others)


def _with_doubtful(
    plausible: list[_Answer], doubtful: Iterable[_Answer], num_options: int
) -> list[_Answer]:
    """Plausible answers, then a cheaper one of the model alone; if none, only such ones."""
    if not plausible:
        return _distinct(doubtful, num_options)
    # A single answer is a plausible one.
    kept = plausible[: num_options - 1]
    if kept:
        for answer in doubtful:
            if answer.price >= plausible[0].price:
                break
            if answer.columns and not is_nested(answer.columns, [own.columns for own in kept]):
                return [*kept, answer]
    return plausible
