"""Reading real CSV files: what they look like, and what is no table."""

import numpy as np
import pandas as pd
import pytest

from counterfactual_training.cli.csv_file import Reading, read_table
from counterfactual_training.cli.csv_format import csv_format
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
    text = 'name,note,age\nAda,"x, y; z",36\nBo,,41\n'.replace(",", separator).replace(
        f"x{separator} y", "x, y"
    )
    frame = read_table(written(text))
    assert list(frame.columns) == ["name", "note", "age"] and frame["age"].tolist() == [36, 41]
    assert frame["note"].tolist()[0] == "x, y; z" and pd.isna(frame["note"].iloc[1])


@pytest.mark.parametrize(
    "encoding", ["utf-8", "utf-8-sig", "latin-1", "cp1252", "utf-16", "utf-16-le", "utf-16-be"]
)
def test_encodings_are_found_out(written, encoding):
    frame = read_table(written("größe;straße\n1;Nußallee\n2;Weg\n", encoding))
    assert list(frame.columns) == ["größe", "straße"] and frame["straße"].iloc[0] == "Nußallee"


def test_decimal_commas_and_points_that_group_thousands(written, capsys):
    frame = read_table(
        written("share;rent;rooms;city\n0,5;1.200;3;Ulm\n-1.234,25;950;4;Bonn\n;12.000;5;Ulm\n")
    )
    assert frame["share"].tolist()[:2] == [0.5, -1234.25] and pd.isna(frame["share"].iloc[2])
    assert frame["rent"].tolist() == [1200, 950, 12000]
    assert frame["rooms"].tolist() == [3, 4, 5]
    assert "decimal sign" in capsys.readouterr().err


@pytest.mark.parametrize("encoding", ["utf-8", "cp1252", "utf-16"])
@pytest.mark.parametrize(
    ("separator", "decimal"), [(",", "."), (";", ","), (";", "."), ("\t", ","), ("|", ".")]
)
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
    frame.to_csv(
        tmp_path / "f.csv", sep=separator, decimal=decimal, encoding=encoding, index=False
    )
    found = read_table(tmp_path / "f.csv")
    pd.testing.assert_frame_equal(found, frame, check_dtype=False)


def test_commas_that_group_thousands(written):
    frame = read_table(written('income,city\n"1,200",Ulm\n"2,300,000.5",Bonn\n'))
    assert frame["income"].tolist() == [1200.0, 2300000.5]


def test_a_comma_before_three_digits_is_a_decimal_sign_where_semicolons_separate(written):
    assert read_table(written("size;city\n1,234;Ulm\n0,500;Bonn\n"))["size"].tolist() == [
        1.234,
        0.5,
    ]
    assert read_table(written('size,city\n"1,234",Ulm\n"2,500",Bonn\n'))["size"].tolist() == [
        1234,
        2500,
    ]


def test_a_list_of_codes_with_commas_stays_text(written):
    assert read_table(written('codes,y\n"a,b",1\n"1,2",0\n'))["codes"].tolist() == [
        "a,b",
        "1,2",
    ]


def test_blanks_and_words_for_them(written, capsys):
    text = (
        "age,city\n 31 , Ulm \n  "
        ",Bonn\n?,Bonn\n40,unknown\n,\n\n41,Ulm\n42,Ulm\n43,Ulm\n44,Ulm\n45,Ulm\n46,Ulm\n"
    )
    frame = read_table(written(text), Reading(na=("?", "unknown")))
    assert (
        frame["age"].isna().tolist()[:4] == [False, True, True, False]
        and frame["age"].iloc[0] == 31
    )
    assert frame["city"].iloc[0] == "Ulm" and frame["city"].isna().tolist()[:4] == [
        False,
        False,
        False,
        True,
    ]
    assert "1 blank row(s) left out" in capsys.readouterr().err
    read_table(written(text.replace("unknown", "Ulm")))
    assert (
        "'age' is read as text because of '?'; if that means 'not known', add --na='?'"
        in capsys.readouterr().err
    )


def test_a_word_for_nothing_may_have_blanks_around_it(written):
    frame = read_table(written("age,city\n31, - \n40,Ulm\n"), Reading(na=("-",)))
    assert frame["city"].isna().tolist() == [True, False]


def test_names_of_rows_do_not_hide_the_separator(written):
    """By commas, too, all lines would be alike: into fewer cells."""
    frame = read_table(written("size, cm;city;age\nr1;1,5;Ulm;31\nr2;2,5;Bonn;40\n"))
    assert list(frame.columns) == ["size, cm", "city", "age"] and frame[
        "size, cm"
    ].tolist() == [1.5, 2.5]


