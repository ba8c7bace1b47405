"""Saved models, and where their rows come from: a named data set, or a user's table."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from counterfactual_training.cli.csv_blocks import CsvBlocks
from counterfactual_training.cli.csv_file import Reading, read_table
from counterfactual_training.cli.csv_format import BLANKS, NUMBER
from counterfactual_training.cli.output import note
from counterfactual_training.cli.parsing import is_file_name
from counterfactual_training.cli.table import need_target
from counterfactual_training.constraints import Constraints
from counterfactual_training.datasets import load_dataset
from counterfactual_training.datasets.dataset import Dataset
from counterfactual_training.defaults import VARIANT
from counterfactual_training.errors import FileError, InputError, check_name, lookup
from counterfactual_training.models.shapes import describe, shape_in_words
from counterfactual_training.persistence import file_kind
from counterfactual_training.tables.columns.schema import Schema
from counterfactual_training.tables.estimators.classifier import CounterfactualClassifier
from counterfactual_training.tables.estimators.file import Origin, row_marks
from counterfactual_training.tables.estimators.value_file import KIND as REGRESSOR_KIND
from counterfactual_training.tables.portfolio import BLOCK_ROWS, Portfolio, file_mark

Measurable = tuple[nn.Module, Tensor, Tensor, Constraints, str]


def open_model(path: str) -> DatasetModel | TableModel:
    """A file of ``ct train`` or :meth:`CounterfactualClassifier.save`."""
    if file_kind(path) == REGRESSOR_KIND:
        raise FileError(
            f"{path!r} holds a regressor, and commands take classifiers: use "
            "CounterfactualRegressor.load in Python.",
            code="other_kind",
        )
    try:
        classifier = CounterfactualClassifier.load(path)
    except FileError as error:
        if error.code != "needs_objects":
            raise
        raise FileError(
            *error.args,
            " A command cannot: use Python, as docs/how-to/serve.md shows.",
            code=error.code,
            field=error.field,
        ) from None
    origin = classifier.origin_
    if origin is not None and "dataset" in origin.reading:
        return DatasetModel(path, classifier, origin)
    return TableModel(path, classifier)


class SavedModel:
    """A classifier from a file, whatever its rows are."""

    def __init__(self, path: str, classifier: CounterfactualClassifier) -> None:
        self.path = path
        self.classifier = classifier
        self.origin = classifier.origin_
        self.positive = None
        if self.origin is not None:
            self.positive = self.origin.positive

    def facts(self) -> list[tuple[str, str]]:
        """What the model is, for people."""
        classifier = self.classifier
        if classifier.gate_ is None:
            gates = []
        else:
            gates = [str(part["kind"]) for part in classifier.gate_.describe()]
        facts = [("file", self.path)]
        if self.origin is not None:
            trained = len(self.origin.trained)
            held_out = len(self.origin.held_out)
            facts.append(("rows", f"{trained:,} trained on, {held_out:,} held out"))
        if classifier.missing == "impute":
            blanks = "filled in"
        else:
            blanks = "not accepted"
        return [
            *facts,
            ("classes", ", ".join(map(str, classifier.classes_))),
            ("model", shape_in_words(describe(classifier.model_))),
            *self._training(),
            ("gate", " and ".join(gates) or "none"),
            ("blank cells", blanks),
        ]

    def _training(self) -> list[tuple[str, str]]:
        """How it was trained; nothing of a model that was trained elsewhere."""
        records = self.classifier.history_.records
        if not records:
            return []
        return [("method", str(self.classifier.method)), ("epochs", str(len(records)))]

    def _measurable(
        self, frame: pd.DataFrame, labels: pd.Series, description: str
    ) -> Measurable:
        classifier = self.classifier
        index = {label: i for i, label in enumerate(classifier.classes_.tolist())}
        y = torch.tensor([index[label] for label in labels.tolist()])
        x = torch.as_tensor(classifier.encoder_.transform(frame))
        x = x.to(next(classifier.model_.parameters()))
        return classifier.model_, x, y, classifier.constraints_, description


class DatasetModel(SavedModel):
    """A model of a named data set; its rows are the test rows."""

    def __init__(self, path: str, classifier: CounterfactualClassifier, origin: Origin) -> None:
        super().__init__(path, classifier)
        self.name = str(origin.reading["dataset"])
        self.variant = origin.reading.get("variant", VARIANT)

    @cached_property
    def data(self) -> Dataset:
        data = load_dataset(self.name, self.variant)
        names = self.classifier.schema_.names
        if list(data.frame_test.columns) != list(names):
            raise FileError(
                f"{self.path!r} takes other columns than {data.name} has: {', '.join(names[:5])} …"
            )
        return data

    def table(self, file: str, empty: bool = False) -> pd.DataFrame:
        """All columns of a CSV file, which may be ``empty`` but for their names."""
        return read_table(
            file, Reading(text=_codes(self.classifier.schema_)), flags=False, empty=empty
        )

    def rows(self, data: str | None) -> pd.DataFrame:
        """Rows to explain, in the user's units."""
        if data is not None and is_file_name(data):
            return wanted(self.table(data, empty=True), self.classifier.schema_.names, data)
        self._same(data)
        return self.data.frame_test

    def portfolio(self, data: str | None, label: str | None) -> Portfolio:
        """All rows to explain, a block at a time."""
        schema = self.classifier.schema_
        if data is not None and is_file_name(data):
            return _portfolio(data, Reading(text=_codes(schema)), schema, label)
        self._same(data)
        frame = self.data.frame_test.reset_index(drop=True)
        if label is not None:
            raise InputError(
                f"--label names a column of a CSV file; {self.name!r} is the name of a data set."
            )
        mark = hashlib.sha256(
            pd.util.hash_pandas_object(frame).to_numpy().tobytes()
        ).hexdigest()
        starts = range(0, len(frame), BLOCK_ROWS)
        return Portfolio(
            blocks=lambda: (frame[start : start + BLOCK_ROWS] for start in starts),
            mark=mark,
            place=lambda row: f"row {row} of {self.name}",
            block_rows=BLOCK_ROWS,
        )

    def every_row(
        self, data: str, target: str | None
    ) -> tuple[pd.DataFrame, pd.Series | None, np.ndarray | None]:
        """Rows to show, their classes, and which were trained on, as far as known."""
        if is_file_name(data):
            return self.rows(data), None, None
        self._same(data)
        # Test rows only, none of which was trained on.
        return self.data.frame_test, self.test_labels, np.zeros(len(self.data.y_test), bool)

    @property
    def test_labels(self) -> pd.Series:
        """The classes of the test rows, as the classifier knows them."""
        return self._labels(self.data.y_test)

    @property
    def trained_on(self) -> tuple[pd.DataFrame, pd.Series]:
        """The rows of the training and their classes."""
        return self.data.frame_train, self._labels(self.data.y_train)

    def _labels(self, y: Tensor) -> pd.Series:
        names = np.array(self.data.class_names, dtype=object)
        return pd.Series(names[y.numpy()])

    def facts(self) -> list[tuple[str, str]]:
        """What the model is, for people."""
        first, *others = super().facts()
        return [first, ("data set", self.name), *others]

    def measurable(self, data: str | None, target: str | None, all_rows: bool) -> Measurable:
        """Model, test rows in model space, their classes, the constraints to search under, and
        which rows they are.
        """
        self._same(data)
        description = f"{len(self.data.y_test):,} test rows of {self.name}"
        return self._measurable(self.data.frame_test, self.test_labels, description)

    def _same(self, data: str | None) -> None:
        if data is not None and (is_file_name(data) or load_dataset(data).name != self.name):
            raise InputError(f"{self.path!r} is a model of {self.name!r}, not of {data!r}.")


