"""An extension of Griffe, which mkdocstrings uses: Sphinx roles in docstrings become links of the
site.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import griffe

sys.path.insert(0, str(Path(__file__).parent.parent))  # the builder runs from elsewhere

from tools.names import linked


class Roles(griffe.Extension):
    """Rewrites every docstring that is read."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = linked(obj.docstring.value)