def test_up_to_half_of_the_names_may_look_like_cells(written):
    assert list(read_table(written("1990,city\n31,Ulm\n40,Bonn\n")).columns) == ["1990", "city"]


@pytest.mark.parametrize(
    "text",
    [
        ",age,city\n0,31,Ulm\n1,40,Bonn\n",
        "age,city\nr1,31,Ulm\nr2,40,Bonn\n",
        "age,city,\n31,Ulm,\n40,Bonn,\n",
    ],
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
        ("5.1,3.5,kind\n4.9,3.0,setosa\n6.2,3.4,virginica\n", "looks like a row"),
        ("male,yes\nfemale,no\nmale,no\nfemale,yes\n", "looks like a row"),
        ("age,12,7\n1,Ulm,2\n2,Bonn,3\n", "looks like a row"),
        ("# hello\n1,2,3\n4,5,6\n", "Line 2 of"),
        ("Report\na,b,c\n1,2,3\n4,5\n", "line 4: 2 cells, where line 2 names 3 columns"),
        ("age\n31\n40, 5\n", "line 3: 2 cells, where the first line names 1 column."),
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
    assert read_table(written("a:b\n1:2\n"), Reading(":")).to_dict("list") == {
        "a": [1],
        "b": [2],
    }
    assert read_table(written("a\tb\n1\t2\n"), Reading("tab")).to_dict("list") == {
        "a": [1],
        "b": [2],
    }
    with pytest.raises(InputError, match="--separator takes one character"):
        read_table(written("a,b\n1,2\n"), Reading("::"))


# ---- lines above the names -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("# hello\na,b\n1,2\n3,4\n", "'# hello'"),
        ("# hello\na;b\n1;2\n3;4\n", "'# hello'"),
        ("Loans of May\na,b\n1,2\n3,4\n", "'Loans of May'"),
        ("Loans, May\n\na,b,c\n1,2,x\n3,4,y\n", "'Loans May'"),
        ("# Loans, May\na,b\n1,2\n3,4\n", "'# Loans May'"),
        ("sep=;\nLoans of May\na;b\n1;2\n3;4\n", "'Loans of May'"),
        ("Loans of May\nof the bank\na\tb\n1\t2\n3\t4\n", "2 lines"),
    ],
)
def test_a_title_above_the_names_is_left_out_and_told(written, capsys, text, title):
    frame = read_table(written(text))
    assert frame[["a", "b"]].to_dict("list") == {"a": [1, 3], "b": [2, 4]}
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert title in message
    assert "above the names of the columns" in message


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("# of rooms\n3\n4\n3\n", ["# of rooms"]),
        ("colour\nred\nblue\n", ["colour"]),
        ("#,age,city\n1,31,Ulm\n2,40,Bonn\n", ["#", "age", "city"]),
        ("# age,debt\n31,1\n40,2\n", ["# age", "debt"]),
        ("x\nr1,5\nr2,6\n", ["x"]),
        ("age,city\nr1,NA,Ulm\nr2,40,Bonn\nr3,50,Bonn\n", ["age", "city"]),
    ],
    ids=[
        "a count",
        "words",
        "a number sign",
        "numpy",
        "names of rows",
        "a blank in the first row",
    ],
)
def test_names_that_look_like_a_title_stay_names(written, capsys, text, columns):
    frame = read_table(written(text))
    assert list(frame.columns) == columns
    assert len(frame) == text.count("\n") - 1
    assert "above the names" not in capsys.readouterr().err


def test_a_comment_above_one_column_or_above_names_alone_is_left_out(written, capsys):
    assert read_table(written("# hello\nage\n31\n40\n"))["age"].tolist() == [31, 40]
    assert list(read_table(written("# hello\nage,debt\n"), empty=True).columns) == [
        "age",
        "debt",
    ]
    assert list(read_table(written("# hello\na,b,c,d,e\n"), empty=True).columns) == [*"abcde"]
    assert (
        capsys.readouterr().err.count("'# hello' above the names of the columns is left out")
        == 3
    )


def test_a_comment_that_may_be_names_is_told(written, capsys):
    read_table(written("# my data, of May\nname,city\nbob,Ulm\nann,Bonn\n"))
    assert (
        "was taken for names of columns; delete it if it is a title" in capsys.readouterr().err
    )


