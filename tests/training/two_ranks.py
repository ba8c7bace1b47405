"""What tests train on two processes and on one."""

from __future__ import annotations

import gc
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

import counterfactual_training as ct
from counterfactual_training.errors import CounterfactualTrainingError


def rows(n: int = 47) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(0)
    y = torch.arange(n) % 3
    return torch.randn(3, 2, generator=rng)[y] * 2 + torch.randn(n, 2, generator=rng), y


def network() -> nn.Module:
    torch.manual_seed(1)
    return ct.mlp(2, 3, hidden=(8,))


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.norm, self.leave = nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.leave(torch.tanh(self.norm(self.enter(x))))


def normed() -> nn.Module:
    torch.manual_seed(1)
    return Normed()


class StopOnLast(ct.Callback):
    """A stop that only one process knows of."""

    def on_epoch_end(self, run: Any) -> None:
        if dist.get_rank() == dist.get_world_size() - 1 and run.epoch == 2:
            run.stop("one has had enough")


class Explosive(nn.Module):
    """A model whose logits leave for infinity where the second feature is large, after some
    training.
    """

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.calls = network(), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += self.training
        out = self.inner(x)
        return (
            out * torch.where((x[:, :1] > 2.0) & (self.calls == 7), torch.inf, 1.0)
            if self.training
            else out
        )


@dataclass(frozen=True)
class Scenario:
    settings: dict[str, Any] = field(default_factory=dict)
    method: str = "ct_published"
    model: Any = network
    weighted: bool = False
    protected: bool = False
    source: str = "tensors"  # or "dataset", or "loader"
    callbacks: Any = tuple
    validation: str = "tensors"


SCENARIOS = {
    "conventional": Scenario(method="conventional"),
    "full": Scenario(),
    "shuffled": Scenario({"shuffle": True, "refresh": "batch"}),
    "tiny batches": Scenario({"batch_size": 1, "num_counterfactuals": 10, "epochs": 2}),
    "one row left": Scenario({"batch_size": 46}),
    "drop": Scenario({"immature": "drop", "num_counterfactuals": 25}),
    "keep": Scenario({"immature": "keep", "target_rule": "prior"}),
    "beyond": Scenario(
        {"immature": "drop", "positives": 3, "lambda_contrast": 0.7, "lambda_recourse": 0.4},
        protected=True,
    ),
    "weighted": Scenario({"immature": "drop"}, weighted=True),
    "burn-in": Scenario({"burn_in": 0.5}),
    "accumulate": Scenario({"accumulate": 2}),
    "predicted": Scenario(
        {"adversarial_label": "predicted", "lambda_div": 0.0, "lambda_reg": 0.0}
    ),
    "data set": Scenario(source="dataset"),
    "loader": Scenario({"batch_size": 12}, source="loader", validation="loader"),
    "weighted loader": Scenario({"batch_size": 12}, source="loader", weighted=True),
    "batch norm": Scenario({"batch_size": 12, "refresh": "batch"}, model=normed),
    "early stopping": Scenario(
        {"epochs": 12, "learning_rate": 0.1}, callbacks=lambda: [ct.EarlyStopping(patience=2)]
    ),
    "one stops": Scenario(callbacks=lambda: [StopOnLast()]),
    "explosive": Scenario(model=Explosive),
}


def source_of(scenario: Scenario) -> tuple[Any, ...]:
    x, y = rows(48) if scenario.source == "loader" else rows()
    weight = torch.linspace(0, 2, len(y)) if scenario.weighted else None
    if scenario.source == "tensors":
        return (x, y), {"sample_weight": weight}
    dataset: Dataset = TensorDataset(x, y) if weight is None else TensorDataset(x, y, weight)
    return (
        dataset
        if scenario.source == "dataset"
        else loader(dataset, scenario.settings["batch_size"]),
    ), {}


