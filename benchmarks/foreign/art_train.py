"""ART's adversarial trainers and its PGD, on rows and weights of a problem file. Run in its own
environment.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from turns import serve  # isort: skip  (before torch)

import numpy as np
import torch
from art.attacks.attack import EvasionAttack
from art.attacks.evasion import ProjectedGradientDescent
from art.defences.trainer import AdversarialTrainerMadryPGD, AdversarialTrainerTRADESPyTorch
from art.estimators.classification import PyTorchClassifier
from torch.nn.functional import kl_div

torch.set_num_threads(1)
problem = dict(np.load(sys.argv[1]))
one_hot = np.eye(2, dtype=np.float32)


def classifier(arrays: Any, learning_rate: float = 1e-3) -> PyTorchClassifier:
    """A network of linear layers and ReLUs, without limits of the inputs."""
    layers: list[torch.nn.Module] = []
    for i in range(int(problem["layers"])):
        weight = torch.tensor(arrays[f"w{i}"])
        bias = torch.tensor(arrays[f"b{i}"])
        linear = torch.nn.Linear(weight.shape[1], weight.shape[0])
        linear.load_state_dict({"weight": weight, "bias": bias})
        if i:
            layers += [torch.nn.ReLU(), linear]
        else:
            layers += [linear]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.Adam(model.parameters(), learning_rate)
    loss = torch.nn.CrossEntropyLoss()
    return PyTorchClassifier(
        model, loss, problem["x"].shape[1:], 2, optimizer=optimizer, device_type="cpu"
    )


class ClimbKl(EvasionAttack):
    """The attack of TRADES' authors, ``argmax KL(p(x) ‖ p(x′))``: ART has its trainer, not its
    attack.
    """

    attack_params = EvasionAttack.attack_params
    _estimator_requirements = ()

    def __init__(
        self, estimator: PyTorchClassifier, epsilon: float, step_size: float, steps: int
    ) -> None:
        super().__init__(estimator=estimator)
        self.numbers = epsilon, step_size, steps

    def generate(self, x: np.ndarray, y: np.ndarray | None = None, **_: Any) -> np.ndarray:
        epsilon, step_size, steps = self.numbers
        model = self.estimator.model
        rows = torch.tensor(x)
        clean = model(rows).log_softmax(-1).detach()
        moved = rows + 1e-3 * torch.randn_like(rows)
        for _ in range(steps):
            moved = moved.detach().requires_grad_()
            gap = kl_div(model(moved).log_softmax(-1), clean, reduction="sum", log_target=True)
            (slope,) = torch.autograd.grad(gap, moved)
            moved = torch.clamp(
                moved.detach() + step_size * slope.sign(), rows - epsilon, rows + epsilon
            )
        return moved.numpy()


def turn(
    seed: int, out: str, how: str, numbers: dict[str, Any], config: dict[str, Any]
) -> dict[str, Any]:
    """Train from the weights of a seed and leave the weights; or (``attack``) judge weights that
    are there.
    """
    np.random.seed(seed)  # noqa: NPY002  (ART draws from it)
    torch.manual_seed(seed)
    attack: dict[str, Any] = {"eps": numbers["epsilon"], "eps_step": numbers["step_size"]}
    attack |= {"max_iter": numbers["steps"], "num_random_init": 1}
    if how == "attack":
        judged = classifier(np.load(out))
        x = problem["x_test"]
        y = problem["y_test"]
        moved = ProjectedGradientDescent(
            judged, **attack, batch_size=len(x), verbose=False
        ).generate(x, one_hot[y])
        return {"correct": (judged.predict(moved).argmax(1) == y).tolist()}
    weights = {key: problem[key][seed] for key in problem if key[0] in "wb"}
    model = classifier(weights, config["learning_rate"])
    if how == "pgd":
        trainer: Any = AdversarialTrainerMadryPGD(model, **attack)
    else:
        climb = ClimbKl(model, numbers["epsilon"], numbers["step_size"], numbers["steps"])
        plain = ProjectedGradientDescent(model, **attack, verbose=False)
        trainer = AdversarialTrainerTRADESPyTorch(
            model, climb if how == "trades, KL" else plain, numbers["beta"]
        )
    started = time.perf_counter()
    trainer.fit(
        problem["x"],
        one_hot[problem["y"]],
        batch_size=config["batch_size"],
        nb_epochs=config["epochs"],
    )
    seconds = time.perf_counter() - started
    linear = [layer for layer in model.model.modules() if isinstance(layer, torch.nn.Linear)]
    arrays = {f"w{i}": layer.weight.detach().numpy() for i, layer in enumerate(linear)}
    np.savez(
        out,
        **arrays,
        **{f"b{i}": layer.bias.detach().numpy() for i, layer in enumerate(linear)},
    )
    return {"seconds": seconds}


serve(turn, "adversarial-robustness-toolbox")
