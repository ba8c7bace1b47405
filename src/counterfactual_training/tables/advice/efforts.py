"""After all levels, for people without an answer: real rows and best efforts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from counterfactual_training.tables.advice.candidates import is_first

if TYPE_CHECKING:
    from counterfactual_training.tables.advice.beam import Beam

# Real rows tried per person, and how many that arrive are shortened.
_REAL = 400
_KEPT = 3
# Looks around a best effort, values on either side each time, and how much closer the next look is.
_LOOKS = 4
_AROUND = 16
_CLOSER = 8.0
# What is missing of a decision counts as so much beside the log-odds of the gate.
_MISSING = 2.0
# Digits by which best efforts are compared.
_SCORED = 4


def fall_back(beam: Beam) -> None:
    """Real rows, then looks around best efforts, each for people who still have no answer."""
    for way in (_from_real_rows, _come_closer):
        missed = np.flatnonzero(np.isinf(beam.best))
        if len(missed) == 0 or beam.most == 0 or beam.finder.late:
            return
        way(beam, missed)


def _from_real_rows(beam: Beam, people: np.ndarray) -> None:
    """Start from real rows of the target class that the rules allow, the nearest first, and take
    columns back.
    """
    for label in beam.oracle.y[torch.as_tensor(people)].unique().tolist():
        members = people[beam.oracle.labels[people] == label]
        rows = _real_rows(beam, int(label))
        if rows is None or len(rows) == 0:
            continue
        for i in members.tolist():
            _from_rows(beam, i, rows)


def _real_rows(beam: Beam, label: int) -> Tensor | None:
    """Rows ``(r, d)`` of a class."""
    background = beam.finder.background
    if background is not None:
        return background.x[background.y == label].to(beam.x)[:, beam.window.columns]
    if beam.finder.gate is None:
        return None
    remembered = beam.finder.gate.real_rows
    if remembered is None:
        return None
    rows = remembered[label]
    return rows[~rows.isnan().any(-1)].to(beam.x)[:, beam.window.columns]


def _from_rows(beam: Beam, i: int, rows: Tensor) -> None:
    points = beam.x[i].repeat(len(rows), 1)
    moves = beam.moves
    mine = beam.moves.allowed[i]
    z = rows.double().numpy()
    for j in beam.book.free:
        here = np.flatnonzero((moves.feature == j) & mine)
        if len(here) == 0:
            continue
        start = beam.book.starts[j]
        if beam.book.one_hot[j]:
            wanted = z[:, start : start + beam.book.columns[j].width].argmax(1)
            place = {int(moves.number[i, k]): k for k in here.tolist()}
            hit = np.array([k in place for k in wanted.tolist()])
            chosen = np.array([place[k] for k in wanted[hit].tolist()], dtype=np.int64)
            part = points[torch.as_tensor(np.flatnonzero(hit))]
            points[torch.as_tensor(np.flatnonzero(hit))] = moves.put(
                part, np.full(len(chosen), i), chosen[:, None]
            )
        else:
            # The allowed value nearest to the real one; its own, if that is nearer.
            codes = np.append(moves.code[i].double().numpy()[here], beam.book.codes[i, j])
            near = np.abs(z[:, start, None] - codes).argmin(1)
            points[:, start] = torch.as_tensor(codes[near]).to(points)
    who = np.full(len(points), i)
    points = beam.oracle.follow(who, points)
    distance = (points - beam.x[i]).abs().sum(-1).numpy()
    order = np.argsort(distance, kind="stable")[:_REAL]
    points = points[torch.as_tensor(order)]
    fine = np.flatnonzero(beam.oracle.arrives(who[order], points))[:_KEPT]
    beam.shorten(who[: len(fine)], points[torch.as_tensor(fine)])


def note_effort(
    beam: Beam, person: np.ndarray, points: Tensor, odds: np.ndarray, gate: np.ndarray
) -> None:
    """Remember the point of each person without an answer that comes closest to the bar."""
    missed = np.flatnonzero(np.isinf(beam.best[person]))
    if len(missed) == 0:
        return
    person = person[missed]
    points = points[torch.as_tensor(missed)]
    odds = odds[missed]
    gate = gate[missed]
    score = _closeness(beam, person, odds, gate)
    order = np.lexsort((-score, person))
    order = order[is_first(person[order])]
    better = order[score[order] > beam.effort_score[person[order]]]
    beam.effort_score[person[better]] = score[better]
    beam.effort[torch.as_tensor(person[better])] = points[torch.as_tensor(better)]


def _closeness(
    beam: Beam, person: np.ndarray, odds: np.ndarray, gate: np.ndarray
) -> np.ndarray:
    """How close points ``(a,)`` come to the bar of model and gate, whichever is farther."""
    ahead = odds - beam.oracle.enough
    if beam.finder.decision:
        # The scale of the logits changes no decision: a share of what was missing.
        missing = beam.oracle.enough - beam.odds_before[person]
        ahead = _MISSING * ahead / np.maximum(missing, np.finfo(np.float64).tiny)
    # Without the last digits, in which another batch may differ.
    return np.round(np.minimum(ahead, gate), _SCORED)


def _come_closer(beam: Beam, people: np.ndarray) -> None:
    """Move numbers of best efforts, and of the best single moves, to better values around them.

    Some targets hold in a narrow band only, such as an interval of a regression, and lie between
    two values.
    """
    _look_around(beam, people, beam.effort[torch.as_tensor(people)].clone())
    allowed = np.where(beam.moves.allowed[people], beam.odds_alone[people], -math.inf)
    some = np.flatnonzero(
        np.isfinite(allowed.max(1, initial=-math.inf)) & np.isinf(beam.best[people])
    )
    if len(some):
        best = allowed[some].argmax(1)[:, None]
        _look_around(beam, people[some], beam.points(beam.moves, people[some], best))


def _look_around(beam: Beam, people: np.ndarray, points: Tensor) -> None:
    """Improve points ``(a, d)``, one per person, number by number, closer and closer."""
    shares = np.arange(-_AROUND, _AROUND + 1) / _AROUND
    odds, gate = beam.oracle.margins(people, points)
    score = _closeness(beam, people, odds, gate)
    for look in range(_LOOKS):
        for j, notation in beam.book.notations.items():
            width = notation.span / _CLOSER ** (look + 1)
            _look_at(beam, people, points, score, j, width * shares)


def _look_at(
    beam: Beam, people: np.ndarray, points: Tensor, score: np.ndarray, j: int, steps: np.ndarray
) -> None:
    """Try numbers of one feature around those of the points; keep each person's best."""
    changed = beam.easing.changed(people, points)
    some = np.flatnonzero(
        ~beam.book.held[people, j]
        & (changed[:, j] | (changed.sum(1) < beam.most))
        & np.isinf(beam.best[people])
    )
    now = beam.easing.numbers(points[torch.as_tensor(some)], np.full(len(some), j))
    now = np.where(changed[some, j], now, beam.book.base[people[some], j])
    place = np.repeat(some, len(steps))
    who = people[place]
    feature = np.full(len(place), j)
    number = beam.book.written(feature, (now[:, None] + steps).ravel())
    fine = np.isfinite(number) & (number != beam.book.base[who, j])
    fine[fine] = beam.book.keeps_rules(feature[fine], who[fine], number[fine])
    place = place[fine]
    who = who[fine]
    number = number[fine]
    if len(who) == 0:
        return
    trial = points[torch.as_tensor(place)]
    beam.book.set_numbers(trial, np.arange(len(who)), feature[fine], number)
    trial = beam.oracle.follow(who, trial)
    odds, gate = beam.oracle.margins(who, trial)
    kept = beam.oracle.keeps(who, trial)
    note_effort(beam, who, trial, odds, np.where(kept, gate, -math.inf))
    arrived = np.flatnonzero(kept & beam.oracle.reached(odds, gate))
    beam.shorten(who[arrived], trial[torch.as_tensor(arrived)])
    closeness = np.where(kept, _closeness(beam, who, odds, gate), -math.inf)
    order = np.lexsort((-closeness, place))
    order = order[is_first(place[order])]
    better = order[closeness[order] > score[place[order]]]
    score[place[better]] = closeness[better]
    points[torch.as_tensor(place[better])] = trial[torch.as_tensor(better)]
