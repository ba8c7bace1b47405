"""The paper's classifiers. Any other ``nn.Module`` that returns logits works as well."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import prod
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from counterfactual_training.errors import (
    Argument,
    InputError,
    ModelError,
    check_count,
    lookup,
)

_Module = TypeVar("_Module", bound=nn.Module)

# Values that are squashed at a time: few enough for the processor's cache.
_VALUES = 2**16
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "swish": nn.SiLU,
    "tanh": nn.Tanh,
}


class Asinh(nn.Module):
    """``asinh(x)``: about x near 0 and logarithmic far away, so that no outlier dominates the other
    inputs.
    """

    def forward(self, x: Tensor) -> Tensor:
        # torch computes asinh value by value on a processor, which takes longer there than the
        # layers behind it.
        if x.device.type != "cpu" or x.dtype not in (torch.float32, torch.float64):
            return torch.asinh(x)
        if torch.is_grad_enabled():
            return _Asinh.apply(x)
        return _asinh(x)


class _Asinh(torch.autograd.Function):
    """With the derivative that torch has for asinh; that of the single operations is NaN at 0."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return _asinh(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * (ctx.saved_tensors[0].pow(2) + 1).rsqrt()


def _asinh(x: Tensor) -> Tensor:
    """``±log(1 + a + a / (1/a + √(1 + 1/a²)))`` of a = |x|, which has all digits near 0 and
    overflows nowhere else.
    """
    size = x.abs()
    inverse = size.reciprocal()
    root = inverse.square().add_(1).sqrt_().add_(inverse)
    return size.div(root).add_(size).log1p_().copysign_(x)


