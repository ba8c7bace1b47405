"""The map: decisions in a plane through one person, real people in it, and the way of each plan.

The plane is spanned by two columns, all others being as the person's, or by the first two principal
components of the rows in model space. Either way the regions are what the model really decides
there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import torch

from counterfactual_serve.questions import request_frame
from counterfactual_serve.reading import RefusedError
from counterfactual_serve.served import Model, Served
from counterfactual_training.tables.advice.points import in_blocks
from counterfactual_training.tables.advice.words import plain_value, say_number
from counterfactual_training.tables.columns.column import Column
from counterfactual_training.tables.columns.model_space import device_and_dtype, encode_rows

_MOST_PEOPLE = 400
_MOST_ROWS = 2000
# How far the map goes beyond the outermost of what it shows, as a share of its width.
_MARGIN = 0.06
_BULK = (0.01, 0.99)
_TICKS = 5
_MOST_CATEGORIES = 40


@dataclass(frozen=True, eq=False)
class Atlas:
    """Draws maps; the components are worked out once."""

    served: Served

    def draw(
        self,
        model: Model,
        row: Mapping[str, Any],
        columns: Sequence[str] | None,
        plans: Sequence[Mapping[str, Any]],
        size: int,
    ) -> dict[str, Any]:
        """The document of one map; see the API."""
        places = ["row", *(f"plans[{i}]" for i in range(len(plans)))]
        frame, _ = request_frame([row, *plans], model.classifier, places)
        if columns is None:
            return self._of_components(model, frame, size)
        return self._of_columns(model, frame, columns, size)

    # ---- two columns -----------------------------------------------------------------------------

    def _of_columns(
        self, model: Model, frame: pd.DataFrame, names: Sequence[str], size: int
    ) -> dict[str, Any]:
        by_name = {column.feature.name: column for column in model.classifier.encoder_.columns_}
        people = self._people
        axes = [_Axis.of(by_name[name], frame[name].tolist()) for name in names]
        places = [axis.centres(size) for axis in axes]
        # One row per cell: the person, but for these two columns.
        cells = len(places[0]) * len(places[1])
        grid = pd.concat([frame.iloc[[0]]] * cells, ignore_index=True)
        for axis, numbers, name in zip(axes, np.meshgrid(*places), names, strict=True):
            grid[name] = axis.values(numbers.ravel())
        at = [
            np.column_stack(
                [axis.positions(part[name]) for axis, name in zip(axes, names, strict=True)]
            )
            for part in (frame, *(() if people is None else (people,)))
        ]
        classifier = model.classifier
        x = encode_rows(classifier.encoder_, grid, device_and_dtype(classifier.model_))
        return self._document(
            model, axes, places, x, at[0], at[1] if people is not None else None, frame
        )

    # ---- components ------------------------------------------------------------------------------

    def _of_components(self, model: Model, frame: pd.DataFrame, size: int) -> dict[str, Any]:
        people = self._people
        if people is None:
            raise RefusedError(
                "Components need rows: start the server with --data.", "columns", "no_data", 404
            )
        classifier = model.classifier
        like = device_and_dtype(classifier.model_)
        mean, directions = self._components
        person = encode_rows(classifier.encoder_, frame, like)
        crowd = encode_rows(classifier.encoder_, people, like)
        person_place, crowd_places = (
            ((x - mean.to(x)) @ directions.to(x)).cpu().numpy() for x in (person, crowd)
        )
        # Without the few farthest people, who would squeeze all others together.
        ends = np.quantile(crowd_places, _BULK, axis=0)
        axes = [
            _Axis.plain(f"component {i + 1}", [*person_place[:, i], *ends[:, i]])
            for i in range(2)
        ]
        places = [axis.centres(size) for axis in axes]
        across, up = (torch.as_tensor(part.ravel()).to(person) for part in np.meshgrid(*places))
        # Through the person: what the components do not tell stays as it is.
        steps = torch.stack(
            [across - float(person_place[0, 0]), up - float(person_place[0, 1])], -1
        )
        return self._document(
            model,
            axes,
            places,
            person[:1] + steps @ directions.T.to(person),
            person_place,
            crowd_places,
            frame,
        )

    @cached_property
    def _components(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean ``(d,)`` and the first two principal directions ``(d, 2)`` of the rows."""
        rows = self.served.people
        chosen = np.random.default_rng(self.served.seed).permutation(len(rows))[:_MOST_ROWS]
        encoder = self.served.model.classifier.encoder_
        x = torch.as_tensor(encoder.transform(rows.iloc[np.sort(chosen)])).double()
        mean = x.mean(0)
        directions = torch.linalg.svd(x - mean, full_matrices=False).Vh[:2]
        if len(directions) < 2:
            raise RefusedError(
                "Two components need at least two rows and two columns.", "columns"
            )
        # The largest entry of a direction is positive, or the map would be mirrored from time to
        # time.
        largest = directions.gather(1, directions.abs().argmax(1, keepdim=True))
        return mean, (directions * largest.sign()).T

    # ---- both ------------------------------------------------------------------------------------

    @cached_property
    def _shown(self) -> np.ndarray:
        """Positions of the people who are shown."""
        number = len(self.served.people)
        return np.sort(
            np.random.default_rng(self.served.seed).permutation(number)[:_MOST_PEOPLE]
        )

    @property
    def _people(self) -> pd.DataFrame | None:
        if self.served.rows is None:
            return None
        return self.served.people.iloc[self._shown]

    def _document(
        self,
        model: Model,
        axes: Sequence[_Axis],
        places: Sequence[np.ndarray],
        x: torch.Tensor,
        person: np.ndarray,
        crowd: np.ndarray | None,
        frame: pd.DataFrame,
    ) -> dict[str, Any]:
        probability = in_blocks(model.classifier.model_, x).softmax(-1)
        shape = (len(places[1]), len(places[0]))
        decision = probability.argmax(-1).reshape(shape)
        sure = probability.amax(-1).reshape(shape)
        now = model.classifier.predict_proba(frame.iloc[[0]]).argmax(1)
        people = []
        if crowd is not None:
            decided = model.classifier.predict_proba(
                self.served.people.iloc[self._shown]
            ).argmax(1)
            numbers = zip(crowd.tolist(), decided.tolist(), self._shown.tolist(), strict=True)
            people = [
                {"x": x0, "y": y0, "decision": k, "row": row} for (x0, y0), k, row in numbers
            ]
        return {
            "axes": [axis.document() for axis in axes],
            "grid": {
                "x": places[0].tolist(),
                "y": places[1].tolist(),
                "decision": decision.tolist(),
                "confidence": [[round(v, 3) for v in line] for line in sure.tolist()],
            },
            "people": people,
            "person": {
                "x": float(person[0, 0]),
                "y": float(person[0, 1]),
                "decision": int(now[0]),
            },
            "paths": [[person[0].tolist(), plan.tolist()] for plan in person[1:]],
        }


