"""From a question to an answer in the user's units: who is asked, what is tried, what is said."""

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
