"""Blocks of a CSV file hold what reading it whole gives, wherever the file is cut."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from counterfactual_training.cli.csv_blocks import CsvBlocks
from counterfactual_training.cli.csv_file import Reading, read_table
from counterfactual_training.errors import InputError

FILES = {
    "whole numbers, then a fraction": "a,b\n1,x\n2,y\n3.5,z\n4,x\n",
    "whole numbers, then a blank": "a,b\n1,x\n2,y\n,z\n4,x\n",
    "numbers, then a text": "a,b\n1,7\n2,8\nthree,9\n4,10\n",
    "true, then text": "a,b\nTrue,1\nFalse,2\nmaybe,3\n1,4\n",
    "true and false with a blank": "a,b\nTrue,1\nFalse,2\n,3\nTrue,4\n",
    "blanks first": "a,b\n,1\n,2\nx,3\ny,4\n",
    "a column of blanks": "a,b\n,1\n,2\n,3\n",
    "decimal commas late": "a;b\n1;2\n3;4\n5,5;6\n7;8\n",
    "pointed thousands": "a;b\n1,5;1.200\n2,5;950\n3,5;12.000\n4,5;1.000\n",
    "points that are decimals": "a;b\n1,5;1.200\n2,5;950\n3,5;12.25\n4,5;1.000\n",
    "commas group thousands": 'a,b\n"1,200",x\n"900",y\n"12,000.5",z\n',
    "a blank between spaces": "a,b\n1, NA \n2,3\n3,4\n4, 5\n",
    "texts with spaces": 'a,b\n" x ",1\n"x",2\n" NA",3\n',
    "codes": "a,code\n1,007\n2,NA\n3,12\n4,\n",
    "blank rows": "a,b\n1,2\n,\n\n3,4\n,\n,\n5,6\n",
    "names of rows": ",a,b\nr1,1,2\nr2,3,4\n",
    "a title": "People of 2026\na;b\n1;2\n3;4\n",
    "a line break in a cell": 'a,b\n1,"x\ny"\n2,z\n',
    "names alone": "a,b\n",
}


@pytest.mark.parametrize("rows", [1, 2, 100])
@pytest.mark.parametrize("case", FILES)
def test_blocks_together_are_the_table(case, rows, tmp_path):
    path = tmp_path / "file.csv"
    path.write_text(FILES[case])
    reading = Reading(text=("code",))
    whole = read_table(path, reading, flags=False, empty=True)
    blocks = list(CsvBlocks(path, reading, rows))
    assert all(0 < len(block) <= rows for block in blocks)
    joined = pd.concat(blocks) if blocks else whole[:0]
    assert joined.index.tolist() == list(range(len(whole)))
    assert list(joined.columns) == list(whole.columns)
    for name in whole.columns:
        one, other = whole[name], joined[name]
        assert one.isna().tolist() == other.isna().tolist()
        assert one.dropna().tolist() == other.dropna().tolist(), name
        assert all(isinstance(cell, str) for cell in other.dropna()) == all(
            isinstance(c, str) for c in one.dropna()
        )


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "cp1252"])
def test_encodings(encoding, tmp_path):
    path = tmp_path / "file.csv"
    path.write_text("Größe\tStadt\n1\tKöln\n2\tBrühl\n", encoding=encoding)
    (block,) = CsvBlocks(path, Reading(), 10)
    assert block.to_dict("list") == {"Größe": [1, 2], "Stadt": ["Köln", "Brühl"]}


def test_a_row_is_found_by_its_line_past_titles_blanks_and_line_breaks(tmp_path):
    path = tmp_path / "file.csv"
    path.write_text('A title\na;b\n1;"x\ny"\n;\n\n2;z\n3;w\n')
    blocks = CsvBlocks(path, Reading(), 2)
    # A record ends in its last line.
    assert [blocks.line(row) for row in range(3)] == [4, 7, 8]


def test_what_cannot_be_read_is_named_by_its_line(tmp_path):
    path = tmp_path / "file.csv"
    path.write_text("a,b\n1,2\n2,inf\n")
    with pytest.raises(InputError, match="line 3: 'b' is infinity"):
        list(CsvBlocks(path, Reading(), 1))
    path.write_text("a,b\n1,2\n2,3,4\n")
    with pytest.raises(InputError, match="line 3: 3 cells"):
        CsvBlocks(path, Reading(), 1)
    path.write_text("a,b\n1,2\n2,n.a.\n3,4\n")
    blocks = CsvBlocks(path, Reading(), 1)
    blocks.need_numbers(["a"])
    with pytest.raises(
        InputError, match=r"line 3: 'b' is 'n\.a\.', and the model takes numbers"
    ):
        blocks.need_numbers(["a", "b"])


def test_files_larger_than_a_table_may_be_are_read(tmp_path, monkeypatch):
    from counterfactual_training.cli import csv_format

    monkeypatch.setattr(csv_format, "_LARGEST", 10)
    path: Path = tmp_path / "file.csv"
    pd.DataFrame({"a": np.arange(50)}).assign(b="x").to_csv(path, index=False)
    with pytest.raises(InputError, match="GB"):
        read_table(path)
    assert sum(len(block) for block in CsvBlocks(path, Reading(), 7)) == 50
