"""What an exported graph computes, written so that one trace holds for every number of rows."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from counterfactual_training.gates import Density, Gate
from counterfactual_training.gates.calibration import Calibrated, Line
from counterfactual_training.gates.density import _conditional, _Kernels
from counterfactual_training.models.classifiers import Asinh
from counterfactual_training.models.trace import named_parts

# Its stubs know one form of its result only.
vjp: Any = torch.func.vjp


class Outputs(NamedTuple):
    """What a graph returns for n rows of d encoded columns and k classes; t is the target of a
    row.
    """

    logits: Tensor  #: ``(n, k)``
    probability: Tensor  #: ``(n, k)``, softmax of the logits
    #: ``(n, k)``, σ(g) given what cannot change, as ``explain`` judges; 1 without a gate
    plausibility: Tensor
    gated: Tensor  #: ``(n, k)``, probability · plausibility
    loss: Tensor  #: ``(n,)``, −log gated_t
    gradient: Tensor  #: ``(n, d)``, ∂ loss / ∂x
    class_gradient: Tensor  #: ``(n, d)``, ∂/∂x of −log probability_t, without the gate


class RecourseGraph(nn.Module):
    """Rows x ``(n, d)`` and the index of each row's target ``(n,)`` → :class:`Outputs`.

    ``loss = −log softmax_t(f(x)) − log σ(g_t(x))``, which is the class loss of ``Gated``: its
    probabilities add up to one, so the softmax over them changes nothing.
    """

    def __init__(self, model: nn.Module, gate: Gate | None) -> None:
        super().__init__()
        self.model = traceable(model)
        if gate is None:
            self.gate = None
        else:
            self.gate = traceable(gate)

    def forward(self, x: Tensor, target: Tensor) -> Outputs:
        def chances_of(points: Tensor) -> tuple[Tensor, Tensor]:
            logits = self.model(points)
            return functional.log_softmax(logits, -1), logits

        # Pullbacks, not autograd: their operations are part of the trace like all others.
        chances, pull_model, logits = vjp(chances_of, x, has_aux=True)
        # A mask, because the derivative of gather is a scatter, which runtimes are slow at.
        is_target = target.unsqueeze(-1) == torch.arange(logits.shape[-1], device=target.device)
        (class_gradient,) = pull_model(-is_target.to(chances))
        passes = torch.zeros_like(chances)
        gradient = class_gradient
        if self.gate is not None:
            passes, pull_gate = vjp(self.gate, x)
            # The loss is a sum, so its gradient is one, too; each part goes through its own module
            # once.
            gradient = class_gradient + pull_gate(-is_target.to(passes))[0]
        loss = -torch.where(is_target, chances + passes, 0.0).sum(-1)
        values = (logits, chances.exp(), passes.exp(), (chances + passes).exp(), loss)
        # Without a gate, an output of its own: ONNX does not accept the same tensor under two
        # names.
        return Outputs(
            *values,
            gradient,
            class_gradient if self.gate is not None else class_gradient.clone(),
        )


class PlainAsinh(nn.Module):
    """:class:`Asinh` in operations that ONNX has and that runtimes are fast at: ``±log(|x| + √(x² +
    1))``.
    """

    def forward(self, x: Tensor) -> Tensor:
        at = x.detach()
        value = at.sign() * (at.abs() + (at.square() + 1).sqrt()).log()
        # The derivative by itself: that of the formula is 0 at 0, where most one-hot columns are.
        return value + (x - at) * (at.square() + 1).rsqrt()


class Kernels(Calibrated):
    """A :class:`Density` whose kernels are buffers: ``(n, d)`` → ``log σ(g)`` ``(n, k)``.

    The gate itself makes its kernels when it is first asked, and cuts columns by a mask; a trace
    can do neither.
    """

    def __init__(self, gate: Density) -> None:
        super().__init__(Line(gate.slope, gate.origin))
        # In a tuple, so that the rows it stores do not become weights of the graph as well.
        self.of = (gate,)
        parts = gate.kernels
        for i, part in enumerate(parts):
            # Cutting columns as a product: exact, and with a product as derivative instead of a
            # scatter.
            chosen = torch.eye(len(part.columns), dtype=part.middle.dtype)[:, part.columns]
            for name, tensor in part._replace(columns=chosen)._asdict().items():
                self.register_buffer(f"{name}{i}", tensor)
        self.num_parts = len(parts)

    def forward(self, x: Tensor) -> Tensor:
        return self.passes(_conditional(*(self._logs(x, i) for i in range(self.num_parts))))

    def _logs(self, x: Tensor, i: int) -> Tensor:
        """Log kernels ``(n, k, m)`` in the free columns, or in those given."""
        part = _Kernels(*(self.get_buffer(f"{name}{i}") for name in _Kernels._fields))
        return self.of[0]._at(x if self.num_parts == 1 else x @ part.columns, part, None)


class Open(Gate):
    """A gate with nothing to judge: every row passes, ``(n, d)`` → zeros ``(n, k)``."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.num_classes = num_classes

    def forward(self, x: Tensor) -> Tensor:
        return x.new_zeros(x.shape[0], self.num_classes)


def traceable(module: nn.Module) -> nn.Module:
    """A copy on the CPU, in eval mode and single precision, with parts that cannot be traced
    replaced by equal ones.
    """
    return _replaced(copy.deepcopy(module).cpu().float().eval()).requires_grad_(False)


def _replaced(module: nn.Module) -> nn.Module:
    if isinstance(module, Asinh):
        return PlainAsinh()
    if isinstance(module, Density):
        if bool(module.immutable.all()):
            return Open(len(module.slope))
        return Kernels(module)
    # A tracer knows parameters and buffers, but no tensors that a user's module holds beside them.
    for name, value in list(vars(module).items()):
        if isinstance(value, Tensor):
            delattr(module, name)
            module.register_buffer(name, value)
    for name, part in named_parts(module):
        setattr(module, name, _replaced(part))
    return module
