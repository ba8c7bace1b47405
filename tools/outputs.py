"""What a page shows beside what its code prints: words must agree, numbers within what machines
differ by.
"""

from __future__ import annotations

import re

_NUMBER = re.compile(r"[-−+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")
_SHARE = 0.1  # of the larger number; or one unit of the last digit that the page shows


def agree(shown: str, printed: str, numbers: bool = True) -> bool:
    """Whether an output is still what the page shows. Spaces and rules of tables do not count.

    Args:
        shown: on the page.
        printed: by the code, just now.
        numbers: compare them too; otherwise words alone.
    """
    if masked(shown) != masked(printed):
        return False
    pairs = zip(_NUMBER.findall(shown), _NUMBER.findall(printed), strict=True)
    return not numbers or all(_near(old, new) for old, new in pairs)


def masked(text: str) -> str:
    """The words, with a sign for each number."""
    return re.sub(r"[\s=─-]+", " ", _NUMBER.sub("#", text)).strip()


def _near(shown: str, printed: str) -> bool:
    old, new = (float(text.replace(",", "").replace("−", "-")) for text in (shown, printed))
    return abs(old - new) <= max(_SHARE * max(abs(old), abs(new)), 1.01 * _unit(shown))


def _unit(text: str) -> float:
    """What one step of the last digit is worth: 0.01 for 3.14, 1 for 3, 1e-6 for 2.1e-05."""
    mantissa, _, exponent = text.partition("e")
    return 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))
