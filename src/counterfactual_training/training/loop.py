"""Counterfactual training (Algorithm 1)."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from counterfactual_training.constraints import Constraints
from counterfactual_training.errors import InputError, ModelError
from counterfactual_training.search import Generator, ecco, evaluating, make_generator
from counterfactual_training.search.checks import check_inputs, first_logits
from counterfactual_training.threads import sensible_threads
from counterfactual_training.training.callbacks import Callback, Progress, Run
from counterfactual_training.training.checkpoint import Checkpoint, fingerprint
from counterfactual_training.training.config import TrainConfig
from counterfactual_training.training.explanations import Round, TrainingData, explain_round, shares
from counterfactual_training.training.history import History
from counterfactual_training.training.objective import Explanations, LossTerms, Objective, make_objective
from counterfactual_training.training.sampling import epoch_rng

OptimizerFactory = Callable[[Iterator[nn.Parameter]], Optimizer]


@dataclass(frozen=True)
class TrainResult:
    """The trained model (the same object that went in) and its history."""

    model: nn.Module
    history: History


def train(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    generator: Generator | str | None = None,
    constraints: Constraints | None = None,
    objective: Objective | str | None = None,
    config: TrainConfig | None = None,
    *,
    validation: tuple[Tensor, Tensor] | None = None,
    optimizer: Optimizer | OptimizerFactory | None = None,
    callbacks: Sequence[Callback] = (),
    checkpoint: str | Path | None = None,
    progress: bool | None = None,
    device: str | torch.device | None = None,
) -> TrainResult:
    """Train a classifier, in place, so that its counterfactual explanations become plausible and actionable.

    Starts from the weights the model has, so a trained model is fine-tuned.

    Args:
        model: any module that maps ``(n, *features)`` to logits ``(n, k)``.
        x: ``(n, *features)`` training rows.
        y: ``(n,)`` class indices.
        generator: of the counterfactuals, or the name of one.
        constraints: what may move, in the search and in the loss; inferred from x (a box by Eq. 12) if not given.
        objective: the weights of Eq. 2, or the name of a set of them.
        config: all other settings.
        validation: rows and classes whose accuracy is logged every epoch; they influence nothing.
        optimizer: an optimizer of the model's parameters or a function that makes one; Adam if not given.
        callbacks: listeners, called after every epoch.
        checkpoint: file to save to after every epoch, and to resume from if it exists.
        progress: show a bar; by default on a terminal.
        device: where to train; by default where the model is.
    """
    model, x, y = _placed(model, x, y, device)
    data = _checked(model, x, y)
    validation = _checked_validation(model, validation, data)
    generator = ecco() if generator is None else make_generator(generator, x_train=x)
    objective = make_objective(objective) if isinstance(objective, str) else objective or Objective()
    config = config or TrainConfig()
    constraints = (constraints if constraints is not None else Constraints.infer(x)).to(x)
    constraints.check_factuals(x.flatten(1))
    run = Run(model, _optimizer(model, optimizer, config), config, History())
    listeners: list[Callback] = [*callbacks, Progress(progress)]
    if checkpoint is not None:
        saver = Checkpoint(checkpoint, fingerprint(run, x, y, generator, constraints, objective))
        saver.resume(run)
        listeners.append(saver)

    good = _weights(model)
    batch = x[: config.batch_size + config.num_counterfactuals]
    with sensible_threads(model, batch, config.threads), _own_randomness(x.device):
        for listener in listeners:
            listener.on_train_begin(run)
        while run.epoch < config.epochs and run.stop is None:
            record = _epoch(run, data, generator, constraints, objective)
            run.epoch += 1
            record["validation_accuracy"] = _accuracy(model, validation)
            run.history.records.append({"epoch": run.epoch, **record})
            good = _kept_or_restored(run, good)
            for listener in listeners:
                listener.on_epoch_end(run)
        for listener in listeners:
            listener.on_train_end(run)
    model.eval()
    run.history.stopped = run.stop
    return TrainResult(model, run.history)


def _epoch(
    run: Run, data: TrainingData, generator: Generator, constraints: Constraints, objective: Objective
) -> dict[str, Any]:
    """One pass: search counterfactuals, hand them out over the mini-batches, update on each."""
    started = time.perf_counter()
    config, model = run.config, run.model
    rng = epoch_rng(config.seed, run.epoch)
    _seed_global(int(torch.randint(2**62, (), generator=rng)), data.x.device)  # for dropout and its like
    order = torch.randperm(len(data.x), generator=rng).to(data.x.device) if config.shuffle else None
    batches = _batches(data, order, config.batch_size)
    num = max(config.num_counterfactuals, len(batches))
    parts = shares(num, len(batches))
    explaining = objective.needs_counterfactuals and run.epoch >= config.burn_in_epochs
    rounds: list[Round] = []
    tally = Tally()
    try:
        if explaining and config.refresh == "epoch":
            rounds = [explain_round(model, data, generator, constraints, config, num, rng)]
        if not model.training:
            model.train()  # a model that is in training mode may hold frozen parts that are not
        for index, (x, y) in enumerate(batches):
            explanations = None
            if explaining and config.refresh == "batch":
                size = parts[index].stop - parts[index].start
                rounds.append(explain_round(model, data, generator, constraints, config, size, rng))
                explanations = rounds[-1].explanations
            elif explaining:
                explanations = rounds[0].explanations.rows(parts[index])
            terms = _update(run, objective, x, y, explanations)  # Eq. 2
            tally.add(terms, y)
            if run.stop is not None:
                break
    except ModelError as error:
        if run.epoch == tally.updates == 0:
            raise
        # The model was sound before its first update, so it is the weights that have left for infinity.
        run.stop = str(error).rstrip(".")
    return {**tally.means(), **_search_record(rounds), "seconds": time.perf_counter() - started}


def _update(
    run: Run, objective: Objective, x: Tensor, y: Tensor, explanations: Explanations | None
) -> LossTerms | None:
    """One step of the optimizer on Eq. 2; none where the loss is not finite."""

    def evaluate() -> LossTerms:
        run.optimizer.zero_grad(set_to_none=True)
        return objective(run.model, x, y, explanations)

    def again() -> float:
        total = evaluate().total
        total.backward()
        return float(total.detach())

    terms = evaluate()
    if not bool(torch.isfinite(terms.total)):
        run.bad_updates += 1
        if run.bad_updates >= run.config.max_bad_updates:
            run.stop = f"{run.bad_updates} updates in a row had a non-finite loss"
        return None
    run.bad_updates = 0
    if isinstance(run.optimizer, torch.optim.LBFGS):  # looks at the loss several times a step
        run.optimizer.step(again)
    else:
        terms.total.backward()
        run.optimizer.step()
    return terms


class Tally:
    """Sums over an epoch's updates; only at the end are they brought to the host."""

    def __init__(self) -> None:
        self.sums: Tensor | None = None
        self.updates = self.rows = self.skipped = 0

    def add(self, terms: LossTerms | None, y: Tensor) -> None:
        """Count an update, or one that was skipped."""
        if terms is None:
            self.skipped += 1
            return
        hits = (terms.logits.detach().argmax(-1) == y).sum()
        values = torch.stack(
            [terms.total, terms.class_loss, terms.divergence, terms.ridge, terms.adversarial, hits]
        ).detach()
        self.sums = values if self.sums is None else self.sums + values
        self.updates, self.rows = self.updates + 1, self.rows + len(y)

    def means(self) -> dict[str, Any]:
        names = ("loss", "class_loss", "divergence", "ridge", "adversarial", "accuracy")
        sums = [float("nan")] * len(names) if self.sums is None else self.sums.tolist()
        counts = [max(self.updates, 1)] * 5 + [max(self.rows, 1)]
        return {**{n: s / c for n, s, c in zip(names, sums, counts, strict=True)}, "skipped": self.skipped}


