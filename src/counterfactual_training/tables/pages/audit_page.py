"""An audit as files: one page with interval plots, the same as Markdown, and all numbers as CSV."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from counterfactual_training.tables.audits import Audit
from counterfactual_training.tables.pages.audit_tables import (
    Line,
    audit_markdown,
    head,
    long_table,
    with_interval,
    worst,
)
from counterfactual_training.tables.pages.files import RunInfo, csv_text, render, write_files

_TICKS = 5


def write_audit(
    audit: Audit, out: str | Path, run: RunInfo | None = None, title: str = ""
) -> list[str]:
    """Write a page, the same as Markdown, and all numbers as CSV; returns the paths.

    Args:
        out: a folder, or the page's own name, which must then end in ``.html``; the others are
            named alike.
        title: what was audited, for the heading.
    """
    path = Path(out)
    if path.suffix == ".html":
        folder = path.parent
        stem = path.stem
    else:
        folder = path
        stem = "audit"
    run = run or RunInfo()
    contents = {
        f"{stem}.html": audit_page(audit, run, title),
        f"{stem}.md": audit_markdown(audit, run, title),
        f"{stem}.csv": csv_text(long_table(audit)),
    }
    return write_files(folder, contents)


# ---- the page ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mark:
    """An interval on a strip, in per cent of its width; ``label`` reads it aloud."""

    model: int
    at: float
    low: float
    high: float
    text: str
    label: str
    few: bool


def audit_page(audit: Audit, run: RunInfo, title: str = "") -> str:
    """One self-contained HTML page."""
    document = audit.to_dict()
    return render(
        "audit.html",
        title=title,
        d=document,
        run=run,
        head=head(document).splitlines(),
        columns=[
            (column, [_panel(measure) for measure in column["measures"]])
            for column in document["columns"]
        ],
        proxies=[_proxy_panel(proxy) for proxy in document["proxies"]],
        later=_later_panels(document),
    )


def _panel(measure: Line) -> dict[str, Any]:
    """A measure as rows of marks on a common scale."""
    unit = measure["unit"]
    models = measure["models"]
    lines = [line for model in models for line in model["groups"]]
    scale = Scale.of(lines, unit)
    rows = []
    for g, first in enumerate(models[0]["groups"]):
        marks = [
            scale.mark(i, model["groups"][g], f"{first['group']}, {model['name']}")
            for i, model in enumerate(models)
        ]
        if measure["differences"]:
            difference = measure["differences"][g]
        else:
            difference = None
        rows.append(
            {
                "name": first["group"],
                "n": _sizes(models, g),
                "marks": marks,
                "change": _change(difference, unit),
            }
        )
    return {
        **measure,
        "rows": rows,
        "ticks": scale.ticks,
        "worst": [{"name": m["name"], "text": worst(m, unit)} for m in models if m["worst"]],
        "gaps": [_gap(model, unit) for model in models if model["gap"]],
    }


def _sizes(models: Sequence[Line], g: int) -> str:
    return " / ".join(
        f"{n:,}" for n in dict.fromkeys(model["groups"][g]["n"] for model in models)
    )


def _change(difference: Line | None, unit: str) -> dict[str, Any] | None:
    if difference is None or difference["value"] is None:
        return None
    return {
        "text": with_interval(difference, unit, True),
        "clear": difference["clear"] and not difference["few"],
    }


def _gap(model: Line, unit: str) -> dict[str, Any]:
    gap = model["gap"]
    return {
        "name": model["name"],
        "pair": f"{gap['highest']} − {gap['lowest']}",
        "text": with_interval(gap, unit, True),
        "clear": gap["clear"],
    }


def _proxy_panel(proxy: Line) -> dict[str, Any]:
    guesses = [
        ("columns that may change", proxy["features"]),
        *((f"advice of {a['name']}", a) for a in proxy["advice"]),
    ]
    scale = Scale(0.4, 1.0, "cost", 0.1)
    rows = []
    for i, (name, guess) in enumerate(guesses):
        # The features belong to no model, so they get a mark of their own.
        if guess["reason"]:
            marks = []
        else:
            marks = [scale.mark(2 if i == 0 else i - 1, {**guess, "few": False}, name)]
        strongest = ", ".join(
            f"{one['feature']} {one['value']:.3f}" for one in guess["information"][:3]
        )
        rows.append(
            {
                "name": name,
                "n": f"{guess['n']:,}",
                "marks": marks,
                "reason": guess["reason"],
                "strongest": strongest,
            }
        )
    return {
        "title": proxy["title"],
        "rows": rows,
        "ticks": scale.ticks,
        "immutable": proxy["immutable"],
    }


def _later_panels(document: Line) -> list[dict[str, Any]]:
    scale = Scale(0.0, 1.0, "share", 0.25)
    panels = []
    places = {model["id"]: i for i, model in enumerate(document["models"])}
    for check in document["later"]:
        rows = []
        for model in check["models"]:
            sizes = {name: f"{model[name]:,}" for name in ("n", "draws")}
            mark = scale.mark(places[model["id"]], model, model["name"])
            rows.append({"name": model["name"], **sizes, "marks": [mark]})
        panels.append({**check, "rows": rows, "ticks": scale.ticks})
    return panels


@dataclass(frozen=True)
class Scale:
    """Numbers as places on a strip."""

    low: float
    high: float
    unit: str
    step: float

    @classmethod
    def of(cls, lines: Sequence[Line], unit: str) -> Scale:
        """From the lowest to the highest end of all intervals; from 0 unless they are all far from
        it.
        """
        ends = [
            line[end]
            for line in lines
            for end in ("low", "high", "value")
            if line[end] is not None
        ]
        if ends:
            low = min(ends)
            high = max(ends)
        else:
            low = 0.0
            high = 1.0
        if low < 0.6 * high or high == low:
            low = 0.0
        if not high > low:
            high = low + 1.0
        step = _nice((high - low) / (_TICKS - 1))
        return cls(
            step * math.floor(low / step), step * math.ceil(high / step - 1e-9), unit, step
        )

    @property
    def ticks(self) -> list[tuple[float, str]]:
        count = round((self.high - self.low) / self.step)
        values = [self.low + self.step * k for k in range(count + 1)]
        return [(self.place(value), _tick(value, self.unit)) for value in values]

    def place(self, value: float) -> float:
        """In per cent, with room at both ends for a mark."""
        return 2 + 96 * min(1.0, max(0.0, (value - self.low) / (self.high - self.low)))

    def mark(self, model: int, line: Line, name: str) -> Mark | None:
        if line["value"] is None:
            return None
        if line["low"] is None:
            low = line["value"]
        else:
            low = line["low"]
        if line["high"] is None:
            high = line["value"]
        else:
            high = line["high"]
        text = with_interval({**line, "low": low, "high": high}, self.unit)
        if line["few"]:
            few = " (few people)"
        else:
            few = ""
        at, left, right = (self.place(value) for value in (line["value"], low, high))
        return Mark(
            model, at, left, right, text=text, label=f"{name}: {text}{few}", few=line["few"]
        )


def _nice(step: float) -> float:
    """The next of 1, 2, 2.5, 5 times a power of ten, not smaller."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(
        size * power for size in (1.0, 2.0, 2.5, 5.0, 10.0) if size * power >= step * (1 - 1e-9)
    )


def _tick(value: float, unit: str) -> str:
    text = f"{100 * value if unit == 'share' else value:.6g}".replace("-", "−")
    return text + (" %" if unit == "share" else "")
