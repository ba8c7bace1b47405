"""Columns of plain text."""

from counterfactual_training.text import align, one_line


def test_a_cell_stays_on_its_line():
    assert align([["a\nb", "c"], ["d", "e\tf"]]) == ["a\\nb  c", "d     e\\tf"]
    assert one_line("a\r\n\x85\u2028b") == r"a\r\n\x85\u2028b"


def test_other_text_is_left_alone():
    assert one_line("Größe in m², 年齢\xa0→ \\n") == "Größe in m², 年齢\xa0→ \\n"
