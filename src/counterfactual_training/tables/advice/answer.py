"""From rows and a question to an :class:`Explanation`: who is asked under which rules, and what
came of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from counterfactual_training.constraints import Constraints
from counterfactual_training.errors import InputError, ModelError, unknown
from counterfactual_training.generators import Status
from counterfactual_training.tables.advice.explanation import Explanation
from counterfactual_training.tables.advice.find import Finder
from counterfactual_training.tables.advice.hurdles import Sources
from counterfactual_training.tables.advice.options import Question, find_options
from counterfactual_training.tables.advice.points import Counterfactuals, Factuals, in_blocks
from counterfactual_training.tables.advice.rules import Rules
from counterfactual_training.tables.advice.why import Obstacles, find_obstacles
from counterfactual_training.tables.advice.words import RowNote
from counterfactual_training.tables.columns.dtypes import restore_categories
from counterfactual_training.tables.columns.encode import Encoder
from counterfactual_training.tables.columns.model_space import refuse_far

# Significant digits, up to which a shorter number is looked for; float32 has hardly more.
_DIGITS = 9


@dataclass(frozen=True, eq=False)
class Answers:
    """The answers to a group of rows with the same rules; e entries, rows × options.

    Attributes:
        row: ``(e,)`` positions among all rows.
        own: the rows that these answer.
        found: of these entries.
        obstacles: of each entry, empty if it is answered.
        max_changes: the limit on the number of columns, if there is one.
        finder: under the group's rules.
        frame: the entries in the user's units; they break no rule.
        notes: on answers that were withheld, because they did; and on rows without one.
        failed: positions of rows for which the model fails.
    """

    row: np.ndarray
    own: Factuals
    found: Counterfactuals
    obstacles: list[Obstacles]
    max_changes: int | None
    finder: Finder
    frame: pd.DataFrame
    notes: list[str]
    failed: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))


def explain_rows(
    finder: Finder,
    frame: pd.DataFrame,
    classes: np.ndarray,
    target: Any,
    question: Question,
    groups: Sequence[tuple[np.ndarray, Rules]] | None = None,
    num_options: int = 1,
    num_std: float = 0.0,
) -> Explanation:
    """What would have to change for each row of a frame to get the target class.

    Args:
        frame: the factuals, in the user's units.
        classes: labels ``(k,)`` in the order of the model's logits.
        target: a label for all rows or one per row; ``None`` is the most probable class that is not
            predicted.
        question: how to search, with the threshold to reach.
        groups: rows that share rules of this question, and these rules; by default all rows,
            without further rules.
        num_options: answers per row, at most.
        num_std: as in :meth:`Encoder.constraints`.
    """
    if groups is None:
        groups = [(np.arange(len(frame)), Rules())]
    if len(frame) == 0:
        for _, rules in groups:
            _under(finder, rules, num_std, None)  # refuses rules that make no sense
        target_classes(target, classes, np.zeros((0, len(classes))))
        return _of_nobody(finder, frame, classes, question, num_options)
    factuals = finder.factuals(frame)
    # Of all rows at once, before any rule: decisions do not depend on the rules of a question.
    before = finder.logits(factuals.x).softmax(-1).numpy()
    y_target = target_classes(target, classes, before)
    y = torch.as_tensor(y_target, device=factuals.x.device)
    answers = list[Answers]()
    notes = list[str]()
    for rows, rules in groups:
        # If rules differ between rows, an error in them has to say whose they are.
        under = _under(
            finder, rules, num_std, frame.index[rows[0]] if len(groups) > 1 else None
        )
        if under.related is not None:
            notes += under.related.notes(factuals.take(torch.as_tensor(rows)))
        asked = replace(
            question,
            max_changes=rules.max_changes,
            sources=Sources.of(rules, finder.encoder.schema_),
        )
        answers += _answers(under, factuals, y, rows, asked, num_options)
    notes += [note for part in answers for note in part.notes]
    explanation = _explanation(
        finder, factuals, classes, y, before, answers, question, num_options
    )
    if notes:
        return replace(explanation, notes=(*explanation.notes, *notes))
    return explanation


def _under(finder: Finder, rules: Rules, num_std: float, row: Any) -> Finder:
    """The finder with rules of this question on top of its own, stated for ``row``."""
    try:
        schema = rules.narrow(finder.encoder.schema_)
    except InputError as error:
        # The same kind of error, without the chain: its message is already complete.
        raise error if row is None else type(error)(f"Row {row}: {error}") from None
    # Nothing stated: keep the finder and all that it has cached.
    if schema is finder.encoder.schema_:
        return finder
    encoder = finder.encoder.with_schema(schema)
    return replace(finder, encoder=encoder, constraints=advice_constraints(encoder, num_std))


def advice_constraints(encoder: Encoder, num_std: float) -> Constraints:
    """Where advice may lead: numbers keep their sign and, unless outliers, stay in the bulk."""
    return encoder.constraints(num_std, keep_sign=True, keep_outside=True, bulk=True)


def _answers(
    finder: Finder,
    factuals: Factuals,
    y: Tensor,
    rows: np.ndarray,
    question: Question,
    num_options: int,
) -> list[Answers]:
    """The answers to some of the rows; of a model that fails somewhere, to those whose search does
    not lead there.

    Raises the model's error if it fails for all of them.
    """
    try:
        return [_answer(finder, factuals, y, rows, question, num_options)]
    except ModelError as error:
        # A row far beyond the data may have overflown; say so, which helps more than the model's
        # own error.
        own = factuals.take(torch.as_tensor(rows, device=factuals.x.device))
        logits = in_blocks(finder.searched, own.x).to(own.x)
        refuse_far(finder.encoder, own.frame, own.x, logits)
        if len(rows) == 1:
            raise
        failure = error
    parts = []
    for half in np.array_split(rows, 2):
        try:
            parts += _answers(finder, factuals, y, half, question, num_options)
        except ModelError as error:
            parts.append(_unanswered(finder, factuals, half, question, error))
    if all(len(part.failed) for part in parts):
        raise failure
    return parts


def _unanswered(
    finder: Finder, factuals: Factuals, rows: np.ndarray, question: Question, error: ModelError
) -> Answers:
    """Rows for which the model fails, as they are."""
    own = factuals.take(torch.as_tensor(rows, device=factuals.x.device))
    blank = torch.full((len(rows),), int(Status.EXHAUSTED), device=own.x.device)
    found = Counterfactuals(own.x.clone(), blank, torch.zeros_like(blank))
    notes: list[str] = [
        RowNote(own.frame.index[i], f"has no answer, because the model fails: {error}")
        for i in range(len(rows))
    ]
    nothing: list[Obstacles] = [[] for _ in rows]
    most = question.max_changes
    return Answers(rows, own, found, nothing, most, finder, own.frame, notes, failed=rows)


def _answer(
    finder: Finder,
    factuals: Factuals,
    y: Tensor,
    rows: np.ndarray,
    question: Question,
    num_options: int,
) -> Answers:
    """The answers to some of the rows."""
    index = torch.as_tensor(rows, device=y.device)
    part = factuals.take(index)
    y_part = y[index]
    options = find_options(finder, part, y_part, question, num_options)
    answers = options.found
    of = options.row
    people = part.take(of)
    frame, notes = _judged(finder, people, answers, question.max_changes)
    # Only rows that nothing was found for are asked why.
    missed = (answers.status == int(Status.EXHAUSTED)).nonzero().squeeze(-1)
    stuck, why = find_obstacles(
        finder,
        part.take(of[missed]),
        answers.x_cf[missed],
        y_part[of[missed]],
        question.sources,
    )
    # With a limit on the number of columns, others that may change would still help: not a matter
    # of their rules.
    stuck = stuck & (_num_free(finder) <= (question.max_changes or np.inf))
    # Stuck means that rules forbid what would help; all others simply ran out of ways.
    answers.status[missed[torch.as_tensor(stuck, device=y.device)]] = int(Status.INFEASIBLE)
    obstacles: list[Obstacles] = [[] for _ in range(len(of))]
    for place, hindrance in zip(missed.tolist(), why, strict=True):
        obstacles[place] = hindrance
    return Answers(
        rows[of.cpu().numpy()],
        people,
        answers,
        obstacles,
        question.max_changes,
        finder,
        frame,
        notes,
    )


def _num_free(finder: Finder) -> int:
    """How many columns may change by themselves."""
    following = finder.encoder.schema_.book.following
    return sum(
        not finder.judge.fixed(feature.name) and feature.name not in following
        for feature in finder.encoder.schema_
    )


def _judged(
    finder: Finder, factuals: Factuals, found: Counterfactuals, most: int | None
) -> tuple[pd.DataFrame, list[str]]:
    """What was found, in the user's units, and notes on what is withheld as against a rule.

    Searches keep the rules, so that nothing should be withheld. If it is, the row itself is the
    best effort.
    """
    original = factuals.frame
    cells = finder.encoder.decoded(
        found.x_cf, original, list(factuals.numbers[factuals.place].T)
    )
    frame = finder.encoder.put(original, cells)
    changed = finder.differs(found.x_cf, factuals.x).any(0).cpu().numpy()
    _shorten_numbers(finder.encoder, frame, original, found.x_cf, np.flatnonzero(changed))
    judge = finder.judge
    if most is not None:
        judge = replace(judge, max_changes=most)
    broken = judge(original, frame, list(cells))
    if not broken:
        return frame, []
    rows = torch.as_tensor(
        sorted({violation.row for violation in broken}), device=found.x_cf.device
    )
    found.x_cf[rows] = factuals.x[rows]
    found.status[rows] = int(Status.EXHAUSTED)
    frame = finder.encoder.inverse_transform(found.x_cf, like=original)
    names = original.index
    return frame, [
        f"One answer for row {names[v.row]} is withheld: it breaks a rule: {v}." for v in broken
    ]


def _shorten_numbers(
    encoder: Encoder,
    frame: pd.DataFrame,
    original: pd.DataFrame,
    x_cf: Tensor,
    features: np.ndarray,
) -> None:
    """Write changed numbers in the fewest digits with the same code: 2.018, not 2.0180001."""
    for column in (encoder.columns_[j] for j in features.tolist()):
        name = column.feature.name
        # Columns with known decimals are rounded to them; narrow ones hold what they can.
        if (
            column.feature.kind != "numeric"
            or column.decimals is not None
            or frame[name].dtype != np.float64
        ):
            continue
        numbers = frame[name].to_numpy(copy=True)
        rows = np.flatnonzero(
            numbers != original[name].to_numpy(dtype=np.float64, na_value=np.nan)
        )
        rows = rows[~column.feature.coded(numbers[rows]).any(1)]
        code = x_cf[torch.as_tensor(rows), encoder.slices_[name].start]
        for digits in range(3, _DIGITS):
            short = np.array(
                [float(f"{number:.{digits}g}") for number in numbers[rows].tolist()]
            )
            same = (torch.as_tensor(column.encode(short)[:, 0]).to(code) == code).cpu().numpy()
            numbers[rows[same]] = short[same]
            rows = rows[~same]
            code = code[torch.as_tensor(~same)]
        frame[name] = numbers


def _explanation(
    finder: Finder,
    factuals: Factuals,
    classes: np.ndarray,
    y: Tensor,
    before: np.ndarray,
    parts: Sequence[Answers],
    question: Question,
    num_options: int,
) -> Explanation:
    """All answers, in the order of the rows."""
    row = np.concatenate([answers.row for answers in parts])
    # Groups were answered in turn; options of a row stay in order.
    order = np.argsort(row, kind="stable")
    row = row[order]
    places = torch.as_tensor(row, device=y.device)
    found = _all_found(parts).take(torch.as_tensor(order, device=y.device))
    x_cf = found.x_cf
    status = found.status.cpu().numpy()
    cost, distance = _measured(parts)
    hindered = [
        (entry, answers.max_changes) for answers in parts for entry in answers.obstacles
    ]
    obstacles, limits = zip(*(hindered[place] for place in order.tolist()), strict=True)
    # One group is in order already.
    if len(parts) == 1:
        own = parts[0].own
    else:
        own = factuals.take(places)
    goal = y[places]
    counterfactual = joined_frames(finder.encoder, [answers.frame for answers in parts])
    if len(parts) > 1:
        counterfactual = counterfactual.iloc[order]
    changed = finder.differs(x_cf, own.x).cpu().numpy()
    probability = finder.logits(x_cf).softmax(-1).numpy()
    wanted = goal.cpu().numpy()
    confidence = probability[np.arange(len(row)), wanted]
    prediction = classes[probability.argmax(1)]
    original = own.frame
    names = np.array([Status(code).name.lower() for code in sorted(Status)], dtype=object)
    notes = tuple[str, ...]()
    if num_options > 1:
        index = numbered(original.index, row)
        original = original.set_axis(index)
        counterfactual = counterfactual.set_axis(index)
        notes = shortfalls(factuals.source.index, row, names[status], num_options)
    reached = prediction == classes[wanted]
    asked = _asked_for(finder, question)
    if asked is not None:
        reached |= confidence >= asked
    return Explanation(
        original=original,
        frame=counterfactual,
        changed=pd.DataFrame(changed, index=original.index, columns=list(original.columns)),
        target=classes[wanted],
        decision=classes[before.argmax(1)][row],
        prediction=prediction,
        confidence=confidence,
        plausibility=finder.plausibility(x_cf)
        .gather(-1, goal.cpu().unsqueeze(-1))
        .squeeze(-1)
        .numpy(),
        status=names[status],
        answered=reached,
        cost=cost[order],
        num_steps=found.num_steps.cpu().numpy(),
        asked=asked,
        distance=distance[order],
        obstacles=list(obstacles),
        max_changes=list(limits),
        strangers=finder.strangers.among(x_cf, goal, finder),
        encoder=finder.encoder,
        notes=notes,
        several=num_options > 1,
        complete=not finder.late,
    )


def _all_found(parts: Sequence[Answers]) -> Counterfactuals:
    """What was found, group after group."""
    return Counterfactuals(
        torch.cat([answers.found.x_cf for answers in parts]),
        torch.cat([answers.found.status for answers in parts]),
        torch.cat([answers.found.num_steps for answers in parts]),
    )


def _measured(parts: Sequence[Answers]) -> tuple[np.ndarray, np.ndarray]:
    """Cost and distance, group after group: difficulty belongs to the rules of each."""
    cost = [answers.finder.cost(answers.found.x_cf, answers.own.x) for answers in parts]
    distance = [answers.finder.distance(answers.found.x_cf, answers.own.x) for answers in parts]
    return torch.cat(cost).double().cpu().numpy(), torch.cat(distance).double().cpu().numpy()


def _of_nobody(
    finder: Finder,
    frame: pd.DataFrame,
    classes: np.ndarray,
    question: Question,
    num_options: int,
) -> Explanation:
    """The answer to a question about no rows; no model is asked, because few of them take none."""
    numbers = np.zeros(0, dtype=np.float32)
    rows = frame
    if num_options > 1:
        rows = frame.set_axis(numbered(frame.index, np.zeros(0, dtype=np.int64)))
    return Explanation(
        original=rows,
        frame=rows.copy(),
        changed=pd.DataFrame(False, index=rows.index, columns=list(rows.columns), dtype=bool),
        target=classes[:0],
        decision=classes[:0],
        prediction=classes[:0],
        confidence=numbers,
        plausibility=numbers,
        status=np.zeros(0, dtype=object),
        answered=np.zeros(0, dtype=bool),
        cost=np.zeros(0),
        num_steps=np.zeros(0, dtype=np.int64),
        asked=_asked_for(finder, question),
        distance=np.zeros((0, rows.shape[1])),
        obstacles=[],
        max_changes=[],
        strangers=[],
        encoder=finder.encoder,
        several=num_options > 1,
    )


def _asked_for(finder: Finder, question: Question) -> float | None:
    """The confidence to reach; ``None`` if the decision is enough."""
    if finder.decision:
        return None
    return float(question.generator.decision_threshold)


def joined_frames(encoder: Encoder, frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """The rows of all frames, one after the other, with the dtypes of the training wherever these
    hold the values.
    """
    if len(frames) == 1:
        return frames[0]
    whole = pd.concat(frames)
    for column in encoder.columns_:
        name = column.feature.name
        # Of categories that training never saw, each frame knows its own.
        if column.feature.is_category and len({frame[name].dtype for frame in frames}) > 1:
            cells = restore_categories(whole[name].to_numpy(dtype=object), column.dtype)
            if cells.dtype == object:
                whole[name] = cells.to_numpy()
            else:
                whole[name] = cells.array
    return whole


def numbered(index: pd.Index, row: np.ndarray) -> pd.MultiIndex:
    """The index with one more level, which counts the options of each row from 1; rows ascend."""
    # Entries come in order of cost within a row, so counting them numbers the options.
    option = np.arange(len(row)) - np.searchsorted(row, row) + 1
    levels = [index.get_level_values(level) for level in range(index.nlevels)]
    # A level of the user's own may be called so; two of that name could not be told apart.
    names = [None if name == "option" else name for name in index.names]
    return pd.MultiIndex.from_arrays([*levels, option], names=[*names, "option"])


def shortfalls(
    index: pd.Index, row: np.ndarray, status: np.ndarray, num_options: int
) -> tuple[str, ...]:
    """Why rows that can be helped have fewer options than were asked for, given the status of each
    entry.
    """
    notes = list[str]()
    helped = np.isin(status, ("converged", "implausible"))
    counts = np.bincount(row[helped], minlength=len(index))
    for i in np.flatnonzero((counts > 0) & (counts < num_options)).tolist():
        notes.append(
            RowNote(
                index[i],
                f"has {counts[i]} of {num_options} options: no other set of columns was found "
                "that is enough.",
            )
        )
    return tuple(notes)


def target_classes(target: Any, classes: np.ndarray, probability: np.ndarray) -> np.ndarray:
    """Class index ``(n,)`` that each row should get.

    Args:
        target: one label for all rows, one per row, or ``None``: the most probable class that is
            not predicted.
        classes: labels ``(k,)``.
        probability: ``(n, k)`` of the rows as they are.
    """
    n = len(probability)
    if target is None:
        order = np.argsort(-probability, axis=1, kind="stable")
        return order[:, 1]
    positions = {label: index for index, label in enumerate(classes.tolist())}
    per_row = (
        isinstance(target, (list, tuple, np.ndarray, pd.Series, pd.Index))
        and np.ndim(target) > 0
    )
    # As objects: numpy would turn a mixture of numbers and text into text.
    if per_row:
        labels = list(np.asarray(target, dtype=object))
    else:
        labels = [target] * n
    if len(labels) != n:
        raise InputError(
            f"{len(labels)} targets for {n} rows; give one label for all, or one per row."
        )
    for label in labels if per_row else [target]:
        if not _known(label, positions):
            raise InputError(unknown("class", _plain(label), positions))
    return np.array([positions[_plain(label)] for label in labels], dtype=np.int64)


def _known(label: Any, positions: dict[Any, int]) -> bool:
    try:
        return _plain(label) in positions
    except TypeError:  # not hashable, so not a label
        return False


def _plain(label: Any) -> Any:
    if isinstance(label, np.generic):
        return label.item()
    return label
