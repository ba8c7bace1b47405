"""How far a feature may move: one interval per feature."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from counterfactual_training.constraints.mutability import feature_index
from counterfactual_training.errors import ConstraintError

# Values checked at once: x may be mapped from a file larger than memory.
_BLOCK_VALUES = 2**20


@dataclass(frozen=True, eq=False)
class Domain:
    """Box ``[lower, upper]``, each ``(..., d)``; infinite where a feature is unbounded.

    Attributes:
        lower: lower ends.
        upper: upper ends.
        inferred: whether the bounds describe the data: factuals outside them are pulled back by the
            search. Bounds that a user stated are strict: a factual outside them raises an error.
            One bool for all features, or a mask ``(d,)``.

    Examples:
        >>> import torch
        >>> import counterfactual_training as ct
        >>> box = ct.Domain(torch.tensor([0.0, -torch.inf]), torch.tensor([1.0, torch.inf]))
        >>> rules = ct.Constraints.build(2, domain=box)
        >>> rules.violations(torch.tensor([[1.5, 9.0]]), torch.tensor([[0.5, 8.0]]))
        tensor([[ True, False]])
        >>> ct.Domain.infer(torch.tensor([[0.0], [10.0]]), num_std=0).upper  # from data
        tensor([10.])
    """

    lower: Tensor
    upper: Tensor
    inferred: bool | Tensor = False

    def __post_init__(self) -> None:
        if self.lower.shape != self.upper.shape:
            raise ConstraintError(
                f"lower has shape {tuple(self.lower.shape)}, upper {tuple(self.upper.shape)}."
            )
        if bool(torch.isnan(self.lower).any()) or bool(torch.isnan(self.upper).any()):
            raise ConstraintError(
                "The domain contains NaN; use ±inf for a feature without a bound."
            )
        empty = (
            (self.lower > self.upper)
            .reshape(-1, self.lower.shape[-1])
            .any(0)
            .nonzero()
            .flatten()
            .tolist()
        )
        if empty:
            j = empty[0]
            low = float(self.lower[..., j].max())
            high = float(self.upper[..., j].min())
            raise ConstraintError(
                f"The domain of feature {j} is empty: lower {low:g} > upper {high:g}."
            )

    @classmethod
    def unbounded(cls, num_features: int) -> Domain:
        """A box without bounds."""
        # Inferred, because nobody stated these bounds: no factual can be refused for them.
        inf = torch.full((num_features,), torch.inf)
        return cls(-inf, inf, inferred=True)

    @classmethod
    def infer(cls, x: Tensor, num_std: float = 2.0) -> Domain:
        """The box of Eq. 12 around data ``(..., d)``, with the sample σ.

        Args:
            x: the data.
            num_std: n_σ; the paper prints 3, its code ran with 2.
        """
        flat = x.reshape(-1, x.shape[-1])
        mean = flat.mean(0)
        # The sample deviation of one row would be NaN.
        if len(flat) > 1:
            std = flat.std(0)
        else:
            std = torch.zeros_like(mean)
        return cls.around(mean, std, flat.amin(0), flat.amax(0), num_std)

    @classmethod
    def around(
        cls, mean: Tensor, std: Tensor, low: Tensor, high: Tensor, num_std: float
    ) -> Domain:
        """Eq. 12: ``[min(μ − n_σ σ, min x), max(μ + n_σ σ, max x)]``, of what is known of data;
        each ``(d,)``.
        """
        lower = torch.minimum(mean - num_std * std, low)
        upper = torch.maximum(mean + num_std * std, high)
        return cls(lower, upper, inferred=True)

    @property
    def stated(self) -> Tensor:
        """Mask ``(d,)`` of the features whose bounds the user stated."""
        return ~torch.as_tensor(self.inferred, device=self.lower.device).expand(
            self.lower.shape[-1]
        )

    def to(self, like: Tensor) -> Domain:
        """The same box on the device and in the dtype of a tensor."""
        inferred = (
            self.inferred.to(like.device)
            if isinstance(self.inferred, Tensor)
            else self.inferred
        )
        return Domain(self.lower.to(like), self.upper.to(like), inferred)

    def filled(self, other: Domain) -> Domain:
        """This box with its infinite sides taken from another; a feature is stated if one of its
        sides was.
        """
        # Side by side: a user may state one end of an interval and leave the other to the data.
        lower = torch.where(torch.isfinite(self.lower), self.lower, other.lower)
        upper = torch.where(torch.isfinite(self.upper), self.upper, other.upper)
        # An inferred side may lie beyond the stated one; the interval must not become empty.
        lower = torch.minimum(lower, self.upper)
        upper = torch.maximum(upper, self.lower)
        open_both = ~(torch.isfinite(self.lower) | torch.isfinite(self.upper))
        return Domain(lower, upper, inferred=open_both)

    def check_factuals(self, x: Tensor, name: Callable[[int], str]) -> None:
        """Raise if factuals ``(..., n, d)`` lie outside stated bounds; ``name(j)`` is what to call
        feature j.
        """
        stated = self.stated
        num_features = self.lower.shape[-1]
        if not bool(stated.any()):
            return
        # First only counts, then, for an error alone, another pass to find the row to name.
        block = max(1, _BLOCK_VALUES * x.shape[-2] // max(1, x.numel()))
        counts = stated.new_zeros(num_features, dtype=torch.long)
        for rows in x.split(block, -2):
            counts += (self._outside(rows) & stated).reshape(-1, num_features).sum(0)
        if not bool(counts.any()):
            return
        j = int(counts.argmax())
        row = int(
            torch.cat([self._outside(rows)[..., j] for rows in x.split(block, -2)], -1)
            .flatten()
            .nonzero()[0]
        )
        low, high = (
            float(bound.reshape(-1, num_features)[0, j]) for bound in (self.lower, self.upper)
        )
        raise ConstraintError(
            f"{int(counts[j])} factual(s) lie outside the domain of {name(j)!r} [{low:g}, "
            f"{high:g}]; "
            f"the first is row {row} with {float(x[..., j].flatten()[row]):g}. Widen the domain "
            "or drop these rows."
        )

    def _outside(self, x: Tensor) -> Tensor:
        # Scaling to model space and back costs the last few digits, which must not raise an error.
        slack = 1e-5 * (1 + x.abs())
        return (x < self.lower.unsqueeze(-2) - slack) | (x > self.upper.unsqueeze(-2) + slack)


def parse_domain(spec: object, num_features: int, names: Sequence[str] | None) -> Domain:
    """A domain from user input: ``None``, a :class:`Domain`, ``(lower, upper)``, or a dict from
    column to a pair.
    """
    if spec is None:
        return Domain.unbounded(num_features)
    if isinstance(spec, Domain):
        if spec.lower.shape[-1] != num_features:
            raise ConstraintError(
                f"The domain has {spec.lower.shape[-1]} features, expected {num_features}."
            )
        return spec
    lower = torch.full((num_features,), -torch.inf)
    upper = torch.full((num_features,), torch.inf)
    if isinstance(spec, Mapping):
        for key, pair in spec.items():
            j = feature_index(key, num_features, names)
            lower[j], upper[j] = _parse_interval(pair, key)
    else:
        lower[:], upper[:] = _parse_interval(spec, "all features")
    return Domain(lower, upper)


def _parse_interval(pair: object, key: object) -> tuple[float, float]:
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise ConstraintError(f"The domain of {key!r} must be (lower, upper), got {pair!r}.")
    if pair[0] is None:
        low = -torch.inf
    else:
        low = float(pair[0])
    if pair[1] is None:
        high = torch.inf
    else:
        high = float(pair[1])
    if low > high:
        raise ConstraintError(
            f"The domain of {key!r} is empty: lower {low:g} > upper {high:g}."
        )
    return low, high