@dataclass(frozen=True, eq=False)
class LabelledRows:
    """Rows of a file with their classes.

    Attributes:
        description: which rows these are, in words.
        trained_on: the other rows of the file: those that the model was trained on.
    """

    frame: pd.DataFrame
    labels: pd.Series
    description: str
    trained_on: tuple[pd.DataFrame, pd.Series] | None = None


class TableModel(SavedModel):
    """A classifier of a user's table; rows come from a CSV file."""

    name = "csv"

    def __init__(self, path: str, classifier: CounterfactualClassifier) -> None:
        super().__init__(path, classifier)
        # Files are read as that of the training was.
        stated: Mapping[str, Any] = {}
        if self.origin is not None:
            stated = self.origin.reading
        reading = _reading(path, stated)
        text = (*reading.text, *_codes(classifier.schema_))
        self.reading = reading._replace(text=text)

    def table(self, file: str, empty: bool = False) -> pd.DataFrame:
        """All columns of a CSV file, which may be ``empty`` but for their names."""
        return read_table(file, self.reading, flags=False, empty=empty)

    def rows(self, data: str | None) -> pd.DataFrame:
        file = self._file(data)
        return wanted(self.table(file, empty=True), self.classifier.schema_.names, file)

    def portfolio(self, data: str | None, label: str | None) -> Portfolio:
        """All rows to explain, a block at a time."""
        return _portfolio(self._file(data), self.reading, self.classifier.schema_, label)

    def labelled(
        self, data: str | None, target: str | None, all_rows: bool = False
    ) -> LabelledRows:
        """Rows with their classes: those that training did not see, unless all are asked for."""
        file = self._file(data)
        frame = self.table(file)
        if target is None and self.origin is not None:
            target = self.origin.target
        target = need_target(Path(file), frame, target)
        labelled_rows = frame[frame[target].notna()]
        labels = self._labels(labelled_rows[target], file)
        rows = wanted(labelled_rows, self.classifier.schema_.names, file)
        if self.origin is None or all_rows:
            if all_rows:
                doubt = ""
            else:
                doubt = "; the model file does not say which of them it was trained on"
            return LabelledRows(rows, labels, f"all {len(rows):,} rows of {file}{doubt}")
        marks = row_marks(rows, labels)
        seen = self.origin.seen(marks)
        held_out = self.origin.held(marks)
        if seen.all():
            raise InputError(
                f"All {len(rows):,} rows of {file} were trained on. Name a file with others by "
                "--data, or measure "
                "these with --all-rows."
            )
        # Rows are known by their content; a file that was rounded since holds none of them.
        if (
            not seen.any()
            and not held_out.any()
            and len(rows) == len(self.origin.trained) + len(self.origin.held_out)
        ):
            note(
                f"{file} has as many rows as the file of the training, but none of those: if it "
                "is the same, rounded "
                "or edited, the rows of the training cannot be told from the others"
            )
        kinds = (
            (held_out, "held out of training"),
            (~seen & ~held_out, "that training never saw"),
        )
        parts = [f"{int(mask.sum()):,} rows {words}" for mask, words in kinds if mask.any()]
        # A rival model trained on only some of these rows would be no fair comparison.
        if int(seen.sum()) == len(self.origin.trained):
            trained_on = (rows[seen], labels[seen])
        else:
            trained_on = None
        description = f"{' and '.join(parts)} (of {len(rows):,} in {file})"
        return LabelledRows(rows[~seen], labels[~seen], description, trained_on)

    def every_row(
        self, data: str, target: str | None
    ) -> tuple[pd.DataFrame, pd.Series | None, np.ndarray | None]:
        """Rows to show, their classes, and which were trained on, as far as known."""
        file = self._file(data)
        frame = self.table(file)
        rows = wanted(frame, self.classifier.schema_.names, file)
        target = target or (self.origin.target if self.origin is not None else None)
        if target is None or (target not in frame.columns and self.origin is not None):
            return frame, None, None  # new people, whose class is unknown
        target = need_target(Path(file), frame, target)
        has_class = frame[target].notna()
        # People whose class is not known are not shown: they could be neither measured nor told
        # from those trained on.
        if not has_class.all():
            note(f"{file}: {int((~has_class).sum())} rows without a class are left out")
        frame = frame[has_class].reset_index(drop=True)
        rows = rows[has_class].reset_index(drop=True)
        labels = self._labels(frame[target], file)
        if self.origin is None:
            seen = None
        else:
            seen = self.origin.seen(row_marks(rows, labels))
        return frame.drop(columns=target), labels, seen

    def measurable(self, data: str | None, target: str | None, all_rows: bool) -> Measurable:
        """As for a named data set, of the rows of a file that training did not see."""
        source = self.labelled(data, target, all_rows)
        return self._measurable(source.frame, source.labels, source.description)

    def _labels(self, column: pd.Series, file: str) -> pd.Series:
        """Classes as the model knows them: a file may write 1 as 1.0, or a column of yes and no may
        hold yes only.
        """
        classes = self.classifier.classes_.tolist()
        by_text = {str(label): label for label in classes}
        texts = [
            text if text in by_text else text.removesuffix(".0")
            for text in map(str, column.tolist())
        ]
        labels = [lookup(f"class in {file}", text, by_text) for text in texts]
        return pd.Series(labels, index=column.index, dtype=object)

    def _file(self, data: str | None) -> str:
        if data is None or not is_file_name(data):
            if data is None:
                instead = ""
            else:
                instead = f", not {data!r}"
            raise InputError(
                f"{self.path!r} was trained on a table: name a CSV file with --data{instead}."
            )
        return data


