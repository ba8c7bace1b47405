"""Counterfactuals that hold for the rows a person reads: searched, rounded, checked again, shortened.

A search ends in model space. What counts is the row in the user's units, after rounding to integers, decimals and
categories, so every claim is made about the encoding of the row as printed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
from torch import Tensor, nn

from counterfactual_training.constraints import Constraints
from counterfactual_training.estimator.blind import search_blind
from counterfactual_training.estimator.foreign import Background
from counterfactual_training.estimator.points import DIGITS, Counterfactuals, Factuals, floor_of
from counterfactual_training.estimator.refine import Shortener, swap_categories
from counterfactual_training.estimator.singles import one_by_one, promising, single_changes
from counterfactual_training.estimator.space import Space
from counterfactual_training.gates import Gate, Gated, towards_real
from counterfactual_training.search import Generator, SearchResult, Status, generic, search
from counterfactual_training.tabular.encode import Encoder

# A row that rounding took below τ is searched again, aiming at this share of the way from τ to 1.
_AIM_HIGHER = 0.4
# Few rows need the last attempt; it may take this many times the steps.
_PATIENCE = 4
# Rows of many columns are first searched in the few that promise most: nobody can change hundreds.
_SUPPORTS = (8, 32, 128)
# Answers that change more columns than this are tried again, one column after the other.
_FEW = 2
# Shares of a change that are tried if rounding all of it breaks a relation between columns.
_SHARES = (0.95, 0.8, 0.5, 0.2, 0.0)


@dataclass(frozen=True, eq=False)
class Finder(Space):
    """Model, encoder and rules that belong together; and, if there is one, the gate that limits where advice ends.

    A model without gradients needs a ``background`` of real rows. ``decision`` is explained in :class:`Bar`.
    """

    model: nn.Module
    encoder: Encoder
    constraints: Constraints
    gate: Gate | None = None
    decision: bool = False
    background: Background | None = None

    @cached_property
    def searched(self) -> nn.Module:
        """The classifier whose probability has to reach τ."""
        return self.model if self.gate is None else Gated(self.model, self.gate)

    @cached_property
    def _free(self) -> Constraints:
        """The rules as the search sees them: categories and box, while integers and decimals may still vary.

        A search that fixed rounded columns on arrival would have nothing left to move when rounding took it back
        below τ. :meth:`_settled` rounds afterwards, away from the factual. Outliers are first pulled into the domain,
        where the model knows something; what the target does not need is taken back at the end.
        """
        domain = replace(self.constraints.domain, inferred=True)
        return replace(self.constraints, lattices=(), domain=domain, keep_outside=False)

    # ---- the search ------------------------------------------------------------------------------------------------

    def find(
        self, factuals: Factuals, y: Tensor, generator: Generator, fall_back: bool, sparsify: bool
    ) -> Counterfactuals:
        """A counterfactual for every row.

        Args:
            y: ``(n,)`` target classes.
            generator: tried first, then once more with a higher aim.
            fall_back: try single columns before the search; retry rows that miss with class loss and distance only,
                then along real rows.
            sparsify: change as few columns as little as possible.
        """
        x, threshold = factuals.x, float(generator.decision_threshold)
        # Whatever a gate says of them, rows that have their target need no advice.
        there = self.logits(x).argmax(-1).to(y) == y
        x_cf, steps, rows = x.clone(), torch.zeros_like(y), (~there).nonzero().squeeze(-1)
        alone = rows[:0]
        if sparsify and fall_back and not bool(self.pixels.any()):
            floor = torch.full_like(x[rows, 0], threshold + DIGITS)
            singles = single_changes(self, factuals.take(rows), y[rows], floor)
            cheapest = singles.cheapest()
            alone = rows[singles.row[cheapest]]
            x_cf[alone] = singles.point[cheapest]
            # Where some columns are difficult, several others may be cheaper than one of these; see below.
            rows = rows[~torch.isin(rows, alone)] if self.weights is None else rows
        single = x_cf[alone]
        if self.background is not None and len(rows):
            part = factuals.take(rows)
            x_cf[rows], steps[rows] = search_blind(self, self.background, part, y[rows], threshold, sparsify)
            rows = rows[:0]
        sizes = [size for size in _SUPPORTS if size < len(self.difficulty) / 2 and sparsify and fall_back]
        for most in (*sizes, None):
            if len(rows) == 0:
                break
            part = factuals.take(rows) if most is None else self._holding(factuals.take(rows), y[rows], most)
            points, taken, confidence = self._descend(part, y[rows], generator, fall_back and most is None)
            steps[rows] += taken
            done = confidence >= (threshold + DIGITS if most is not None else -1.0)
            part, rest, rows = part.take(done.nonzero().squeeze(-1)), rows[~done], rows[done]
            if sparsify and len(rows):
                floor = floor_of(confidence[done], threshold)
                points[done] = self.shorten(points[done], part, y[rows], floor)
            x_cf[rows], rows = points[done], rest
        confidence = self.confidence(x_cf, y)
        if self.weights is not None:
            self._keep_cheaper(x_cf, confidence, alone, single, factuals, y, threshold)
        if sparsify and fall_back and self.background is None and not bool(self.pixels.any()):
            many = (self.num_changes(x_cf, x) > _FEW) | (confidence < threshold)
            rows = (many & ~there).nonzero().squeeze(-1)
            self._keep_cheaper(
                x_cf, confidence, rows, self._walked(factuals, rows, y, threshold), factuals, y, threshold
            )
        arrived = confidence >= threshold
        status = torch.where(arrived, int(Status.CONVERGED), int(Status.EXHAUSTED))
        found = Counterfactuals(x_cf, status.masked_fill(there, int(Status.ALREADY_THERE)), steps)
        self._flip_the_implausible(found, factuals, y, generator, fall_back, sparsify)
        return found

    def _walked(self, factuals: Factuals, rows: Tensor, y: Tensor, threshold: float) -> Tensor:
        """Points of some rows that one column after the other leads to: a search moves every column that it may."""
        part, goal = factuals.take(rows), y[rows]
        points = one_by_one(self, part, goal, threshold + DIGITS)
        return self.shorten(points, part, goal, floor_of(self.confidence(points, goal), threshold))

    def _keep_cheaper(
        self,
        x_cf: Tensor,
        confidence: Tensor,
        rows: Tensor,
        points: Tensor,
        factuals: Factuals,
        y: Tensor,
        threshold: float,
    ) -> None:
        """Put other points of some rows into x_cf ``(n, d)``, and their confidence ``(n,)``: those that are cheaper or,
        of rows that miss, more confident."""
        x, now, gained = factuals.x[rows], confidence[rows], self.confidence(points, y[rows])
        cheaper = (gained >= threshold) & (self.cost(points, x) < self.cost(x_cf[rows], x))
        better = torch.where(now < threshold, gained > now, cheaper)
        x_cf[rows[better]], confidence[rows[better]] = points[better], gained[better]

    def _holding(self, factuals: Factuals, y: Tensor, most: int) -> Factuals:
        """The rows with all but their most promising features held."""
        return factuals.holding(~promising(self, factuals, y, most)[:, self.owner.to(y.device)])

    def _descend(
        self, factuals: Factuals, y: Tensor, generator: Generator, fall_back: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Points ``(n, d)`` found by gradients and along real rows, the steps taken, and the confidence reached."""
        x, threshold = factuals.x, float(generator.decision_threshold)
        result = self._search(factuals, y, generator)
        steps = result.num_steps.clone()
        x_cf, confidence = self._settled(result.x_cf, factuals, y, threshold)

        def missed() -> Tensor:
            return (confidence < threshold + DIGITS).nonzero().squeeze(-1)

        def keep_better(rows: Tensor, points: Tensor) -> None:
            tried, gained = self._settled(points, factuals.take(rows), y[rows], threshold)
            better = gained > confidence[rows]
            x_cf[rows[better]], confidence[rows[better]] = tried[better], gained[better]

        # A line search that did not arrive would take the same path again.
        hopeful = result.converged if generator.step_rule == "line" else torch.ones_like(result.converged)
        for attempt in _attempts(generator, fall_back):
            rows = missed()
            rows = rows[hopeful[rows]]
            if len(rows) == 0:
                break
            again = self._search(factuals.take(rows), y[rows], attempt)
            keep_better(rows, again.x_cf)
            steps[rows] += again.num_steps
        rows = missed()
        if isinstance(self.searched, Gated) and fall_back and len(rows):
            part, goal = factuals.take(rows), threshold + DIGITS
            points = towards_real(self.searched, part.x, y[rows], self.constraints.to(x), goal, part.held)
            keep_better(rows, points)
        return x_cf, steps, confidence

    def shorten(self, x_cf: Tensor, factuals: Factuals, y: Tensor, floor: Tensor) -> Tensor:
        """Counterfactuals ``(n, d)`` that ask for less, with no change that is not needed; see :class:`Shortener`."""
        x = factuals.x

        def printed(points: Tensor, rows: Tensor) -> Tensor:
            return self.as_printed(points, factuals.take(rows))

        def allowed(points: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
            part = factuals.take(rows)
            points = self.related.follow(points, part) if self.related is not None else points
            return points, self.keeps(points, part)

        owner, apart = self.owner.to(x.device), self.pixels.to(x.device)
        apart = apart.index_fill(0, torch.tensor(self.following, dtype=torch.long, device=x.device), True)
        related = None if self.related is None else allowed
        shortener = Shortener(self.reaches, printed, owner, apart, self.constraints, self.difficulty.to(x), related)
        return shortener(x_cf, x, y, floor)

    def _search(self, factuals: Factuals, y: Tensor, generator: Generator) -> SearchResult:
        return search(
            self.searched, factuals.x, y, generator, self._free,
            held=factuals.held, difficulty=self.weights, diagnose=False,
        )  # fmt: skip

    def _flip_the_implausible(
        self, found: Counterfactuals, factuals: Factuals, y: Tensor, generator: Generator, *how: bool
    ) -> None:
        """Answer rows that the gate stops: by the best effort if that flips the decision, else by the model alone.

        Those that reach the threshold but for the gate are marked as implausible.
        """
        rows = (found.status == int(Status.EXHAUSTED)).nonzero().squeeze(-1)
        if self.gate is None or len(rows) == 0:
            return
        threshold = float(generator.decision_threshold)
        enough = self.probability(found.x_cf[rows], y[rows]) >= threshold
        found.status[rows[enough]] = int(Status.IMPLAUSIBLE)
        rows = rows[~enough]
        if len(rows) == 0:
            return
        plain = replace(self, gate=None).find(factuals.take(rows), y[rows], generator, *how)
        flipped, flips = (self.logits(points).argmax(-1).to(y) == y[rows] for points in (found.x_cf[rows], plain.x_cf))
        arrived = plain.status == int(Status.CONVERGED)
        found.put(rows, plain, arrived | (flips & ~flipped))
        # What the model alone asks for may well pass the gate, which the search before did not find.
        passes = arrived & (self.confidence(plain.x_cf, y[rows]) >= threshold)
        found.status[rows[arrived & ~passes]] = int(Status.IMPLAUSIBLE)

    def _settled(self, x_cf: Tensor, factuals: Factuals, y: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
        """Points ``(n, d)`` rounded to what is printed, and their confidence ``(n,)``.

        Rows that rounding took below τ get other categories, if that helps.
        """
        x, rules = factuals.x, self.constraints.to(factuals.x)
        points = self._back_to_kept(self.printed(x_cf, factuals), x_cf, factuals)
        if not rules.groups:
            return points, self.confidence(points, y)
        keeps = None if self.related is None else partial(self._keeps_of, factuals)
        return swap_categories(points, x, y, rules, self.confidence, threshold + DIGITS, factuals.held, keeps)

    def _keeps_of(self, factuals: Factuals, points: Tensor, rows: Tensor) -> Tensor:
        return self.keeps(points, factuals.take(rows))

    def _back_to_kept(self, printed: Tensor, x_cf: Tensor, factuals: Factuals) -> Tensor:
        """The printed points; rows that break a relation by rounding go back towards their factuals until they do not.

        The last resort is the factual itself.
        """
        for share in _SHARES if self.related is not None else ():
            rows = (~self.keeps(printed, factuals)).nonzero().squeeze(-1)
            if len(rows) == 0:
                break
            part = factuals.take(rows)
            printed[rows] = self.printed(part.x + share * (x_cf[rows] - part.x), part)
        return printed


def _attempts(generator: Generator, fall_back: bool) -> Sequence[Generator]:
    """What to try, in order, for rows that missed."""
    threshold = float(generator.decision_threshold)
    higher = threshold + _AIM_HIGHER * (1 - threshold)
    attempts = [generator.replace(decision_threshold=higher)]
    if fall_back and generator.step_rule == "fixed":
        plain = generic(
            learning_rate=generator.learning_rate,
            max_steps=_PATIENCE * generator.max_steps,
            decision_threshold=threshold,
        )
        attempts += [plain, plain.replace(decision_threshold=higher)]
    return attempts