@torch.no_grad()
def squash(x: Tensor) -> None:
    """Apply :class:`Asinh` to rows x ``(n, d)`` in place, a few at a time, to save memory."""
    for part in x.split(max(1, _VALUES // max(1, x.shape[-1]))):
        part.copy_(Asinh()(part))


def linear(num_features: int, num_classes: int) -> nn.Module:
    """Multinomial logistic regression: ``M(x) = Θx + b``.

    Args:
        num_features: inputs, d.
        num_classes: outputs, k.

    Examples:
        >>> import counterfactual_training as ct
        >>> data = ct.load_dataset("linearly_separable")
        >>> method = ct.methods.conventional(epochs=3, learning_rate=0.01)
        >>> model = ct.train(ct.linear(2, 2), data.x_train, data.y_train, method).model
        >>> bool((model(data.x_test).argmax(-1) == data.y_test).float().mean() > 0.95)
        True
    """
    return mlp(num_features, num_classes, hidden=())


def mlp(
    num_features: int,
    num_classes: int,
    hidden: Sequence[int] = (32,),
    activation: str = "relu",
    squash: bool = False,
) -> nn.Sequential:
    """Multilayer perceptron, Glorot-uniform weights and zero biases; the default is the paper's.

    Args:
        num_features: inputs, d.
        num_classes: outputs, k.
        hidden: widths of the hidden layers.
        activation: ``"relu"``, ``"swish"`` or ``"tanh"``.
        squash: puts :class:`Asinh` before the first layer.

    Examples:
        >>> import counterfactual_training as ct
        >>> data = ct.load_dataset("moons")
        >>> model = ct.mlp(data.num_features, data.num_classes, hidden=(64, 64), activation="swish")
        >>> _ = ct.train(model, data.x_train, data.y_train, "ct_published(epochs=1)")
        >>> model(data.x_test).shape
        torch.Size([900, 2])
    """
    make_activation = lookup("activation", activation, ACTIVATIONS)
    widths = [check_count("num_features", num_features), *hidden]
    if any(width < 1 for width in hidden):
        raise InputError(
            Argument("hidden"),
            f": widths must be positive, got {', '.join(map(str, hidden))}.",
            code="bad_value",
            field="hidden",
            expected="positive widths",
        )
    widths.append(check_count("num_classes", num_classes))
    if squash:
        layers: list[nn.Module] = [Asinh()]
    else:
        layers = []
    for i, (fan_in, fan_out) in enumerate(pairwise(widths)):
        # Before every layer but the first, so that none follows the logits.
        if i:
            layers += [make_activation()]
        layers.append(nn.Linear(fan_in, fan_out))
    return _glorot(nn.Sequential(*layers))


def shape_of(model: nn.Module) -> dict[str, Any]:
    """What :func:`mlp` needs to make a network of this shape; raises unless it could have made this
    one.
    """
    if isinstance(model, nn.Sequential):
        layers = list(model)
    else:
        layers = [model]
    linears = [layer for layer in layers if isinstance(layer, nn.Linear)]
    between = {type(layer) for layer in layers if not isinstance(layer, (nn.Linear, Asinh))}
    names = {activation: name for name, activation in ACTIVATIONS.items()}
    squash = isinstance(layers[0], Asinh)
    if (
        not linears
        or len(between) > 1
        or not between <= set(names)
        or len(layers) != 2 * len(linears) - 1 + squash
    ):
        kinds = ", ".join(type(layer).__name__ for layer in layers)
        raise ModelError(
            "Expected layers as mlp() makes them: linear ones and one kind of activation; got "
            f"{kinds}."
        )
    shape: dict[str, Any] = {
        "hidden": tuple(layer.out_features for layer in linears[:-1]),
        "squash": squash,
    }
    return shape | ({"activation": names[between.pop()]} if between else {})


@torch.no_grad()
def bend(model: nn.Sequential, x: Tensor, share: float, slope: float = 2.0) -> None:
    """Initialise a share of the first layer's units as ``±slope·(x_c − q)``, for columns c and
    quantiles q of x.

    With ReLU, such a unit is a bend in one column, like a split of a tree, so effects of single
    columns need not be learned by rotating units that see all columns. Columns with one or two
    values are left out. x is ``(n, d)``.
    """
    # Quantiles are those of what this layer sees, which is not x if the inputs are squashed.
    first = next(layer for layer in model if isinstance(layer, nn.Linear))
    squashes = model[0] is not first
    columns = _with_three_values(model[0] if squashes else nn.Identity(), x)
    units = int(share * first.out_features)
    if not columns or not units:
        return
    # With more columns than units, take every so many instead of the first ones.
    columns = columns[:: max(len(columns) // units, 1)][:units]
    # Rounded up: each column gets this many bends, at the middles of so many equal shares of its
    # rows.
    rounds = -(-units // len(columns))
    places = [int((turn + 0.5) / rounds * len(x)) for turn in range(rounds)]
    # numpy puts the values in order at these places only, which takes a tenth of the time of
    # sorting a million rows.
    if squashes:
        seen = model[0](x[:, columns])
    else:
        seen = x[:, columns]
    values = [np.partition(column, places)[places] for column in seen.T.cpu().double().numpy()]
    for j in range(units):
        turn, place = divmod(j, len(columns))
        at = float(values[place][turn])
        # By turns active above the quantile and below it.
        if turn % 2:
            steep = slope
        else:
            steep = -slope
        first.weight[j] = 0.0
        first.weight[j, columns[place]] = steep
        first.bias[j] = -steep * at


def _with_three_values(squash: nn.Module, x: Tensor) -> list[int]:
    """The columns of x ``(n, d)`` that hold three values or more once they are squashed."""
    between = torch.zeros(x.shape[1], dtype=torch.bool, device=x.device)
    ends: list[Tensor] = []
    # A part of the rows at a time: what is computed for all of them would take several times their
    # memory.
    for part in x.split(max(1, _VALUES // x.shape[1])):
        seen = squash(part)
        lowest, highest = seen.aminmax(dim=0)
        between |= ((seen > lowest) & (seen < highest)).any(0)
        ends += [lowest, highest]
    # The ends of a part may lie between those of all rows.
    values = torch.stack(ends)
    between |= ((values > values.amin(0)) & (values < values.amax(0))).any(0)
    return between.nonzero().flatten().tolist()


class CNN(nn.Module):
    """LeNet-5 for images; takes ``(n, C·H·W)`` rows or ``(n, C, H, W)`` images."""

    def __init__(
        self, num_classes: int, image_shape: tuple[int, int, int] = (1, 28, 28)
    ) -> None:
        super().__init__()
        channels, height, width = image_shape
        self.image_shape = image_shape
        # The padding keeps height and width, so that only the two pools divide them, by 4 in all.
        self.convolutions = nn.Sequential(
            nn.Conv2d(channels, 6, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
        )
        flat = 16 * (height // 4) * (width // 4)
        self.head = nn.Sequential(
            nn.Linear(flat, 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
            nn.Linear(84, num_classes),
        )
        _glorot(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.convolutions(x.reshape(-1, *self.image_shape)))


def cnn(
    num_features: int, num_classes: int, image_shape: tuple[int, int, int] = (1, 28, 28)
) -> nn.Module:
    """LeNet-5 for images, as ``(n, C·H·W)`` rows or ``(n, C, H, W)``; see :class:`CNN`.

    Args:
        num_features: pixels of an image, C·H·W.
        num_classes: outputs, k.
        image_shape: C, H and W.

    Examples:
        >>> import torch
        >>> import counterfactual_training as ct
        >>> model = ct.cnn(3 * 32 * 32, 10, image_shape=(3, 32, 32))
        >>> images = torch.rand(4, 3, 32, 32)
        >>> model(images).shape, model(images.flatten(1)).shape
        (torch.Size([4, 10]), torch.Size([4, 10]))
        >>> ct.search(model, images, torch.tensor([0, 1, 2, 3]), ct.generic(max_steps=2)).x_cf.shape
        torch.Size([4, 3, 32, 32])
    """
    if prod(image_shape) != num_features:
        raise InputError(
            f"image_shape {image_shape} has {prod(image_shape)} pixels, the data {num_features} "
            "features."
        )
    return CNN(num_classes, image_shape)


# The defaults of the authors' framework, Flux; torch draws from another range, and biases too.
def _glorot(module: _Module) -> _Module:
    with torch.no_grad():
        for layer in module.modules():
            if isinstance(layer, (nn.Linear, nn.Conv2d)):
                nn.init.xavier_uniform_(layer.weight)
                if layer.bias is not None:
                    layer.bias.zero_()
    return module
