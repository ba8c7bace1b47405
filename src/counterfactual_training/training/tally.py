"""Sums over an epoch, per member, on the device until its end: no update waits for them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from counterfactual_training.training.run import Run

_TERMS = ("loss", "class_loss", "divergence", "ridge", "adversarial")


class Tally:
    """Sums of an epoch; a "row" here is a row of the stack, or the one model.

    Attributes:
        explaining: for every row, whether it trains with counterfactuals in this epoch.
        idle: ``(*lead)`` 1.0 for rows whose members have stopped, or ``None``.
        bad: ``(*lead)`` of every update, 1.0 for rows that skipped it.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.training = set(run.running)
        self.explaining = run.explaining()
        self.idle = run.idle_rows()
        self.bad: list[Tensor] = []
        self.terms: list[Tensor] = []  # (batches, 7, *lead) each
        self.rounds: list[Tensor] = []  # (1, 2, *lead) each: share mature, steps
        self.ends: dict[
            int, tuple[int, int]
        ] = {}  # updates and searches made before a row stopped

    def notice_stops(self) -> None:
        """Members that have stopped within the epoch make no more updates."""
        for slot, i in enumerate(self.run.slots):
            if (
                i in self.training
                and slot not in self.ends
                and self.run.histories[i].stopped is not None
            ):
                self.ends[slot] = (len(self.bad), len(self.rounds))
                self.idle = self.run.idle_rows()

    def searched(self, search_stats: Tensor) -> None:
        """Count a search: share mature and mean steps ``(2, *lead)``."""
        self.rounds.append(search_stats.unsqueeze(0))

    def close(self, started: float) -> list[int]:
        """Write the records of the epoch; returns every row's number of consecutive bad updates."""
        run = self.run
        slots = len(self.run.slots)
        every = []
        if self.terms:
            every = [run.learner.total_terms(torch.cat(self.terms))]
        terms = self._on_host(every, 7)
        bad = (
            self._on_host([torch.stack(self.bad).unsqueeze(1)] if self.bad else [], 1)[:, 0] > 0
        )
        # An infinite loss may have a finite gradient; one such batch spoils its update.
        starts = np.arange(0, len(terms), run.config.accumulate)
        if len(bad):
            bad |= np.logical_or.reduceat(~np.isfinite(terms[:, 0]), starts, 0)
        # Usually every update counts; only otherwise does the order of updates matter.
        counted = ~bad
        skipped = [0] * slots
        streaks = [0] * slots
        if bad.any() or any(run.bad_updates) or self.ends:
            counted, skipped, streaks = admitted(
                bad, run.bad_updates, self._limits(), self._ends()
            )
        columns: dict[str, Any] = {
            **self._means(terms, counted),
            "skipped": skipped,
            **self._search(),
        }
        columns["seconds"] = [(time.perf_counter() - started) / len(self.training)] * slots
        columns["validation_loss"] = [float("nan")] * slots
        columns["validation_accuracy"] = [float("nan")] * slots
        if run.validation is not None and run.validation.num_rows > 0:
            columns["validation_loss"], columns["validation_accuracy"] = self._validation()
        run.record(columns, self.training)
        return streaks

    def _limits(self) -> list[int]:
        """Bad updates in a row at which every row stops."""
        return [self.run.methods[i].training.max_bad_updates for i in self.run.slots]

    def _ends(self) -> list[int]:
        """Updates after which every row has stopped."""
        last = len(self.bad)
        return [self.ends.get(slot, (last, 0))[0] for slot in range(len(self.run.slots))]

    def _on_host(self, parts: list[Tensor], width: int) -> np.ndarray:
        """Tensors ``(n, width, *lead)``, concatenated, as ``(N, width, rows)``."""
        shape = (-1, width, len(self.run.slots))
        return torch.cat(parts or [torch.zeros(0)]).cpu().double().numpy().reshape(shape)

    def _means(self, terms: np.ndarray, counted: np.ndarray) -> dict[str, list[float]]:
        """Means over the batches of the updates made; NaN without any."""
        # An update's fate is that of its batches.
        counts = np.repeat(counted, self.run.config.accumulate, 0)[: len(terms)]
        # A stack computes every term for all rows; a member's record shows only those of its own
        # objective.
        objectives = [self.run.methods[i].minimised for i in self.run.slots]
        contrast = (
            np.array([objective.needs_divergence for objective in objectives]) & self.explaining
        )
        adversarial = (
            np.array([objective.needs_adversarial for objective in objectives])
            & self.explaining
        )
        always = np.ones_like(contrast)
        used = np.stack([always, always, contrast, contrast, adversarial])
        rows = np.where(counts, terms[:, 6], 0.0).sum(0)
        sums = np.where(counts[:, None], terms, 0.0).sum(0)  # a product with 0 would keep NaN
        with np.errstate(invalid="ignore"):
            means = [*(sums[:5] * used / counts.sum(0)), sums[5] / rows]
        return {
            name: mean.tolist() for name, mean in zip((*_TERMS, "accuracy"), means, strict=True)
        }

    def _search(self) -> dict[str, list[float]]:
        """Means over the searches before a member stopped; NaN without any."""
        stats = self._on_host(self.rounds, 2)
        counts = [
            self.ends.get(slot, (0, len(stats)))[1] * searches
            for slot, searches in enumerate(self.explaining)
        ]
        counted = np.arange(len(stats))[:, None] < np.array(counts)
        with np.errstate(invalid="ignore"):
            mature, steps = np.where(counted[:, None], stats, 0.0).sum(0) / np.array(counts)
        return {"share_mature": mature.tolist(), "mean_steps": steps.tolist()}

    def _validation(self) -> list[list[float]]:
        """Loss and accuracy on the validation rows; NaN for rows that stopped within the epoch."""
        sums, rows = self.run.validate()
        means = sums / max(rows, 1)
        results = torch.where(
            torch.isfinite(means), means, torch.nan
        ).tolist()  # of overflowing weights
        return [
            [float("nan") if slot in self.ends else value for slot, value in enumerate(values)]
            for values in results
        ]


def admitted(
    bad: np.ndarray, streaks: Sequence[int], limits: Sequence[int], ends: Sequence[int]
) -> tuple[np.ndarray, list[int], list[int]]:
    """Which updates ``(U, rows)`` count, how many were skipped, and how many consecutively at the
    end.

    A member that reaches its limit of consecutive bad updates has stopped there, whatever came
    after; one that has stopped for another reason, after ``ends`` updates.
    """
    counted = ~bad
    skipped = np.zeros(len(limits), int)
    now = np.array(streaks)
    for update, missed in enumerate(bad):
        live = (now < limits) & (update < np.array(ends))
        counted[update] = live & ~missed
        skipped += live & missed
        now = np.where(live, (now + 1) * missed, now)
    return counted, skipped.tolist(), now.tolist()
