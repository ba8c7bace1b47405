"""CounterNet: a classifier that learns to answer with counterfactuals itself (Guo, Nguyen and
Yadav, KDD 2023).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from counterfactual_training.errors import InputError, ModelError
from counterfactual_training.models.classifiers import Asinh


class CounterNet(nn.Module):
    """Encoder, predictor and explainer: ``z = e(x)``, ``h = p(z)``, logits ``Wh + b``, proposal
    ``g(z, h)``.

    It is a classifier, ``(..., d)`` → logits ``(..., 2)``, and :meth:`explain` gives one
    counterfactual per row for the class that it does not predict, in one pass and without a search.
    Train it with ``method="counternet"``; the explainer learns nothing by other methods.

    Args:
        num_features: inputs, d.
        num_classes: always 2.
        encoder: widths of the encoder's layers, each with LeakyReLU and dropout; as the authors',
            like all defaults.
        predictor: widths of the predictor's layers.
        explainer: widths of the explainer's layers.
        dropout: share of units dropped in training.
        squash: puts :class:`Asinh` before the encoder.

    Attributes:
        encoder: e.
        predictor: p.
        head: W and b.
        explainer: g.
        shape: the arguments but the first two, by name, as :func:`counternet` takes them.

    Examples:
        >>> import counterfactual_training as ct
        >>> data = ct.load_dataset("moons")
        >>> model = ct.CounterNet(2)
        >>> method = ct.methods.counternet(epochs=1, batch_size=100)
        >>> _ = ct.train(model, data.x_train[:500], data.y_train[:500], method)
        >>> model(data.x_test).shape, model.explain(data.x_test, data.constraints).shape
        (torch.Size([900, 2]), torch.Size([900, 2]))
    """

    def __init__(
        self,
        num_features: int,
        num_classes: int = 2,
        encoder: Sequence[int] = (50, 10),
        predictor: Sequence[int] = (10,),
        explainer: Sequence[int] = (50,),
        dropout: float = 0.3,
        squash: bool = False,
    ) -> None:
        super().__init__()
        if num_classes != 2:
            raise InputError(
                "CounterNet answers with the opposite of its prediction, so it needs two "
                f"classes, got {num_classes}. "
                "For more, train by another method and explain by search."
            )
        widths = [num_features, *encoder, *predictor, *explainer]
        if (
            any(width < 1 for width in widths)
            or not (encoder and predictor and explainer)
            or not 0 <= dropout < 1
        ):
            raise InputError(
                f"CounterNet needs layers of positive widths and a dropout in [0, 1), got {widths}."
            )
        self.shape: dict[str, Any] = {
            "encoder": list(encoder),
            "predictor": list(predictor),
            "explainer": list(explainer),
            "dropout": dropout,
            "squash": squash,
        }
        if squash:
            before = [Asinh()]
        else:
            before = []
        self.encoder = nn.Sequential(*before, *_layers([num_features, *encoder], dropout))
        self.predictor = nn.Sequential(*_layers([encoder[-1], *predictor], dropout))
        self.head = nn.Linear(predictor[-1], 2)
        seen = encoder[-1] + predictor[-1]
        self.explainer = nn.Sequential(
            *_layers([seen, *explainer], dropout), nn.Linear(explainer[-1], num_features)
        )

    def forward(self, x: Tensor, propose: bool = False, detach: bool = False) -> Any:
        """Logits; with ``propose`` also the explainer's output ``(..., d)``, by constants z and h
        if ``detach``.
        """
        z = self.encoder(x)
        h = self.predictor(z)
        logits = self.head(h)
        if not propose:
            return logits
        seen = torch.cat([z, h], -1)
        return logits, self.explainer(seen.detach() if detach else seen)

    @torch.no_grad()
    def explain(self, x: Tensor, constraints: Any = None) -> Tensor:
        """A counterfactual of every row ``(..., n, d)``, for the class not predicted, that keeps to
        the constraints.
        """
        training = self.training
        self.eval()
        try:
            proposal = self(x, propose=True)[1]
        finally:
            self.train(training)
        if constraints is None:
            return proposal
        # A box in half precision would be a coarse one.
        proposal = proposal.to(torch.promote_types(proposal.dtype, torch.float32))
        rules = constraints.to(proposal)
        rows = x.to(proposal)
        _, x_cf = feasible(proposal, rows, rules)
        x_cf = rules.project_categories(x_cf, rules.bounds(rows))
        return rules.snap(x_cf, rows).to(x)


def counternet_explainer(
    model: nn.Module, x: Tensor, y_target: Tensor, constraints: Any = None
) -> Tensor:
    """The answers of a :class:`CounterNet` itself, as an explainer for :func:`evaluate`; also of
    one that is wrapped.

    With two classes, a target that is not predicted is the opposite, which it explains. To measure
    them, call ``ct.evaluate(model, data, explainers={"counternet": ct.counternet_explainer})``.

    Args:
        model: the CounterNet, or a model around it.
        x: ``(..., n, d)`` factuals.
        y_target: ``(..., n)`` their targets, which must be the classes that are not predicted.
        constraints: what may move.

    Returns:
        One counterfactual per row, like x.

    Examples:
        >>> import counterfactual_training as ct
        >>> data, model = ct.load_dataset("moons"), ct.counternet(2).eval()
        >>> y_target = 1 - model(data.x_test).argmax(-1)
        >>> x_cf = ct.counternet_explainer(model, data.x_test, y_target, data.constraints)
        >>> bool(data.constraints.violations(x_cf, data.x_test).any())
        False
    """
    inner: Any = model
    while not isinstance(inner, CounterNet):
        inner = getattr(inner, "model", None)
        if inner is None:
            raise ModelError(
                f"Only a CounterNet answers by itself, got {type(model).__name__}; use ct.search."
            )
    return inner.explain(x, constraints)


def feasible(proposal: Tensor, x: Tensor, constraints: Any) -> tuple[Tensor, Tensor]:
    """The proposal ``(..., n, d)`` with a softmax in every one-hot group, and what the constraints
    leave of it.

    What may not change is x's own. Box, directions and relations are kept by projection, which
    passes gradients on as if it were not there: cut off, an explainer would never learn to come
    back inside.
    """
    soft = proposal.clone()
    for group in constraints.groups:
        columns = list(group.columns)
        # A single column is a yes or no.
        part = proposal[..., columns]
        if len(columns) > 1:
            soft[..., columns] = part.softmax(-1)
        else:
            soft[..., columns] = part.sigmoid()
    soft = torch.where(constraints.immutable.unsqueeze(-2), x, soft)
    lower, upper = constraints.interval(x)
    kept = constraints.confine(soft.detach().clone(), x, lower, upper)
    return soft, soft + (kept - soft).detach()


def counternet(num_features: int, num_classes: int = 2, **shape: Any) -> CounterNet:
    """A :class:`CounterNet`, made like the other networks.

    Args:
        num_features: inputs, d.
        num_classes: always 2.
        **shape: its other arguments.

    Examples:
        >>> import counterfactual_training as ct
        >>> data = ct.load_dataset("moons")
        >>> model = ct.counternet(data.num_features, encoder=(16, 8))
        >>> x_cf = model.explain(data.x_test)  # in one pass; train it first, by method="counternet"
        >>> x_cf.shape, model.shape["encoder"]
        (torch.Size([900, 2]), [16, 8])
    """
    return CounterNet(num_features, num_classes, **shape)


def _layers(widths: Sequence[int], dropout: float) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(widths):
        layers += [nn.Linear(fan_in, fan_out), nn.LeakyReLU(), nn.Dropout(dropout)]
    return layers
