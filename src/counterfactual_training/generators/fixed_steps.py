"""Steps of a fixed size until the target has probability τ: the published search."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from counterfactual_training.core.broadcast import per_member
from counterfactual_training.core.losses import softmax
from counterfactual_training.core.precision import at_least_single
from counterfactual_training.generators.chain import Differentiable
from counterfactual_training.generators.generator import Generator
from counterfactual_training.generators.live_rows import LiveRows, pick
from counterfactual_training.generators.result import SearchResult, Status
from counterfactual_training.generators.steps import StepInput


class FixedSteps:
    """``x′ ← project(x′ − η ∇)``, or by another step rule, on all rows of a block together.

    A row at τ is done. If there are discrete features, it is first snapped to valid values, which
    stay from then on, and is done when the snapped point is at τ.
    """

    probability: Tensor  # (..., a, k) at the points that the model was asked about last

    def __init__(
        self,
        network: Differentiable,
        rows: LiveRows,
        generator: Generator,
        noise: Sequence[Tensor],
        held: Tensor | None = None,
        record: bool = False,
    ) -> None:
        """Cells under the mask ``held`` ``(..., n, d)`` keep their value."""
        self.network = network
        self.rows = rows
        self.generator = generator
        self.noise = noise
        self.rate = per_member(generator.learning_rate, 2)
        self.has_discrete = rows.constraints.has_discrete
        self._prepare(held)
        x = rows.x
        self.path: Tensor | None = None
        if record:
            # Filled with the factuals, at which rows that are already there stay.
            self.path = x.repeat(rows.limits.stop + 1, *[1] * x.dim())
        rows.results = {
            "x_cf": x.new_empty(x.shape),
            "x_adv": x.new_empty(x.shape),
            "confidence": torch.empty_like(rows.radius),
            "status": torch.zeros_like(rows.y_target),
            "num_steps": torch.zeros_like(rows.y_target),
        }

    def _prepare(self, held: Tensor | None) -> None:
        """The columns that fixed steps need."""
        rows = self.rows
        x = rows.x
        constraints = rows.constraints
        generator = self.generator
        bounds = constraints.bounds(x).hold(x, held)
        # Without a finite bound there is nothing to project, which saves a pass per step.
        stepwise = constraints.groups and constraints.category_projection == "step"
        if stepwise or not all(bool(bound.isinf().all()) for bound in bounds):
            rows.bounds = bounds
        no_rows = torch.zeros_like(rows.live)
        # The authors decode before the first step.
        x_cf = constraints.project_categories(x.clone(), bounds)
        single = at_least_single(x.new_zeros(rows.y_target.shape))
        rows.add(
            x_cf=x_cf,
            delta=x_cf - x,
            x_adv=x.clone(),
            z=generator.space.encode(x, self.noise[0]),
            nascent=no_rows,
            radius=single + per_member(generator.epsilon, 1),
        )
        rows.spare = torch.empty_like(x)
        rows.scratch = torch.empty_like(x)
        if self.has_discrete:
            rows.add(snapped=no_rows, fresh=None, spent=torch.zeros_like(rows.y_target))

    @property
    def num_looks(self) -> int:
        """T iterations with a step, one to check the last step, and one more to check a final
        snap.
        """
        return self.rows.limits.stop + 1 + int(self.has_discrete)

    def rounds(self) -> Iterator[LiveRows]:
        """All rows descend once."""
        yield self.rows

    def time(self, step: int) -> int:
        """The step that penalties see."""
        return step

    def class_gradient(self, rows: LiveRows, logits: Tensor) -> Tensor:
        """∂/∂logits of the cross-entropy, summed over rows: a mean would scale steps by 1/n."""
        return self.probability - rows.one_hot

    def step(self, rows: LiveRows, grad: Tensor, step: int) -> None:
        """Move all rows, given ∇ₓ′ of Eq. 1."""
        generator = self.generator
        space = generator.space
        rule = generator.rule
        if rule is None:
            # Δ = −η ∇ₓ′
            rows.z, delta = space.propose(rows.z, rows.x_cf, grad, generator.learning_rate)
            rows.advance(delta)  # x′ ← project(x′ + Δ)
        else:  # the same by another rule
            rule(rows, self._step_input(rows, grad, step))
        rows.z = space.settle(rows.z, rows.x_cf, self.noise[step + 1])
        self._keep_nascent(rows)

    def _step_input(self, rows: LiveRows, grad: Tensor, step: int) -> StepInput:
        """What a step rule may look at."""
        confidence = _of_target(self.probability, rows)
        return StepInput(grad, self.rate, step, confidence, self.noise[step], self.network)

    def _keep_nascent(self, rows: LiveRows) -> None:
        """Eq. 4: rows with ``‖Δ‖∞ ≤ ε`` (or ``<``, as printed) are nascent; of those that leave,
        store the last.
        """
        norm = at_least_single(torch.abs(rows.delta, out=rows.scratch).amax(-1))
        if self.generator.strict_epsilon:
            inside = norm < rows.radius
        else:
            inside = norm <= rows.radius
        if not torch.equal(inside, rows.nascent):  # in most steps no row leaves or comes back
            leaving = (rows.nascent & ~inside).nonzero(as_tuple=True)
            # The last iterate inside was the one before this step.
            rows.x_adv.index_put_(leaving, pick(rows.spare, leaving))
        rows.nascent = inside

    # ---- who is done -----------------------------------------------------------------------------

    def judge(self, rows: LiveRows, logits: Tensor, step: int) -> None:
        """Finish the rows that are done: at τ, out of steps, or with nothing left that may move.

        Tested before each update and once after the last, as in the authors' code.
        """
        self.probability = probability = softmax(logits)
        if step == 0:
            self._start(rows)
        elif self.path is not None:
            self._record(rows, min(step, rows.limits.stop))
        # Goals of other classes and finished rows are infinite, so one comparison decides for all
        # rows.
        early = 0 < step < rows.limits.start
        arrivals = probability >= rows.goals
        if early and rows.fresh is None and not bool(arrivals.any()):
            return  # the most common case, decided by one comparison
        arrived = arrivals.any(-1)
        ready = self._ready(rows, arrived, logits, step)
        # From here on rows may be done, which is rare enough for the slower operations.
        if early and not self.has_discrete:
            self._finish(rows, ready, Status.CONVERGED, step)
            return
        if step == 0:
            self._leave_out(rows, arrived)
        self._close(rows, arrived, ready, step)

    def _leave_out(self, rows: LiveRows, arrived: Tensor) -> None:
        """Finish the rows that already are where they should go: of the target class by argmax,
        even below τ.
        """
        in_target = arrived | (self.probability.argmax(-1) == rows.y_target)
        self._finish(rows, in_target, Status.ALREADY_THERE, 0)
        if self.path is not None:
            self._record(rows, 0)

    def _close(self, rows: LiveRows, arrived: Tensor, ready: Tensor, step: int) -> None:
        """Snap what has to be discrete; finish rows at τ and those without steps left."""
        closing = torch.as_tensor(step >= rows.limit, device=arrived.device)
        if isinstance(rows.limit, Tensor):
            updates: int | Tensor = rows.limit.clamp_max(step)
        else:
            updates = min(step, rows.limit)
        settled = rows.live
        if rows.snapped is not None:
            settled = self._snap(rows, rows.snapped, ready, closing)
        over = closing
        # If all that may move was snapped, further steps cannot change a row.
        if rows.snapped is not None and not rows.constraints.has_free_features:
            over = closing | rows.snapped
        self._finish(rows, settled & arrived & (ready | over), Status.CONVERGED, updates)
        self._finish(rows, settled & over & ~arrived, Status.EXHAUSTED, updates)

    def _start(self, rows: LiveRows) -> None:
        """Make the columns that need the number of classes, which the first output tells."""
        one_hot = torch.zeros_like(self.probability).scatter_(
            -1, rows.y_target.unsqueeze(-1), 1
        )
        tau = torch.as_tensor(per_member(rows.threshold, 2)).to(one_hot)
        rows.add(one_hot=one_hot, goals=torch.where(one_hot > 0, tau, torch.inf))

    def _ready(self, rows: LiveRows, arrived: Tensor, logits: Tensor, step: int) -> Tensor:
        """Rows at τ that need not go on: every part of the generator has enough, and so have all
        answers to a factual.
        """
        if step == 0:
            return arrived
        for suffices in self.generator.demands:
            arrived = arrived & suffices(rows.state(logits, self.time(step)))
        if rows.num_answers == 1:
            return arrived
        return self._together(rows, arrived, step)

    def _together(self, rows: LiveRows, arrived: Tensor, step: int) -> Tensor:
        """Rows of which all answers are there, after T/2 steps."""
        groups = (arrived | ~rows.live).unflatten(-1, (-1, rows.num_answers))
        together = groups.all(-1, keepdim=True).expand_as(groups).flatten(-2)
        halfway = torch.as_tensor(2 * step >= rows.limit, device=arrived.device)
        return arrived & together & halfway

    def _snap(
        self, rows: LiveRows, snapped: Tensor, arrived: Tensor, closing: Tensor
    ) -> Tensor:
        """Snap the rows that reached τ while relaxed (after the last step: all); mask ``(..., a)``
        of the others.
        """
        rows.fresh = None
        live = rows.live
        fresh = live & ~snapped & (arrived | closing)
        if bool(fresh.any()):
            # The point before the snap, if nascent, is stored now; a later iterate within ε may
            # replace it (Eq. 4).
            stored = (fresh & rows.nascent).unsqueeze(-1)
            rows.x_adv = torch.where(stored, rows.x_cf, rows.x_adv)
            rows.nascent = rows.nascent & ~fresh
            # Cells that the caller holds have an interval of one point; snapping must not touch
            # them.
            closed = None
            if rows.bounds is not None:
                closed = rows.bounds.lower == rows.bounds.upper
            rows.x_cf = rows.rounded(fresh, closed)
            rows.delta = rows.x_cf - rows.x
            rows.snapped = snapped | fresh
            # The iteration was spent on snapping; num_steps takes it off again.
            rows.spent = rows.spent + (fresh & ~closing)
            # A negative radius: no later iterate of such a row counts as nascent.
            rows.radius.masked_fill_(fresh & closing, -1)
            rows.fresh = fresh
        return live & ~fresh

    def _finish(
        self, rows: LiveRows, mask: Tensor, status: Status, updates: int | Tensor
    ) -> None:
        """Write the results of the rows under the mask, all live; ``updates`` is one number, or one
        per member.
        """
        done = mask.nonzero(as_tuple=True)
        if not done[0].numel():
            return
        x_cf = pick(rows.x_cf, done)
        # While a row is nascent, x_adv is not written at every step: x_cf is it.
        nascent = pick(rows.nascent, done).unsqueeze(-1)
        x_adv = torch.where(nascent, x_cf, pick(rows.x_adv, done))
        if isinstance(updates, Tensor):
            updates = pick(updates.expand_as(mask), done)
        if self.has_discrete:
            updates = updates - pick(rows.spent, done)
        rows.write(
            done,
            x_cf=x_cf,
            x_adv=x_adv,
            confidence=pick(_of_target(self.probability, rows), done),
            status=int(status),
            num_steps=updates,
        )
        # No probability reaches infinity.
        rows.goals.masked_fill_(mask.unsqueeze(-1), torch.inf)
        rows.leave(mask, done)

    def _record(self, rows: LiveRows, step: int) -> None:
        """Store the current iterate of the live rows at this and all later places of the path."""
        if self.path is not None:
            live = rows.live.nonzero(as_tuple=True)
            rest = self.path[step:].movedim(0, -2)  # (..., n, T + 1 - step, d)
            rest[(*live[:-1], rows.index[live])] = rows.x_cf[live].unsqueeze(-2)

    def result(self) -> SearchResult:
        """What was found, once no row is live."""
        results = self.rows.results
        status = results["status"]
        confidence = results["confidence"]
        return SearchResult(
            x_cf=results["x_cf"],
            x_adv=results["x_adv"],
            converged=confidence >= per_member(self.rows.threshold, 1),
            num_steps=results["num_steps"],
            status=status,
            confidence=confidence,
            binding=status.new_zeros(*status.shape, 0, dtype=torch.int8),
            path=self.path,
        )


def _of_target(values: Tensor, rows: LiveRows) -> Tensor:
    """The target's value ``(..., a)`` of values ``(..., a, k)`` per class."""
    return values.gather(-1, rows.y_target.unsqueeze(-1)).squeeze(-1)
