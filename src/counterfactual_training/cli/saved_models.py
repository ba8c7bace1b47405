"""Saved models of either kind: of a named data set, or of a user's table."""

from __future__ import annotations

from functools import cached_property

import pandas as pd
import torch
from torch import Tensor, nn

from counterfactual_training.cli.parsing import is_csv, read_csv
from counterfactual_training.constraints import Constraints
from counterfactual_training.datasets import load_dataset
from counterfactual_training.datasets.dataset import Dataset
from counterfactual_training.errors import FileError, InputError, lookup
from counterfactual_training.estimator import CounterfactualClassifier
from counterfactual_training.experiments.trained import (
    TrainedClassifier,
    as_classifier,
    protected_constraints,
)
from counterfactual_training.search import make_generator

Measurable = tuple[nn.Module, Tensor, Tensor, Constraints]


def open_model(path: str) -> DatasetModel | TableModel:
    """Load a file of either kind."""
    try:
        return DatasetModel(path, TrainedClassifier.load(path))
    except FileError as first:
        try:
            return TableModel(path, CounterfactualClassifier.load(path))
        except FileError as second:
            # Show the error of the kind that the file claims to be.
            raise (first if "holds" in str(second) else second) from None


class DatasetModel:
    """A model of a named data set; its rows are the test rows."""

    def __init__(self, path: str, trained: TrainedClassifier) -> None:
        self.path, self.trained = path, trained
        self.name = trained.recipe.data

    @cached_property
    def data(self) -> Dataset:
        data = load_dataset(self.name, self.trained.recipe.variant)
        inputs = next(self.trained.model.parameters()).shape[1]
        if data.num_features != inputs:
            raise FileError(f"{self.path!r} takes {inputs} features, {data.name} has {data.num_features}.")
        return data

    def classifier(self) -> CounterfactualClassifier:
        """The model as a scikit-learn estimator."""
        threshold = self.data.settings.decision_threshold
        generator = make_generator(self.trained.recipe.generator, self.data.x_train, decision_threshold=threshold)
        return as_classifier(self.trained.model, self.data, generator, self.trained.recipe.protected)

    def rows(self, data: str | None, target_column: str | None) -> pd.DataFrame:
        """Rows to explain, in the user's units."""
        if data is not None and is_csv(data):
            return read_csv(data, target_column).wanted(self.data.schema.names)
        self._same(data)
        return self.data.frame_test

    def measurable(self, data: str | None, target_column: str | None) -> Measurable:
        """Model, test rows in model space, their classes, and the constraints to search under."""
        self._same(data)
        constraints = protected_constraints(self.data, self.data.constraints, self.trained.recipe.protected)
        return self.trained.model, self.data.x_test, self.data.y_test, constraints

    def _same(self, data: str | None) -> None:
        if data is not None and (is_csv(data) or load_dataset(data).name != self.name):
            raise InputError(f"{self.path!r} is a model of {self.name!r}, not of {data!r}.")


class TableModel:
    """A classifier of a user's table; rows come from a CSV file."""

    name = "csv"

    def __init__(self, path: str, classifier: CounterfactualClassifier) -> None:
        self.path, self._classifier = path, classifier

    def classifier(self) -> CounterfactualClassifier:
        return self._classifier

    def rows(self, data: str | None, target_column: str | None) -> pd.DataFrame:
        return read_csv(self._file(data), target_column).wanted(self._classifier.schema_.names)

    def measurable(self, data: str | None, target_column: str | None) -> Measurable:
        source = read_csv(self._file(data), target_column)
        labels = source.need_labels()
        classifier = self._classifier
        index = {label: i for i, label in enumerate(classifier.classes_.tolist())}
        y = torch.tensor([lookup(f"class in {source.path}:", label, index) for label in labels.tolist()])
        x = torch.as_tensor(classifier.encoder_.transform(source.wanted(classifier.schema_.names)))
        x = x.to(next(classifier.model_.parameters()))
        return classifier.model_, x, y, classifier.constraints_

    def _file(self, data: str | None) -> str:
        if data is None or not is_csv(data):
            said = "" if data is None else f", not {data!r}"
            raise InputError(f"{self.path!r} was trained on a table: name a CSV file with --data{said}.")
        return data
