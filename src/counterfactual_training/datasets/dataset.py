"""A data set: encoded rows, classes, schema, constraints and the paper's settings for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import pandas as pd
import torch
from torch import Tensor

from counterfactual_training.constraints import Constraints
from counterfactual_training.datasets.synthetic import stratified_split
from counterfactual_training.tables.columns.feature import Feature

if TYPE_CHECKING:
    from counterfactual_training.tables.columns.encode import Encoder
    from counterfactual_training.tables.columns.schema import Schema

Variant = Literal["default", "as_run", "full"]
# Returns the content of a data file, given its name.
Read = Callable[[str], bytes]


@dataclass(frozen=True)
class PaperSettings:
    """The paper's training settings for one data set (appendix, Note 1)."""

    batch_size: int
    decision_threshold: float  #: τ in training
    lambda_reg: float
    num_counterfactuals: int  #: searched per epoch
    num_validation: int  #: training rows held out, for the log only


@dataclass(frozen=True, eq=False)
class Dataset:
    """Features and classes in model space, and what they mean.

    Attributes:
        name: for code.
        title: for people.
        variant: ``default``, ``as_run`` or ``full``; see :func:`load_dataset`.
        x_train: float32 ``(n, d)``; includes the rows held out for validation.
        y_train: int64 ``(n,)``.
        x_test: float32 ``(m, d)``.
        y_test: int64 ``(m,)``.
        class_names: what the classes 0, 1, … are called.
        feature_names: what the columns of x are called.
        features: the columns in the user's units, with the changes that make sense for a person.
        encoder: from ``frame_train`` to ``x_train`` and back; ``None`` where both hold the same
            numbers.
        constraints: box and one-hot groups of the experiments; the schema's mutability is not
            applied.
        training_constraints: the same, as used by the search in training.
        protected: columns of x that the paper's mutability experiments hold fixed.
        settings: the paper's training settings for this data set.

    Examples:
        >>> import counterfactual_training as ct
        >>> data = ct.load_dataset("loan")
        >>> data.x_train.shape, data.class_names
        (torch.Size([1000, 2]), ('loan withheld', 'loan granted'))
        >>> list(data.frame_train), data.protected_names  # the same rows in years and dollars
        (['age', 'debt'], ('age',))
        >>> data.protect(data.constraints).directions
        ('none', 'both')
    """

    name: str
    title: str
    variant: Variant
    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    class_names: tuple[str, ...]
    feature_names: tuple[str, ...]
    features: tuple[Feature, ...]
    encoder: Encoder | None
    constraints: Constraints
    training_constraints: Constraints
    protected: tuple[int, ...]
    settings: PaperSettings
    _frames: tuple[pd.DataFrame, pd.DataFrame] | None = field(default=None, repr=False)

    @property
    def num_features(self) -> int:
        """Columns in model space, d."""
        return self.x_train.shape[1]

    @property
    def num_classes(self) -> int:
        """Classes, k."""
        return len(self.class_names)

    @cached_property
    def schema(self) -> Schema:
        """The features, and relations between them."""
        # Here, because networks train and are measured without it.
        from counterfactual_training.tables.columns.schema import Schema

        if self.encoder is None:
            return Schema(self.features)
        return self.encoder.schema_

    @property
    def frame_train(self) -> pd.DataFrame:
        """The training rows in the user's units."""
        return self._frame(0, self.x_train)

    @property
    def frame_test(self) -> pd.DataFrame:
        """The test rows in the user's units."""
        return self._frame(1, self.x_test)

    @property
    def protected_names(self) -> tuple[str, ...]:
        """What the protected columns are called."""
        return tuple(self.feature_names[j] for j in self.protected)

    @property
    def protected_columns(self) -> tuple[str, ...]:
        """The columns of the frame that hold protected features."""
        if self.encoder is None:
            return self.protected_names
        held = set(self.protected)
        return tuple(
            name
            for name, part in self.encoder.slices_.items()
            if held & set(range(part.start, part.stop))
        )

    def protect(self, constraints: Constraints) -> Constraints:
        """The same constraints with the protected columns immutable."""
        may_move = torch.ones(self.num_features, dtype=torch.bool)
        may_move[list(self.protected)] = False
        up = constraints.may_increase & may_move
        down = constraints.may_decrease & may_move
        return replace(constraints, may_increase=up, may_decrease=down)

    def validation_split(self, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Row numbers ``(train, validation)`` of the training rows: stratified, with the paper's
        number held out.
        """
        return stratified_split(self.y_train, self.settings.num_validation, rng)

    def info(self) -> dict[str, Any]:
        """Sizes, classes and shares as plain values."""
        train, test = (
            y.bincount(minlength=self.num_classes) for y in (self.y_train, self.y_test)
        )
        shares = ((train + test) / (train + test).sum()).tolist()
        spec = self.schema.to_dict()
        # All alike: describe one.
        if len(spec) > 1 and all(feature.kind == "pixel" for feature in self.features):
            spec = {
                f"{self.feature_names[0]} … {self.feature_names[-1]}": next(iter(spec.values()))
            }
        return {
            "name": self.name,
            "title": self.title,
            "variant": self.variant,
            "rows": len(self.y_train) + len(self.y_test),
            "train_rows": len(self.y_train),
            "test_rows": len(self.y_test),
            "features": len(self.features),
            "columns": self.num_features,
            "one_hot_groups": len(self.constraints.groups),
            "classes": [
                {"index": index, "name": name} for index, name in enumerate(self.class_names)
            ],
            "train_classes": dict(zip(self.class_names, train.tolist(), strict=True)),
            "test_classes": dict(zip(self.class_names, test.tolist(), strict=True)),
            "shares": dict(zip(self.class_names, shares, strict=True)),
            "protected": list(self.protected_names),
            "schema": spec,
            **asdict(self.settings),
        }

    def __repr__(self) -> str:
        info = self.info()
        shares = ", ".join(f"{name} {share:.1%}" for name, share in info["shares"].items())
        if info["columns"] != info["features"]:
            wide = f" ({info['columns']} columns)"
        else:
            wide = ""
        held = info["protected"]
        if len(held) <= 3:
            protected = ", ".join(held)
        else:
            protected = f"{len(held)} of them, {held[0]} … {held[-1]}"
        return (
            f"Dataset {self.name!r} ({self.variant}): {self.title}\n"
            f"  {info['train_rows']:,} rows to train, {info['test_rows']:,} to test\n"
            f"  {info['features']} features{wide}, protected: {protected}\n"
            f"  {self.num_classes} classes: {shares}"
        )

    def _frame(self, part: int, x: Tensor) -> pd.DataFrame:
        if self._frames:
            return self._frames[part]
        return pd.DataFrame(x.numpy(), columns=list(self.feature_names))
