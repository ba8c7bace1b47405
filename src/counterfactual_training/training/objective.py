"""The training objective (Eq. 2): class loss + λ_div·divergence + λ_reg·ridge + λ_adv·CE(x_adv).

Beyond the paper, with weights of 0 unless asked for: λ_contrast·logistic contrast +
    λ_recourse·recourse loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from numbers import Real
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from counterfactual_training.core.broadcast import Number
from counterfactual_training.core.eq2 import Eq2, Means, Role, Rows, Table, table
from counterfactual_training.core.losses import class_loss
from counterfactual_training.core.precision import at_least_single
from counterfactual_training.errors import InputError, bad_value


class CounterfactualBatch(NamedTuple):
    """Counterfactuals ready for the objective; m rows, all constants.

    Attributes:
        x_cf: ``(..., m, *features)`` mature counterfactuals x′.
        x_pos: ``(..., m, *features)`` real samples of the target class x⁺, protected.
        x_adv: ``(..., m, *features)`` nascent counterfactuals.
        y_target: ``(..., m)`` target classes.
        y_adv: ``(..., m)`` labels of x_adv.
        weight: ``(..., m)`` what rows count in divergence and ridge; ``None`` counts all alike.
        weight_adv: ``(..., m)`` what rows count in the adversarial loss; ``None`` counts all alike.

    Examples:
        >>> import torch
        >>> import counterfactual_training as ct
        >>> data, model = ct.load_dataset("moons"), ct.mlp(2, 2)
        >>> x, x_pos = data.x_train[data.y_train == 0][:30], data.x_train[data.y_train == 1][:30]
        >>> y, y_target = torch.zeros(30).long(), torch.ones(30).long()
        >>> result = ct.search(model, x, y_target, ct.ecco())
        >>> batch = ct.CounterfactualBatch(
        ...     result.x_cf, x_pos, result.x_adv, y_target, y, weight=result.mature
        ... )
        >>> [len(part.x_cf) for part in batch.split([10, 20])]
        [10, 20]
    """

    x_cf: Tensor
    x_pos: Tensor
    x_adv: Tensor
    y_target: Tensor
    y_adv: Tensor
    weight: Tensor | None = None
    weight_adv: Tensor | None = None

    def split(self, sizes: list[int]) -> list[CounterfactualBatch]:
        """Consecutive rows, so many for each batch."""
        dim = self.y_target.dim() - 1
        parts = [
            [None] * len(sizes) if value is None else value.split(sizes, dim) for value in self
        ]
        return [CounterfactualBatch(*row) for row in zip(*parts, strict=True)]


class Totals(NamedTuple):
    """What the rows of a whole batch weigh ``(...)``, of which this process has a part."""

    rows: Tensor
    contrast: Tensor
    adversarial: Tensor
    here: int  # rows that this process has; without any, it takes one that weighs nothing


class Batch(NamedTuple):
    """The rows and counterfactuals of one mini-batch."""

    x: Tensor  # (..., n, *features)
    y: Tensor  # (..., n)
    weight: Tensor | None = None  # (..., n) what each row counts in the class loss
    explanations: Any = None  # counterfactuals, or whatever a method found
    totals: Totals | None = None  # where several processes have parts of one batch


@dataclass(frozen=True)
class LossTerms:
    """The terms of the objective, each ``()`` or one per member, and their weighted sum.

    Attributes:
        total: the weighted sum, which is minimised.
        class_loss: of the rows themselves.
        divergence: contrastive divergence (Eq. 3); 0 without counterfactuals.
        ridge: of the energies; 0 without counterfactuals.
        adversarial: class loss at nascent counterfactuals (Eq. 4); 0 without counterfactuals.
        logits: ``(..., n, k)`` of the mini-batch.
        contrast: logistic contrast; ``None`` where it has no weight.
        recourse: recourse loss; ``None`` where it has no weight.

    Examples:
        >>> import torch
        >>> import counterfactual_training as ct
        >>> x, y = torch.zeros(4, 2), torch.tensor([0, 1, 0, 1])
        >>> terms = ct.Objective()(ct.linear(2, 2), x, y)  # no x′: the class loss alone
        >>> print(f"{terms.total:.3f} = {terms.class_loss:.3f} + {terms.divergence:.3f}")
        0.693 = 0.693 + 0.000
        >>> summed = ct.LossTerms.sum(
        ...     terms.logits, class_loss=terms.class_loss, other=torch.tensor(1.0)
        ... )
        >>> print(f"{summed.total:.3f}")
        1.693
    """

    total: Tensor
    class_loss: Tensor
    divergence: Tensor
    ridge: Tensor
    adversarial: Tensor
    logits: Tensor
    contrast: Tensor | None = None
    recourse: Tensor | None = None

    @classmethod
    def of(
        cls, total: Tensor, means: dict[Role, Means], logits: Tensor, objective: Objective
    ) -> LossTerms:
        """The terms of Eq. 2, from the means over the rows of every role."""
        none = torch.zeros_like(total)
        divergence = none
        ridge = none
        adversarial = none
        contrast = None
        recourse = None
        if Role.POSITIVE in means:
            real = means[Role.POSITIVE]
            counterfactual = means[Role.COUNTERFACTUAL]
            divergence = real.energy - counterfactual.energy
            ridge = real.square + counterfactual.square
            if _nonzero(objective.lambda_contrast):
                contrast = counterfactual.contrast - real.contrast
        if Role.ADVERSARIAL in means:
            adversarial = means[Role.ADVERSARIAL].cross_entropy
        if Role.RECOURSE in means:
            recourse = means[Role.RECOURSE].cross_entropy
        fit = means[Role.CLASS].cross_entropy
        return cls(total, fit, divergence, ridge, adversarial, logits, contrast, recourse)

    @classmethod
    def sum(cls, logits: Tensor, **terms: Tensor) -> LossTerms:
        """The sum of terms ``(...)``, of a loss of one's own; the history shows those that have the
        names above.
        """
        values = list(terms.values())
        if not values or not all(isinstance(value, Tensor) for value in values):
            came = (
                ", ".join(f"{name}={type(value).__name__}" for name, value in terms.items())
                or "no terms"
            )
            raise InputError(
                f"LossTerms.sum takes terms that are tensors, such as class_loss=…; got {came}."
            )
        total = sum(values[1:], values[0])
        none = torch.zeros_like(values[0])
        shown = {
            name: terms.get(name, none)
            for name in ("class_loss", "divergence", "ridge", "adversarial")
        }
        return cls(total, logits=logits, **shown)


def check_terms(terms: Any, lead: torch.Size, whose: str) -> None:
    """Raise unless a loss, which may be a user's own, returned terms with one value per member
    ``(*lead)``.
    """
    if not isinstance(terms, LossTerms):
        raise InputError(
            f"{whose} must return LossTerms, got {type(terms).__name__}: "
            "return ct.LossTerms.sum(logits, class_loss=…, other=…)."
        )
    for name in ("total", "class_loss", "divergence", "ridge", "adversarial"):
        shape = getattr(terms, name).shape
        if shape != lead:
            raise InputError(
                f"{whose} must have one value per member, shape {tuple(lead)}, got {name} of "
                f"shape {tuple(shape)}: "
                "take the mean over the rows."
            )


@dataclass(frozen=True, eq=False)
class Objective:
    """Eq. 2 with named weights. The ablations are zero weights.

    Attributes:
        lambda_class: of the class loss.
        lambda_div: of the contrastive divergence (Eq. 3).
        lambda_reg: of the ridge on energies.
        lambda_adv: of the adversarial loss (Eq. 4).
        lambda_contrast: of the contrast ``softplus(m₀ − m(x⁺)) + softplus(m(x′) − m₀)`` of the
            target's log-odds m, m₀ = logit .95: a divergence that is bounded below.
        lambda_recourse: of the class loss at nascent counterfactuals labelled as their *target*
            (Ross, Lakkaraju and Bastani 2021), which brings people closer to the decision.
            :func:`train` and :class:`Fleet` drop it if no feature is immutable: recourse is cheap
            then, and the term would cost plausibility.

    Examples:
        >>> import counterfactual_training as ct
        >>> data, model = ct.load_dataset("moons"), ct.mlp(2, 2)
        >>> x, y = data.x_train[data.y_train == 0][:30], data.y_train[data.y_train == 0][:30]
        >>> result = ct.search(model, x, 1 - y, ct.ecco())
        >>> x_pos = data.x_train[data.y_train == 1][:30]  # real rows of the target class
        >>> batch = ct.CounterfactualBatch(
        ...     result.x_cf, x_pos, result.x_adv, y_target=1 - y, y_adv=y
        ... )
        >>> ct.Objective(lambda_div=0.25)(model, x, y, batch).total.backward()
        >>> model[0].weight.grad.shape
        torch.Size([32, 2])
    """

    lambda_class: Number = 1.0
    lambda_div: Number = 0.5
    lambda_reg: Number = 0.1
    lambda_adv: Number = 0.25
    lambda_contrast: Number = 0.0
    lambda_recourse: Number = 0.0

    def __post_init__(self) -> None:
        # A subclass may have others that are not weights.
        for name in (field.name for field in fields(Objective)):
            weight = getattr(self, name)
            if isinstance(weight, Tensor):
                values = weight.flatten().tolist()
            else:
                values = [weight]
            numbers = all(isinstance(v, Real) and not isinstance(v, bool) for v in values)
            if not numbers or any(not 0 <= value < float("inf") for value in values):
                raise bad_value(name, "a finite number of at least 0", weight)

    @property
    def needs_divergence(self) -> bool:
        """Whether x⁺ and x′ count."""
        return (
            _nonzero(self.lambda_div)
            or _nonzero(self.lambda_reg)
            or _nonzero(self.lambda_contrast)
        )

    @property
    def lacks_ridge(self) -> bool:
        """Whether nothing bounds the divergence, which then falls without end.

        A subclass may bound it in a way of its own.
        """
        return (
            self.has_closed_form and _nonzero(self.lambda_div) and not _nonzero(self.lambda_reg)
        )

    @property
    def needs_adversarial(self) -> bool:
        """Whether x_adv counts with its factual's label."""
        return _nonzero(self.lambda_adv)

    @property
    def needs_recourse(self) -> bool:
        """Whether x_adv counts with its target's label."""
        return _nonzero(self.lambda_recourse)

    @property
    def needs_counterfactuals(self) -> bool:
        """Whether any term needs a search."""
        return self.needs_divergence or self.needs_adversarial or self.needs_recourse

    @property
    def title(self) -> str:
        """For messages."""
        return f"The objective {type(self).__name__}"

    def fit_loss(self, outputs: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
        """The loss of rows by themselves ``(...)``: during burn-in, and on validation rows."""
        return class_loss(outputs, y, weight)

    def hits(self, outputs: Tensor, y: Tensor) -> Tensor:
        """How many rows are predicted right ``(...)``."""
        return (outputs.argmax(-1) == y).sum(-1)

    @property
    def has_closed_form(self) -> bool:
        """Whether this is Eq. 2; a subclass with a loss of its own gets autograd."""
        return type(self).__call__ is Objective.__call__

    @property
    def table(self) -> Table:
        """Eq. 2 with these weights."""
        return table(**{field.name: getattr(self, field.name) for field in fields(Objective)})

    def __call__(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        explanations: CounterfactualBatch | None = None,
        weight: Tensor | None = None,
    ) -> LossTerms:
        """The loss of a mini-batch, by one forward pass through everything that counts.

        Args:
            model: returns logits.
            x: ``(..., n, *features)``.
            y: ``(..., n)``.
            explanations: this batch's counterfactuals; without any (burn-in) only the class loss
                remains.
            weight: ``(..., n)`` what each row counts in the class loss; ``None`` counts all alike.
        """
        # One forward pass for all roles: cheaper, and batch statistics see all rows.
        (parts,) = self.rows([Batch(x, y, weight, explanations)])
        rows = y.dim() - 1
        joined = at_least_single(
            model(torch.cat([part.x for part in parts], rows)) if len(parts) > 1 else model(x)
        )
        eq2 = Eq2(self.table, [parts], joined.shape[-1])
        means = eq2.means(joined)
        logits = joined.narrow(rows, 0, x.shape[rows])
        return LossTerms.of(
            eq2.total(means).squeeze(0),
            {
                role: Means(*(value.squeeze(0) for value in sums))
                for role, sums in means.items()
            },
            logits,
            self,
        )

    def rows(self, batches: Sequence[Batch]) -> list[list[Rows]]:
        """The rows of every batch that count in the loss, by role."""
        contrasts = self.needs_divergence
        adversarial = self.needs_adversarial
        recourse = self.needs_recourse
        rows_of_batches = []
        for x, y, weight, explanations, totals in batches:
            parts = [Rows(Role.CLASS, x, y, weight, totals and totals.rows)]
            rows_of_batches.append(parts)
            if explanations is None:
                continue
            target = explanations.y_target
            pair = (target, explanations.weight, totals and totals.contrast)
            nascent = (explanations.weight_adv, totals and totals.adversarial)
            if contrasts:
                parts.append(Rows(Role.POSITIVE, explanations.x_pos, *pair))
                parts.append(Rows(Role.COUNTERFACTUAL, explanations.x_cf, *pair))
            if adversarial:
                parts.append(
                    Rows(Role.ADVERSARIAL, explanations.x_adv, explanations.y_adv, *nascent)
                )
            if recourse:
                parts.append(Rows(Role.RECOURSE, explanations.x_adv, target, *nascent))
        return rows_of_batches


def _nonzero(weight: Number) -> bool:
    if isinstance(weight, Tensor):
        return bool((weight != 0).any())
    return weight != 0