def _search_record(rounds: list[Round]) -> dict[str, float]:
    if not rounds:
        return {"share_mature": float("nan"), "mean_steps": float("nan")}
    return {
        "share_mature": float(sum(r.share_mature for r in rounds) / len(rounds)),
        "mean_steps": float(sum(r.mean_steps for r in rounds) / len(rounds)),
    }


def _batches(data: TrainingData, order: Tensor | None, size: int) -> list[tuple[Tensor, Tensor]]:
    x, y = (data.x, data.y) if order is None else (data.x[order], data.y[order])
    return list(zip(x.split(size), y.split(size), strict=True))


def _placed(
    model: nn.Module, x: Tensor, y: Tensor, device: str | torch.device | None
) -> tuple[nn.Module, Tensor, Tensor]:
    return (model, x, y) if device is None else (model.to(device), x.to(device), y.to(device))


def _checked(model: nn.Module, x: Tensor, y: Tensor) -> TrainingData:
    check_inputs(model, x, y)
    if y.dim() != 1 or len(y) == 0:
        raise InputError(f"Training needs rows: x (n, *features) and y (n,), got y of shape {tuple(y.shape)}.")
    counts = torch.bincount(y.cpu().clamp_min(0))
    if len(counts) < 2 or int(y.min()) < 0 or int((counts > 0).sum()) < len(counts):
        found = sorted(set(y.tolist()))
        raise InputError(f"y must hold every class index 0..k−1 and at least two classes; found {found[:20]}.")
    with evaluating(model), torch.no_grad():
        first_logits(model, x[:64], y[:64], num_classes=len(counts))
    return TrainingData.of(x, y.long(), len(counts))


