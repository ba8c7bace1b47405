"""Values of requests, read strictly."""

import pytest

from counterfactual_serve.reading import Many, Number, OneOf, RefusedError


def test_true_is_not_one():
    assert OneOf([0, 1]).read(1, "class") == 1
    assert OneOf([False, True]).read(True, "class") is True
    for value, choices in ((True, [0, 1]), (1, [False, True])):
        with pytest.raises(RefusedError, match="class"):
            OneOf(choices).read(value, "class")


@pytest.mark.parametrize("value", [[], [1, 2, 3, 4]])
def test_lists_have_two_ends(value):
    assert Many(Number(), 3, 1).read([1, 2, 3], "rows") == [1, 2, 3]
    with pytest.raises(RefusedError, match=f"rows must have 1 to 3 entries, got {len(value)}"):
        Many(Number(), 3, 1).read(value, "rows")
