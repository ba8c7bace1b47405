"""The tables of docs/explanation/acceptance.md are those of the file that it names."""

import pandas as pd
import pytest

from run_pages import ROOT

PAGE = ROOT / "docs" / "explanation" / "acceptance.md"
REAL = ["Adult", "CH", "Cred", "GMSC", "MNIST"]


def rows_of(by: str) -> list[str]:
    """A line per method, searched by ecco: median of all data sets, and the real ones; bold where
    the interval over seeds leaves out 1.
    """
    table = pd.read_csv(ROOT / "results" / "frontiers" / "arena_acceptance.csv")
    table = table[(table["by"] == by) & (table["generator"] == "ecco")]
    lines = []
    for method, part in table.groupby("method", sort=False):
        by_data = part.set_index("data")
        cells = [cell(by_data.loc[name]) if name in by_data.index else "–" for name in REAL]
        lines.append(f"| {method} | {part['cost'].median():.2f} | {' | '.join(cells)} |")
    return lines


def cell(row: pd.Series) -> str:
    if pd.isna(row["cost"]):
        return "–"
    if row["high"] < 1 or row["low"] > 1:
        return f"**{row['cost']:.2f}**"
    return f"{row['cost']:.2f}"


@pytest.mark.parametrize("by", ["refits", "other families"])
def test_tables_say_what_was_measured(by):
    text = PAGE.read_text(encoding="utf-8")
    section = text.split(f"accepted as often by {by}")[1].split("\n\n## ")[0]
    lines = rows_of(by)
    assert len(lines) == 15
    assert [line for line in lines if line not in section] == []
