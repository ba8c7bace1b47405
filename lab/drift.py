"""How far a member of a fleet and the same run alone drift apart: ``python -m lab.drift``, a
minute.

Both make the same steps and round differently, by 1e-7 in single precision. Training makes small
differences grow: in which step a counterfactual arrives may turn on the last bit. The third column
shows that the stack has no part in it: a lone run whose first weights were changed by one rounding
drifts as far.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

import counterfactual_training as ct

EPOCHS = (1, 10, 30, 60)


class Weights(ct.Callback):
    """The weights of the first member after some epochs."""

    def __init__(self) -> None:
        self.seen: dict[int, nn.Module] = {}

    def on_epoch_end(self, run: ct.Run) -> None:
        if run.epoch in EPOCHS:
            self.seen[run.epoch] = run.snapshot(0)


def difference(first: nn.Module, second: nn.Module, x: Tensor) -> str:
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    far = max(float((a - b).detach().abs().max()) for a, b in pairs)
    other = int((first(x).argmax(-1) != second(x).argmax(-1)).sum())
    return f"{far:.0e} ({other} of {len(x)} predictions)"


def main() -> None:
    torch.set_num_threads(1)
    data = ct.load_dataset("moons")
    x = data.x_train
    y = data.y_train
    torch.manual_seed(0)
    models = [ct.mlp(2, 2, hidden=(32,)) for _ in range(2)]
    lone = copy.deepcopy(models[0])
    nudged = copy.deepcopy(models[0])
    for parameter in nudged.parameters():
        parameter.data *= 1 + 2**-23
    method = ct.methods.ct_published(epochs=EPOCHS[-1])
    stacked = Weights()
    alone = Weights()
    other = Weights()
    ct.Fleet([ct.Member(model, method) for model in models]).train(x, y, callbacks=[stacked])
    ct.train(lone, x, y, method, callbacks=[alone])
    ct.train(nudged, x, y, method, callbacks=[other])
    print("epochs | fleet and alone, largest difference of a weight | alone and alone, nudged")
    for epoch in EPOCHS:
        mine, its, third = (seen.seen[epoch] for seen in (stacked, alone, other))
        print(f"{epoch:6} | {difference(mine, its, x):47} | {difference(third, its, x)}")


if __name__ == "__main__":
    main()
