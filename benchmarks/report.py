"""Records of benchmark runs, one JSON file per part, and the page made of them."""

from __future__ import annotations

import datetime
import json
import os
import platform
import textwrap
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

import counterfactual_training as ct

Value = str | int | float
HEAD = """# Benchmarks

Written by `python -m benchmarks` from the records in the folder of this page's name, one per
part, each measured in one run of its own command: libraries take turns, and the quickest turn of
each counts. Ratios are what to read; seconds are those of the machine named."""


@dataclass(frozen=True)
class Table:
    """What one benchmark found; numbers stay numbers until the page is written."""

    columns: tuple[str, ...]
    rows: list[tuple[Value, ...]]
    title: str = ""
    note: str = ""


@dataclass(frozen=True)
class Record:
    """One run of one part."""

    part: str
    title: str
    command: str
    tables: list[Table]
    skipped: list[str] = field(default_factory=list)
    seconds: float = 0.0
    date: str = ""
    machine: str = ""
    versions: dict[str, str] = field(default_factory=dict)

    def save(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.part}.json"
        path.write_text(
            json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
        )
        return path

    @classmethod
    def load(cls, path: Path) -> Record:
        values = json.loads(path.read_text(encoding="utf-8"))
        values["tables"] = [
            Table(tuple(t["columns"]), [tuple(row) for row in t["rows"]], t["title"], t["note"])
            for t in values["tables"]
        ]
        return cls(**values)

    def markdown(self) -> str:
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        lines = [
            f"## {self.title}",
            "",
            f"`{self.command}`, {self.date}, {self.machine}, {versions}.",
        ]
        for table in self.tables:
            if table.title:
                lines += ["", f"### {table.title}"]
            if table.note:
                lines += ["", textwrap.fill(" ".join(table.note.split()), 120)]
            lines += ["", _row(table.columns), "|" + "---|" * len(table.columns)]
            lines += [_row(tuple(_written(value) for value in row)) for row in table.rows]
        if self.skipped:
            lines += ["", *[f"Skipped: {reason}" for reason in self.skipped]]
        return "\n".join(lines)


def ratios(records: list[dict[str, Any]]) -> Table:
    """Records ``{"what": …, "ratio": …, detail: number, …}`` as a table."""
    rows: list[tuple[Value, ...]] = []
    for record in records:
        details = ", ".join(
            f"{k} {v:.3g}" for k, v in record.items() if k not in ("what", "ratio")
        )
        rows.append((record["what"], f"{record['ratio']:.2f}", details))
    return Table(("what", "ratio", "details"), rows)


def circumstances() -> dict[str, Any]:
    """Date, machine and versions, as every record carries them."""
    versions = {"counterfactual-training": ct.__version__, "torch": str(torch.__version__)}
    versions["Python"] = platform.python_version()
    machine = f"{_processor()}, {os.cpu_count()} cores"
    return {"date": datetime.date.today().isoformat(), "machine": machine, "versions": versions}


def write_page(records: Path, out: Path, order: list[str]) -> None:
    """The page of all records there are, in the given order."""
    paths = [records / f"{part}.json" for part in order]
    parts = [Record.load(path).markdown() for path in paths if path.exists()]
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("\n\n".join([HEAD, *parts]) + "\n", encoding="utf-8")


def _row(values: tuple[str, ...]) -> str:
    return "| " + " | ".join(values) + " |"


def _written(value: Value) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{round(value):,}"
    return f"{value:.3g}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    if names:
        return f"{platform.machine()} ({names[0]})"
    return platform.machine()
