"""One bundle for all that decides a training run but its model and rows."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from counterfactual_training.constraints import Constraints
from counterfactual_training.errors import InputError, unknown
from counterfactual_training.search import Generator, ecco
from counterfactual_training.training.config import TrainConfig
from counterfactual_training.training.objective import Objective, make_objective


@dataclass(frozen=True, eq=False)
class Setting:
    """How a model is trained. The two presets collect everything in which the paper as printed and the code as run
    differ (reference implementation, list D1-D21).

    Attributes:
        generator: of the counterfactuals.
        constraints: what may move; inferred from the training rows (a box by Eq. 12) if not given.
        objective: the weights of Eq. 2.
        config: all other settings.
        num_std: n_σ of the inferred box, Eq. 12.
        length_scale: of the kernel of IP*, Eq. 6, for whoever measures the model.
    """

    generator: Generator = field(default_factory=ecco)
    constraints: Constraints | None = None
    objective: Objective = field(default_factory=Objective)
    config: TrainConfig = field(default_factory=TrainConfig)
    num_std: float = 2.0
    length_scale: float = 5.0

    def conventional(self) -> Setting:
        """The same run without counterfactuals: the baseline."""
        return replace(self, objective=make_objective("vanilla", lambda_class=float(self.objective.lambda_class)))

    def seeded(self, seed: int) -> Setting:
        return replace(self, config=replace(self.config, seed=seed))


AS_RUN = Setting()
AS_PRINTED = Setting(
    generator=ecco(learning_rate=0.25, decay="none", energy_ridge=0.0, strict_epsilon=True),
    config=TrainConfig(refresh="batch", shuffle=True, target_rule="uniform", immature="keep"),
    num_std=3.0,
    length_scale=0.5,
)
PRESETS = {"as_run": AS_RUN, "as_printed": AS_PRINTED}


def preset(name: str) -> Setting:
    """``"as_run"`` reproduces the published numbers; ``"as_printed"`` follows the text."""
    if name not in PRESETS:
        raise InputError(unknown("preset", name, PRESETS))
    return PRESETS[name]
