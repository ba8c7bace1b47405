"""A graph that computes only what is asked for.

onnxruntime computes every output of a graph, whichever are fetched. A prediction would then wait
for a gate and for a gradient, which take many times as long. Here the input ``depth`` decides, and
what is deeper stands in branches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

#: Outputs by depth: predictions; what a gate says of a row; gradients.
LEVELS = (
    ("logits", "probability"),
    ("plausibility", "gated", "loss"),
    ("gradient", "class_gradient"),
)
DEPTH = "depth"
# What stands in a branch: all outputs that are no predictions.
_BRANCHED = tuple(name for names in LEVELS[1:] for name in names)


def by_depth(model: Any) -> Any:
    """The model (a protobuf) with one more input, ``depth`` ``()`` int64: outputs of greater depth
    come without rows.

    Not an input with a default, about which onnxruntime would print a warning whenever it loads the
    file.
    """
    graph = model.graph
    nodes = list(graph.node)
    shapes = {output.name: output.type.tensor_type.shape.dim for output in graph.output}
    widths = {name: [axis.dim_value for axis in shape[1:]] for name, shape in shapes.items()}
    # The latter are types of tensors that are in branches now.
    del (
        graph.node[:],
        graph.value_info[:],
    )
    graph.node.extend(
        [*_needed(nodes, LEVELS[0]), *_choice(nodes, len(LEVELS) - 1, widths, "")]
    )
    graph.input.append(helper.make_tensor_value_info(DEPTH, onnx.TensorProto.INT64, []))
    return model


def _choice(
    nodes: list[Any], depth: int, widths: Mapping[str, list[int]], suffix: str
) -> list[Any]:
    """Nodes that make the branched outputs, up to this depth if it is asked for, else up to a
    lesser one.

    ``suffix`` of the outputs' names: a name stands for one tensor only, in all branches.
    """
    if depth == 0:
        return [_empty(f"{name}{suffix}", widths[name]) for name in _BRANCHED]
    computed = [name for names in LEVELS[1 : depth + 1] for name in names]
    inside = f"_in_{depth}"
    lesser = f"_below_{depth}"
    # Every branch computes all it needs from the inputs: onnxruntime optimises away what only a
    # branch within uses.
    then = [
        *_renamed(_needed(nodes, computed), inside),
        *(
            _empty(f"{name}{inside}", widths[name])
            for name in _BRANCHED
            if name not in computed
        ),
    ]
    otherwise = _choice(nodes, depth - 1, widths, lesser)
    branches = {
        "then_branch": _branch(then, f"depth_{depth}", inside, widths),
        "else_branch": _branch(otherwise, f"below_{depth}", lesser, widths),
    }
    least = f"least{suffix}_{depth}"
    deeper = f"asked{suffix}_{depth}"
    return [
        helper.make_node("Constant", [], [least], value_int=depth),
        helper.make_node("GreaterOrEqual", [DEPTH, least], [deeper]),
        helper.make_node("If", [deeper], [f"{name}{suffix}" for name in _BRANCHED], **branches),
    ]


def _branch(nodes: list[Any], name: str, suffix: str, widths: Mapping[str, list[int]]) -> Any:
    outputs = [
        helper.make_tensor_value_info(
            f"{output}{suffix}", onnx.TensorProto.FLOAT, [None, *widths[output]]
        )
        for output in _BRANCHED
    ]
    return helper.make_graph(nodes, name, [], outputs)


def _needed(nodes: list[Any], outputs: Iterable[str]) -> list[Any]:
    """Copies of the nodes that these outputs need, in their order."""
    maker = {name: i for i, node in enumerate(nodes) for name in node.output}
    needed = set[int]()
    waiting = [maker[name] for name in outputs]
    while waiting:
        i = waiting.pop()
        if i not in needed:
            needed.add(i)
            waiting += [maker[name] for name in nodes[i].input if name in maker]
    return [_copy(nodes[i]) for i in sorted(needed)]


def _renamed(nodes: list[Any], suffix: str) -> list[Any]:
    """The nodes with a suffix to every name that one of them makes; inputs and weights keep
    theirs.
    """
    produced = {name for node in nodes for name in node.output}
    for node in nodes:
        node.name = f"{node.name}{suffix}"
        for field in (node.input, node.output):
            field[:] = [f"{name}{suffix}" if name in produced else name for name in field]
    return nodes


def _copy(node: Any) -> Any:
    copied = onnx.NodeProto()
    copied.CopyFrom(node)
    return copied


def _empty(name: str, width: list[int]) -> Any:
    """A tensor without rows."""
    values = np.zeros((0, *width), dtype=np.float32)
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(values, name))