def wanted(frame: pd.DataFrame, names: Sequence[str], file: str) -> pd.DataFrame:
    """The columns that a model uses, in its order; a file may hold more, such as the class."""
    absent = [name for name in names if name not in frame.columns]
    if absent:
        near = difflib.get_close_matches(absent[0], list(map(str, frame.columns)), n=1)
        if near:
            hint = f" (is it {near[0]!r}?)"
        else:
            hint = ""
        shown = ", ".join(map(repr, absent[:5])) + (", …" if len(absent) > 5 else "")
        raise InputError(
            f"{file} lacks {len(absent)} column(s) that the model needs: {shown}{hint}."
        )
    return frame[list(names)]


def _portfolio(file: str, reading: Reading, schema: Schema, label: str | None) -> Portfolio:
    """The rows of a CSV file, which may be larger than memory."""
    # A label is copied as it is written: 007 is no number.
    if label is not None and label not in schema.names:
        reading = reading._replace(text=(*reading.text, label))
    blocks = CsvBlocks(Path(file), reading, BLOCK_ROWS)
    names = list(blocks.names.values())
    wanted(pd.DataFrame(columns=names), schema.names, file)
    if label is not None:
        check_name(f"column of {file} in --label", label, names)
    blocks.need_numbers([feature.name for feature in schema if not feature.is_category])
    return Portfolio(
        blocks=lambda: iter(blocks),
        mark=file_mark(file),
        place=lambda row: f"{file}, line {blocks.line(row)}",
        label=label,
        separator=blocks.form.separator,
        decimal=blocks.decimal,
        block_rows=BLOCK_ROWS,
    )


def _codes(schema: Schema) -> tuple[str, ...]:
    """Columns with categories that a table would take for numbers or blanks, such as 007 and NA."""
    columns = [feature for feature in schema if feature.is_category]
    return tuple(column.name for column in columns if any(map(_is_code, column.levels)))


def _is_code(level: Any) -> bool:
    return isinstance(level, str) and (level in BLANKS or NUMBER.fullmatch(level) is not None)


def _reading(path: str, stated: Mapping[str, Any]) -> Reading:
    """How a model file says that tables are read."""
    separator = stated.get("separator")
    lists = [stated.get("na", ()), stated.get("text", ())]
    listed = all(isinstance(texts, (list, tuple)) for texts in lists)
    sound = separator is None or isinstance(separator, str)
    if (
        not sound
        or not listed
        or not all(isinstance(text, str) for texts in lists for text in texts)
    ):
        raise FileError(
            f"{path!r} is damaged or was altered: it does not say how its table was read."
        )
    return Reading(separator, *lists)
