"""What ``explain`` returns: counterfactuals in the user's units, as data, sentences, tables."""

from __future__ import annotations

import html
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from counterfactual_training.tables.advice.hurdles import in_words
from counterfactual_training.tables.advice.outcome import Decisions, Outcome
from counterfactual_training.tables.advice.testimony import Lasting
from counterfactual_training.tables.advice.why import Obstacles
from counterfactual_training.tables.advice.words import (
    cell_with_unit,
    cut_off,
    is_missing,
    is_special,
    listed,
    plain_value,
    say_cell,
    say_change,
    say_row,
)
from counterfactual_training.tables.columns.encode import Encoder
from counterfactual_training.tables.columns.feature import Feature
from counterfactual_training.text import align, one_line

_MOST_ROWS = 20
_MOST_NAMES = 20
_MOST_NOTES = 5
# Changes of a best effort that are named: nobody is to follow them.
_MOST_OF_EFFORTS = 4
_STATUS_ORDER = ("converged", "already_there", "exhausted", "infeasible", "implausible")
_UNCHANGED = "–"
_STYLE = "border-collapse:collapse;font-variant-numeric:tabular-nums"
_CELL = "padding:3px 10px;text-align:left;border-bottom:1px solid #ddd;white-space:nowrap"


@dataclass(frozen=True, eq=False, repr=False)
class Explanation:
    """Counterfactuals of n rows with m features. ``str()`` and notebooks show it as a table, ``–``
    for unchanged cells.

    If several options were asked for, there is one entry per option: a person takes several of the
    n rows, the cheapest option first, and the index of every frame has a second level, ``option``,
    that counts from 1.

    Attributes:
        original: the rows that were explained.
        frame: their counterfactuals: same columns and dtypes.
        changed: mask of the cells that differ, same columns and index; also columns that follow
            others.
        target: ``(n,)`` the class asked for.
        decision: ``(n,)`` the class predicted for ``original``.
        prediction: ``(n,)`` the class predicted for ``frame``.
        confidence: ``(n,)`` probability of the target for ``frame``, as ``predict_proba`` would
            say.
        plausibility: ``(n,)`` how much ``frame`` looks like real rows of the target, given what
            cannot change: 0 to 1, NaN without a gate, and of a regression also where too few rows
            lie inside to judge.
        status: ``(n,)`` ``"converged"``: what was asked for is reached; ``"already_there"``:
            nothing needed to change; ``"exhausted"``: nothing was found; ``"infeasible"``: stuck,
            every change that would still help is forbidden; ``"implausible"``: the model alone
            would say yes, but few real rows look like this. Rows with ``"exhausted"`` and
            ``"infeasible"`` hold the best effort.
        answered: ``(n,)`` whether ``frame`` gets the target, or the confidence asked for; plausible
            or not.
        cost: ``(n,)`` L1 distance in model space (numbers count in standard deviations, a new
            category 2), each column times its difficulty.
        num_steps: ``(n,)`` points that the model was asked about; of a generator, its steps.
        asked: the confidence asked for; ``None`` asked for the decision.
        distance: ``(n, m)`` the cost of each cell; 0 for columns that only follow others.
        obstacles: for each infeasible row, the features that may not move as would help, and why,
            the most harmful first; for an exhausted one, the few that matter most.
        max_changes: for each row, the limit on the number of columns to change; ``None`` without
            one.
        strangers: of each row, a sentence if it has a category that cannot change and that no real
            row of the target has; otherwise empty.
        encoder: knows the columns.
        notes: on rows that have fewer options than were asked for, and why; and on rows that break
            a relation between columns as they are.
        several: whether rows may have several options; the last level of the index then counts
            them.
        complete: ``False`` if a time limit ended the search early: answers may then cost more, or
            options fewer, than they could be. Every claim still holds.
        lasting: what witnesses say of the answers, if advice was to last; ``None`` otherwise.
        outcome: says what became of a row. Of a regression, ``decision`` and ``prediction`` are the
            predicted numbers, ``target`` is the interval in words, and ``confidence`` is NaN.

    Examples:
        >>> import counterfactual_training as ct
        >>> people = ct.loan(300)
        >>> clf = ct.CounterfactualClassifier(mutability={"age": "none"}, epochs=10, random_state=0)
        >>> advice = clf.fit(people.frame, people.y).explain(people.frame[:3], target=1)
        >>> advice.status.tolist()
        ['converged', 'already_there', 'converged']
        >>> advice.frame.shape, advice.changed["debt"].tolist()
        ((3, 2), [True, False, True])
        >>> print(advice.changes()[0])  # doctest: +ELLIPSIS
        Row 0: with debt ... lower (from 46 to ...), the decision would be 1 (confidence ...
        >>> advice.differences()[["row", "column", "before"]].values.tolist()
        [[0, 'debt', 46.0], [2, 'debt', 45.1]]
    """

    original: pd.DataFrame
    frame: pd.DataFrame
    changed: pd.DataFrame
    target: np.ndarray
    decision: np.ndarray
    prediction: np.ndarray
    confidence: np.ndarray
    plausibility: np.ndarray
    status: np.ndarray
    answered: np.ndarray
    cost: np.ndarray
    num_steps: np.ndarray
    asked: float | None
    distance: np.ndarray
    obstacles: list[Obstacles]
    max_changes: list[int | None]
    strangers: list[str]
    encoder: Encoder
    notes: tuple[str, ...] = ()
    several: bool = False
    complete: bool = True
    lasting: Lasting | None = None
    outcome: Outcome = field(default_factory=Decisions)

    def __len__(self) -> int:
        return len(self.frame)

    @property
    def converged(self) -> np.ndarray:
        """``(n,)`` whether what was asked for is reached, plausibly if there is a gate."""
        # NaN, of a regression, is not below anything.
        there = (self.status == "already_there") & ~(self.confidence < (self.asked or 0.0))
        return there | (self.status == "converged")

    @property
    def summary(self) -> pd.DataFrame:
        """One line per row: status, classes, confidence, plausibility, cost, columns changed; and
        how long it lasts, beside what is just enough.
        """
        lasting = {} if self.lasting is None else self.lasting.summary()
        return pd.DataFrame(
            {
                "status": self.status,
                "answered": self.answered,
                **self.outcome.summary(self),
                "plausibility": self.plausibility,
                "cost": self.cost,
                "num_changed": (self.distance > 0).sum(1),
                "num_steps": self.num_steps,
                **lasting,
            },
            index=self.frame.index,
        )

    def measured_by(
        self, encoder: Encoder, difficulty: Mapping[str, float] | None = None
    ) -> Explanation:
        """The same answers with ``cost`` and ``distance`` on the scale of another model's columns.

        Costs count in standard deviations of each model's own training rows, which may differ: two
        models are compared by one of them.

        Args:
            encoder: of the same columns.
            difficulty: by column, where a question stated it; otherwise that of the encoder's
                schema.
        """
        with warnings.catch_warnings():
            # On unknown categories, told when they were asked about.
            warnings.simplefilter("ignore")
            x, x_cf = (
                np.asarray(encoder.transform(rows)) for rows in (self.original, self.frame)
            )
        moved = np.abs(x_cf - x)
        distance = np.zeros_like(self.distance)
        for j, feature in enumerate(encoder.schema_):
            if feature.name not in encoder.schema_.book.following:
                distance[:, j] = moved[:, encoder.slices_[feature.name]].sum(1)
        stated = difficulty or {}
        weights = np.array(
            [stated.get(feature.name, feature.difficulty) for feature in encoder.schema_]
        )
        # What did not change costs nothing, however it is encoded.
        distance = np.where(self.changed.to_numpy(), distance, 0.0)
        lasting = self.lasting
        if lasting is not None and lasting.just_enough is not None:
            enough = lasting.just_enough.measured_by(encoder, difficulty)
            lasting = replace(lasting, just_enough=enough)
        cost = (distance * weights).sum(1)
        return replace(self, cost=cost, distance=distance, lasting=lasting)

    def differences(self) -> pd.DataFrame:
        """One line per changed cell: what and by how much; of categories no ``change``.

        Returns:
            A frame with the columns ``row, column, before, after, change, unit``; with several
            options per row also ``option``.
        """
        columns = list(self.frame.columns)
        records = []
        options = self._options
        for i, j in np.argwhere(self.changed.to_numpy()).tolist():
            before, after = self._pair(i, j)
            feature = self._feature(j)
            # A cell that was missing, or a category, has no difference.
            counted = not feature.is_category and not is_missing(before)
            records.append(
                {
                    "row": self._label(i),
                    **({} if options is None else {"option": options[i]}),
                    "column": columns[j],
                    "before": before,
                    "after": after,
                    "change": float(after) - float(before) if counted else float("nan"),
                    "unit": feature.unit,
                }
            )
        names = [
            "row",
            *([] if options is None else ["option"]),
            "column",
            "before",
            "after",
            "change",
            "unit",
        ]
        return pd.DataFrame(records, columns=names)

    def changes(self, most: int | None = None) -> list[str]:
        """One plain sentence per row: what to change, by how much, and what the decision would be.

        Args:
            most: of more changes than this, such as of pixels, only the largest are named; ``None``
                names all.
        """
        options = self._options
        names = [
            f"Row {say_row(self._label(i))}"
            if options is None
            else f"Row {say_row(self._label(i))}, option {options[i]}"
            for i in range(len(self))
        ]
        return [one_line(f"{name}: {self._sentence(i, most)}") for i, name in enumerate(names)]

    def sentence(self, i: int, plausibility: bool = True) -> str:
        """What :meth:`changes` says of one entry, without the name of its row.

        Args:
            i: the entry, from 0.
            plausibility: whether to name the plausibility of a plausible answer.
        """
        text = one_line(self._sentence(i, None, plausibility))
        return text[:1].upper() + text[1:]

    def option(self, number: int) -> pd.DataFrame:
        """The counterfactuals of one option, for the rows that have it.

        Args:
            number: 1 for the cheapest.
        """
        if self._options is None:
            if number == 1:
                return self.frame
            return self.frame[:0]
        return self.frame[self.frame.index.get_level_values(-1) == number].droplevel(-1)

    @cached_property
    def _options(self) -> list[int] | None:
        """The option of each entry; ``None`` if there is one per row."""
        # Not by the name of the level: a user's own may be called so, too.
        if self.several:
            return self.frame.index.get_level_values(-1).tolist()
        return None

    def _label(self, i: int) -> Any:
        """What a row is called in the index of the rows asked about."""
        label = self.frame.index[i]
        if self._options is None:
            return label
        # Without our level; a plain index gets its label back, not a tuple of one.
        if len(label) == 2:
            return label[0]
        return label[:-1]

    def records(self) -> list[dict[str, Any]]:
        """One dict of plain values per row, ready for JSON: the summary, ``changes`` by column, and
        the sentence.
        """
        sentences = self.changes()
        rows = []
        for i, line in enumerate(self.summary.to_dict("records")):
            moved = np.flatnonzero(self.changed.to_numpy()[i]).tolist()
            cells = {
                self._feature(j).name: dict(
                    zip(("from", "to"), map(plain_value, self._pair(i, j)), strict=True)
                )
                for j in moved
            }
            plain = {str(key): plain_value(value) for key, value in line.items()}
            if self._options is None:
                option = {}
            else:
                option = {"option": self._options[i]}
            row = {"row": plain_value(self._label(i)), **option}
            rows.append({**row, **plain, "changes": cells, "sentence": sentences[i]})
        return rows

    def __repr__(self) -> str:
        counts = Counter(self.status.tolist())
        summary = ", ".join(
            f"{counts[name]} {name.replace('_', ' ')}" for name in _STATUS_ORDER if counts[name]
        )
        if len(self) == 0:
            return "Explanation of 0 rows"
        if self._options is None:
            return f"Explanation of {len(self)} row(s): {summary}"
        return (
            f"Explanation of {self._options.count(1)} row(s), {len(self)} option(s): {summary}"
        )

    def __str__(self) -> str:
        rows, notes = self._display()
        return "\n".join([repr(self), *align(rows), *map(one_line, notes)])

    def _repr_html_(self) -> str:
        (header, *lines), notes = self._display()
        # Names and categories are text, never markup, so everything is escaped.
        head = "".join(f'<th style="{_CELL}">{html.escape(name)}</th>' for name in header)
        body = "".join(f"<tr>{''.join(map(_html_cell, line))}</tr>" for line in lines)
        below = "".join(f"<p>{html.escape(note)}</p>" for note in notes)
        return (
            f"<div><p>{html.escape(repr(self))}</p>"
            "<table "
            f'style="{_STYLE}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{below}</div>'
        )

    # ---- in words --------------------------------------------------------------------------------

    def _sentence(self, i: int, most: int | None, plausibility: bool = True) -> str:
        if self.status[i] == "infeasible" or self.obstacles[i]:
            hurdles = self._hurdles(i)
        else:
            hurdles = ""
        if most is None and self.status[i] in ("exhausted", "infeasible"):
            most = _MOST_OF_EFFORTS
        text = self.outcome.sentence(self, i, self._moved(i, most), hurdles, plausibility)
        if self.strangers[i] and self.answered[i] and self.status[i] != "already_there":
            text += f" {self.strangers[i]}"
        # Witnesses are asked about answers.
        if self.lasting is not None and self.answered[i]:
            text += f" {self.lasting.sentence(i)}{self.lasting.alternative(self, i)}"
        return text

    def _moved(self, i: int, most: int | None) -> str:
        """The changes of a row, the largest first."""
        # Columns that only follow others have distance 0 and come last.
        order = [
            j
            for j in np.argsort(-self.distance[i], kind="stable").tolist()
            if self.distance[i, j] > 0
        ]
        parts = [
            say_change(self._feature(j), *self._pair(i, j), self._decimals(j), self._grouped(j))
            for j in order
        ]
        follows = np.flatnonzero(self.changed.to_numpy()[i] & (self.distance[i] == 0)).tolist()
        return listed(parts, most) + "".join(
            f", so that {self._followed(i, j)}" for j in follows
        )

    def _followed(self, i: int, j: int) -> str:
        """What became of a column that follows others."""
        feature = self._feature(j)
        (before, after) = self._pair(i, j)
        old, new = (
            say_cell(
                feature,
                v,
                self._decimals(j),
                float(after) - float(before),
                grouped=self._grouped(j),
            )
            for v in (before, after)
        )
        return f"{feature.name} is {cell_with_unit(feature, after, new)} instead of {old}"

    def _hurdles(self, i: int) -> str:
        columns = range(self.frame.shape[1])
        values = [self._value(i, j) for j in columns]
        names = [self._feature(j).name for j in columns]
        # A code stands beside the name, because "score may not change" would leave open why.
        coded = [is_special(self._feature(j), self.frame.iat[i, j]) for j in columns]
        names = [
            f"{name} with {v}" if special else name
            for name, v, special in zip(names, values, coded, strict=True)
        ]
        return in_words(self.obstacles[i], names, values)

    def _value(self, i: int, j: int) -> str:
        """A cell of the counterfactual, with its unit."""
        feature = self._feature(j)
        cell = self._pair(i, j)[1]
        text = say_cell(feature, cell, self._decimals(j), grouped=self._grouped(j))
        return cell_with_unit(feature, cell, text)

    def _pair(self, i: int, j: int) -> tuple[Any, Any]:
        """A cell before and after."""
        return self.original.iat[i, j], self.frame.iat[i, j]

    def _feature(self, j: int) -> Feature:
        return self.encoder.schema_.features[j]

    def _decimals(self, j: int) -> int | None:
        return self.encoder.columns_[j].decimals

    def _grouped(self, j: int) -> bool:
        return self.encoder.columns_[j].grouped

    # ---- as a table ------------------------------------------------------------------------------

    def _display(self) -> tuple[list[list[str]], list[str]]:
        """Rows of text, the header first, and notes on what is not shown."""
        shown = min(len(self), _MOST_ROWS)
        mask = self.changed.to_numpy()[:shown]
        columns = [j for j in range(mask.shape[1]) if mask[:, j].any()]
        gated = not np.isnan(self.plausibility).all()
        rows = [self._header(columns, gated)]
        for i in range(shown):
            cells = [self._arrow(i, j) if mask[i, j] else _UNCHANGED for j in columns]
            rows.append([*self._row_name(i), *cells, *self._outcome_cells(i, gated)])
        return rows, self._not_shown(columns, shown)

    def _header(self, columns: list[int], gated: bool) -> list[str]:
        """What stands above the cells of :meth:`_row_name`, columns and :meth:`_outcome_cells`."""
        names = [""]
        if self._options is not None:
            names.append("option")
        names += [self._feature(j).name for j in columns]
        names += self.outcome.columns
        if gated:
            names.append("plausibility")
        names.append("cost")
        if self.lasting is not None:
            names += self.lasting.columns
        return [*names, "status"]

    def _row_name(self, i: int) -> list[str]:
        """The label of a person, and the number of the option if there may be several."""
        if self._options is None:
            return [say_row(self._label(i))]
        number = self._options[i]
        # The label stands beside the first option only.
        if number > 1:
            return ["", str(number)]
        return [say_row(self._label(i)), str(number)]

    def _outcome_cells(self, i: int, gated: bool) -> list[str]:
        """What a row would bring, and what it takes."""
        cells = self.outcome.cells(self, i)
        if gated:
            cells = [*cells, cut_off(self.plausibility[i])]
        cells = [*cells, f"{self.cost[i]:.2f}"]
        if self.lasting is not None:
            cells += self.lasting.cells(i)
        return [*cells, self.status[i].replace("_", " ")]

    def _not_shown(self, columns: list[int], shown: int) -> list[str]:
        """Notes on columns and rows that a table leaves out, and those of the explanation."""
        unchanged = [
            self._feature(j).name for j in range(self.changed.shape[1]) if j not in set(columns)
        ]
        notes = []
        if unchanged:
            notes.append(f"Unchanged: {', '.join(unchanged[:_MOST_NAMES])}")
        if len(unchanged) > _MOST_NAMES:
            notes[0] += f" and {len(unchanged) - _MOST_NAMES} more"
        if len(self) > shown:
            notes.append(f"… and {len(self) - shown} more row(s)")
        notes += self.notes[:_MOST_NOTES]
        if len(self.notes) > _MOST_NOTES:
            notes.append(f"… and {len(self.notes) - _MOST_NOTES} more such rows: see .notes")
        return notes

    def _arrow(self, i: int, j: int) -> str:
        feature = self._feature(j)
        decimals = self._decimals(j)
        grouped = self._grouped(j)
        before, after = self._pair(i, j)
        missing = is_missing(before) or is_missing(after)
        if feature.is_category or missing:
            delta = None
        else:
            delta = float(after) - float(before)
        # Otherwise it follows others, to more digits than a reader needs.
        exact = self.distance[i, j] > 0
        return (
            f"{say_cell(feature, before, decimals, delta, grouped=grouped)} → "
            f"{say_cell(feature, after, decimals, delta, exact, grouped)}"
        )


def _html_cell(text: str) -> str:
    if text == _UNCHANGED:
        weight = ";color:#999"
    elif " → " in text:
        weight = ";font-weight:600"
    else:
        weight = ""
    return f'<td style="{_CELL}{weight}">{html.escape(text)}</td>'
