"""A model, or a stack of models, in training: the gradient of Eq. 2 and the optimizer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from math import isfinite

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from counterfactual_training.core.eq2 import Eq2, Role
from counterfactual_training.core.precision import at_least_single
from counterfactual_training.errors import ModelError
from counterfactual_training.models.stack import StackedModel
from counterfactual_training.torch_internals import skips_by_flag
from counterfactual_training.training.adam import AdamOptimizer
from counterfactual_training.training.network import Gradients, Network, network_of
from counterfactual_training.training.objective import (
    Batch,
    LossTerms,
    Objective,
    check_terms,
)


class ByTable:
    """∇ of Eq. 2 for one batch after the other; the weights are updated in between.

    Attributes:
        terms: ``(batches, 7, *lead)`` loss, its terms, the number of rows predicted right and that
            of all rows, of the last batches.
        witnesses: ``(*lead)`` per batch since the last check: finite if its loss is.
    """

    terms: Tensor
    present: tuple[Objective, Batch, Tensor]

    def __init__(self, network: Network, num_classes: int) -> None:
        self.network = network
        self.num_classes = num_classes
        self.witnesses: list[Tensor] = []

    def gradients(self, objective: Objective, batches: Sequence[Batch]) -> Iterator[Gradients]:
        """∂/∂parameters, batch by batch."""
        network = self.network
        parts = objective.rows(batches)
        # What depends on rows and labels only is computed for all batches first.
        eq2 = Eq2(objective.table, parts, self.num_classes, network.classes)
        both = (-2, -1) if eq2.lead else None
        every: list[Tensor] = []
        for x, gradient in zip(network.laid(parts), eq2.gradients(), strict=True):
            logits = network.logits(x)
            if logits.dtype != eq2.dtype:
                gradient = gradient.to(logits.dtype)
            self.present = (objective, batches[len(every)], x)
            every.append(logits)
            if gradient.energy is not None:
                # The loss is summed up later; it is finite if the gradient and the squares of the
                # logits are.
                self.witnesses.append(torch.linalg.vector_norm(logits, dim=both))
            yield network.gradients(gradient(logits))
        # Not needed for the updates, so computed once for all batches.
        means = eq2.means(torch.cat(every, eq2.rows))
        terms = LossTerms.of(eq2.total(means), means, logits, objective)
        self.terms = _recorded(terms, means[Role.CLASS].hits, batches, 1)

    def again(self) -> float:
        """The loss of the last batch, with its gradients in ``.grad``, for LBFGS."""
        objective, batch, x = self.present
        network = self.network
        eq2 = Eq2(objective.table, objective.rows([batch]), self.num_classes, network.classes)
        (gradient,) = eq2.gradients()
        with torch.no_grad():
            logits = network.logits(x)
            gradients = network.gradients(gradient(logits))
            for parameter, grad in zip(network.parameters, gradients, strict=True):
                parameter.grad = grad
            return float(eq2.total(eq2.means(logits)))


class ByLoss:
    """Gradients of a loss of the user's own, by autograd; like :class:`ByTable`."""

    terms: Tensor
    present: tuple[Objective, Batch]

    def __init__(self, model: nn.Module, parameters: Sequence[Tensor]) -> None:
        self.model = model
        self.parameters = parameters
        self.witnesses: list[Tensor] = []

    def gradients(self, objective: Objective, batches: Sequence[Batch]) -> Iterator[Gradients]:
        """∂/∂parameters, batch by batch."""
        terms = []
        for batch in batches:
            terms.append(self.backward(objective, batch))
            # LBFGS evaluates the same batch several times per step.
            self.present = (objective, batch)
            self.witnesses.append(terms[-1][0])
            yield [parameter.grad for parameter in self.parameters]
        self.terms = torch.stack(terms)

    def again(self) -> float:
        """The loss of the last batch, with its gradients in ``.grad``, for LBFGS."""
        return float(self.backward(*self.present)[0])

    def backward(self, objective: Objective, batch: Batch) -> Tensor:
        for parameter in self.parameters:
            parameter.grad = None
        if batch.weight is None:
            more = {}
        else:
            more = {"weight": batch.weight}
        with torch.enable_grad():
            terms = objective(self.model, batch.x, batch.y, batch.explanations, **more)
            check_terms(terms, batch.y.shape[:-1], objective.title)
            if not terms.total.requires_grad:
                raise ModelError(
                    "The loss does not depend on any parameter that may be trained."
                )
            terms.total.sum().backward()
        return _recorded(terms, objective.hits(terms.logits.detach(), batch.y), [batch], 0)


