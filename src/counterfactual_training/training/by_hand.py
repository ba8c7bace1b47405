"""The gradient of Eq. 2 without autograd, for chains of linear layers and activations.

For small networks autograd costs several times the arithmetic. Here the objective's gradient by the logits is a closed
form (:class:`RowTerms`), and the chain is walked backwards with the operations that autograd would run: a lone model
gets the same bits, a stack the same numbers up to rounding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from counterfactual_training.models.stack import StackedModel
from counterfactual_training.search.chain import Activation, activation, chain_layers, hooked
from counterfactual_training.training.objective import ADVERSARIAL, CLASS, COUNTERFACTUAL, POSITIVE, Batch, Objective

_aten: Any = torch.ops.aten


class Walk:
    """A lone chain on rows ``(n, d)``: logits, and the gradients of its trainable parameters, in their order."""

    rows, classes = -2, -1  # dimensions of a batch

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        # Of each layer its activation, or its weight and bias.
        self.steps: list[Any] = [activation(layer) or (layer.weight, layer.bias) for layer in layers]
        trained = [i for i, layer in enumerate(layers) if any(p.requires_grad for p in layer.parameters())]
        self.lowest = min(trained)

    def laid(self, batches: Sequence[Sequence[Tensor]]) -> Iterable[Tensor]:
        """The rows of every batch as one tensor, each where autograd would have it: on other boundaries of memory the
        same sums round differently."""
        return (parts[0] if len(parts) == 1 else torch.cat([*parts]) for parts in batches)

    def logits(self, x: Tensor) -> Tensor:
        self.seen = [x]
        for step in self.steps:
            x = step.forward(x) if isinstance(step, Activation) else linear(x, *step)
            self.seen.append(x)
        return x

    def norm(self, logits: Tensor) -> Tensor:
        return torch.linalg.vector_norm(logits)

    def gradients(self, grad: Tensor) -> list[Tensor]:
        """Given ∂/∂logits."""
        found: list[Tensor] = []
        for i in range(len(self.steps) - 1, self.lowest - 1, -1):
            step = self.steps[i]
            if isinstance(step, Activation):
                grad = step.backward(grad, self.seen[i], self.seen[i + 1])
                continue
            weight, bias = step
            if bias is not None and bias.requires_grad:
                found.append(grad.sum(0))
            if weight.requires_grad:
                found.append(grad.t().mm(self.seen[i]))
            if i > self.lowest:
                grad = grad.mm(weight)
        return found[::-1]


class StackedWalk:
    """Chains of M members side by side, features before rows ``(M, d, n)``: few features would leave the kernels of the
    matrix product half empty. The gradient is one tensor ``(M, P)``, as the weights are."""

    rows, classes = -1, -2

    def __init__(self, model: StackedModel, layers: Sequence[tuple[str, nn.Module]]) -> None:
        weights = {name: value.detach() for name, value in model.parameters_by_name().items()}
        self.grad = torch.zeros_like(model.weights)
        views = zip(model.names, self.grad.split(model.sizes, 1), model.shapes, model.frozen, strict=True)
        parts = {name: part.view(-1, *shape) for name, part, shape, frozen in views if not frozen}
        # Of each layer its activation, or its weight and bias and where their gradients go.
        self.steps: list[Any] = []
        for name, layer in layers:
            weight, bias = weights.get(f"{name}.weight"), weights.get(f"{name}.bias")
            own = (
                weight,
                None if bias is None else bias.unsqueeze(-1),
                parts.get(f"{name}.weight"),
                parts.get(f"{name}.bias"),
            )
            self.steps.append(activation(layer) or own)
        # What a layer has just made is nobody else's, so the most common activation may overwrite it.
        self.in_place = [i > 0 and type(layer) is nn.ReLU for i, (_, layer) in enumerate(layers)]

    def laid(self, batches: Sequence[Sequence[Tensor]]) -> Iterable[Tensor]:
        rows = torch.cat([x.transpose(-1, -2) for parts in batches for x in parts], -1)
        return rows.split([sum(x.shape[-2] for x in parts) for parts in batches], -1)

    def logits(self, x: Tensor) -> Tensor:
        self.seen = [x]
        for step, in_place in zip(self.steps, self.in_place, strict=True):
            if in_place:
                x = x.relu_()
            elif isinstance(step, Activation):
                x = step.forward(x)
            else:
                weight, bias, _, _ = step
                x = torch.bmm(weight, x) if bias is None else torch.baddbmm(bias, weight, x)
            self.seen.append(x)
        return x

    def norm(self, logits: Tensor) -> Tensor:
        return torch.linalg.vector_norm(logits, dim=(-2, -1))

    def gradients(self, grad: Tensor) -> list[Tensor]:
        for i in range(len(self.steps) - 1, -1, -1):
            step, x = self.steps[i], self.seen[i]
            if self.in_place[i] and i < len(self.steps) - 1:
                grad = _aten.threshold_backward.grad_input(grad, self.seen[i + 1], 0, grad_input=grad)
            elif isinstance(step, Activation):
                grad = step.backward(grad, x, self.seen[i + 1])
            else:
                weight, _, weight_grad, bias_grad = step
                if bias_grad is not None:
                    torch.sum(grad, -1, out=bias_grad)
                if weight_grad is not None:
                    weight_grad.copy_(torch.bmm(grad, x.transpose(-1, -2)))  # straight into the view would be slower
                if i:
                    grad = torch.bmm(weight.transpose(-1, -2), grad)
        return [self.grad]


def walk_of(model: nn.Module) -> Walk | StackedWalk | None:
    """How to walk a model by hand; ``None`` for models that need autograd."""
    parameters = list(model.parameters())
    if not any(p.requires_grad for p in parameters) or any(
        p.dtype not in (torch.float32, torch.float64) or p._backward_hooks or p._post_accumulate_grad_hooks
        for p in parameters
    ):
        return None
    if torch.is_autocast_enabled(parameters[0].device.type):
        return None
    if isinstance(model, StackedModel):
        layers = model.layers
        known = layers is not None and all(type(layer) is nn.Linear or activation(layer) for _, layer in layers)
        names = [name for name, layer in layers or () if type(layer) is nn.Linear]
        used_once = sum(len(list(layer.parameters())) for _, layer in layers or ()) == len(model.names)
        return StackedWalk(model, layers) if known and names and used_once and layers is not None else None
    chain = chain_layers(model)
    return None if chain is None or hooked(model) else Walk(chain)


class ByHand:
    """Gradients of batches, one after the other, for weights that may change in between.

    Attributes:
        terms: ``(batches, 6, *lead)`` loss terms of the last batches, and how many of their rows were predicted right.
    """

    terms: Tensor

    def __init__(self, walk: Walk | StackedWalk, num_classes: int) -> None:
        self.walk, self.num_classes = walk, num_classes
        self.witnesses: list[Tensor] = []  # (*lead) of every batch since the last look: finite if its loss is
        self.layout: tuple[Any, tuple[Tensor, ...]] = (None, ())

    def gradients(self, objective: Objective, batches: Sequence[Batch]) -> Iterator[list[Tensor]]:
        """∂/∂parameters of Eq. 2, batch by batch; what depends on the rows alone is done for all batches first."""
        walk, like = self.walk, batches[0].x
        needs = objective.needs_divergence, objective.needs_adversarial
        of_batches = [_parts(batch, *needs) for batch in batches]
        parts = [(i, *part) for i, own in enumerate(of_batches) for part in own]
        label = torch.cat([y for _, _, _, y, _ in parts], -1)
        number, role, count = self._rows([(i, kind, y.shape[-1]) for i, kind, _, y, _ in parts], like)
        weight = None
        if any(own is not None for *_, own in parts):
            weights = [
                y.new_ones(y.shape, dtype=like.dtype) if w is None else w.to(like.dtype) for _, _, _, y, w in parts
            ]
            weight = torch.cat(weights, -1)
            count = torch.cat([w.sum(-1, keepdim=True).clamp_min(1e-12).expand(w.shape) for w in weights], -1)
        shape = [*label.shape]
        shape.insert(len(shape) + 1 + walk.classes, self.num_classes)
        onehot = like.new_zeros(shape).scatter_(walk.classes, label.unsqueeze(walk.classes), 1)
        terms, kinds = objective.by_rows(role, count, weight), {kind for _, kind, *_ in parts}
        scales = [-terms.cross, -terms.energy, 2 * terms.ridge] if POSITIVE in kinds else [-terms.cross]
        sizes = torch.bincount(number).tolist()
        columns = [(onehot * scale.unsqueeze(walk.classes)).split(sizes, walk.rows) for scale in scales]
        rows = walk.laid([[x for _, x, _, _ in own] for own in of_batches])
        logits, logp = [], []
        for own_x, cross, *contrast in zip(rows, *columns, strict=True):
            out = walk.logits(own_x)
            log_probability = torch.log_softmax(out, walk.classes)
            grad = torch._log_softmax_backward_data(cross, log_probability, walk.classes, like.dtype)
            if contrast:
                energy, ridge = contrast
                grad += (ridge * out).add_(energy)
                # The loss itself is summed up later; it is finite as long as gradient and squares of the logits are.
                self.witnesses.append(walk.norm(out))
            logits.append(out)
            logp.append(log_probability)
            yield walk.gradients(grad)
        share = (torch.ones_like(count) if weight is None else weight) / count
        out, log_probability = torch.cat(logits, walk.rows), torch.cat(logp, walk.rows)
        values = _told(out, log_probability, onehot, walk.classes, role, share, kinds)
        if len(set(sizes)) == 1:
            sums = values.unflatten(-1, (len(sizes), -1)).sum(-1)  # (5, *lead, batches)
        else:
            sums = torch.stack([part.sum(-1) for part in values.split(sizes, -1)], -1)
        self.terms = torch.cat([objective.total(*sums[:4]).unsqueeze(0), sums]).movedim(-1, 0)

    def _rows(self, parts: list[tuple[int, int, int]], like: Tensor) -> tuple[Tensor, ...]:
        """By row ``(R,)``: its batch, what it is there for, how many share its mean. Mostly the same in every epoch."""
        if self.layout[0] != parts:
            number, role, size = torch.tensor(parts, device=like.device).unbind(-1)
            columns = (number, role, size.to(like.dtype))
            self.layout = parts, tuple(column.repeat_interleave(size) for column in columns)
        return self.layout[1]


def _parts(batch: Batch, contrast: bool, adversarial: bool) -> list[tuple[int, Tensor, Tensor, Tensor | None]]:
    """The rows of a batch that count: what they are there for, x, label, and what each counts."""
    found = batch.explanations
    parts = [(CLASS, batch.x, batch.y, batch.weight)]
    if found is not None and contrast:
        parts += [(POSITIVE, found.x_pos, found.y_target, found.weight)]
        parts += [(COUNTERFACTUAL, found.x_cf, found.y_target, found.weight)]
    if found is not None and adversarial:
        parts += [(ADVERSARIAL, found.x_adv, found.y_adv, found.weight_adv)]
    return parts


def _told(
    logits: Tensor, logp: Tensor, onehot: Tensor, classes: int, role: Tensor, share: Tensor, kinds: set[int]
) -> Tensor:
    """What rows add to class loss, divergence, ridge, adversarial loss and hits ``(5, ..., R)``, given their share of a
    mean ``(..., R)``."""
    own = (logits * onehot).sum(classes)  # −E
    cross = -(logp * onehot).sum(classes) * share
    right = own >= logits.amax(classes)
    zero = torch.zeros_like(cross)
    if kinds == {CLASS}:
        return torch.stack([cross, zero, zero, zero, right.to(cross.dtype)])
    positive, counterfactual = role == POSITIVE, role == COUNTERFACTUAL
    values = [
        torch.where(role == CLASS, cross, zero),
        torch.where(counterfactual, own * share, zero) - torch.where(positive, own * share, zero),
        torch.where(positive | counterfactual, own.square() * share, zero),
        torch.where(role == ADVERSARIAL, cross, zero),
        (right & (role == CLASS)).to(cross.dtype),
    ]
    return torch.stack(values)
