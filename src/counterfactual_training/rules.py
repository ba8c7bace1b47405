"""Every rule of advice, described once: its name, which of three things it is, what it means, where
it is stated.

A rule is one of three things:

- a *filter* leaves out values that a column may not take, before any are combined;
- a *limit* says how far the search goes, or what a change costs;
- a *check* judges a whole row that was changed, because it takes several columns to tell.

To add a rule, describe it here and write the function that keeps it: a filter of numbers in
``NUMBER_RULES`` of ``tables/columns/plan_judge.py``, one of categories in ``may_become`` of
``tables/columns/constrain.py``, a check in ``worsened`` of ``tables/columns/relate.py``. It is
stated in a field of :class:`Feature`, which checks it and says it in words (``_IN_WORDS``), of
``tables.advice.rules.Rules``, or of both; then it is an argument of ``explain``, too. Everything
else reads this list. The reference page, the help of ``ct``, drafts of ``ct schema``, the document
of the HTTP API and the page of ``ct serve`` take their words from here. Flags of ``ct explain``,
requests, what ``ct serve`` and an exported model say of a column, and rules led back through a
pipeline follow from the ``traits``. Importing this loads nothing else, so that help comes at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Sort = Literal["filter", "limit", "check"]
Place = Literal["fit", "question"]
# What several rules have in common: a number is stated per column; it is a length in the units of
# the column, and scales with them; it says how far a column may go.
Trait = Literal["number", "length", "reach"]

# By mutability, the words about a column in sentences.
WAYS = {
    "both": "may rise and fall",
    "none": "may not change",
    "increase": "may only rise",
    "decrease": "may only fall",
}


@dataclass(frozen=True)
class Rule:
    """A rule, as documents and programs describe it.

    Attributes:
        name: as users write it, and as the judge of plans calls it; relations share theirs.
        sort: which of the three things it is.
        meaning: a sentence, without its full stop.
        stated: where users may state it: for the model, in a schema or an argument of its
            constructor; for a question, in ``explain``. What is stated nowhere is learned from the
            training rows, or is implied.
        columns: which have it.
        written: what users write, in Python.
        kept_by: the function that keeps it, from the folder of the package on.
        traits: what it has in common with others.
    """

    name: str
    sort: Sort
    meaning: str
    stated: tuple[Place, ...]
    columns: str
    written: str
    kept_by: str
    traits: tuple[Trait, ...] = ()


_FIT: tuple[Place, ...] = ("fit",)
_QUESTION: tuple[Place, ...] = ("question",)
_BOTH: tuple[Place, ...] = ("fit", "question")
_LEARNED: tuple[Place, ...] = ()

#: Every rule, filters first.
RULES = (
    Rule(
        "mutability",
        "filter",
        "which way advice may move a column: both ways, only up (increase), only down "
        "(decrease), or not at all (none)",
        _FIT,
        "all; on ordered categories, up or down their order",
        '`"both"`, `"none"`, `"increase"`, `"decrease"`; or 0, +1, −1 as in scikit-learn\'s '
        "`monotonic_cst`, where 0 "
        'means no limit (`"both"`, not `"none"`)',
        "tables.columns.limits.against",
    ),
    Rule(
        "lock",
        "filter",
        f"columns that {WAYS['none']}",
        _QUESTION,
        "all",
        '`["age", "sex"]`',
        "tables.advice.rules.Rules.narrow",
    ),
    Rule(
        "vary",
        "filter",
        "the only columns that may change",
        _QUESTION,
        "all",
        '`["debt", "income"]`',
        "tables.advice.rules.Rules.narrow",
    ),
    Rule(
        "domain",
        "filter",
        "where advice may lead; what lies outside may stay there or move towards it",
        _BOTH,
        "numbers, ordered categories; in a question, all",
        "`(lower, upper)`, `None` where open; two ordered categories; in a question also a list "
        "of categories",
        "tables.columns.limits.outside",
        ("reach",),
    ),
    Rule(
        "allowed",
        "filter",
        "the only values that advice may change a cell to",
        _FIT,
        "numbers, categories",
        '`["clerk", "nurse"]`',
        "tables.columns.limits.unlisted",
    ),
    Rule(
        "forbidden",
        "filter",
        "changes from one category to another that never happen",
        _FIT,
        "categories",
        '`[("owned", "rented")]`; the second may be a list',
        "tables.columns.constrain.transition_matrix",
    ),
    Rule(
        "categories",
        "filter",
        "all categories of a column, in their order; a cell becomes one of them",
        _FIT,
        "categories",
        '`["school", "Bachelor", "Master"]`',
        "tables.columns.constrain.may_become",
    ),
    Rule(
        "step",
        "filter",
        "advice names multiples of this number",
        _BOTH,
        "numbers",
        "`100`",
        "tables.columns.limits.between_steps",
        ("number", "length"),
    ),
    Rule(
        "max_change",
        "filter",
        "the largest change, in the column's units, or in ranks of ordered categories; at least "
        "a step",
        _BOTH,
        "numbers, ordered categories",
        "`10`",
        "tables.columns.limits.too_far",
        ("number", "length", "reach"),
    ),
    Rule(
        "special",
        "filter",
        "numbers that are codes, such as -9 for 'no record': states of their own beside the "
        "number, never advised, and "
        "a cell that holds one keeps it",
        _FIT,
        "numbers",
        "`[-9, -8]`, see [special codes](../how-to/special-codes.md)",
        "tables.columns.feature.Feature.coded",
    ),
    Rule(
        "kind",
        "filter",
        "what a column holds: any number (numeric), whole numbers (integer), categories with an "
        "order (ordinal), two "
        "categories (binary), categories without an order (categorical), or numbers of a known "
        "range (pixel); advice "
        "names such values only",
        _FIT,
        "all",
        '`"numeric"`, `"integer"`, `"ordinal"`, `"binary"`, `"categorical"`, `"pixel"`',
        "tables.columns.limits.fractional",
    ),
    Rule(
        "range",
        "filter",
        "without a domain, advice stays among the numbers of the training rows; with num_std 0 "
        "between their 0.5th and "
        "99.5th percentile",
        _LEARNED,
        "numbers",
        "–",
        "tables.columns.plan_judge.PlanJudge.learned_ends",
    ),
    Rule(
        "digits",
        "filter",
        "advice names numbers as a person would write them and as the training rows do: the same "
        "few values, whole, or "
        "multiples of 1,000 if nearly all of theirs are",
        _LEARNED,
        "numbers",
        "–",
        "tables.columns.plan_judge.PlanJudge.learned_values",
    ),
    Rule(
        "seen",
        "filter",
        "unless it is among those allowed, a category that training never saw is not advised",
        _LEARNED,
        "categories",
        "–",
        "tables.columns.constrain.may_become",
    ),
    Rule(
        "missing",
        "filter",
        "no cell is left blank that advice changes",
        _LEARNED,
        "all",
        "–",
        "tables.columns.plan_judge.PlanJudge.__call__",
    ),
    Rule(
        "max_changes",
        "limit",
        "the largest number of columns to change; those that follow others do not count",
        _QUESTION,
        "all together",
        "`2`",
        "tables.advice.beam.Beam",
    ),
    Rule(
        "difficulty",
        "limit",
        "cost multiplier for changing a column; it counts in the cost of advice, and so in the "
        "choice of the columns to change",
        _BOTH,
        "all",
        "`2`",
        "tables.advice.moves.MoveBook.cost",
        ("number",),
    ),
    Rule(
        "relations",
        "check",
        "an order or a sum of numbers that advice keeps",
        _BOTH,
        "numbers",
        '`"satisfactory <= total"`, `"a + 2*b = 100"`: linear, with `<=`, `>=`, `<`, `>` or `=`',
        "tables.columns.relations.Linear.breach",
    ),
    Rule(
        "relations",
        "check",
        "a column that is computed from others, and follows them",
        _BOTH,
        "numbers",
        '`"ratio = debt / income"`: the column on the left follows',
        "tables.columns.relations.Follows.value",
    ),
    Rule(
        "relations",
        "check",
        "a category that needs a certain one in another column",
        _BOTH,
        "categories",
        '`"job = pilot requires licence = yes"`',
        "tables.columns.relations.Requires.broken",
    ),
)


def meaning(name: str) -> str:
    """What users state by a name, in words; relations are of several kinds."""
    return "; or ".join(rule.meaning for rule in RULES if rule.name == name)


def stated_in(place: Place) -> tuple[str, ...]:
    """Names of the rules that may be stated for a model or for a question."""
    return tuple(dict.fromkeys(rule.name for rule in RULES if place in rule.stated))


def with_trait(*traits: Trait) -> tuple[str, ...]:
    """Names of the rules that have all of these in common."""
    return tuple(rule.name for rule in RULES if set(traits) <= set(rule.traits))