def _checked_validation(
    model: nn.Module, validation: tuple[Tensor, Tensor] | None, data: TrainingData
) -> tuple[Tensor, Tensor] | None:
    if validation is None:
        return None
    x, y = validation[0].to(data.x.device), validation[1].to(data.y.device)
    check_inputs(model, x, y)
    with evaluating(model), torch.no_grad():
        first_logits(model, x[:64], y[:64], num_classes=data.num_classes)
    if len(y) and not 0 <= int(y.min()) <= int(y.max()) < data.num_classes:
        raise InputError(f"Validation classes must lie in 0..{data.num_classes - 1}, got {y.unique().tolist()}.")
    return x, y


def _optimizer(model: nn.Module, given: Optimizer | OptimizerFactory | None, config: TrainConfig) -> Optimizer:
    if given is not None:
        optimizer = given if isinstance(given, Optimizer) else given(model.parameters())
        own = {id(parameter) for parameter in model.parameters()}
        if not any(id(parameter) in own for group in optimizer.param_groups for parameter in group["params"]):
            raise InputError("The optimizer holds none of this model's parameters; make it with model.parameters().")
        return optimizer
    # With small models most of an update is overhead per operation; the fused one is a single operation.
    fused = all(p.is_floating_point() and p.device.type in ("cpu", "cuda") for p in model.parameters())
    return torch.optim.Adam(model.parameters(), lr=config.learning_rate, eps=1e-8, fused=fused)


def _kept_or_restored(run: Run, good: dict[str, Tensor]) -> dict[str, Tensor]:
    """Remember the weights of a sound epoch; after an unsound one go back to those remembered, and end the run."""
    weights = run.model.state_dict()
    finite = all(bool(torch.isfinite(w).all()) for w in weights.values() if w.is_floating_point())
    run.sound = finite and run.stop is None and run.bad_updates == 0
    if run.sound:
        return _weights(run.model)
    if finite and run.stop is None:
        return good  # the epoch ended in skipped updates: its weights may be to blame
    run.stop = run.stop or "the weights became non-finite"
    run.model.load_state_dict(good)
    warnings.warn(
        f"Training stopped after epoch {run.epoch}: {run.stop}. The weights of the last sound epoch are kept. "
        "A larger lambda_reg or a smaller learning rate usually helps.",
        stacklevel=3,
    )
    return good


def _weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def _accuracy(model: nn.Module, rows: tuple[Tensor, Tensor] | None) -> float:
    if rows is None or len(rows[1]) == 0:
        return float("nan")
    with evaluating(model), torch.no_grad():
        predicted = torch.cat([model(part).argmax(-1) for part in rows[0].split(4096)])
    return float((predicted == rows[1]).float().mean())


def _seed_global(seed: int, device: torch.device) -> None:
    """Seed the generators that modules draw from: the CPU's, and that of the device trained on."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)


def _own_randomness(device: torch.device) -> Any:
    """Torch's global random state inside is ours; the host's is put back."""
    return torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])
