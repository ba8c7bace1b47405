"""From a question to an answer in the user's units: who is asked, what is tried, what is said.

Start with ``explains.py``, which asks, and ``answer.py``, which goes through the rows. ``rules.py``
reads the rules of the question.

``beam.py`` is the usual search, over sets of changes: ``moves.py`` has the values that advice may
name, ``oracle.py`` asks model and gate about points in a ``window.py`` of columns,
``candidates.py`` holds both sets and answers, ``fine_pairs.py`` finds pairs of all values,
``triples.py`` all sets of three,
``states.py`` chooses larger ones, ``swaps.py`` tries other columns, ``easing.py`` makes changes
smaller. ``promise.py`` chooses columns of wide tables. Where a generator is named, or columns are
pixels, ``find.py`` searches along gradients instead, and ``refine.py`` takes changes back.
``options.py`` chooses the answers to show.

A ``space.py`` holds what a question needs of a model: threshold, rounding, cost. ``why.py``,
``hurdles.py``, ``strangers.py``, ``words.py`` and ``explanation.py`` word the answer, for classes
(``outcome.py``) or numbers (``values.py``). ``lasting.py`` asks witnesses, who are in
``testimony.py``, whether it will hold.
"""

from counterfactual_training.tables.advice.answer import advice_constraints, explain_rows
from counterfactual_training.tables.advice.explains import Explains
from counterfactual_training.tables.advice.explanation import Explanation
from counterfactual_training.tables.advice.find import Finder
from counterfactual_training.tables.advice.options import Question

__all__ = [
    "Explains",
    "Explanation",
    "Finder",
    "Question",
    "advice_constraints",
    "explain_rows",
]
