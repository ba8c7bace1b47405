"""Models trained elsewhere: anything with ``predict_proba`` as a torch module."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.exceptions import NotFittedError
from torch import Tensor, nn

from counterfactual_training.errors import InputError, ModelError
from counterfactual_training.tables.advice.quick_pipeline import QuickPipeline
from counterfactual_training.tables.columns.column import Column
from counterfactual_training.tables.columns.dtypes import restore_categories, restore_numbers
from counterfactual_training.tables.columns.encode import Encoder

# A missing cell is encoded as its imputed value and this much more: too little for a rule, enough
# for the model.
_MISSING = 1e-8
# Probabilities below this count as this, so that their logarithms are finite.
_LEAST = 1e-12
# Of two classes with the same probability the first is predicted, so its logarithm is this much
# higher.
_TIE = 1e-8
# Answers about so few points at a time are remembered, up to so many in all.
_FEW = 2000
_MEMORY = 100_000
# Cells of a frame that the model is asked about together; bounds memory.
_CELLS = 4_000_000
# Probabilities, and their sum by class, may be rounded so much.
_ROUNDED = 1e-3
_REMEDY = "Advice needs probabilities that are at least 0 and sum to 1 in each row."


@dataclass(frozen=True, eq=False)
class Background:
    """Real rows to start from where there is no gradient to follow.

    Attributes:
        x: ``(m, d)`` in model space.
        y: ``(m,)`` the class that the model predicts for each.
        sensitivity: ``(features, k)`` how much each class's probability varies with each feature;
            empty if there are so few that all can be tried.
    """

    x: Tensor
    y: Tensor
    sensitivity: Tensor


class BlackBox(nn.Module):
    """Encoded rows ``(n, d)`` to logits ``(n, k)``, by ``predict_proba`` of decoded frames.

    The frame is the one that an explanation hands back, cell by cell: cells of the rows to explain
    are given to the model unchanged (see :meth:`remember`), all others as they are printed. Points
    are float64, because float32 would take a number to the other side of a tree's threshold.
    """

    def __init__(
        self,
        model: Any,
        encoder: Encoder,
        num_classes: int,
        arrays: bool,
        quick: QuickPipeline | None = None,
    ) -> None:
        super().__init__()
        self.wrapped = model
        self.encoder = encoder
        self.num_classes = num_classes
        self.arrays = arrays
        self.quick = quick
        # Tells others the device and precision of points.
        self.like = nn.Parameter(torch.zeros((), dtype=torch.float64), requires_grad=False)
        self._original_cells: list[tuple[np.ndarray, np.ndarray, np.ndarray]] | None = None
        self._tables = [_Table() for _ in encoder.columns_]
        self._answers: dict[bytes, list[float]] = {}
        self._singles: dict[tuple[int, bytes], np.ndarray | None] = {}
        # A one-hot code is scaled, so that only its 1 differs and zeros stay zeros.
        missing = [column.encode(np.array([np.nan]))[0] for column in encoder.columns_]
        self._missing = [code + _MISSING * (code if len(code) > 1 else 1.0) for code in missing]

    def remember(self, frame: pd.DataFrame, numbers: Sequence[np.ndarray], x: Tensor) -> Tensor:
        """Codes ``(n, d)`` that lead back to every cell of a frame.

        Args:
            numbers: each column, read as numbers ``(n,)``.
            x: ``(n, d)`` the rows, encoded.
        """
        x = x.clone()
        cells_of_columns = []
        for j, column in enumerate(self.encoder.columns_):
            place = self.encoder.slices_[column.feature.name]
            x[torch.as_tensor(np.isnan(numbers[j])), place] = torch.as_tensor(
                self._missing[j]
            ).to(x)
            # Sorted, for the binary search of _cells; cells with equal codes mean the same, so one
            # of them will do.
            codes, first = np.unique(x[:, place.start].numpy(), return_index=True)
            cells_of_columns.append(
                (
                    codes,
                    frame[column.feature.name].to_numpy(dtype=object)[first],
                    numbers[j][first],
                )
            )
        for j, column in enumerate(self.encoder.columns_):
            if column.width == 1:
                # Tables may hold other cells under these codes, or would for rows remembered
                # before.
                if self._original_cells is None:
                    before = cells_of_columns[j][0]
                else:
                    before = np.concatenate(
                        [self._original_cells[j][0], cells_of_columns[j][0]]
                    )
                small = len(self._tables[j].codes) <= _MEMORY
                if small:
                    self._tables[j] = self._tables[j].without(before)
                else:
                    self._tables[j] = _Table()
        self._original_cells = cells_of_columns
        self._answers = {}
        self._singles = {}
        return x

    def frame(self, x: Tensor) -> pd.DataFrame:
        """Encoded rows ``(n, d)`` in the user's units."""
        # Column by column in the dtypes of the user's frame: many models care about them.
        z = x.detach().numpy()
        cells: dict[str, Any] = {}
        for j, column in enumerate(self.encoder.columns_):
            codes = z[:, self.encoder.slices_[column.feature.name]]
            place_in_table = self._find(j, column, codes)
            if place_in_table is None:
                cells[column.feature.name] = self._cells(j, column, codes)
            else:
                cells[column.feature.name] = place_in_table[0].cells.take(place_in_table[1])
        return pd.DataFrame(cells)

    def forward(self, x: Tensor) -> Tensor:
        if len(x) == 0:  # few models accept no rows
            return x.new_zeros(0, self.num_classes)
        # A search asks about some points again; but large questions hold nothing but new ones.
        if len(x) <= _FEW:
            probability = self._remembered(x)
        else:
            block = max(1, _CELLS // len(self.encoder.columns_))
            probability = np.concatenate([self._ask(part) for part in x.split(block)])
        # log p are logits: their softmax gives p back.
        logits = torch.as_tensor(probability).to(x).clamp_min(_LEAST).log()
        return logits - _TIE * torch.arange(self.num_classes, device=x.device)

    def _ask(self, x: Tensor) -> np.ndarray:
        if self.quick is None:
            probability = None
        else:
            probability = self._ask_quickly(self.quick, x)
        if probability is not None:
            return checked(probability, len(x), self.num_classes)
        return probabilities_of(self.wrapped, self.frame(x), self.num_classes, self.arrays)

    def _ask_quickly(self, quick: QuickPipeline, x: Tensor) -> np.ndarray | None:
        numbers = self._numbers(quick, x)
        if numbers is None:
            return None
        try:
            return quick.predict_proba(numbers)
        except Exception:  # the user's code; the whole pipeline raises it again, by name
            return None

    def _numbers(self, quick: QuickPipeline, x: Tensor) -> np.ndarray | None:
        """What a pipeline's first step makes of encoded rows; ``None`` if tables cannot."""
        z = x.detach().numpy()
        numbers = np.empty((len(z), len(quick.columns)))
        # Points of one person differ in few columns: of the others, one cell is looked up.
        varies = (z != z[0]).any(0)
        for j, column in enumerate(self.encoder.columns_):
            if column.feature.name not in quick.places:
                continue
            here = self.encoder.slices_[column.feature.name]
            if varies[here].any():
                column_numbers = self._numbers_of_codes(j, column, z[:, here])
            else:
                column_numbers = self._numbers_of_one_code(j, column, z[:1, here])
            if column_numbers is None or self.quick is None:
                return None
            numbers[:, quick.places[column.feature.name]] = column_numbers
        return numbers

    def _numbers_of_codes(self, j: int, column: Column, z: np.ndarray) -> np.ndarray | None:
        """What a pipeline's first step makes of codes ``(n, width)`` of one column."""
        place_in_table = self._find(j, column, z)
        if place_in_table is None:
            return None
        return place_in_table[0].numbers[place_in_table[1]]

    def _numbers_of_one_code(self, j: int, column: Column, z: np.ndarray) -> np.ndarray | None:
        """The same of a single code ``(1, width)``, which is remembered."""
        key = (j, z.tobytes())
        if key not in self._singles:
            self._singles[key] = self._numbers_of_codes(j, column, z)
        return self._singles[key]

    def _remembered(self, x: Tensor) -> np.ndarray:
        """Probabilities ``(n, k)`` of a few rows; the model is asked only about those that it did
        not see yet.
        """
        z = np.ascontiguousarray(x.detach().numpy())
        keys: list[Any] = z.view(np.dtype((np.void, z.shape[1] * z.itemsize))).ravel().tolist()
        new = {key: i for i, key in enumerate(keys) if key not in self._answers}
        if new:
            if len(self._answers) > _MEMORY:
                self._answers = {}
                new = {key: i for i, key in enumerate(keys)}
            probabilities = self._ask(x[list(new.values())])
            self._answers.update(zip(new, probabilities.tolist(), strict=True))
        return np.array([self._answers[key] for key in keys])

    def _find(self, j: int, column: Column, z: np.ndarray) -> tuple[_Table, np.ndarray] | None:
        """A column's table, and where codes ``(n, width)`` are in it; ``None`` if nowhere."""
        if column.width > 1 and not column.one_hot:
            return None
        # A category is known by the sum of its code's places.
        if column.width == 1:
            code = z[:, 0]
        else:
            code = z @ np.arange(1.0, column.width + 1)
        table = self._tables[j]
        place, new = table.find(code)
        if len(new):
            new = new[np.unique(code[new], return_index=True)[1]]
            cells = pd.Series(self._cells(j, column, z[new]))
            if cells.dtype != column.dtype:  # such as a missing cell among whole numbers
                return None
            table = self._tables[j] = table.extended(
                code[new], cells, self._numbers_of_cells(column, cells)
            )
            place, _ = table.find(code)
        return table, place

    def _numbers_of_cells(self, column: Column, cells: pd.Series) -> np.ndarray:
        """What the first step of a pipeline makes of cells ``(n,)``, if that is known."""
        if self.quick is None or column.feature.name not in self.quick.columns:
            return np.zeros(len(cells))
        try:
            return self.quick.numbers(column.feature.name, cells)
        except Exception:  # the user's code; from now on, the whole pipeline is called
            self.quick = None
            return np.zeros(len(cells))

    def _cells(self, j: int, column: Column, z: np.ndarray) -> Any:
        """The cells of codes ``(n, width)``."""
        numbers = np.empty(len(z))
        cells = np.empty(0, dtype=object)
        new = np.arange(len(z))
        places = np.arange(0)
        # Of wider columns the first code alone would not identify a cell.
        # Most cells are those of the rows to explain.
        if self._original_cells is not None and column.width == 1:
            codes, originals, values = self._original_cells[j]
            nearest = np.searchsorted(codes, z[:, 0]).clip(max=len(codes) - 1)
            # Bit by bit: only values that were never moved lead back to the original cells.
            is_original = codes[nearest] == z[:, 0]
            new = np.flatnonzero(~is_original)
            places = np.flatnonzero(is_original)
            numbers[places] = values[nearest[places]]
            cells = originals[nearest[places]]
        if len(new):
            # At the precision of float64, in which points are kept here.
            decoded = column.decode(z[new], float(np.finfo(np.float64).eps))
            numbers[new] = np.where((z[new] == self._missing[j]).all(1), np.nan, decoded)
        if not column.feature.is_category:
            plain = column.dtype == np.float64
            if plain:
                return numbers
            return restore_numbers(
                numbers, column.dtype, integers=column.feature.kind == "integer"
            )
        # The last place stands for a missing cell.
        levels = pd.Series([*column.feature.levels, np.nan], dtype=object).to_numpy()
        code = np.where(np.isnan(numbers), len(levels) - 1, numbers)
        code[places] = 0  # whatever was there is put back
        values = levels[code.astype(int)]
        values[places] = cells
        return restore_categories(values, column.dtype)


class _Table:
    """Cells of one column that were decoded before, by their codes: most points have the same few.

    Attributes:
        codes: ``(u,)`` ascending.
        cells: ``(u,)`` in the dtype of the column.
        numbers: ``(u,)`` what the first step of a pipeline makes of them.
    """

    def __init__(
        self,
        codes: np.ndarray | None = None,
        cells: Any = None,
        numbers: np.ndarray | None = None,
    ) -> None:
        if codes is None:
            self.codes = np.zeros(0)
        else:
            self.codes = codes
        self.cells = cells
        if numbers is None:
            self.numbers = np.zeros(0)
        else:
            self.numbers = numbers

    def find(self, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where codes ``(n,)`` are here, and which of them ``(a,)`` are not."""
        if len(self.codes) == 0:
            return np.zeros(len(codes), dtype=np.int64), np.arange(len(codes))
        place = self.codes.searchsorted(codes)
        place[place == len(self.codes)] = 0
        return place, np.flatnonzero(self.codes[place] != codes)

    def extended(self, codes: np.ndarray, cells: pd.Series, numbers: np.ndarray) -> _Table:
        """With new codes, their cells and numbers."""
        codes = np.concatenate([self.codes, codes])
        order = np.argsort(codes, kind="stable")
        # Quickly, if it can be: pandas takes long to find a common type.
        if isinstance(self.cells, np.ndarray):
            joined: Any = np.concatenate([self.cells, cells.to_numpy()])
        else:
            joined = _plain(
                cells if self.cells is None else pd.concat([pd.Series(self.cells), cells])
            )
        return _Table(
            codes[order], joined[order], np.concatenate([self.numbers, numbers])[order]
        )

    def without(self, codes: np.ndarray) -> _Table:
        """Without the cells of these codes."""
        kept = np.flatnonzero(~np.isin(self.codes, codes))
        if len(kept):
            return _Table(self.codes[kept], self.cells[kept], self.numbers[kept])
        return _Table()


def _plain(cells: pd.Series) -> Any:
    """The cells as pandas takes them fastest."""
    if isinstance(cells.dtype, np.dtype):
        return cells.to_numpy()
    return cells.array


def probabilities_of(
    model: Any, frame: pd.DataFrame, num_classes: int | None, arrays: bool
) -> np.ndarray:
    """Probabilities ``(n, k)`` of a frame's rows, checked."""
    try:
        probabilities = model.predict_proba(frame.to_numpy() if arrays else frame)
    except NotFittedError as error:
        raise InputError(
            f"The model is not fitted yet ({type(model).__name__}): call its fit first."
        ) from error
    except Exception as error:  # the user's code may raise anything
        reason = (str(error).splitlines() or [""])[0]
        raise ModelError(
            f"predict_proba of {type(model).__name__} fails on a frame with the columns "
            f"{', '.join(frame.columns)}: "
            f"{type(error).__name__}: {reason}"
        ) from error
    return checked(probabilities, len(frame), num_classes)


def checked(output: Any, num_rows: int, num_classes: int | None) -> np.ndarray:
    """Probabilities ``(n, k)``, if they are such."""
    probability = np.asarray(output, dtype=np.float64)
    expected = (num_rows, num_classes or probability.shape[-1])
    if probability.ndim != 2 or probability.shape != expected or expected[1] < 2:
        wanted = f"({num_rows}, {num_classes or 'number of classes'})"
        raise ModelError(
            f"predict_proba returned shape {probability.shape}; expected {wanted}, two classes "
            "or more."
        )
    if not np.isfinite(probability).all():
        raise ModelError("predict_proba returned NaN or infinity.")
    _check_probabilities(probability)
    return probability


def _check_probabilities(numbers: np.ndarray) -> None:
    """Raise if a number ``(n, k)`` is negative or a row does not sum to one, by more than rounding
    to three digits does.
    """
    if len(numbers) == 0:
        return
    least = float(numbers.min())
    if least < -_ROUNDED:
        raise ModelError(
            f"predict_proba returned {least:.4g}, which is no probability: negative. {_REMEDY}"
        )
    total = numbers.sum(1)
    worst = int(np.abs(total - 1.0).argmax())
    if abs(total[worst] - 1.0) > _ROUNDED * numbers.shape[1]:
        raise ModelError(
            f"predict_proba returned {np.array2string(numbers[worst], precision=4, threshold=6)} "
            f"for a row, which sums to {total[worst]:.4g} instead of 1. {_REMEDY}"
        )
