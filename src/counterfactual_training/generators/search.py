"""The search: counterfactuals of a whole batch by gradient descent (Eq. 1, Algorithm 1 lines
4-6).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from math import prod
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from counterfactual_training.constraints import Constraints
from counterfactual_training.core.precision import at_least_single
from counterfactual_training.errors import InputError
from counterfactual_training.generators.chain import (
    Chain,
    Differentiable,
    StackedChain,
    differentiable,
)
from counterfactual_training.generators.fixed_steps import FixedSteps
from counterfactual_training.generators.generator import Generator
from counterfactual_training.generators.gradient import search_gradient
from counterfactual_training.generators.line_search import LineSearch
from counterfactual_training.generators.live_rows import LiveRows
from counterfactual_training.generators.model_checks import (
    check_inputs,
    check_tensor,
    finite_logits,
    first_logits,
)
from counterfactual_training.generators.real_rows import KnowsRealRows
from counterfactual_training.generators.recipes import ecco
from counterfactual_training.generators.result import SearchResult
from counterfactual_training.threads import sensible_threads
from counterfactual_training.torch_modes import evaluating, gradients_on, ordinary

# Values per block. Rows do not interact, so a block can run all its steps while it stays in the
# processor's cache, instead of streaming the whole batch through memory at every step. An
# accelerator wants large blocks.
_BLOCK_VALUES = {"cpu": 2**19}
_BLOCK_VALUES_ACCELERATOR = 2**26


def search(  # noqa: PLR0913  # public
    model: nn.Module,
    x: Tensor,
    y_target: Tensor,
    generator: Generator | None = None,
    constraints: Constraints | None = None,
    rng: torch.Generator | Sequence[torch.Generator] | None = None,
    *,
    held: Tensor | None = None,
    difficulty: Tensor | None = None,
    real_rows: bool = True,
    record: bool = False,
    diagnose: bool = True,
    threads: int | None = None,
) -> SearchResult:
    """Search for a counterfactual of every row, all rows at once.

    If the model has a gate (:func:`fit_gate`), rows of a table that miss τ also try real rows of
    the target, as far as the gate stores some. A row that misses τ although the model without its
    gate reaches it gets ``Status.IMPLAUSIBLE``.

    The search runs in eval mode and leaves the model's weights, mode, buffers and gradients as they
    were.

    Args:
        model: maps ``(n, *features)`` to logits ``(n, k)``; for a fleet, both with leading
            dimensions.
        x: ``(..., n, *features)`` factuals.
        y_target: ``(..., n)`` target class of each row.
        generator: what to minimise and how; see :mod:`recipes`. The default is :func:`ecco`.
        constraints: what may move; ``None`` lets everything move.
        rng: for generators that draw random numbers; in a fleet one for all members, or one each.
        held: mask like x of single cells that must keep their value, on top of the constraints.
        difficulty: ``(d,)`` cost weight of each feature, for a line search.
        real_rows: let a model with a gate try real rows; otherwise follow gradients alone.
        record: keep all iterates in ``path``, which takes the memory of T + 1 copies of x. A real
            row takes the last place.
        diagnose: find which constraints keep rows from converging.
        threads: CPU threads; ``None`` uses a single one for small models and batches.

    Examples:
        >>> import counterfactual_training as ct
        >>> data = ct.load_dataset("moons")
        >>> method = ct.methods.conventional(epochs=5, learning_rate=0.01)
        >>> model = ct.train(ct.mlp(2, 2), data.x_train, data.y_train, method).model
        >>> result = ct.search(model, data.x_test, 1 - data.y_test, constraints=data.constraints)
        >>> bool((model(result.x_cf).argmax(-1) == 1 - data.y_test).float().mean() > 0.9)
        True
    """
    if generator is None:
        generator = ecco()
    with gradients_on(), evaluating(model):
        # A caller's inference_mode made tensors that no gradient can be taken with.
        ordinary(model)
        x = ordinary(x)
        y_target = ordinary(y_target)
        check_inputs(model, x, y_target)
        flat = x.detach().flatten(y_target.dim())
        if constraints is None:
            constraints = _unconstrained(flat.shape[-1])
        constraints = constraints.to(flat)
        constraints.check_factuals(flat)
        generator.check_features(flat.shape[-1])
        options = SearchOptions(
            first_logits, _mask(ordinary(held), x), ordinary(difficulty), record, diagnose
        )
        block = flat[..., : _block_size(flat, generator.num_answers), :]
        with sensible_threads(model, block, threads):
            result = search_rows(model, x, y_target, generator, constraints, rng, options)
            if real_rows and isinstance(model, KnowsRealRows):
                return model.try_real_rows(
                    x, y_target.long(), result, generator, constraints, held
                )
    return result


class SearchOptions(NamedTuple):
    """Options of a search; the defaults are those of training.

    Attributes:
        look: computes the first logits, and raises if they are not finite.
        held: mask like x of single cells that must keep their value.
        difficulty: ``(d,)`` cost weight of each feature, for a line search.
        record: keep all iterates.
        diagnose: find which constraints keep rows from converging.
    """

    look: Callable[[Callable[[Tensor], Tensor], Tensor, Tensor], Tensor] = finite_logits
    held: Tensor | None = None
    difficulty: Tensor | None = None
    record: bool = False
    diagnose: bool = False


def search_rows(
    model: nn.Module,
    x: Tensor,
    y_target: Tensor,
    generator: Generator,
    constraints: Constraints,
    rng: torch.Generator | Sequence[torch.Generator] | None = None,
    options: SearchOptions = SearchOptions(),  # noqa: B008  # has no state
) -> SearchResult:
    """:func:`search` for rows, constraints and a generator that were checked before: what training
    runs.
    """
    feature_shape = x.shape[y_target.dim() :]
    flat = x.detach().reshape(*y_target.shape, prod(feature_shape))  # images too
    flat = _repeated(flat, generator.num_answers, y_target.dim() - 1)
    targets = _repeated(y_target.long(), generator.num_answers, y_target.dim() - 1)
    constraints = constraints.to(flat)
    # Once for all blocks, whose size must not matter.
    noise = _noise(generator, rng, flat).unbind()
    block = _block_size(flat, generator.num_answers)
    parts = []
    with gradients_on(), evaluating(model):
        generator = generator.prepared(partial(_ask, model, flat, feature_shape))
        network = differentiable(
            model, feature_shape, flat.dim(), plain=not generator.gradients.automatic
        )
        # It works on (M, d, n), so lay out the rows like that in memory.
        if isinstance(network, StackedChain):
            flat = flat.mT.contiguous().mT
        for start in range(0, max(1, flat.shape[-2]), block):
            x_part = flat[..., start : start + block, :]
            y_part = targets[..., start : start + block]
            held = None
            if options.held is not None:
                held = _cells(options.held, flat, generator.num_answers, start, block)
            rows = LiveRows(x_part, y_part, generator, constraints)
            solver: Solver
            if generator.step_rule == "line":
                extras = (held, options.difficulty, options.record)
                solver = LineSearch(network, rows, generator, *extras)
            else:
                solver = FixedSteps(network, rows, generator, noise, held, options.record)
            for climbing in solver.rounds():
                descend(network, generator, climbing, solver, options.look)
            part = solver.result()
            if options.diagnose:
                # Here, because training never asks.
                from counterfactual_training.generators.diagnosis import diagnose_rows

                part = diagnose_rows(part, network, x_part, y_part, generator, constraints)
            parts.append(part)
    result = parts[0]
    if len(parts) > 1:
        result = SearchResult.join(parts)
    return _shaped(result, x.detach(), feature_shape, generator.num_answers)


class Solver(Protocol):
    """How rows descend: :class:`FixedSteps` or :class:`LineSearch`."""

    @property
    def num_looks(self) -> int:
        """How often the model is asked at most."""
        ...

    def rounds(self) -> Iterator[LiveRows]:
        """Yields rows to descend, one after the other."""
        ...

    def judge(self, rows: LiveRows, logits: Tensor, step: int) -> None:
        """Finish the rows that are done, given the logits ``(..., a, k)`` at x_cf."""
        ...

    def class_gradient(self, rows: LiveRows, logits: Tensor) -> Tensor:
        """∂/∂logits ``(..., a, k)`` of the class loss, summed over rows."""
        ...

    def time(self, step: int) -> int:
        """The step that penalties see."""
        ...

    def step(self, rows: LiveRows, grad: Tensor, step: int) -> None:
        """Choose the next x_cf, given ∇ₓ′ of Eq. 1 ``(..., a, d)``."""
        ...

    def result(self) -> SearchResult:
        """What was found, after all rounds."""
        ...


def descend(
    network: Differentiable,
    generator: Generator,
    rows: LiveRows,
    solver: Solver,
    look: Callable[..., Tensor] = finite_logits,
) -> None:
    """Algorithm 1, line 5: minimise Eq. 1 for all rows at once, until each of them is done."""
    with torch.inference_mode(_needs_no_graph(network, generator, rows)):
        for step in range(solver.num_looks):
            if step:
                logits = network.logits(rows.x_cf)
            else:
                logits = look(network.logits, rows.x_cf, rows.y_target)
            solver.judge(rows, logits, step)  # rows at τ are done
            if rows.live_width == 0:
                break
            # The last rounds only look: at the last step, and at what a final snap made of it.
            if step < rows.limits.stop:
                if generator.is_gradient_free:
                    grad = logits[..., :0]  # not needed here
                else:
                    state = rows.state(logits, solver.time(step))
                    by_logits = solver.class_gradient(rows, logits)
                    grad = search_gradient(generator, state, network, by_logits)  # ∇ₓ′ of Eq. 1
                    # Of features that follow others, if there are any.
                    grad = rows.constraints.through(grad, rows.x_cf)
                solver.step(rows, grad, step)  # x′ ← project(x′ − η ∇ₓ′)
            rows.shrink()


def _needs_no_graph(network: Differentiable, generator: Generator, rows: LiveRows) -> bool:
    """Whether ``inference_mode`` may save autograd's bookkeeping: it breaks a user's code that
    builds a graph.
    """
    # The columns of a line search outlive a round.
    return (
        generator.step_rule != "line"
        and isinstance(network, Chain)
        and generator.is_plain
        and type(rows.constraints) is Constraints
    )


def _repeated(rows: Tensor, num: int, dim: int) -> Tensor:
    """Each row as often as it has answers; mostly once, which copies nothing."""
    if num == 1:
        return rows
    return rows.repeat_interleave(num, dim)


def _shaped(
    result: SearchResult, x: Tensor, feature_shape: torch.Size, num_answers: int
) -> SearchResult:
    """The best result of each row of x, with points of the shape that features have; ``binding``
    stays flat.
    """
    flat = {name: getattr(result, name) for name in ("x_cf", "x_adv", "path")}
    shaped = {
        n: v.reshape(*v.shape[:-1], *feature_shape) for n, v in flat.items() if v is not None
    }
    result = replace(result, **shaped)
    if num_answers == 1:
        return result
    return result.best_of(num_answers, x)


def _mask(held: Tensor | None, x: Tensor) -> Tensor | None:
    """The mask of the cells to hold, checked."""
    if held is not None and held.shape != x.shape:
        raise InputError(
            f"held must be a mask with the shape of x, {tuple(x.shape)}, got {tuple(held.shape)}."
        )
    return held


def _cells(held: Tensor, flat: Tensor, num_answers: int, start: int, block: int) -> Tensor:
    """The cells to hold of a block of rows ``(..., n, d)``, for each of their answers."""
    cells = held.reshape(*flat.shape[:-2], -1, flat.shape[-1])
    cells = cells.repeat_interleave(num_answers, -2)
    return cells[..., start : start + block, :].to(flat.device, torch.bool)


def _ask(model: nn.Module, x: Tensor, feature_shape: torch.Size, points: Tensor) -> Tensor:
    """Logits ``(..., m, k)`` of points ``(m, d)`` for every member that has rows x ``(..., n,
    d)``.
    """
    shared = points.to(x).expand(*x.shape[:-2], *points.shape)
    with torch.no_grad():
        return at_least_single(
            check_tensor(model(shared.reshape(*shared.shape[:-1], *feature_shape)))
        )


def _block_size(x: Tensor, together: int = 1) -> int:
    """How many of the rows x ``(..., n, d)`` to search at once, a multiple of those that belong
    together.
    """
    num_rows = x.shape[-2]
    values = _BLOCK_VALUES.get(x.device.type, _BLOCK_VALUES_ACCELERATOR)
    # All members of a fleet work on the same rows of a block, so they share its memory.
    most = max(1, values // max(1, prod(x.shape[:-2]) * x.shape[-1]))
    # Blocks of equal size: a small last block would take as many steps as the others.
    equal = max(1, -(-num_rows // max(1, -(-num_rows // most))))
    return -(-equal // together) * together


@lru_cache(maxsize=64)
# The cached object must also work outside of a caller's inference_mode.
@torch.inference_mode(False)
def _unconstrained(num_features: int) -> Constraints:
    return Constraints.build(num_features)


def _noise(
    generator: Generator, rng: torch.Generator | Sequence[torch.Generator] | None, x: Tensor
) -> Tensor:
    """Random draws of the generator's space, one per iteration of the search: ``(T + 2, ℓ)``.

    With one rng per member ``(T + 2, members, 1, ℓ)``; each member draws what it would draw alone.
    """
    steps = generator.max_steps
    if rng is None or isinstance(rng, torch.Generator):
        return generator.space.noise(int(torch.as_tensor(steps).max()) + 2, rng, x)
    return _noise_of_members(generator, rng, x)


def _noise_of_members(
    generator: Generator, rng: Sequence[torch.Generator], x: Tensor
) -> Tensor:
    steps = generator.max_steps
    if isinstance(steps, Tensor):
        limits = steps.tolist()
    else:
        limits = [steps] * len(rng)
    draws = [
        generator.space.noise(limit + 2, stream, x)
        for limit, stream in zip(limits, rng, strict=True)
    ]
    # Members with a smaller T are done before the padding.
    return nn.utils.rnn.pad_sequence(draws).unsqueeze(-2)