@dataclass(frozen=True, eq=False)
class _Axis:
    """One side of the map: a column of numbers, of categories (at 0, 1, 2, …), or a component."""

    title: str
    low: float
    high: float
    column: Column | None = None

    @classmethod
    def of(cls, column: Column, values: Sequence[Any]) -> _Axis:
        """The axis of a column that shows at least these values."""
        feature = column.feature
        if feature.unit:
            title = f"{feature.name} ({feature.unit})"
        else:
            title = feature.name
        if feature.is_category:
            if len(feature.levels) > _MOST_CATEGORIES:
                raise RefusedError(
                    f"{feature.name!r} has {len(feature.levels)} categories, too many for a map.",
                    "columns",
                )
            return cls(title, -0.5, len(feature.levels) - 0.5, column)
        # The bulk of the training rows, the person and the plans, but no outlier.
        numbers = [float(value) for value in values if value == value and value is not None]
        low, high = _wide([*(column.bulk or (column.low, column.high)), *numbers])
        # The margin does not lead where no value can be; the person may be there already.
        if numbers:
            least = min(feature.limits[0], *numbers)
            most = max(feature.limits[1], *numbers)
        else:
            least, most = feature.limits
        return cls(title, max(low, least), min(high, most), column)

    @classmethod
    def plain(cls, title: str, values: Sequence[float]) -> _Axis:
        return cls(title, *_wide(values))

    @property
    def _levels(self) -> tuple[Any, ...] | None:
        if self.column is not None and self.column.feature.is_category:
            return self.column.feature.levels
        return None

    def centres(self, size: int) -> np.ndarray:
        """Where the cells of the grid have their middle."""
        if self._levels is not None:
            return np.arange(len(self._levels), dtype=float)
        edges = np.linspace(self.low, self.high, size + 1)
        return (edges[1:] + edges[:-1]) / 2

    def values(self, places: np.ndarray) -> Any:
        """Cells of the column at these places."""
        if self._levels is not None:
            return pd.Series([self._levels[int(place)] for place in places], dtype=object)
        is_integer = self.column is not None and self.column.feature.kind == "integer"
        if is_integer:
            return np.round(places).astype(np.int64)
        return places

    def positions(self, cells: pd.Series) -> np.ndarray:
        """Places of cells of the column; unknown and missing ones are in the middle."""
        middle = (self.low + self.high) / 2
        if self._levels is not None:
            places = {level: float(i) for i, level in enumerate(self._levels)}
            return np.array([places.get(cell, middle) for cell in cells.tolist()])
        return cells.astype(float).fillna(middle).to_numpy()

    def document(self) -> dict[str, Any]:
        if self.column is None:
            name = None
        else:
            name = self.column.feature.name
        return {
            "title": self.title,
            "column": name,
            "min": self.low,
            "max": self.high,
            "ticks": self._ticks(),
        }

    def _ticks(self) -> list[dict[str, Any]]:
        if self._levels is not None:
            return [
                {"at": float(i), "label": str(plain_value(level))}
                for i, level in enumerate(self._levels)
            ]
        step = _nice((self.high - self.low) / _TICKS)
        first = np.ceil(self.low / step) * step
        places = np.arange(first, self.high + step * 1e-9, step)
        decimals = max(0, int(-np.floor(np.log10(step) + 1e-9)))
        grouped = self.column is None or self.column.grouped
        return [
            {"at": float(at), "label": say_number(float(at), decimals, grouped)}
            for at in places
        ]


def _wide(values: Sequence[float]) -> tuple[float, float]:
    """The ends of an axis that holds all values, with a margin."""
    low = float(min(values))
    high = float(max(values))
    margin = _MARGIN * (high - low) or max(1.0, abs(low)) * _MARGIN
    return low - margin, high + margin


def _nice(step: float) -> float:
    """The next of 1, 2, 5, 10, 20, … at or above a step."""
    power = 10.0 ** np.floor(np.log10(step))
    return float(
        next(power * nice for nice in (1, 2, 5, 10) if power * nice >= step * (1 - 1e-9))
    )
