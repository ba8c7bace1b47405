"""Training rows that a learned gate must reject: noise and implausible counterfactuals."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from counterfactual_training.constraints import Constraints
from counterfactual_training.gates.gated import Gated
from counterfactual_training.generators import line, search

if TYPE_CHECKING:
    from counterfactual_training.gates.learned import GateConfig

_NEIGHBOURS = 5
_REFERENCES = 400
# Share of rows, real or noise, that get the immutable columns of a random row: the gate also
# learns to judge combinations of class and immutable columns without real rows.
_LENT = 0.25
_SAMPLED = 10_000  # most rows to take the range of numbers from
# Standard deviations of the noise around real rows, drawn on a logarithmic scale.
_JITTER = (
    0.1,
    1.6,
)


class Negatives:
    """Noise and counterfactuals for a gate in training.

    Noise keeps the immutable columns of a real row and counts against the class of that row only,
    so immutable columns alone carry no information. The counterfactuals of the last epochs ``(r,
    d)`` are stored with their classes and weights ``(r,)``.
    """

    def __init__(
        self,
        gated: Gated,
        rows: Tensor,
        labels: Tensor,
        constraints: Constraints,
        feature_shape: torch.Size,
        config: GateConfig,
        rng: torch.Generator,
    ) -> None:
        self.gated = gated
        self.rows = rows
        self.labels = labels
        self.config = config
        self.rng = rng
        self.constraints = constraints
        self.feature_shape = feature_shape
        self.immutable = constraints.immutable.flatten().to(rows.device)
        self.conditional = bool(self.immutable.any())
        # By free columns: what a person cannot change is no fault of a counterfactual.
        self.typical = Typicality(self._free(rows), labels)
        # A group with an immutable column is not shuffled: its columns belong together.
        groups = [list(group.columns) for group in constraints.groups]
        self.groups = [group for group in groups if not bool(self.immutable[group].any())]
        fixed = {column for group in groups for column in group} | set(
            self.immutable.nonzero().flatten().tolist()
        )
        self.numbers = torch.tensor(
            [j for j in range(rows.shape[1]) if j not in fixed], dtype=torch.long
        )
        sample = rows[:: 1 + len(rows) // _SAMPLED][:, self.numbers]
        # Without the outermost rows, or a single outlier would stretch the box and leave it almost
        # empty of rows.
        if sample.numel():
            ends = sample.quantile(sample.new_tensor([0.005, 0.995]), 0)
        else:
            ends = sample[:2]
        self.low = ends[0] - 0.3
        self.high = ends[1] + 0.3
        self.x_cf = rows[:0]
        self.target = labels[:0]
        self.weight = rows[:0, 0]

    def noise(self, n: int) -> tuple[Tensor, Tensor]:
        """``(n, d)`` points, a third each: random numbers in range, jittered rows, columns of
        different rows.

        Also returns the classes ``(n,)`` of the rows that the immutable columns come from.
        """
        base = self._draw(len(self.rows), n)
        # Every feature from a random row; the columns of a category come from one row.
        shuffled = self.rows[base]
        rows = self._draw(len(self.rows), n * len(self.numbers)).reshape(n, -1)
        shuffled[:, self.numbers] = self.rows[rows, self.numbers]
        for group in self.groups:
            shuffled[:, group] = self.rows[self._draw(len(self.rows), n)][:, group]
        # Views: what is written into these parts lands in ``shuffled``; the last third stays
        # shuffled.
        boxed = shuffled[: n // 3]
        jittered = shuffled[n // 3 : 2 * (n // 3)]
        boxed[:, self.numbers] = self.low + (self.high - self.low) * self._uniform(
            len(boxed), len(self.numbers)
        )
        # The classes returned below are those of ``base``, so it has to name the rows that are
        # jittered.
        base[n // 3 : 2 * (n // 3)] = self._draw(len(self.rows), len(jittered))
        real = self.rows[base[n // 3 : 2 * (n // 3)]]
        low, high = torch.tensor(_JITTER, dtype=torch.float32).log()
        # One size per row, from hardly moved to far away, so that the boundary is learned at every
        # scale.
        size = torch.exp(low + (high - low) * self._uniform(len(real), 1))
        normal = torch.randn(
            len(real), len(self.numbers), generator=self.rng, dtype=torch.float32
        ).to(real)
        real[:, self.numbers] += size * normal
        jittered.copy_(real)
        return self.lend(shuffled), self.labels[base]

    def lend(self, x: Tensor) -> Tensor:
        """Points x ``(n, d)``, some of them with the immutable columns of a random row; x itself if
        none are immutable.
        """
        if not self.conditional:
            return x
        anybody = self.rows[self._draw(len(self.rows), len(x))]
        return torch.where((self._uniform(len(x), 1) < _LENT) & self.immutable, anybody, x)

    def search(self) -> None:
        """Search counterfactuals of random rows on the current gated model, and store the mature
        ones.
        """
        config = self.config
        num_classes = len(self.gated.gate.judged)
        rows = self._draw(len(self.rows), config.num_counterfactuals)
        x = self.rows[rows].unflatten(-1, self.feature_shape)
        with torch.no_grad():
            predicted = self.gated.model(x).argmax(-1)
        # Shifted by 1..k−1: any class but the predicted one.
        target = (predicted + 1 + self._draw(num_classes - 1, len(rows))) % num_classes
        low, high = config.threshold
        # Counterfactuals of all confidences are asked for later, so the gate must know them all.
        threshold = low + (high - low) * float(
            torch.rand((), generator=self.rng, dtype=torch.float32)
        )
        generator = line(max_steps=config.max_steps, decision_threshold=threshold)
        result = search(
            self.gated,
            x,
            target,
            generator,
            self.constraints,
            real_rows=False,
            diagnose=False,
        )
        # Only mature ones: others were not taken for the target by the gated model either.
        x_cf = result.x_cf.flatten(1)[result.mature]
        target = target[result.mature]
        # A counterfactual more typical than half of the real rows is no negative.
        weight = (1 - 2 * self.typical.p_value(self._free(x_cf), target)).clamp_min(0.0)
        for name, new in {"x_cf": x_cf, "target": target, "weight": weight}.items():
            setattr(self, name, torch.cat([getattr(self, name), new])[-config.replay :])

    def recall(self, n: int) -> tuple[Tensor, Tensor, Tensor]:
        """n random stored counterfactuals, their classes and weights; empty until there are
        some.
        """
        rows = self._draw(len(self.x_cf), n if len(self.x_cf) else 0)
        return self.x_cf[rows], self.target[rows], self.weight[rows]

    def _free(self, x: Tensor) -> Tensor:
        if self.conditional:
            return x[:, ~self.immutable]
        return x

    def _draw(self, high: int, n: int) -> Tensor:
        # High is 0 where there is nothing to draw from, and n then is 0, too.
        return torch.randint(max(1, high), (n,), generator=self.rng).to(self.rows.device)

    def _uniform(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self.rng, dtype=torch.float32).to(self.rows)


class Typicality:
    """Conformal p-values: the share of real rows of a class that lie further from their
    neighbours.
    """

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.references = {}
        self.distances = {}
        for label in y.unique().tolist():
            rows_of_class = x[y == label]
            # Distances of other rows to the references: compared with themselves, rows would look
            # too near.
            split = min(_REFERENCES, max(1, len(rows_of_class) // 2))
            self.references[label] = rows_of_class[
                :split
            ].clone()  # a view would keep all rows alive
            self.distances[label] = (
                self._distance(rows_of_class[split:][:1000], label).sort().values
            )

    def p_value(self, x: Tensor, y: Tensor) -> Tensor:
        """``(n,)`` for points ``(n, d)`` and classes ``(n,)``; 0 means further than all real
        rows.
        """
        out = x.new_zeros(len(x))
        for label in y.unique().tolist():
            # Without rows to compare with, 0: treated as implausible.
            class_distances = self.distances.get(label, x.new_empty(0))
            if len(class_distances):
                further = len(class_distances) - torch.searchsorted(
                    class_distances, self._distance(x[y == label], label)
                )
                out[y == label] = further.to(x) / len(class_distances)
        return out

    def _distance(self, x: Tensor, label: int) -> Tensor:
        references = self.references[label]
        nearest = torch.cdist(x, references).topk(
            min(_NEIGHBOURS, len(references)), -1, largest=False
        )
        return nearest.values.mean(-1)
