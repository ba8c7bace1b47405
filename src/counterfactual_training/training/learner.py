"""A model, or a stack of models, in training: the gradient of Eq. 2 and the optimizer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from math import isfinite

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from counterfactual_training.core.precision import at_least_single
from counterfactual_training.errors import ModelError
from counterfactual_training.models.stack import StackedModel
from counterfactual_training.torch_internals import skips_by_flag
from counterfactual_training.training.adam import Adam
from counterfactual_training.training.by_hand import ByHand, walk_of
from counterfactual_training.training.distributed import unwrapped
from counterfactual_training.training.objective import Batch, Objective, check_terms

Gradients = Sequence[Tensor | None]  # one per parameter; None where a parameter has none


class ByBackward:
    """Gradients of Eq. 2 by autograd, for any model and objective; like :class:`ByHand`."""

    terms: Tensor

    def __init__(self, model: nn.Module, parameters: Sequence[Tensor]) -> None:
        self.model = model
        self.parameters = parameters
        self.witnesses: list[
            Tensor
        ] = []  # (*lead) of every batch since the last look: finite if its loss is

    def gradients(self, objective: Objective, batches: Sequence[Batch]) -> Iterator[Gradients]:
        told = []
        for batch in batches:
            # LBFGS evaluates the same batch several times per step.
            self.again = lambda batch=batch: self._backward(objective, batch)
            told.append(self.again())
            # Only gradients are the same on all processes.
            if not isinstance(self.model, DistributedDataParallel):
                self.witnesses.append(told[-1][0])
            yield [parameter.grad for parameter in self.parameters]
        self.terms = torch.stack(told)

    def _backward(self, objective: Objective, batch: Batch) -> Tensor:
        for parameter in self.parameters:
            parameter.grad = None
        own = _of_part(objective, *batch.shares)
        if batch.weight is None:
            more = {}
        else:
            more = {"weight": batch.weight}
        with torch.enable_grad():
            terms = own(self.model, batch.x, batch.y, batch.explanations, **more)
            check_terms(terms, batch.y.shape[:-1], own.title)
            if not terms.total.requires_grad:
                raise ModelError(
                    "The loss does not depend on any parameter that may be trained."
                )
            terms.total.sum().backward()
        hits = own.hits(terms.logits.detach(), batch.y)
        values = [
            terms.total,
            terms.class_loss,
            terms.divergence,
            terms.ridge,
            terms.adversarial,
            hits,
        ]
        return torch.stack([value.detach().to(terms.total.dtype) for value in values])


def _of_part(
    objective: Objective, rows: float, contrast: float, adversarial: float
) -> Objective:
    """The objective of a part of a batch, weighted so that the mean over all parts is that of the
    whole.
    """
    if rows == contrast == adversarial == 1.0:
        return objective
    shares = {
        "lambda_class": rows,
        "lambda_div": contrast,
        "lambda_reg": contrast,
        "lambda_adv": adversarial,
    }
    shares |= {"lambda_contrast": contrast, "lambda_recourse": adversarial}
    return replace(
        objective, **{name: getattr(objective, name) * share for name, share in shares.items()}
    )


def _modules_to_train(model: nn.Module) -> list[nn.Module]:
    """The modules in training mode; for a model in eval mode, those that its own ``train()`` puts
    there.
    """
    if model.training:
        return [module for module in model.modules() if module.training]
    model.train()
    found = [module for module in model.modules() if module.training]
    model.eval()
    return found


class Learner:
    """A model in training. ``lead`` is ``()`` for one model and ``(M,)`` for a stack of M.

    Attributes:
        model: maps ``(*lead, n, *features)`` to logits.
        parameters: its trainable tensors, each ``(*lead, …)``.
        optimizer: of the parameters.
    """

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        num_classes: int,
        rates: Sequence[float],
        optimizer: Optimizer | None = None,
    ) -> None:
        if isinstance(model, StackedModel):
            self.lead = torch.Size([model.num_members])
        else:
            self.lead = torch.Size()
        self.whole = model  # with DDP around it, which averages gradients over processes
        self.model = unwrapped(model)
        self.training = _modules_to_train(self.model)
        self.parameters: list[Tensor] = [p for p in self.model.parameters() if p.requires_grad]
        if not self.parameters:
            raise ModelError("The model has no parameters that may be trained.")
        self.num_classes = num_classes
        # Custom losses have no closed form, and LBFGS needs to repeat a backward pass: both get
        # autograd.
        self.closed = objective.has_closed_form and not isinstance(optimizer, torch.optim.LBFGS)
        self.gradient = self._way()
        # torch's Adam would keep the moments of half-precision weights in half precision, where
        # small squares vanish.
        half = any(p.dtype in (torch.bfloat16, torch.float16) for p in self.parameters)
        if optimizer is None and (self.lead or half or isinstance(self.gradient, ByHand)):
            optimizer = Adam(self.parameters, rates, self.lead)
        elif optimizer is None:  # torch has fused kernels for these devices
            fused = all(
                p.is_floating_point() and p.device.type in ("cpu", "cuda")
                for p in self.parameters
            )
            optimizer = torch.optim.Adam(self.parameters, lr=rates[0], fused=fused)
        self.optimizer = optimizer
        self.none = torch.zeros(
            self.lead, device=self.parameters[0].device, dtype=torch.float32
        )

    def _way(self) -> ByHand | ByBackward:
        if self.closed:
            walk = walk_of(self.whole)
        else:
            walk = None
        if walk is None:
            return ByBackward(self.whole, self.parameters)
        return ByHand(walk, self.num_classes)

    def gradients(
        self, objective: Objective, batches: Sequence[Batch], accumulate: int = 1
    ) -> Iterator[Gradients]:
        """∇ of Eq. 2 for every update, each the mean over ``accumulate`` batches; the last group
        may be smaller.
        """
        every = self.gradient.gradients(objective, batches)
        if accumulate == 1:
            yield from every
            return
        # The next backward pass overwrites the gradients, so they are copied.
        copies = ([None if grad is None else grad.clone() for grad in found] for found in every)
        while held := list(islice(copies, accumulate)):
            given = [
                [grad for grad in column if grad is not None]
                for column in zip(*held, strict=True)
            ]
            # Divided by all: a batch that gives a parameter no gradient counts as zero.
            yield [torch.stack(grads).sum(0) / len(held) if grads else None for grads in given]

    def begin_epoch(self) -> None:
        """Choose the way to the gradient anew, since hooks come and go; set the modes."""
        self.gradient = self._way()
        self.train_mode()

    def train_mode(self) -> None:
        """Put the modules that train back into training mode, whatever callbacks did."""
        for module in self.training:
            module.training = True

    def expose(self, grads: Gradients) -> None:
        """Set ``.grad``, where torch's own functions look."""
        for parameter, grad in zip(self.parameters, grads, strict=True):
            parameter.grad = grad

    def keep(self, rows: Tensor) -> None:
        """Continue with these rows of the stack only."""
        if not isinstance(self.model, StackedModel) or not isinstance(self.optimizer, Adam):
            raise TypeError("only a stack can be made smaller")
        self.model.keep(rows)
        self.parameters = [self.model.weights]
        self.lead = torch.Size([len(rows)])
        self.optimizer.keep(rows, self.model.weights)
        self.none = self.none[rows]

    def bad(self, gradients: Gradients, idle: Tensor | None = None) -> Tensor:
        """``(*lead)``: 1.0 where a member is idle, or its loss or gradient is not finite. Does not
        wait for a GPU.
        """
        values = [
            value for value in (*gradients, *self.gradient.witnesses) if value is not None
        ]
        self.gradient.witnesses = []
        # One value that is not finite leaves no sum finite. Reading a sum is free on a CPU.
        readable = idle is None and self.none.device.type == "cpu"
        if readable and isfinite(sum(float(value.sum()) for value in values)):
            return self.none
        sums = sum(
            (at_least_single(value).reshape(*self.lead, -1).sum(-1) for value in values),
            self.none,
        )
        # ∞ − ∞ and NaN − NaN are NaN, which is not 0
        bad = (sums - sums != 0).to(torch.float32)
        if idle is None:
            return bad
        return torch.maximum(bad, idle)

    def step(self, grads: Gradients, bad: Tensor) -> None:
        """One update of all members that are not bad."""
        optimizer = self.optimizer
        if isinstance(optimizer, Adam):
            optimizer.apply(grads, None if bad is self.none else bad)
            return
        self.expose(grads)
        if skips_by_flag(optimizer):
            optimizer.found_inf, optimizer.grad_scale = bad, None  # type: ignore[attr-defined]
            optimizer.step()
            del optimizer.found_inf, optimizer.grad_scale  # type: ignore[attr-defined]
        elif not bool(bad):
            gradient = self.gradient
            if isinstance(optimizer, torch.optim.LBFGS) and isinstance(gradient, ByBackward):
                # A closure that returns the loss.
                optimizer.step(lambda: float(gradient.again()[0]))
            else:
                optimizer.step()
