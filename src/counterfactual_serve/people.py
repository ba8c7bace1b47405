"""The table of people: filtered, sorted, page by page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from counterfactual_serve.answers import rounded, row_values
from counterfactual_serve.reading import RefusedError
from counterfactual_serve.served import Served
from counterfactual_training.tables.advice.words import plain_value


@dataclass(frozen=True, eq=False)
class People:
    """The rows that were given with ``--data``."""

    served: Served

    def page(self, query: Mapping[str, Any]) -> dict[str, Any]:
        """One page of the rows that a query chooses; its fields are those of ``/api/rows``."""
        chosen = self._order(self._chosen(query), query["sort"], query["descending"])
        first = query["offset"]
        shown = chosen[first : first + query["limit"]]
        return {
            "total": len(chosen),
            "offset": first,
            "rows": [self._row(int(i)) for i in shown],
        }

    def _chosen(self, query: Mapping[str, Any]) -> np.ndarray:
        frame = self.served.people
        keep = np.ones(len(self.served.people), dtype=bool)
        for i, entry in enumerate(query["filters"]):
            keep &= self._passes(frame[entry["column"]], entry, f"filters[{i}]")
        if query["decision"] is not None:
            keep &= self.served.decided[0] == self.served.model.classes.index(query["decision"])
        if query["search"]:
            # Text, not a pattern: what people type may hold brackets.
            keep &= self._texts.str.contains(query["search"].casefold(), regex=False).to_numpy()
        return np.flatnonzero(keep)

    def _passes(self, column: pd.Series, entry: Mapping[str, Any], where: str) -> np.ndarray:
        between = entry["between"]
        among = entry["in"]
        if among is not None:
            return np.array([plain_value(cell) in among for cell in column.tolist()])
        if not pd.api.types.is_numeric_dtype(column.dtype) or pd.api.types.is_bool_dtype(
            column.dtype
        ):
            raise RefusedError(
                f"{where}: {column.name!r} holds no numbers; choose by in.", where
            )
        numbers = column.to_numpy(dtype=float, na_value=np.nan)
        (low, high) = between
        return (numbers >= (-np.inf if low is None else low)) & (
            numbers <= (np.inf if high is None else high)
        )

    def _order(self, chosen: np.ndarray, by: str, descending: bool) -> np.ndarray:
        decided, sure = self.served.decided
        rows = self.served.rows
        if by == "row":
            if descending:
                return chosen[::-1]
            return chosen
        # A column of the data may be called like one of ours; the user's own wins.
        if by in self.served.people.columns:
            key = self.served.people[by]
        elif by == "label":
            if rows is None or rows.labels is None:
                key = pd.Series(decided)
            else:
                key = rows.labels
        else:
            key = pd.Series(sure if by == "confidence" else decided)
        key = key.reset_index(drop=True).iloc[chosen]
        if not pd.api.types.is_numeric_dtype(key.dtype):
            key = key.map(lambda cell: "" if cell is None or cell != cell else str(cell))
        # Stable, so that equal rows stay in the order of the file on every page.
        return np.asarray(
            key.sort_values(ascending=not descending, kind="stable", na_position="last").index
        )

    @cached_property
    def _texts(self) -> pd.Series:
        """All that can be read in each row, in lower case."""
        frame = self.served.people
        text = frame.astype(str).agg("\x1f".join, axis=1).str.casefold().reset_index(drop=True)
        return pd.Series(np.arange(len(frame)).astype(str)) + "\x1f" + text

    def _row(self, i: int) -> dict[str, Any]:
        served = self.served
        rows = self.served.rows
        decided, sure = served.decided
        if rows is None:
            labels = None
        else:
            labels = rows.labels
        return {
            "row": i,
            "values": row_values(served.people, i),
            "decision": served.model.classes[int(decided[i])],
            "confidence": rounded(sure[i]),
            "label": None if labels is None else plain_value(labels.iloc[i]),
        }
