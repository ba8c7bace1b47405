"""Eq. 2, stated once: the weight of a row by its role. Every training by Eq. 2 runs this code.

``L = CE(x, y) + λ_div·[E(x⁺) − E(x′)] + λ_reg·[E(x⁺)² + E(x′)²] + λ_adv·CE(x_adv, y)``, each a mean
over rows, with ``E(x) = −M(x)[y⁺]``. Beyond the paper: ``λ_recourse·CE(x_adv, y⁺)``, one more role,
and λ_contrast, one more column.

It is a sum over rows, so rows may be divided at will: among mini-batches that are prepared
together, or among processes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from counterfactual_training.core.broadcast import Number
from counterfactual_training.torch_internals import log_softmax_backward

# m₀ of the contrast: the logit of .95.
CONTRAST_GOAL = math.log(0.95 / 0.05)


class Role(IntEnum):
    """What a row is for; numbers, so that tensors can hold them."""

    CLASS, POSITIVE, COUNTERFACTUAL, ADVERSARIAL, RECOURSE = range(5)


_ROLES = tuple(Role)


class Counts(NamedTuple):
    """Weights of the means over the rows of a role in the loss."""

    cross_entropy: Number = 0.0
    energy: Number = 0.0
    square: Number = 0.0  # of the energy
    contrast: Number = 0.0


Table = dict[Role, Counts]


def table(
    lambda_class: Number,
    lambda_div: Number,
    lambda_reg: Number,
    lambda_adv: Number,
    lambda_contrast: Number = 0.0,
    lambda_recourse: Number = 0.0,
) -> Table:
    """Eq. 2: the loss is the sum of all entries times the means of their rows."""
    return {
        Role.CLASS: Counts(cross_entropy=lambda_class),
        Role.POSITIVE: Counts(
            energy=lambda_div, square=lambda_reg, contrast=-1 * lambda_contrast
        ),
        Role.COUNTERFACTUAL: Counts(
            energy=-1 * lambda_div, square=lambda_reg, contrast=lambda_contrast
        ),
        Role.ADVERSARIAL: Counts(cross_entropy=lambda_adv),
        Role.RECOURSE: Counts(cross_entropy=lambda_recourse),
    }


class Rows(NamedTuple):
    """The rows of a mini-batch with one role."""

    role: Role
    x: Tensor  # (..., m, *features)
    label: Tensor  # (..., m): y, or the target y⁺
    weight: Tensor | None = None  # (..., m) what each row counts in the mean
    total: Tensor | None = None  # (...) weight of the whole batch, where these are a part of it


class Means(NamedTuple):
    """Means over the rows of one role in every batch ``(batches, *lead)``."""

    cross_entropy: Tensor
    energy: Tensor
    square: Tensor
    contrast: Tensor
    hits: Tensor  # a sum: rows whose label is predicted


class Eq2:
    """Eq. 2 of the rows of some mini-batches: its gradient in closed form, and its value.

    Args:
        entries: :func:`table`; numbers may be ``(members,)`` in a fleet.
        batches: the rows of each mini-batch, by role.
        num_classes: k.
        classes: the dimension of classes in logits: -1, or -2 where rows come last.
    """

    def __init__(
        self,
        entries: Table,
        batches: Sequence[Sequence[Rows]],
        num_classes: int,
        classes: int = -1,
    ) -> None:
        parts = [part for batch in batches for part in batch]
        first = parts[0]
        self.entries = entries
        self.classes = classes
        self.rows = -3 - classes
        self.dtype = torch.promote_types(first.x.dtype, torch.float32)
        self.lead = first.label.shape[:-1]
        # Rows of each role in each batch.
        self.counts = [_counts(batch) for batch in batches]
        self.sizes = [sum(counts) for counts in self.counts]
        self.roles = [role for role in _ROLES if any(counts[role] for counts in self.counts)]
        device = first.label.device
        layout = torch.tensor(
            [(int(part.role), part.label.shape[-1]) for part in parts], device=device
        )
        # Of every row ``(R,)``.
        role, count = layout.repeat_interleave(layout[:, 1], 0).unbind(-1)
        self.role = role
        self.count = count.to(self.dtype)
        self.weight: Tensor | None = None
        if any(part.weight is not None or part.total is not None for part in parts):
            self._weigh(parts)
        label = torch.cat([part.label for part in parts], -1).unsqueeze(classes)
        shape = [*label.shape]
        shape[classes] = num_classes
        self.one_hot = torch.zeros(shape, dtype=self.dtype, device=device)
        self.one_hot.scatter_(classes, label, 1)

    def _weigh(self, parts: Sequence[Rows]) -> None:
        """Weights of rows, and what they sum up to in their batch, instead of numbers of rows."""
        weights = []
        totals = []
        for part in parts:
            weight = part.weight
            if weight is None:
                weight = torch.ones_like(part.label, dtype=self.dtype)
            weight = weight.to(self.dtype)
            total = part.total
            if total is None:
                total = weight.sum(-1)
            # Where all weights are 0, so are the terms; the floor keeps them from being 0/0.
            total = total.to(self.dtype).clamp_min(1e-12)
            weights.append(weight)
            totals.append(total.unsqueeze(-1).expand(weight.shape))
        self.weight = torch.cat(weights, -1)
        self.count = torch.cat(totals, -1)

    # ---- the gradient ----------------------------------------------------------------------------

    def gradients(self) -> Iterator[Gradient]:
        """∂L/∂logits of every batch, as functions of its logits.

        ``cross_entropy·(softmax − onehot) − (energy + 2·square·E)·onehot``
        ``+ contrast·σ(±(m − m₀))·(onehot − softmax of the others)``
        """
        # Signs: ∂(−log p)/∂log p = −1, and E = −logit, so ∂E/∂logit = −1 and ∂E²/∂logit = 2·logit.
        scales = [-self._column("cross_entropy")]
        energies = Role.POSITIVE in self.roles
        if energies:
            scales += [-self._column("energy"), 2 * self._column("square")]
        columns = [self.one_hot * scale.unsqueeze(self.classes) for scale in scales]
        pieces = [column.split(self.sizes, self.rows) for column in columns]
        if energies and self._contrasts:
            pieces.append(self.one_hot.split(self.sizes, self.rows))
            pieces.append(self._column("contrast").split(self.sizes, -1))
        for tensors in zip(*pieces, strict=True):
            yield Gradient(self.classes, *tensors)

    def _column(self, name: str) -> Tensor:
        """An entry of the table for every row, over the number of rows in its mean ``(..., R)``."""
        numbers = [getattr(self.entries[role], name) for role in _ROLES]
        if any(isinstance(number, Tensor) for number in numbers):
            filled = [
                torch.as_tensor(number, dtype=self.dtype, device=self.role.device)
                for number in numbers
            ]
            entry = torch.stack(torch.broadcast_tensors(*filled), -1)
        else:
            entry = torch.tensor(numbers, dtype=self.dtype, device=self.role.device)
        value = entry[..., self.role] / self.count
        if self.weight is None:
            return value
        return value * self.weight

    @property
    def _contrasts(self) -> bool:
        entry = self.entries[Role.COUNTERFACTUAL].contrast
        if isinstance(entry, Tensor):
            return bool(entry.any())
        return entry != 0

    # ---- the value -------------------------------------------------------------------------------

    def means(self, logits: Tensor) -> dict[Role, Means]:
        """What the table is multiplied with; differentiable in the logits of all rows."""
        one_hot = self.one_hot.to(logits.dtype)
        log_probability = torch.log_softmax(logits, self.classes)
        label_logit = (logits * one_hot).sum(self.classes)  # −E
        # The share of a row in its mean.
        if self.weight is None:
            share = 1 / self.count
        else:
            share = self.weight / self.count
        values = [
            -(log_probability * one_hot).sum(self.classes) * share,
            -label_logit * share,
            label_logit.square() * share,
        ]
        if self._contrasts:
            odds, _ = _log_odds(logits, one_hot, self.classes)
            side = 1 - 2 * (self.role == Role.POSITIVE).to(odds.dtype)
            values.append(side * softplus(side * (odds - CONTRAST_GOAL)) * share)
        else:
            values.append(torch.zeros_like(label_logit))
        values.append((label_logit >= logits.amax(self.classes)).to(label_logit.dtype))
        return self._sums(torch.stack(values))

    def _sums(self, values: Tensor) -> dict[Role, Means]:
        """Over the rows of each role, batch by batch."""
        counts = {role: [batch[role] for batch in self.counts] for role in self.roles}
        # Usual: all batches are alike, and one kernel serves them all.
        if self.counts.count(self.counts[0]) == len(self.counts):
            rows = values.unflatten(-1, (len(self.counts), -1))
            parts = rows.split([counts[role][0] for role in self.roles], -1)
            sums = [part.sum(-1) for part in parts]
        else:
            batches = [
                values[..., self.role == role].split(counts[role], -1) for role in self.roles
            ]
            sums = [torch.stack([part.sum(-1) for part in parts], -1) for parts in batches]
        return {role: Means(*sums[i].movedim(-1, 1)) for i, role in enumerate(self.roles)}

    def total(self, means: dict[Role, Means]) -> Tensor:
        """The loss of every batch ``(batches, *lead)``."""
        total = torch.zeros_like(means[self.roles[0]].energy)
        for role, sums in means.items():
            for entry, mean in zip(self.entries[role], sums[:-1], strict=True):
                if isinstance(entry, Tensor):
                    # 0·∞ is NaN, and values of weight 0 may be infinite.
                    total = total + torch.where(entry != 0, entry * mean, 0.0)
                elif entry != 0:
                    total = total + entry * mean
        return total


class Gradient(NamedTuple):
    """∂L/∂logits of one batch; tensors like its logits, zero but at the labels."""

    classes: int
    cross_entropy: Tensor
    energy: Tensor | None = None
    square: Tensor | None = None
    one_hot: Tensor | None = None
    contrast: Tensor | None = None  # (..., R)

    def __call__(self, logits: Tensor) -> Tensor:
        log_probability = torch.log_softmax(logits, self.classes)
        grad = log_softmax_backward(self.cross_entropy, log_probability, self.classes)
        if self.energy is not None and self.square is not None:
            grad += (self.square * logits).add_(self.energy)
        if self.contrast is not None and self.one_hot is not None:
            odds, others = _log_odds(logits, self.one_hot, self.classes)
            side = self.contrast.sign()
            pull = self.contrast * torch.sigmoid(side * (odds - CONTRAST_GOAL))
            grad += (self.one_hot - others).mul_(pull.unsqueeze(self.classes))
        return grad

    def to(self, dtype: torch.dtype) -> Gradient:
        """For logits of another precision than the rows."""
        tensors = (None if value is None else value.to(dtype) for value in self[1:])
        return Gradient(self.classes, *tensors)  # type: ignore[arg-type]


def _log_odds(logits: Tensor, one_hot: Tensor, classes: int = -1) -> tuple[Tensor, Tensor]:
    """``m = M(x)[y] − log Σ_{k≠y} exp M(x)[k]`` ``(..., R)``, and the softmax of the others.

    Unlike log p − log(1 − p), this keeps its digits where p is near 0 or 1.
    """
    others = logits.masked_fill(one_hot > 0, -torch.inf)
    rest = others.logsumexp(classes, keepdim=True)
    odds = (logits * one_hot).sum(classes) - rest.squeeze(classes)
    return odds, (others - rest).exp()


def _counts(batch: Sequence[Rows]) -> list[int]:
    """Rows of each role."""
    counts = [0] * len(_ROLES)
    for part in batch:
        counts[part.role] += part.label.shape[-1]
    return counts
