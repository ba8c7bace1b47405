"""Adam (Kingma and Ba 2015) for one model, or for the members of a fleet."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from counterfactual_training.core.precision import accumulation_dtype
from counterfactual_training.torch_internals import EPSILON, fused_adam, mark_stepped

_BETAS = (0.9, 0.999)  # torch's own


class AdamOptimizer(Optimizer):
    """The numbers of ``torch.optim.Adam(fused=True)`` with its default ε, without overhead.

    A fleet has one parameter group per member, each with its own rate and β, so that torch's
    schedulers work on fleets too; its weights are one tensor ``(M, P)``, and members may skip an
    update. Moments of half-precision weights are kept in single precision: otherwise squares of
    small gradients would be 0, and steps infinite.
    """

    # torch wraps these so that they are never compiled; the wrapper imports its compiler, two
    # seconds in every process.
    add_param_group = inspect.unwrap(Optimizer.add_param_group)
    zero_grad = inspect.unwrap(Optimizer.zero_grad)

    def __init__(
        self, parameters: Sequence[Tensor], rates: Sequence[float], lead: torch.Size
    ) -> None:
        self.tensors = list(parameters)
        self.lead = lead
        if lead:
            groups_of_parameters = [[rows] for rows in self.tensors[0].detach()]
        else:
            groups_of_parameters = [self.tensors]
        groups = [
            {"params": p, "lr": r} for p, r in zip(groups_of_parameters, rates, strict=True)
        ]
        super().__init__(groups, {"lr": 0.0, "betas": _BETAS})
        self.mean = [
            torch.zeros_like(p, dtype=torch.promote_types(p.dtype, torch.float32))
            for p in self.tensors
        ]
        self.square = [torch.zeros_like(mean) for mean in self.mean]
        self.fusable = all(
            p.dtype == mean.dtype for p, mean in zip(self.tensors, self.mean, strict=True)
        )
        # Updates made, per member; a lone run's count stays in the precision that torch's kernel
        # reads.
        self.updates = torch.zeros(lead, device=self.tensors[0].device, dtype=torch.float32)
        self.even = True  # whether all members have made the same number of updates

    def apply(self, grads: Sequence[Tensor | None], bad: Tensor | None) -> None:
        """One update with these gradients; members whose ``bad`` ``(*lead)`` is 1.0 skip it."""
        mark_stepped(self)
        numbers = [(group["lr"], *group["betas"]) for group in self.param_groups]
        if self.fusable and (
            not self.lead or (bad is None and self.even and len(set(numbers)) == 1)
        ):
            self._fused(grads, numbers[0], bad)
        else:
            self._by_formula(grads, numbers, bad)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One update with the ``.grad`` of the parameters."""
        self.apply(
            [torch.zeros_like(p) if p.grad is None else p.grad for p in self.tensors], None
        )

    def _fused(
        self,
        grads: Sequence[Tensor | None],
        numbers: tuple[float, float, float],
        bad: Tensor | None,
    ) -> None:
        self.updates += 1
        # Equal for all members, or this is not called.
        step = self.updates if not self.lead else self.updates[0]
        tensors = self.tensors
        mean = self.mean
        square = self.square
        gradients = [g for g in grads if g is not None]
        if len(gradients) < len(tensors):  # parameters without a gradient stay as they are
            places = [i for i, grad in enumerate(grads) if grad is not None]
            tensors, mean, square = (
                [column[i] for i in places] for column in (tensors, mean, square)
            )
        fused_adam(tensors, gradients, (mean, square), step, numbers, bad)
        if bad is not None:  # the kernel skipped the update, but does not take the count back
            self.updates -= bad

    def _by_formula(
        self,
        grads: Sequence[Tensor | None],
        numbers: Sequence[tuple[float, ...]],
        bad: Tensor | None,
    ) -> None:
        """With rate, β₁ and β₂, and a count of updates, for every member.

        As torch's kernel does, 1 − β is taken before it is rounded, and nothing is computed in half
        precision.
        """
        self.even = self.even and bad is None
        if bad is None:
            bad = torch.zeros_like(self.updates)
        device = self.updates.device
        dtype = accumulation_dtype(device)
        rates = torch.tensor(numbers, dtype=dtype, device=device).T  # (3, M)
        self.updates += 1 - bad
        columns = (bad == 0, self.updates.to(dtype), *rates)
        go, count, rate, beta1, beta2 = (
            c.unsqueeze(-1) if self.lead else c.reshape(()) for c in columns
        )
        size = rate / (1 - beta1**count)
        root = (1 - beta2**count).sqrt()
        for weights, mean, square, gradient in zip(
            self.tensors, self.mean, self.square, grads, strict=True
        ):
            if gradient is None:
                continue
            fresh, kept2, fresh2, step, scale = (
                v.to(mean.dtype) for v in (1 - beta1, beta2, 1 - beta2, size, root)
            )
            # 0 · NaN would be NaN: mask before, not after
            grad = torch.where(go, gradient, 0.0).to(mean.dtype)
            mean.copy_(torch.where(go, mean.lerp(grad, fresh), mean))
            square.copy_(
                torch.where(go, (kept2 * square).addcmul_(grad, grad * fresh2), square)
            )
            weights.copy_(
                weights
                - torch.where(go, mean / square.sqrt().div_(scale).add_(EPSILON) * step, 0.0)
            )

    def keep(self, members: Tensor, weights: Tensor) -> None:
        """Continue with these members, whose weights are now in a new tensor."""
        # No copies: schedulers hold these objects.
        groups = [self.param_groups[i] for i in members.tolist()]
        self.tensors = [weights]
        self.lead = torch.Size([len(members)])
        for group, rows in zip(groups, weights.detach(), strict=True):
            group["params"] = [rows]
        self.param_groups = groups
        self.mean = [self.mean[0][members]]
        self.square = [self.square[0][members]]
        self.updates = self.updates[members]

    # Not torch's layout, which is by parameter: the moments are kept outside of Optimizer.state.
    def state_dict(self) -> dict[str, Any]:
        groups = [
            {k: v for k, v in group.items() if k != "params"} for group in self.param_groups
        ]
        return {
            "groups": groups,
            "mean": self.mean,
            "square": self.square,
            "updates": self.updates,
        }

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for group, saved in zip(self.param_groups, state_dict["groups"], strict=True):
            group.update(saved)
        state_tensors = [*self.mean, *self.square, self.updates]
        for mine, its in zip(
            state_tensors,
            [*state_dict["mean"], *state_dict["square"], state_dict["updates"]],
            strict=True,
        ):
            mine.copy_(its)
        self.even = bool((self.updates == self.updates.flatten()[0]).all())
