"""From a graph in torch to a graph in ONNX, for any number of rows, with derivatives as ordinary
operations.
"""

from __future__ import annotations

import itertools
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx

from counterfactual_training.errors import ModelError
from counterfactual_training.tables.export.lazy import by_depth
from counterfactual_training.tables.export.traceable import Outputs

# Read by onnxruntime from 1.14 on.
OPSET = 18
INPUTS = ("x", "target")
# Rows of the example to trace with: neither 0 nor 1, which torch treats as special.
_ROWS = 7

_aten: Any = torch.ops.aten


class Traced(nn.Module):
    """A traced function of weights and inputs, with the weights it was traced with; takes the
    inputs alone.
    """

    def __init__(self, function: nn.Module, weights: list[Tensor]) -> None:
        super().__init__()
        self.function = function
        self.num_weights = len(weights)
        for i, weight in enumerate(weights):
            self.register_buffer(f"weight{i}", weight)

    def forward(self, x: Tensor, target: Tensor) -> tuple[Tensor, ...]:
        return tuple(
            self.function(
                *(self.get_buffer(f"weight{i}") for i in range(self.num_weights)), x, target
            )
        )


def to_onnx(graph: nn.Module, num_features: int) -> Any:
    """The ONNX model (a protobuf) of a graph ``(x (n, d), target (n,))`` → :class:`Outputs`, each
    at its depth.
    """
    try:
        with _quietly():
            traced = trace(graph, num_features).eval()
            rows = torch.export.Dim("n")
            program = torch.onnx.export(
                traced,
                (torch.zeros(_ROWS, num_features), torch.zeros(_ROWS, dtype=torch.long)),
                dynamo=True,
                dynamic_shapes=({0: rows}, {0: rows}),
                input_names=INPUTS,
                output_names=Outputs._fields,
                opset_version=OPSET,
                verbose=False,
            )
    except Exception as error:
        # Tracers raise errors of any type; the last line of the chain names the operation.
        raise ModelError(
            f"This network cannot be exported: {_cause(error)} A graph can hold only tensor "
            "operations that do not "
            "depend on the values of a row and that have a derivative in ONNX; convolutions have "
            "none."
        ) from error
    assert program is not None  # noqa: S101 - None only where a file is named
    return by_depth(_bare(program.model_proto))


def trace(graph: nn.Module, num_features: int) -> Traced:
    """The graph as a flat list of operations, derivatives included, for any number of rows."""
    state = {**dict(graph.named_parameters()), **dict(graph.named_buffers())}
    names = list(state)
    weights = [tensor.detach() for tensor in state.values()]

    def run(*tensors: Tensor) -> tuple[Tensor, ...]:
        *parameters, x, target = tensors
        return tuple(
            functional_call(graph, dict(zip(names, parameters, strict=True)), (x, target))
        )

    # Symbols instead of sizes: whatever is traced holds for any number of rows. Equal sizes share a
    # symbol, so the number of rows of the example must be no other size.
    sizes = {size for weight in weights for size in weight.shape} | {num_features}
    rows = next(size for size in itertools.count(_ROWS) if size not in sizes)
    example = (torch.zeros(rows, num_features), torch.zeros(rows, dtype=torch.long))
    graph_module = make_fx(run, decomposition_table=_decompositions(), tracing_mode="symbolic")(
        *weights, *example
    )
    return Traced(graph_module, weights)


def _decompositions() -> dict[Any, Callable[..., Any]]:
    """How operations are written in simpler ones: torch's own table, and zeros for memory without
    values.
    """
    table: dict[Any, Callable[..., Any]] = dict(torch.export.default_decompositions())

    def zeros(
        size: Any, physical_layout: Any, *, dtype: Any = None, device: Any = None, **_: Any
    ) -> Tensor:
        return torch.zeros(size, dtype=dtype, device=device)

    # The derivative of swish allocates memory and then fills it; ONNX has no operation for the
    # first.
    table[_aten.empty_permuted.default] = zeros
    return table


def _bare(model: Any) -> Any:
    """The protobuf without what the exporter notes about each operation, such as lines and paths of
    source files.
    """
    for node in model.graph.node:
        node.ClearField("metadata_props")
        node.ClearField("doc_string")
    for entry in (
        *model.graph.value_info,
        *model.graph.input,
        *model.graph.output,
        *model.graph.initializer,
    ):
        entry.ClearField("metadata_props")
    for field in ("metadata_props", "doc_string"):
        model.graph.ClearField(field)
        model.ClearField(field)
    return model


@contextmanager
def _quietly() -> Iterator[None]:
    """Without the exporter's notes about packages and types that no graph here needs."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _cause(error: BaseException) -> str:
    """The first line of the innermost error."""
    while error.__cause__ is not None:
        error = error.__cause__
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    if line.endswith("."):
        return line
    return f"{line}."
