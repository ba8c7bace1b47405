"""The graph computes what torch does: every network, every gate, any number of rows."""

import itertools

import numpy as np
import pytest
import torch
from torch.nn import functional

from counterfactual_training.gates import Both, Density, Gated, Learned
from counterfactual_training.models.embeddings import PiecewiseLinear
from counterfactual_training.models.ensemble import Ensemble
from counterfactual_training.models.quantiles import Quantiles, behind_quantiles
from counterfactual_training.models.shapes import make_network
from counterfactual_training.tables.export.traceable import (
    Open,
    Outputs,
    RecourseGraph,
    traceable,
)

ort = pytest.importorskip("onnxruntime", reason="export needs the extra 'onnx'")
onnx = pytest.importorskip("onnx", reason="export needs the extra 'onnx'")
trace = pytest.importorskip(
    "counterfactual_training.tables.export.trace", reason="export needs the extra 'onnx'"
)

pytestmark = pytest.mark.check

D = 6
NETWORKS = {
    "linear": {"kind": "mlp", "hidden": ()},
    "relu": {"kind": "mlp", "hidden": (16, 8)},
    "swish": {"kind": "mlp", "hidden": (16, 8), "activation": "swish", "squash": True},
    "tanh": {"kind": "mlp", "activation": "tanh", "quantiles": 8},
    "plr": {"kind": "mlp-plr", "columns": [0, 2, 5], "squash": True},
    "ple": {"kind": "mlp-ple", "columns": [0, 2, 5], "num_bins": 6},
    "tabm": {"kind": "tabm", "num_members": 4, "activation": "swish"},
    "trees": {"kind": "neurotree", "num_trees": 8, "depth": 3, "squash": True},
    "ensemble": {"kind": "ensemble", "size": 2, "member": {"kind": "mlp-ple", "num_bins": 4}},
    "counternet": {"kind": "counternet", "squash": True},
}
GATES = ("none", "density", "learned", "both")
# A graph takes seconds to make. The sum of several networks shows a mistake in any of them, so that
# these are not made one by one as well; the others are, with the gates in turn.
TOGETHER = ("tanh", "plr", "tabm", "trees", "ensemble", "counternet")
ALONE = [name for name in NETWORKS if name not in TOGETHER]
SUMS = [("together", "both"), ("three of relu", "none"), ("three of plr", "none")]
CASES = [*zip(ALONE, itertools.cycle(GATES), strict=False), *SUMS]


def rows(n, num_classes, seed=1):
    rng = torch.Generator().manual_seed(seed)
    return 1.5 * torch.randn(n, D, generator=rng), torch.arange(n) % num_classes


class Sum(torch.nn.ModuleList):
    def forward(self, x):
        return sum(network(x) for network in self)


def made_network(name, num_classes):
    """A network of that kind with other weights than it starts with: zeros would hide mistakes."""
    if name == "together":
        return Sum(made_network(one, num_classes) for one in TOGETHER)
    if name.startswith("three of "):
        return Ensemble(
            [made_network(name.removeprefix("three of "), num_classes) for _ in range(3)]
        )
    network = make_network(NETWORKS[name], D, num_classes)
    x, _ = rows(200, num_classes, seed=2)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape))
    for layer in network.modules():
        if isinstance(layer, Quantiles | PiecewiseLinear):
            layer.fit(x)
    return network.eval()


def made_gate(kind, num_classes, immutable=(0, 3)):
    x, y = rows(240, num_classes, seed=3)
    mask = torch.zeros(D, dtype=torch.bool)
    mask[list(immutable)] = True
    density = Density.fit(x + y.unsqueeze(-1), y, num_classes, immutable=mask, size=50)
    learned = Learned.empty([D, 12, num_classes]).requires_grad_(False).eval()
    return {
        "none": None,
        "density": density,
        "learned": learned,
        "both": Both(density, learned),
    }[kind]


