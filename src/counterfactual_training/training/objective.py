"""The training objective (Eq. 2): class loss + λ_div·divergence + λ_reg·ridge + λ_adv·CE(x_adv).

Beyond the paper, with weights of 0 unless asked for: λ_contrast·logistic contrast +
    λ_recourse·recourse loss.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import IntEnum
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from counterfactual_training.core.broadcast import Number, per_member
from counterfactual_training.core.energy import contrastive_divergence, energy_ridge
from counterfactual_training.core.losses import adversarial_loss, class_loss, logistic_contrast
from counterfactual_training.core.precision import at_least_single
from counterfactual_training.defaults import OBJECTIVES as ABLATIONS
from counterfactual_training.errors import InputError, check_name, lookup


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
        >>> found = ct.search(model, x, y_target, ct.ecco())
        >>> batch = ct.CounterfactualBatch(
        ...     found.x_cf, x_pos, found.x_adv, y_target, y, weight=found.mature
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


class Batch(NamedTuple):
    """The rows and counterfactuals of one mini-batch.

    Where several processes have parts of one batch, ``shares`` are the sizes of this part relative
    to an even one: of the rows, of the counterfactuals, and of the adversarial examples.
    """

    x: Tensor  # (..., n, *features)
    y: Tensor  # (..., n)
    weight: Tensor | None = None  # (..., n) what each row counts in the class loss
    explanations: Any = None  # counterfactuals, or whatever a regime found
    shares: tuple[float, float, float] = (1.0, 1.0, 1.0)

    def explained(
        self, explanations: CounterfactualBatch, contrast: float, adversarial: float
    ) -> Batch:
        return self._replace(
            explanations=explanations, shares=(self.shares[0], contrast, adversarial)
        )


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
        >>> own = ct.LossTerms.sum(
        ...     terms.logits, class_loss=terms.class_loss, other=torch.tensor(1.0)
        ... )
        >>> print(f"{own.total:.3f}")
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
    def sum(cls, logits: Tensor, **terms: Tensor) -> LossTerms:
        """The sum of terms ``(...)``, of a regime's own loss; the history shows those that have the
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


class RowTerms(NamedTuple):
    """Eq. 2 as a sum over all rows of a batch: ``Σ cross·CE(label) + energy·E(label) +
    ridge·E(label)²``, and beyond it ``|contrast|·softplus(±(m(label) − m₀))`` with the sign of
    ``contrast``.

    That has a gradient in closed form: ``cross·(softmax − onehot) − (energy + 2·ridge·E)·onehot``,
    and ``contrast·σ(±(m − m₀))·(onehot − softmax of the others)``.
    """

    cross: Tensor  # (..., R)
    energy: Tensor
    ridge: Tensor
    contrast: Tensor | None


class Role(IntEnum):
    """What a row is for; numbers, so that tensors can hold them."""

    CLASS, POSITIVE, COUNTERFACTUAL, ADVERSARIAL, RECOURSE = range(5)


class Part(NamedTuple):
    """The rows of a batch with one role."""

    role: Role
    x: Tensor  # (..., m, *features)
    label: Tensor  # (..., m)
    weight: Tensor | None  # (..., m)


