"""What happened in an epoch, by member; brought to the host once, at its end."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from counterfactual_training.core.losses import class_loss
from counterfactual_training.core.precision import at_least_single
from counterfactual_training.search import evaluating
from counterfactual_training.training.explanations import Round
from counterfactual_training.training.objective import Batch
from counterfactual_training.training.run import Run

_TERMS = ("loss", "class_loss", "divergence", "ridge", "adversarial")


class Tally:
    """Sums of an epoch.

    Attributes:
        explaining: who trains with counterfactuals in this epoch, by row of the stack.
        idle: ``(rows,)`` 1.0 for members that ride along without training, or ``None``.
        bad: ``(*lead)`` of every update, 1.0 for whom it was left out.
        broken: rows of the stack whose model has become unusable, with the reason.
    """

    def __init__(self, run: Run) -> None:
        self.run, self.training, self.explaining = run, run.running, run.explaining()
        self.idle = run.idle_rows()
        self.bad: list[Tensor] = []
        self.broken: dict[int, str] = {}
        self.terms: list[Tensor] = []  # (batches, 6, *lead) each
        self.rows: list[float] = []  # of every batch
        self.shares: list[tuple[float, float, float]] = []  # what this process has of every batch
        self.rounds: list[Tensor] = []  # (2, *lead) each: share mature, steps
        self.searches: list[float] = []  # counterfactuals of each round
        self.ends: dict[int, tuple[int, int]] = {}  # after how many updates and rounds a row has ended

    def active(self) -> list[bool]:
        """Who still searches."""
        return [own and slot not in self.ends for slot, own in enumerate(self.explaining)]

    def anyone_left(self) -> bool:
        """Whether a member still trains."""
        return any(slot not in self.ends and i in self.training for slot, i in enumerate(self.run.slots))

    def break_off(self, slot: int, reason: str) -> None:
        """A member ends with this epoch; until then it rides along."""
        self.broken[slot], self.ends[slot] = reason, (len(self.bad), len(self.rounds))
        self.run.blank(slot)
        self.idle = self.run.idle_rows(self.broken)

    def notice_stops(self) -> None:
        """Members that a callback has stopped within the epoch ride along from here on."""
        for slot in {self.run.slots.index(i) for i in self.training} - self.ends.keys():
            if self.run.histories[self.run.slots[slot]].stopped is not None:
                self.ends[slot] = (len(self.bad), len(self.rounds))
                self.idle = self.run.idle_rows(self.broken)

    def searched(self, found: Round) -> None:
        self.rounds.append(torch.stack([found.share_mature, found.mean_steps]))
        self.searches.append(float(found.explanations.y_target.shape[-1]))

    def add(self, batches: Sequence[Batch], terms: Tensor) -> None:
        """Count batches with their loss terms and the rows predicted right ``(batches, 6, *lead)``."""
        self.terms.append(terms)
        self.rows += [float(batch.y.shape[-1]) for batch in batches]
        self.shares += [batch.shares for batch in batches]

    def close(self, started: float) -> tuple[list[int], dict[int, str]]:
        """Write the records of the epoch; bad updates in a row by row of the stack, and who has broken."""
        run, slots = self.run, len(self.run.slots)
        if run.ranks.size > 1 and self.terms:
            self._gather()
        bad = np.array([]).reshape(0, slots)
        if self.bad:
            bad = torch.stack(self.bad).reshape(-1, slots).cpu().numpy() > 0
            bad |= self._losses_lost(len(bad))
        limits = [run.settings[i].config.max_bad_updates for i in run.slots]
        ends = [self.ends.get(slot, (len(bad), 0))[0] for slot in range(slots)]
        made, skipped, streaks = admitted(bad, run.bad_updates, limits, ends)
        columns = {**self._means(made), "skipped": skipped, **self._search()}
        columns["seconds"] = [(time.perf_counter() - started) / len(self.training)] * slots
        columns["validation_loss"], columns["validation_accuracy"] = self._validation()
        columns = run.ranks.first(columns)  # callbacks decide by these, on every process alike
        for slot, i in enumerate(run.slots):
            if i in self.training:
                record = {name: values[slot] for name, values in columns.items()}
                run.histories[i].records.append({"epoch": run.epoch, **record})
        return streaks, self.broken

    def _gather(self) -> None:
        """The mean over the parts of all processes is that of the whole; rows with a share of 0 do not count."""
        size, terms = self.run.ranks.size, torch.cat(self.terms)
        weights = terms.new_tensor([[1, c, x, x, a, size * (c > 0)] for c, x, a in self.shares])
        counts = terms.new_tensor([n * (c > 0) for n, (c, _, _) in zip(self.rows, self.shares, strict=True)])
        self.terms = [self.run.ranks.sum(terms * weights) / size]
        self.rows = self.run.ranks.sum(counts).tolist()

    def _losses_lost(self, updates: int) -> np.ndarray:
        """``(U, rows)``: where a loss was not finite, though its gradient may have been."""
        size = self.run.config.accumulate
        lost = ~torch.isfinite(torch.cat(self.terms)[:, 0]).reshape(-1, len(self.run.slots)).cpu().numpy()
        lost = np.pad(lost, ((0, updates * size - len(lost)), (0, 0)))
        return np.asarray(lost.reshape(updates, size, -1).any(1))

    def _means(self, made: np.ndarray) -> dict[str, list[float]]:
        """Over the batches of the updates made; NaN where there were none."""
        slots = len(self.run.slots)
        if not self.terms:
            return {name: [float("nan")] * slots for name in (*_TERMS, "accuracy")}
        terms = torch.cat(self.terms).reshape(-1, 6, slots).cpu().double().numpy()
        counts = np.repeat(made, self.run.config.accumulate, 0)[: len(terms)]
        used = self._used()
        with np.errstate(invalid="ignore"):
            sums = np.where(counts[:, None], terms, 0.0).sum(0)
            rows = (np.array(self.rows)[:, None] * counts).sum(0)
            means = {name: sums[j] * used[j] / counts.sum(0) for j, name in enumerate(_TERMS)}
            return {name: value.tolist() for name, value in {**means, "accuracy": sums[5] / rows}.items()}

    def _used(self) -> np.ndarray:
        """``(5, rows)``: which terms a member computes; others in its stack may, for their own sake."""
        objectives = [self.run.settings[i].objective for i in self.run.slots]
        contrast = [own.needs_divergence and e for own, e in zip(objectives, self.explaining, strict=True)]
        adversarial = [own.needs_adversarial and e for own, e in zip(objectives, self.explaining, strict=True)]
        always = [True] * len(objectives)
        return np.array([always, always, contrast, contrast, adversarial])

    def _search(self) -> dict[str, list[float]]:
        ranks, columns, found = self.run.ranks, [], None
        if self.rounds:
            told = torch.stack(self.rounds).float().reshape(len(self.rounds), 2, -1)
            if ranks.size > 1:
                rows = told.new_tensor(self.searches).reshape(-1, 1, 1)
                told = ranks.sum(told * rows) / ranks.sum(rows)
            found = told.cpu().numpy()
        for slot, explaining in enumerate(self.explaining):
            rounds = self.ends.get(slot, (0, len(self.rounds)))[1]
            if found is None or not explaining or not rounds:
                columns.append((float("nan"), float("nan")))
            else:
                columns.append(tuple(found[:rounds, :, slot].mean(0).tolist()))
        mature, steps = zip(*columns, strict=True)
        return {"share_mature": list(mature), "mean_steps": list(steps)}

    def _validation(self) -> list[list[float]]:
        """Class loss and accuracy on the validation rows, each by row of the stack; NaN for whoever has not reached the
        end of the epoch."""
        run, slots = self.run, len(self.run.slots)
        if run.validation is None or run.validation.num_rows == 0:
            return [[float("nan")] * slots] * 2
        sums, rows = torch.zeros(2, slots, device=run.device), 0
        run.ranks.share_buffers(run.model)
        with evaluating(run.model), torch.no_grad():
            for x, y, _ in run.validation.batches(4096, None, run.lead):
                logits = at_least_single(run.model(x))
                sums[0] += class_loss(logits, y) * y.shape[-1]
                sums[1] += (logits.argmax(-1) == y).sum(-1)
                rows += y.shape[-1]
        if run.validation.divided:
            sums, rows = run.ranks.sum(sums), int(run.ranks.sum(torch.tensor(rows, device=run.device)))
        means = (sums / max(rows, 1)).tolist()
        return [[float("nan") if slot in self.ends else value for slot, value in enumerate(own)] for own in means]


def admitted(
    bad: np.ndarray, streaks: Sequence[int], limits: Sequence[int], ends: Sequence[int]
) -> tuple[np.ndarray, list[int], list[int]]:
    """Which updates ``(U, rows)`` count, how many were left out, and how many of these in a row at the end.

    A member that reaches its limit has ended there: it goes back to its last sound epoch, whatever came after. The same
    holds for one that has broken after ``ends`` updates.
    """
    made, skipped, now = ~bad.astype(bool), [0] * len(limits), list(streaks)
    for slot in np.flatnonzero(bad.any(0) | (np.array(streaks) > 0) | (np.array(ends) < len(bad))).tolist():
        made[ends[slot] :, slot] = False
        for update, missed in enumerate(bad[: ends[slot], slot].tolist()):
            now[slot] = now[slot] + 1 if missed else 0
            skipped[slot] += int(missed)
            if now[slot] >= limits[slot]:
                made[update:, slot] = False
                break
    return made, skipped, now
