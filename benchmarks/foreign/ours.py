"""Our own library in the version that stands on the path: a training that makes one epoch whenever
it is asked to.

``ours.py SOURCE JOB``: SOURCE is the folder that the library must come from, JOB what to train, in
JSON. The training is a plain call of the library; it waits in a callback, first after ``warm``
epochs. Asked once more after its last epoch it answers with the weights.
"""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path
from typing import Any

from turns import answer, greet, next_request  # isort: skip  (before torch)

import api
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import counterfactual_training as ct

Job = dict[str, Any]


class OwnModule(nn.Module):
    """The layers of a chain in a class of one's own."""

    def __init__(self, layers: nn.Sequential) -> None:
        super().__init__()
        self.first = layers[0]
        self.second = layers[2]

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x)))


class Pause(ct.Callback):
    """Waits for a request after every epoch but those of the warm-up, and answers with the seconds
    of the epoch.
    """

    def __init__(self, warm: int) -> None:
        self.warm = warm
        self.resumed = 0.0

    def on_epoch_end(self, run: Any) -> None:
        self.at(run.epoch)

    def at(self, epoch: int) -> None:
        seconds = time.perf_counter() - self.resumed
        if epoch < self.warm:
            return
        # Unlike what resource tells, this leaves out the process that started this one.
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        peak = int(re.findall(r"VmHWM:\s*(\d+)", status)[0]) / 1024
        greet() if epoch == self.warm else answer({"seconds": seconds, "peak": peak})
        next_request()
        self.resumed = time.perf_counter()


def published(job: Job, pause: Pause) -> nn.Module:
    """CT of one model by :func:`train`, with the paper's settings for a data set."""
    data = ct.load_dataset(job["data"], "as_run")
    paper = data.settings
    rows, held_out = data.validation_split(torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    model: nn.Module = ct.mlp(data.num_features, data.num_classes)
    if job["own"]:
        model = OwnModule(model)
    api.train(
        model,
        data.x_train[rows],
        data.y_train[rows],
        ct.ecco(decision_threshold=paper.decision_threshold),
        data.training_constraints,
        ct.Objective(lambda_reg=paper.lambda_reg),
        ct.TrainConfig(
            job["epochs"],
            paper.batch_size,
            num_counterfactuals=paper.num_counterfactuals,
            threads=1,
        ),
        validation=(data.x_train[held_out], data.y_train[held_out]) if len(held_out) else None,
        callbacks=[pause],
    )
    return model


def conventional(job: Job, pause: Pause) -> nn.Module:
    """Conventional training of one model by :func:`train`."""
    model, x, y = _problem(job)
    config = ct.TrainConfig(job["epochs"], job["batch_size"], threads=1)
    rules = ct.Constraints.infer(x)
    api.train(model, x, y, ct.ecco(), rules, api.CONVENTIONAL, config, callbacks=[pause])
    return model


def plain(job: Job, pause: Pause) -> nn.Module:
    """The same by the eager loop that everybody writes."""
    model, x, y = _problem(job)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    for epoch in range(job["epochs"]):
        for x_batch, y_batch in zip(
            x.split(job["batch_size"]), y.split(job["batch_size"]), strict=True
        ):
            optimizer.zero_grad(set_to_none=True)
            cross_entropy(model(x_batch), y_batch).backward()
            optimizer.step()
        pause.at(epoch + 1)
    return model


def fleet(job: Job, pause: Pause) -> nn.Module:
    """The first so many members of a file, by :class:`Fleet`."""
    arrays = dict(np.load(job["file"]))
    x = torch.from_numpy(arrays["x"])
    y = torch.from_numpy(arrays["y"])
    constraints = ct.Constraints.infer(x)
    x = x[: job["rows"]]
    y = y[: job["rows"]]
    models = [api.network(arrays, i) for i in range(job["members"])]
    settings = [api.settings_of(arrays, i, job) for i in range(job["members"])]
    members = [
        api.member(m, g, constraints, o, c)
        for m, (g, o, c) in zip(models, settings, strict=True)
    ]
    api.train_fleet(members, x, y, pause)
    return models[0]


def _problem(job: Job) -> tuple[nn.Module, Tensor, Tensor]:
    arrays = np.load(job["file"])
    return api.network(arrays), torch.from_numpy(arrays["x"]), torch.from_numpy(arrays["y"])


def main(source: str, job: Job) -> None:
    if not Path(ct.__file__).resolve().is_relative_to(Path(source).resolve()):
        raise ImportError(f"counterfactual_training came from {ct.__file__}, not from {source}")
    trainings = {
        "published": published,
        "conventional": conventional,
        "plain": plain,
        "fleet": fleet,
    }
    model = trainings[job["training"]](job, Pause(job["warm"]))
    answer({"weights": torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()})


main(sys.argv[1], json.loads(sys.argv[2]))
