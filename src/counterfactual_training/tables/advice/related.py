"""Relations between columns, on rows as they are printed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from counterfactual_training.tables.advice.points import Factuals, stored
from counterfactual_training.tables.advice.words import RowNote, say_cell
from counterfactual_training.tables.columns.column import Column
from counterfactual_training.tables.columns.encode import Encoder
from counterfactual_training.tables.columns.frame import UNSEEN
from counterfactual_training.tables.columns.relate import breaks, followed, kept
from counterfactual_training.tables.columns.relations import Follows, RelationBook
from counterfactual_training.tables.columns.rounding import round_to

# Rows named per relation that they break.
_NAMED = 10


@dataclass(frozen=True, eq=False)
class Related:
    """The relations of an encoder's schema."""

    encoder: Encoder

    @cached_property
    def book(self) -> RelationBook:
        return self.encoder.schema_.book

    @cached_property
    def columns(self) -> dict[str, Column]:
        return {column.feature.name: column for column in self.encoder.columns_}

    @cached_property
    def _place(self) -> dict[str, int]:
        return {name: j for j, name in enumerate(self.encoder.schema_.names)}

    def follow(self, printed: Tensor, factuals: Factuals) -> Tensor:
        """Printed points ``(n, d)``, what follows other columns recomputed."""
        if not self.book.follows:
            return printed
        printed, precision = printed.clone(), torch.finfo(printed.dtype).eps
        for rule in self.book.follows:
            inputs = [self.encoder.slices_[name] for name in rule.expression.columns]
            moved = torch.stack(
                [(printed[:, s] != factuals.x[:, s]).any(-1) for s in inputs]
            ).any(0)
            values = self._numbers(printed, factuals, rule.columns)
            before = self._numbers(factuals.x, factuals, rule.columns)
            column = self.columns[rule.column]
            computed = followed(
                rule, column, before, values, self._filled_in(rule, printed, factuals)
            )
            # As the data write it: a column of four decimals gets no fifth one.
            if column.decimals is not None:
                computed = round_to(computed, column.decimals)
            is_finite = np.isfinite(computed)
            # Encoded and decoded again, so that the value is what a cell of this column can hold.
            z = torch.as_tensor(column.encode(np.where(is_finite, computed, 0.0))).to(printed)
            original = factuals.numbers[factuals.place, self._place[rule.column]]
            place = self.encoder.slices_[rule.column]
            numbers, same = column.decode_like(z.cpu().double().numpy(), precision, original)
            code = torch.as_tensor(column.encode(stored(column, numbers))).to(printed)
            # What cannot be computed, or comes out as it was, keeps the factual's code bit by bit.
            new = moved & torch.as_tensor(is_finite & ~same, device=printed.device)
            printed[:, place] = torch.where(new.unsqueeze(-1), code, factuals.x[:, place])
        return printed

    def _filled_in(self, rule: Follows, printed: Tensor, factuals: Factuals) -> np.ndarray:
        """Mask ``(n,)`` of rows that broke it only by blanks, which the points fill."""
        blank = {name: self._blank(name, factuals) for name in rule.columns}
        still_blank = [
            blank[name] & (printed[:, s] == factuals.x[:, s]).all(-1).cpu().numpy()
            for name, s in (
                (name, self.encoder.slices_[name]) for name in rule.expression.columns
            )
        ]
        return np.any(list(blank.values()), 0) & ~np.any(still_blank, 0)

    def _blank(self, name: str, factuals: Factuals) -> np.ndarray:
        return np.isnan(factuals.numbers[factuals.place, self._place[name]])

    def kept(self, printed: Tensor, factuals: Factuals) -> Tensor:
        """Mask ``(n,)`` of printed points that break no relation more than their factuals do."""
        before = self._numbers(factuals.x, factuals)
        after = self._numbers(printed, factuals)
        filled = {
            rule.column: self._filled_in(rule, printed, factuals) for rule in self.book.follows
        }
        fine = kept(self.book, self.columns, before, after, filled)
        return torch.as_tensor(fine, device=printed.device)

    def notes(self, factuals: Factuals) -> list[str]:
        """Which rows break which relation as they are."""
        values = self._numbers(factuals.x, factuals)
        sentences = list[str]()
        for text, names, broken in breaks(self.book, self.columns, values):
            # The value that fills a blank for the model is not part of the row.
            rows = np.flatnonzero(
                broken & ~np.any([self._blank(name, factuals) for name in names], 0)
            )
            for i in rows[:_NAMED].tolist():
                cells = ", ".join(f"{name} {self._say(factuals, name, i)}" for name in names)
                sentences.append(
                    RowNote(factuals.frame.index[i], f'breaks "{text}" already ({cells}).')
                )
            if len(rows) > _NAMED:
                sentences.append(f'{len(rows) - _NAMED} more row(s) break "{text}" already.')
        return sentences

    def _say(self, factuals: Factuals, name: str, i: int) -> str:
        column = self.columns[name]
        cell = factuals.frame[name].iat[i]
        return say_cell(column.feature, cell, column.decimals, grouped=column.grouped)

    def _numbers(
        self, points: Tensor, factuals: Factuals, names: tuple[str, ...] | None = None
    ) -> dict[str, np.ndarray]:
        """The numbers of printed points, in the user's units, by column; those that fill in for
        missing ones.
        """
        z = points.detach().cpu().double().numpy()
        precision = torch.finfo(points.dtype).eps
        numbers_by_column = {}
        for name in self.book.columns if names is None else names:
            column = self.columns[name]
            original = factuals.numbers[factuals.place, self._place[name]]
            numbers = original
            # The factuals' numbers are known exactly; decoding would cost their last digits.
            if points is not factuals.x:
                numbers, same = column.decode_like(
                    z[:, self.encoder.slices_[name]], precision, original
                )
                # A whole number is stored as it is.
                numbers = np.where(
                    same,
                    original,
                    numbers if column.feature.kind == "integer" else stored(column, numbers),
                )
            # Missing cells count as what the model sees in their place.
            if column.feature.is_category:
                numbers_by_column[name] = np.where(np.isnan(numbers), UNSEEN, numbers)
            else:
                numbers_by_column[name] = np.where(np.isnan(numbers), column.fill, numbers)
        return numbers_by_column