# ---- names that occur twice ----------------------------------------------------------------------


def test_columns_of_one_name_are_renamed_as_pandas_does(written, capsys):
    path = written("a,b,a,a.1,a\n1,2,3,4,5\n6,7,8,9,10\n")
    frame = read_table(path)
    assert (
        list(frame.columns)
        == list(pd.read_csv(path).columns)
        == ["a", "b", "a.2", "a.1", "a.3"]
    )
    assert frame.iloc[0].tolist() == [1, 2, 3, 4, 5]
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert (
        "2 column(s) had the name of another and got a new one: 'a' is 'a.2', 'a' is 'a.3'"
        in message
    )


def test_names_are_compared_a_few_times_each(tmp_path):
    """Comparing every name with every other would take 5,000 million comparisons: minutes."""
    path = tmp_path / "wide.csv"
    names = [f"n{j}" for j in range(100_000)]
    cells = ",".join(["1"] * len(names))
    path.write_text(f"{','.join(names)}\n{cells}\n")
    assert csv_format(path, ",").names == tuple(names)


# ---- what a table of numbers cannot keep ---------------------------------------------------------

CODES = "zip,country,rent\n00123,NA,NA\n04109,DE,0\n10115,FR,007.5\n,DE,1\n"


def test_zeros_that_are_lost_and_categories_taken_for_blanks_are_told(written, capsys):
    frame = read_table(written(CODES))
    assert frame["zip"].tolist()[:3] == [123, 4109, 10115]
    assert frame["country"].isna().tolist() == [True, False, False, False]
    zeros, words = capsys.readouterr().err.splitlines()
    assert "zeros before a number are lost in 'zip' (00123 is 123); --text zip keeps" in zeros
    assert "NA in 'country' is taken for a blank; --text country keeps it as a text" in words


def test_columns_of_text_stay_as_written(written, capsys):
    frame = read_table(written(CODES), Reading(text=("zip", "country")))
    assert frame["zip"].tolist()[:3] == ["00123", "04109", "10115"]
    assert frame["zip"].isna().tolist() == [False, False, False, True]
    assert frame["country"].tolist() == ["NA", "DE", "FR", "DE"]
    assert frame["rent"].isna().tolist() == [True, False, False, False]
    assert capsys.readouterr().err == ""


def test_a_word_that_was_said_to_be_a_blank_is_one_and_not_told(written, capsys):
    frame = read_table(written(CODES), Reading(na=("NA",), text=("zip", "country")))
    assert frame["country"].isna().tolist() == [True, False, False, False]
    read_table(written(CODES.replace("0", "1")), Reading(na=("NA",)))
    assert capsys.readouterr().err == ""


def test_files_for_a_saved_model_are_read_without_hints_on_flags_of_training(written, capsys):
    rows = "".join(f"{j},1\n" for j in range(20))
    read_table(written(f"zip,y\n007,NA\n?,1\n{rows}"), flags=False)
    message = capsys.readouterr().err
    assert "leave such cells blank" in message
    assert "--" not in message


# ---- numbers -------------------------------------------------------------------------------------


def test_a_comma_between_digits_is_decimal_where_semicolons_separate(written):
    assert read_table(written("a;b\n1,234;x\n2,500;y\n"))["a"].tolist() == [1.234, 2.5]
    assert read_table(written('a,b\n"1,234",x\n"2,500",y\n'))["a"].tolist() == [1234, 2500]


def test_words_for_blanks_may_stand_between_spaces(written):
    frame = read_table(
        written("age,city\n31, - \n - ,Ulm\n40, NA \n NA ,Bonn\n"), Reading(na=("-",))
    )
    assert frame["city"].isna().tolist() == [True, False, True, False]
    assert frame["age"].tolist()[::2] == [31, 40]
    assert frame["age"].isna().tolist() == [False, True, False, True]


def test_points_group_thousands_beside_words_for_blanks(written):
    frame = read_table(written("share;rent\n0,5;1.200\n0,7;?\n0,1;950\n"), Reading(na=("?",)))
    assert frame["rent"].tolist()[::2] == [1200, 950]


def test_rows_with_names_are_parted_as_the_header_is(written):
    """Commas part every line in two; semicolons part it in more, but the first in one less."""
    frame = read_table(written("age;size, cm;city\nr1;31;1, 2;Ulm\nr2;40;3, 4;Bonn\n"))
    assert list(frame.columns) == ["age", "size, cm", "city"]
    assert frame["age"].tolist() == [31, 40]