def by_torch(network, gate, x, target):
    """Outputs by the modules as they are, and by autograd."""
    searched = network if gate is None else Gated(network, gate)
    gradients, losses = [], []
    for module in (searched, network):
        leaf = x.clone().requires_grad_()
        losses.append(functional.cross_entropy(module(leaf), target, reduction="none"))
        gradients += torch.autograd.grad(losses[-1].sum(), leaf)
    with torch.no_grad():
        logits = network(x)
        probability = logits.softmax(-1)
        plausibility = torch.ones_like(logits) if gate is None else gate(x).exp()
    values = (
        logits,
        probability,
        plausibility,
        probability * plausibility,
        losses[0].detach(),
        *gradients,
    )
    return Outputs(*(value.numpy() for value in values))


def outputs(session, x, target, depth=2):
    feed = {"x": x.numpy(), "target": target.numpy(), "depth": np.array(depth)}
    return session.run(list(Outputs._fields), feed)


def assert_alike(session, network, gate, x, target):
    found = Outputs(
        *session.run(
            list(Outputs._fields),
            {"x": x.numpy(), "target": target.numpy(), "depth": np.array(2)},
        )
    )
    for name, a, b in zip(
        Outputs._fields, found, by_torch(network, gate, x, target), strict=True
    ):
        # Sums in another order round otherwise, more so where large terms cancel.
        assert a.shape == b.shape and a.dtype == b.dtype == np.float32, name
        assert np.abs(a - b).max() <= 5e-5 * max(1.0, np.abs(b).max()), name


def session_of(network, gate):
    model = trace.to_onnx(RecourseGraph(network, gate), D)
    onnx.checker.check_model(model, full_check=True)
    return ort.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    ), model


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_graph_and_torch_agree(name, kind):
    num_classes = 2 if name.endswith(("together", "counternet", "swish")) else 3
    network, gate = made_network(name, num_classes), made_gate(kind, num_classes)
    session, model = session_of(network, gate)
    for n in (1, 2, 7, 300):
        assert_alike(session, network, gate, *rows(n, num_classes, seed=n))
    x = torch.full((2, D), 1e4) * torch.tensor([[1.0], [-1.0]])  # far away from everything
    found = session.run(
        ["gradient", "plausibility"],
        {"x": x.numpy(), "target": np.array([0, 1]), "depth": np.array(2)},
    )
    assert all(np.isfinite(value).all() for value in found)
    assert [entry.version for entry in model.opset_import if not entry.domain] == [trace.OPSET]
    assert [
        (put.name, put.shape[0] if put.shape else None, put.type)
        for put in session.get_inputs()
    ] == [
        ("x", "n", "tensor(float)"),
        ("target", "n", "tensor(int64)"),
        ("depth", None, "tensor(int64)"),
    ]
    # Only standard operations, and no word about the machine it was made on.
    assert {entry.domain for entry in model.opset_import} <= {
        "",
        "pkg.onnxscript.torch_lib.common",
    }
    assert {node.domain for node in model.graph.node} == {""} and not model.functions
    assert b".py" not in model.SerializeToString()


def test_a_gate_with_nothing_to_judge_lets_every_row_pass():
    gate = traceable(made_gate("density", 3, immutable=range(D)))
    assert isinstance(gate, Open) and not gate(torch.randn(4, D)).any()


def test_the_module_itself_stays_as_it_is():
    network = behind_quantiles(made_network("swish", 2), Quantiles(D)).train()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    kinds = [type(layer) for layer in network.modules()]
    RecourseGraph(network, None)
    assert network.training and [type(layer) for layer in network.modules()] == kinds
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())


def test_a_layer_that_occurs_twice_is_replaced_twice():
    swish = made_network("swish", 2)
    twice = torch.nn.Sequential(swish[0], swish[0], *swish[1:])
    x, _ = rows(5, 2)
    assert torch.allclose(traceable(twice)(x), twice(x), atol=1e-6)
