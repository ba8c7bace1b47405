"""Private names of torch are used in one module, and nothing depends on them but speed."""

import ast
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import counterfactual_training as ct
from counterfactual_training import torch_internals
from counterfactual_training.generators.chain import chain_of
from counterfactual_training.models.stack import UnstackableError, check_stackable
from counterfactual_training.torch_internals import fused_adam, log_softmax_backward

# All houses.
SOURCE = Path(ct.__file__).parents[1]
OF_OBJECTS = {
    *(name for name in vars(nn.Module()) if name.startswith("_")),
    *(
        "_backward_hooks",
        "_post_accumulate_grad_hooks",
        "_version",
        "_base",
        "_load_from_state_dict",
    ),
    *("_opt_called", "_step_supports_amp_scaling"),
}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def private_names(text: str) -> list[str]:
    """Private names of torch in a file of Python: imported, behind ``torch.`` or ``nn.``, or of
    torch's objects.
    """
    names = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "torch":
            names += [
                part
                for own in node.names
                for part in (*node.module.split("."), own.name)
                if is_private(part)
            ]
        elif isinstance(node, ast.Import):
            names += [
                own.name
                for own in node.names
                if own.name.startswith("torch.") and "._" in own.name
            ]
        elif isinstance(node, ast.Attribute) and is_private(node.attr):
            root = ast.unparse(node.value).split(".")[0]
            names += [node.attr] if root in ("torch", "nn") or node.attr in OF_OBJECTS else []
        elif isinstance(node, ast.Constant) and node.value in OF_OBJECTS:
            names.append(node.value)
    return names


@pytest.mark.parametrize(
    "line",
    [
        "torch._fused_adam_()",
        "from torch._subclasses import fake_tensor",
        "from torch.nn.modules.batchnorm import _BatchNorm",
        "import torch._dynamo",
        "torch.utils._pytree.tree_leaves(x)",
        "nn.modules._functions",
        "parameter._backward_hooks",
        "getattr(module, '_forward_hooks')",
    ],
)
def test_private_names_are_noticed(line):
    assert private_names(line)


def test_private_names_of_torch_are_in_one_module():
    private = {
        str(path.relative_to(SOURCE)): private_names(path.read_text())
        for path in SOURCE.glob("counterfactual_*/**/*.py")
    }
    found = [path for path, names in private.items() if names]
    assert found == ["counterfactual_training/torch_internals.py"]


def test_a_kernel_that_is_missing_or_changed_is_not_used(monkeypatch):
    monkeypatch.setattr(torch, "_changed", lambda other: other, raising=False)
    assert torch_internals._kernel("_changed", 1, 2) is None
    assert torch_internals._kernel("_missing", 1, 2) is None
    assert torch_internals._kernel("_changed", 1) is not None


@pytest.fixture
def without_kernels(monkeypatch):
    def remove():
        monkeypatch.setattr(torch_internals, "_LOG_SOFTMAX_BACKWARD", None)
        monkeypatch.setattr(torch_internals, "_FUSED_ADAM", None)

    return remove


@pytest.mark.parametrize("dim", [-1, -2])
def test_both_gradients_of_a_log_softmax_are_equal(dim, without_kernels):
    logits = torch.randn(6, 5, 4, dtype=torch.float64)
    grad = torch.randn_like(logits)
    log_probability = logits.log_softmax(dim)
    fast = log_softmax_backward(grad, log_probability, dim)
    without_kernels()
    assert_close(log_softmax_backward(grad, log_probability, dim), fast, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("skipped", [(), (1, 4)])
def test_both_updates_of_adam_are_equal(skipped, without_kernels):
    shapes = ((3, 2), (3,))
    start = [torch.randn(shape) for shape in shapes]
    grads = [[torch.randn(shape) for shape in shapes] for _ in range(6)]

    def updated():
        weights = [tensor.clone() for tensor in start]
        moments = (
            [torch.zeros_like(w) for w in weights],
            [torch.zeros_like(w) for w in weights],
        )
        count = torch.zeros(())
        for i, grad in enumerate(grads):
            bad = torch.tensor(float(i in skipped))
            count += 1
            before = count.clone()
            fused_adam(weights, grad, moments, count, (0.1, 0.9, 0.99), bad)
            assert torch.equal(count, before)  # the caller counts
            count -= bad
        return [*weights, *moments[0], *moments[1]]

    fast = updated()
    without_kernels()
    assert_close(updated(), fast, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("members", [1, 2])
def test_training_without_the_kernels_gives_the_same_numbers(members, blobs, without_kernels):
    def trained():
        method = ct.methods.ct_published(epochs=3, batch_size=20, num_counterfactuals=20)
        torch.manual_seed(0)
        fleet = [ct.Member(ct.mlp(2, 2, (8,)), method) for _ in range(members)]
        ct.Fleet(fleet).train(*blobs)
        return [p.detach() for member in fleet for p in member.model.parameters()]

    fast = trained()
    without_kernels()
    assert_close(trained(), fast, rtol=1e-4, atol=1e-5)


def test_where_hooks_have_another_name_there_may_be_some(monkeypatch):
    """They must be called, so everything takes the way that calls them."""
    model = ct.mlp(2, 2, (4,))
    assert chain_of(model) is not None
    check_stackable([model])
    monkeypatch.setattr(torch_internals, "_KINDS", ("_renamed_hooks",))
    assert chain_of(model) is None
    with pytest.raises(UnstackableError, match="has hooks"):
        check_stackable([model])
