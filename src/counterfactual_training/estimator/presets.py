"""What the classifier does where nothing is stated. Each default of a preset stands here or in its :class:`Setting`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from counterfactual_training.search import Generator, line
from counterfactual_training.training import Setting, TrainConfig, make_objective, preset

Scaling = Literal["standard", "robust"]


@dataclass(frozen=True, eq=False)
class Preset:
    """A way to train, and the network and the rows that it is meant for; by default the paper's.

    Attributes:
        setting: of the training.
        hidden, activation: of the network.
        bent: share of the first hidden layer's units that start as bends in single columns (:func:`bend`).
        scaling: of numbers, see :class:`Encoder`; a ``"robust"`` one has outliers far from all else, which the network
            takes by their logarithm (:class:`Asinh`).
        early_stopping: whether to hold rows out, stop when their loss no longer falls, and keep the best epoch.
        validation_fraction: of the rows, to hold out.
        n_iter_no_change: epochs without a lower loss after which training stops.
        gate: fitted to the trained model, see :func:`fit_gate`; ``"none"`` for none.
        explainer: the generator of explanations for people; ``None`` is the one of the training.
    """

    setting: Setting = field(default_factory=Setting)
    hidden: tuple[int, ...] = (32,)
    activation: str = "relu"
    bent: float = 0.0
    scaling: Scaling = "standard"
    early_stopping: bool = False
    validation_fraction: float = 0.15
    n_iter_no_change: int = 10
    gate: str = "none"
    explainer: Generator | None = None


def usual_batch_size(num_rows: int) -> int:
    """A hundredth of the rows, from 30 to 1000."""
    return min(1000, max(30, num_rows // 100))


# Chosen for accuracy and log-loss on twelve tables, the bends on eight of them; on none of the paper's test rows.
DEFAULT = Preset(
    Setting(objective=make_objective("vanilla"), config=TrainConfig(shuffle=True)),
    hidden=(64, 64),
    activation="swish",
    bent=0.25,
    scaling="robust",
    early_stopping=True,
    gate="density",
    explainer=line(),
)
PRESETS = {
    "default": DEFAULT,
    "cheap_recourse": replace(DEFAULT, setting=preset("cheap_recourse"), early_stopping=False),
    "as_run": Preset(),
    "as_printed": Preset(preset("as_printed")),
}