def loader(dataset: Dataset, batch_size: int) -> DataLoader:
    """A batch of so many rows over all processes, in the order of the rows."""
    size = dist.get_world_size() if dist.is_initialized() else 1
    sampler = DistributedSampler(dataset, shuffle=False) if size > 1 else None
    return DataLoader(dataset, batch_size // size, sampler=sampler)


def train(
    name: str, checkpoint: Path | None = None, callbacks: Any = (), **more: Any
) -> ct.TrainResult:
    scenario = SCENARIOS[name]
    settings = {
        "name": scenario.method,
        "max_steps": 10,
        "decision_threshold": 0.8,
        "epochs": 4,
        "num_counterfactuals": 30,
        "learning_rate": 0.02,
        **scenario.settings,
        **more,
    }
    model = scenario.model()
    if dist.is_initialized():
        model = DistributedDataParallel(model)
    data, options = source_of(scenario)
    held: Any = rows(40)
    if scenario.validation == "loader":
        held = loader(TensorDataset(*held), 10)
    if scenario.protected:
        options["constraints"] = ct.Constraints.build(2, {0: "none"})
    return ct.train(
        model,
        *data,
        method=settings,
        validation=held,
        checkpoint=checkpoint,
        callbacks=[*scenario.callbacks(), *callbacks],
        **options,
    )


def outcome(result: ct.TrainResult) -> dict[str, Any]:
    model = (
        result.model.module
        if isinstance(result.model, DistributedDataParallel)
        else result.model
    )
    records = [{k: v for k, v in r.items() if k != "seconds"} for r in result.history.records]
    return {
        "weights": dict(model.state_dict()),
        "records": records,
        "stopped": result.history.stopped,
    }


class Stuck(ct.Callback):
    """Goes no further than the fourth epoch, and waits to be killed."""

    def on_epoch_end(self, run: Any) -> None:
        if run.epoch == 4:
            time.sleep(600)


def train_on_own_rows() -> ct.TrainResult:
    x, y = rows(40 + 3 * dist.get_rank())
    return ct.train(DistributedDataParallel(network()), x, y, "ct_published")


def train_with_own_seed() -> ct.TrainResult:
    method = ct.methods.ct_published(seed=dist.get_rank())
    return ct.train(DistributedDataParallel(network()), *rows(), method)


def train_on_other_values() -> ct.TrainResult:
    """The classes are the same, one value is not."""
    x, y = rows()
    x[5, 1] += dist.get_rank()
    return ct.train(
        DistributedDataParallel(network()), x, y, "ct_published", ct.Constraints.build(2)
    )


def train_with_own_generator() -> ct.TrainResult:
    return ct.train(
        DistributedDataParallel(network()),
        *rows(),
        ct.methods.ct_published(max_steps=5 + dist.get_rank()),
    )


def train_with_own_constraints() -> ct.TrainResult:
    constraints = ct.Constraints.build(2, {dist.get_rank(): "increase"})
    return ct.train(DistributedDataParallel(network()), *rows(), "ct_published", constraints)


class OnOwnDevice(nn.Module):
    """A model and a penalty that know where they run, as they do on several GPUs."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.rank, self.place = (
            network(),
            dist.get_rank(),
            torch.device("cuda", dist.get_rank()),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


def train_on_own_device() -> ct.TrainResult:
    model = OnOwnDevice()
    place = model.place

    def penalty(state: Any) -> torch.Tensor:
        return state.delta.square().sum(-1) * (place.type == "cuda")

    generator = ct.Generator("own", penalties=(penalty,), max_steps=2)
    method = ct.methods.ct_published(epochs=1, num_counterfactuals=4, generator=generator)
    return ct.train(DistributedDataParallel(model), *rows(), method)


def train_fleet() -> ct.TrainResult:
    return ct.Fleet([ct.Member(DistributedDataParallel(network()), "ct_published")] * 2).train(
        *rows()
    )[0]


def train_with_a_budget() -> ct.TrainResult:
    method = ct.methods.ct_published(epochs=1, budget=0.01)
    return ct.train(DistributedDataParallel(network()), *rows(), method)


def train_normed() -> ct.TrainResult:
    """The last batch has three rows, so the second process gets one."""
    method = ct.methods.conventional(batch_size=11)
    return ct.train(DistributedDataParallel(normed()), *rows(), method)


def work(rank: int, size: int, folder: Path, tasks: list[tuple[Any, dict[str, Any]]]) -> None:
    """One of several processes: train these scenarios with these options and save what came out."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size
    )
    found = []
    for task, options in tasks:
        try:
            found.append(outcome(task() if callable(task) else train(task, **options)))
        except CounterfactualTrainingError as error:
            found.append({"refused": str(error)})
    torch.save(found, folder / f"rank{rank}.pt")
    dist.barrier()
    gc.collect()  # models hold the group, and its threads must end before the interpreter does
    dist.destroy_process_group()
