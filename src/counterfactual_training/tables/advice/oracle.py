"""What model, gate and relations say of points: do they reach the bar?"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from counterfactual_training.generators import evaluating
from counterfactual_training.generators.model_checks import check_finite_logits
from counterfactual_training.tables.advice.points import DIGITS, Factuals
from counterfactual_training.tables.advice.window import Window
from counterfactual_training.threads import sensible_threads

if TYPE_CHECKING:
    from counterfactual_training.tables.advice.find import Finder
    from counterfactual_training.tables.advice.moves import Moves

# Points that are asked about at once, and encoded values in them: more would not stay in the
# processor's cache.
_POINTS = 2**11
TOGETHER = 2**21
# Of models trained elsewhere: every question takes them some milliseconds, however short it is.
_POINTS_OF_BLACK_BOX = 2**13
# What logits of the same point in different batches may differ by, as a share of the largest and
# of the terms that they are sums of.
_ROUNDING = 4e-6
# Odds of a decision below so many times that are computed anew with more digits.
_CLOSE = 4
# Log-odds of a gate that are closer to its bar are computed anew with more digits. They are sums of
# distances to kernels, and rounded by some millionths.
_CLOSE_OF_GATE = 1e-4
# Log-odds of the gate beyond which more make no difference.
_CERTAIN = 20.7
# Points that a gate judges at a time: its kernels should stay in the processor's cache.
_JUDGED = 1024


class Oracle:
    """Model, gate and relations, asked about points of n people; a person is known by position.

    Attributes:
        window: the columns that points ``(a, c)`` consist of.
        x: ``(n, c)`` the people's own values there, on the CPU.
        enough: the log-odds that the model must give.
        gated: whether the gate is asked; it is slow, and only asked about what the model lets pass.
        related: whether relations between columns are asked.
        asked: ``(n,)`` how many points of each person the model was asked about.
    """

    def __init__(
        self,
        finder: Finder,
        factuals: Factuals,
        y: Tensor,
        threshold: float,
        features: np.ndarray,
    ) -> None:
        self.finder = finder
        # Bookkeeping is done on the CPU; only questions to model and gate go to the device.
        self.device = factuals.x.device
        self.factuals = factuals.to(torch.device("cpu"))
        with evaluating(finder.model):
            self.window = Window(finder, self.factuals.x, features, self.device)
        self.x = self.window.own
        self.y = y.cpu()
        self.labels = self.y.numpy()
        self._targets: list[int] = np.unique(self.labels).tolist()
        self.threshold = threshold
        # Above the threshold by what another batch may differ; for the decision, see _odds.
        if finder.decision:
            self.enough = 0.0
        else:
            self.enough = _logit(min(threshold + DIGITS, 1 - 1e-9))
        self.gated = finder.gate is not None
        self.related = finder.related is not None
        self.asked = np.zeros(len(self.x), dtype=np.int64)

    @property
    def together(self) -> int:
        """How many points are asked about at once."""
        if self.finder.background is None:
            most = _POINTS
        else:
            most = _POINTS_OF_BLACK_BOX
        return max(1, min(most, TOGETHER // max(1, self.x.shape[1])))

    def check(self) -> None:
        """Raise if model or gate cannot be computed with."""
        x = self.factuals.x.to(self.device)
        check_finite_logits(self.finder.model(x))
        if self.finder.gate is not None:
            check_finite_logits(self.finder.gate(x))

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Model and gate ready to be asked, once for all questions."""
        model = self.finder.model
        with ExitStack() as stack:
            stack.enter_context(evaluating(model))
            if self.finder.gate is not None:
                stack.enter_context(evaluating(self.finder.gate))
            stack.enter_context(torch.no_grad())
            stack.enter_context(sensible_threads(model, self.x))
            yield

    @contextmanager
    def model_only(self) -> Iterator[None]:
        """Neither the gate nor relations are asked."""
        gated = self.gated
        self.gated = False
        self.related = False
        try:
            yield
        finally:
            self.gated = gated
            self.related = self.finder.related is not None

    def follow(self, person: np.ndarray, points: Tensor) -> Tensor:
        """The points with what follows other columns computed anew."""
        if self.finder.related is None:
            return points
        return self.finder.related.follow(points, self.factuals.take(torch.from_numpy(person)))

    def keeps(self, person: np.ndarray, points: Tensor) -> np.ndarray:
        """Mask ``(a,)`` of points that keep the relations between columns."""
        if not self.related or len(person) == 0:
            return np.ones(len(person), dtype=bool)
        return self.finder.keeps(points, self.factuals.take(torch.from_numpy(person))).numpy()

    def odds(self, person: np.ndarray, points: Tensor) -> np.ndarray:
        """The log-odds ``(a,)`` of everybody's target at points ``(a, d)``."""
        self._count(person)
        if len(points) == 0:
            return np.zeros(0)
        size = self.together
        if len(points) <= size:
            logits = self.window.logits(person, points)
        else:
            parts = [slice(start, start + size) for start in range(0, len(points), size)]
            logits = torch.cat(
                [self.window.logits(person[part], points[part]) for part in parts]
            )
        odds, close = self._odds(logits, person)
        if len(close):
            self._look_closely(odds, close, person[close], points[torch.from_numpy(close)])
        return odds

    def _look_closely(
        self, odds: np.ndarray, close: np.ndarray, person: np.ndarray, points: Tensor
    ) -> None:
        """Compute the odds of some rows anew, in place, with twice the digits if the model has
        them.

        At the bar, the last digits decide. They depend on the batch, and on which columns a
        question leaves.
        """
        logits = self.window.precise_logits(person, points)
        if logits is not None:
            odds[close] = self._odds(logits, person)[0]

    def _count(self, person: np.ndarray) -> None:
        """Note that the model is asked about points of these people ``(a,)``."""
        if len(self.asked) == 1:
            self.asked[0] += len(person)
        else:
            np.add.at(self.asked, person, 1)

    def _odds(self, logits: Tensor, person: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The log-odds ``(a,)``, and the rows that are so close to the decision that the last
        digits matter.
        """
        if self.finder.decision:
            # numpy knows no bfloat16.
            if logits.dtype not in (torch.float32, torch.float64):
                logits = logits.float()
            odds, close = _decision_odds(
                logits.detach().numpy(), self.labels[person], self.window.terms[person]
            )
        else:
            odds = (
                self.finder.odds_of(logits, self.y[torch.from_numpy(person)]).double().numpy()
            )
            close = np.zeros(0, dtype=np.int64)
        if np.isnan(odds.sum()):  # as good as never
            check_finite_logits(logits)
        return odds, close

    def odds_of_sets(
        self, moves: Moves, person: np.ndarray, sets: np.ndarray
    ) -> np.ndarray | None:
        """The same for people who make all moves of a set ``(c, s)``, without making points;
        ``None`` if it cannot.
        """
        logits = self.window.logits_of_sets(moves, person, sets)
        if logits is None:
            return None
        self._count(person)
        odds, close = self._odds(logits, person)
        if len(close):
            own = person[close]
            points = moves.put(self.x[torch.from_numpy(own)], own, sets[close])
            self._look_closely(odds, close, own, points)
        return odds

    def arrives(self, person: np.ndarray, points: Tensor) -> np.ndarray:
        """Mask ``(a,)`` of points that reach the bar and keep relations."""
        odds = self.odds(person, points)
        fine = (odds >= self.enough) & self.keeps(person, points)
        return self.passes(person, points, odds, fine)

    def passes(
        self, person: np.ndarray, points: Tensor, odds: np.ndarray, fine: np.ndarray
    ) -> np.ndarray:
        """The mask ``(a,)`` without the points that the gate does not let pass."""
        if not self.gated:
            return fine
        passed = np.zeros(len(fine), dtype=bool)
        passed[self.passing(person, points, odds, np.flatnonzero(fine))] = True
        return passed

    def passing(
        self, person: np.ndarray, points: Tensor, odds: np.ndarray, rows: np.ndarray
    ) -> np.ndarray:
        """Those of the rows, by number, whose points the gate lets pass."""
        if not self.gated or len(rows) == 0:
            return rows
        # Of a decision, only the side of the gate's bar counts.
        bar = self.enough_of_gate if self.finder.decision else None
        some = points.index_select(0, torch.from_numpy(rows))
        gate = self.gate_odds(person[rows], some, bar)
        if bar is not None:
            self._judge_closely(gate, person[rows], some, bar)
        return rows[self.reached(odds[rows], gate)]

    def _judge_closely(
        self, gate: np.ndarray, person: np.ndarray, points: Tensor, bar: float
    ) -> None:
        """Compute the gate's odds at its bar anew, in place, as :meth:`_look_closely` does the
        model's.
        """
        close = np.flatnonzero(np.abs(gate - bar) < _CLOSE_OF_GATE)
        if len(close) == 0:
            return
        found = self.window.precise_gate_odds(
            person[close],
            points.index_select(0, torch.from_numpy(close)),
            torch.from_numpy(self.labels[person[close]]),
        )
        if found is not None:
            gate[close] = found.numpy()

    def margins(self, person: np.ndarray, points: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Log-odds ``(a,)`` of the model and of the gate."""
        return self.odds(person, points), self.gate_odds(person, points)

    def gate_odds(
        self, person: np.ndarray, points: Tensor, bar: float | None = None
    ) -> np.ndarray:
        """Log-odds ``(a,)`` that points are plausible; plus infinity without a gate.

        With a ``bar``, bounds where these tell on which side of it the odds lie.
        """
        gate = self.finder.gate
        if gate is None or not self.gated:
            return np.full(len(person), math.inf)
        found = np.zeros(len(person))
        labels = self.labels[person]
        for label in self._targets:
            rows = np.flatnonzero(labels == label)
            for start in range(0, len(rows), _JUDGED):
                part = rows[start : start + _JUDGED]
                if len(part) == len(points):
                    own = points
                else:
                    own = points.index_select(0, torch.from_numpy(part))
                found[part] = self.window.gate_odds(person[part], own, label, bar).numpy()
        return np.minimum(found, _CERTAIN)

    @property
    def enough_of_gate(self) -> float:
        """The log-odds that the gate must give at least, whatever the model says."""
        if self.finder.decision:
            return _logit(0.5 + DIGITS)
        return _logit(min(self.threshold + DIGITS, 1 - 1e-9))

    def reached(self, odds: np.ndarray, gate: np.ndarray) -> np.ndarray:
        """Mask ``(a,)`` of points whose odds of model and gate reach the bar."""
        if self.finder.decision or not self.gated:
            return (odds >= self.enough) & (gate >= self.enough_of_gate)
        with np.errstate(over="ignore"):
            return 1 / (1 + np.exp(-odds)) / (1 + np.exp(-gate)) >= self.threshold + DIGITS


def _decision_odds(
    logits: np.ndarray, label: np.ndarray, terms: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Log-odds ``(a,)`` of a class against the strongest other one; as :meth:`Bar.odds_of` has
    them, sooner for few points. And the rows where they are close to none.

    Less what another batch may differ, which grows with the logits and with the ``terms`` ``(a,)``
    that they are sums of: their scale changes no decision.
    """
    line = np.arange(len(logits))
    # Class by class: the largest of few numbers takes numpy ten times as long row by row.
    others = logits.T.copy()
    differ = _ROUNDING * np.maximum(np.abs(others).max(0), terms)
    own = others[label, line]
    others[label, line] = -math.inf
    odds = (own - others.max(0)).astype(np.float64)
    odds -= differ
    return odds, np.flatnonzero(np.abs(odds) <= _CLOSE * differ)


def _logit(p: float) -> float:
    return math.log(p) - math.log1p(-p)