def _recorded(terms: LossTerms, hits: Tensor, batches: Sequence[Batch], dim: int) -> Tensor:
    """What the history shows, as a new dimension of 7."""
    total = terms.total
    rows = total.new_tensor([batch.y.shape[-1] for batch in batches])
    values = [
        total,
        terms.class_loss,
        terms.divergence,
        terms.ridge,
        terms.adversarial,
        hits,
        rows.reshape((*total.shape[:dim], *[1] * (total.dim() - dim))).expand_as(total),
    ]
    return torch.stack([value.detach().to(total.dtype) for value in values], dim)


def accumulated(every: Iterator[Gradients], num: int) -> Iterator[Gradients]:
    """Means over so many gradients each; the last one may be of fewer."""
    # The next backward pass overwrites the gradients, so they are copied.
    copies = (
        [None if grad is None else grad.clone() for grad in gradients] for gradients in every
    )
    while group := list(islice(copies, num)):
        columns = [
            [grad for grad in column if grad is not None] for column in zip(*group, strict=True)
        ]
        # Divided by all: a batch that gives a parameter no gradient counts as zero.
        yield [torch.stack(grads).sum(0) / len(group) if grads else None for grads in columns]


def _modules_to_train(model: nn.Module) -> list[nn.Module]:
    """The modules in training mode; for a model in eval mode, those that its own ``train()`` puts
    there.
    """
    if model.training:
        return [module for module in model.modules() if module.training]
    model.train()
    modules = [module for module in model.modules() if module.training]
    model.eval()
    return modules


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
        self.model = model
        self.training = _modules_to_train(self.model)
        self.parameters: list[Tensor] = [p for p in self.model.parameters() if p.requires_grad]
        if not self.parameters:
            raise ModelError("The model has no parameters that may be trained.")
        self.num_classes = num_classes
        self.closed = objective.has_closed_form
        self.gradient = self.way()
        if optimizer is None:
            optimizer = self._adam(rates)
        self.optimizer = optimizer
        self.none = torch.zeros(
            self.lead, device=self.parameters[0].device, dtype=torch.float32
        )

    def way(self) -> ByTable | ByLoss:
        """To the gradient."""
        if self.closed:
            return ByTable(network_of(self.model, self.parameters), self.num_classes)
        return ByLoss(self.model, self.parameters)

    def _adam(self, rates: Sequence[float]) -> Optimizer:
        parameters = self.parameters
        places = {parameter.device for parameter in parameters}
        kinds = {parameter.device.type for parameter in parameters}
        plain = all(parameter.is_floating_point() for parameter in parameters)
        if self.lead or (len(places) == 1 and plain and kinds <= {"cpu", "cuda"}):
            return AdamOptimizer(parameters, rates, self.lead)
        # torch has fused kernels for these devices.
        fused = plain and kinds <= {"cpu", "cuda"}
        return torch.optim.Adam(parameters, lr=rates[0], fused=fused)

    def gradients(
        self, objective: Objective, batches: Sequence[Batch], accumulate: int = 1
    ) -> Iterator[Gradients]:
        """∇ of Eq. 2 for every update, each the mean over ``accumulate`` batches; the last group
        may be smaller.

        A generator, so that each gradient is computed after the update before it.
        """
        every = self.gradient.gradients(objective, batches)
        if accumulate > 1:
            return accumulated(every, accumulate)
        return every

    def total_terms(self, terms: Tensor) -> Tensor:
        """The terms ``(batches, 7, *lead)`` of an epoch, of all its rows."""
        return terms

    def begin_epoch(self) -> None:
        """Choose the way to the gradient again, since hooks come and go; set the modes."""
        self.gradient = self.way()
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
        if not isinstance(self.model, StackedModel) or not isinstance(
            self.optimizer, AdamOptimizer
        ):
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
        return self._bad_members(values, idle)

    def _bad_members(self, values: Sequence[Tensor], idle: Tensor | None) -> Tensor:
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
        if isinstance(self.optimizer, AdamOptimizer):
            self.optimizer.apply(grads, None if bad is self.none else bad)
        else:
            self._step_by_torch(self.optimizer, grads, bad)

    def _step_by_torch(self, optimizer: Optimizer, grads: Gradients, bad: Tensor) -> None:
        """The same with a user's optimizer."""
        self.expose(grads)
        if skips_by_flag(optimizer):
            optimizer.found_inf, optimizer.grad_scale = bad, None  # type: ignore[attr-defined]
            optimizer.step()
            del optimizer.found_inf, optimizer.grad_scale  # type: ignore[attr-defined]
        elif not bool(bad):
            if isinstance(optimizer, torch.optim.LBFGS):
                optimizer.step(self.gradient.again)
            else:
                optimizer.step()