@dataclass(frozen=True, eq=False)
class Objective:
    """Eq. 2 with named weights. The ablations are zero weights: see :data:`OBJECTIVES`.

    Attributes:
        lambda_class: of the class loss.
        lambda_div: of the contrastive divergence (Eq. 3).
        lambda_reg: of the ridge on energies.
        lambda_adv: of the adversarial loss (Eq. 4).
        lambda_contrast: of :func:`logistic_contrast`, a bounded divergence.
        lambda_recourse: of the class loss at nascent counterfactuals labelled as their *target*
            (Ross, Lakkaraju and Bastani 2021), which brings people closer to the decision.
            :func:`train` and :class:`Fleet` drop it if no feature is immutable: recourse is cheap
            then, and the term would cost plausibility.

    Examples:
        >>> import counterfactual_training as ct
        >>> data, model = ct.load_dataset("moons"), ct.mlp(2, 2)
        >>> x, y = data.x_train[data.y_train == 0][:30], data.y_train[data.y_train == 0][:30]
        >>> found = ct.search(model, x, 1 - y, ct.ecco())
        >>> x_pos = data.x_train[data.y_train == 1][:30]  # real rows of the target class
        >>> batch = ct.CounterfactualBatch(found.x_cf, x_pos, found.x_adv, y_target=1 - y, y_adv=y)
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
        for name in (own.name for own in fields(Objective)):
            weight = getattr(self, name)
            if isinstance(weight, Tensor):
                values = weight.flatten().tolist()
            else:
                values = [weight]
            if any(not 0 <= value < float("inf") for value in values):
                raise InputError(f"{name} must be a finite number of at least 0, got {weight}.")

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

    def total(
        self, class_loss: Tensor, divergence: Tensor, ridge: Tensor, adversarial: Tensor
    ) -> Tensor:
        """The weighted sum of the terms of Eq. 2, each ``(...)``, or ``(..., batches)``."""
        # λ may be (members,); a dimension of batches comes after it
        trailing = class_loss.dim() - 1
        return (
            per_member(self.lambda_class, trailing) * class_loss
            + per_member(self.lambda_div, trailing) * divergence
            + per_member(self.lambda_reg, trailing) * ridge
            + per_member(self.lambda_adv, trailing) * adversarial
        )

    @property
    def has_closed_form(self) -> bool:
        """Whether :meth:`by_rows` is this objective; a subclass with a loss or total of its own
        gets autograd.
        """
        return type(self).__call__ is Objective.__call__ and type(self).total is Objective.total

    def by_rows(self, role: Tensor, count: Tensor, weight: Tensor | None) -> RowTerms:
        """The weights of rows ``(R,)`` by what they are for, over the count of rows in their mean
        ``(..., R)``.
        """

        def term(weights: dict[Role, Number]) -> Tensor:
            parts = [
                per_member(w, 1) * (role == kind).to(count.dtype) for kind, w in weights.items()
            ]
            value = sum(parts[1:], parts[0]) / count
            if weight is None:
                return value
            return value * weight

        # Signs as in Eq. 2: energies of x⁺ are lowered, those of x′ raised.
        contrasted = {
            Role.POSITIVE: -self.lambda_contrast,
            Role.COUNTERFACTUAL: self.lambda_contrast,
        }
        return RowTerms(
            term(
                {
                    Role.CLASS: self.lambda_class,
                    Role.ADVERSARIAL: self.lambda_adv,
                    Role.RECOURSE: self.lambda_recourse,
                }
            ),
            term({Role.POSITIVE: self.lambda_div, Role.COUNTERFACTUAL: -self.lambda_div}),
            term({Role.POSITIVE: self.lambda_reg, Role.COUNTERFACTUAL: self.lambda_reg}),
            term(contrasted) if _nonzero(self.lambda_contrast) else None,
        )

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
        parts = self.parts(x, y, weight, explanations)
        rows = y.dim() - 1
        joined = at_least_single(
            model(torch.cat([part.x for part in parts], rows)) if len(parts) > 1 else model(x)
        )
        split = joined.split([part.x.shape[rows] for part in parts], rows)
        found = {
            part.role: (logits, part.label, part.weight)
            for part, logits in zip(parts, split, strict=True)
        }
        classes = class_loss(*found[Role.CLASS])
        none = torch.zeros_like(classes)
        divergence = none
        ridge = none
        contrast = None
        if Role.POSITIVE in found:
            pairs = (found[Role.POSITIVE][0], *found[Role.COUNTERFACTUAL])
            divergence = contrastive_divergence(*pairs)
            ridge = energy_ridge(*pairs)
            if _nonzero(self.lambda_contrast):
                contrast = logistic_contrast(*pairs)
            else:
                contrast = None
        if Role.ADVERSARIAL in found:
            adversarial = adversarial_loss(*found[Role.ADVERSARIAL])
        else:
            adversarial = none
        if Role.RECOURSE in found:
            recourse = class_loss(*found[Role.RECOURSE])
        else:
            recourse = None
        total = self.total(classes, divergence, ridge, adversarial)
        for weight_of, term in (
            (self.lambda_contrast, contrast),
            (self.lambda_recourse, recourse),
        ):
            if term is not None:
                total = total + weight_of * term
        return LossTerms(
            total,
            classes,
            divergence,
            ridge,
            adversarial,
            found[Role.CLASS][0],
            contrast,
            recourse,
        )

    def parts(
        self, x: Tensor, y: Tensor, weight: Tensor | None, found: CounterfactualBatch | None
    ) -> list[Part]:
        """The rows that count in the loss."""
        parts = [Part(Role.CLASS, x, y, weight)]
        if found is None:
            return parts
        if self.needs_divergence:
            parts.append(Part(Role.POSITIVE, found.x_pos, found.y_target, found.weight))
            parts.append(Part(Role.COUNTERFACTUAL, found.x_cf, found.y_target, found.weight))
        if self.needs_adversarial:
            parts.append(Part(Role.ADVERSARIAL, found.x_adv, found.y_adv, found.weight_adv))
        if self.needs_recourse:
            parts.append(Part(Role.RECOURSE, found.x_adv, found.y_target, found.weight_adv))
        return parts


OBJECTIVES = {name: Objective(**weights) for name, weights in ABLATIONS.items()}


def make_objective(name: str, **weights: float) -> Objective:
    """The objective of that name; weights are overridden only where the objective uses them.

    Args:
        name: a key of :data:`OBJECTIVES`: ``"full"``, ``"vanilla"`` (class loss alone),
            ``"divergence"`` or ``"adversarial"``.
        weights: by the names of the attributes of :class:`Objective`.

    Examples:
        >>> import counterfactual_training as ct
        >>> objective = ct.make_objective("divergence", lambda_div=0.25, lambda_adv=0.25)
        >>> objective.lambda_div, objective.lambda_adv  # "divergence" has no adversarial term
        (0.25, 0.0)
        >>> ct.make_objective("vanilla").needs_counterfactuals
        False
    """
    objective = lookup("objective", name, OBJECTIVES)
    for weight in weights:
        check_name("weight", weight, vars(objective))
    return replace(
        objective,
        **{key: value for key, value in weights.items() if _nonzero(getattr(objective, key))},
    )


def _nonzero(weight: Number) -> bool:
    if isinstance(weight, Tensor):
        return bool((weight != 0).any())
    return weight != 0
