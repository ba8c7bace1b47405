"""Counterfactuals by a search along gradients, for pixels and for generators that are named.

Such a search ends in model space. What counts is the row in the user's units, after rounding to
integers, decimals and categories, so every claim is made about the encoding of the row as printed.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor, nn

from counterfactual_training.constraints import Constraints
from counterfactual_training.gates import Gate, Gated, towards_real
from counterfactual_training.generators import Generator, SearchResult, Status, generic, search
from counterfactual_training.tables.advice.black_box import Background
from counterfactual_training.tables.advice.moves import Notation
from counterfactual_training.tables.advice.points import (
    DIGITS,
    Counterfactuals,
    Factuals,
    floor_of,
)
from counterfactual_training.tables.advice.promise import promising
from counterfactual_training.tables.advice.refine import Shortener, swap_categories
from counterfactual_training.tables.advice.space import AdviceSpace
from counterfactual_training.tables.advice.strangers import Strangers
from counterfactual_training.tables.columns.encode import Encoder

# A row that rounding took below τ is searched again, aiming at this share of the way from τ to 1.
_AIM_HIGHER = 0.4
# Few rows need the last attempt, which may take this many times the steps.
_PATIENCE = 4
# Rows of many columns are first searched in the few that promise most: people cannot change
# hundreds.
_SUPPORTS = (8, 32, 128, 512)
# Points on either side of a number that single columns are tried at.
_POINTS = 16
# Shares of a change that are tried if rounding all of it breaks a relation between columns.
_SHARES = (0.95, 0.8, 0.5, 0.2, 0.0)

# What every question asks about model and columns; worked out once.
_OF_ALL_QUESTIONS = (
    "owner",
    "difficulty",
    "related",
    "following",
    "movable",
    "pixels",
    "judge",
    "strangers",
    "_notations",
    "_ends",
)


@dataclass(frozen=True, eq=False)
class Finder(AdviceSpace):
    """Model, encoder and rules that belong together; and, if there is one, the gate that limits
    where advice ends.

    A model without gradients needs a ``background`` of real rows. ``decision`` is explained in
    :class:`Bar`. A target that holds in a narrow band of a column needs more ``num_points`` to be
    found there. After ``until``, by :func:`time.monotonic`, only what every answer needs is still
    done: no other ways are tried that might be cheaper.
    """

    model: nn.Module
    encoder: Encoder
    constraints: Constraints
    gate: Gate | None = None
    decision: bool = False
    background: Background | None = None
    num_points: int = _POINTS
    until: float = math.inf

    def asking(self, decision: bool, until: float) -> Finder:
        """The finder for one question, with all that it knows of model and columns already."""
        for name in _OF_ALL_QUESTIONS:
            getattr(self, name)
        # Not ``replace``, which would forget these; none depends on what is set here.
        finder = copy.copy(self)
        object.__setattr__(finder, "decision", decision)
        object.__setattr__(finder, "until", until)
        return finder

    @property
    def late(self) -> bool:
        """Whether time is up."""
        return time.monotonic() > self.until

    @cached_property
    def searched(self) -> nn.Module:
        """The classifier whose probability has to reach τ."""
        if self.gate is None:
            return self.model
        return Gated(self.model, self.gate)

    @cached_property
    def _free(self) -> Constraints:
        """The rules as the search sees them: categories and box; integers may still vary.

        A search that fixed rounded columns on arrival would have nothing left to move when rounding
        took it back below τ. :meth:`_settled` rounds afterwards, away from the factual. Outliers
        are first pulled into the domain, where the model knows something; what the target does not
        need is taken back at the end.
        """
        # A stated bound would refuse factuals outside it; an inferred one pulls them in.
        domain = replace(self.constraints.domain, inferred=True)
        return replace(self.constraints, lattices=(), domain=domain, keep_outside=False)

    def notation(self, feature: int) -> Notation:
        """How the numbers of a feature, by position, are written."""
        if feature not in self._notations:
            column = self.encoder.columns_[feature]
            self._notations[feature] = Notation.of(column, *self.ends(feature), self.num_points)
        return self._notations[feature]

    def ends(self, feature: int) -> tuple[float, float]:
        """Where advice on a feature, by position, ends, in the user's units."""
        column = self.encoder.columns_[feature]
        start = self.encoder.slices_[column.feature.name].start
        low, high = (float(end[start] * column.scale + column.center) for end in self._ends)
        return low, high

    @cached_property
    def strangers(self) -> Strangers:
        """Who has a category that no real row of the wanted class has."""
        return Strangers.of(self)

    @cached_property
    def _notations(self) -> dict[int, Notation]:
        return {}

    @cached_property
    def _ends(self) -> tuple[np.ndarray, np.ndarray]:
        """The domain ``(d,)``, in model space."""
        domain = self.constraints.domain
        return domain.lower.double().cpu().numpy(), domain.upper.double().cpu().numpy()

    # ---- the search ------------------------------------------------------------------------------

    def find(
        self,
        factuals: Factuals,
        y: Tensor,
        generator: Generator,
        fall_back: bool,
        sparsify: bool,
    ) -> Counterfactuals:
        """A counterfactual for every row, by a search along gradients.

        Args:
            y: ``(n,)`` target classes.
            generator: tried first, then once more with a higher aim.
            fall_back: retry rows that miss with class loss and distance only, then along real rows.
            sparsify: change as few columns as little as possible.
        """
        threshold = float(generator.decision_threshold)
        x_cf = factuals.x.clone()
        steps = torch.zeros_like(y)
        # Whatever a gate says of them, rows that have their target need no advice.
        in_target = self.logits(factuals.x).argmax(-1).to(y) == y
        rows = (~in_target).nonzero().squeeze(-1)
        x_cf[rows], steps[rows] = self.together(
            factuals.take(rows), y[rows], generator, fall_back, sparsify
        )
        confidence = self.confidence(x_cf, y)
        status = torch.where(
            confidence >= threshold, int(Status.CONVERGED), int(Status.EXHAUSTED)
        )
        counterfactuals = Counterfactuals(
            x_cf, status.masked_fill(in_target, int(Status.ALREADY_THERE)), steps
        )
        self._flip_the_implausible(counterfactuals, factuals, y, generator, fall_back, sparsify)
        return counterfactuals

    def together(
        self,
        factuals: Factuals,
        y: Tensor,
        generator: Generator,
        fall_back: bool,
        sparsify: bool,
    ) -> tuple[Tensor, Tensor]:
        """Points ``(n, d)`` found by moving all free columns, shortened; and the steps taken."""
        threshold = float(generator.decision_threshold)
        x_cf = factuals.x.clone()
        steps = torch.zeros_like(y)
        rows = torch.arange(len(y), device=y.device)
        for most in self._sizes(sparsify and fall_back):
            if len(rows) == 0:
                break
            # The last round answers what the others would have answered, with more columns.
            if most is not None and self.late:
                continue
            # Rows that few columns do not help get more columns in the next round.
            if most is None:
                part = factuals.take(rows)
            else:
                part = self._holding(factuals.take(rows), y[rows], most)
            # Falling back is for the last round, which has to answer whatever it takes.
            points, taken, confidence = self.descend(
                part, y[rows], generator, fall_back and most is None
            )
            steps[rows] += taken
            # The last round has all columns, so its best effort stands.
            done = confidence >= (threshold + DIGITS if most is not None else -1.0)
            part = part.take(done.nonzero().squeeze(-1))
            rest = rows[~done]
            rows = rows[done]
            if sparsify and len(rows):
                floor = floor_of(confidence[done], threshold)
                points[done] = self.shorten(points[done], part, y[rows], floor)
            x_cf[rows] = points[done]
            rows = rest
        return x_cf, steps

    def _sizes(self, few: bool) -> tuple[int | None, ...]:
        """How many columns to move, round by round: few first if asked for, at last all of them."""
        sizes = []
        if few:
            # Only where that leaves out more than half of the columns; else it hardly saves
            # anything.
            sizes = [size for size in _SUPPORTS if size < len(self.difficulty) / 2]
        return (*sizes, None)

    def _holding(self, factuals: Factuals, y: Tensor, most: int) -> Factuals:
        """The rows with all but their most promising features held."""
        return factuals.holding(~promising(self, factuals, y, most)[:, self.owner.to(y.device)])

    def descend(
        self, factuals: Factuals, y: Tensor, generator: Generator, fall_back: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Points ``(n, d)`` by gradients and along real rows, with steps and confidence."""
        x = factuals.x
        threshold = float(generator.decision_threshold)
        result = self._search(factuals, y, generator)
        steps = result.num_steps.clone()
        x_cf, confidence = self._settled(result.x_cf, factuals, y, threshold)

        def missed() -> Tensor:
            return (confidence < threshold + DIGITS).nonzero().squeeze(-1)

        def keep_better(rows: Tensor, points: Tensor) -> None:
            # Compared as printed: a point that is better before rounding may be worse after it.
            tried, gained = self._settled(points, factuals.take(rows), y[rows], threshold)
            better = gained > confidence[rows]
            x_cf[rows[better]] = tried[better]
            confidence[rows[better]] = gained[better]

        # A line search that did not arrive would take the same path again.
        if generator.step_rule == "line":
            hopeful = result.converged
        else:
            hopeful = torch.ones_like(result.converged)
        for attempt in _attempts(generator, fall_back):
            rows = missed()
            # Those that did arrive missed by rounding alone, which a higher aim may cure.
            rows = rows[hopeful[rows]]
            if len(rows) == 0 or self.late:
                break
            again = self._search(factuals.take(rows), y[rows], attempt)
            keep_better(rows, again.x_cf)
            steps[rows] += again.num_steps
        # Real rows last: they are plausible, but mostly far away.
        rows = missed()
        if isinstance(self.searched, Gated) and fall_back and len(rows):
            part = factuals.take(rows)
            goal = threshold + DIGITS
            points = towards_real(
                self.searched, part.x, y[rows], self.constraints.to(x), goal, part.held
            )
            keep_better(rows, points)
        return x_cf, steps, confidence

    def shorten(self, x_cf: Tensor, factuals: Factuals, y: Tensor, floor: Tensor) -> Tensor:
        """Counterfactuals ``(n, d)`` without needless changes; see :class:`Shortener`."""
        return self._shortener(factuals)(x_cf, factuals.x, y, floor)

    def _shortener(self, factuals: Factuals) -> Shortener:
        x = factuals.x

        def printed(points: Tensor, rows: Tensor) -> Tensor:
            return self.as_printed(points, factuals.take(rows))

        def allowed(points: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
            part = factuals.take(rows)
            if self.related is not None:
                points = self.related.follow(points, part)
            return points, self.keeps(points, part)

        # Neither pixels nor columns that follow others are taken back one by one.
        owner = self.owner.to(x.device)
        apart = self.pixels.to(x.device)
        apart = apart.index_fill(
            0, torch.tensor(self.following, dtype=torch.long, device=x.device), True
        )
        if self.related is None:
            related = None
        else:
            related = allowed
        return Shortener(
            self.reaches,
            printed,
            owner,
            apart,
            self.constraints,
            self.difficulty.to(x),
            related,
        )

    def _search(self, factuals: Factuals, y: Tensor, generator: Generator) -> SearchResult:
        x = factuals.x
        held = factuals.held
        rules = self._free.to(factuals.x)
        return search(
            self.searched,
            x,
            y,
            generator,
            rules,
            held=held,
            difficulty=self.weights,
            real_rows=False,  # tried last, see descend
            diagnose=False,
        )

    def _flip_the_implausible(
        self,
        counterfactuals: Counterfactuals,
        factuals: Factuals,
        y: Tensor,
        generator: Generator,
        *how: bool,
    ) -> None:
        """Answer rows that the gate stops by the model alone: cheaper than a best effort.

        Those that reach the threshold but for the gate are marked as implausible.
        """
        rows = (counterfactuals.status == int(Status.EXHAUSTED)).nonzero().squeeze(-1)
        if self.gate is None or len(rows) == 0:
            return
        threshold = float(generator.decision_threshold)
        plain = replace(self, gate=None).find(factuals.take(rows), y[rows], generator, *how)
        flipped, flips = (
            self.logits(points).argmax(-1).to(y) == y[rows]
            for points in (counterfactuals.x_cf[rows], plain.x_cf)
        )
        enough = self.probability(counterfactuals.x_cf[rows], y[rows]) >= threshold
        arrived = plain.status == int(Status.CONVERGED)
        # A flipped decision is worth more to a person than a plausible point that changes nothing.
        counterfactuals.put(rows, plain, arrived | (flips & ~flipped))
        # What the model alone asks for may well pass the gate, which the search before did not
        # find.
        passes = arrived & (self.confidence(plain.x_cf, y[rows]) >= threshold)
        counterfactuals.status[rows[(arrived | enough) & ~passes]] = int(Status.IMPLAUSIBLE)

    def _settled(
        self, x_cf: Tensor, factuals: Factuals, y: Tensor, threshold: float
    ) -> tuple[Tensor, Tensor]:
        """Points ``(n, d)`` rounded to what is printed, and their confidence ``(n,)``.

        Rows that rounding took below τ get other categories, if that helps.
        """
        x = factuals.x
        rules = self.constraints.to(factuals.x)
        # First relations, then categories: swapping starts from points that keep the rules.
        points = self._back_to_kept(self.printed(x_cf, factuals), x_cf, factuals)
        if not rules.groups:
            return points, self.confidence(points, y)
        if self.related is None:
            keeps = None
        else:
            keeps = partial(self._keeps_of, factuals)
        return swap_categories(
            points, x, y, rules, self.confidence, threshold + DIGITS, factuals.held, keeps
        )

    def _keeps_of(self, factuals: Factuals, points: Tensor, rows: Tensor) -> Tensor:
        return self.keeps(points, factuals.take(rows))

    def _back_to_kept(self, printed: Tensor, x_cf: Tensor, factuals: Factuals) -> Tensor:
        """The printed points; rows that break a relation by rounding go back towards their factuals
        until they do not.

        The last resort is the factual itself.
        """
        for share in _SHARES if self.related is not None else ():
            rows = (~self.keeps(printed, factuals)).nonzero().squeeze(-1)
            if len(rows) == 0:
                break
            part = factuals.take(rows)
            # Shorter in model space, then rounded again: rounding a printed point again would stay
            # where it is.
            printed[rows] = self.printed(part.x + share * (x_cf[rows] - part.x), part)
        return printed


def _attempts(generator: Generator, fall_back: bool) -> Sequence[Generator]:
    """What to try, in order, for rows that missed."""
    threshold = float(generator.decision_threshold)
    higher = threshold + _AIM_HIGHER * (1 - threshold)
    # Higher first: most rows that missed did so by rounding.
    attempts = [generator.replace(decision_threshold=higher)]
    if fall_back and generator.step_rule != "line" and not generator.is_gradient_free:
        # Without an energy penalty, which can keep a search from the target, and by plain steps.
        plain = generic(
            learning_rate=generator.learning_rate,
            max_steps=_PATIENCE * generator.max_steps,
            decision_threshold=threshold,
        )
        attempts += [plain, plain.replace(decision_threshold=higher)]
    return attempts
