"""The results of an audit: tidy tables, and one document for JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from counterfactual_training.tables.audits.groups import Grouping
from counterfactual_training.tables.audits.measures import MEASURES, Measure
from counterfactual_training.tables.audits.robustness import CHECKS

FORMAT = 1
BY_ID = {measure.id: measure for measure in MEASURES}
# Models by their place.
IDS = ("model", "against")
# What findings report in sentences; the tables have everything.
_GROUP_FINDINGS = ("denied", "no_recourse", "implausible", "burden", "false_negatives", "nawb")
_MODEL_FINDINGS = ("no_recourse", "implausible", "burden_same")
_OVERALL_FINDINGS = (
    *_MODEL_FINDINGS,
    "denied",
    "false_negatives",
    "social_burden_per_person",
    "nawb",
)
_INTERVAL = ["n", "value", "low", "high"]
GROUPS = ["model", "column", "group", "measure", *_INTERVAL, "few"]
GAPS = ["model", "column", "measure", "highest", "lowest", "value", "low", "high", "clear"]
DIFFERENCES = ["column", "group", "measure", *_INTERVAL, "few", "clear"]
PROXIES = ["model", "column", "source", *_INTERVAL, "reason"]
INFORMATION = ["model", "column", "source", "feature", "value"]
LATER = ["model", "check", "n", "draws", "value", "low", "high", "few"]
_GUESSED = (
    "How well the group can be guessed, as AUC: .5 or less is no better than chance, 1 is always "
    "right. From the "
    "columns that people may change: they stand in for it. From the advice: what people are told "
    "gives the group away."
)


@dataclass(frozen=True, eq=False)
class Audit:
    """Burden, proxies and lasting validity of a model's advice, by group; perhaps of two models.

    Attributes:
        groups: a line per model, column, group and measure: ``n, value, low, high``, ``few`` if n
            is small. Everybody is the column ``""``.
        gaps: a line per model, column and measure: the two groups that differ most, and by how
            much.
        differences: the model minus the one it is compared with, the same people drawn for both;
            empty without one.
        proxies: the AUC of guessing a group from ``source``: ``"features"`` that may change, or
            ``"advice"``.
        information: of each feature with the group, normalised, from 0 to 1.
        later: a line per model and check: the share of today's advice that is still accepted.
        groupings: the groups, everybody first.
        immutable: by column of the groups, whether the model holds it fixed; ``None`` if the model
            does not know it.
        models: name, accuracy, number of denied and explained people, the confidence that advice
            asked for (``None``: the decision), the status of explanations, and the share of advice
            that changes each column.
        facts: target, rows, cap on the people explained, level of the intervals, resamples, seed,
            few, and delta, the noise on the weights.
        notes: sentences that readers need.

    Examples:
        >>> import counterfactual_training as ct
        >>> people = ct.loan(300)
        >>> clf = ct.CounterfactualClassifier(mutability={"age": "none"}, epochs=10, random_state=0)
        >>> clf = clf.fit(people.frame, people.y)
        >>> quick = ct.AuditProtocol(people=40, resamples=100)
        >>> audit = ct.audit(clf, people.frame, groups=["age"], target=1, protocol=quick)
        >>> [measure.id for measure in audit.measures]
        ['denied', 'no_recourse', 'implausible', 'burden']
        >>> audit.gaps.columns.tolist()
        ['model', 'column', 'measure', 'highest', 'lowest', 'value', 'low', 'high', 'clear']
        >>> print(audit.findings[0])  # doctest: +ELLIPSIS
        age: “Denied” is higher for ... than for ..., by ... points (this model).
    """

    groups: pd.DataFrame
    gaps: pd.DataFrame
    differences: pd.DataFrame
    proxies: pd.DataFrame
    information: pd.DataFrame
    later: pd.DataFrame
    groupings: tuple[Grouping, ...]
    immutable: Mapping[str, bool | None]
    models: tuple[dict[str, Any], ...]
    facts: Mapping[str, Any]
    notes: tuple[str, ...] = ()

    def tables(self) -> dict[str, pd.DataFrame]:
        """The tables by name, those that are not empty."""
        names = ("groups", "gaps", "differences", "proxies", "information", "later")
        return {name: getattr(self, name) for name in names if len(getattr(self, name))}

    @property
    def measures(self) -> list[Measure]:
        """Those that were measured, in their order."""
        return [BY_ID[name] for name in BY_ID if (self.groups["measure"] == name).any()]

    @property
    def findings(self) -> list[str]:
        """A sentence for each difference whose interval excludes zero."""
        return [*self._difference_findings(), *self._gap_findings()]

    def to_dict(self) -> dict[str, Any]:
        """One document, ready for JSON: ``None`` where there is no number."""
        document = {
            "format": FORMAT,
            **self.facts,
            "models": list(self.models),
            "columns": [self._column(grouping) for grouping in self.groupings],
            "proxies": [
                self._proxy(g)
                for g in self.groupings
                if (self.proxies["column"] == g.column).any()
            ],
            "later": [
                self._check(name) for name in CHECKS if (self.later["check"] == name).any()
            ],
            "notes": list(self.notes),
            "clear_findings": self.findings,
        }
        plain: dict[str, Any] = json_safe(document)
        return plain

    # ---- parts of the document -------------------------------------------------------------------

    def _column(self, grouping: Grouping) -> dict[str, Any]:
        sizes = zip(grouping.names, grouping.sizes.tolist(), strict=True)
        key = grouping.column or ""
        return {
            "column": grouping.column,
            "title": grouping.names[0]
            if grouping.column is None
            else " and ".join(grouping.parts),
            "kind": grouping.kind,
            "immutable": self.immutable.get(key),
            "in_model": None
            if grouping.column is None
            else self.immutable.get(key) is not None,
            "groups": [{"group": name, "rows": size} for name, size in sizes],
            "measures": [self._measure(measure, key) for measure in self.measures],
        }

    def _measure(self, measure: Measure, column: str) -> dict[str, Any]:
        description = {
            name: getattr(measure, name)
            for name in ("id", "title", "meaning", "formula", "unit")
        }
        differences = self._part(self.differences, column=column, measure=measure.id)
        return {
            **description,
            "models": [self._of_model(model, measure, column) for model in self.models],
            "differences": differences.drop(columns=["column", "measure"]).to_dict("records"),
        }

    def _of_model(
        self, model: Mapping[str, Any], measure: Measure, column: str
    ) -> dict[str, Any]:
        where = {"model": model["id"], "column": column, "measure": measure.id}
        groups = self._part(self.groups, **where)[["group", *_INTERVAL, "few"]]
        gaps = (
            self._part(self.gaps, **where)
            .drop(columns=["model", "column", "measure"])
            .to_dict("records")
        )
        measured = groups[groups["value"].notna() & ~groups["few"].astype(bool)]
        if len(measured) and len(groups) > 1:
            worst = measured.iloc[int(measured["value"].to_numpy().argmax())]
        else:
            worst = None
        return {
            "id": model["id"],
            "name": model["name"],
            "groups": groups.to_dict("records"),
            "worst": None
            if worst is None
            else {"group": worst["group"], "value": worst["value"]},
            "gap": gaps[0] if gaps else None,
        }

    def _proxy(self, grouping: Grouping) -> dict[str, Any]:
        guesses = self._part(self.proxies, column=grouping.column).to_dict("records")
        intervals = []
        for guess in guesses:
            where = {name: guess[name] for name in ("model", "column", "source")}
            information = self._part(self.information, **where)[["feature", "value"]].to_dict(
                "records"
            )
            intervals.append(
                {
                    **{key: guess[key] for key in (*_INTERVAL, "reason")},
                    "information": information,
                }
            )
        names = {model["id"]: model["name"] for model in self.models}
        advice = [
            {"id": guess["model"], "name": names[guess["model"]], **one}
            for guess, one in zip(guesses, intervals, strict=True)
            if guess["source"] == "advice"
        ]
        return {
            "column": grouping.column,
            "immutable": self.immutable.get(grouping.column or ""),
            "title": f"Can {grouping.column} be guessed?",
            "meaning": _GUESSED,
            "features": next(
                one
                for guess, one in zip(guesses, intervals, strict=True)
                if guess["source"] == "features"
            ),
            "advice": advice,
        }

    def _check(self, name: str) -> dict[str, Any]:
        check = CHECKS[name]
        names = {model["id"]: model["name"] for model in self.models}
        meaning = check.meaning.replace("{delta}", f"{self.facts['delta'] or 0:.0%}")
        lines = self._part(self.later, check=name).drop(columns="check").to_dict("records")
        models = [
            {"id": line["model"], "name": names[line.pop("model")], **line} for line in lines
        ]
        return {"id": check.id, "title": check.title, "meaning": meaning, "models": models}

    # ---- sentences -------------------------------------------------------------------------------

    def _gap_findings(self) -> list[str]:
        """Both models in one sentence where the same two groups differ."""
        names = {model["id"]: model["name"] for model in self.models}
        measured = self.gaps["measure"].isin(_GROUP_FINDINGS) & ~self.gaps["column"].isin(
            self._crossed
        )
        clear = self.gaps[measured & self.gaps["clear"].astype(bool)]
        sentences = []
        for (column, name, high, low), part in clear.groupby(
            ["column", "measure", "highest", "lowest"], sort=False
        ):
            measure = BY_ID[str(name)]
            by = [
                f"{_in_words(measure, line)} ({names[line['model']]})"
                for line in part.to_dict("records")
            ]
            sentences.append(
                f"{column}: “{measure.title}” is higher for {high} than for {low}, by "
                f"{' and '.join(by)}."
            )
        return sentences

    def _difference_findings(self) -> list[str]:
        if self.differences.empty:
            return []
        mine, other = (model["name"] for model in self.models)
        clear = self.differences[
            self.differences["clear"].astype(bool) & ~self.differences["few"].astype(bool)
        ]
        of_all = (clear["column"] == "") & clear["measure"].isin(_OVERALL_FINDINGS)
        clear = clear[
            of_all
            | (clear["measure"].isin(_MODEL_FINDINGS) & ~clear["column"].isin(self._crossed))
        ]
        sentences = []
        for (column, name, higher), part in clear.assign(higher=clear["value"] > 0).groupby(
            ["column", "measure", "higher"], sort=False
        ):
            measure = BY_ID[str(name)]
            lines = part.to_dict("records")
            by = [
                f"{_in_words(measure, line, absolute=True)} ({line['group']})" for line in lines
            ]
            if column:
                where = f"{column}: "
                size = ", ".join(by)
            else:
                where = ""
                size = by[0].rpartition(" (")[0]
            than = f"{'higher' if higher else 'lower'} under {mine} than under {other}"
            sentences.append(f"{where}“{measure.title}” is {than}, by {size}.")
        return sentences

    @property
    def _crossed(self) -> list[str | None]:
        return [grouping.column for grouping in self.groupings if grouping.kind == "crossed"]

    @staticmethod
    def _part(table: pd.DataFrame, **where: Any) -> pd.DataFrame:
        keep = np.ones(len(table), dtype=bool)
        for name, value in where.items():
            keep &= (table[name] == value).to_numpy()
        return table[keep]


def _in_words(measure: Measure, line: Mapping[Any, Any], absolute: bool = False) -> str:
    """``0.52 [0.31, 0.70]``, of shares in points."""
    value, low, high = (float(line[name]) for name in ("value", "low", "high"))
    if absolute and value < 0:
        value, low, high = -value, -high, -low
    if measure.unit == "share":
        scale = 100
        unit = " points"
        digits = 1
    else:
        scale = 1
        unit = ""
        digits = 2
    if measure.unit == "index":
        digits = 4
    return f"{scale * value:.{digits}f} [{scale * low:.{digits}f}, {scale * high:.{digits}f}]{unit}"


def json_safe(value: Any) -> Any:
    """Plain Python values; numbers that are not finite become ``None``."""
    if isinstance(value, Mapping):
        return {str(key): json_safe(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [json_safe(entry) for entry in value]
    if isinstance(value, np.generic):
        return json_safe(value.item())
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return None
    if value is None or isinstance(value, bool | int | str):
        return value
    return str(value)
