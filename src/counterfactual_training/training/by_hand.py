"""The gradient of Eq. 2 without autograd, for chains of linear layers and activations.

For small networks, autograd's overhead is several times the arithmetic. Here the gradient with
respect to the logits is a closed form (:class:`RowTerms`), and the chain is walked backwards with
the operations that autograd would run: one model gets the same bits as with autograd, a stack the
same numbers up to rounding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from counterfactual_training.core.losses import CONTRAST_GOAL
from counterfactual_training.generators.chain import (
    Chain,
    StackedChain,
    activation,
    chain_layers,
)
from counterfactual_training.models.stack import StackedModel
from counterfactual_training.torch_internals import log_softmax_backward, tensor_hooked
from counterfactual_training.training.objective import Batch, Objective, Role, RowTerms


class Walk:
    """One chain on rows ``(n, d)``: its logits, and the gradients of its trainable parameters."""

    rows, classes = -2, -1  # dimensions of a batch
    both: tuple[int, int] | None = (
        None  # norm over rows and classes; None means all dimensions, which is faster
    )

    def __init__(self, chain: Chain, trains: Iterable[tuple[bool, bool]]) -> None:
        """``trains``: for each linear layer, whether its weight and its bias do."""
        given = iter(trains)
        self.chain = chain
        self.trains = [
            next(given) if type(layer) is nn.Linear else (False, False)
            for layer in chain.layers
        ]
        # Below the lowest trainable layer no gradient is needed.
        self.lowest = min(i for i, own in enumerate(self.trains) if any(own))
        self.places = self._places()

    def laid(self, batches: Sequence[Sequence[Tensor]]) -> Iterable[Tensor]:
        """The rows of every batch as one tensor, laid out as with autograd: other alignments round
        differently.
        """
        return (parts[0] if len(parts) == 1 else torch.cat([*parts]) for parts in batches)

    def logits(self, x: Tensor) -> Tensor:
        places = self._places()
        # An optimizer may give a parameter new memory; the chain holds views of the old, which also
        # keeps its address.
        if places != self.places:
            self.places = places
            self.chain.layout = None
        return self.chain.forward(
            x
        ).clone()  # the chain uses its own memory again for the next batch

    def gradients(self, grad: Tensor) -> list[Tensor]:
        """∂/∂parameters, in their order, given ∂/∂logits, which may be overwritten."""
        found: list[Tensor] = []
        seen = self.chain.seen
        steps = self.chain.steps
        for i in range(len(steps) - 1, self.lowest - 1, -1):
            weight_trains, bias_trains = self.trains[i]
            if bias_trains:
                found.append(grad.sum(self.rows))
            if weight_trains:
                found.append(self._weight_gradient(grad, seen[i]))
            if i > self.lowest:
                grad = steps[i].backward(grad, seen[i], seen[i + 1])
        return found[::-1]

    def _weight_gradient(self, grad: Tensor, x: Tensor) -> Tensor:
        return grad.t().mm(x)

    def _places(self) -> list[int]:
        return [
            weight.data_ptr()
            for pair in self.chain.weights
            for weight in pair
            if weight is not None
        ]


class StackedWalk(Walk):
    """The chains of M members on ``(M, d, n)``. The gradient is one tensor ``(M, P)``, like the
    weights.

    Rows come last because matrix kernels are fast along a long last dimension, and tables have few
    features.
    """

    rows = -1
    classes = -2
    both = (-2, -1)

    def __init__(self, model: StackedModel, layers: Sequence[tuple[str, nn.Module]]) -> None:
        weights = {name: value.detach() for name, value in model.parameters_by_name().items()}
        trains = {
            name: not frozen for name, frozen in zip(model.names, model.frozen, strict=True)
        }
        # Frozen parameters have a place in (M, P), where their gradient is zero.
        self.fixed = [
            None if trains[name] else torch.zeros_like(weights[name]) for name in model.names
        ]
        names = [
            (f"{name}.weight", f"{name}.bias")
            for name, layer in layers
            if type(layer) is nn.Linear
        ]
        pairs = [
            (weights[w], weights[b].unsqueeze(-1) if b in weights else None) for w, b in names
        ]
        chain = StackedChain([layer for _, layer in layers], pairs)
        super().__init__(chain, [(trains[w], trains.get(b, False)) for w, b in names])

    def laid(self, batches: Sequence[Sequence[Tensor]]) -> Iterable[Tensor]:
        rows = torch.cat([x.mT for parts in batches for x in parts], -1)
        return rows.split([sum(x.shape[-2] for x in parts) for parts in batches], -1)

    def gradients(self, grad: Tensor) -> list[Tensor]:
        found = iter(super().gradients(grad))
        return [
            torch.cat(
                [(next(found) if zero is None else zero).flatten(1) for zero in self.fixed], 1
            )
        ]

    def _weight_gradient(self, grad: Tensor, x: Tensor) -> Tensor:
        return torch.bmm(grad, x.mT)


def walk_of(model: nn.Module) -> Walk | None:
    """The walk of a model; ``None`` for models that need autograd."""
    parameters = list(model.parameters())
    for p in parameters:  # hooks on parameters fire in autograd only
        if p.dtype not in (torch.float32, torch.float64) or tensor_hooked(p):
            return None
    if not any(p.requires_grad for p in parameters) or torch.is_autocast_enabled(
        parameters[0].device.type
    ):
        return None
    if isinstance(model, StackedModel):
        layers = model.layers or []
        products = [layer for _, layer in layers if type(layer) is nn.Linear]
        known = all(type(layer) is nn.Linear or activation(layer) for _, layer in layers)
        # A layer that is used twice would need the sum of two gradients.
        used_once = sum(len(list(layer.parameters())) for layer in products) == len(model.names)
        if products and known and used_once:
            return StackedWalk(model, layers)
        return None
    chain = chain_layers(model) or []
    pairs = [(layer.weight, layer.bias) for layer in chain if isinstance(layer, nn.Linear)]
    trains = [(w.requires_grad, b is not None and b.requires_grad) for w, b in pairs]
    if chain:
        return Walk(Chain(chain, pairs), trains)
    return None


class ByHand:
    """Gradients of one batch after the other; the weights are updated in between.

    Attributes:
        terms: ``(batches, 6, *lead)`` loss terms of the last batches, and their numbers of correct
            predictions.
    """

    terms: Tensor

    def __init__(self, walk: Walk, num_classes: int) -> None:
        self.walk = walk
        self.num_classes = num_classes
        self.witnesses: list[
            Tensor
        ] = []  # (*lead) per batch since the last check: finite if its loss is

    def gradients(
        self, objective: Objective, batches: Sequence[Batch]
    ) -> Iterator[list[Tensor]]:
        """∂/∂parameters of Eq. 2, batch by batch. What depends on rows and labels only is computed
        for all first.
        """
        walk = self.walk
        like = batches[0].x
        of_batches = [objective.parts(*batch[:4]) for batch in batches]
        parts = [part for own in of_batches for part in own]
        layout = torch.tensor(
            [(part.role, part.label.shape[-1]) for part in parts], device=like.device
        )
        role, count = layout.repeat_interleave(layout[:, 1], 0).unbind(-1)  # (R,) each
        count = count.to(like.dtype)
        weight = None
        if any(part.weight is not None for part in parts):
            weights = [
                torch.ones_like(p.label, dtype=like.dtype) if p.weight is None else p.weight
                for p in parts
            ]
            weights = [own.to(like.dtype) for own in weights]
            weight = torch.cat(weights, -1)
            # Where all weights of a part are 0, so are its terms; the floor keeps them from being
            # 0/0.
            count = torch.cat(
                [w.sum(-1, keepdim=True).clamp_min(1e-12).expand(w.shape) for w in weights], -1
            )
        label = torch.cat([part.label for part in parts], -1).unsqueeze(walk.classes)
        shape = [*label.shape]
        shape[walk.classes] = self.num_classes
        onehot = like.new_zeros(shape).scatter_(walk.classes, label, 1)
        terms = objective.by_rows(role, count, weight)
        contrasted = any(part.role == Role.POSITIVE for part in parts)
        # Signs: ∂(−log p)/∂log p = −1, and E = −logit, so ∂E/∂logit = −1 and ∂E²/∂logit = 2·logit.
        if contrasted:
            scales = [-terms.cross, -terms.energy, 2 * terms.ridge]
        else:
            scales = [-terms.cross]
        sizes = [sum(part.label.shape[-1] for part in own) for own in of_batches]
        columns = [
            (onehot * scale.unsqueeze(walk.classes)).split(sizes, walk.rows) for scale in scales
        ]
        rows = walk.laid([[part.x for part in own] for own in of_batches])
        marks = pulls = None
        if terms.contrast is not None:
            marks = onehot.split(sizes, walk.rows)
            pulls = terms.contrast.split(sizes, -1)
        logits = []
        logp = []
        for i, (own_x, cross, *contrast) in enumerate(zip(rows, *columns, strict=True)):
            out = walk.logits(own_x)
            log_probability = torch.log_softmax(out, walk.classes)
            grad = log_softmax_backward(cross, log_probability, walk.classes)
            if contrast:
                energy, ridge = contrast
                grad += (ridge * out).add_(energy)
                # The loss is summed up later; it is finite if the gradient and the squares of the
                # logits are.
                self.witnesses.append(torch.linalg.vector_norm(out, dim=walk.both))
            if marks is not None and pulls is not None:
                grad += _contrast_gradient(out, marks[i], walk.classes, pulls[i])
            logits.append(out)
            logp.append(log_probability)
            yield walk.gradients(grad)
        # Losses for the history: not needed for the updates, so computed once for all batches.
        share = (torch.ones_like(count) if weight is None else weight) / count
        out = torch.cat(logits, walk.rows)
        log_probability = torch.cat(logp, walk.rows)
        values = [_told(out, log_probability, onehot, walk.classes, role, share)]
        if terms.contrast is not None or objective.needs_recourse:
            values.append(
                _beyond(out, log_probability, onehot, walk.classes, role, terms).unsqueeze(0)
            )
        told = torch.cat(values)
        if len(set(sizes)) == 1:  # usual, and one kernel for all batches
            sums = told.unflatten(-1, (len(sizes), -1)).sum(-1)  # (5 or 6, *lead, batches)
        else:
            sums = torch.stack([part.sum(-1) for part in told.split(sizes, -1)], -1)
        total = objective.total(*sums[:4]) + sums[5:].sum(0)
        self.terms = torch.cat([total.unsqueeze(0), sums[:5]]).movedim(-1, 0)


def _told(
    logits: Tensor, logp: Tensor, onehot: Tensor, classes: int, role: Tensor, share: Tensor
) -> Tensor:
    """What rows add to class loss, divergence, ridge, adversarial loss and hits ``(5, ..., R)``.

    ``share`` ``(..., R)`` is the weight of a row in its mean.
    """

    def only(kind: int, value: Tensor) -> Tensor:
        return torch.where(role == kind, value, 0.0)

    own = (logits * onehot).sum(classes)  # −E
    cross = -(logp * onehot).sum(classes) * share
    energy = own * share
    square = own.square() * share
    right = own >= logits.amax(classes)
    values = [
        only(Role.CLASS, cross),
        only(Role.COUNTERFACTUAL, energy) - only(Role.POSITIVE, energy),
        only(Role.COUNTERFACTUAL, square) + only(Role.POSITIVE, square),
        only(Role.ADVERSARIAL, cross),
        only(Role.CLASS, right.to(cross.dtype)),
    ]
    return torch.stack(values)


def _beyond(
    logits: Tensor, logp: Tensor, onehot: Tensor, classes: int, role: Tensor, terms: RowTerms
) -> Tensor:
    """What rows add to the weighted terms beyond Eq. 2 ``(..., R)``."""
    value = torch.where(role == Role.RECOURSE, -(logp * onehot).sum(classes) * terms.cross, 0.0)
    if terms.contrast is None:
        return value
    odds, _ = _log_odds(logits, onehot, classes)
    return value + terms.contrast.abs() * softplus(
        terms.contrast.sign() * (odds - CONTRAST_GOAL)
    )


def _contrast_gradient(
    logits: Tensor, onehot: Tensor, classes: int, contrast: Tensor
) -> Tensor:
    """``contrast·σ(±(m − m₀))·(onehot − softmax of the others)``, see :class:`RowTerms`."""
    odds, others = _log_odds(logits, onehot, classes)
    pull = contrast * torch.sigmoid(contrast.sign() * (odds - CONTRAST_GOAL))
    return (onehot - others).mul_(pull.unsqueeze(classes))


def _log_odds(logits: Tensor, onehot: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """The log-odds m ``(..., R)`` of the labels, and the softmax of the other classes."""
    others = logits.masked_fill(onehot > 0, -torch.inf)
    rest = others.logsumexp(classes, keepdim=True)
    return (logits * onehot).sum(classes) - rest.squeeze(classes), (others - rest).exp_()
