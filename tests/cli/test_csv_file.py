"""Reading real CSV files: what they look like, and what is no table."""

import numpy as np
import pandas as pd
import pytest

from counterfactual_training.cli.csv_file import Reading, read_table
from counterfactual_training.errors import InputError


@pytest.fixture
def written(tmp_path):
    """Writes a file of these bytes or this text, and returns its path."""

    def write(content: str | bytes, encoding: str = "utf-8"):
        path = tmp_path / "people.csv"
        path.write_bytes(content if isinstance(content, bytes) else content.encode(encoding))
        return path

    return write


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_separators_are_found_out(written, separator):
    text = 'name,note,age\nAda,"x, y; z",36\nBo,,41\n'.replace(",", separator).replace(f"x{separator} y", "x, y")
    frame = read_table(written(text))
    assert list(frame.columns) == ["name", "note", "age"] and frame["age"].tolist() == [36, 41]
    assert frame["note"].tolist()[0] == "x, y; z" and pd.isna(frame["note"].iloc[1])


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1", "cp1252", "utf-16", "utf-16-le", "utf-16-be"])
def test_encodings_are_found_out(written, encoding):
    frame = read_table(written("größe;straße\n1;Nußallee\n2;Weg\n", encoding))
    assert list(frame.columns) == ["größe", "straße"] and frame["straße"].iloc[0] == "Nußallee"


def test_decimal_commas_and_points_that_group_thousands(written, capsys):
    frame = read_table(written("share;rent;rooms;city\n0,5;1.200;3;Ulm\n-1.234,25;950;4;Bonn\n;12.000;5;Ulm\n"))
    assert frame["share"].tolist()[:2] == [0.5, -1234.25] and pd.isna(frame["share"].iloc[2])
    assert frame["rent"].tolist() == [1200, 950, 12000]
    assert frame["rooms"].tolist() == [3, 4, 5]
    assert "decimal sign" in capsys.readouterr().err


@pytest.mark.parametrize("encoding", ["utf-8", "cp1252", "utf-16"])
@pytest.mark.parametrize(("separator", "decimal"), [(",", "."), (";", ","), (";", "."), ("\t", ","), ("|", ".")])
def test_what_pandas_writes_is_read_back(tmp_path, separator, decimal, encoding):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "größe": rng.integers(-50, 5000, 40),
            "tiny": rng.normal(0, 1e-4, 40).round(5),
            "large": rng.normal(0, 1e5, 40).round(3),
            "words": rng.choice(["a;b", "x, y", 'say "hi"', "A|B", "it's"], 40),
        }
    ).mask(rng.random((40, 4)) < 0.1)
    frame.to_csv(tmp_path / "f.csv", sep=separator, decimal=decimal, encoding=encoding, index=False)
    found = read_table(tmp_path / "f.csv")
    pd.testing.assert_frame_equal(found, frame, check_dtype=False)


def test_commas_that_group_thousands(written):
    frame = read_table(written('income,city\n"1,200",Ulm\n"2,300,000.5",Bonn\n'))
    assert frame["income"].tolist() == [1200.0, 2300000.5]


def test_a_list_of_codes_with_commas_stays_text(written):
    assert read_table(written('codes,y\n"a,b",1\n"1,2",0\n'))["codes"].tolist() == ["a,b", "1,2"]


def test_blanks_and_words_for_them(written, capsys):
    text = "age,city\n 31 , Ulm \n  ,Bonn\n?,Bonn\n40,unknown\n,\n\n41,Ulm\n42,Ulm\n43,Ulm\n44,Ulm\n45,Ulm\n46,Ulm\n"
    frame = read_table(written(text), Reading(na=("?", "unknown")))
    assert frame["age"].isna().tolist()[:4] == [False, True, True, False] and frame["age"].iloc[0] == 31
    assert frame["city"].iloc[0] == "Ulm" and frame["city"].isna().tolist()[:4] == [False, False, False, True]
    assert "1 blank row(s) left out" in capsys.readouterr().err
    read_table(written(text.replace("unknown", "Ulm")))
    assert "'age' is read as text because of '?'; if that means 'not known', add --na='?'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    [",age,city\n0,31,Ulm\n1,40,Bonn\n", "age,city\nr1,31,Ulm\nr2,40,Bonn\n", "age,city,\n31,Ulm,\n40,Bonn,\n"],
    ids=["pandas", "R", "trailing separator"],
)
def test_a_column_without_a_name_is_left_out(written, capsys, text):
    assert list(read_table(written(text)).columns) == ["age", "city"]
    assert "left out" in capsys.readouterr().err


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("lead", ["", "\n  \n", "sep=,\n"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_line_break_in_a_name_loses_no_row(written, lead, end, encoding):
    rows = "".join(f"{i},x,{i + 0.5},no\n" for i in range(5))
    text = f'{lead}"age","b, c","k\nline","t"\n{rows}'.replace("\n", end)
    frame = read_table(written(text, encoding))
    assert list(frame.columns) == ["age", "b, c", f"k{end}line", "t"]
    assert frame["age"].tolist() == [0, 1, 2, 3, 4] and frame[f"k{end}line"].iloc[0] == 0.5


def test_excels_first_line_names_the_separator(written):
    assert read_table(written("sep=;\na;b\n1,5;2\n")).to_dict("list") == {"a": [1.5], "b": [2]}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is empty"),
        ("\n  \n", "is empty"),
        ("a,b\n", "no rows"),
        ("5.1,3.5,setosa\n4.9,3.0,setosa\n6.2,3.4,virginica\n", "looks like a row"),
        ("male,yes\nfemale,no\nmale,no\nfemale,yes\n", "looks like a row"),
        ("age,city,age\n1,Ulm,2\n", "two columns called 'age'"),
        ("a,b\n1,2\n1,2,3\n", "line 3: 3 cells, where the first line names 2 columns"),
        ("a,b,c\n1,2,3\n\n1,2\n", "line 4: 2 cells"),
        ("a,,c\n1,2,3\n", "Column 2 of"),
        ("a,b\n1,inf\n2,3\n", "'b' holds infinity in 1 row(s)"),
        (b"PK\x03\x04rest of a workbook", "Excel"),
        (b"\x1f\x8brest", "compressed"),
        (b"a,b\n1,2\n1,2\n1,2\n1,2\n1,2\n1,2\x00\n", "not text"),
        (b"\xff\xfea", "UTF-16"),
    ],
)
def test_what_is_no_table_is_refused_in_one_line(written, content, said):
    with pytest.raises(InputError) as error:
        read_table(written(content))
    assert said in str(error.value) and "\n" not in str(error.value)


def test_a_huge_file_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "huge.csv"
    with path.open("wb") as file:
        file.truncate(5 * 2**30)  # a hole: takes no room on the disk
    with pytest.raises(InputError, match=r"5\.0 GB.*head -n"):
        read_table(path)


def test_a_separator_is_one_character(written):
    assert read_table(written("a:b\n1:2\n"), Reading(":")).to_dict("list") == {"a": [1], "b": [2]}
    assert read_table(written("a\tb\n1\t2\n"), Reading("tab")).to_dict("list") == {"a": [1], "b": [2]}
    with pytest.raises(InputError, match="--separator takes one character"):
        read_table(written("a,b\n1,2\n"), Reading("::"))
